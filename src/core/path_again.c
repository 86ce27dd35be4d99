/* SPDX-License-Identifier: Apache-2.0 */
/* After the loss of a path that was not the last. Is it the path alone, or is the peer dying, whose
 * paths end one after the other? And how the path comes back: the side that opened the session asks
 * for a new life of it again and again; the other one hands out its end, or has none now. */
#include "core/engine.h"
#include "core/marks.h"
#include "core/same_host.h"
#include "core/session.h"

#include "base/log.h"
#include "plat/clock.h"

#include <inttypes.h>
#include <stdio.h>

/* --- doubt: operations that failed with a path --- */

void doubt_begin(struct worker *w, struct peer *p)
{
	struct wire_msg m = { .type = WIRE_ALIVE_ASK };

	if (p->minor < WIRE_MINOR_PATH || p->state != PEER_UP)
		return;
	p->doubt_id = ++w->next_id;
	m.u.marks.id = p->doubt_id;
	session_say(w, p, &m);
}

static void blame_peer(struct op *op, const struct peer *p)
{
	op->status = WIMM_OK;
	op_fail(op, p->cause, peer_id(p), "%s", p->text);
}

bool doubt_holds(struct op *op)
{
	if (op->aborted || (op->status != WIMM_E_PATH_LOST && op->status != WIMM_E_NIC_LOST))
		return false;
	for (uint32_t i = 0; i < op->leg_count; i++) {
		struct peer *p = op->legs[i].held ? op->legs[i].dst->peer : NULL;

		if (p == NULL || peer_id(p) != op->blame)
			continue;
		if (p->state == PEER_DOWN) {
			blame_peer(op, p);
			return false;
		}
		/* It is asked when the last request is back: what was asked when the first one
		 * failed may be answered from long before. */
		if (op->doubt_from == 0)
			op->doubt_from = op->worker->next_id + 1;
		if (p->doubt_id == 0 && p->ending_step == 0 && p->alive_id < op->doubt_from)
			doubt_begin(op->worker, p);
		if (p->doubt_id == 0 && p->ending_step == 0)
			return false;
		if (!list_linked(&op->wait_link))
			list_push_back(&p->doubts, &op->wait_link);
		return true;
	}
	return false;
}

static void doubt_end(struct worker *w, struct peer *p) ON_WORKER
{
	struct list held;

	p->doubt_id = 0;
	/* Those of before: the end of one may be what shows that the peer is going, and then the
	 * next is held again. */
	list_init(&held);
	list_splice_back(&held, &p->doubts);
	while (!list_empty(&held))
		post_maybe_settle(w, LIST_ENTRY(list_pop_front(&held), struct op, wait_link));
}

void doubt_peer_down(struct worker *w, struct peer *p)
{
	doubt_end(w, p);
}

static void alive(struct worker *w, struct peer *p, const struct wire_msg *m) ON_WORKER
{
	struct wire_msg answer = { .type = WIRE_ALIVE };

	if (m->type == WIRE_ALIVE_ASK) {
		answer.u.marks.id = m->u.marks.id;
		session_say(w, p, &answer);
	} else if (m->u.marks.id == p->doubt_id && p->ending_step == 0) {
		p->alive_id = p->doubt_id;
		doubt_end(w, p);
	}
}

/* --- a new life of a path --- */

static void try_later(struct worker *w, struct path *path) ON_WORKER
{
	uint64_t pause_ns = w->heartbeat_ns << (path->tries < 16 ? path->tries : 16);

	if (pause_ns > w->peer_timeout_ns)
		pause_ns = w->peer_timeout_ns;
	path->tries++;
	session_chore(w, &path->due_ns, clock_deadline_ns(w->now_ns, pause_ns));
}

void path_again(struct worker *w, struct path *path)
{
	struct peer *p = path->peer;

	if (p->state != PEER_UP || !p->initiator || p->minor < WIRE_MINOR_PATH || path->barred ||
	    path->due_ns != 0)
		return;
	/* Most peers are of other machines: only who was reached in this one's memory is asked. */
	if (same_host_is(p, path) && !path->stood)
		return;
	if (path->state == PATH_NONE)
		try_later(w, path);
	else if (path->state == PATH_OPENING) /* the session was not kept waiting for it */
		session_chore(w, &path->due_ns, clock_deadline_ns(w->now_ns, w->hello_timeout_ns));
}

