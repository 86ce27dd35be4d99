/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TOOLS_LIB_LOAD_H
#define TOOLS_LIB_LOAD_H

/* The writing half of a pass: `depth` chains, each of which submits its next iteration from the
 * callback that ends its last. */

#include "lib/hist.h"
#include "lib/side.h"

struct load;

/* One iteration in flight. The main thread starts a chain and retries a stalled one; in between it
 * belongs to the callback thread. */
struct chain {
	struct load *load;
	uint64_t iter;
	uint64_t submit_ns;
	_Atomic uint64_t left;    /* operations of this iteration that have not settled */
	uint64_t submitted;       /* of `batch` */
	_Atomic uint32_t stalled; /* the engine said AGAIN */
	struct wimm_scatter_entry *entries;
};

struct load {
	struct side *side;
	struct chain *chains;
	const struct wimm_remote_mr **targets; /* barrier */
	uint32_t imm;
	uint64_t iters; /* UINT64_MAX: until end_ns */
	uint64_t end_ns;
	uint64_t payload_key; /* OP_SEND: messages of this round carry their number */
	_Atomic uint64_t next;
	_Atomic uint64_t started; /* iterations that will come to an end */
	_Atomic uint64_t ended;
	_Atomic uint32_t chains_left;
	_Atomic uint32_t failed; /* fail_text says how */
	char fail_text[512];
	struct hist hist; /* the callback thread's until chains_left is 0 */
};

void load_open(struct load *l, struct side *side);
void load_close(struct load *l);
/* Start `iters` iterations, or as many as fit into `seconds` when that is not 0. */
void load_start(struct load *l, uint32_t imm, uint64_t iters, double seconds);
/* All have settled. Retries what was stalled; dies when one has failed. */
bool load_done(struct load *l);
uint64_t load_ended(const struct load *l);

#endif
