/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CORE_IMM_H
#define CORE_IMM_H

/* Counting immediates (contract C2): arrivals by (value, peer), expectations in a queue per value.
 * A plain data structure without threads or clock; the worker owns it and calls nothing else.
 *
 * Rules:
 *  1 Only the first expectation of a value can fire. It fires as soon as `count` immediates are
 *    there, whoever sent them; `owes` never holds it back.
 *  2 Firing takes from the peers it names first, each up to what it owes, then from the others,
 *    the one whose unconsumed share is oldest first.
 *  3 A lost peer has delivered to an expectation that names it when its unconsumed share covers
 *    what it owes there and everything that the expectations before could take of that share
 *    (what they name of it, and what they leave open). Such an expectation keeps that part; any
 *    other that names the peer fails. In doubt it fails: firing without the bytes would be worse.
 *  4 What an expectation keeps of a lost peer is its own: imm_count() and imm_forget() do not see
 *    it, and it is gone if that expectation fails or is cancelled later. */

#include "base/list.h"

#include <wimm/status.h>

#include <stdbool.h>
#include <stdint.h>

struct imm_table;

/* Peer slots are small integers of the core's, reused after imm_peer_lost(). */
struct imm_owes {
	uint32_t peer_slot;
	uint64_t count;              /* 0 once the peer has delivered it and is lost */
	struct list by_peer;         /* the table's while waiting */
	struct imm_expect *owner;    /* the table's while waiting */
};

/* One expectation; the memory is the caller's until returned as fired, failed or cancelled. */
struct imm_expect {
	struct list link;            /* the table's while waiting; the caller's list after firing */
	uint32_t imm;
	uint32_t owes_count;
	uint64_t count;              /* 1..2^63, at least the sum of what is owed */
	uint64_t kept;               /* the table's: of `count`, delivered by peers since lost */
	struct imm_owes *owes;       /* caller's array; NULL if none */
	uint32_t lost_peer_slot;     /* set when it failed for a peer */
	bool waiting;                /* in the table */
};

wimm_status imm_open(uint32_t unexpected_limit, struct imm_table **out);
void imm_close(struct imm_table *t); /* no expectation waits */

/* `count` immediates of `imm` came from a peer. Expectations that are satisfied are moved to *fired
 * in order. Returns OK; E_LIMIT when the peer made more than unexpected_limit values that nobody
 * expected and nobody consumed, or a count that 64 bits do not hold (nothing was counted); E_NOMEM
 * (nothing was counted). */
wimm_status imm_arrived(struct imm_table *t, uint32_t peer_slot, uint32_t imm, uint64_t count,
			struct list *fired);
/* Add an expectation; it may fire at once (moved to *fired). OK or E_NOMEM. */
wimm_status imm_expect(struct imm_table *t, struct imm_expect *e, struct list *fired);
/* Take a waiting expectation out, unlinked; those behind it may fire. */
void imm_cancel(struct imm_table *t, struct imm_expect *e, struct list *fired);
/* What is owed by one slot is owed by another from now on: two names of one peer. The first has
 * delivered nothing. OK or E_NOMEM (nothing has changed). */
wimm_status imm_peer_renamed(struct imm_table *t, uint32_t from_slot, uint32_t to_slot);
/* What has arrived of a value and is not taken. */
uint64_t imm_count(const struct imm_table *t, uint32_t imm);
/* Drop what is there of a value; returns how many. */
uint64_t imm_forget(struct imm_table *t, uint32_t imm);
/* A peer is gone: drop its unconsumed share of every value, fail the expectations to which it still
 * owes (moved to *failed, lost_peer_slot set); those behind them may fire. The slot is clean. */
void imm_peer_lost(struct imm_table *t, uint32_t peer_slot, struct list *failed,
		   struct list *fired);
/* A peer said goodbye: as imm_peer_lost(), but what it delivered stays countable, as nobody's. At
 * most unexpected_limit values are kept so; more are dropped. */
void imm_peer_left(struct imm_table *t, uint32_t peer_slot, struct list *failed,
		   struct list *fired);
/* Move every waiting expectation to *out, values in the order in which waiting on them began. */
void imm_take_all(struct imm_table *t, struct list *out);
/* The expectation that fires first of each value, of up to `room` values. Returns how many. */
uint32_t imm_first_expected(const struct imm_table *t, struct imm_expect **out, uint32_t room);
uint64_t imm_values(const struct imm_table *t); /* entries held, for statistics and bounds */

#endif
