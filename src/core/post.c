/* SPDX-License-Identifier: Apache-2.0 */
/* Writes on the worker: from a started operation to posted requests, and from completions back. */
#include "core/after.h"
#include "core/fence.h"
#include "core/gpu.h"
#include "core/marks.h"
#include "core/same_host.h"
#include "core/session.h"
#include "core/shard.h"
#include "core/stage.h"

#include "base/assert.h"
#include "base/log.h"
#include "plat/clock.h"

#include <inttypes.h>

/* Blocked legs looked at in one turn of a peer before it waits for room. */
#define BLOCKED_LEGS_MAX 4
/* For what cannot be taken back: so long after its path's last completion, and in all. */
#define LINGER_NS      (200 * CLOCK_NS_PER_MS)
#define LINGER_MOST_NS (10 * CLOCK_NS_PER_S)

void post_maybe_settle(struct worker *w, struct op *op)
{
	if (!op->started || op->outstanding != 0 || op->legs_open != 0 || op->confirms_left != 0)
		return;
	if (op->status != WIMM_OK && doubt_holds(op))
		return;
	if (op->status != WIMM_OK)
		for (uint32_t i = 0; i < op->leg_count; i++)
			count_abandon(w, &op->legs[i]);
	op_settle(w, op);
}

/* All is acked: settle, or wait for the receivers' watermarks. */
static void op_acked(struct worker *w, struct op *op) ON_WORKER
{
	if (op->outstanding != 0 || op->legs_open != 0)
		return;
	if (op->status == WIMM_OK && (op->flags & WIMM_CONFIRMED) != 0 && op->confirms_left == 0 &&
	    op->leg_count != 0) {
		op->confirms_left = op->leg_count;
		for (uint32_t i = 0; i < op->leg_count; i++)
			count_confirm(w, &op->legs[i]);
		return;
	}
	post_maybe_settle(w, op);
}

void post_leg_confirmed(struct worker *w, struct leg *leg)
{
	leg->state = LEG_POSTED;
	leg->op->confirms_left--;
	post_maybe_settle(w, leg->op);
}

static void leg_close(struct worker *w, struct leg *leg)
{
	struct op *op = leg->op;

	switch (leg->state) {
	case LEG_PENDING:
		STAT_SUB(w, pending_legs, 1);
		list_remove(&leg->link);
		break;
	case LEG_WAITING:
	case LEG_STAGED:
		list_remove(&leg->link);
		break;
	case LEG_CONFIRMING:
		list_remove(&leg->link);
		op->confirms_left--;
		leg->state = LEG_POSTED;
		return;
	case LEG_POSTED:
		return;
	case LEG_IDLE:
		break;
	}
	leg->state = LEG_POSTED;
	leg->end = leg->next;
	op->legs_open--;
}

void post_fail_leg(struct worker *w, struct leg *leg, wimm_status status, const char *text)
{
	struct op *op = leg->op;

	op_fail(op, status, leg->dst->peer_id, "%s", text);
	leg_close(w, leg);
	post_maybe_settle(w, op);
}

static void peer_ready(struct worker *w, struct peer *p)
{
	if (list_linked(&p->ready_link) || p->hold || p->ending_step != 0 ||
	    list_empty(&p->pending))
		return;
	list_push_back(&w->ready, &p->ready_link);
}

/* None of the paths it was posted on has been lost since. */
static bool leg_stands(const struct peer *p, const struct leg *leg)
{
	if (leg->losses == p->losses)
		return true;
	for (uint32_t k = 0; k < p->path_count; k++)
		if ((leg->used >> k & 1) != 0 && !path_stood(&p->path[k], leg))
			return false;
	return true;
}

static void account(struct worker *w, struct path *path, struct leg *leg, uint32_t count,
                    uint32_t taken) ON_WORKER
{
	struct op *op = leg->op;
	uint32_t marks = 0;

	for (uint32_t k = 0; k < taken; k++)
		marks += (w->wr[k].flags & PROV_WR_COUNTED) != 0;
	if (op->post_ns == 0 && taken != 0)
		op->post_ns = w->now_ns;
	path->full = taken < count;
	if (path->full)
		path->peer->straight = NULL;
	leg->next += taken;
	if (taken != 0 && leg_stands(path->peer, leg))
		leg->losses = path->peer->losses;
	if (taken != 0)
		leg->used |= path->bit;
	op->outstanding += taken;
	op->descriptors += taken;
	path->outstanding += taken;
	path->posted_marks += marks;
	STAT_ADD(w, writes_posted, taken);
	STAT_ADD(w, imms_sent, marks);
}

