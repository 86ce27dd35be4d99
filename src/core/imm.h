/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CORE_IMM_H
#define CORE_IMM_H

/* Counting immediates (contract C2): arrivals by (value, peer), expectations in a queue per value.
 * A plain data structure without threads or clock; the worker owns it and calls nothing else. */

#include "base/list.h"

#include <wimm/status.h>

#include <stdbool.h>
#include <stdint.h>

struct imm_table;

/* Peer slots are small integers of the core's, reused after imm_peer_lost(). */
struct imm_owes {
	uint32_t peer_slot;
	uint64_t count;              /* still owed; the table lowers it as the peer delivers */
};

/* One expectation; the memory is the caller's until returned as fired, failed or cancelled. */
struct imm_expect {
	struct list link;            /* the table's while waiting; the caller's list after firing */
	uint32_t imm;
	uint32_t owes_count;
	uint64_t count;
	struct imm_owes *owes;       /* caller's array; NULL if none */
	uint32_t lost_peer_slot;     /* set when it failed for a peer */
	bool waiting;                /* in the table */
};

wimm_status imm_open(uint32_t unexpected_limit, struct imm_table **out);
void imm_close(struct imm_table *t); /* no expectation waits */

/* `count` immediates of `imm` came from a peer. Expectations that are satisfied are moved to *fired
 * in order. Returns OK; E_LIMIT when the peer made more than unexpected_limit values that nobody
 * expected and nobody consumed (nothing was counted); E_NOMEM (nothing was counted). */
wimm_status imm_arrived(struct imm_table *t, uint32_t peer_slot, uint32_t imm, uint64_t count,
			struct list *fired);
/* Add an expectation; it may fire at once (moved to *fired). OK or E_NOMEM. */
wimm_status imm_expect(struct imm_table *t, struct imm_expect *e, struct list *fired);
/* Take a waiting expectation out; those behind it may fire. */
void imm_cancel(struct imm_table *t, struct imm_expect *e, struct list *fired);
uint64_t imm_count(const struct imm_table *t, uint32_t imm);
/* Drop what is there of a value; returns how many. */
uint64_t imm_forget(struct imm_table *t, uint32_t imm);
/* A peer is gone: drop its unconsumed share of every value, fail the expectations to which it still
 * owes (moved to *failed, lost_peer_slot set); those behind them may fire. The slot is clean. */
void imm_peer_lost(struct imm_table *t, uint32_t peer_slot, struct list *failed,
		   struct list *fired);
/* Move every waiting expectation to *out. */
void imm_take_all(struct imm_table *t, struct list *out);
uint64_t imm_values(const struct imm_table *t); /* entries held, for statistics and bounds */

#endif
