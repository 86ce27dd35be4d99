/* SPDX-License-Identifier: Apache-2.0 */
/* What callbacks may do, and what they never hold up (contract C5). */
#include "contract/fixture.h"

#include <stdlib.h>
#include <string.h>

struct chain {
	struct node *a;
	struct wimm_write w;
	uint32_t left, failed;
	uintptr_t low, high; /* where the callbacks' frames lay */
};

static void chain_next(void *context, const struct wimm_done *done)
{
	struct chain *c = context;
	struct wimm_on_done again = { .fn = chain_next, .context = c };
	uintptr_t here = (uintptr_t)__builtin_frame_address(0);

	gate_lock();
	c->low = here < c->low ? here : c->low;
	c->high = here > c->high ? here : c->high;
	c->failed += done->status != WIMM_OK;
	c->left--;
	gate_unlock();
	if (c->left != 0 &&
	    wimm_submit_single_write(c->a->engine, &c->w, &again, NULL) != WIMM_OK) {
		gate_lock();
		c->failed++;
		c->left = 0;
		gate_unlock();
	}
}

static bool chain_ended(void *arg)
{
	struct chain *c = arg;
	bool yes;

	gate_lock();
	yes = c->left == 0;
	gate_unlock();
	return yes;
}

/* Goal: 10,000 writes, each submitted by the callback of the one before: the stack stays flat. */
static void chain_of_callbacks_case_25_keeps_the_stack_flat(void **state)
{
	struct node *a = node_open(64), *b = node_open(64);
	struct chain *c = case_memory(sizeof(*c));
	struct wimm_on_done first = { .fn = chain_next, .context = c };

	(void)state;
	*c = (struct chain){ .a = a, .left = 1000, .low = UINTPTR_MAX };
	if (test_scale() >= 10)
		c->left = 10000;
	c->w = single(a, remote_of(a, b), 0, 0, 8);
	c->w.flags = WIMM_IMM;
	c->w.imm = 25;
	result_ok(write_imm(a, c->w.dst, 0, 0, 8, 25));
	{
		uint32_t all = c->left + 1;

		assert_ok(wimm_submit_single_write(a->engine, &c->w, &first, NULL));
		assert_wait(chain_ended, c);
		assert_int_equal(c->failed, 0);
		imm_reaches(b, 25, all);
	}
	assert_true(c->high - c->low < 4096);
}

struct echo {
	struct node *n;
	uint8_t bytes[4][64];
	uint32_t received, refused;
	bool replies;
};

static void echo_received(void *context, const struct wimm_received *m)
{
	struct echo *e = context;
	struct wimm_send s = WIMM_SEND_INIT;
	bool refused = false;

	if (m->status != WIMM_OK)
		return;
	s.peer = m->peer;
	s.data = m->addr;
	s.len_bytes = m->len_bytes;
	if (e->replies)
		refused = wimm_submit_send(e->n->engine, &s, NULL, NULL) != WIMM_OK;
	gate_lock();
	e->received++;
	e->refused += refused;
	gate_unlock();
}

static struct echo *echo_open(struct node *n, bool replies)
{
	struct echo *e = case_memory(sizeof(*e));
	struct wimm_recv_buffer buffers[4];

	e->n = n;
	e->replies = replies;
	for (int i = 0; i < 4; i++)
		buffers[i] = (struct wimm_recv_buffer){ e->bytes[i], sizeof(e->bytes[i]) };
	assert_ok(wimm_submit_recvs(n->engine, buffers, 4, echo_received, e, NULL));
	return e;
}

static bool echoed_50(void *arg)
{
	struct echo *e = arg;
	bool yes;

	gate_lock();
	yes = e->received >= 50;
	gate_unlock();
	return yes;
}

/* Goal: a receive callback sends its reply. */
static void receive_callback_case_25_sends_a_reply(void **state)
{
	struct node *a = node_open(64), *b = node_open(64);
	struct echo *there = echo_open(b, true), *back = echo_open(a, false);
	wimm_peer p = peer_of(a, b);

	(void)state;
	for (int i = 0; i < 50; i++) {
		struct wimm_send s = WIMM_SEND_INIT;
		wimm_status st;

		s.peer = p;
		s.data = &i;
		s.len_bytes = sizeof(i);
		while ((st = wimm_submit_send(a->engine, &s, NULL, NULL)) == WIMM_AGAIN)
			drive();
		assert_ok(st);
	}
	assert_wait(echoed_50, there);
	assert_wait(echoed_50, back);
	assert_int_equal(there->refused, 0);
	assert_int_equal(back->received, 50);
}

