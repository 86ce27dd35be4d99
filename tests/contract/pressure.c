/* SPDX-License-Identifier: Apache-2.0 */
/* Full queues are back-pressure, never loss (contract C8). */
#include "contract/fixture.h"

#include "base/config.h"
#include "plat/clock.h"
#include "prov/sim/sim.h"

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
	uint32_t each = 100 * test_scale() > 2500 ? 2500 : 100 * test_scale(), again = 0;
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
	drive_until(stats_of(a).ops_open == 0);
	drive_rounds(5);
	gate_lock();
	assert_int_equal(counts->failed, 0);
	gate_unlock();
	assert_int_equal(stats_of(a).ops_done, THREADS * each);
	assert_true(holds(b->mem, 1024, 22));
	assert_true(stats_of(a).again >= again);
	if ((flags & WIMM_BLOCK) != 0 && !cfg.driven)
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

/* Fill all of a's operations with expectations that never fire. */
static void occupy(struct node *a, struct result **r, uint32_t max)
{
	for (uint32_t n = 0; n < max; n++)
		r[n] = expect(a, 1000, 1); /* an earlier one's slot may be on its way back */
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
	occupy(a, r, 16);
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
	drive_rounds(5);
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
		occupy(a, r, 16);
		for (int k = 0; k < 4; k++) {
			t[k] = (struct blocked){ a, to, WIMM_OK, false };
			assert_ok(pthread_create(&thread[k], NULL, block, &t[k]));
		}
		drive_until(blocked_submitters(a) >= 4);
		node_close(a);
		for (int k = 0; k < 4; k++) {
			pthread_join(thread[k], NULL);
			assert_status(t[k].st, WIMM_E_CLOSED);
		}
	}
}

/* Goal: a submission that waits for room gives up at its deadline, saying AGAIN: nothing was
 * accepted. */
static void blocked_submission_gives_up_at_its_deadline(void **state)
{
	static const uint32_t index[] = { 0 };
	struct node *a = narrow_open(64, 16), *b = node_open(64);
	struct wimm_remote_mr *to = remote_of(a, b);
	struct wimm_write w = single(a, to, 0, 0, 8);
	struct wimm_paged_writes p = WIMM_PAGED_WRITES_INIT;
	uint64_t submitted, begin;
	struct result *r[16];

	(void)state;
	p.src = a->mr;
	p.dst = to;
	p.src_pages = p.dst_pages = (struct wimm_pages){ index, 1, 8, 0 };
	p.page_len_bytes = 8;
	w.flags = p.flags = WIMM_BLOCK | WIMM_IMM;
	w.deadline_us = p.deadline_us = 20000;
	occupy(a, r, 16);
	submitted = stats_of(a).ops_submitted;
	begin = clock_now_ns();
	assert_int_equal(wimm_submit_single_write(a->engine, &w, NULL, NULL), WIMM_AGAIN);
	assert_int_equal(wimm_submit_paged_writes(a->engine, &p, NULL, NULL), WIMM_AGAIN);
	assert_true(clock_now_ns() - begin >= 2 * 20 * CLOCK_NS_PER_MS);
	assert_int_equal(stats_of(a).ops_submitted, submitted);
	assert_int_equal(stats_of(a).index_bytes, 0);
	assert_int_equal(blocked_submitters(a), 0);
	assert_ok(wimm_cancel(a->engine, r[0]->id));
	result_is(r[0], WIMM_E_CANCELLED);
	w.deadline_us = 0;
	result_ok(submit_write(a, &w));
	imm_reaches(b, 0, 1);
}

/* A submission that waits for room while its regions end. */
struct stale {
	struct node *a;
	struct wimm_mr *src;
	const struct wimm_remote_mr *dst;
	int kind; /* 0: single, 1: pages, 2: scatter */
	wimm_status st;
	struct result *result;
};