/* Try the other paths for a leg that may use any. */
static uint32_t post_elsewhere(struct worker *w, struct peer *p, struct leg *leg,
                               struct path *not_this, uint32_t count) ON_WORKER
{
	if (same_host_is(p, not_this) && not_this->state == PATH_UP)
		return 0; /* full for now, and nothing else is as good */
	for (uint32_t i = 0; i < p->path_count; i++) {
		struct path *path = &p->path[i];
		uint32_t taken;

		if (path == not_this || path->state != PATH_UP ||
		    (leg_has_gpu(leg) && !gpu_path_fits(w, leg, path)))
			continue;
		shard_fill(leg, path, w->wr, count);
		taken = path->post(path->prov, w->wr, count);
		account(w, path, leg, count, taken);
		if (taken != 0)
			return taken;
	}
	return 0;
}

/* Post up to max requests of a leg; fewer when its paths are full. False: the leg failed, and its
 * operation may be gone. */
static bool leg_post(struct worker *w, struct peer *p, struct leg *leg, uint32_t max,
                     uint32_t *out_posted) ON_WORKER
{
	uint32_t posted = 0;

	*out_posted = 0;
	while (leg->next < leg->end && posted < max) {
		uint32_t room = max - posted < 256 ? max - posted : 256;
		uint32_t count;
		uint32_t taken = 0;
		struct path *path = shard_next(p, leg, room, &count);

		/* What shares an immediate goes through one life of its path. */
		if (path->state == PATH_UP && ((leg->used >> path->index & 1) == 0 ||
		                               shard_any_path(leg) || path_stood(path, leg))) {
			shard_fill(leg, path, w->wr, count);
			taken = path->post(path->prov, w->wr, count);
			account(w, path, leg, count, taken);
		} else if (!shard_any_path(leg)) {
			post_fail_leg(w, leg, WIMM_E_NIC_LOST,
			              "a NIC path of a split or pinned write was lost");
			return false;
		}
		if (taken == 0 && shard_any_path(leg))
			taken = post_elsewhere(w, p, leg, path, count);
		posted += taken;
		*out_posted = posted;
		if (taken < count)
			break;
	}
	return true;
}

/* Take a completely posted leg out. */
static bool leg_finish(struct worker *w, struct leg *leg) ON_WORKER
{
	if (leg->state != LEG_PENDING || leg->next < leg->end)
		return false;
	STAT_SUB(w, pending_legs, 1);
	list_remove(&leg->link);
	leg->state = LEG_POSTED;
	leg->op->legs_open--;
	op_acked(w, leg->op);
	return true;
}

/* Why a leg has no path. Out of line, as it is rare. */
__attribute__((noinline, cold)) static void no_path(struct worker *w, struct leg *leg) ON_WORKER
{
	if (leg_has_gpu(leg))
		post_fail_leg(w, leg, WIMM_E_UNSUPPORTED, gpu_why_not(leg));
	else
		post_fail_leg(w, leg, WIMM_E_NIC_LOST, "no path of this peer uses the pinned NIC");
}

void post_leg_ready(struct worker *w, struct leg *leg, bool at_once)
{
	struct peer *p = leg->dst->peer;
	uint32_t posted;

	DASSERT(p->state == PEER_UP && leg->next == 0);
	if (leg->path_count == 0) {
		if (p->ending_step == 0 && !shard_plan(w, p, leg)) {
			no_path(w, leg);
			return;
		}
	} else if (leg->path_count == LEG_GPU && p->ending_step == 0) {
		if (!gpu_leg_plan(w, leg)) {
			if (!stage_leg(w, leg))
				no_path(w, leg);
			return;
		}
		at_once = !leg->as_list;
	}
	leg->state = LEG_IDLE;
	/* The first request of a new operation goes out at once, even when others wait for their
	 * turn; where they wait for room it queues up behind them. */
	if (at_once && !p->hold && p->ending_step == 0 && !p->path[leg->path_map[0]].full) {
		if (!leg_post(w, p, leg, 1, &posted))
			return;
		if (p->straight == NULL)
			p->straight = shard_straight(p);
		if (leg->next == leg->end) {
			leg->state = LEG_POSTED;
			leg->op->legs_open--;
			op_acked(w, leg->op);
			return;
		}
	}
	leg->state = LEG_PENDING;
	STAT_ADD(w, pending_legs, 1);
	list_push_back(&p->pending, &leg->link);
	if (!p->blocked)
		peer_ready(w, p);
}