/* Everything that is called from inside one callback. */
struct everything {
	struct node *a, *b;
	struct wimm_remote_mr *to;
	struct wimm_mr *mr; /* to be deregistered */
	wimm_status close, progress, write, expect, send, recvs, retire, cancel, poll, forget,
		dereg, reg, add_peer, remote, watcher, stats, group, last_error;
	uint8_t bytes[64];
	bool ran, late;
	uint32_t settled, accepted; /* of the operations submitted inside */
};

static void on_inner(void *context, const struct wimm_done *done)
{
	struct everything *e = context;

	(void)done;
	gate_lock();
	e->settled++;
	gate_unlock();
}

static void no_watch(void *context, uint64_t old_value, uint64_t new_value)
{
	(void)context;
	(void)old_value;
	(void)new_value;
}

static void on_buffer(void *context, const struct wimm_received *m)
{
	struct everything *e = context;

	if (m->status == WIMM_OK)
		return;
	gate_lock();
	e->settled++;
	gate_unlock();
}

static void call_everything(void *context, const struct wimm_done *done)
{
	struct everything *e = context;
	struct wimm_engine *engine = e->a->engine, *handle = engine;
	struct wimm_on_done inner = { .fn = on_inner, .context = e };
	struct wimm_engine_stats stats = WIMM_ENGINE_STATS_INIT;
	struct wimm_recv_buffer buffer = { e->bytes, sizeof(e->bytes) };
	struct wimm_write w = single(e->a, e->to, 0, 0, 8);
	struct wimm_send s = WIMM_SEND_INIT;
	struct wimm_uvm_watcher *watcher;
	struct wimm_error_info error;
	struct wimm_peer_group *group;
	struct wimm_remote_mr *remote;
	struct wimm_mr *mr;
	wimm_peer peer = wimm_remote_mr_peer(e->to);
	const wimm_status *settling[] = { &e->write, &e->expect, &e->send,
		                          &e->recvs, &e->retire, &e->dereg };
	wimm_op op = 0;
	uint64_t count;

	(void)done;
	w.flags = WIMM_IMM | WIMM_BLOCK; /* in a callback BLOCK does not block */
	w.imm = 5;
	s.peer = peer;
	e->close = wimm_engine_close(&handle);
	e->progress = wimm_progress(engine, NULL);
	e->write = wimm_submit_single_write(engine, &w, &inner, NULL);
	e->expect = wimm_expect_imm_count(engine, 77, 1, NULL, &inner, &op);
	e->cancel = wimm_cancel(engine, op);
	e->send = wimm_submit_send(engine, &s, &inner, &op);
	(void)(wimm_cancel(engine, op) == WIMM_OK);
	e->recvs = wimm_submit_recvs(engine, &buffer, 1, on_buffer, e, &op);
	(void)(wimm_cancel(engine, op) == WIMM_OK);
	e->retire = wimm_retire_imm(engine, 99, &inner, NULL);
	e->poll = wimm_poll_imm(engine, 1, &count);
	e->forget = wimm_forget_imm(engine, 1, NULL);
	e->dereg = wimm_dereg_mr(engine, e->mr, &inner);
	e->reg = wimm_reg_mr(engine, e->bytes, sizeof(e->bytes), NULL, &mr);
	e->add_peer = wimm_add_peer(engine, &e->b->addr, NULL, &peer);
	e->remote = wimm_open_remote_mr(engine, &e->b->desc, &remote);
	if (e->remote == WIMM_OK)
		e->remote = wimm_close_remote_mr(engine, remote);
	e->watcher = wimm_alloc_uvm_watcher(engine, no_watch, NULL, &watcher);
	if (e->watcher == WIMM_OK) {
		(void)wimm_uvm_watcher_add(watcher, 1);
		e->watcher = wimm_free_uvm_watcher(watcher);
	}
	e->stats = wimm_engine_get_stats(engine, &stats);
	e->group = wimm_add_peer_group(engine, &peer, 1, &group);
	if (e->group == WIMM_OK)
		e->group = wimm_remove_peer_group(engine, group);
	e->last_error = wimm_peer_last_error(engine, peer, &error);
	gate_lock();
	for (size_t i = 0; i < sizeof(settling) / sizeof(settling[0]); i++)
		e->accepted += *settling[i] == WIMM_OK;
	e->ran = true;
	gate_unlock();
}