static void path_ask(struct worker *w, struct path *path) ON_WORKER
{
	struct peer *p = path->peer;
	struct wire_msg m = { .type = WIRE_PATH_OPEN };
	struct prov_error ignored = { 0 }; /* the provider has logged it */

	if (!path_prepare(w, p, path->index, path->seq + 1, &m.u.path.offer, &ignored)) {
		try_later(w, path);
		return;
	}
	m.u.path.index = path->index;
	m.u.path.seq = path->seq;
	auth_mask_offer(w, p, false, path->index, path->seq, &m.u.path.offer);
	session_chore(w, &path->due_ns, clock_deadline_ns(w->now_ns, w->hello_timeout_ns));
	session_say(w, p, &m);
}

void path_due(struct worker *w, struct path *path)
{
	struct peer *p = path->peer;

	path->due_ns = 0;
	if (p->state != PEER_UP || p->leaving || p->ending_step != 0)
		return;
	if (path->state == PATH_NONE)
		path_ask(w, path);
	else if (path->state == PATH_OPENING)
		path_lost(w, path, WIMM_E_PATH_LOST, 0, "the path did not come up again");
}

static void path_asked(struct worker *w, struct peer *p, const struct wire_msg *m) ON_WORKER
{
	struct path *path = &p->path[m->u.path.index];
	struct wire_msg answer = *m;
	struct prov_offer theirs = m->u.path.offer;
	struct prov_error ignored = { 0 };
	bool ready;

	if (p->initiator || m->u.path.seq <= path->seq) {
		peer_down(w, p, WIMM_E_PROTOCOL, 0, "a path that it may not open again");
		return;
	}
	if (p->state == PEER_UP && path->state != PATH_NONE)
		path_lost(w, path, WIMM_E_PATH_LOST, 0, "the peer has lost its end of the path");
	if (p->state == PEER_DOWN || p->ending_step != 0)
		return;
	answer.type = WIRE_PATH_STATE;
	answer.u.path.offer.len_bytes = 0;
	ready = p->state == PEER_UP && path->state == PATH_NONE && !path->barred &&
	        (!same_host_is(p, path) || path->stood) && theirs.len_bytes != 0 &&
	        path_prepare(w, p, path->index, m->u.path.seq, &answer.u.path.offer, &ignored);
	auth_mask_offer(w, p, true, path->index, m->u.path.seq, &answer.u.path.offer);
	session_say(w, p, &answer);
	if (!ready || path->state != PATH_OPENING)
		return;
	auth_mask_offer(w, p, false, path->index, path->seq, &theirs);
	path_ops(w, path)->path_connect(path->prov, &theirs);
}

static void path_answered(struct worker *w, struct peer *p, const struct wire_msg *m) ON_WORKER
{
	struct path *path = &p->path[m->u.path.index];
	struct prov_offer theirs = m->u.path.offer;

	if (!p->initiator || m->u.path.seq > path->seq) {
		peer_down(w, p, WIMM_E_PROTOCOL, 0, "its end of a path that was not asked for");
		return;
	}
	if (p->state != PEER_UP || m->u.path.seq != path->seq || path->state != PATH_OPENING ||
	    path->connected)
		return; /* given up meanwhile */
	if (theirs.len_bytes == 0) {
		path_lost(w, path, WIMM_E_PATH_LOST, 0, "the peer has no end of it now");
		return;
	}
	path->connected = true;
	auth_mask_offer(w, p, true, path->index, path->seq, &theirs);
	path_ops(w, path)->path_connect(path->prov, &theirs);
}

void path_back(struct worker *w, struct path *path)
{
	struct peer *p = path->peer;
	char text[64];

	path->due_ns = 0;
	path->tries = 0;
	(void)snprintf(text, sizeof(text), "path %" PRIu32 " stands again, its life %" PRIu32,
	               path->index, path->seq);
	LOG_INFO("peer %" PRIx64 ": %s", peer_id(p), text);
	peer_event(w, p, WIMM_PEER_NIC_BACK, WIMM_OK,
	           same_host_is(p, path) ? WIMM_NIC_SAME_HOST : path->nic, text);
	post_peer_room(w, p);
}

void path_message(struct worker *w, struct peer *p, const struct wire_msg *m)
{
	if (m->type == WIRE_ALIVE_ASK || m->type == WIRE_ALIVE) {
		alive(w, p, m);
		return;
	}
	if (m->u.path.index >= p->path_count) {
		peer_down(w, p, WIMM_E_PROTOCOL, 0, "a path that this session has not");
		return;
	}
	if (m->type == WIRE_PATH_OPEN)
		path_asked(w, p, m);
	else
		path_answered(w, p, m);
}
