/* SPDX-License-Identifier: Apache-2.0 */
/* Operations that end while others begin: full queues, close, cancel, calls from callbacks
 * (contract C3, C5, C8). */
#include "faults/puppet.h"

#include "prov/sim/sim.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* Many operations counted together, where single results are too many. */
struct tally {
	uint64_t submitted, calls, ok, cancelled, closed, other;
};

static void on_tally(void *context, const struct wimm_done *done)
{
	struct tally *t = context;

	gate_lock();
	t->calls++;
	t->ok += done->status == WIMM_OK;
	t->cancelled += done->status == WIMM_E_CANCELLED;
	t->closed += done->status == WIMM_E_CLOSED;
	t->other += done->status != WIMM_OK && done->status != WIMM_E_CANCELLED &&
	            done->status != WIMM_E_CLOSED;
	gate_unlock();
}

static struct wimm_on_done to_tally(struct tally *t)
{
	return (struct wimm_on_done){ .fn = on_tally, .context = t };
}

static bool tally_complete(void *arg)
{
	struct tally *t = arg;
	bool complete;

	gate_lock();
	complete = t->calls >= t->submitted;
	gate_unlock();
	return complete;
}

/* The simulator's queues this short. */
static void short_queues(void)
{
	if (case_world() != NULL)
		sim_set_post_depth(case_world(), 8);
}

/* --- 22 --- */

#define WRITERS      4
#define WRITES_EACH  2500

struct writer {
	struct node *node;
	const struct wimm_remote_mr *to;
	struct tally *tally;
	uint32_t index;
	uint32_t flags;
	uint64_t refused;
};

/* One byte to its own place each; AGAIN is tried again. */
static void *write_all(void *arg)
{
	struct writer *w = arg;
	const struct wimm_on_done done = to_tally(w->tally);

	for (uint64_t i = 0; i < WRITES_EACH; i++) {
		uint64_t at = w->index * WRITES_EACH + i;
		struct wimm_write wr = single(w->node, w->to, at, at, 1);
		wimm_status st;

		wr.flags = WIMM_IMM | w->flags;
		wr.imm = 22;
		while ((st = wimm_submit_single_write(w->node->engine, &wr, &done, NULL)) ==
		       WIMM_AGAIN) {
			w->refused++;
			if (cfg.driven)
				drive();
			else
				sched_yield();
		}
		if (st != WIMM_OK)
			return arg;
	}
	return NULL;
}

static void four_writers(uint32_t flags, uint32_t max_ops)
{
	const uint64_t total = WRITERS * WRITES_EACH;
	struct wimm_engine_opts o = node_opts();
	struct node *a, *b;
	struct tally tally = { .submitted = total };
	struct writer w[WRITERS];
	pthread_t thread[WRITERS];
	struct result *all;

	short_queues();
	o.max_ops = max_ops;
	a = node_open_with(&o, total);
	b = node_open(total);
	fill(a->mem, total, 22);
	all = expect(b, 22, total);
	for (uint32_t i = 0; i < WRITERS; i++) {
		w[i] = (struct writer){ a, remote_of(a, b), &tally, i, flags, 0 };
		if (cfg.driven) /* one thread makes all calls */
			assert_null(write_all(&w[i]));
		else
			assert_ok(pthread_create(&thread[i], NULL, write_all, &w[i]));
	}
	for (uint32_t i = 0; i < WRITERS && !cfg.driven; i++) {
		void *failed = NULL;

		assert_ok(pthread_join(thread[i], &failed));
		assert_null(failed);
	}
	result_ok(all);
	assert_wait(tally_complete, &tally);
	assert_int_equal(tally.ok, total);
	assert_true(holds(b->mem, total, 22));
}

/* Goal: a full queue says AGAIN and loses nothing that it has accepted. */
static void full_queue_case_22_says_again_and_loses_nothing(void **state)
{
	(void)state;
	four_writers(0, 16);
}

/* Goal: with WIMM_BLOCK the call waits for room, and nothing is lost either. */
static void full_queue_case_22_blocks_and_loses_nothing(void **state)
{
	(void)state;
	four_writers(WIMM_BLOCK, 16);
}

/* --- 23 --- */

#define OPEN_WRITES 500
#define OPEN_EXPECTS 10
#define OPEN_RECVS 4

struct recv_tally {
	uint32_t back, closed;
};

static void on_received(void *context, const struct wimm_received *received)
{
	struct recv_tally *t = context;

	gate_lock();
	t->back++;
	t->closed += received->status == WIMM_E_CLOSED;
	gate_unlock();
}

