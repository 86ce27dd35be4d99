/* SPDX-License-Identifier: Apache-2.0 */
/* The n-th allocation fails, for n = 1, 2, 3... until a call succeeds: nothing leaks, nothing
 * is left half done, and the next try works. What runs meanwhile on the engine's own threads
 * may be hit too: that may cost a peer its session, never more. */
#include "contract/fixture.h"

#include "base/alloc.h"

#include <string.h>

#define SWEEP_MAX 2000

struct swept {
	struct node *a, *b;
	struct wimm_remote_mr *to;
	wimm_peer peer;
};

static void on_nothing(void *context, const struct wimm_done *done)
{
	(void)context;
	(void)done;
}

static void on_no_message(void *context, const struct wimm_received *m)
{
	(void)context;
	(void)m;
}

static void on_no_change(void *context, uint64_t old_value, uint64_t new_value)
{
	(void)context;
	(void)old_value;
	(void)new_value;
}

static void swept_open(struct swept *s)
{
	s->a = node_open(4096);
	s->b = node_open(4096);
	s->to = remote_of(s->a, s->b);
	s->peer = wimm_remote_mr_peer(s->to);
	result_ok(write_imm(s->a, s->to, 0, 0, 8, 1));
}

static void swept_close(struct swept *s)
{
	node_close(s->a);
	node_close(s->b);
}

/* One kind of call. Returns its status. */
typedef wimm_status (*call_fn)(struct swept *s);

/* Whether a session was lost, now or a little before: it could not be kept without memory. */
static bool swept_lost(struct swept *s)
{
	return node_events(s->a, WIMM_PEER_DOWN) != 0 || node_events(s->b, WIMM_PEER_DOWN) != 0;
}

/* The engines work as if nothing had been; false when they have lost each other. */
static bool swept_works(struct swept *s)
{
	struct wimm_write w = single(s->a, s->to, 0, 0, 8);
	struct result *r = result_new();
	struct wimm_on_done done = to_result(r);
	wimm_status st = wimm_submit_single_write(s->a->engine, &w, &done, &r->id);

	r->accepted = st == WIMM_OK;
	if (r->accepted)
		result_wait(r);
	if (st == WIMM_OK && r->status == WIMM_OK)
		return true;
	drive_until(swept_lost(s)); /* nothing else may keep it from working */
	return false;
}

/* Fails the n-th allocation of this and any other thread during the call, until nothing failed. */
static void sweep_call(call_fn call)
{
	uint64_t n = 1;
	bool fired = true;
	struct swept s;

	swept_open(&s);
	for (; fired && n < SWEEP_MAX; n++) {
		wimm_status st;

		mem_fail_nth(n);
		st = call(&s);
		fired = mem_fail_fired();
		mem_fail_nth(0);
		if (st != WIMM_OK && st != WIMM_E_PEER_LOST) {
			assert_true(fired);
			assert_status(st, WIMM_E_NOMEM);
		}
		if (st == WIMM_E_PEER_LOST)
			drive_until(swept_lost(&s));
		if (st == WIMM_E_PEER_LOST || !swept_works(&s)) {
			swept_close(&s);
			swept_open(&s);
			fired = true; /* not all of the call has been tried */
		}
	}
	assert_true(n < SWEEP_MAX);
	swept_close(&s);
}

static wimm_status do_reg(struct swept *s)
{
	struct wimm_mr *mr;
	wimm_status st = wimm_reg_mr(s->a->engine, s->a->mem, 64, NULL, &mr);

	return st == WIMM_OK ? wimm_dereg_mr(s->a->engine, mr, NULL) : st;
}

static wimm_status do_open_remote(struct swept *s)
{
	struct wimm_remote_mr *r;
	wimm_status st = wimm_open_remote_mr(s->a->engine, &s->b->desc, &r);

	return st == WIMM_OK ? wimm_close_remote_mr(s->a->engine, r) : st;
}

