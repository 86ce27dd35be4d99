/* SPDX-License-Identifier: Apache-2.0 */
/* Full queues are back-pressure, never loss (contract C8). */
#include "contract/fixture.h"

#include "base/config.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static struct node *narrow_open(uint64_t bytes, uint32_t max_ops)
{
	struct wimm_engine_opts o = node_opts();

	o.max_ops = max_ops;
	return node_open_with(&o, bytes);
}

struct counts {
	uint32_t done, failed;
};

static void on_counted(void *context, const struct wimm_done *done)
{
	struct counts *c = context;

	gate_lock();
	c->done += done->status == WIMM_OK;
	c->failed += done->status != WIMM_OK;
	gate_unlock();
}

struct flood {
	struct node *a;
	struct wimm_remote_mr *to;
	struct counts *counts;
	uint32_t thread, writes, flags, again, refused;
};

static void *flood(void *arg)
{
	struct flood *f = arg;
	struct wimm_on_done done = { .fn = on_counted, .context = f->counts };

	for (uint32_t i = 0; i < f->writes; i++) {
		struct wimm_write w = single(f->a, f->to, f->thread * 256, f->thread * 256, 256);
		wimm_status st;

		w.flags = WIMM_IMM | f->flags;
		w.imm = f->thread;
		while ((st = wimm_submit_single_write(f->a->engine, &w, &done, NULL)) ==
		       WIMM_AGAIN) {
			f->again++;
			drive();
		}
		f->refused += st != WIMM_OK;
	}
	return NULL;
}

static void flood_from_threads(uint32_t flags)
{
	enum { THREADS = 4 };
	struct node *a = narrow_open(1024, 16), *b = narrow_open(1024, 16);
	struct flood *f = case_memory(THREADS * sizeof(*f));
	struct counts *counts = case_memory(sizeof(*counts));
	uint32_t each = 250 * test_scale() > 2500 ? 2500 : 250 * test_scale(), again = 0;
	struct wimm_remote_mr *to = remote_of(a, b);
	pthread_t thread[THREADS];

	fill(a->mem, 1024, 22);
	for (uint32_t i = 0; i < THREADS; i++) {
		f[i] = (struct flood){ a, to, counts, i, each, flags, 0, 0 };
		if (cfg.driven)
			flood(&f[i]);
		else
			assert_ok(pthread_create(&thread[i], NULL, flood, &f[i]));
	}
	for (uint32_t i = 0; i < THREADS && !cfg.driven; i++)
		pthread_join(thread[i], NULL);
	for (uint32_t i = 0; i < THREADS; i++) {
		imm_reaches(b, i, each);
		assert_int_equal(f[i].refused, 0);
		again += f[i].again;
	}
	while (stats_of(a).ops_open != 0)
		drive();
	drive_rounds(5);
	assert_int_equal(counts->failed, 0);
	assert_int_equal(stats_of(a).ops_done, THREADS * each);
	assert_true(holds(b->mem, 1024, 22));
	if ((flags & WIMM_BLOCK) == 0)
		assert_true(again != 0 && stats_of(a).again >= again);
	else if (!cfg.driven)
		assert_int_equal(again, 0);
}

/* Goal: far more writes than there is room for, from four threads: each is refused with AGAIN or
 * done, none is lost. */
static void full_queue_case_22_says_again_and_loses_nothing(void **state)
{
	(void)state;
	flood_from_threads(0);
}

/* Goal: the same with submissions that wait for room. */
static void full_queue_case_22_blocks_when_asked_to(void **state)
{
	(void)state;
	flood_from_threads(WIMM_BLOCK);
}

/* Fill a's operations with expectations that never fire. */
static uint32_t occupy(struct node *a, struct result **r, uint32_t max)
{
	uint32_t n = 0;

	while (n < max) {
		struct result *one = result_new();
		struct wimm_on_done done = to_result(one);

		if (wimm_expect_imm_count(a->engine, 1000, 1, NULL, &done, &one->id) != WIMM_OK)
			break;
		one->accepted = true;
		r[n++] = one;
	}
	return n;
}

