/* SPDX-License-Identifier: Apache-2.0 */
/* What callers do: groups of writes with expectations, messages, barriers, streams, cancels. */
#include "run.h"

#include <stdlib.h>
#include <string.h>

#define BARRIERS_MAX 2u
#define STREAM_MAX   800u
/* Thrice as many as an engine takes at a time: whoever waits has had a turn by then. */
#define STARVED_WRITES 300u

/* Rounds among some nodes, one of which is slow. */
struct barrier {
	uint32_t count;
	uint32_t node[NODES_MAX], life[NODES_MAX];
	struct wimm_barrier *handle[NODES_MAX];
	uint32_t entered[NODES_MAX], fired[NODES_MAX];
	uint32_t rec[NODES_MAX];
	uint32_t slow;
	uint32_t rounds;
	uint32_t imm[2];
	bool over;
};

/* Many small writes without pause, behind one large one that must get through all the same. */
struct stream {
	uint32_t from, to;
	uint32_t victim;
	uint32_t sent;
	uint64_t posted; /* requests of the victim, and after how many others */
	uint32_t posted_sent;
	uint64_t last_ns;
	bool on;
};

struct patterns {
	struct barrier barrier[BARRIERS_MAX];
	struct stream stream;
};

static struct patterns patterns;

uint32_t any_node(struct run *run)
{
	return (uint32_t)draw(run, 0, run->nodes - 1);
}

/* --- messages, cancels, stale descriptors --- */

static void start_send(struct run *run, uint32_t from, uint32_t to)
{
	struct rec *rec;

	if (run->ending || !node_acts(run, from) || !node_alive(run, to))
		return;
	rec = rec_new(run, REC_SEND, from);
	if (!rec)
		return;
	rec->to = to;
	rec->len = (uint32_t)draw(run, 16, chance(run, 20) ? MSG_BYTES : 90);
	if (chance(run, 5))
		rec->deadline_us = draw(run, 5, 2000);
	rec->flags = run->cfg.seed % 4 == 0 && chance(run, 40); /* to whoever answers there */
	run->stats.pattern[PATTERN_PLAIN] += rec->flags != 0;
	rec_submit(run, rec->index, 0);
}

/* Whatever has settled cannot be cancelled, and its id never means another operation. */
static void cancel_settled(struct run *run)
{
	uint32_t back = (uint32_t)draw(run, 0, run->recs - 1 < 60 ? run->recs - 1 : 60);
	const struct rec *rec = &run->rec[run->recs - 1 - back];

	if (rec->state == REC_SETTLED && rec->op != 0 && rec->kind != REC_BARRIER &&
	    node_acts(run, rec->node) && run->node[rec->node].life == rec->life &&
	    wimm_cancel(run->node[rec->node].engine, rec->op) != WIMM_E_NOT_FOUND)
		broken(run, "node %u: rec %u has settled and was cancelled", rec->node, rec->index);
}

static void cancel_some(struct run *run, uint32_t unused, uint32_t unused2)
{
	(void)unused;
	(void)unused2;
	for (uint32_t i = 0; i < 4 && run->recs > 0; i++)
		cancel_settled(run);
	for (uint32_t tries = 0; tries < 20 && run->recs > 0; tries++) {
		uint32_t back = (uint32_t)draw(run, 0, run->recs - 1 < 60 ? run->recs - 1 : 60);
		struct rec *rec = &run->rec[run->recs - 1 - back];

		if (rec->state != REC_ACCEPTED || rec->kind == REC_DEREG || rec->cancel_ns != 0 ||
		    rec->kind == REC_BARRIER || (rec->kind == REC_FENCE && chance(run, 80)) ||
		    rec->index == patterns.stream.victim)
			continue;
		rec_cancel(run, rec);
		return;
	}
}

