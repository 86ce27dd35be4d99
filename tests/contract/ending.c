/* SPDX-License-Identifier: Apache-2.0 */
/* Every accepted operation settles once, also by cancel, deadline and close (contract C3). */
#include "contract/fixture.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* A pool of receive buffers, counting how each comes back. */
struct pool {
	uint8_t bytes[16][64];
	uint32_t messages, cancelled, closed, other;
	wimm_op op;
};

static void on_receive(void *context, const struct wimm_received *m)
{
	struct pool *p = context;

	gate_lock();
	p->messages += m->status == WIMM_OK;
	p->cancelled += m->status == WIMM_E_CANCELLED;
	p->closed += m->status == WIMM_E_CLOSED;
	p->other +=
		m->status != WIMM_OK && m->status != WIMM_E_CANCELLED && m->status != WIMM_E_CLOSED;
	gate_unlock();
}

/* How many buffers a cancel has brought back. */
static uint32_t pool_back(const struct pool *p)
{
	uint32_t count;

	gate_lock();
	count = p->cancelled;
	gate_unlock();
	return count;
}

static struct pool *pool_open(struct node *n, uint32_t count)
{
	struct pool *p = case_memory(sizeof(*p));
	struct wimm_recv_buffer buffers[16];

	for (uint32_t i = 0; i < count; i++)
		buffers[i] = (struct wimm_recv_buffer){ p->bytes[i], sizeof(p->bytes[i]) };
	assert_ok(wimm_submit_recvs(n->engine, buffers, count, on_receive, p, &p->op));
	return p;
}

static struct result *say(struct node *from, wimm_peer to, uint64_t deadline_us)
{
	struct wimm_send s = WIMM_SEND_INIT;
	struct result *r = result_new();
	struct wimm_on_done done = to_result(r);

	s.peer = to;
	s.data = "message";
	s.len_bytes = 7;
	s.deadline_us = deadline_us;
	assert_ok(wimm_submit_send(from->engine, &s, &done, &r->id));
	r->accepted = true;
	return r;
}

static struct result *retire(struct node *n, uint32_t imm)
{
	struct result *r = result_new();
	struct wimm_on_done done = to_result(r);

	assert_ok(wimm_retire_imm(n->engine, imm, &done, &r->id));
	r->accepted = true;
	return r;
}

static void on_watch(void *context, uint64_t old_value, uint64_t new_value)
{
	(void)old_value;
	gate_lock();
	*(uint64_t *)context = new_value;
	gate_unlock();
}

static struct result *scatter_to(struct node *from, struct wimm_remote_mr *const *to,
                                 uint32_t count, uint32_t imm)
{
	struct wimm_scatter_entry entries[8];
	struct wimm_scatter s = WIMM_SCATTER_INIT;
	struct result *r = result_new();
	struct wimm_on_done done = to_result(r);
	wimm_status st;

	memset(entries, 0, sizeof(entries));
	for (uint32_t i = 0; i < count; i++) {
		entries[i].dst = to[i];
		entries[i].len_bytes = 64;
	}
	s.flags = WIMM_IMM;
	s.imm = imm;
	s.src = from->mr;
	s.entries = entries;
	s.count = count;
	while ((st = wimm_submit_scatter(from->engine, &s, &done, &r->id)) == WIMM_AGAIN)
		drive();
	assert_ok(st);
	r->accepted = true;
	return r;
}

