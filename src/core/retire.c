/* SPDX-License-Identifier: Apache-2.0 */
/* Watermarks: what each side posted and counted on each path, and the two questions they answer:
 * has the receiver counted this (confirm), and can this value still come (retire)? */
#include "core/engine.h"
#include "core/marks.h"
#include "core/recv.h"

#include "base/alloc.h"
#include "base/assert.h"

#include <string.h>

void count_fill_marks(const struct peer *p, struct wire_msg *m, uint64_t id)
{
	memset(&m->u.marks, 0, sizeof(m->u.marks));
	m->type = WIRE_HEARTBEAT;
	m->u.marks.id = id;
	m->u.marks.path_count = p->path_count;
	for (uint32_t k = 0; k < p->path_count; k++) {
		m->u.marks.path_seq[k] = p->path[k].seq;
		m->u.marks.mark[k] = p->path[k].seen_marks;
	}
}

void count_fill_posted(const struct peer *p, struct wire_msg *m, enum wire_type type, uint64_t id)
{
	count_fill_marks(p, m, id);
	m->type = type;
	for (uint32_t k = 0; k < p->path_count; k++)
		m->u.marks.mark[k] = p->path[k].posted_marks;
}

/* Everything the peer posted before is counted here. A path, or a life of it, that is gone brings
 * nothing more. */
static bool reached(const struct peer *p, const struct wire_marks *marks, bool lost_counts)
{
	for (uint32_t k = 0; k < p->path_count; k++) {
		const struct path *path = &p->path[k];
		bool same = path->seq == marks->path_seq[k];
		bool over = path->seq > marks->path_seq[k] ||
		            (path->state != PATH_UP && path->state != PATH_OPENING);

		if ((same ? path->seen_marks : 0) < marks->mark[k] && !(over && lost_counts))
			return false;
	}
	return true;
}

bool count_reached(const struct peer *p, const struct wire_marks *marks)
{
	return reached(p, marks, true);
}

/* What the peer says that it has counted: answers that it has reached need no repeating. */
static void marks_heard(struct peer *p, const struct wire_msg *m);
/* Answer the questions for which all that was posted is counted now. */
static void retires_confirmed(struct worker *w, struct peer *p) ON_WORKER;

/* --- confirm --- */

#define CONFIRM_LOST_TEXT "acked, but a path was lost before the receiver confirmed"

/* Lost paths are left out: nothing comes there any more, and their legs have failed. */
static void confirm_say(struct worker *w, struct peer *p, uint64_t id) ON_WORKER
{
	struct wire_msg m;

	count_fill_posted(p, &m, WIRE_CONFIRM, id);
	for (uint32_t k = 0; k < p->path_count; k++)
		if (p->path[k].state != PATH_UP)
			m.u.marks.mark[k] = 0;
	session_say(w, p, &m);
}

void confirm_last(struct worker *w, struct peer *p)
{
	confirm_say(w, p, ++w->next_id); /* nobody waits for the answer */
}

static void confirm_send(struct worker *w, struct peer *p) ON_WORKER
{
	if (p->confirm_id != 0 || p->state != PEER_UP ||
	    (list_empty(&p->confirms) && list_empty(&p->retires_wait)))
		return;
	list_splice_back(&p->confirming, &p->confirms);
	list_splice_back(&p->retires_confirming, &p->retires_wait);
	p->confirm_id = ++w->next_id;
	p->hold = !p->ordered;
	confirm_say(w, p, p->confirm_id);
}

/* A path it was posted on is gone: what was acked there may never be counted. */
static bool used_lost_path(const struct peer *p, const struct leg *leg)
{
	for (uint32_t k = 0; k < p->path_count; k++)
		if ((leg->used >> k & 1) != 0 && !path_stood(&p->path[k], leg))
			return true;
	return false;
}

void count_confirm(struct worker *w, struct leg *leg)
{
	struct peer *p = leg->dst->peer;

	if (p->state != PEER_UP) {
		op_fail(leg->op, p->cause, peer_id(p), "%s", p->text);
		post_leg_confirmed(w, leg);
		return;
	}
	if (used_lost_path(p, leg)) {
		op_fail(leg->op, WIMM_E_PATH_LOST, peer_id(p), CONFIRM_LOST_TEXT);
		post_leg_confirmed(w, leg);
		return;
	}
	leg->state = LEG_CONFIRMING;
	list_push_back(&p->confirms, &leg->link);
	confirm_send(w, p);
}

