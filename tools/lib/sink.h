/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TOOLS_LIB_SINK_H
#define TOOLS_LIB_SINK_H

/* The receiving half of a pass: it knows when the last of it has arrived, from the engine's
 * immediate counter alone (OP_SEND: from the messages), and compares what came. */

#include "lib/side.h"

struct sink {
	struct side *side;
	_Atomic uint32_t fired; /* 1: all has arrived; 2: failed, fail_text says how */
	char fail_text[512];

	/* OP_SEND; the callback thread's while messages may come. */
	uint8_t *pool;
	uint64_t pool_count;
	uint64_t pool_bytes; /* a buffer */
	wimm_op recvs;
	_Atomic uint32_t returned; /* buffers that came back for good */
	_Atomic uint64_t got;      /* messages of this pass */
	_Atomic uint64_t want;     /* UINT64_MAX: not known yet */
	bool compare;
	uint64_t round;
	uint64_t bad;
	uint8_t *seen; /* a bit a message of this pass */
	uint64_t seen_count;
};

void sink_open(struct sink *k, struct side *side);
void sink_close(struct sink *k);
/* Before anything of the pass comes. iters UINT64_MAX: told later by sink_expect(). compare: the
 * destination is poisoned (OP_SEND: messages are checked as they come). */
void sink_arm(struct sink *k, uint32_t imm, uint64_t iters, uint64_t round, bool compare);
/* How many iterations this pass has. */
void sink_expect(struct sink *k, uint32_t imm, uint64_t iters);
/* Everything has arrived. Dies when that can no longer happen. */
bool sink_done(struct sink *k);
uint64_t sink_progress(const struct sink *k);
/* Compare all that the pass of `iters` iterations has left behind, also what must be untouched and
 * that no immediate is left over. Returns the bytes compared; dies at the first difference. */
uint64_t sink_compare(struct sink *k, uint32_t imm, uint64_t iters, uint64_t round);
/* What the sender puts into its source for that round. */
void sink_fill_source(struct side *s, uint64_t iters, uint64_t round);

#endif
