/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TOOLS_LIB_PASS_H
#define TOOLS_LIB_PASS_H

/* A run is a series of passes: warm-up, the timed one, then validating ones. In each the client,
 * the target or both write; a reader says when its engine has counted all.
 *
 *   client                                target
 *   {"do":"pass", imm, iters, round}  ->
 *                                     <-  {"do":"armed"}
 *   writes ...                            writes ... (both ways)
 *   {"do":"count", iters}            <->  (when a duration was asked for)
 *   {"do":"arrived"} (both ways)     <->  {"do":"arrived"}: the counter has fired for the last
 *                                     <-  {"do":"checked", bytes}: the next pass may begin
 */

#include "lib/load.h"
#include "lib/sink.h"

enum pass_kind { PASS_WARMUP, PASS_TIMED, PASS_CHECK };

struct pass {
	enum pass_kind kind;
	uint32_t imm;
	uint64_t iters; /* of each writer; UINT64_MAX: spec.seconds decide */
	uint64_t round; /* of the validating passes */
};

struct runner {
	const struct spec *spec;
	struct channel *channel;
	bool client;
	bool shares_process; /* with the other side: CPU time cannot be told apart */
	struct side side;
	struct load load; /* unused by a target that does not write */
	struct sink sink; /* unused by a client that does not read */
};

/* What a pass came to, on the client. */
struct pass_result {
	double seconds; /* first submission to the last reader's notice */
	double client_cpu_s;
	double target_cpu_s;
	uint64_t iters;        /* of the client's writer */
	uint64_t target_iters; /* of the target's */
	uint64_t bytes_checked;
};

/* Open this side's half once the hello is through, and exchange regions. */
void runner_open(struct runner *r, const struct spec *spec, const char *nics,
                 struct channel *channel, bool client);
void runner_close(struct runner *r);
/* The next message, while the engine goes on. kind NULL: any; NULL when there is no more. */
cJSON *runner_recv(struct runner *r, const char *kind);
void pass_lead(struct runner *r, const struct pass *pass, struct pass_result *out);
void pass_follow(struct runner *r, const cJSON *message);

#endif