/* Goal: close with everything open settles each operation once, in time, and frees all. */
static void close_case_23_with_everything_open_settles_each_once(void **state)
{
	unsigned rounds = test_scale() >= 10 ? 100 : 3;
	uint64_t seen = 0;

	(void)state;
	for (unsigned round = 0; round < rounds; round++) {
		struct node *a = node_open(1 << 20), *b = node_open(1 << 20), *c = node_open(64);
		struct wimm_remote_mr *to[2] = { remote_of(a, b), remote_of(a, c) };
		struct wimm_uvm_watcher *watcher;
		wimm_peer silent = wimm_remote_mr_peer(to[1]);
		struct pool *pool = pool_open(a, 4);
		struct result *r[640];
		uint32_t n = 0;

		for (uint32_t i = 0; i < 500; i++)
			r[n++] = write_imm(a, to[0], 0, 0, 1 + i * 37 % 4096, i);
		for (uint32_t i = 0; i < 4; i++)
			r[n++] = write_imm(a, to[0], 0, 0, 1 << 20, i);
		for (uint32_t i = 0; i < 10; i++)
			r[n++] = expect(a, i, 1 + i);
		for (uint32_t i = 0; i < 10; i++)
			r[n++] = say(a, silent, 0);
		for (uint32_t i = 0; i < 4; i++)
			r[n++] = scatter_to(a, to, 2, i);
		r[n++] = retire(a, 3);
		assert_ok(wimm_alloc_uvm_watcher(a->engine, on_watch, &seen, &watcher));
		(void)wimm_uvm_watcher_add(watcher, round + 1);
		node_close(a);
		for (uint32_t i = 0; i < n; i++) {
			assert_int_equal(r[i]->calls, 1);
			assert_true(r[i]->status == WIMM_OK || r[i]->status == WIMM_E_CLOSED ||
			            r[i]->status == WIMM_E_PEER_LOST);
		}
		assert_int_equal(pool->closed, 4);
		assert_int_equal(seen, round + 1);
		node_close(b);
		node_close(c);
	}
}

/* Goal: an engine that never connected closes; a closed handle closes again; NULL is refused. */
static void close_case_23_twice_and_without_peers_is_harmless(void **state)
{
	struct wimm_engine *none = NULL;
	struct wimm_engine_opts opts = node_opts();

	(void)state;
	for (int i = 0; i < 5; i++) {
		assert_ok(engine_open_here(&opts, &none));
		assert_ok(wimm_engine_close(&none));
		assert_null(none);
		assert_ok(wimm_engine_close(&none));
	}
	assert_invalid(wimm_engine_close(NULL));
}

/* Goal: close of the receiver in the middle of a stream: the sender's operations all settle, the
 * other peer's stream is whole. */
static void close_of_the_receiver_fails_its_writes_alone(void **state)
{
	struct node *a = node_open(1 << 18), *b = node_open(1 << 18), *c = node_open(1 << 18);
	struct wimm_remote_mr *to_b = remote_of(a, b), *to_c = remote_of(a, c);
	struct result *rb[300], *rc[300];
	uint32_t failed = 0;

	(void)state;
	for (uint32_t i = 0; i < 300; i++) {
		rb[i] = write_imm(a, to_b, 0, 0, 1 << 14, 1);
		rc[i] = write_imm(a, to_c, 0, 0, 1 << 10, 1);
		if (i == 20)
			result_ok(rb[0]);
	}
	node_close(b);
	for (uint32_t i = 0; i < 300; i++) {
		result_ok(rc[i]);
		result_wait(rb[i]);
		failed += rb[i]->status != WIMM_OK;
		assert_true(rb[i]->status == WIMM_OK || rb[i]->status == WIMM_E_PEER_LOST);
	}
	imm_reaches(c, 1, 300);
	(void)failed; /* a fast enough worker was done with all of them */
}

/* Goal: cancel ends each kind of operation once; what has settled cannot be cancelled. */
static void cancel_of_each_kind_settles_it_once(void **state)
{
	struct node *a = node_open(1 << 20), *b = node_open(1 << 20);
	struct wimm_remote_mr *to = remote_of(a, b);
	struct result *r[8];
	struct pool *pool = pool_open(a, 3);
	uint32_t n = 0;

	(void)state;
	result_ok(write_imm(a, to, 0, 0, 8, 1));
	r[n++] = expect(a, 5, 1);
	r[n++] = say(a, wimm_remote_mr_peer(to), 0);
	r[n++] = write_imm(a, to, 0, 0, 1 << 20, 2);
	r[n++] = write_imm(a, to, 0, 0, 0, 3);
	r[n++] = scatter_to(a, &to, 1, 4);
	for (uint32_t i = 0; i < n; i++) {
		wimm_status st = wimm_cancel(a->engine, r[i]->id);

		assert_true(st == WIMM_OK || st == WIMM_E_NOT_FOUND);
		if (st == WIMM_OK) /* asking twice changes nothing */
			assert_true(wimm_cancel(a->engine, r[i]->id) != WIMM_E_INVAL);
	}
	for (uint32_t i = 0; i < n; i++) {
		result_wait(r[i]);
		assert_true(r[i]->status == WIMM_OK || r[i]->status == WIMM_E_CANCELLED);
		assert_int_equal(wimm_cancel(a->engine, r[i]->id), WIMM_E_NOT_FOUND);
	}
	assert_int_equal(r[0]->status, WIMM_E_CANCELLED);
	assert_int_equal(r[1]->status, WIMM_E_CANCELLED);
	assert_ok(wimm_cancel(a->engine, pool->op));
	drive_until(pool_back(pool) >= 3);
	assert_int_equal(pool_back(pool), 3);
	assert_int_equal(wimm_cancel(a->engine, 0), WIMM_E_NOT_FOUND);
	assert_int_equal(wimm_cancel(a->engine, UINT64_MAX), WIMM_E_NOT_FOUND);
	/* The session is unharmed, and what was cancelled counts 0 or 1. */
	result_ok(write_imm(a, to, 0, 0, 8, 1));
	imm_reaches(b, 1, 2);
	for (uint32_t imm = 2; imm <= 4; imm++)
		assert_true(imm_now(b, imm) <= 1);
}