static void peer_turn(struct worker *w, struct peer *p) ON_WORKER
{
	uint32_t budget = w->post_batch;
	uint32_t stuck = 0;

	while (budget != 0 && !list_empty(&p->pending) && !p->hold && p->ending_step == 0 &&
	       stuck < BLOCKED_LEGS_MAX) {
		struct leg *leg = LIST_ENTRY(p->pending.next, struct leg, link);
		uint32_t left = w->post_batch - leg->turn;
		uint32_t posted;
		bool alive = leg->as_list
		                     ? gpu_list_post(w, p, leg, &posted)
		                     : leg_post(w, p, leg, left < budget ? left : budget, &posted);

		budget -= posted;
		if (!alive)
			continue;
		leg->turn += posted;
		if (leg_finish(w, leg))
			continue;
		if (posted == 0)
			stuck++;
		if (posted == 0 && shard_any_path(leg))
			break; /* every path is full: who waits longest keeps its place */
		/* A turn is a whole batch, however little room there is at a time: else a thousand
		 * pages had one request posted between any two of a thousand single writes. */
		if (posted != 0 && leg->turn < w->post_batch && shard_any_path(leg))
			continue;
		leg->turn = 0;
		list_remove(&leg->link); /* others of this peer have their turn */
		list_push_back(&p->pending, &leg->link);
	}
	/* Without anything outstanding no completion would wake the peer up again. */
	p->blocked = stuck != 0 && budget == w->post_batch;
}

bool post_pending(struct worker *w)
{
	struct list turn;
	bool any = false;

	list_init(&turn);
	list_splice_back(&turn, &w->ready);
	for (;;) {
		struct list *link = list_pop_front(&turn);
		struct peer *p;

		if (link == NULL)
			return any;
		p = LIST_ENTRY(link, struct peer, ready_link);
		peer_turn(w, p);
		any = any || !p->blocked;
		if (!p->blocked)
			peer_ready(w, p);
	}
}

void post_peer_room(struct worker *w, struct peer *p)
{
	p->blocked = false;
	peer_ready(w, p);
	if (p->stage_tx != NULL)
		stage_busy(w, p); /* a slot may be waiting for just this room */
}

/* Whether it was counted over there is unknown, and with it what the path's marks mean. */
static bool marks_unsure(const struct prov_cqe *c)
{
	if (c->status == WIMM_E_PATH_LOST)
		return (c->flags & PROV_CQE_SENT) != 0;
	return c->status != WIMM_E_CANCELLED;
}

/* What to tell of a request that came back with an error. */
static void done_failed(struct worker *w, struct path *path, struct op *op,
                        const struct prov_cqe *c) ON_WORKER
{
	struct peer *p = path->peer;

	if (!op->aborted && p->state == PEER_DOWN)
		op_fail(op, p->cause, peer_id(p), "%s", p->text);
	else if (!op->aborted && p->ending_step != 0) /* the peer is going, not a path alone */
		op_fail(op, p->ending_cause, peer_id(p), "%s", p->ending_text);
	else if (!op->aborted) /* else its cause is known */
		op_fail(op, c->status, peer_id(p), "path %" PRIu32 " (local NIC %" PRIu32 "): %s",
		        path->index, path->nic,
		        c->text != NULL ? c->text : wimm_status_text(c->status));
	if (path->state != PATH_UP)
		return;
	if (marks_unsure(c))
		path_lost(w, path, c->status, c->vendor_code, c->text);
	else if (p->doubt_id == 0) /* the path stays, but is there still somebody at its end? */
		doubt_begin(w, p);
}

void post_progress(struct worker *w, struct op *op)
{
	op_acked(w, op);
}

/* Requests that are no operation's: an empty write behind cancelled ones, a slot of stage_tx.c. */
static bool special_done(struct worker *w, struct path *path, const struct prov_cqe *c) ON_WORKER
{
	struct peer *p = path->peer;

	if (c->token == FLUSH_TOKEN) {
		if (!path->flushing)
			return false;
		drain_done(w, path);
		return true;
	}
	if (p->stage_tx == NULL || c->token >= STAGE_TOKEN + STAGE_SLOTS ||
	    c->count > path->outstanding)
		return false;
	stage_done(w, path, c);
	if (c->status != WIMM_OK && marks_unsure(c) && path->state == PATH_UP)
		path_lost(w, path, c->status, c->vendor_code, c->text);
	if (p->state == PEER_UP)
		post_peer_room(w, p);
	return true;
}

/* Parts that the receiver has seen or will, of the leg they belong to. Only where paths have no
 * order does a scatter have any: an entry that is longer than a request. */
