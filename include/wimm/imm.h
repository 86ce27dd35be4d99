/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WIMM_IMM_H
#define WIMM_IMM_H

#include <wimm/engine.h>

#ifdef __cplusplus
extern "C" {
#endif

/** What one peer is to contribute to an expectation. */
struct wimm_owes {
	wimm_peer peer;
	uint64_t count;
};

struct wimm_expect_opts {
	uint32_t size;
	uint32_t flags;              /* none defined */
	uint64_t deadline_us;        /* from now; 0 = none */
	const struct wimm_owes *owes; /* copied; NULL: nobody in particular */
	uint64_t owes_count;
	uint64_t reserved[4];
};
#define WIMM_EXPECT_OPTS_INIT { .size = sizeof(struct wimm_expect_opts) }

/** Fire once when `count` immediates of value `imm` have arrived, and take them away. Those that
 *  came before count too. Expectations on one value are served in order. With `owes`, losing a peer
 *  that has not delivered its part yet fails the expectation with E_PEER_LOST, naming the peer; the
 *  sum of the parts may not exceed count. A failed expectation takes nothing away.
 *  count 1..2^63.  opts may be NULL.
 *  Returns: OK, AGAIN, E_INVAL (count 0, parts), E_NOT_FOUND (peer of a part), E_UNSUPPORTED (the
 *  provider cannot tell sources), E_NOMEM, E_CLOSED, E_FORKED.
 *  Thread: any, also callbacks.  Blocks: no. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_expect_imm_count(struct wimm_engine *engine, uint32_t imm,
							   uint64_t count,
							   const struct wimm_expect_opts *opts,
							   const struct wimm_on_done *on_done,
							   wimm_op *out_op);

/** How many immediates of a value have arrived and are not taken.
 *  Returns: OK, E_INVAL, E_FORKED.  Thread: any.  Blocks: for one turn of the worker. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_poll_imm(struct wimm_engine *engine, uint32_t imm,
						   uint64_t *out_count);

/** Drop what has arrived of a value; *out_count (may be NULL) is how many that were. Expectations
 *  on it stay.  Returns, Thread, Blocks: as wimm_poll_imm(). */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_forget_imm(struct wimm_engine *engine, uint32_t imm,
						     uint64_t *out_count);

/** Keep a word of the caller's at the number of immediates of a value that have arrived in all: at
 *  once those that have come and are not taken, then every one that comes. It only grows, whatever
 *  expectations take and forget drops, and whatever becomes of the peer. The bytes of a write are
 *  readable before the word counts it. For pollers: threads, other processes that share the memory,
 *  or a kernel, where the word lies in memory mapped for it.
 *  word  8 bytes at a multiple of 8, in memory that the CPU can write. Read it with
 *  wimm_mirror_load(), or with acquire order. One mirror a value.
 *  Returns: OK, E_INVAL (address), E_BUSY (has a mirror), E_NOMEM, E_CLOSED, E_FORKED.
 *  Thread: any.  Blocks: for one turn of the worker.
 *  Owns: the word stays valid until wimm_mirror_disable() or wimm_engine_close() has returned. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_mirror_enable(struct wimm_engine *engine, uint32_t imm,
							uint64_t *word);

/** End a mirror; its word keeps its last value. *out_total (may be NULL) is that.
 *  Returns: OK, E_NOT_FOUND (has none), E_INVAL, E_FORKED.  Thread: any.  Blocks: for one turn of
 *  the worker. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_mirror_disable(struct wimm_engine *engine, uint32_t imm,
							 uint64_t *out_total);

/** Read a mirror's word with acquire order: what it counts is readable after that.
 *  Thread: any.  Blocks: no. */
WIMM_API uint64_t wimm_mirror_load(const uint64_t *word);

/** Report when no live session can still deliver the value: every peer has said that it has no
 *  write with it under way and all it sent is counted. What is left of the count is dropped then.
 *  Only after that may the value be given to another request. A peer answers after its callbacks
 *  for messages that it had received before: tell it to stop, and retire once that is sent.
 *  Returns: OK, AGAIN, E_CLOSED, E_FORKED.  Thread: any, also callbacks.  Blocks: no. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_retire_imm(struct wimm_engine *engine, uint32_t imm,
						     const struct wimm_on_done *on_done,
						     wimm_op *out_op);

#ifdef __cplusplus
}
#endif
#endif
