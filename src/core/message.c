/* SPDX-License-Identifier: Apache-2.0 */
/* Messages between programs, over the sessions' channels. The receiver copies one into a buffer of
 * its pool and says so; without a free buffer it refuses, and says when there is one again, so that
 * nothing is lost and nobody keeps more than its own messages. */
#include "core/args.h"
#include "core/engine.h"
#include "core/marks.h"
#include "core/recv.h"

#include "base/alloc.h"
#include "base/config.h"
#include "base/log.h"
#include "plat/clock.h"

#include <inttypes.h>
#include <string.h>

/* Messages of one peer under way at a time. */
#define SENDS_IN_FLIGHT_MAX 64

static void send_settle(struct worker *w, struct op *op) ON_WORKER
{
	struct peer *p = op->send.peer;

	if (op->send.in_flight)
		p->sends_in_flight--;
	list_remove(&op->wait_link);
	p->refs--;
	op->send.peer = NULL;
	op_settle(w, op);
	peer_maybe_free(w, p);
}

/* True, and op_fail() done: the peer takes no message of that length. */
static bool too_long(struct op *op, const struct peer *p)
{
	if (op->send.len_bytes <= p->max_msg_bytes)
		return false;
	op_fail(op, WIMM_E_TOO_LONG, op->send.id,
	        "message of %" PRIu64 " bytes, the peer takes %" PRIu32, op->send.len_bytes,
	        p->max_msg_bytes);
	return true;
}

void message_start(struct worker *w, struct op *op)
{
	struct peer *p = peer_by_id(w, op->send.id);

	if (p == NULL || p->state == PEER_DOWN) {
		op_fail(op, p != NULL ? p->cause : WIMM_E_PEER_LOST, op->send.id, "%s",
		        p != NULL ? p->text : "the peer is gone");
		op_settle(w, op);
		return;
	}
	if (too_long(op, p)) {
		op_settle(w, op);
		return;
	}
	op->send.peer = p;
	op->send.seq = ++p->send_seq;
	p->refs++;
	list_push_back(&p->sends, &op->wait_link);
	message_pump(w, p);
}

void message_pump(struct worker *w, struct peer *p)
{
	if (p->state != PEER_UP || p->send_wait)
		return;
	LIST_FOR_EACH(it, &p->sends) {
		struct op *op = LIST_ENTRY(it, struct op, wait_link);
		struct wire_msg m = { .type = WIRE_MSG };
		wimm_status st;

		if (op->send.in_flight)
			continue;
		if (p->sends_in_flight >= SENDS_IN_FLIGHT_MAX)
			return;
		if (too_long(op, p)) { /* it was not known when it was submitted */
			send_settle(w, op);
			continue;
		}
		m.u.msg.seq = op->send.seq;
		m.u.msg.data = op->send.data;
		m.u.msg.len_bytes = (uint32_t)op->send.len_bytes;
		st = session_send(w, p, &m);
		if (st == WIMM_AGAIN) {
			if (!p->sends_stuck) /* the next turn tries again */
				w->sends_stuck++;
			p->sends_stuck = true;
			return;
		}
		if (st != WIMM_OK) {
			peer_ending(w, p, true, WIMM_E_PEER_LOST, 0,
			            "a message could not be sent: %s", wimm_status_text(st));
			return;
		}
		if (op->post_ns == 0)
			op->post_ns = w->now_ns;
		else
			STAT_ADD(w, retries, 1);
		op->send.in_flight = true;
		p->sends_in_flight++;
		STAT_ADD(w, msgs_sent, 1);
	}
}

void message_unstick(struct worker *w)
{
	LIST_FOR_EACH(it, &w->peers) {
		struct peer *p = LIST_ENTRY(it, struct peer, link);

		if (!p->sends_stuck)
			continue;
		p->sends_stuck = false;
		w->sends_stuck--;
		message_pump(w, p);
	}
}

static struct op *find_send(struct peer *p, uint64_t seq)
{
	LIST_FOR_EACH(it, &p->sends) {
		struct op *op = LIST_ENTRY(it, struct op, wait_link);

		if (op->send.seq == seq)
			return op;
	}
	return NULL;
}

void message_acked(struct worker *w, struct peer *p, const struct wire_msg *m)
{
	struct op *op = find_send(p, m->u.msg.seq);

	if (op == NULL || !op->send.in_flight)
		return; /* cancelled meanwhile */
	if (m->u.msg.status == WIMM_AGAIN) {
		op->send.in_flight = false;
		p->sends_in_flight--;
		p->send_wait = true;
		return;
	}
	if (m->u.msg.status != WIMM_OK)
		op_fail(op, m->u.msg.status, peer_id(p),
		        "the peer's buffer is shorter than the message of %" PRIu64 " bytes",
		        op->send.len_bytes);
	send_settle(w, op);
	message_pump(w, p);
}