static bool everything_settled(void *arg)
{
	struct everything *e = arg;
	bool yes;

	gate_lock();
	yes = e->ran && e->settled == e->accepted;
	gate_unlock();
	return yes;
}

static void everything_init(struct everything *e, struct node *a, struct node *b)
{
	e->b = b;
	e->to = remote_of(a, b);
	assert_ok(wimm_reg_mr(a->engine, e->bytes, sizeof(e->bytes), NULL, &e->mr));
	gate_lock();
	e->a = a;
	gate_unlock();
}

/* Goal: a callback may call everything but close, and nothing of it blocks. */
static void callback_may_call_everything_but_close(void **state)
{
	struct node *a = node_open(64), *b = node_open(64);
	struct everything *e = case_memory(sizeof(*e));
	struct wimm_on_done done = { .fn = call_everything, .context = e };

	(void)state;
	everything_init(e, a, b);
	result_ok(write_imm(a, e->to, 0, 0, 8, 1));
	assert_ok(wimm_expect_imm_count(a->engine, 1, 1, NULL, &done, NULL));
	result_ok(write_imm(b, remote_of(b, a), 0, 0, 8, 1));
	assert_wait(everything_settled, e);
	assert_status(e->close, WIMM_E_IN_CALLBACK);
	assert_status(e->progress, cfg.driven ? WIMM_E_IN_CALLBACK : WIMM_E_INVAL);
	assert_status(e->write, WIMM_OK);
	assert_status(e->expect, WIMM_OK);
	assert_status(e->cancel, WIMM_OK);
	assert_status(e->send, WIMM_OK);
	assert_status(e->recvs, WIMM_OK);
	assert_status(e->retire, WIMM_OK);
	assert_status(e->poll, WIMM_OK);
	assert_status(e->forget, WIMM_OK);
	assert_status(e->dereg, WIMM_OK);
	assert_status(e->reg, WIMM_OK);
	assert_status(e->add_peer, WIMM_OK);
	assert_status(e->remote, WIMM_OK);
	assert_status(e->watcher, WIMM_OK);
	assert_status(e->stats, WIMM_OK);
	assert_status(e->group, WIMM_OK);
	assert_status(e->last_error, WIMM_E_NOT_FOUND);
	imm_reaches(b, 5, 1);
}

static void on_late(void *context, const struct wimm_done *done)
{
	(void)done;
	gate_lock();
	((struct everything *)context)->late = true;
	gate_unlock();
}

static bool is_late(void *arg)
{
	return ((struct everything *)arg)->late;
}

/* Calls when close has nothing left to do but to wait for this callback. */
static void on_peer_down(void *context, const struct wimm_peer_event *event)
{
	struct everything *e = context;
	struct wimm_on_done done = { .fn = on_late, .context = e };
	struct wimm_expect_opts opts = WIMM_EXPECT_OPTS_INIT;

	if (event->kind != WIMM_PEER_DOWN || e->a == NULL || e->ran)
		return;
	opts.deadline_us = 20000;
	if (!cfg.driven &&
	    wimm_expect_imm_count(e->b->engine, 999, 1, &opts, &done, NULL) == WIMM_OK)
		(void)gate_wait(is_late, e);
	call_everything(e, NULL);
}

/* Goal: the same while the engine closes, in the callback of an operation that close ends and in
 * the last peer event: every call returns, new work is refused with E_CLOSED, and what was accepted
 * all the same settles before close returns. */