/* Goal: many writes, cancelled at every stage of their life: each settles once, "done" has counted
 * once, "cancelled" 0 or 1 times, and the bytes of those that follow are right. */
static void cancel_at_any_moment_counts_never_twice(void **state)
{
	struct node *a = node_open(1 << 20), *b = node_open(1 << 20);
	struct wimm_remote_mr *to = remote_of(a, b);
	unsigned rounds = 40 * test_scale();

	(void)state;
	for (unsigned round = 0; round < rounds; round++) {
		/* Alone, in a crowd; small, split over NICs, in pages. */
		uint64_t len = round % 3 == 0 ? 64 : round % 3 == 1 ? 5000 : 1 << 20;
		struct result *r[8];
		uint64_t done = 0;

		for (uint32_t i = 0; i < 8; i++)
			r[i] = write_imm(a, to, 0, 0, len, round);
		drive_rounds(round % 7);
		for (uint32_t i = 0; i < 8; i += 1 + round % 2)
			(void)(wimm_cancel(a->engine, r[i]->id) == WIMM_OK);
		for (uint32_t i = 0; i < 8; i++) {
			result_wait(r[i]);
			assert_true(r[i]->status == WIMM_OK || r[i]->status == WIMM_E_CANCELLED);
			done += r[i]->status == WIMM_OK;
		}
		if (done != 0)
			result_ok(expect(b, round, done));
	}
	/* All of it is behind this one on each path, or was never sent. */
	fill(a->mem, a->bytes, 77);
	for (uint32_t i = 0; i < 2 * cfg.nics; i++)
		result_ok(write_imm(a, to, 0, 0, 1 << 20, 1u << 30));
	imm_reaches(b, 1u << 30, 2 * cfg.nics);
	assert_true(holds(b->mem, b->bytes, 77));
	for (unsigned round = 0; round < rounds; round++)
		assert_true(imm_now(b, round) <= 8);
}

/* Goal: a split write that was cancelled half-way leaves nothing behind: many of them, then one
 * that is whole. */
static void cancel_of_split_writes_leaves_no_parts(void **state)
{
	struct node *a = node_open(2 << 20), *b = node_open(2 << 20);
	struct wimm_remote_mr *to = remote_of(a, b);
	unsigned rounds = 100 * test_scale();

	(void)state;
	for (unsigned i = 0; i < rounds; i++) {
		struct result *r = write_imm(a, to, 0, 0, 2 << 20, 1);

		drive_rounds(i % 5);
		(void)(wimm_cancel(a->engine, r->id) == WIMM_OK);
		result_wait(r);
	}
	fill(a->mem, a->bytes, 5);
	result_ok(write_imm(a, to, 0, 0, 2 << 20, 2));
	imm_reaches(b, 2, 1);
	assert_true(holds(b->mem, b->bytes, 5));
	assert_int_equal(node_events(b, WIMM_PEER_DOWN), 0);
}

