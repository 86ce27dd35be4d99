/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CORE_SHARD_H
#define CORE_SHARD_H

/* Sharding: how a leg becomes work requests, and over which paths. Nothing else knows. */

#include "core/peer.h"

/* Choose the paths of a leg from those that are up. False: none fits (all lost, or the pinned NIC
 * has none). */
bool shard_plan(struct worker *w, struct peer *p, struct leg *leg);
/* The same for a leg with memory of a GPU at an end, by the card's own copies or by NICs. */
bool shard_plan_gpu(struct worker *w, struct peer *p, struct leg *leg, bool by_card);
/* The path on which a write of one request to this peer may go at once, those that wait
 * notwithstanding. NULL: that needs a closer look. */
struct path *shard_straight(struct peer *p);
/* Nothing has changed that should have cleared peer.straight. */
bool shard_straight_stands(const struct peer *p);
/* It has been used: the next one has its turn. */
void shard_straight_next(struct peer *p);
/* The longest slice of an operation that is one request on whichever path. */
uint64_t shard_straight_bytes(const struct worker *w, const struct op *op);
/* The planned path of the leg's next request and how many requests in a row go there, at most
 * max. */
static inline struct path *shard_next(struct peer *p, const struct leg *leg, uint32_t max,
                                      uint32_t *out_count)
{
	uint64_t n = leg->end - leg->next;
	uint64_t turn = 0;

	if (leg->path_count > 1) {
		uint64_t left_in_run = leg->run - leg->next % leg->run;

		n = n < left_in_run ? n : left_in_run;
		turn = leg->next / leg->run % leg->path_count;
	}
	*out_count = n < max ? (uint32_t)n : max;
	return &p->path[leg->path_map[turn]];
}
/* What an operation's requests are known by, but for the bits. */
static inline uint64_t shard_token(const struct op *op)
{
	return (op_id(op) & 0xffffffff00000000u) | (uint64_t)op->index << 8;
}
/* Whether the requests may go to any path (no part of a split operation). */
bool shard_any_path(const struct leg *leg);
/* Fill `count` requests from leg->next on, for the given path. */
void shard_fill(const struct leg *leg, const struct path *path, struct prov_wr *wr,
                uint32_t count);

#endif
