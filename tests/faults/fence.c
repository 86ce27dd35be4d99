/* SPDX-License-Identifier: Apache-2.0 */
/* Getting back what a peer was granted, with its three answers (contract C9). */
#include "faults/puppet.h"
#include "faults/qp.h"

#include "core/engine.h"
#include "plat/clock.h"
#include "prov/sim/sim.h"

#include <stdlib.h>
#include <string.h>

#define MIB (UINT64_C(1) << 20)

struct fenced {
	struct result *r;
	struct wimm_on_done done;
	uint32_t answer;
};

static void on_fenced(void *context, const struct wimm_done *done)
{
	struct fenced *f = context;
	struct wimm_on_done to = to_result(f->r);

	gate_lock();
	f->answer = done->fence;
	gate_unlock();
	to.fn(to.context, done);
}

static void fence(struct node *n, wimm_peer peer, const struct wimm_fence_opts *opts,
                  struct fenced *f)
{
	struct wimm_on_done done = { .fn = on_fenced, .context = f };

	f->r = result_new();
	f->answer = 99;
	assert_ok(wimm_fence_peer(n->engine, peer, opts, &done, &f->r->id));
	f->r->accepted = true;
}

static void fence_is(struct fenced *f, wimm_status status, wimm_fence_answer answer)
{
	result_is(f->r, status);
	assert_int_equal(f->answer, answer);
}

static struct wimm_fence_opts within_us(uint64_t deadline_us, uint32_t flags)
{
	struct wimm_fence_opts o = WIMM_FENCE_OPTS_INIT;

	o.deadline_us = deadline_us;
	o.flags = flags;
	return o;
}

static bool lost_its_peer(void *arg)
{
	return node_events(arg, WIMM_PEER_DOWN) != 0;
}

/* --- writers that are alive --- */

enum { STREAM = 64 };

static void stream(struct node *a, struct wimm_remote_mr *to, struct result **r)
{
	for (int i = 0; i < STREAM; i++)
		r[i] = write_imm(a, to, 0, 0, 65536, 9);
}

/* Every write has ended, and those that failed say why. */
static void stream_ended(struct result **r)
{
	for (int i = 0; i < STREAM; i++) {
		result_wait(r[i]);
		if (r[i]->status != WIMM_OK)
			result_is(r[i], WIMM_E_PEER_LOST);
	}
}

static void fence_a_writer(uint32_t flags, wimm_fence_answer answer)
{
	const struct wimm_fence_opts o = within_us(10000000, flags);
	struct node *a = node_open(65536), *b = node_open(65536);
	struct wimm_remote_mr *to = remote_of(a, b);
	struct result *r[STREAM];
	struct fenced f;

	memset(a->mem, 0x77, 65536);
	connect_nodes(a, b);
	stream(a, to, r);
	fence(b, peer_of(b, a), &o, &f);
	fence_is(&f, WIMM_OK, answer);
	memset(b->mem, 0x5a, 65536); /* somebody else's from now on */
	stream_ended(r);
	drive_rounds(200);
	assert_true(all_are(b->mem, 65536, 0x5a));
	/* A new session may be had as soon as the other side knows. */
	assert_wait(lost_its_peer, a);
	result_ok(write_imm(a, remote_of(a, b), 0, 0, 65536, 10));
	imm_reaches(b, 10, 1);
	node_done(a);
	node_done(b);
}

/* Goal: a live writer says that it writes no more, and keeps its word. */
static void fence_of_a_live_writer_is_confirmed(void **state)
{
	unsigned rounds = 3 * test_scale();

	(void)state;
	for (unsigned i = 0; i < (rounds < 25 ? rounds : 25); i++)
		fence_a_writer(0, WIMM_FENCE_CONFIRMED);
}

/* Goal: with WIMM_FENCE_NOW nobody is asked. */
static void fence_without_asking_is_fenced(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 3; i++)
		fence_a_writer(WIMM_FENCE_NOW, WIMM_FENCE_FENCED);
}

/* Goal: two that fence each other at once both get an answer. */
static void fences_that_cross_are_both_answered(void **state)
{
	struct node *a = node_open(65536), *b = node_open(65536);
	struct result *r[STREAM];
	struct fenced f[2];

	(void)state;
	connect_nodes(a, b);
	stream(a, remote_of(a, b), r);
	fence(a, peer_of(a, b), NULL, &f[0]);
	fence(b, peer_of(b, a), NULL, &f[1]);
	for (int i = 0; i < 2; i++) {
		result_ok(f[i].r);
		assert_true(f[i].answer == WIMM_FENCE_CONFIRMED ||
		            f[i].answer == WIMM_FENCE_FENCED);
	}
	for (int i = 0; i < STREAM; i++)
		result_wait(r[i]);
}

