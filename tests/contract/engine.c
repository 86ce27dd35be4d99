/* SPDX-License-Identifier: Apache-2.0 */
/* The engine itself: statistics, results, events, the ways to make progress. */
#include "contract/fixture.h"

#include <poll.h>
#include <string.h>

/* Goal: the figures of the engine are exact once it is idle. */
static void statistics_are_exact_when_idle(void **state)
{
	static const uint32_t list[] = { 0, 1, 2 };
	struct node *a = node_open(4096), *b = node_open(4096);
	struct wimm_remote_mr *to = remote_of(a, b);
	struct wimm_paged_writes p = WIMM_PAGED_WRITES_INIT;
	struct wimm_engine_stats s;
	struct result *waits;

	(void)state;
	for (int i = 0; i < 10; i++)
		result_ok(write_imm(a, to, 0, 0, 100, 1));
	{
		struct wimm_write w = single(a, to, 0, 0, 50);

		result_ok(submit_write(a, &w));
	}
	p.flags = WIMM_IMM;
	p.imm = 1;
	p.src = a->mr;
	p.dst = to;
	p.src_pages = p.dst_pages = (struct wimm_pages){ list, 3, 10, 0 };
	p.page_len_bytes = 10;
	result_ok(submit_pages(a, &p));
	waits = expect(a, 5, 1);
	imm_reaches(b, 1, 13);
	drive_until(stats_of(a).expectations != 0); /* the worker has not seen it yet */
	s = stats_of(a);
	assert_int_equal(s.nics, cfg.nics);
	assert_int_equal(s.peers_up, 1);
	assert_int_equal(s.ops_submitted, 13);
	assert_int_equal(s.ops_done, 12);
	assert_int_equal(s.ops_failed, 0);
	assert_int_equal(s.ops_open, 1);
	assert_int_equal(s.expectations, 1);
	assert_int_equal(s.bytes_written, 10 * 100 + 50 + 30);
	assert_int_equal(s.writes_posted, 14);
	assert_int_equal(s.imms_sent, 13);
	assert_int_equal(s.imms_received, 0);
	assert_int_equal(s.pending_ops, 0);
	assert_int_equal(s.index_bytes, 0);
	assert_int_equal(s.regions, 1);
	assert_true(s.worker_steps != 0);
	assert_int_equal(stats_of(b).imms_received, 13);
	assert_int_equal(stats_of(b).bytes_written, 0);
	assert_ok(wimm_cancel(a->engine, waits->id));
	result_is(waits, WIMM_E_CANCELLED);
	s = stats_of(a);
	assert_int_equal(s.ops_failed, 1);
	assert_int_equal(s.ops_open, 0);
	assert_int_equal(s.expectations, 0);
}

/* Goal: a result tells what its operation was: id, peer, immediate, bytes, requests, times. */
static void result_tells_what_its_operation_was(void **state)
{
	static const uint32_t list[] = { 4, 1, 3, 0, 2 }; /* no neighbours */
	struct node *a = node_open(1 << 20), *b = node_open(1 << 20);
	struct wimm_remote_mr *to = remote_of(a, b);
	struct wimm_paged_writes p = WIMM_PAGED_WRITES_INIT;
	struct result *r = write_imm(a, to, 0, 0, 777, 42);

	(void)state;
	result_ok(r);
	assert_true(r->op == r->id && r->id != 0);
	assert_true(r->peer == wimm_remote_mr_peer(to));
	assert_int_equal(r->imm, 42);
	assert_int_equal(r->bytes, 777);
	assert_int_equal(r->descriptors, 1);
	assert_string_equal(r->text, "");
	p.src = a->mr;
	p.dst = to;
	p.src_pages = p.dst_pages = (struct wimm_pages){ list, 5, 1000, 0 };
	p.page_len_bytes = 1000;
	r = submit_pages(a, &p);
	result_ok(r);
	assert_int_equal(r->bytes, 5000);
	assert_int_equal(r->descriptors, 5);
	r = write_imm(a, to, 0, 0, 1 << 20, 43);
	result_ok(r);
	assert_int_equal(r->bytes, 1 << 20);
	assert_int_equal(r->descriptors, cfg.nics); /* split over them */
	imm_reaches(b, 43, 1);
}

/* Goal: the times of a result are those of its operation, also when the worker takes it in a turn
 * that began before it was submitted. */
static void result_times_are_none_or_short(void **state)
{
	enum { WRITES = 2000 };
	const uint64_t hour_ns = 3600 * UINT64_C(1000000000);
	struct node *a = node_open(64), *b = node_open(64);
	struct wimm_remote_mr *to = remote_of(a, b);
	struct result **r = case_memory(WRITES * sizeof(struct result *));

	(void)state;
	for (uint32_t i = 0; i < WRITES; i++)
		r[i] = write_imm(a, to, 0, 0, 8, 1);
	for (uint32_t i = 0; i < WRITES; i++) {
		result_ok(r[i]);
		assert_true(r[i]->post_ns < hour_ns && r[i]->transfer_ns < hour_ns);
	}
}