static void on_watch(void *context, uint64_t old, uint64_t now)
{
	(void)context;
	(void)old;
	(void)now;
}

/* Close an engine with everything that can be open. */
static void close_with_work(struct node *b, uint64_t max_delay_ns)
{
	struct wimm_engine_opts o = node_opts();
	struct node *a = node_open_with(&o, 65536);
	struct tally writes = { 0 }, expects = { 0 };
	const struct wimm_on_done to_writes = to_tally(&writes), to_expects = to_tally(&expects);
	struct recv_tally recvs = { 0 };
	struct wimm_recv_buffer buffers[OPEN_RECVS];
	uint8_t room[OPEN_RECVS][64];
	struct wimm_uvm_watcher *watcher = NULL;
	const struct wimm_remote_mr *to = remote_of(a, b);

	if (case_world() != NULL)
		sim_set_delay(case_world(), 0, max_delay_ns);
	for (int i = 0; i < OPEN_EXPECTS; i++)
		assert_ok(wimm_expect_imm_count(a->engine, (uint32_t)i, 1, NULL, &to_expects,
		                                NULL));
	for (int i = 0; i < OPEN_RECVS; i++)
		buffers[i] = (struct wimm_recv_buffer){ room[i], sizeof(room[i]) };
	assert_ok(wimm_submit_recvs(a->engine, buffers, OPEN_RECVS, on_received, &recvs, NULL));
	assert_ok(wimm_alloc_uvm_watcher(a->engine, on_watch, NULL, &watcher));
	for (int i = 0; i < OPEN_WRITES; i++) {
		struct wimm_write w = single(a, to, 0, 0, 65536);

		assert_ok(wimm_submit_single_write(a->engine, &w, &to_writes, NULL));
	}
	node_close(a);
	assert_int_equal(writes.calls, OPEN_WRITES);
	assert_int_equal(writes.other, 0);
	assert_int_equal(writes.ok + writes.closed, OPEN_WRITES);
	assert_int_equal(expects.calls, OPEN_EXPECTS);
	assert_int_equal(expects.closed, OPEN_EXPECTS);
	assert_int_equal(recvs.back, OPEN_RECVS);
	assert_int_equal(recvs.closed, OPEN_RECVS);
	node_done(a);
}

/* Goal: close with everything open settles each thing once, and the peer goes on. */
static void close_with_work_in_flight_case_23_settles_all_of_it(void **state)
{
	struct node *b = node_open(65536), *c = node_open(65536);
	unsigned rounds = 10 * test_scale();

	(void)state;
	for (unsigned i = 0; i < (rounds < 100 ? rounds : 100); i++)
		close_with_work(b, i % 2 == 0 ? 30000 : 2000000);
	result_ok(write_imm(c, remote_of(c, b), 0, 0, 64, 1));
}

/* Goal: an engine that never met anybody closes as well; closing twice does nothing. */
static void close_of_an_engine_without_peers_case_23_is_done_once(void **state)
{
	struct wimm_engine_opts o = node_opts();
	struct wimm_engine *e = NULL;

	(void)state;
	assert_ok(engine_open_here(&o, &e));
	assert_ok(wimm_engine_close(&e));
	assert_null(e);
	assert_ok(wimm_engine_close(&e));
	assert_status(wimm_engine_close(NULL), WIMM_E_INVAL);
}

/* Goal: a peer that does not answer holds a close up no longer than its two seconds. */
static void close_with_a_silent_peer_case_23_does_not_wait_for_it(void **state)
{
	const struct puppet_opts po = { .bytes = 64 << 20 };
	struct puppet *b = puppet_start(&po);
	struct node *a = node_open(64 << 20);
	struct wimm_remote_mr *to = NULL;
	struct result *r;

	(void)state;
	assert_ok(wimm_open_remote_mr(a->engine, &b->desc, &to));
	result_ok(write_imm(a, to, 0, 0, 64, 1));
	puppet_stop(b);
	r = write_imm(a, to, 0, 0, 64 << 20, 2);
	node_close(a);
	assert_true(result_there(r));
	assert_status(r->status, WIMM_E_CLOSED);
	puppet_continue(b);
	puppet_end(b);
}

struct close_inside {
	struct node *node;
	wimm_status status;
	bool ran;
};

static void on_done_close(void *context, const struct wimm_done *done)
{
	struct close_inside *c = context;

	(void)done;
	c->status = wimm_engine_close(&c->node->engine);
	gate_lock();
	c->ran = true;
	gate_unlock();
}

static bool close_ran(void *arg)
{
	bool ran;

	gate_lock();
	ran = ((struct close_inside *)arg)->ran;
	gate_unlock();
	return ran;
}

