/* SPDX-License-Identifier: Apache-2.0 */
/* Watermarks: what each side posted and counted on each path, and one of the questions that they
 * answer: has the receiver counted this? retire.c has the other one. */
#include "core/engine.h"
#include "core/marks.h"

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

void confirm_send(struct worker *w, struct peer *p)
{
	if (p->confirm_id != 0 || p->state != PEER_UP ||
	    (list_empty(&p->confirms) && list_empty(&p->retires_wait)))
		return;
	list_splice_back(&p->confirming, &p->confirms);
	list_splice_back(&p->retires_confirming, &p->retires_wait);
	p->confirm_id = ++w->next_id;
	p->hold = !p->ordered;
	if (p->hold)
		p->straight = NULL;
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
	retire_marks_heard(p, m);
	if (m->u.marks.id == 0 || m->u.marks.id != p->confirm_id)
		return;
	retire_confirmed(w, p);
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

void marks_lowered(struct worker *w, struct peer *p)
{
	if (p->confirm_id != 0 && p->state == PEER_UP)
		confirm_say(w, p, p->confirm_id);
	retire_tell_again(w, p);
}