static void parts_done(struct op *op, const struct peer *p, const struct prov_cqe *c)
{
	if (op->leg_count == 1) {
		op->legs[0].parts_sent += c->count;
		return;
	}
	for (uint32_t i = 0; c->op_seq != 0 && i < op->leg_count; i++) {
		struct leg *leg = &op->legs[i];

		if (leg->op_seq == c->op_seq && leg->held && leg->dst->peer == p) {
			leg->parts_sent += c->count;
			return;
		}
	}
}

void post_done(struct worker *w, struct path *path, const struct prov_cqe *c)
{
	uint32_t index = (uint32_t)c->token >> 8;
	struct op *op = &w->ops[index < w->max_ops ? index : 0];
	bool voided = false;

	if (c->token >> 32 == 0 && special_done(w, path, c))
		return;
	if (index >= w->max_ops || op_id(op) >> 32 != c->token >> 32 || !op->started ||
	    c->count > op->outstanding || c->count > path->outstanding) {
		LOG_ERROR("NIC %" PRIu32 ": completion of unknown token %#" PRIx64, path->nic,
		          c->token);
		peer_down(w, path->peer, WIMM_E_PROTOCOL, c->vendor_code,
		          "the NIC completed a request that was never posted");
		return;
	}
	DASSERT(shard_straight_stands(path->peer));
	path->done_ns = w->now_ns;
	path->outstanding -= c->count;
	op->outstanding -= c->count;
	if (c->status == WIMM_OK)
		op->descriptors_done += c->count;
	if ((c->token & OP_TOKEN_COUNTED) != 0) {
		if (c->status == WIMM_OK || (c->flags & PROV_CQE_SENT) != 0)
			parts_done(op, path->peer, c);
		else
			voided = true;
	}
	if (voided)
		path->posted_marks -= c->count;
	op->legs_open++; /* keeps it while a lost path fails its other legs */
	if ((c->flags & PROV_CQE_READING) != 0)
		op->source_read = true;
	if (c->status != WIMM_OK)
		done_failed(w, path, op, c);
	op->legs_open--;
	if (voided)
		marks_lowered(w, path->peer);
	if (path->peer->state == PEER_UP)
		post_peer_room(w, path->peer);
	if (path->peer->draining)
		drain_step(w, path->peer);
	if (path->peer->fence_asked != 0)
		fence_answer(w, path->peer);
	op_acked(w, op);
}

void post_fail_region(struct worker *w, struct wimm_remote_mr *r)
{
	LIST_FOR_EACH(it, &r->peer->pending) {
		struct leg *leg = LIST_ENTRY(it, struct leg, link);

		if (leg->dst == r)
			post_fail_leg(w, leg, WIMM_E_REVOKED,
			              "the peer has deregistered the region");
	}
	stage_fail(w, r->peer, r, WIMM_E_REVOKED, "the peer has deregistered the region");
}

/* Fail what has not been posted, and what was acked but not confirmed; the rest comes back from the
 * closed paths. */
void post_peer_down(struct worker *w, struct peer *p)
{
	struct list *lists[] = { &p->pending, &p->confirms, &p->confirming };

	for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++)
		while (!list_empty(lists[i]))
			post_fail_leg(w, LIST_ENTRY(lists[i]->next, struct leg, link), p->cause,
			              p->text);
}

static void legs_refuse(struct worker *w, struct op *op) ON_WORKER
{
	for (uint32_t i = 0; i < op->leg_count; i++) {
		op->legs[i].op = op;
		leg_close(w, &op->legs[i]);
	}
}

void post_start(struct worker *w, struct op *op)
{
	struct wimm_mr *mr = (struct wimm_mr *)(uintptr_t)op->src;
	bool may_start;

	op->legs_open = op->leg_count;
	if (mr != NULL) {
		if (!mr_holds(mr, op->src_generation))
			op_fail(op, WIMM_E_REVOKED, 0, "the source region was deregistered");
		else {
			mr->refs++;
			op->src_held = true;
		}
	}
	if (op->mark != NULL)
		after_start(w, op);
	may_start = op->status == WIMM_OK;
	op->legs_open++; /* keeps it from settling while its legs start */
	if (may_start)
		straight_start(w, op);
	else
		legs_refuse(w, op);
	op->legs_open--;
	op_acked(w, op);
}