/* Goal: a peer that is gone is fenced already, also a second time; one that never was is
 * refused. */
static void fence_of_a_lost_peer_is_answered_at_once(void **state)
{
	struct node *a = node_open(64), *b = node_open(64);
	struct wimm_fence_opts bad = within_us(0, 2);
	struct fenced f[2];
	wimm_peer peer;

	(void)state;
	connect_nodes(a, b);
	peer = peer_of(a, b);
	assert_status(wimm_fence_peer(a->engine, peer, &bad, NULL, NULL), WIMM_E_INVAL);
	assert_status(wimm_fence_peer(a->engine, 0, NULL, NULL, NULL), WIMM_E_NOT_FOUND);
	assert_status(wimm_fence_peer(a->engine, peer + (UINT64_C(1) << 32), NULL, NULL, NULL),
	              WIMM_E_NOT_FOUND);
	assert_ok(wimm_remove_peer(a->engine, peer));
	for (int i = 0; i < 2; i++) {
		fence(a, peer, NULL, &f[i]);
		fence_is(&f[i], WIMM_OK, WIMM_FENCE_FENCED);
	}
}

/* --- writers that are silent --- */

/* Only a writer that is inside the kernel, in somebody's memory, cannot be stopped: once its
 * process is gone, within a second, it has been. */
static void kill_the_unstoppable(struct node *b, struct puppet *a, wimm_peer peer)
{
	const struct wimm_fence_opts o = within_us(1000000, 0);
	struct fenced f;

	assert_string_equal(cfg.profile, "push");
	puppet_kill(a);
	fence(b, peer, &o, &f);
	fence_is(&f, WIMM_OK, WIMM_FENCE_FENCED);
	memset(b->mem, 0x5a, 16 * MIB);
	drive_rounds(100);
	assert_true(all_are(b->mem, 16 * MIB, 0x5a));
	puppet_done(a);
	node_done(b);
}

/* A writer that is stopped in mid-write; its memory is reused while it stands and afterwards. */
static void reclaim_from_a_stopped_writer(void)
{
	const struct puppet_opts po = { .bytes = 16 * MIB };
	const struct puppet_write w = { .len_bytes = 16 * MIB, .count = 4 };
	const struct wimm_fence_opts o = within_us(100000, 0);
	struct node *b = node_open(16 * MIB);
	struct puppet *a = puppet_start(&po);
	struct puppet_tally tally;
	wimm_peer peer = 0;
	struct fenced f;

	memset(a->mem, 0x77, 16 * MIB);
	puppet_connect(a, &b->addr);
	assert_ok(wimm_add_peer(b->engine, &a->addr, NULL, &peer));
	puppet_write(a, &b->desc, &w);
	puppet_stop(a);
	fence(b, peer, &o, &f);
	result_wait(f.r);
	if (f.r->status == WIMM_E_QUARANTINED) {
		kill_the_unstoppable(b, a, peer);
		return;
	}
	result_ok(f.r); /* it may have drained before it was stopped */
	assert_true(f.answer == WIMM_FENCE_FENCED || f.answer == WIMM_FENCE_CONFIRMED);
	memset(b->mem, 0x5a, 16 * MIB);
	puppet_continue(a);
	puppet_settled(a, 4, &tally);
	drive_rounds(100);
	assert_true(all_are(b->mem, 16 * MIB, 0x5a));
	puppet_end(a);
	puppet_done(a);
	node_done(b);
}

/* Goal: memory that a stopped writer was granted comes back in time, and stays untouched when the
 * writer goes on. */
static void fence_of_a_stopped_writer_reclaims_its_memory(void **state)
{
	unsigned rounds = 5 * test_scale();

	(void)state;
	for (unsigned i = 0; i < (rounds < 200 ? rounds : 200); i++)
		reclaim_from_a_stopped_writer();
}

