/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TOOLS_LIB_RUN_H
#define TOOLS_LIB_RUN_H

/* Whole runs over a channel: the client's, with its figures, and the target's. */

#include "lib/hist.h"
#include "lib/pass.h"

struct run_result {
	struct spec spec;
	uint32_t nics;
	uint32_t target_nics;
	uint64_t iters; /* timed, of all writers */
	uint64_t messages;
	uint64_t bytes;
	double seconds;
	double bandwidth_gb_s; /* 10^9 bytes */
	double messages_per_s;
	double client_cpu_s;
	double target_cpu_s;
	bool cpu_shared; /* both sides are one process: all of it is in client_cpu_s */
	bool validated;       /* as many iterations as were timed were compared, every byte */
	uint64_t check_iters; /* of each writer */
	uint64_t left_out;    /* iterations of a writer that were timed and not compared */
	uint64_t bytes_checked;
	struct hist hist; /* of the client's iterations */
};

/* The client's side. nics NULL: as the settings say. */
void run_client(struct channel *channel, const struct spec *spec, const char *nics,
                bool shares_process, struct run_result *out);
/* No run follows. */
void run_goodbye(struct channel *channel);
/* The target's side: serves runs until the client says that none follows. provider: the only one it
 * agrees to, NULL any. */
void run_target(struct channel *channel, const char *provider, const char *nics,
                bool shares_process);

#endif