static void start_stale(struct run *run, uint32_t from, uint32_t to)
{
	struct region *region = &run->node[to].region[MR_CHURN];
	struct node *n = &run->node[from];
	struct rec *rec;

	if (run->ending || !node_acts(run, from) || !node_alive(run, to) || !region->has_old)
		return;
	rec = rec_new(run, REC_SINGLE, from);
	if (!rec)
		return;
	rec->excused = true;
	if (wimm_open_remote_mr(n->engine, &region->old_desc, &rec->stale) != WIMM_OK) {
		rec->stale = NULL;
		rec_abandoned(run, rec);
		return;
	}
	rec_submit(run, rec->index, 0);
	/* Operations already accepted go on without the handle. */
	if (wimm_close_remote_mr(n->engine, rec->stale) != WIMM_OK)
		broken(run, "node %u: a remote region cannot be closed", from);
	if (rec->state == REC_PLANNED)
		rec_abandoned(run, rec);
}

static void churn_region(struct run *run, uint32_t n, uint32_t unused)
{
	(void)unused;
	if (!run->ending)
		region_end(run, n);
}

static void more_recvs(struct run *run, uint32_t n, uint32_t unused)
{
	(void)unused;
	if (!run->ending)
		recvs_submit(run, n, 0);
}

/* --- barriers --- */

static void barrier_enter(struct run *run, uint32_t b, uint32_t i);

static void on_round(void *context, const struct wimm_done *done)
{
	struct rec *rec = context;
	struct run *run = rec->run;
	struct barrier *b = &patterns.barrier[rec->group];
	uint32_t i = rec->to;

	rec_settled(run, rec, done);
	b->rec[i] = NONE;
	if (done->status != WIMM_OK) {
		b->over = true; /* who has entered what is unknown now */
		return;
	}
	b->fired[i]++;
	run->stats.pattern[PATTERN_BARRIER]++;
	for (uint32_t k = 0; k < b->count; k++)
		if (b->entered[k] < b->fired[i])
			broken(run, "barrier: node %u was let through round %u before node %u came",
			       b->node[i], b->fired[i], b->node[k]);
	if (b->over || run->ending || run->node[rec->node].closing || b->fired[i] >= b->rounds)
		return;
	if (i == b->slow || chance(run, 20))
		run_at(run, run_now(run) + draw(run, 1, 600) * US, barrier_enter, rec->group, i);
	else
		barrier_enter(run, rec->group, i);
}

static bool barrier_whole(const struct run *run, const struct barrier *b)
{
	for (uint32_t i = 0; i < b->count; i++)
		if (!node_alive(run, b->node[i]) || run->node[b->node[i]].life != b->life[i])
			return false;
	return !b->over;
}

static void barrier_enter(struct run *run, uint32_t index, uint32_t i)
{
	struct barrier *b = &patterns.barrier[index];
	struct wimm_on_done done = { .fn = on_round };
	struct rec *rec;
	wimm_status st;

	if (!barrier_whole(run, b) || run->ending || !b->handle[i] || b->rec[i] != NONE)
		return;
	if (run->node[b->node[i]].frozen) {
		run_at(run, run_now(run) + 100 * US, barrier_enter, index, i);
		return;
	}
	rec = rec_new(run, REC_BARRIER, b->node[i]);
	if (!rec)
		return;
	rec->group = index;
	rec->to = i;
	rec->excused = true; /* peers may be lost, deadlines pass: on_round() looks at the rest */
	done.context = rec;
	rec->deadline_us = run->cfg.no_cancel || chance(run, 90) ? 0 : draw(run, 500, 5000);
	st = wimm_barrier_enter(b->handle[i], rec->deadline_us, &done);
	if (st == WIMM_OK) {
		rec_accepted(run, rec);
		b->rec[i] = rec->index;
		b->entered[i]++;
		say(run, "node %u: rec %u enters round %u of barrier %u", rec->node, rec->index,
		    b->entered[i], index);
		return;
	}
	rec->state = REC_ABANDONED;
	if (st == WIMM_AGAIN)
		run_at(run, run_now(run) + draw(run, 5, 60) * US, barrier_enter, index, i);
	else
		b->over = true;
}