void post_go_on(struct worker *w, struct op *op, bool reached)
{
	op->legs_open++; /* as above */
	for (uint32_t i = 0; i < op->leg_count; i++) {
		if (reached)
			remote_leg_go(w, &op->legs[i]);
		else
			leg_close(w, &op->legs[i]);
	}
	op->legs_open--;
	op_acked(w, op);
}

/* Requests before it still come back on that path, so its own will. */
static bool comes_back(const struct worker *w, const struct op *op,
                       const struct path *path) ON_WORKER
{
	return op->lingers_ns != 0 && w->now_ns < op->lingers_ns + LINGER_MOST_NS &&
	       w->now_ns < path->done_ns + LINGER_NS;
}

static void take_back(struct worker *w, struct op *op, struct leg *leg) ON_WORKER
{
	struct peer *p = leg->dst->peer;
	uint64_t token = shard_token(op);

	if (!leg->held || p == NULL)
		return;
	for (uint32_t i = 0; i < p->path_count; i++) {
		struct path *path = &p->path[i];

		if (path->state != PATH_UP || path->outstanding == 0 || (leg->used >> i & 1) == 0)
			continue;
		if (!w->nic[path->nic].caps.can_cancel) {
			if (comes_back(w, op, path))
				continue;
			path_lost(w, path, WIMM_E_PATH_LOST, 0,
			          "fenced: a write in flight was given up");
			continue;
		}
		path_ops(w, path)->cancel(path->prov, token);
		path_ops(w, path)->cancel(path->prov, token | OP_TOKEN_COUNTED);
		drain_cancelled(w, path);
	}
}

void post_stop(struct worker *w, struct peer *p, wimm_status status, const char *text)
{
	while (!list_empty(&p->pending))
		post_fail_leg(w, LIST_ENTRY(p->pending.next, struct leg, link), status, text);
	remote_stop(w, p, status, text);
	stage_stop(w, p, status, text);
	if (!p->can_cancel)
		return; /* what is on the NIC comes back by itself */
	LIST_FOR_EACH(it, &w->ops_started) {
		struct op *op = LIST_ENTRY(it, struct op, link);

		if (op->kind > OP_SCATTER || op->outstanding == 0 || op->aborted)
			continue;
		for (uint32_t i = 0; i < op->leg_count; i++) {
			if (!op->legs[i].held || op->legs[i].dst->peer != p)
				continue;
			op_fail(op, status, peer_id(p), "%s", text);
			take_back(w, op, &op->legs[i]);
		}
	}
}

static void take_all_back(struct worker *w, struct op *op) ON_WORKER
{
	for (uint32_t i = 0; i < op->leg_count && op->outstanding != 0; i++)
		take_back(w, op, &op->legs[i]);
}

static bool can_take_back(const struct op *op)
{
	for (uint32_t i = 0; i < op->leg_count; i++)
		if (op->legs[i].held && op->legs[i].used != 0 && !op->legs[i].dst->peer->can_cancel)
			return false;
	return true;
}

/* What cannot be taken back may come back by itself, which takes milliseconds where all is well,
 * before paths that carry others' writes too are closed for it. */
static void linger(struct worker *w, struct op *op) ON_WORKER
{
	timers_remove(&w->timers, op);
	op->deadline_ns = clock_deadline_ns(w->now_ns, LINGER_NS);
	timers_add(&w->timers, op);
}

static void linger_on(struct worker *w, struct op *op) ON_WORKER
{
	take_all_back(w, op);
	if (op->outstanding != 0)
		linger(w, op);
}

void post_abort(struct worker *w, struct op *op, wimm_status status, const char *text)
{
	/* Out of patience, or asked again; an engine that closes has some for itself. */
	if (op->aborted && op->lingers_ns != 0 && w->now_ns >= op->deadline_ns &&
	    status != WIMM_E_CLOSED)
		linger_on(w, op);
	if (op->aborted)
		return;
	if (doubt_holds(op)) /* path or peer? Not known yet, so this is why it ends */
		op->status = WIMM_OK;
	op->aborted = true;
	stage_abort(w, op);
	op_fail(op, status, op->leg_count == 1 ? op->legs[0].dst->peer_id : 0,
	        "%s; %" PRIu64 " of %" PRIu64 " posted requests were done", text,
	        op->descriptors_done, op->descriptors);
	op->legs_open++;
	for (uint32_t i = 0; i < op->leg_count; i++)
		leg_close(w, &op->legs[i]);
	if (op->outstanding != 0 && !can_take_back(op)) {
		op->lingers_ns = w->now_ns;
		linger(w, op);
	} else
		take_all_back(w, op);
	op->legs_open--;
	post_maybe_settle(w, op);
}