static void callback_during_close_may_call_everything(void **state)
{
	unsigned rounds = 4 * test_scale();

	(void)state;
	for (unsigned i = 0; i < rounds; i++) {
		struct everything *e = case_memory(sizeof(*e));
		struct wimm_on_done done = { .fn = call_everything, .context = e };
		struct wimm_engine_opts opts = node_opts();
		struct node *a, *b = node_open(64);

		if (i % 2 != 0) {
			opts.on_peer_event = on_peer_down;
			opts.context = e;
		}
		a = node_open_with(&opts, 64);
		everything_init(e, a, b);
		result_ok(write_imm(a, e->to, 0, 0, 8, 1));
		if (i % 2 == 0)
			assert_ok(wimm_expect_imm_count(a->engine, 2, 1, NULL, &done, NULL));
		node_close(a);
		assert_true(e->ran);
		assert_int_equal(e->settled, e->accepted);
		assert_status(e->close, WIMM_E_IN_CALLBACK);
		assert_true(e->write == WIMM_E_CLOSED || e->write == WIMM_E_PEER_LOST);
		assert_true(e->send == WIMM_E_CLOSED || e->send == WIMM_E_PEER_LOST);
		assert_status(e->expect, WIMM_E_CLOSED);
		assert_status(e->recvs, WIMM_E_CLOSED);
		assert_status(e->retire, WIMM_E_CLOSED);
		assert_status(e->dereg, WIMM_OK); /* it ends something */
		assert_status(e->reg, WIMM_E_CLOSED);
		assert_status(e->watcher, WIMM_E_CLOSED);
		node_close(b);
	}
}

struct slow {
	bool go, inside, ended;
};

static bool slow_may_go(void *arg)
{
	return ((struct slow *)arg)->go;
}

static void be_slow(void *context, const struct wimm_done *done)
{
	struct slow *s = context;

	(void)done;
	gate_lock();
	s->inside = true;
	gate_unlock();
	(void)gate_wait(slow_may_go, s);
	gate_lock();
	s->ended = true;
	gate_unlock();
}

static bool slow_inside(void *arg)
{
	bool yes;

	gate_lock();
	yes = ((struct slow *)arg)->inside;
	gate_unlock();
	return yes;
}

struct flag_wait {
	uint64_t flag;
};

static bool flag_is_set(void *arg)
{
	return wimm_flag_load(&((struct flag_wait *)arg)->flag) != 0;
}

/* Goal: while a callback is busy the engine goes on: NICs are polled, flags are set, immediates are
 * counted, the peer hears heartbeats. */
static void slow_callback_stops_no_flag_and_no_heartbeat(void **state)
{
	struct wimm_engine_opts opts = node_opts();
	struct node *a, *b;
	struct slow *s = case_memory(sizeof(*s));
	struct wimm_on_done slow = { .fn = be_slow, .context = s };
	struct flag_wait *w = case_memory(sizeof(*w));
	struct wimm_on_done flag = { .flag = &w->flag };
	struct wimm_remote_mr *to;
	struct wimm_write write;

	(void)state;
	opts.heartbeat_ms = 5;
	opts.peer_timeout_ms = 800; /* a worker of a busy machine runs within that */
	a = node_open_with(&opts, 64);
	b = node_open_with(&opts, 64);
	to = remote_of(a, b);
	write = single(a, to, 0, 0, 8);
	write.flags = WIMM_IMM;
	assert_ok(wimm_submit_single_write(a->engine, &write, &slow, NULL));
	assert_wait(slow_inside, s);
	for (int i = 0; i < 100; i++) {
		w->flag = 0;
		assert_ok(wimm_submit_single_write(a->engine, &write, &flag, NULL));
		assert_wait(flag_is_set, w);
		assert_int_equal(w->flag, 1);
	}
	imm_reaches(b, 0, 101);
	/* Writes the other way are counted meanwhile too. */
	result_ok(write_imm(b, remote_of(b, a), 0, 0, 8, 7));
	imm_reaches(a, 7, 1);
	/* Longer than the silence that would mean death. */
	for (int i = 0; i < 120; i++) {
		struct wimm_expect_opts e = WIMM_EXPECT_OPTS_INIT;

		e.deadline_us = 10000;
		result_is(expect_with(b, 99, 1, &e), WIMM_E_TIMEOUT);
	}
	assert_int_equal(node_events(b, WIMM_PEER_DOWN), 0);
	assert_false(s->ended);
	gate_lock();
	s->go = true;
	gate_unlock();
}