static bool barrier_open_one(struct run *run, struct barrier *b, uint32_t i)
{
	struct wimm_barrier_args args = WIMM_BARRIER_ARGS_INIT;
	const struct wimm_remote_mr *dst[NODES_MAX];

	for (uint32_t k = 0; k < b->count; k++) {
		if (k == i)
			continue;
		dst[args.count] = remote_get(run, b->node[i], b->node[k], MR_KEEP);
		if (!dst[args.count++])
			return false;
	}
	args.dst = dst;
	return wimm_barrier_open(run->node[b->node[i]].engine, &args, b->imm, &b->handle[i]) ==
	       WIMM_OK;
}

static void start_barrier(struct run *run, uint32_t index, uint32_t unused)
{
	struct barrier *b = &patterns.barrier[index];
	uint32_t order[NODES_MAX];

	(void)unused;
	for (uint32_t i = 0; i < run->nodes; i++)
		order[i] = i;
	rng_shuffle_u32(&run->rng, order, run->nodes);
	b->count = (uint32_t)draw(run, 2, run->nodes);
	b->rounds = (uint32_t)draw(run, 3, 12);
	b->slow = (uint32_t)draw(run, 0, b->count - 1);
	b->imm[0] = 0x80000000u + index * 2;
	b->imm[1] = b->imm[0] + 1;
	for (uint32_t i = 0; i < b->count; i++) {
		b->node[i] = order[i];
		b->life[i] = run->node[order[i]].life;
		b->rec[i] = NONE;
	}
	for (uint32_t i = 0; i < b->count; i++)
		if (!barrier_whole(run, b) || !barrier_open_one(run, b, i))
			b->over = true;
	for (uint32_t i = 0; i < b->count && !b->over; i++)
		run_at(run, run_now(run) + draw(run, 0, 300) * US, barrier_enter, index, i);
}

void patterns_handle_closed(uint32_t node)
{
	for (uint32_t index = 0; index < BARRIERS_MAX; index++)
		for (uint32_t i = 0; i < patterns.barrier[index].count; i++)
			if (patterns.barrier[index].node[i] == node)
				patterns.barrier[index].over = true;
}

/* Handles of an engine end with it. */
void patterns_node_down(struct run *run, uint32_t node)
{
	(void)run;
	for (uint32_t index = 0; index < BARRIERS_MAX; index++) {
		struct barrier *b = &patterns.barrier[index];

		for (uint32_t i = 0; i < b->count; i++) {
			if (b->node[i] != node || !b->handle[i])
				continue;
			b->over = true;
			if (wimm_barrier_close(b->handle[i]) != WIMM_OK)
				broken(run, "node %u: a barrier cannot be closed", node);
			b->handle[i] = NULL;
		}
	}
	if (patterns.stream.from == node || patterns.stream.to == node)
		patterns.stream.on = false;
}

/* --- the stream --- */

static void start_stream(struct run *run, uint32_t unused, uint32_t unused2)
{
	struct stream *s = &patterns.stream;
	struct rec *victim;

	(void)unused;
	(void)unused2;
	s->from = any_node(run);
	s->to = (s->from + 1) % run->nodes;
	if (!node_acts(run, s->from) || !node_alive(run, s->to) ||
	    run->node[s->from].lazy_ns != 0 || run->node[s->to].lazy_ns != 0)
		return;
	victim = rec_new(run, REC_PAGED, s->from);
	if (!victim || slots_new(run, victim, s->to, MR_KEEP, 16, 24, 200) == NONE)
		return;
	if (!sources_fill(run, victim, 16)) {
		rec_abandoned(run, victim);
		return;
	}
	rec_submit(run, victim->index, 0);
	s->victim = victim->index;
	s->on = true;
	run->stats.pattern[PATTERN_STREAM]++;
}

static void stream_tick(struct run *run, uint32_t unused, uint32_t unused2)
{
	(void)run;
	(void)unused;
	(void)unused2;
}