static void *submit_stale(void *arg)
{
	static const uint32_t index[] = { 2 };
	struct stale *s = arg;
	struct wimm_write w = WIMM_WRITE_INIT;
	struct wimm_paged_writes p = WIMM_PAGED_WRITES_INIT;
	struct wimm_scatter_entry entry = { s->dst, 2048, 2048, 1024 };
	struct wimm_scatter sc = WIMM_SCATTER_INIT;
	struct wimm_on_done done = to_result(s->result);

	w.src = p.src = sc.src = s->src;
	w.dst = p.dst = s->dst;
	w.src_offset_bytes = w.dst_offset_bytes = 2048;
	w.len_bytes = p.page_len_bytes = 1024;
	p.src_pages = p.dst_pages = (struct wimm_pages){ index, 1, 1024, 0 };
	sc.entries = &entry;
	sc.count = 1;
	w.flags = p.flags = sc.flags = WIMM_BLOCK;
	s->st = s->kind == 0   ? wimm_submit_single_write(s->a->engine, &w, &done, NULL)
	        : s->kind == 1 ? wimm_submit_paged_writes(s->a->engine, &p, &done, NULL)
	                       : wimm_submit_scatter(s->a->engine, &sc, &done, NULL);
	return NULL;
}

static void on_ended(void *context, const struct wimm_done *done)
{
	gate_lock();
	*(bool *)context = done->status == WIMM_OK;
	gate_unlock();
}

static bool has_ended(void *arg)
{
	bool yes;

	gate_lock();
	yes = *(bool *)arg;
	gate_unlock();
	return yes;
}

/* End the source and put another, shorter region in its place. */
static void replace_source(struct node *a, struct wimm_mr *old, uint8_t *mem)
{
	bool *ended = case_memory(sizeof(*ended));
	struct wimm_on_done done = { .fn = on_ended, .context = ended };
	struct wimm_mr *mr;

	assert_ok(wimm_dereg_mr(a->engine, old, &done));
	assert_wait(has_ended, ended);
	assert_ok(wimm_reg_mr(a->engine, mem, 64, NULL, &mr));
	assert_ptr_equal(mr, old);
}

/* Close the destination's handle and let the next one, of a shorter region, have its place. */
static void replace_dest(struct node *a, struct wimm_remote_mr *old, struct node *b)
{
	struct wimm_remote_mr *r = NULL;

	assert_ok(wimm_close_remote_mr(a->engine, old));
	(void)imm_now(a, 0); /* behind it on the worker */
	assert_ok(wimm_open_remote_mr(a->engine, &b->desc, &r));
	assert_ptr_equal(r, old);
}

/* Goal: while a submission waits for room its source ends, or its destination's handle is closed,
 * and another region comes to that place: it is refused, and takes and touches nothing there. */
static void blocked_submission_follows_no_handle_that_ended(void **state)
{
	(void)state;
	for (int i = 0; i < 6; i++) {
		struct node *a = narrow_open(64, 16), *b = node_open(64), *long_b = node_open(4096);
		uint8_t *mem = case_memory(4096);
		struct stale *s = case_memory(sizeof(*s));
		struct wimm_remote_mr *to = remote_of(a, long_b);
		struct result *r[16];
		struct wimm_mr *mr;
		pthread_t thread;

		fill(mem, 4096, 5);
		assert_ok(wimm_reg_mr(a->engine, mem, 4096, NULL, &mr));
		connect_nodes(a, b);
		*s = (struct stale){ a, mr, to, i % 3, WIMM_OK, result_new() };
		occupy(a, r, 16);
		assert_ok(pthread_create(&thread, NULL, submit_stale, s));
		drive_until(blocked_submitters(a) != 0 && refused_submissions(a) >= 2);
		if (i < 3)
			replace_source(a, mr, a->mem);
		else
			replace_dest(a, to, b);
		assert_ok(wimm_cancel(a->engine, r[3]->id));
		pthread_join(thread, NULL);
		s->result->accepted = s->st == WIMM_OK;
		if (s->result->accepted)
			result_wait(s->result);
		assert_true(s->st != WIMM_OK || s->result->status != WIMM_OK);
		assert_true(all_are(b->mem, 64, 0) && all_are(long_b->mem, 4096, 0));
		node_done(a);
		node_done(b);
		node_done(long_b);
	}
}

/* Goal: while a submission waits for room its source begins to end, which takes long since a peer
 * does not answer. It comes too late: the end waits for those that came before it. */