void message_ready(struct worker *w, struct peer *p)
{
	p->send_wait = false;
	message_pump(w, p);
}

void message_peer_down(struct worker *w, struct peer *p)
{
	if (p->sends_stuck)
		w->sends_stuck--;
	p->sends_stuck = false;
	while (!list_empty(&p->sends)) {
		struct op *op = LIST_ENTRY(p->sends.next, struct op, wait_link);

		op_fail(op, p->cause, peer_id(p), "%s", p->text);
		send_settle(w, op);
	}
}

void message_cancel(struct worker *w, struct op *op, wimm_status status, const char *text)
{
	op_fail(op, status, op->send.id, "%s", text);
	send_settle(w, op);
}

/* --- receiving --- */

static void slot_deliver(struct delivery *d)
{
	struct recv_slot *s = LIST_ENTRY(d, struct recv_slot, delivery);
	struct recv_pool *pool = s->pool;
	struct worker *w = pool->op->worker;

	pool->fn(pool->context, &s->received);
	STAT_ADD(w, callbacks, 1);
	worker_push(w, &s->back);
}

static void slot_hand_out(struct worker *w, struct recv_slot *s, wimm_status status, wimm_peer from,
                          uint64_t len_bytes) ON_WORKER
{
	s->received.status = status;
	s->received.op = op_id(s->pool->op);
	s->received.peer = from;
	s->received.addr = s->buffer.addr;
	s->received.len_bytes = len_bytes;
	s->out = true;
	s->last = status != WIMM_OK;
	s->delivery.run = slot_deliver;
	w->handed_out++;
	deliver_push(w->engine, &s->delivery);
}

/* Peers that were refused may try again. */
static void tell_ready(struct worker *w) ON_WORKER
{
	struct wire_msg m = { .type = WIRE_MSG_READY };

	LIST_FOR_EACH(it, &w->peers) {
		struct peer *p = LIST_ENTRY(it, struct peer, link);

		if (!p->owes_ready)
			continue;
		p->owes_ready = false;
		session_say(w, p, &m);
	}
}

void message_arrived(struct worker *w, struct peer *p, const struct wire_msg *m)
{
	struct wire_msg ack = { .type = WIRE_MSG_ACK };
	struct list *link = w->recv_free.next;

	ack.u.msg.seq = m->u.msg.seq;
	ack.u.msg.status = WIMM_OK;
	if (link == &w->recv_free) {
		ack.u.msg.status = WIMM_AGAIN;
		p->owes_ready = true;
	} else {
		struct recv_slot *s = LIST_ENTRY(link, struct recv_slot, link);

		if (m->u.msg.len_bytes > s->buffer.len_bytes) {
			ack.u.msg.status = WIMM_E_TOO_LONG;
		} else {
			list_remove(&s->link);
			if (m->u.msg.len_bytes != 0)
				memcpy(s->buffer.addr, m->u.msg.data, m->u.msg.len_bytes);
			STAT_ADD(w, msgs_received, 1);
			slot_hand_out(w, s, WIMM_OK, peer_id(p), m->u.msg.len_bytes);
		}
	}
	session_say(w, p, &ack);
}

void recvs_start(struct worker *w, struct op *op)
{
	struct recv_pool *pool = op->recvs;

	list_push_back(&w->recv_pools, &pool->link);
	for (uint32_t i = 0; i < pool->count; i++)
		list_push_back(&w->recv_free, &pool->slot[i].link);
	tell_ready(w);
}

static void pool_maybe_done(struct worker *w, struct recv_pool *pool) ON_WORKER
{
	struct op *op = pool->op;

	if (pool->returned != pool->count)
		return;
	list_remove(&pool->link);
	op->recvs = NULL;
	mem_free(pool);
	op_settle(w, op);
}

void recvs_back(struct worker *w, struct request *r)
{
	struct recv_slot *s = LIST_ENTRY(r, struct recv_slot, back);
	struct recv_pool *pool = s->pool;

	s->out = false;
	w->handed_back++;
	if (!list_empty(&w->retires_behind))
		retire_handed_back(w);
	if (s->last) {
		pool->returned++;
		pool_maybe_done(w, pool);
		return;
	}
	if (pool->ending != WIMM_OK) {
		slot_hand_out(w, s, pool->ending, 0, 0);
		return;
	}
	list_push_back(&w->recv_free, &s->link);
	tell_ready(w);
}

