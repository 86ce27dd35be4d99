/* SPDX-License-Identifier: Apache-2.0 */
/* Can this value still come? Whoever counts asks every session, and is told what was posted once no
 * write with the value is under way there; then it waits until as much is counted. Each question
 * waits in one place for one thing, so that no number of them makes another one slower. */
#include "core/engine.h"
#include "core/marks.h"
#include "core/recv.h"

#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

/* --- the side that counts --- */

/* One session that was asked whether a value is done with. */
struct retire_wait {
	struct list link; /* peer.retires_asked, then peer.retires_heard until as much is counted */
	struct op *op;
	struct peer *peer; /* NULL: done */
	uint32_t slot;     /* the peer's: they are sorted by it */
	struct wire_marks marks;
};

static void retire_finish(struct worker *w, struct op *op) ON_WORKER
{
	if (op->retire.left != 0)
		return;
	if (op->status == WIMM_OK)
		(void)imm_forget(w->imms, op->imm);
	mem_free(op->retire.waits);
	op->retire.waits = NULL;
	list_remove(&op->wait_link);
	op_settle(w, op);
}

static void wait_end(struct retire_wait *r)
{
	list_remove(&r->link);
	r->peer = NULL;
	r->op->retire.left--;
}

static int by_slot(const void *a, const void *b)
{
	const struct retire_wait *x = a, *y = b;

	return x->slot < y->slot ? -1 : x->slot > y->slot;
}

/* Whom to ask, in the order of their slots. False: no memory. */
static bool waits_plan(struct worker *w, struct op *op) ON_WORKER
{
	uint32_t count = 0;

	LIST_FOR_EACH(it, &w->peers)
		count++;
	op->retire.wait_count = 0;
	op->retire.waits = mem_calloc(count + 1, sizeof(*op->retire.waits));
	if (op->retire.waits == NULL) {
		op_fail(op, WIMM_E_NOMEM, 0, "no memory to ask %u peers", count);
		return false;
	}
	LIST_FOR_EACH(it, &w->peers) {
		struct peer *p = LIST_ENTRY(it, struct peer, link);
		struct retire_wait *r = &op->retire.waits[op->retire.wait_count];

		if (p->alias != NULL || p->state == PEER_DOWN || p->ctl == NULL ||
		    p->path_count == 0)
			continue;
		r->op = op;
		r->peer = p;
		r->slot = p->slot;
		op->retire.wait_count++;
	}
	qsort(op->retire.waits, op->retire.wait_count, sizeof(*op->retire.waits), by_slot);
	return true;
}

void retire_start(struct worker *w, struct op *op)
{
	struct wire_msg m = { .type = WIRE_RETIRE };

	list_push_back(&w->retires, &op->wait_link);
	op->retire.left = 0;
	if (!waits_plan(w, op)) {
		retire_finish(w, op);
		return;
	}
	m.u.retire.id = op_id(op);
	m.u.retire.imm = op->imm;
	for (uint32_t i = 0; i < op->retire.wait_count; i++) {
		struct retire_wait *r = &op->retire.waits[i];

		list_push_back(&r->peer->retires_asked, &r->link);
		op->retire.left++;
	}
	op->retire.left++; /* held while the messages go out */
	for (uint32_t i = 0; i < op->retire.wait_count; i++)
		if (op->retire.waits[i].peer != NULL)
			session_say(w, op->retire.waits[i].peer, &m);
	op->retire.left--;
	retire_finish(w, op);
}

/* What a peer says that it has posted only grows from one answer to the next, so where the first
 * has not come none behind it has. */
void retire_arrived(struct worker *w, struct peer *p)
{
	while (!list_empty(&p->retires_heard)) {
		struct retire_wait *r =
			LIST_ENTRY(p->retires_heard.next, struct retire_wait, link);
		struct op *op = r->op;

		if (!count_reached(p, &r->marks))
			return;
		wait_end(r);
		retire_finish(w, op);
	}
}

/* The question that an answer is to; NULL: none of ours that is open. */
static struct retire_wait *wait_find(struct worker *w, const struct peer *p, uint64_t id) ON_WORKER
{
	struct op *op = op_by_id(w, id);
	struct retire_wait key = { .slot = p->slot }, *r;

	if (op == NULL || op_id(op) != id || op->kind != OP_RETIRE || !op->started ||
	    op->retire.wait_count == 0)
		return NULL;
	r = bsearch(&key, op->retire.waits, op->retire.wait_count, sizeof(key), by_slot);
	return r != NULL && r->peer == p ? r : NULL;
}