static void confirm_end(struct worker *w, struct peer *p)
{
	p->confirm_id = 0;
	if (p->hold) {
		p->hold = false;
		post_peer_room(w, p);
	}
}

void confirm_heard(struct worker *w, struct peer *p, const struct wire_msg *m)
{
	marks_heard(p, m);
	if (m->u.marks.id == 0 || m->u.marks.id != p->confirm_id)
		return;
	retires_confirmed(w, p);
	confirm_end(w, p);
	while (!list_empty(&p->confirming))
		post_leg_confirmed(w, LIST_ENTRY(list_pop_front(&p->confirming), struct leg, link));
	confirm_send(w, p);
}

void confirm_path_lost(struct worker *w, struct peer *p)
{
	struct list legs;

	confirm_end(w, p);
	list_init(&legs);
	list_splice_back(&legs, &p->confirming);
	list_splice_back(&legs, &p->confirms);
	list_splice_back(&p->retires_wait, &p->retires_confirming);
	while (!list_empty(&legs)) {
		struct leg *leg = LIST_ENTRY(legs.next, struct leg, link);

		if (used_lost_path(p, leg)) {
			post_fail_leg(w, leg, WIMM_E_PATH_LOST, CONFIRM_LOST_TEXT);
			continue;
		}
		list_remove(&leg->link);
		list_push_back(&p->confirms, &leg->link);
	}
	confirm_send(w, p);
}

void confirm_answer(struct worker *w, struct peer *p)
{
	struct wire_msg m;
	uint64_t id = p->asked.id;

	if (id == 0 || !reached(p, &p->asked, false))
		return;
	p->asked.id = 0;
	count_fill_marks(p, &m, id);
	session_say(w, p, &m);
}

void confirm_asked(struct worker *w, struct peer *p, const struct wire_msg *m)
{
	if (m->u.marks.path_count != p->path_count) {
		peer_down(w, p, WIMM_E_PROTOCOL, 0, "watermarks of another number of paths");
		return;
	}
	p->asked = m->u.marks;
	confirm_answer(w, p);
}

void confirm_peer_down(struct peer *p)
{
	p->confirm_id = 0;
	p->asked.id = 0;
	p->hold = false;
}

/* --- retire: the side that counts --- */

