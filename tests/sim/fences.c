/* SPDX-License-Identifier: Apache-2.0 */
/* Fences: a node takes back what a peer may write to, and gives it to somebody else at once. */
#include "run.h"

#include <string.h>

/* A healthy peer has stopped and said so by then, however slow its links. */
#define CONFIRM_SURELY_US 40000u

/* The session that a write of the peer's goes through, as both sides know it; 0: not known. */
static uint64_t write_session(const struct run *run, const struct rec *rec, uint32_t slot)
{
	const struct node *n = &run->node[rec->node];
	const struct op *op;

	if (!n->engine || n->life != rec->life || rec->op == 0 || rec->stale)
		return 0;
	op = op_by_id(&n->engine->worker, rec->op);
	if (op_id(op) != rec->op)
		return 0;
	for (uint32_t i = 0; i < op->leg_count; i++) {
		const struct leg *leg = &op->legs[i];

		if ((op->leg_count == 1 || i == slot - rec->slot) && leg->dst->peer &&
		    atomic_load(&leg->dst->generation) == leg->dst_generation)
			return leg->dst->peer->nonce;
	}
	return 0;
}

/* Writes that the fence ends: those that settled before, unless a later session may have carried
 * them, and those under way in the session itself. Later ones may come by a new session. */
static bool covers(const struct run *run, const struct rec *rec, uint32_t slot,
                   const struct peer *p, bool newest)
{
	if (rec->life != run->node[rec->node].life || rec->state == REC_PLANNED)
		return false;
	if (rec->state != REC_ACCEPTED)
		return newest;
	return p && p->state == PEER_UP && write_session(run, rec, slot) == p->nonce;
}

static void slots_mark(struct run *run, const struct rec *fence, wimm_peer id) LOOKS_INSIDE
{
	struct node *n = &run->node[fence->node];
	struct worker *w = &n->engine->worker;
	const struct peer *p = peer_by_id(w, id);
	const struct peer *now = peer_by_instance(w, run->node[fence->to].instance);
	bool newest = !now || now == p;

	for (uint32_t mr = 0; mr < MR_COUNT; mr++) {
		uint32_t i = n->region[mr].slot_first;

		for (; i != NONE; i = run->slot[i].next_in_mr) {
			struct slot *s = &run->slot[i];
			const struct rec *rec = &run->rec[s->rec];

			if (rec->node == fence->to && s->state == SLOT_OPEN &&
			    (s->fence == NONE || run->rec[s->fence].state != REC_ACCEPTED) &&
			    covers(run, rec, i, p, newest))
				s->fence = fence->index;
		}
	}
}

/* Nothing of the old writer's comes any more: the memory is somebody else's from now on. */
static void slots_reclaim(struct run *run, const struct rec *fence)
{
	for (uint32_t mr = 0; mr < MR_COUNT; mr++) {
		uint32_t i = run->node[fence->node].region[mr].slot_first;

		for (; i != NONE; i = run->slot[i].next_in_mr) {
			struct slot *s = &run->slot[i];

			if (s->fence != fence->index || s->state != SLOT_OPEN)
				continue;
			memset(mr_memory(s->node, s->mr) + s->off, BYTE_RECLAIMED, s->len);
			s->state = SLOT_RECLAIMED;
		}
	}
}

void fence_settled(struct run *run, struct rec *rec, uint32_t answer)
{
	uint64_t half_ns = rec->count * US / 2;
	const struct node *n = &run->node[rec->node];

	if (rec->status != WIMM_OK) {
		if (answer != WIMM_FENCE_NONE)
			broken(run, "node %u: fence rec %u failed with %s, answer %u", rec->node,
			       rec->index, wimm_status_name(rec->status), answer);
		return;
	}
	if (answer != WIMM_FENCE_CONFIRMED && answer != WIMM_FENCE_FENCED)
		broken(run, "node %u: fence rec %u is done without an answer", rec->node,
		       rec->index);
	if (rec->settle_ns > rec->submit_ns + half_ns + 5 * US && !rec->no_slack && !n->closing &&
	    n->lazy_ns == 0)
		broken(run, "node %u: fence rec %u took %u us of %u", rec->node, rec->index,
		       (unsigned)((rec->settle_ns - rec->submit_ns) / US), (unsigned)rec->count);
	if (answer == WIMM_FENCE_FENCED && rec->surely && rec->spoils == run->spoils &&
	    !n->frozen_ns && !run->node[rec->to].frozen_ns)
		broken(run, "node %u: fence rec %u of a healthy peer is not confirmed", rec->node,
		       rec->index);
	run->stats.pattern[answer == WIMM_FENCE_CONFIRMED ? PATTERN_CONFIRMED : PATTERN_FENCED]++;
	slots_reclaim(run, rec);
}

static void fence(struct run *run, uint32_t from, uint32_t other)
{
	struct node *n = &run->node[from];
	wimm_peer id = n->peer_seen[other];
	struct rec *rec;

	if (run->ending || from == other || !node_acts(run, from))
		return;
	if (id == 0 && (!node_alive(run, other) ||
	                wimm_add_peer(n->engine, &run->node[other].addr, NULL, &id) != WIMM_OK))
		return;
	rec = rec_new(run, REC_FENCE, from);
	if (!rec)
		return;
	rec->to = other;
	rec->peer = id;
	rec->count = chance(run, 30) ? CONFIRM_SURELY_US * 2 : draw(run, 20, 6000);
	rec->flags = chance(run, 25) ? WIMM_FENCE_NOW : 0;
	rec_submit(run, rec->index, 0);
}

wimm_status fence_submit(struct run *run, struct rec *rec, const struct wimm_on_done *done)
{
	struct node *n = &run->node[rec->node];
	struct wimm_fence_opts opts = WIMM_FENCE_OPTS_INIT;
	const struct peer *p = peer_by_id(&n->engine->worker, rec->peer);
	wimm_status st;

	opts.flags = rec->flags;
	opts.deadline_us = rec->count;
	st = wimm_fence_peer(n->engine, rec->peer, &opts, done, &rec->op);
	if (st != WIMM_OK)
		return st;
	rec->surely = p && p->state == PEER_UP && p->ending_step == 0 && rec->flags == 0 &&
	              rec->count > CONFIRM_SURELY_US && pair_clean(run, rec->node, rec->to) &&
	              run->cfg.link_bytes_per_s == 0;
	pair_spoil(run, rec->node, rec->to);
	rec->spoils = run->spoils;
	if (run->node[rec->to].frozen)
		run->stats.pattern[PATTERN_FENCED_FROZEN]++;
	slots_mark(run, rec, rec->peer);
	return WIMM_OK;
}

static void fence_any(struct run *run, uint32_t from, uint32_t unused)
{
	(void)unused;
	fence(run, from, any_node(run));
}

/* Its peers take their memory back while a writer stands still in the midst of its writes. */
static void fence_frozen(struct run *run, uint32_t other, uint32_t us)
{
	freeze(run, other, us);
	for (uint64_t i = draw(run, 1, 3); i > 0; i--)
		run_at(run, run_now(run) + draw(run, 1, us) * US / 2, fence, any_node(run), other);
}

void fences_plan(struct run *run)
{
	if (chance(run, 20))
		for (uint64_t i = draw(run, 1, 3); i > 0; i--)
			run_at(run, draw(run, run->end_ns / 10, run->end_ns - 1), fence_any,
			       any_node(run), 0);
	if (chance(run, 15))
		run_at(run, draw(run, run->end_ns / 10, run->end_ns - 1), fence_frozen,
		       any_node(run), (uint32_t)draw(run, 300, 20000));
}