static wimm_status do_add_peer(struct swept *s)
{
	struct wimm_net_addr nobody;
	wimm_status st;
	wimm_peer p;

	/* One that is known, and one that is not: the address of an engine that is gone. */
	st = wimm_add_peer(s->a->engine, &s->b->addr, NULL, &p);
	if (st != WIMM_OK)
		return st;
	nobody = s->b->addr;
	nobody.bytes[4] ^= 1; /* of its instance */
	st = wimm_add_peer(s->a->engine, &nobody, NULL, &p);
	return st == WIMM_OK ? wimm_remove_peer(s->a->engine, p) : st;
}

static wimm_status do_alloc(struct swept *s)
{
	void *block = NULL;
	wimm_status st = wimm_alloc(4096, NULL, &block);

	(void)s;
	return st == WIMM_OK ? wimm_free(block) : st;
}

static wimm_status do_group(struct swept *s)
{
	struct wimm_peer_group *g;
	wimm_status st = wimm_add_peer_group(s->a->engine, &s->peer, 1, &g);

	return st == WIMM_OK ? wimm_remove_peer_group(s->a->engine, g) : st;
}

static wimm_status do_barrier(struct swept *s)
{
	static const uint32_t values[2] = { 8, 9 };
	struct wimm_barrier_args args = WIMM_BARRIER_ARGS_INIT;
	const struct wimm_remote_mr *to = s->to;
	struct wimm_barrier *b;
	wimm_status st, closed;

	args.dst = &to;
	args.count = 1;
	st = wimm_barrier_open(s->a->engine, &args, values, &b);
	if (st != WIMM_OK)
		return st;
	st = wimm_barrier_enter(b, 0, &(struct wimm_on_done){ .fn = on_nothing });
	closed = wimm_barrier_close(b);
	return st != WIMM_OK ? st : closed;
}

static wimm_status do_watcher(struct swept *s)
{
	struct wimm_uvm_watcher *w;
	wimm_status st = wimm_alloc_uvm_watcher(s->a->engine, on_no_change, NULL, &w);

	return st == WIMM_OK ? wimm_free_uvm_watcher(w) : st;
}

static wimm_status do_recvs(struct swept *s)
{
	struct wimm_recv_buffer buffer = { s->a->mem, 64 };
	wimm_op op;
	wimm_status st = wimm_submit_recvs(s->a->engine, &buffer, 1, on_no_message, NULL, &op);

	return st == WIMM_OK ? wimm_cancel(s->a->engine, op) : st;
}

static wimm_status do_pages(struct swept *s)
{
	static const uint32_t list[] = { 0, 1, 2, 3 };
	struct wimm_paged_writes w = WIMM_PAGED_WRITES_INIT;

	w.flags = WIMM_IMM;
	w.src = s->a->mr;
	w.dst = s->to;
	w.src_pages = w.dst_pages = (struct wimm_pages){ list, 4, 64, 0 };
	w.page_len_bytes = 64;
	return wimm_submit_paged_writes(s->a->engine, &w, NULL, NULL);
}

static wimm_status do_scatter(struct swept *s)
{
	struct wimm_scatter_entry e[2] = { { s->to, 0, 0, 8 }, { s->to, 0, 64, 8 } };
	struct wimm_scatter w = WIMM_SCATTER_INIT;

	w.flags = WIMM_IMM;
	w.src = s->a->mr;
	w.entries = e;
	w.count = 2;
	return wimm_submit_scatter(s->a->engine, &w, NULL, NULL);
}

static wimm_status do_send(struct swept *s)
{
	struct wimm_send m = WIMM_SEND_INIT;

	m.peer = s->peer;
	m.data = "sweep";
	m.len_bytes = 5;
	return wimm_submit_send(s->a->engine, &m, NULL, NULL);
}

static wimm_status do_expect(struct swept *s)
{
	struct wimm_owes owes = { s->peer, 1 };
	struct wimm_expect_opts opts = WIMM_EXPECT_OPTS_INIT;
	wimm_op op;
	wimm_status st;

	opts.owes = &owes;
	opts.owes_count = 1;
	st = wimm_expect_imm_count(s->a->engine, 77, 2, &opts, NULL, &op);
	if (st != WIMM_OK)
		return st;
	/* It may have failed on the worker meanwhile, which is as good. */
	st = wimm_cancel(s->a->engine, op);
	return st == WIMM_E_NOT_FOUND ? WIMM_OK : st;
}