/* Goal: each kind of operation ends at its deadline, with the peer named where there is one. */
static void deadline_of_each_kind_ends_it(void **state)
{
	struct node *a = node_open(64), *b = node_open(64);
	struct wimm_remote_mr *to = remote_of(a, b);
	struct wimm_expect_opts opts = WIMM_EXPECT_OPTS_INIT;
	struct result *r;

	(void)state;
	result_ok(write_imm(a, to, 0, 0, 8, 1));
	r = say(a, wimm_remote_mr_peer(to), 2000); /* nobody has a buffer for it */
	result_is(r, WIMM_E_TIMEOUT);
	assert_true(r->peer == wimm_remote_mr_peer(to));
	opts.deadline_us = 2000;
	result_is(expect_with(a, 9, 1, &opts), WIMM_E_TIMEOUT);
	/* A deadline that is not reached changes nothing. */
	{
		struct wimm_write w = single(a, to, 0, 0, 8);

		w.flags = WIMM_IMM;
		w.deadline_us = 60000000;
		result_ok(submit_write(a, &w));
	}
	imm_reaches(b, 0, 1);
}

/* Goal: 16 threads that submit, cancel and expect at once disturb nobody's operations. */
struct many {
	struct node *a, *b;
	struct wimm_remote_mr *to;
	uint32_t thread, writes, done, cancelled, failed;
};

static void on_many(void *context, const struct wimm_done *done)
{
	struct many *m = context;

	gate_lock();
	m->done += done->status == WIMM_OK;
	m->cancelled += done->status == WIMM_E_CANCELLED;
	m->failed += done->status != WIMM_OK && done->status != WIMM_E_CANCELLED;
	gate_unlock();
}

static void *submit_many(void *arg)
{
	struct many *m = arg;
	struct wimm_on_done done = { .fn = on_many, .context = m };
	struct wimm_write w = single(m->a, m->to, 0, 0, 128);
	uint32_t cancelled = 0;

	w.flags = WIMM_IMM | WIMM_BLOCK;
	w.imm = m->thread;
	for (uint32_t i = 0; i < m->writes; i++) {
		wimm_op op;

		if (wimm_submit_single_write(m->a->engine, &w, &done, &op) != WIMM_OK) {
			gate_lock();
			m->failed++;
			gate_unlock();
			continue;
		}
		if (i % 17 == 0)
			cancelled += wimm_cancel(m->a->engine, op) == WIMM_OK;
	}
	(void)cancelled;
	return NULL;
}

static bool many_settled(void *arg)
{
	struct many *m = arg;
	bool yes = true;

	gate_lock();
	for (int i = 0; i < 16; i++)
		yes = yes && m[i].done + m[i].cancelled + m[i].failed == m[i].writes;
	gate_unlock();
	return yes;
}

static void threads_16_submitting_at_once_lose_nothing(void **state)
{
	struct node *a = node_open(128), *b = node_open(128);
	struct many *m = case_memory(16 * sizeof(*m));
	struct wimm_remote_mr *to = remote_of(a, b);
	pthread_t thread[16];

	(void)state;
	for (uint32_t i = 0; i < 16; i++) {
		m[i] = (struct many){ a, b, to, i, 500 * test_scale(), 0, 0, 0 };
		assert_ok(pthread_create(&thread[i], NULL, submit_many, &m[i]));
	}
	for (int i = 0; i < 16; i++)
		pthread_join(thread[i], NULL);
	assert_wait(many_settled, m);
	for (uint32_t i = 0; i < 16; i++) {
		assert_int_equal(m[i].failed, 0);
		result_ok(expect(b, i, m[i].done));
		assert_true(imm_now(b, i) <= m[i].cancelled);
	}
}

static const struct contract_case cases[] = {
	CASE(close_case_23_with_everything_open_settles_each_once),
	CASE(close_case_23_twice_and_without_peers_is_harmless),
	CASE(close_of_the_receiver_fails_its_writes_alone),
	CASE(cancel_of_each_kind_settles_it_once),
	CASE(cancel_at_any_moment_counts_never_twice),
	CASE(cancel_of_split_writes_leaves_no_parts),
	CASE(deadline_of_each_kind_ends_it),
	CASE_ONLY(threads_16_submitting_at_once_lose_nothing, ONLY_THREADS),
};
GROUP(ending, cases);