static void reclaim_from_a_frozen_writer(void)
{
	const struct wimm_fence_opts o = within_us(100000, 0);
	struct node *a = node_open(65536), *b = node_open(65536);
	struct wimm_remote_mr *to = remote_of(a, b);
	struct result *r[STREAM];
	struct fenced f;

	memset(a->mem, 0x77, 65536);
	connect_nodes(a, b);
	stream(a, to, r);
	sim_freeze(case_world(), a->engine->self.instance);
	fence(b, peer_of(b, a), &o, &f);
	fence_is(&f, WIMM_OK, WIMM_FENCE_FENCED);
	memset(b->mem, 0x5a, 65536);
	sim_thaw(case_world(), a->engine->self.instance);
	for (int i = 0; i < STREAM; i++)
		result_wait(r[i]);
	drive_rounds(200);
	assert_true(all_are(b->mem, 65536, 0x5a));
	node_done(a);
	node_done(b);
}

/* Goal: the same where the writer is simulated and frozen. */
static void fence_of_a_frozen_writer_reclaims_its_memory(void **state)
{
	unsigned rounds = 5 * test_scale();

	(void)state;
	for (unsigned i = 0; i < (rounds < 200 ? rounds : 200); i++)
		reclaim_from_a_frozen_writer();
}

/* --- queue pairs in error --- */

/* Goal: a receiver whose queue pairs are in error, while its writer's NIC still tries: the answer
 * is "fenced" at the deadline, long before that NIC gives up. */
static void fence_with_the_queue_pair_in_error_is_fenced(void **state)
{
	const struct wimm_fence_opts o = within_us(200000, 0);
	struct wimm_engine_opts opts = node_opts();
	struct node *a, *b;
	struct wimm_remote_mr *to;
	struct result *r[STREAM];
	struct fenced f;

	(void)state;
	opts.peer_timeout_ms = 20000; /* its NIC tries for half of that */
	a = node_open_with(&opts, 65536);
	b = node_open_with(&opts, 65536);
	to = remote_of(a, b);
	memset(a->mem, 0x77, 65536);
	result_ok(write_imm(a, to, 0, 0, 65536, 9));
	qps_to_error(b);
	stream(a, to, r);
	fence(b, peer_of(b, a), &o, &f);
	fence_is(&f, WIMM_OK, WIMM_FENCE_FENCED);
	memset(b->mem, 0x5a, 65536);
	stream_ended(r);
	assert_true(all_are(b->mem, 65536, 0x5a));
	assert_wait(lost_its_peer, a);
	result_ok(write_imm(a, remote_of(a, b), 0, 0, 65536, 10));
	imm_reaches(b, 10, 1);
}

/* Goal: a writer whose queue pairs are in error: its writes end as lost, its session too, and a
 * fence of what is left of it is answered. */
static void fence_of_a_writer_in_error_is_answered(void **state)
{
	const struct wimm_fence_opts o = within_us(10000000, 0);
	struct node *a = node_open(65536), *b = node_open(65536);
	struct wimm_remote_mr *to = remote_of(a, b);
	struct result *r[STREAM];
	struct fenced f;

	(void)state;
	memset(a->mem, 0x77, 65536);
	result_ok(write_imm(a, to, 0, 0, 65536, 9));
	stream(a, to, r);
	qps_to_error(a);
	fence(b, peer_of(b, a), &o, &f);
	result_ok(f.r);
	assert_true(f.answer == WIMM_FENCE_FENCED || f.answer == WIMM_FENCE_CONFIRMED);
	memset(b->mem, 0x5a, 65536);
	stream_ended(r);
	drive_rounds(200);
	assert_true(all_are(b->mem, 65536, 0x5a));
	assert_wait(lost_its_peer, a);
	result_ok(write_imm(a, remote_of(a, b), 0, 0, 65536, 10));
	imm_reaches(b, 10, 1);
}

/* --- paths that cannot be revoked --- */

/* A provider whose paths do not end while `holding`: what they end with is kept back. */
static struct {
	const struct prov_ops *real;
	struct prov_ops ops;
	bool holding;
	uint32_t kept;
	struct prov_cqe cqe[16];
} stubborn;

static uint32_t stubborn_poll(struct prov_dev *dev, uint64_t now_ns, struct prov_cqe *out,
                              uint32_t max)
{
	uint32_t n = 0, got;

	if (!stubborn.holding && stubborn.kept != 0) {
		while (stubborn.kept != 0)
			out[n++] = stubborn.cqe[--stubborn.kept];
		return n;
	}
	got = stubborn.real->poll(dev, now_ns, out, max);
	for (uint32_t i = 0; i < got; i++) {
		if (stubborn.holding && out[i].kind == PROV_PATH_CLOSED)
			stubborn.cqe[stubborn.kept++] = out[i];
		else
			out[n++] = out[i];
	}
	return n;
}

