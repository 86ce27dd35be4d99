/* SPDX-License-Identifier: Apache-2.0 */
/* Getting back what a peer was granted (contract C9): it is asked to stop and drain; where it does
 * not say so in half the time, its paths are closed; where they cannot be closed in the other half,
 * the answer is quarantine. The session ends in every case. */
#include "core/args.h"
#include "core/engine.h"
#include "core/error_text.h"
#include "core/fence.h"
#include "core/marks.h"
#include "core/recv.h"
#include "core/session.h"

#include "plat/clock.h"

#include <inttypes.h>
#include <string.h>

/* Turns that a fence out of time gives NICs that have more to say. */
#define LATE_TURNS_MAX 64

static struct op *fence_op(struct list *link)
{
	return LIST_ENTRY(link, struct op, wait_link);
}

static void fence_settle(struct worker *w, struct op *op, wimm_fence_answer answer) ON_WORKER
{
	struct peer *p = op->fence.peer;

	op->fence.peer = NULL;
	op->fence.answer = answer;
	op_settle(w, op);
	if (p == NULL)
		return;
	p->refs--;
	peer_maybe_free(w, p);
}

/* Its session is over: all that is left is its paths. */
static void fence_closing(struct worker *w, struct op *op) ON_WORKER
{
	if (!op->fence.closing) {
		op->fence.closing = true;
		op->fence.closing_step = w->step;
		timers_remove(&w->timers, op);
		op->deadline_ns = op->fence.end_ns;
		timers_add(&w->timers, op);
	}
	if (op->fence.peer->paths_open == 0)
		fence_settle(w, op,
		             op->fence.confirmed ? WIMM_FENCE_CONFIRMED : WIMM_FENCE_FENCED);
}

/* End the session; all fences of this peer hear of it in fence_peer_down(). */
static void fence_close(struct worker *w, struct peer *p) ON_WORKER
{
	session_goodbye(w, p, WIMM_E_CLOSED, "the peer was fenced");
	peer_down(w, p, WIMM_E_CLOSED, 0, "fenced by this program");
}

void fence_peer_down(struct worker *w, struct peer *p)
{
	LIST_FOR_EACH(it, &w->fences) {
		struct op *op = fence_op(it);

		if (op->fence.peer == p)
			fence_closing(w, op);
	}
}

static void fence_ask(struct worker *w, struct op *op) ON_WORKER
{
	struct wire_msg m = { .type = WIRE_FENCE };

	op->fence.ask_id = ++w->next_id;
	m.u.marks.id = op->fence.ask_id;
	session_say(w, op->fence.peer, &m);
}

void fence_start(struct worker *w, struct op *op)
{
	struct peer *p = peer_by_id(w, op->fence.id);

	if (p == NULL) { /* so long gone that nothing of it is left */
		fence_settle(w, op, WIMM_FENCE_FENCED);
		return;
	}
	op->blame = op->fence.id;
	op->fence.peer = p;
	p->refs++;
	list_push_back(&w->fences, &op->wait_link);
	if (p->state == PEER_DOWN)
		fence_closing(w, op);
	else if ((op->flags & WIMM_FENCE_NOW) != 0 || p->state != PEER_UP || p->ctl == NULL ||
	         p->ending_step != 0 || p->minor < WIRE_MINOR_FENCE)
		fence_close(w, p);
	else
		fence_ask(w, op);
}

/* What the peer sent before it stopped is counted first. */
void fence_arrived(struct worker *w, struct peer *p)
{
	bool all = false;

	LIST_FOR_EACH(it, &w->fences) {
		struct op *op = fence_op(it);

		if (op->fence.peer != p || !op->fence.heard || op->fence.closing ||
		    !count_reached(p, &op->fence.marks))
			continue;
		op->fence.confirmed = true;
		all = true;
	}
	if (all)
		fence_close(w, p);
}

static void fence_heard(struct worker *w, struct peer *p, const struct wire_msg *m) ON_WORKER
{
	if (m->u.marks.path_count != p->path_count) {
		peer_down(w, p, WIMM_E_PROTOCOL, 0, "watermarks of another number of paths");
		return;
	}
	LIST_FOR_EACH(it, &w->fences) {
		struct op *op = fence_op(it);

		if (op->fence.peer != p || op->fence.ask_id != m->u.marks.id)
			continue;
		op->fence.heard = true;
		op->fence.marks = m->u.marks;
	}
	fence_arrived(w, p);
}

