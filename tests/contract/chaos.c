/* SPDX-License-Identifier: Apache-2.0 */
/* Many threads make every call of one engine at once, also with handles that others end. */
#include "contract/fixture.h"

#include "plat/rand.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#define THREADS 4
#define HANDLES 6
#define BYTES   4096
#define OPS_MAX 20000

/* What the threads share. Handles come and go under the hands of those who use them; a stale one is
 * refused or names the next region there, all of which lie in one block of memory. */
struct chaos {
	struct node *a, *b;
	uint8_t *pool;
	_Atomic(struct wimm_mr *) mr[HANDLES];
	_Atomic(struct wimm_remote_mr *) to[HANDLES];
	struct wimm_uvm_watcher *watcher;
	wimm_peer peer;
	_Atomic uint64_t last_op;
	_Atomic uint32_t reports[OPS_MAX]; /* of each operation, which must be one if accepted */
	_Atomic uint32_t used, changes, ended, asked_to_end;
};

struct chaos_thread {
	struct chaos *c;
	uint64_t seed;
	uint32_t steps, odd; /* odd: statuses that no call may return here */
};

static void on_settled(void *context, const struct wimm_done *done)
{
	(void)done;
	atomic_fetch_add((_Atomic uint32_t *)context, 1);
}

static void on_message(void *context, const struct wimm_received *m)
{
	(void)context;
	(void)m;
}

static void on_word(void *context, uint64_t old_value, uint64_t new_value)
{
	struct chaos *c = context;

	(void)old_value;
	(void)new_value;
	atomic_fetch_add(&c->changes, 1);
}

/* A place for the report of one more operation; NULL: no more of them. */
static _Atomic uint32_t *report_new(struct chaos *c)
{
	uint32_t i = atomic_fetch_add(&c->used, 1);

	return i < OPS_MAX ? &c->reports[i] : NULL;
}

#define NOT_ACCEPTED UINT32_C(0x80000000)

static wimm_status submit_one(struct chaos *c, struct rng *rng, const struct wimm_on_done *done)
{
	static const uint32_t index[] = { 0, 3, 1 };
	struct wimm_mr *src = atomic_load(&c->mr[rng_u64(rng) % HANDLES]);
	struct wimm_remote_mr *to = atomic_load(&c->to[rng_u64(rng) % HANDLES]);
	uint32_t flags = (rng_u64(rng) % 2 ? WIMM_IMM : 0) | (rng_u64(rng) % 4 ? 0 : WIMM_BLOCK);
	uint64_t deadline_us = rng_u64(rng) % 3 ? 0 : 1 + rng_u64(rng) % 2000;
	wimm_op id = 0;
	wimm_status st = WIMM_AGAIN;

	switch (rng_u64(rng) % 4) {
	case 0: {
		struct wimm_write w = WIMM_WRITE_INIT;

		w.flags =
			flags | ((flags & WIMM_IMM) && rng_u64(rng) % 8 == 0 ? WIMM_CONFIRMED : 0);
		w.src = src;
		w.dst = to;
		w.len_bytes = rng_u64(rng) % (BYTES + 10);
		w.deadline_us = deadline_us;
		st = wimm_submit_single_write(c->a->engine, &w, done, &id);
		break;
	}
	case 1: {
		struct wimm_paged_writes p = WIMM_PAGED_WRITES_INIT;

		p.flags = flags | ((flags & WIMM_IMM) && rng_u64(rng) % 2 ? WIMM_IMM_ONCE : 0);
		p.src = src;
		p.dst = to;
		p.src_pages = p.dst_pages = (struct wimm_pages){ index, 3, 1000, 0 };
		p.page_len_bytes = 1000;
		p.deadline_us = deadline_us;
		st = wimm_submit_paged_writes(c->a->engine, &p, done, &id);
		break;
	}
	case 2: {
		struct wimm_scatter_entry e[2] = { { to, 0, 0, 100 }, { to, 100, 500, 1000 } };
		struct wimm_scatter s = WIMM_SCATTER_INIT;

		s.flags = flags;
		s.src = src;
		s.entries = e;
		s.count = 1 + rng_u64(rng) % 2;
		s.deadline_us = deadline_us;
		st = wimm_submit_scatter(c->a->engine, &s, done, &id);
		break;
	}
	default: {
		struct wimm_send m = WIMM_SEND_INIT;

		m.flags = flags & WIMM_BLOCK;
		m.peer = c->peer;
		m.data = "chaos";
		m.len_bytes = 5;
		m.deadline_us = 1 + rng_u64(rng) % 5000;
		st = wimm_submit_send(c->a->engine, &m, done, &id);
	}
	}
	if (st == WIMM_OK)
		atomic_store(&c->last_op, id);
	return st;
}