/* Goal: close from inside a callback is refused with its own status, and works afterwards. */
static void close_from_a_callback_case_23_is_refused(void **state)
{
	struct node *a = node_open(64), *b = node_open(64);
	struct close_inside c = { .node = a };
	struct wimm_on_done done = { .fn = on_done_close, .context = &c };
	struct wimm_write w = single(a, remote_of(a, b), 0, 0, 8);

	(void)state;
	assert_ok(wimm_submit_single_write(a->engine, &w, &done, NULL));
	assert_wait(close_ran, &c);
	assert_status(c.status, WIMM_E_IN_CALLBACK);
	node_close(a);
}

/* --- 25 --- */

struct chain {
	struct node *node;
	const struct wimm_remote_mr *to;
	uint32_t left;
	wimm_status status;
	const char *lowest, *highest; /* of the callback's stack */
};

static void chain_next(void *context, const struct wimm_done *done);

static void chain_submit(struct chain *c)
{
	struct wimm_on_done next = { .fn = chain_next, .context = c };
	struct wimm_write w = single(c->node, c->to, 0, 0, 8);
	wimm_status st = wimm_submit_single_write(c->node->engine, &w, &next, NULL);

	if (st != WIMM_OK) {
		gate_lock();
		c->status = st;
		c->left = 0;
		gate_unlock();
	}
}

static void chain_next(void *context, const struct wimm_done *done)
{
	struct chain *c = context;
	const char *at = __builtin_frame_address(0);
	uint32_t left;

	gate_lock();
	if (c->lowest == NULL || at < c->lowest)
		c->lowest = at;
	if (at > c->highest)
		c->highest = at;
	if (done->status != WIMM_OK)
		c->status = done->status;
	left = --c->left;
	gate_unlock();
	if (left != 0)
		chain_submit(c);
}

static bool chain_done(void *arg)
{
	bool over;

	gate_lock();
	over = ((struct chain *)arg)->left == 0;
	gate_unlock();
	return over;
}

/* One write at a time takes milliseconds in the guest that verbs runs in. */
static uint32_t chain_links(void)
{
	bool slow = strcmp(cfg.provider, "verbs") == 0 || strcmp(cfg.provider, "sim") == 0;

	return slow ? 1000 : 10000; /* each waits for a clock */
}

/* Goal: each callback submits the next write, thousands deep, on a stack that does not grow. */
static void chain_of_callbacks_case_25_does_not_grow_the_stack(void **state)
{
	struct node *a = node_open(64), *b = node_open(64);
	struct chain c = { .node = a, .to = remote_of(a, b), .left = chain_links() };

	(void)state;
	chain_submit(&c);
	assert_wait(chain_done, &c);
	assert_ok(c.status);
	if (c.highest - c.lowest >= 4096)
		fail_msg("the stack varied by %ld bytes", (long)(c.highest - c.lowest));
}

struct rearm {
	struct node *node;
	uint32_t left;
	wimm_status status;
};

static void rearm_again(void *context, const struct wimm_done *done)
{
	struct rearm *r = context;
	struct wimm_on_done again = { .fn = rearm_again, .context = r };
	uint32_t left;

	gate_lock();
	if (done->status != WIMM_OK)
		r->status = done->status;
	left = --r->left;
	gate_unlock();
	if (left != 0 && wimm_expect_imm_count(r->node->engine, done->imm, 4, NULL, &again, NULL) !=
	                         WIMM_OK)
		fail_msg("re-arming failed");
}

static bool rearm_done(void *arg)
{
	bool over;

	gate_lock();
	over = ((struct rearm *)arg)->left == 0;
	gate_unlock();
	return over;
}

/* Goal: a callback that re-arms its value loses none of what arrives meanwhile (9, 25). */
static void rearm_in_the_callback_case_25_loses_no_immediate(void **state)
{
	struct node *a = node_open(64), *b = node_open(64);
	struct wimm_remote_mr *to = remote_of(a, b);
	struct rearm r = { .node = b, .left = 1000 };
	struct wimm_on_done again = { .fn = rearm_again, .context = &r };

	(void)state;
	assert_ok(wimm_expect_imm_count(b->engine, 9, 4, NULL, &again, NULL));
	for (uint32_t i = 0; i < 1000; i += 2)
		for (uint32_t k = 0; k < 8; k++)
			(void)write_imm(a, to, 0, 0, 8, 9); /* two rounds at once */
	assert_wait(rearm_done, &r);
	assert_ok(r.status);
	assert_int_equal(imm_now(b, 9), 0);
}

struct echo {
	struct node *node;
	uint32_t heard;
};