void fence_cancel(struct worker *w, struct op *op, wimm_status status, const char *text)
{
	struct peer *p = op->fence.peer;

	if (!op->fence.closing) {
		p->refs++; /* it may settle now, and with it the last reference goes */
		fence_close(w, p);
		p->refs--;
		if (!op->started || status == WIMM_E_TIMEOUT) {
			peer_maybe_free(w, p);
			return;
		}
	}
	if (status != WIMM_E_TIMEOUT) {
		op_fail(op, status, op->fence.id, "%s; the session has ended all the same", text);
		fence_settle(w, op, WIMM_FENCE_NONE);
		return;
	}
	if (w->step == op->fence.closing_step ||
	    (!worker_polled_out(w) && op->fence.late_turns++ < LATE_TURNS_MAX)) {
		/* A late worker closes and is out of time in one turn: the NICs are asked first,
		 * but do not put it off for ever, as busy ones would. */
		op->deadline_ns = w->now_ns + 1;
		timers_add(&w->timers, op);
		return;
	}
	if (op->fence.confirmed) { /* its word, though not the provider's */
		fence_settle(w, op, WIMM_FENCE_CONFIRMED);
		return;
	}
	op_fail(op, WIMM_E_QUARANTINED, op->fence.id,
	        "peer %" PRIx64 " is silent and %" PRIu32 " of its paths cannot be revoked while "
	        "its process lives: keep what it was granted out of use, and ask again",
	        op->fence.id, p->paths_open);
	fence_settle(w, op, WIMM_FENCE_QUARANTINED);
}

/* --- the other side: this engine is to stop --- */

void fence_answer(struct worker *w, struct peer *p)
{
	struct wire_msg m;

	if (p->fence_asked == 0 || p->state == PEER_DOWN)
		return;
	for (uint32_t k = 0; k < p->path_count; k++)
		if (p->path[k].outstanding != 0)
			return;
	if (drain_needed(p)) {
		p->draining = true;
		drain_step(w, p); /* comes back here */
		return;
	}
	count_fill_posted(p, &m, WIRE_FENCE_ACK, p->fence_asked);
	p->fence_asked = 0;
	session_say(w, p, &m);
}

static void fence_asked(struct worker *w, struct peer *p, const struct wire_msg *m) ON_WORKER
{
	p->stopped = true;
	p->straight = NULL;
	p->fence_asked = m->u.marks.id;
	post_stop(w, p, WIMM_E_PEER_LOST, "the peer has fenced this side off");
	fence_answer(w, p);
}

void fence_message(struct worker *w, struct peer *p, const struct wire_msg *m)
{
	if (m->type == WIRE_FENCE)
		fence_asked(w, p, m);
	else
		fence_heard(w, p, m);
}

/* --- the call --- */

static wimm_status check_fence(const struct wimm_fence_opts *opts)
{
	if (opts == NULL || ARGS_GOOD(opts, WIMM_FENCE_NOW))
		return WIMM_OK;
	return ARGS_REFUSED(opts, "wimm_fence_opts", WIMM_FENCE_NOW);
}

wimm_status wimm_fence_peer(struct wimm_engine *engine, wimm_peer peer,
                            const struct wimm_fence_opts *opts, const struct wimm_on_done *on_done,
                            wimm_op *out_op)
{
	wimm_status st = engine_check(engine);
	struct submit_common c = { 0, 0, on_done, 0 };
	uint64_t whole_ns;
	struct op *op;

	if (st == WIMM_OK)
		st = check_fence(opts);
	if (st == WIMM_OK && !peer_was_there(&engine->worker, peer)) {
		error_text_set("peer %" PRIx64 " was never one of this engine's", peer);
		st = WIMM_E_NOT_FOUND;
	}
	if (st == WIMM_OK)
		st = submit_get(engine, OP_FENCE, &c, &op);
	if (st != WIMM_OK)
		return st;
	whole_ns = engine->worker.peer_timeout_ns;
	if (opts != NULL && opts->deadline_us != 0)
		whole_ns = opts->deadline_us < UINT64_MAX / CLOCK_NS_PER_US
		                   ? opts->deadline_us * CLOCK_NS_PER_US
		                   : CLOCK_NEVER_NS;
	memset(&op->fence, 0, sizeof(op->fence));
	op->flags = opts != NULL ? opts->flags : 0;
	op->fence.id = peer;
	op->fence.end_ns = clock_deadline_ns(op->submit_ns, whole_ns);
	op->deadline_ns = clock_deadline_ns(op->submit_ns, whole_ns / 2);
	op_submit(&engine->worker, op, out_op);
	return WIMM_OK;
}