static wimm_status count_one(struct chaos *c, struct rng *rng, const struct wimm_on_done *done)
{
	struct wimm_expect_opts opts = WIMM_EXPECT_OPTS_INIT;
	wimm_op id = 0;
	wimm_status st;

	if (rng_u64(rng) % 4 == 0)
		return wimm_retire_imm(c->a->engine, (uint32_t)(rng_u64(rng) % 4), done, &id);
	opts.deadline_us = 1 + rng_u64(rng) % 3000;
	st = wimm_expect_imm_count(c->a->engine, (uint32_t)(rng_u64(rng) % 4), 1, &opts, done, &id);
	if (st == WIMM_OK)
		atomic_store(&c->last_op, id);
	return st;
}

/* To the thread sanitizer the length of a region that is read by a stale handle races with the
 * registration of the next one there. The generation tells them apart, which it does not know; with
 * it handles only come. */
#ifdef __SANITIZE_THREAD__
#define HANDLES_END false
#else
#define HANDLES_END true
#endif

/* End one handle, or put a new one into an empty place. */
static wimm_status change_handle(struct chaos *c, struct rng *rng)
{
	uint32_t i = (uint32_t)(rng_u64(rng) % HANDLES);
	wimm_status st;

	if (rng_u64(rng) % 2) {
		struct wimm_mr *mr = HANDLES_END ? atomic_exchange(&c->mr[i], NULL) : NULL;
		struct wimm_mr *empty = NULL;
		struct wimm_on_done done = { .fn = on_settled, .context = (void *)&c->ended };

		if (mr != NULL) {
			atomic_fetch_add(&c->asked_to_end, 1);
			return wimm_dereg_mr(c->a->engine, mr, &done);
		}
		st = wimm_reg_mr(c->a->engine, c->pool, 1000 + rng_u64(rng) % BYTES, NULL, &mr);
		if (st == WIMM_OK && !atomic_compare_exchange_strong(&c->mr[i], &empty, mr))
			st = wimm_dereg_mr(c->a->engine, mr, NULL);
		return st;
	}
	{
		struct wimm_remote_mr *to = HANDLES_END ? atomic_exchange(&c->to[i], NULL) : NULL;
		struct wimm_remote_mr *empty = NULL;

		if (to != NULL)
			return wimm_close_remote_mr(c->a->engine, to);
		st = wimm_open_remote_mr(c->a->engine, &c->b->desc, &to);
		if (st == WIMM_OK && !atomic_compare_exchange_strong(&c->to[i], &empty, to))
			st = wimm_close_remote_mr(c->a->engine, to);
		return st;
	}
}

static wimm_status look_around(struct chaos *c, struct rng *rng)
{
	struct wimm_engine_stats s = WIMM_ENGINE_STATS_INIT;
	uint64_t count;

	switch (rng_u64(rng) % 5) {
	case 0:
		return wimm_engine_get_stats(c->a->engine, &s);
	case 1:
		return wimm_poll_imm(c->a->engine, (uint32_t)(rng_u64(rng) % 4), &count);
	case 2:
		return wimm_forget_imm(c->a->engine, (uint32_t)(rng_u64(rng) % 4), &count);
	case 3:
		return wimm_uvm_watcher_arm(c->watcher, (int)(rng_u64(rng) % 2));
	default:
		(void)wimm_uvm_watcher_add(c->watcher, 1);
		return WIMM_OK;
	}
}

/* What calls with stale handles, full queues and long slices may say. */
static bool is_plain(wimm_status st)
{
	return st == WIMM_OK || st == WIMM_AGAIN || st == WIMM_E_INVAL || st == WIMM_E_RANGE ||
	       st == WIMM_E_REVOKED || st == WIMM_E_NOT_FOUND;
}