static void on_echo(void *context, const struct wimm_received *received)
{
	struct echo *e = context;
	struct wimm_send s = WIMM_SEND_INIT;

	if (received->status != WIMM_OK)
		return;
	gate_lock();
	e->heard++;
	gate_unlock();
	s.peer = received->peer;
	s.data = received->addr;
	s.len_bytes = received->len_bytes;
	if (received->len_bytes < 64) {
		((uint8_t *)received->addr)[0]++;
		s.len_bytes++; /* until it has grown to 64 */
		if (wimm_submit_send(e->node->engine, &s, NULL, NULL) != WIMM_OK)
			fail_msg("reply refused");
	}
}

static bool echo_done(void *arg)
{
	struct echo *e = arg;
	bool over;

	gate_lock();
	over = e[0].heard + e[1].heard == 64;
	gate_unlock();
	return over;
}

/* Goal: a receive callback may reply; two of them play on without a third party. */
static void reply_in_the_receive_callback_case_25_goes_on(void **state)
{
	static uint8_t room[2][2][64];
	struct node *n[2] = { node_open(64), node_open(64) };
	struct echo e[2] = { { n[0], 0 }, { n[1], 0 } };
	struct wimm_send s = WIMM_SEND_INIT;

	(void)state;
	for (int i = 0; i < 2; i++) {
		struct wimm_recv_buffer b[2] = { { room[i][0], 64 }, { room[i][1], 64 } };

		assert_ok(wimm_submit_recvs(n[i]->engine, b, 2, on_echo, &e[i], NULL));
	}
	s.peer = peer_of(n[0], n[1]);
	s.data = room;
	s.len_bytes = 1;
	assert_ok(wimm_submit_send(n[0]->engine, &s, NULL, NULL));
	assert_wait(echo_done, e);
}

/* --- 27 --- */

/* Goal: cancelled right after submission: one callback, and the source is the caller's then. Where
 * it has cost the session, the next write has a new one. */
static void cancel_right_after_submission_case_27_ends_once(void **state)
{
	struct node *a = node_open(64), *b = node_open(1 << 20);
	unsigned rounds = 50 * test_scale();

	(void)state;
	if (case_world() != NULL)
		sim_set_delay(case_world(), 100000, 1000000);
	for (unsigned i = 0; i < (rounds < 1000 ? rounds : 1000); i++) {
		struct wimm_remote_mr *to = remote_of(a, b);
		uint8_t *source = malloc(1 << 20);
		struct wimm_write w = WIMM_WRITE_INIT;
		struct wimm_mr *mr = NULL;
		struct result *r, *gone = result_new();
		struct wimm_on_done done = to_result(gone);
		wimm_status st;

		assert_non_null(source);
		memset(source, (int)i, 1 << 20);
		assert_ok(wimm_reg_mr(a->engine, source, 1 << 20, NULL, &mr));
		w.src = mr;
		w.dst = to;
		w.len_bytes = 1 << 20;
		r = submit_write(a, &w);
		st = wimm_cancel(a->engine, r->id);
		assert_true(st == WIMM_OK || st == WIMM_E_NOT_FOUND);
		gone->accepted = true;
		assert_ok(wimm_dereg_mr(a->engine, mr, &done));
		result_wait(r);
		assert_true(r->status == WIMM_OK || r->status == WIMM_E_CANCELLED);
		memset(source, 0xff, 1 << 20); /* nobody reads it any more */
		result_ok(gone);
		free(source);
		assert_status(wimm_cancel(a->engine, r->id), WIMM_E_NOT_FOUND);
		assert_ok(wimm_close_remote_mr(a->engine, to));
	}
	assert_null(memchr(b->mem, 0xff, 1 << 20));
}

static const struct contract_case cases[] = {
	CASE(full_queue_case_22_says_again_and_loses_nothing),
	CASE_ONLY(full_queue_case_22_blocks_and_loses_nothing, ONLY_THREADS),
	CASE(close_with_work_in_flight_case_23_settles_all_of_it),
	CASE(close_of_an_engine_without_peers_case_23_is_done_once),
	CASE_ONLY(close_with_a_silent_peer_case_23_does_not_wait_for_it, ONLY_PROCESSES),
	CASE(close_from_a_callback_case_23_is_refused),
	CASE(chain_of_callbacks_case_25_does_not_grow_the_stack),
	CASE(rearm_in_the_callback_case_25_loses_no_immediate),
	CASE(reply_in_the_receive_callback_case_25_goes_on),
	CASE(cancel_right_after_submission_case_27_ends_once),
};
GROUP(ending, cases);