/* Goal: every kind of submission says AGAIN when there is no room, and works once there is. */
static void every_submission_says_again_when_there_is_no_room(void **state)
{
	struct node *a = narrow_open(64, 16), *b = node_open(64);
	struct wimm_remote_mr *to = remote_of(a, b);
	struct wimm_write w = single(a, to, 0, 0, 8);
	static const uint32_t index[] = { 0 };
	struct wimm_paged_writes p = WIMM_PAGED_WRITES_INIT;
	struct wimm_scatter_entry entry = { to, 0, 0, 8 };
	struct wimm_scatter s = WIMM_SCATTER_INIT;
	struct wimm_barrier_args args = WIMM_BARRIER_ARGS_INIT;
	const struct wimm_remote_mr *targets[] = { to };
	struct wimm_send m = WIMM_SEND_INIT;
	uint8_t bytes[8];
	struct wimm_recv_buffer buffer = { bytes, 8 };
	struct result *r[16];
	uint64_t again;

	(void)state;
	result_ok(submit_write(a, &w));
	p.src = s.src = a->mr;
	p.dst = to;
	p.src_pages = p.dst_pages = (struct wimm_pages){ index, 1, 8, 0 };
	p.page_len_bytes = 8;
	s.entries = &entry;
	s.count = 1;
	args.dst = targets;
	args.count = 1;
	m.peer = wimm_remote_mr_peer(to);
	assert_int_equal(occupy(a, r, 16), 16);
	again = stats_of(a).again;
	for (int i = 0; i < 2; i++) {
		assert_int_equal(wimm_submit_single_write(a->engine, &w, NULL, NULL), WIMM_AGAIN);
		assert_int_equal(wimm_submit_paged_writes(a->engine, &p, NULL, NULL), WIMM_AGAIN);
		assert_int_equal(wimm_submit_scatter(a->engine, &s, NULL, NULL), WIMM_AGAIN);
		assert_int_equal(wimm_submit_barrier(a->engine, &args, NULL, NULL), WIMM_AGAIN);
		assert_int_equal(wimm_submit_send(a->engine, &m, NULL, NULL), WIMM_AGAIN);
		assert_int_equal(
			wimm_submit_recvs(a->engine, &buffer, 1, (wimm_recv_fn)abort, NULL, NULL),
			WIMM_AGAIN);
		assert_int_equal(wimm_expect_imm_count(a->engine, 1, 1, NULL, NULL, NULL),
		                 WIMM_AGAIN);
		assert_int_equal(wimm_retire_imm(a->engine, 1, NULL, NULL), WIMM_AGAIN);
	}
	assert_int_equal(stats_of(a).again, again + 16);
	assert_ok(wimm_cancel(a->engine, r[7]->id));
	result_is(r[7], WIMM_E_CANCELLED);
	result_ok(submit_write(a, &w));
	assert_int_equal(imm_now(b, 0), 0); /* none of the refused barriers was told */
}

struct blocked {
	struct node *a;
	struct wimm_remote_mr *to;
	wimm_status st;
	bool returned;
};

static void *block(void *arg)
{
	struct blocked *b = arg;
	struct wimm_write w = single(b->a, b->to, 0, 0, 8);
	wimm_status st;

	w.flags = WIMM_BLOCK;
	st = wimm_submit_single_write(b->a->engine, &w, NULL, NULL);
	gate_lock();
	b->st = st;
	b->returned = true;
	gate_unlock();
	return NULL;
}

/* Goal: close ends a submission that waits for room, with E_CLOSED. */
static void blocked_submission_ends_when_the_engine_closes(void **state)
{
	(void)state;
	for (int i = 0; i < 4; i++) {
		struct node *a = narrow_open(64, 16), *b = node_open(64);
		struct wimm_remote_mr *to = remote_of(a, b);
		struct wimm_write w = single(a, to, 0, 0, 8);
		struct blocked *t = case_memory(4 * sizeof(*t));
		struct result *r[16];
		pthread_t thread[4];

		result_ok(submit_write(a, &w));
		(void)occupy(a, r, 16);
		for (int k = 0; k < 4; k++) {
			t[k] = (struct blocked){ a, to, WIMM_OK, false };
			assert_ok(pthread_create(&thread[k], NULL, block, &t[k]));
		}
		while (blocked_submitters(a) < 4)
			drive();
		node_close(a);
		for (int k = 0; k < 4; k++) {
			pthread_join(thread[k], NULL);
			assert_status(t[k].st, WIMM_E_CLOSED);
		}
	}
}

static struct wimm_paged_writes many_pages(struct node *a, struct wimm_remote_mr *to,
                                           const uint32_t *indices, uint64_t count)
{
	struct wimm_paged_writes p = WIMM_PAGED_WRITES_INIT;

	p.src = a->mr;
	p.dst = to;
	p.src_pages = p.dst_pages = (struct wimm_pages){ indices, count, 1, 0 };
	p.page_len_bytes = 1;
	return p;
}

/* Goal: copied index arrays count against their budget: beyond it the call says AGAIN, or waits
 * when it was asked to; one that can never fit is refused. */