/* Goal: where neither the peer nor its paths give way, the answer comes on time and says so, the
 * region stays out of use, and both follow once the path has ended. */
static void fence_that_cannot_revoke_is_quarantined(void **state)
{
	const struct wimm_fence_opts o = within_us(50000, WIMM_FENCE_NOW);
	struct node *a = node_open(64), *b = node_open(64);
	struct result *gone = result_new();
	struct wimm_on_done done = to_result(gone);
	struct fenced f;
	wimm_peer peer;

	(void)state;
	connect_nodes(a, b);
	peer = peer_of(b, a);
	stubborn.real = b->engine->worker.nic[0].ops;
	stubborn.ops = *stubborn.real;
	stubborn.ops.poll = stubborn_poll;
	stubborn.holding = true;
	b->engine->worker.nic[0].ops = &stubborn.ops;
	fence(b, peer, &o, &f);
	fence_is(&f, WIMM_E_QUARANTINED, WIMM_FENCE_QUARANTINED);
	assert_non_null(strstr(f.r->text, "keep"));
	gone->accepted = true;
	assert_ok(wimm_dereg_mr(b->engine, b->mr, &done));
	b->mr = NULL;
	drive_rounds(100);
	assert_false(result_there(gone)); /* the path may still write there */
	fence(b, peer, NULL, &f);
	drive_rounds(100);
	assert_false(result_there(f.r));
	stubborn.holding = false;
	fence_is(&f, WIMM_OK, WIMM_FENCE_FENCED);
	result_ok(gone);
}

static bool is_later(void *arg)
{
	return clock_now_ns() > *(uint64_t *)arg;
}

/* Goal: an engine that wakes up only when the time is over still says what is so: fenced. */
static void fence_of_a_late_engine_is_not_quarantined(void **state)
{
	const struct wimm_fence_opts o = within_us(1000, 0);
	struct node *a = node_open(64), *b = node_open(64);
	uint64_t late;
	struct fenced f;

	(void)state;
	connect_nodes(a, b);
	fence(b, peer_of(b, a), &o, &f);
	late = clock_now_ns() + 5 * CLOCK_NS_PER_MS;
	assert_true(test_wait_until(is_later, &late, TEST_DEADLINE_MS)); /* nobody drives it */
	fence_is(&f, WIMM_OK, WIMM_FENCE_FENCED);
}

/* Goal: a fence that is cancelled ends once; the session has ended all the same. */
static void fence_that_is_cancelled_ends_once(void **state)
{
	struct node *a = node_open(64), *b = node_open(64);
	struct fenced f;
	wimm_status st;

	(void)state;
	connect_nodes(a, b);
	fence(b, peer_of(b, a), NULL, &f);
	st = wimm_cancel(b->engine, f.r->id);
	assert_true(st == WIMM_OK || st == WIMM_E_NOT_FOUND);
	result_wait(f.r);
	assert_true(f.r->status == WIMM_OK || f.r->status == WIMM_E_CANCELLED);
	assert_wait(lost_its_peer, a);
	result_ok(write_imm(a, remote_of(a, b), 0, 0, 8, 1));
}

static const struct contract_case cases[] = {
	CASE(fence_of_a_live_writer_is_confirmed),
	CASE(fence_without_asking_is_fenced),
	CASE(fences_that_cross_are_both_answered),
	CASE(fence_of_a_lost_peer_is_answered_at_once),
	CASE_ONLY(fence_of_a_stopped_writer_reclaims_its_memory, ONLY_PROCESSES | ONLY_THREADS),
	CASE_ONLY(fence_of_a_frozen_writer_reclaims_its_memory, ONLY_SIM),
	CASE_ONLY(fence_with_the_queue_pair_in_error_is_fenced, ONLY_VERBS | ONLY_THREADS),
	CASE_ONLY(fence_of_a_writer_in_error_is_answered, ONLY_VERBS | ONLY_THREADS),
	CASE_ONLY(fence_that_cannot_revoke_is_quarantined, ONLY_DRIVEN),
	CASE_ONLY(fence_of_a_late_engine_is_not_quarantined, ONLY_DRIVEN),
	CASE(fence_that_is_cancelled_ends_once),
};
GROUP(fence, cases);
