/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TOOLS_LIB_SIDE_H
#define TOOLS_LIB_SIDE_H

/* One side of a run: an engine, a source and a destination buffer, and the other side's
 * destination. Both sides are alike; which of them writes is a matter of the pass. */

#include "lib/channel.h"
#include "lib/spec.h"

#include <wimm/imm.h>
#include <wimm/transfer.h>

#define SIDE_GUARD_BYTES 4096u /* of poison in front of and behind the destination */
#define SIDE_MAX_WAIT_S  60u   /* without any progress a run is given up */

struct side {
	const struct spec *spec;
	struct channel *channel;
	struct wimm_engine *engine;
	int wake_fd;        /* callbacks tell the main thread */
	uint64_t blocks;    /* in a buffer */
	uint8_t *src;       /* blocks * block_bytes */
	uint8_t *dst;       /* the same, between two guards */
	uint32_t *in_order; /* 0, 1, 2, ... */
	uint32_t *to_block; /* destination block of each source block */
	struct wimm_mr *src_mr;
	struct wimm_mr *dst_mr;
	struct wimm_remote_mr *remote;
	uint32_t nics;
	uint32_t remote_nics;
	_Atomic uint32_t lost; /* the peer is: lost_text says how */
	char lost_text[256];
};

/* nics: local NICs, NULL: as the settings say. */
void side_open(struct side *s, const struct spec *spec, const char *nics, struct channel *channel);
void side_close(struct side *s);
/* Describe this side's destination; take the other's. */
void side_tell(struct side *s, cJSON *message);
void side_hear(struct side *s, const cJSON *message);

/* Callbacks: something has changed. */
void side_wake(struct side *s);
/* Run until done() says yes (true) or the channel has a message (false). progress() is a number
 * that changes as long as the run lives; SIDE_MAX_WAIT_S without that end the program. */
bool side_wait(struct side *s, bool (*done)(void *arg), uint64_t (*progress)(void *arg), void *arg);

#endif