static void stream_write(struct run *run, struct stream *s)
{
	struct rec *rec = NULL;

	if (node_alive(run, s->to) && run->slots + 100 < SLOTS_MAX)
		rec = rec_new(run, REC_SINGLE, s->from);
	if (!rec || slot_new(run, rec, s->to, MR_KEEP, 8) == NONE || !sources_fill(run, rec, 0)) {
		s->on = false;
		return;
	}
	rec->tries = 1000000; /* refused once: not asked again */
	rec_submit(run, rec->index, 0);
	s->sent += rec->state == REC_ACCEPTED;
}

bool patterns_rest(const struct run *run, uint32_t node)
{
	const struct stream *s = &patterns.stream;

	return s->on && s->from == node && run_now(run) < s->last_ns + US;
}

uint64_t patterns_rest_end_ns(void)
{
	return patterns.stream.last_ns + US;
}

/* Requests of the victim that were posted so far. */
static uint64_t victim_posted(struct run *run, const struct stream *s)
{
	struct worker *w = &run->node[s->from].engine->worker;

	return op_by_id(w, run->rec[s->victim].op)->descriptors;
}

/* C8: what waits has its turn after so many posts, however many new requests come. */
static void check_starved(struct run *run, struct stream *s)
{
	uint64_t posted = victim_posted(run, s);

	if (posted != s->posted || !pair_clean(run, s->from, s->to) ||
	    run->node[s->to].frozen_ns != 0 || run->node[s->from].frozen_ns != 0) {
		s->posted = posted;
		s->posted_sent = s->sent;
	}
	if (s->sent - s->posted_sent > STARVED_WRITES)
		broken(run, "node %u: rec %u is starved: %u later writes and no page of it",
		       s->from, s->victim, s->sent - s->posted_sent);
}

/* A program that submits one write more before each turn of its engine, a turn a microsecond. */
bool patterns_turn(struct run *run, uint32_t node)
{
	struct stream *s = &patterns.stream;

	if (!s->on || s->from != node || run->ending)
		return true;
	if (run->rec[s->victim].state != REC_ACCEPTED || s->sent == STREAM_MAX) {
		s->on = run->rec[s->victim].state == REC_PLANNED;
		return true;
	}
	if (patterns_rest(run, node))
		return false;
	s->last_ns = run_now(run);
	run_at(run, s->last_ns + US, stream_tick, 0, 0);
	check_starved(run, s);
	stream_write(run, s);
	return true;
}

/* --- all of it --- */

void patterns_end(struct run *run)
{
	(void)run;
	patterns.stream.on = false;
	for (uint32_t i = 0; i < BARRIERS_MAX; i++)
		patterns.barrier[i].over = true;
}

static uint64_t moment(struct run *run)
{
	return draw(run, 0, run->end_ns - 1);
}

void patterns_plan(struct run *run)
{
	uint32_t groups = (uint32_t)draw(run, 25, 60);

	memset(&patterns, 0, sizeof(patterns));
	patterns.stream.victim = NONE;
	for (uint32_t i = 0; i < groups; i++)
		run_at(run, moment(run), start_group, 0, 0);
	for (uint64_t i = draw(run, 10, 70); i > 0; i--)
		run_at(run, moment(run), start_send, any_node(run), any_node(run));
	for (uint64_t i = draw(run, 0, 12); i > 0; i--)
		run_at(run, moment(run), cancel_some, 0, 0);
	for (uint64_t i = draw(run, 0, 4); i > 0; i--)
		run_at(run, moment(run), churn_region, any_node(run), 0);
	for (uint64_t i = draw(run, 0, 6); i > 0; i--)
		run_at(run, moment(run), start_stale, any_node(run), any_node(run));
	for (uint64_t i = draw(run, 0, 3); i > 0; i--)
		run_at(run, moment(run), more_recvs, any_node(run), 0);
	for (uint64_t i = draw(run, 4, 12); i > 0; i--)
		run_at(run, moment(run), keep_house, 0, 0);
	if (chance(run, 60))
		run_at(run, moment(run) / 2, start_barrier, 0, 0);
	if (chance(run, 20))
		run_at(run, moment(run) / 2, start_barrier, 1, 0);
	if (chance(run, 12))
		run_at(run, moment(run) / 2, start_stream, 0, 0);
}