/* One session that has not said yet that a value is done with. */
struct retire_wait {
	struct peer *peer; /* NULL: done */
	bool heard;
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

static void wait_check(struct op *op, struct retire_wait *r)
{
	if (r->peer == NULL || !r->heard || !reached(r->peer, &r->marks, true))
		return;
	r->peer = NULL;
	op->retire.left--;
}

void retire_start(struct worker *w, struct op *op)
{
	struct wire_msg m = { .type = WIRE_RETIRE };
	uint32_t count = 0;

	list_push_back(&w->retires, &op->wait_link);
	LIST_FOR_EACH(it, &w->peers)
		count++;
	op->retire.id = ++w->next_id;
	op->retire.left = 1; /* held while the messages go out */
	op->retire.wait_count = 0;
	op->retire.waits = mem_calloc(count + 1, sizeof(*op->retire.waits));
	if (op->retire.waits == NULL) {
		op_fail(op, WIMM_E_NOMEM, 0, "no memory to ask %u peers", count);
		op->retire.left = 0;
		retire_finish(w, op);
		return;
	}
	m.u.retire.id = op->retire.id;
	m.u.retire.imm = op->imm;
	LIST_FOR_EACH(it, &w->peers) {
		struct peer *p = LIST_ENTRY(it, struct peer, link);

		if (p->alias != NULL || p->state == PEER_DOWN || p->ctl == NULL ||
		    p->path_count == 0)
			continue;
		op->retire.waits[op->retire.wait_count++].peer = p;
		op->retire.left++;
		session_say(w, p, &m);
	}
	op->retire.left--;
	retire_finish(w, op);
}

void retire_arrived(struct worker *w, struct peer *p)
{
	LIST_FOR_EACH(it, &w->retires) {
		struct op *op = LIST_ENTRY(it, struct op, wait_link);

		for (uint32_t i = 0; i < op->retire.wait_count; i++)
			if (op->retire.waits[i].peer == p)
				wait_check(op, &op->retire.waits[i]);
		retire_finish(w, op);
	}
}

void retire_heard(struct worker *w, struct peer *p, const struct wire_msg *m)
{
	LIST_FOR_EACH(it, &w->retires) {
		struct op *op = LIST_ENTRY(it, struct op, wait_link);

		if (op->retire.id != m->u.marks.id)
			continue;
		for (uint32_t i = 0; i < op->retire.wait_count; i++) {
			struct retire_wait *r = &op->retire.waits[i];

			if (r->peer != p || m->u.marks.path_count != p->path_count)
				continue;
			r->heard = true;
			r->marks = m->u.marks;
		}
		break;
	}
	retire_arrived(w, p);
}

void retire_cancel(struct worker *w, struct op *op, wimm_status status, const char *text)
{
	op_fail(op, status, 0, "%s; %u peers had not answered", text, op->retire.left);
	op->retire.left = 0;
	retire_finish(w, op);
}

/* --- retire: the side that writes --- */

/* Questions of one peer that are held. */
#define RETIRES_MAX 65536

struct retire_request {
	struct list link; /* peer.retires until answered, then peer.retires_told */
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
	r->id = m->u.retire.id;
	r->imm = m->u.retire.imm;
	r->handed_out = w->handed_out;
	list_push_back(&p->retires, &r->link);
	w->retire_requests++;
}

static void marks_heard(struct peer *p, const struct wire_msg *m)
{
	if (m->u.marks.path_count != p->path_count)
		return;
	LIST_FOR_EACH(it, &p->retires_told) {
		struct retire_request *r = LIST_ENTRY(it, struct retire_request, link);
		bool all = true;

		for (uint32_t k = 0; k < p->path_count; k++)
			all = all && (p->path[k].state != PATH_UP ||
			              p->path[k].seq != r->marks.path_seq[k] ||
			              m->u.marks.path_seq[k] > r->marks.path_seq[k] ||
			              m->u.marks.mark[k] >= r->marks.mark[k]);
		if (!all)
			continue;
		list_remove(&r->link);
		mem_free(r);
		p->retire_count--;
	}
}

static void retires_confirmed(struct worker *w, struct peer *p) ON_WORKER
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

static bool under_way(const struct worker *w, const struct peer *p, uint32_t imm)
{
	LIST_FOR_EACH(it, (struct list *)(uintptr_t)&w->ops_started) {
		const struct op *op = LIST_ENTRY(it, struct op, link);

		if (op->kind > OP_SCATTER || (op->flags & WIMM_IMM) == 0 || op->imm != imm)
			continue;
		for (uint32_t i = 0; i < op->leg_count; i++)
			if (op->legs[i].held && op->legs[i].dst->peer == p)
				return true;
	}
	return false;
}

static void retire_tell(struct worker *w, struct peer *p, struct retire_request *r) ON_WORKER
{
	struct wire_msg m;

	count_fill_posted(p, &m, WIRE_RETIRE_ACK, r->id);
	r->marks = m.u.marks;
	list_push_back(&p->retires_told, &r->link);
	session_say(w, p, &m);
}

/* Called when the inbox is empty, so that what was accepted before the question counts. Without
 * order a later write may be counted in place of an earlier one, so there the answer waits until
 * all that was posted is counted, which holds later ones back. */
void retire_answer(struct worker *w)
{
	LIST_FOR_EACH(it, &w->peers) {
		struct peer *p = LIST_ENTRY(it, struct peer, link);

		LIST_FOR_EACH(jt, &p->retires) {
			struct retire_request *r = LIST_ENTRY(jt, struct retire_request, link);

			/* What a message before it said is done, too: perhaps to stop writing. */
			if (under_way(w, p, r->imm) || w->handed_back < r->handed_out)
				continue;
			list_remove(&r->link);
			w->retire_requests--;
			if (p->ordered || p->state != PEER_UP) /* nothing is posted */
				retire_tell(w, p, r);
			else
				list_push_back(&p->retires_wait, &r->link);
			if (p->state == PEER_DOWN)
				break; /* its requests are gone */
		}
		confirm_send(w, p);
	}
}

void marks_lowered(struct worker *w, struct peer *p)
{
	if (p->confirm_id != 0 && p->state == PEER_UP)
		confirm_say(w, p, p->confirm_id);
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
		mem_free(LIST_ENTRY(list_pop_front(&p->retires), struct retire_request, link));
		w->retire_requests--;
	}
	LIST_FOR_EACH(it, &w->retires) {
		struct op *op = LIST_ENTRY(it, struct op, wait_link);

		for (uint32_t i = 0; i < op->retire.wait_count; i++) {
			if (op->retire.waits[i].peer != p)
				continue;
			op->retire.waits[i].peer = NULL;
			op->retire.left--;
		}
		retire_finish(w, op);
	}
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
