/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CORE_IMM_STORE_H
#define CORE_IMM_STORE_H

/* What imm.c counts with: the entries of values, peers and what each peer delivered of each value,
 * and where their memory comes from. The rules are in imm.c. */

#include "base/hash.h"
#include "base/list.h"

#include <wimm/status.h>

#include <stdbool.h>
#include <stdint.h>

#define NOBODY_WAITS UINT64_MAX
/* Names what peers that said goodbye have delivered and nobody has consumed. */
#define IMM_DEPARTED_SLOT UINT32_MAX

struct imm_peer {
	struct list shares; /* its imm_share.by_peer */
	struct list owes;   /* its imm_owes.by_peer */
	uint32_t slot;
	uint32_t unexpected; /* shares of values on which nobody waits */
};

/* What one peer has delivered of one value and nobody has consumed. */
struct imm_share {
	struct list by_value; /* the oldest first; among the spare ones when unused */
	struct list by_peer;
	struct imm_value *value;
	struct imm_peer *peer;
	uint64_t count; /* 0: unused */
	uint32_t slot;
};

struct imm_value {
	uint64_t total;         /* of its shares; below `need` between calls */
	uint64_t need;          /* what the first expectation waits for, or NOBODY_WAITS */
	struct imm_share *last; /* where the latest arrival went; NULL: gone */
	uint32_t imm;
	uint32_t extra_count;   /* shares in imm_table.extra */
	bool expected;          /* somebody waits; its shares count for no peer's limit */
	struct imm_share first; /* one peer is the common case and needs no memory of its own */
	struct list shares;
	struct list waiting; /* imm_expect.link, in order */
	struct list link;    /* in imm_table.expected, or among the spare ones */
};

struct imm_table {
	struct hash values;      /* imm to imm_value */
	struct hash extra;       /* (imm, slot) to each imm_share that is no value's `first` */
	struct imm_peer **peers; /* by slot; NULL: never seen */
	uint32_t peer_slots;
	struct imm_peer departed; /* of IMM_DEPARTED_SLOT */
	uint32_t unexpected_limit;
	struct imm_value *recent; /* of the latest arrival: the next is often the same; or NULL */
	struct list expected;     /* values on which somebody waits */
	struct list spare_values, spare_shares;
	uint32_t spare_value_count, spare_share_count;
};

/* NULL: never seen. */
static inline struct imm_peer *imm_peer_find(const struct imm_table *t, uint32_t slot)
{
	return slot < t->peer_slots ? t->peers[slot] : NULL;
}

/* NULL: out of memory. */
struct imm_peer *imm_peer_get(struct imm_table *t, uint32_t slot);

static inline struct imm_value *imm_value_find(const struct imm_table *t, uint32_t imm)
{
	return hash_find_ptr(&t->values, imm);
}

/* The value's entry, a new one if there is none; NULL when out of memory. */
struct imm_value *imm_value_get(struct imm_table *t, uint32_t imm);
/* Drop the entry if it says nothing any more. */
void imm_value_release(struct imm_table *t, struct imm_value *v);
/* Whether somebody waits for the value. */
void imm_value_set_expected(struct imm_table *t, struct imm_value *v, bool expected);
/* Drop all its shares. */
void imm_value_take_all(struct imm_table *t, struct imm_value *v);

struct imm_share *imm_share_find_far(const struct imm_table *t, struct imm_value *v, uint32_t slot);

/* NULL: that peer has none of this value. */
static inline struct imm_share *imm_share_find(const struct imm_table *t, struct imm_value *v,
                                               uint32_t slot)
{
	if (v->last && v->last->slot == slot)
		return v->last;
	return imm_share_find_far(t, v, slot);
}

/* A peer's first of a value, count >= 1. E_NOMEM leaves everything as it was. */
WIMM_MUST_CHECK wimm_status imm_share_add(struct imm_table *t, struct imm_value *v,
                                          struct imm_peer *p, uint64_t count);
/* Take `count` of a share away; one with nothing left goes. */
/* The share becomes another peer's, who has none of this value; cannot fail. */
void imm_share_rename(struct imm_table *t, struct imm_share *s, struct imm_peer *to);
void imm_share_take(struct imm_table *t, struct imm_share *s, uint64_t count);

/* The value has one. */
static inline struct imm_share *imm_share_oldest(struct imm_value *v)
{
	return LIST_ENTRY(v->shares.next, struct imm_share, by_value);
}

/* Give all memory of the entries back. */
void imm_store_fini(struct imm_table *t);

#endif