static void index_arrays_beyond_their_budget_wait(void **state)
{
	enum { PAGES = 4096, BUDGET = 1 << 16 };
	struct node *a, *b;
	struct wimm_remote_mr *to;
	struct wimm_paged_writes p;
	uint32_t *indices = case_memory((2 * PAGES + 1) * sizeof(*indices));
	struct counts *counts = case_memory(sizeof(*counts));
	struct wimm_on_done done = { .fn = on_counted, .context = counts };
	uint32_t accepted = 0, again = 0;

	(void)state;
	assert_ok(config_set("index_bytes_limit", "64K"));
	a = node_open(2 * PAGES + 1);
	b = node_open(2 * PAGES + 1);
	config_reload();
	to = remote_of(a, b);
	for (uint32_t i = 0; i < 2 * PAGES + 1; i++)
		indices[i] = i;
	p = many_pages(a, to, indices, 2 * PAGES + 1);
	assert_refused(wimm_submit_paged_writes(a->engine, &p, NULL, NULL), WIMM_E_LIMIT,
	               "index_bytes_limit");
	p = many_pages(a, to, indices, PAGES);
	p.flags = WIMM_IMM | WIMM_IMM_ONCE;
	while (accepted < 20) {
		wimm_status st = wimm_submit_paged_writes(a->engine, &p, &done, NULL);

		assert_true(stats_of(a).index_bytes <= BUDGET);
		if (st == WIMM_AGAIN) {
			again++;
			drive();
			continue;
		}
		assert_ok(st);
		accepted++;
	}
	imm_reaches(b, 0, 20);
	p.flags |= WIMM_BLOCK;
	p.imm = 1;
	for (accepted = 0; accepted < 20;) {
		wimm_status st = wimm_submit_paged_writes(a->engine, &p, &done, NULL);

		assert_true(st == WIMM_OK || (st == WIMM_AGAIN && cfg.driven));
		accepted += st == WIMM_OK;
		if (st == WIMM_AGAIN)
			drive();
	}
	imm_reaches(b, 1, 20);
	while (stats_of(a).ops_open != 0)
		drive();
	assert_int_equal(stats_of(a).index_bytes, 0);
	assert_int_equal(counts->failed, 0);
	assert_true(again != 0);
}

/* Goal: a peer that does not answer delays only its own writes. */
static void stalled_peer_delays_nobody_else(void **state)
{
	struct wimm_engine_opts opts = node_opts();
	struct node *a = node_open(1 << 20), *b = node_open(1 << 20), *c;
	struct wimm_remote_mr *to_b, *to_c;
	struct result *stalled[400];

	(void)state;
	/* Driven by a caller who does not drive it: it has a session but takes nothing. */
	opts.progress = WIMM_PROGRESS_CALLER;
	c = node_open_with(&opts, 1 << 20);
	to_b = remote_of(a, b);
	to_c = remote_of(a, c);
	{
		struct result *r = write_imm(a, to_c, 0, 0, 8, 1);

		while (!result_there(r)) {
			assert_ok(wimm_progress(c->engine, NULL));
			drive();
		}
		result_ok(r);
	}
	for (int i = 0; i < 400; i++)
		stalled[i] = write_imm(a, to_c, 0, 0, 1 << 16, 2);
	for (int i = 0; i < 400; i++)
		result_ok(write_imm(a, to_b, 0, 0, 8, 3));
	imm_reaches(b, 3, 400);
	if (strcmp(cfg.provider, "sim") != 0) /* whose NICs take bytes without their program */
		assert_false(result_there(stalled[399]));
	while (!result_there(stalled[399])) {
		assert_ok(wimm_progress(c->engine, NULL));
		drive();
	}
	for (int i = 0; i < 400; i++) {
		while (!result_there(stalled[i])) {
			assert_ok(wimm_progress(c->engine, NULL));
			drive();
		}
		result_ok(stalled[i]);
	}
	assert_ok(wimm_progress(c->engine, NULL));
	imm_reaches(c, 2, 400);
}

/* Goal: pending work has its turn however many new requests come. */
static void pending_pages_finish_under_a_stream_of_new_writes(void **state)
{
	enum { PAGES = 5000 };
	struct node *a = node_open(PAGES), *b = node_open(PAGES);
	struct wimm_remote_mr *to = remote_of(a, b);
	uint32_t *indices = case_memory(PAGES * sizeof(*indices));
	struct counts *counts = case_memory(sizeof(*counts));
	struct wimm_on_done done = { .fn = on_counted, .context = counts };
	struct wimm_write w = single(a, to, 0, 0, 1);
	struct wimm_paged_writes p;
	struct result *pages;
	uint64_t new_ones = 0;

	(void)state;
	for (uint32_t i = 0; i < PAGES; i++)
		indices[i] = i;
	p = many_pages(a, to, indices, PAGES);
	pages = submit_pages(a, &p);
	while (!result_there(pages)) {
		wimm_status st = wimm_submit_single_write(a->engine, &w, &done, NULL);

		assert_true(st == WIMM_OK || st == WIMM_AGAIN);
		new_ones += st == WIMM_OK;
		if (st == WIMM_AGAIN || cfg.driven)
			drive();
		assert_true(new_ones < 1000000);
	}
	result_ok(pages);
}

static const struct contract_case cases[] = {
	CASE(full_queue_case_22_says_again_and_loses_nothing),
	CASE(full_queue_case_22_blocks_when_asked_to),
	CASE(every_submission_says_again_when_there_is_no_room),
	CASE_ONLY(blocked_submission_ends_when_the_engine_closes, ONLY_THREADS),
	CASE(index_arrays_beyond_their_budget_wait),
	CASE_ONLY(stalled_peer_delays_nobody_else, ONLY_THREADS),
	CASE(pending_pages_finish_under_a_stream_of_new_writes),
};
GROUP(pressure, cases);