static void *chaos_main(void *arg)
{
	struct chaos_thread *t = arg;
	struct chaos *c = t->c;
	struct rng rng;

	rng_init(&rng, t->seed);
	for (uint32_t i = 0; i < t->steps; i++) {
		uint64_t what = rng_u64(&rng) % 16;
		_Atomic uint32_t *report = what < 10 ? report_new(c) : NULL;
		struct wimm_on_done done = { .fn = on_settled, .context = (void *)report };
		wimm_status st = WIMM_OK;

		if (what < 10 && report == NULL)
			break;
		if (what < 8)
			st = submit_one(c, &rng, &done);
		else if (what < 10)
			st = count_one(c, &rng, &done);
		else if (what < 12)
			st = wimm_cancel(c->a->engine, atomic_load(&c->last_op));
		else if (what < 14)
			st = change_handle(c, &rng);
		else
			st = look_around(c, &rng);
		if (report != NULL && st != WIMM_OK)
			atomic_fetch_or(report, NOT_ACCEPTED);
		if (!is_plain(st)) {
			print_error("a call of kind %u said %s: %s\n", (unsigned)what,
			            wimm_status_name(st), wimm_last_error_text());
			t->odd++;
		}
	}
	return NULL;
}

static bool all_reported(void *arg)
{
	struct chaos *c = arg;
	uint32_t used = atomic_load(&c->used);

	for (uint32_t i = 0; i < used && i < OPS_MAX; i++)
		if (atomic_load(&c->reports[i]) == 0)
			return false;
	return atomic_load(&c->ended) == atomic_load(&c->asked_to_end);
}

/* Goal: four threads make any call at any time, with handles that another ends meanwhile: each
 * accepted operation settles once, none of those refused, and the session stands. */
static void calls_of_many_threads_with_ending_handles_settle_once(void **state)
{
	struct wimm_engine_opts opts = node_opts();
	struct chaos *c = case_memory(sizeof(*c));
	struct chaos_thread *t = case_memory(THREADS * sizeof(*t));
	struct wimm_recv_buffer buffer[8];
	uint64_t seed = test_seed(1);
	pthread_t thread[THREADS];
	uint32_t scale = test_scale();

	(void)state;
	opts.max_ops = 64;
	c->a = node_open_with(&opts, BYTES);
	c->b = node_open(BYTES);
	c->pool = case_memory(2 * BYTES);
	connect_nodes(c->a, c->b);
	c->peer = peer_of(c->a, c->b);
	for (int i = 0; i < 8; i++)
		buffer[i] = (struct wimm_recv_buffer){ case_memory(64), 64 };
	assert_ok(wimm_submit_recvs(c->b->engine, buffer, 8, on_message, NULL, NULL));
	assert_ok(wimm_alloc_uvm_watcher(c->a->engine, on_word, c, &c->watcher));
	for (uint32_t i = 0; i < THREADS; i++) {
		t[i] = (struct chaos_thread){ c, seed + i, 1000 * (scale < 8 ? scale : 8), 0 };
		assert_ok(pthread_create(&thread[i], NULL, chaos_main, &t[i]));
	}
	for (uint32_t i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	assert_wait(all_reported, c);
	for (uint32_t i = 0; i < THREADS; i++)
		assert_int_equal(t[i].odd, 0);
	for (uint32_t i = 0; i < atomic_load(&c->used) && i < OPS_MAX; i++) {
		uint32_t report = atomic_load(&c->reports[i]);

		assert_true(report == 1 || report == NOT_ACCEPTED);
	}
	assert_int_equal(node_events(c->a, WIMM_PEER_DOWN) + node_events(c->b, WIMM_PEER_DOWN), 0);
	result_ok(write_imm(c->a, remote_of(c->a, c->b), 0, 0, 8, 77));
	imm_reaches(c->b, 77, 1);
	assert_ok(wimm_free_uvm_watcher(c->watcher));
}

static const struct contract_case cases[] = {
	CASE_ONLY(calls_of_many_threads_with_ending_handles_settle_once, ONLY_THREADS),
};
GROUP(chaos, cases);