static wimm_status do_retire(struct swept *s)
{
	return wimm_retire_imm(s->a->engine, 78, NULL, NULL);
}

/* Goal: every call of an engine that allocates survives the failure of each allocation. */
static void sweep_of_calls_leaves_nothing_behind(void **state)
{
	static const call_fn calls[] = {
		do_reg,   do_alloc, do_open_remote, do_add_peer, do_group,  do_barrier, do_watcher,
		do_recvs, do_pages, do_scatter,     do_send,     do_expect, do_retire,
	};

	(void)state;
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
		sweep_call(calls[i]);
}

/* Goal: opening an engine: E_NOMEM, E_SYSTEM or an engine, for every allocation that fails. */
static void sweep_of_engine_open_leaves_nothing_behind(void **state)
{
	struct wimm_engine_opts opts = node_opts();
	uint64_t blocks = mem_live_blocks();
	bool fired = true;
	uint64_t n = 1;

	(void)state;
	for (; fired && n < SWEEP_MAX; n++) {
		struct wimm_engine *e = NULL;
		wimm_status st;

		mem_fail_nth(n);
		st = engine_open_here(&opts, &e);
		fired = mem_fail_fired();
		mem_fail_nth(0);
		if (st == WIMM_OK) {
			assert_ok(wimm_engine_close(&e));
		} else {
			assert_true(fired);
			assert_null(e);
			assert_status(st, WIMM_E_NOMEM);
		}
		if (strcmp(cfg.provider, "sim") != 0) /* its world keeps a pool */
			assert_int_equal(mem_live_blocks(), blocks);
	}
	assert_true(n > 3 && n < SWEEP_MAX);
}

/* A write over a handle of its own: how it ended, or why it was refused. */
static wimm_status try_write(struct node *a, struct node *b)
{
	struct wimm_remote_mr *to = NULL;
	wimm_status st = wimm_open_remote_mr(a->engine, &b->desc, &to);
	struct wimm_on_done done;
	struct wimm_write w;
	struct result *r;

	if (st != WIMM_OK)
		return st;
	w = single(a, to, 0, 0, 8);
	r = result_new();
	done = to_result(r);
	w.flags = WIMM_IMM;
	st = wimm_submit_single_write(a->engine, &w, &done, &r->id);
	r->accepted = st == WIMM_OK;
	if (r->accepted) {
		result_wait(r);
		st = r->status;
	}
	assert_ok(wimm_close_remote_mr(a->engine, to));
	return st;
}

/* Goal: a session that comes up while any one allocation fails: it stands or it is lost, the write
 * that waits for it settles once, and the next ones work. */
static void sweep_of_a_first_connection_settles_what_waits(void **state)
{
	bool fired = true;
	uint64_t n = 1;

	(void)state;
	for (; fired && n < SWEEP_MAX; n++) {
		struct node *a = node_open(64), *b = node_open(64);
		wimm_status st;

		mem_fail_nth(n);
		st = try_write(a, b);
		fired = mem_fail_fired();
		mem_fail_nth(0);
		assert_true(st == WIMM_OK ||
		            (fired && (st == WIMM_E_NOMEM || st == WIMM_E_PEER_LOST)));
		drive_until(try_write(a, b) == WIMM_OK);
		node_done(a);
		node_done(b);
	}
	assert_true(n > 3 && n < SWEEP_MAX);
}

static const struct contract_case cases[] = {
	CASE(sweep_of_calls_leaves_nothing_behind),
	CASE_ONLY(sweep_of_engine_open_leaves_nothing_behind, ONLY_ONE_NIC),
	CASE_ONLY(sweep_of_a_first_connection_settles_what_waits, ONLY_ONE_NIC),
};
GROUP(sweep, cases);