void retire_heard(struct worker *w, struct peer *p, const struct wire_msg *m)
{
	struct retire_wait *r = wait_find(w, p, m->u.marks.id);

	if (r == NULL || m->u.marks.path_count != p->path_count)
		return;
	r->marks = m->u.marks;
	list_remove(&r->link); /* an answer may be given anew, with less */
	if (count_reached(p, &r->marks)) {
		struct op *op = r->op;

		wait_end(r);
		retire_finish(w, op);
	} else {
		list_push_back(&p->retires_heard, &r->link);
	}
	retire_arrived(w, p);
}

void retire_cancel(struct worker *w, struct op *op, wimm_status status, const char *text)
{
	op_fail(op, status, 0, "%s; %u peers had not answered", text, op->retire.left);
	for (uint32_t i = 0; i < op->retire.wait_count; i++)
		if (op->retire.waits[i].peer != NULL)
			wait_end(&op->retire.waits[i]);
	retire_finish(w, op);
}

static void waits_peer_down(struct worker *w, struct peer *p) ON_WORKER
{
	list_splice_back(&p->retires_heard, &p->retires_asked);
	while (!list_empty(&p->retires_heard)) {
		struct retire_wait *r =
			LIST_ENTRY(p->retires_heard.next, struct retire_wait, link);
		struct op *op = r->op;

		wait_end(r);
		retire_finish(w, op);
	}
}

/* --- the side that writes --- */

/* Questions of one peer that are held. */
#define RETIRES_MAX 65536

/* A question lies in worker.retires_new, to be looked at, waits for something else (a callback in
 * worker.retires_behind, an operation in the ring that its `asking` begins), or is answered. */
struct retire_request {
	struct list link;    /* there; then in peer.retires_told and the like */
	struct list of_peer; /* peer.retires, until answered */
	struct peer *peer;
	struct op *behind; /* the operation that it waits for */
	uint64_t id;
	uint32_t imm;
	uint64_t handed_out; /* messages that came before it: callbacks run in that order */
	struct wire_marks marks; /* as told */
};

void retire_asked(struct worker *w, struct peer *p, const struct wire_msg *m)
{
	struct retire_request *r;

	if (p->retire_count == RETIRES_MAX) {
		peer_down(w, p, WIMM_E_LIMIT, 0, "it asked more than %d questions at once",
		          RETIRES_MAX);
		return;
	}
	r = mem_calloc(1, sizeof(*r));
	if (r == NULL) {
		peer_down(w, p, WIMM_E_NOMEM, 0, "no memory for its question");
		return;
	}
	p->retire_count++;
	r->peer = p;
	r->id = m->u.retire.id;
	r->imm = m->u.retire.imm;
	r->handed_out = w->handed_out;
	list_push_back(&w->retires_new, &r->link);
	list_push_back(&p->retires, &r->of_peer);
}

/* Answers are told in the order of what was posted: once one is not counted none behind it is. */
void retire_marks_heard(struct peer *p, const struct wire_msg *m)
{
	if (m->u.marks.path_count != p->path_count)
		return;
	while (!list_empty(&p->retires_told)) {
		struct retire_request *r =
			LIST_ENTRY(p->retires_told.next, struct retire_request, link);

		for (uint32_t k = 0; k < p->path_count; k++)
			if (p->path[k].state == PATH_UP &&
			    p->path[k].seq == r->marks.path_seq[k] &&
			    m->u.marks.path_seq[k] <= r->marks.path_seq[k] &&
			    m->u.marks.mark[k] < r->marks.mark[k])
				return;
		list_remove(&r->link);
		mem_free(r);
		p->retire_count--;
	}
}

void retire_confirmed(struct worker *w, struct peer *p)
{
	while (!list_empty(&p->retires_confirming)) {
		struct list *link = list_pop_front(&p->retires_confirming);
		struct retire_request *r = LIST_ENTRY(link, struct retire_request, link);
		struct wire_msg m;

		count_fill_posted(p, &m, WIRE_RETIRE_ACK, r->id);
		mem_free(r);
		p->retire_count--;
		session_say(w, p, &m); /* losing the peer empties the list */
	}
}

/* A write with this value to this peer that has not settled. */
static struct op *under_way(struct worker *w, const struct peer *p, uint32_t imm) ON_WORKER
{
	/* Most often there is none of that value, to anybody. */
	if (*retire_imm_ops(w, imm) == 0)
		return NULL;
	LIST_FOR_EACH(it, &w->ops_started) {
		struct op *op = LIST_ENTRY(it, struct op, link);

		if (op->kind > OP_SCATTER || (op->flags & WIMM_IMM) == 0 || op->imm != imm)
			continue;
		for (uint32_t i = 0; i < op->leg_count; i++)
			if (op->legs[i].held && op->legs[i].dst->peer == p)
				return op;
	}
	return NULL;
}