/* Goal: both sides hear that a peer is up and that it is gone, with its instance, once each. */
static void events_of_a_session_come_once_each(void **state)
{
	struct node *a = node_open(64), *b = node_open(64);
	wimm_peer p = peer_of(a, b);

	(void)state;
	drive_until(node_events(a, WIMM_PEER_UP) != 0 && node_events(b, WIMM_PEER_UP) != 0);
	assert_true(a->event[0].peer == p);
	assert_int_equal(a->event[0].cause, WIMM_OK);
	/* Bytes 4.. of an address are its instance (docs/WIRE.md). */
	assert_memory_equal(a->event[0].instance, b->addr.bytes + 4, WIMM_INSTANCE_BYTES);
	assert_memory_equal(b->event[0].instance, a->addr.bytes + 4, WIMM_INSTANCE_BYTES);
	assert_true(peer_of(b, a) == b->event[0].peer);
	node_close(b);
	drive_until(node_events(a, WIMM_PEER_DOWN) != 0);
	drive_rounds(20);
	assert_int_equal(a->event_count, 2);
	assert_int_equal(b->event_count, 2);
	assert_true(a->event[1].peer == p);
	assert_int_equal(b->event[1].cause, WIMM_E_CLOSED);
}

/* Goal: a caller that sleeps on the engine's descriptor, or in wimm_progress_wait(), is woken
 * by what arrives and by deadlines. */
static void driven_engine_wakes_the_caller_that_sleeps(void **state)
{
	struct wimm_engine_opts opts = node_opts();
	struct node *a, *b = node_open_apart(&opts, 64);
	struct wimm_remote_mr *to;
	struct result *r;

	(void)state;
	opts.progress = WIMM_PROGRESS_THREADS;
	a = node_open_with(&opts, 64);
	a->apart = true;
	to = remote_of(a, b);
	for (uint32_t i = 0; i < 100; i++) {
		struct pollfd fd = { .fd = wimm_progress_fd(b->engine), .events = POLLIN };
		uint32_t turns = 0;
		int busy = 1;

		assert_true(fd.fd >= 0);
		r = expect(b, i, 1);
		(void)write_imm(a, to, 0, 0, 8, i);
		while (!result_there(r)) {
			assert_ok(wimm_progress(b->engine, &busy));
			if (busy || result_there(r))
				continue;
			if (i % 2 == 0) {
				assert_ok(wimm_progress_wait(b->engine, 10000000));
			} else {
				assert_ok(wimm_progress_wait(b->engine, 0)); /* arms it */
				(void)poll(&fd, 1, 10);
			}
			assert_true(++turns < 100000);
		}
		result_ok(r);
	}
	/* Nothing arrives any more: the deadline ends the sleep. */
	{
		struct wimm_expect_opts e = WIMM_EXPECT_OPTS_INIT;

		e.deadline_us = 5000;
		r = expect_with(b, 5000, 1, &e);
		while (!result_there(r)) {
			assert_ok(wimm_progress(b->engine, NULL));
			assert_ok(wimm_progress_wait(b->engine, 20000000));
		}
		result_is(r, WIMM_E_TIMEOUT);
	}
	assert_invalid(wimm_progress(a->engine, NULL));
	assert_invalid(wimm_progress_wait(a->engine, 0));
	assert_int_equal(wimm_progress_fd(a->engine), -1);
}

/* Goal: a threads-driven engine with ten peers is silent when idle: the worker sleeps. What that
 * costs, and the first write afterwards, is measured by bench (idle). */
static void idle_engine_case_210_sleeps(void **state)
{
	enum { PEERS = 10 };
	struct wimm_engine_opts beating = node_opts();
	struct wimm_expect_opts opts = WIMM_EXPECT_OPTS_INIT;
	struct wimm_engine_stats before, after;
	struct node *a, *b = NULL;
	uint64_t sleeps;

	(void)state;
	beating.heartbeat_ms = 20;
	a = node_open_with(&beating, 64);
	for (int i = 0; i < PEERS; i++) {
		b = node_open_with(&beating, 64);
		connect_nodes(a, b);
	}
	before = stats_of(a);
	opts.deadline_us = 200000;
	result_is(expect_with(b, 1, 1, &opts), WIMM_E_TIMEOUT);
	after = stats_of(a);
	sleeps = after.worker_sleeps - before.worker_sleeps;
	assert_true(sleeps > 0);
	/* Some hundred turns fit between waking and sleeping, while it looks whether more comes; a
	 * worker that does not sleep takes a million in all. */
	assert_true(after.worker_steps - before.worker_steps < sleeps * 2000);
	result_ok(write_imm(a, remote_of(a, b), 0, 0, 64, 2));
}

static const struct contract_case cases[] = {
	CASE(statistics_are_exact_when_idle),
	CASE(result_tells_what_its_operation_was),
	CASE(result_times_are_none_or_short),
	CASE(events_of_a_session_come_once_each),
	CASE_ONLY(driven_engine_wakes_the_caller_that_sleeps, ONLY_DRIVEN),
	CASE_ONLY(idle_engine_case_210_sleeps, ONLY_THREADS),
};
GROUP(engine, cases);