/* Goal: callbacks of one engine never run two at a time. */
struct alone {
	uint32_t inside, worst, ran;
};

static void run_alone(void *context, const struct wimm_done *done)
{
	struct alone *a = context;

	(void)done;
	gate_lock();
	a->inside++;
	a->worst = a->inside > a->worst ? a->inside : a->worst;
	gate_unlock();
	gate_lock();
	a->inside--;
	a->ran++;
	gate_unlock();
}

static bool alone_ran_200(void *arg)
{
	bool yes;

	gate_lock();
	yes = ((struct alone *)arg)->ran == 200;
	gate_unlock();
	return yes;
}

static void callbacks_of_one_engine_run_one_at_a_time(void **state)
{
	struct node *a = node_open(64), *b = node_open(64);
	struct wimm_write w = single(a, remote_of(a, b), 0, 0, 8);
	struct alone *alone = case_memory(sizeof(*alone));
	struct wimm_on_done done = { .fn = run_alone, .context = alone };

	(void)state;
	for (int i = 0; i < 200; i++) {
		wimm_status st;

		while ((st = wimm_submit_single_write(a->engine, &w, &done, NULL)) == WIMM_AGAIN)
			drive();
		assert_ok(st);
	}
	assert_wait(alone_ran_200, alone);
	assert_int_equal(alone->worst, 1);
}

struct nested {
	struct node *outer, *inner;
	uint32_t ran;
	wimm_status progressed, waited, closed;
};

static void call_outer_again(void *context, const struct wimm_done *done)
{
	struct nested *n = context;
	struct wimm_engine *again = n->outer->engine;

	(void)done;
	n->progressed = wimm_progress(again, NULL);
	n->waited = wimm_progress_wait(again, 1);
	n->closed = wimm_engine_close(&again);
	n->ran++;
}

static void drive_inner(void *context, const struct wimm_done *done)
{
	struct nested *n = context;
	(void)done;
	for (uint64_t end_ms = wait_end_ms(); n->ran == 0; wait_more(end_ms, "the inner callback"))
		assert_ok(wimm_progress(n->inner->engine, NULL));
	n->ran++;
}

/* Goal: a callback of one engine drives another; in a callback of that the first is still inside
 * its own, and is not closed under it. */
static void callback_within_another_engines_callback_is_inside_both(void **state)
{
	struct wimm_engine_opts o = node_opts();
	struct nested n = { 0 };
	struct wimm_on_done outer = { .fn = drive_inner, .context = &n };
	struct wimm_on_done inner = { .fn = call_outer_again, .context = &n };
	struct wimm_expect_opts soon = WIMM_EXPECT_OPTS_INIT;

	(void)state;
	n.outer = node_open_apart(&o, 0);
	n.inner = node_open_apart(&o, 0);
	soon.deadline_us = 1;
	assert_ok(wimm_expect_imm_count(n.inner->engine, 1, 1, &soon, &inner, NULL));
	assert_ok(wimm_expect_imm_count(n.outer->engine, 1, 1, &soon, &outer, NULL));
	for (uint64_t end_ms = wait_end_ms(); n.ran < 2; wait_more(end_ms, "both callbacks"))
		assert_ok(wimm_progress(n.outer->engine, NULL));
	assert_status(n.progressed, WIMM_E_IN_CALLBACK);
	assert_status(n.waited, WIMM_E_IN_CALLBACK);
	assert_status(n.closed, WIMM_E_IN_CALLBACK);
}

static const struct contract_case cases[] = {
	CASE(chain_of_callbacks_case_25_keeps_the_stack_flat),
	CASE(receive_callback_case_25_sends_a_reply),
	CASE(callback_may_call_everything_but_close),
	CASE(callback_during_close_may_call_everything),
	CASE_ONLY(slow_callback_stops_no_flag_and_no_heartbeat, ONLY_THREADS),
	CASE(callbacks_of_one_engine_run_one_at_a_time),
	CASE_ONLY(callback_within_another_engines_callback_is_inside_both, ONLY_DRIVEN),
};
GROUP(callback, cases);