static void wait_behind(struct retire_request *r, struct op *op)
{
	r->behind = op;
	if (op->asking == NULL)
		op->asking = r;
	else
		list_push_back(&op->asking->link, &r->link);
}

/* Wherever it waits. */
static void request_unlink(struct retire_request *r)
{
	struct op *op = r->behind;

	if (op != NULL && op->asking == r)
		op->asking = list_empty(&r->link) ? NULL
		                                  : LIST_ENTRY(r->link.next,
		                                               struct retire_request, link);
	r->behind = NULL;
	list_remove(&r->link);
}

void retire_op_done(struct worker *w, struct op *op)
{
	while (op->asking != NULL) {
		struct retire_request *r = op->asking;

		request_unlink(r);
		list_push_back(&w->retires_new, &r->link);
	}
}

void retire_handed_back(struct worker *w)
{
	while (!list_empty(&w->retires_behind)) {
		struct retire_request *r =
			LIST_ENTRY(w->retires_behind.next, struct retire_request, link);

		if (r->handed_out > w->handed_back)
			return; /* nor have those that came later */
		request_unlink(r);
		list_push_back(&w->retires_new, &r->link);
	}
}

static void retire_tell(struct worker *w, struct peer *p, struct retire_request *r) ON_WORKER
{
	struct wire_msg m;

	count_fill_posted(p, &m, WIRE_RETIRE_ACK, r->id);
	r->marks = m.u.marks;
	list_push_back(&p->retires_told, &r->link);
	session_say(w, p, &m);
}

static void answer(struct worker *w, struct retire_request *r) ON_WORKER
{
	struct peer *p = r->peer;
	struct op *op;

	/* What a message before it said is done, too: perhaps to stop writing. */
	if (r->handed_out > w->handed_back) {
		list_push_back(&w->retires_behind, &r->link);
		return;
	}
	op = under_way(w, p, r->imm);
	if (op != NULL) {
		wait_behind(r, op);
		return;
	}
	list_remove(&r->of_peer);
	if (p->ordered || p->state != PEER_UP) /* nothing is posted */
		retire_tell(w, p, r);
	else
		list_push_back(&p->retires_wait, &r->link);
}

/* Called when the inbox is empty, so that what was accepted before the question counts. Without
 * order a later write may be counted in place of an earlier one, so there the answer waits until
 * all that was posted is counted, which holds later ones back. */
void retire_answer(struct worker *w)
{
	struct peer *last = NULL;

	while (!list_empty(&w->retires_new)) {
		struct list *link = list_pop_front(&w->retires_new);
		struct retire_request *r = LIST_ENTRY(link, struct retire_request, link);

		if (last != NULL && last != r->peer)
			confirm_send(w, last);
		last = r->peer;
		answer(w, r);
	}
	if (last != NULL)
		confirm_send(w, last);
}

void retire_tell_again(struct worker *w, struct peer *p)
{
	LIST_FOR_EACH(it, &p->retires_told) {
		struct retire_request *r = LIST_ENTRY(it, struct retire_request, link);
		struct wire_msg m;

		count_fill_posted(p, &m, WIRE_RETIRE_ACK, r->id);
		r->marks = m.u.marks;
		session_say(w, p, &m);
		if (p->state == PEER_DOWN)
			return; /* and with it the list */
	}
}

void retire_peer_down(struct worker *w, struct peer *p)
{
	list_splice_back(&p->retires_told, &p->retires_wait);
	list_splice_back(&p->retires_told, &p->retires_confirming);
	while (!list_empty(&p->retires_told))
		mem_free(LIST_ENTRY(list_pop_front(&p->retires_told), struct retire_request, link));
	while (!list_empty(&p->retires)) {
		struct retire_request *r = LIST_ENTRY(list_pop_front(&p->retires),
		                                      struct retire_request, of_peer);

		request_unlink(r);
		mem_free(r);
	}
	waits_peer_down(w, p);
}

wimm_status wimm_retire_imm(struct wimm_engine *engine, uint32_t imm,
                            const struct wimm_on_done *on_done, wimm_op *out_op)
{
	wimm_status st = engine_check(engine);
	struct submit_common c = { 0, 0, on_done, 0 };
	struct op *op;

	if (st == WIMM_OK)
		st = submit_get(engine, OP_RETIRE, &c, &op);
	if (st != WIMM_OK)
		return st;
	op->imm = imm;
	memset(&op->retire, 0, sizeof(op->retire));
	op_submit(&engine->worker, op, out_op);
	return WIMM_OK;
}