void recvs_cancel(struct worker *w, struct op *op, wimm_status status)
{
	struct recv_pool *pool = op->recvs;

	if (pool->ending != WIMM_OK)
		return;
	pool->ending = status;
	op_fail(op, status, 0, "%s", wimm_status_text(status));
	for (uint32_t i = 0; i < pool->count; i++) {
		struct recv_slot *s = &pool->slot[i];

		if (s->out)
			continue;
		list_remove(&s->link);
		slot_hand_out(w, s, status, 0, 0);
	}
}

wimm_status wimm_submit_recvs(struct wimm_engine *engine, const struct wimm_recv_buffer *buffers,
                              uint64_t count, wimm_recv_fn fn, void *context, wimm_op *out_op)
{
	wimm_status st = engine_check(engine);
	struct recv_pool *pool;
	struct op *op;

	if (st != WIMM_OK)
		return st;
	if (buffers == NULL || fn == NULL || count == 0 || count > RECV_BUFFERS_MAX) {
		error_text_set("receive buffers: %" PRIu64 " given, allowed are 1..%d with a "
		               "callback",
		               count, RECV_BUFFERS_MAX);
		return WIMM_E_INVAL;
	}
	if (engine_closing(engine))
		return WIMM_E_CLOSED;
	for (uint64_t i = 0; i < count; i++)
		if (buffers[i].addr == NULL && buffers[i].len_bytes != 0)
			return args_null("wimm_recv_buffer.addr");
	pool = mem_calloc(1, sizeof(*pool) + count * sizeof(pool->slot[0]));
	if (pool == NULL)
		return WIMM_E_NOMEM;
	op = op_get(&engine->worker, OP_RECVS);
	if (op == NULL) {
		mem_free(pool);
		return WIMM_AGAIN;
	}
	pool->op = op;
	pool->fn = fn;
	pool->context = context;
	pool->count = (uint32_t)count;
	pool->ending = WIMM_OK;
	list_init(&pool->link);
	for (uint32_t i = 0; i < pool->count; i++) {
		pool->slot[i].pool = pool;
		pool->slot[i].buffer = buffers[i];
		pool->slot[i].back.kind = REQUEST_RECV_BACK;
		list_init(&pool->slot[i].link);
	}
	op->recvs = pool;
	op->submit_ns = engine_now_ns(engine);
	op_submit(&engine->worker, op, out_op);
	return WIMM_OK;
}

/* Into a fresh operation, and off with it. */
static wimm_status send_message(struct worker *w, struct op *op, const struct wimm_send *send,
                                wimm_op *out_op)
{
	op->send.id = send->peer;
	op->peer = send->peer;
	op->send.len_bytes = send->len_bytes;
	op->send.in_flight = false;
	op->send.data = mem_alloc(send->len_bytes);
	if (op->send.data == NULL) {
		op_unget(w, op);
		return WIMM_E_NOMEM;
	}
	if (send->len_bytes != 0)
		memcpy(op->send.data, send->data, send->len_bytes);
	op_submit(w, op, out_op);
	return WIMM_OK;
}

wimm_status wimm_submit_send(struct wimm_engine *engine, const struct wimm_send *send,
                             const struct wimm_on_done *on_done, wimm_op *out_op)
{
	wimm_status st = engine_check(engine);
	struct submit_common c;
	struct op *op;
	bool entered;

	if (st != WIMM_OK)
		return st;
	if (send == NULL || !ARGS_GOOD(send, WIMM_BLOCK))
		return ARGS_REFUSED(send, "wimm_send", WIMM_BLOCK);
	if (send->data == NULL && send->len_bytes != 0)
		return args_null("wimm_send.data");
	if (send->len_bytes > engine->worker.max_msg_bytes) {
		error_text_set("message of %" PRIu64 " bytes, the longest is %" PRIu32 " (%s)",
		               send->len_bytes, engine->worker.max_msg_bytes,
		               engine->worker.max_msg_bytes < config_get_u64(CFG_MAX_MSG_BYTES)
		                       ? "its NICs take no longer ones"
		                       : "setting max_msg_bytes");
		return WIMM_E_TOO_LONG;
	}
	switch (peer_public_state(&engine->worker, send->peer)) {
	case PEER_FREE:
	case PEER_DOWN:
		error_text_set("peer %" PRIx64 " is gone", send->peer);
		return WIMM_E_PEER_LOST;
	default:
		break;
	}
	c = (struct submit_common){ send->flags, send->deadline_us, on_done, 0 };
	entered = submit_enter(engine, send->flags);
	st = submit_get(engine, OP_SEND, &c, &op);
	if (st == WIMM_OK)
		st = send_message(&engine->worker, op, send, out_op);
	submit_leave(engine, entered);
	return st;
}