static void blocked_submission_from_an_ending_region_is_refused(void **state)
{
	struct wimm_engine_opts opts = node_opts();
	struct node *a = narrow_open(64, 16), *b = node_open(4096), *silent;
	uint8_t *mem = case_memory(4096);
	struct stale *s = case_memory(sizeof(*s));
	struct wimm_remote_mr *to = remote_of(a, b);
	bool *ended = case_memory(sizeof(*ended));
	struct wimm_on_done done = { .fn = on_ended, .context = ended };
	struct result *r[16], *first;
	struct wimm_mr *mr;
	pthread_t thread;

	(void)state;
	opts.progress = WIMM_PROGRESS_CALLER;
	silent = node_open_apart(&opts, 64);
	first = write_imm(a, remote_of(a, silent), 0, 0, 8, 1);
	drive_until(result_there_driving(first, silent));
	result_ok(first);
	assert_ok(wimm_reg_mr(a->engine, mem, 4096, NULL, &mr));
	*s = (struct stale){ a, mr, to, 0, WIMM_OK, result_new() };
	occupy(a, r, 16);
	assert_ok(pthread_create(&thread, NULL, submit_stale, s));
	drive_until(blocked_submitters(a) != 0 && stats_of(a).again >= 2);
	assert_ok(wimm_dereg_mr(a->engine, mr, &done));
	(void)imm_now(a, 0); /* behind it on the worker */
	assert_ok(wimm_cancel(a->engine, r[3]->id));
	pthread_join(thread, NULL);
	s->result->accepted = s->st == WIMM_OK;
	if (s->result->accepted)
		result_is(s->result, WIMM_E_REVOKED);
	else
		assert_status(s->st, WIMM_E_REVOKED);
	assert_false(has_ended(ended));
	drive_until(wimm_progress(silent->engine, NULL) == WIMM_OK && has_ended(ended));
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

struct pager {
	struct node *a;
	struct wimm_paged_writes p;
	wimm_status st;
	bool returned;
};

static void *page_and_wait(void *arg)
{
	struct pager *g = arg;
	wimm_status st = wimm_submit_paged_writes(g->a->engine, &g->p, NULL, NULL);

	gate_lock();
	g->st = st;
	g->returned = true;
	gate_unlock();
	return NULL;
}

/* The one submission that waits looks now and then, and sleeps in between. */
static void waits_asleep(struct node *a)
{
	uint64_t looks = stats_of(a).again, begin = clock_now_ns();

	drive_until(stats_of(a).again >= looks + 10);
	assert_true(clock_now_ns() - begin > 5 * CLOCK_NS_PER_MS);
}

/* Goal: copied index arrays count against their budget: beyond it the call says AGAIN, or
 * waits when it was asked to; one that can never fit is refused. */
static void index_arrays_beyond_their_budget_wait(void **state)
{
	enum { PAGES = 4096 }; /* 32 KiB of indices */
	struct wimm_engine_opts opts = node_opts();
	struct pager *g = case_memory(sizeof(*g));
	uint32_t *indices = case_memory((2 * PAGES + 1) * sizeof(*indices));
	struct result *held[2];
	struct node *a, *silent;
	struct wimm_remote_mr *to;
	pthread_t thread;

	(void)state;
	assert_ok(config_set("index_bytes_limit", "64K"));
	assert_ok(config_set("hello_timeout_ms", "60000")); /* nothing ends but by the case */
	a = node_open(2 * PAGES + 1);
	config_reload();
	/* Nobody drives it, so that there is no session and what is submitted stays. */
	opts.progress = WIMM_PROGRESS_CALLER;
	silent = node_open_apart(&opts, 2 * PAGES + 1);
	for (uint32_t i = 0; i < 2 * PAGES + 1; i++)
		indices[i] = i;
	g->a = a;
	to = remote_of(a, silent);
	g->p = many_pages(a, to, indices, 2 * PAGES + 1);
	assert_refused(wimm_submit_paged_writes(a->engine, &g->p, NULL, NULL), WIMM_E_LIMIT,
	               "index_bytes_limit");
	g->p = many_pages(a, to, indices, PAGES);
	held[0] = submit_pages(a, &g->p);
	held[1] = submit_pages(a, &g->p);
	assert_int_equal(stats_of(a).index_bytes, 1 << 16);
	assert_int_equal(wimm_submit_paged_writes(a->engine, &g->p, NULL, NULL), WIMM_AGAIN);
	assert_int_equal(stats_of(a).index_bytes, 1 << 16);
	g->p.flags = WIMM_BLOCK;
	if (!cfg.driven) {
		assert_ok(pthread_create(&thread, NULL, page_and_wait, g));
		drive_until(blocked_submitters(a) != 0);
		waits_asleep(a);
		assert_false(g->returned);
	}
	assert_ok(wimm_cancel(a->engine, held[0]->id));
	result_is(held[0], WIMM_E_CANCELLED);
	if (!cfg.driven) {
		pthread_join(thread, NULL);
		assert_status(g->st, WIMM_OK);
	}
	assert_ok(wimm_cancel(a->engine, held[1]->id));
	result_is(held[1], WIMM_E_CANCELLED);
	node_close(a);
}

struct resubmit {
	struct node *a;
	struct wimm_paged_writes p;
	uint32_t left, refused;
	bool done;
};

static void submit_again(void *context, const struct wimm_done *done)
{
	struct resubmit *r = context;
	struct wimm_on_done again = { .fn = submit_again, .context = r };
	bool go_on = done->status == WIMM_OK && r->left != 0;

	if (go_on && wimm_submit_paged_writes(r->a->engine, &r->p, &again, NULL) == WIMM_OK) {
		r->left--;
		return;
	}
	gate_lock();
	r->refused = r->left;
	r->done = true;
	gate_unlock();
}

static bool resubmits_done(void *arg)
{
	bool yes;

	gate_lock();
	yes = ((struct resubmit *)arg)->done;
	gate_unlock();
	return yes;
}

/* Goal: a request that needs the whole budget of index arrays may follow itself: what it took is
 * free again inside its callback. */
static void index_budget_is_free_inside_the_callback(void **state)
{
	enum { PAGES = 8192 }; /* 64 KiB of indices */
	struct node *b = node_open(PAGES);
	struct resubmit *r = case_memory(sizeof(*r));
	struct wimm_on_done done = { .fn = submit_again, .context = r };
	uint32_t *indices = case_memory(PAGES * sizeof(*indices));

	(void)state;
	for (uint32_t i = 0; i < PAGES; i++)
		indices[i] = i;
	assert_ok(config_set("index_bytes_limit", "64K"));
	r->a = node_open(PAGES);
	config_reload();
	r->p = many_pages(r->a, remote_of(r->a, b), indices, PAGES);
	r->left = 5;
	assert_ok(wimm_submit_paged_writes(r->a->engine, &r->p, &done, NULL));
	assert_wait(resubmits_done, r);
	assert_int_equal(r->refused, 0);
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
	c = node_open_apart(&opts, 1 << 20);
	to_b = remote_of(a, b);
	to_c = remote_of(a, c);
	{
		struct result *r = write_imm(a, to_c, 0, 0, 8, 1);

		drive_until(result_there_driving(r, c));
		result_ok(r);
	}
	for (int i = 0; i < 400; i++)
		stalled[i] = write_imm(a, to_c, 0, 0, 1 << 16, 2);
	for (int i = 0; i < 400; i++)
		result_ok(write_imm(a, to_b, 0, 0, 8, 3));
	imm_reaches(b, 3, 400);
	if (strcmp(cfg.provider, "tcp") == 0) /* others may take bytes without their program */
		assert_false(result_there(stalled[399]));
	drive_until(result_there_driving(stalled[399], c));
	for (int i = 0; i < 400; i++) {
		drive_until(result_there_driving(stalled[i], c));
		result_ok(stalled[i]);
	}
	assert_ok(wimm_progress(c->engine, NULL));
	imm_reaches(c, 2, 400);
}

/* Goal: pending work has its turn however many new requests come, and a whole batch at a turn
 * however little room a NIC has at a time. */
static void pending_pages_finish_under_a_stream_of_new_writes(void **state)
{
	/* Up to MAX_OPS writes have their turns between two of the pages, which go out 64 at a turn
	 * (setting post_batch), so 16 times as many before the last; some more for luck. */
	enum { PAGES = 1000, MAX_OPS = 1024, NEW_MAX = 24 * MAX_OPS };
	struct wimm_write w;
	struct wimm_paged_writes p;
	struct wimm_remote_mr *to;
	struct result *pages;
	struct node *a, *b;
	uint32_t *indices = case_memory(PAGES * sizeof(*indices));
	uint64_t new_ones = 0;

	(void)state;
	if (case_world() != NULL)
		sim_set_post_depth(case_world(), 4);
	a = narrow_open(PAGES, MAX_OPS);
	b = node_open(PAGES);
	to = remote_of(a, b);
	w = single(a, to, 0, 0, 1);
	for (uint32_t i = 0; i < PAGES; i++)
		indices[i] = i;
	p = many_pages(a, to, indices, PAGES);
	pages = submit_pages(a, &p);
	while (!result_there(pages) && new_ones < NEW_MAX) {
		wimm_status st = wimm_submit_single_write(a->engine, &w, NULL, NULL);

		assert_true(st == WIMM_OK || st == WIMM_AGAIN);
		new_ones += st == WIMM_OK;
		if (st == WIMM_AGAIN || cfg.driven)
			drive();
	}
	assert_true(result_there(pages));
	result_ok(pages);
}

/* Goal: a peer that stands still is asked more than a channel holds, thousands of questions at a
 * time: they wait, and no session is lost over them. */
static void questions_beyond_a_channel_wait_for_it(void **state)
{
	enum { QUESTIONS = 9000 };
	struct wimm_engine_opts o = node_opts();
	struct node *a = narrow_open(64, 2 * QUESTIONS), *b = node_open_apart(&o, 64);
	struct counts *counts = case_memory(sizeof(*counts));
	struct wimm_on_done done = { .fn = on_counted, .context = counts };
	wimm_peer known = peer_of(a, b);
	struct wimm_peer_info info = WIMM_PEER_INFO_INIT;

	(void)state;
	for (uint64_t end = wait_end_ms(); info.up == 0; wait_more(end, "the session")) {
		assert_ok(wimm_progress(b->engine, NULL));
		assert_ok(wimm_peer_get_info(a->engine, known, &info));
	}
	for (uint32_t i = 0; i < QUESTIONS; i++)
		assert_ok(wimm_retire_imm(a->engine, i, &done, NULL));
	drive_rounds(QUESTIONS / 32); /* a takes all of them, b none */
	for (uint64_t end = wait_end_ms(); counts->done + counts->failed < QUESTIONS;
	     wait_more(end, "the answers"))
		assert_ok(wimm_progress(b->engine, NULL));
	assert_int_equal(counts->failed, 0);
	assert_ok(wimm_peer_get_info(a->engine, known, &info));
	assert_int_equal(info.up, 1);
}

static const struct contract_case cases[] = {
	CASE(full_queue_case_22_says_again_and_loses_nothing),
	CASE_ONLY(questions_beyond_a_channel_wait_for_it, ONLY_SIM | ONLY_DRIVEN),
	CASE(full_queue_case_22_blocks_when_asked_to),
	CASE(every_submission_says_again_when_there_is_no_room),
	CASE_ONLY(blocked_submission_ends_when_the_engine_closes, ONLY_THREADS),
	CASE_ONLY(blocked_submission_gives_up_at_its_deadline, ONLY_THREADS),
	CASE_ONLY(blocked_submission_follows_no_handle_that_ended, ONLY_THREADS),
	CASE_ONLY(blocked_submission_from_an_ending_region_is_refused, ONLY_THREADS),
	CASE(index_arrays_beyond_their_budget_wait),
	CASE(index_budget_is_free_inside_the_callback),
	CASE_ONLY(stalled_peer_delays_nobody_else, ONLY_THREADS),
	CASE(pending_pages_finish_under_a_stream_of_new_writes),
};
GROUP(pressure, cases);
