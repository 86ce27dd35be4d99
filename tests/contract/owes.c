/* SPDX-License-Identifier: Apache-2.0 */
/* What peers owe, and what becomes of counts when a peer goes: contract C2. */
#include "contract/fixture.h"

#include "prov/sim/sim.h"

#include <string.h>

/* Two writers and one that counts. */
struct trio {
	struct node *b, *w[2];
	struct wimm_remote_mr *to[2];
	wimm_peer peer[2]; /* as b knows the writers */
};

static struct trio *trio_open(void)
{
	struct trio *t = case_memory(sizeof(*t));

	t->b = node_open(64);
	for (int i = 0; i < 2; i++) {
		t->w[i] = node_open(64);
		t->to[i] = remote_of(t->w[i], t->b);
		result_ok(write_imm(t->w[i], t->to[i], 0, 0, 0, 999));
		t->peer[i] = peer_of(t->b, t->w[i]);
	}
	imm_reaches(t->b, 999, 2);
	return t;
}

/* Counted at its end when this returns. */
static void send_imm(struct trio *t, int from, uint32_t imm, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		struct wimm_write w = single(t->w[from], t->to[from], 0, 0, 8);

		w.flags = WIMM_IMM | WIMM_CONFIRMED;
		w.imm = imm;
		result_ok(submit_write(t->w[from], &w));
	}
}

static struct result *expect_owed(struct trio *t, uint32_t imm, uint64_t count, uint64_t of_0,
                                  uint64_t of_1)
{
	struct wimm_owes owes[2] = { { t->peer[0], of_0 }, { t->peer[1], of_1 } };
	struct wimm_expect_opts opts = WIMM_EXPECT_OPTS_INIT;

	opts.owes = owes;
	opts.owes_count = 2;
	return expect_with(t->b, imm, count, &opts);
}

/* The process of a writer is gone without a word, in the simulator's world. */
static void vanish(struct trio *t, int i)
{
	uint8_t instance[WIMM_INSTANCE_BYTES];
	struct wimm_net_addr addr;

	/* Bytes 4.. of an address are its instance (docs/WIRE.md). */
	assert_ok(wimm_main_address(t->w[i]->engine, &addr));
	memcpy(instance, addr.bytes + 4, sizeof(instance));
	sim_kill_engine(case_world(), instance, false);
}

static bool one_is_down(void *arg)
{
	return node_events(arg, WIMM_PEER_DOWN) != 0;
}

/* Goal: all who owe deliver: the expectation fires and takes what they delivered. */
static void owes_fire_when_all_have_delivered(void **state)
{
	struct trio *t = trio_open();
	struct result *r = expect_owed(t, 1, 5, 2, 3);

	(void)state;
	send_imm(t, 0, 1, 2);
	imm_reaches(t->b, 1, 2);
	assert_false(result_there(r));
	send_imm(t, 1, 1, 4);
	result_ok(r);
	imm_reaches(t->b, 1, 1);
}

/* Goal: a peer that still owes leaves: the expectation fails and names it, and takes nothing
 * of what the other delivered. */
static void owes_of_a_leaving_peer_fail_naming_it(void **state)
{
	struct trio *t = trio_open();
	struct result *r = expect_owed(t, 1, 5, 2, 3);

	(void)state;
	send_imm(t, 0, 1, 1);
	send_imm(t, 1, 1, 3);
	node_close(t->w[0]);
	result_is(r, WIMM_E_PEER_LOST);
	assert_true(r->peer == t->peer[0]);
	/* It said goodbye, so what it delivered stays, as nobody's. */
	imm_reaches(t->b, 1, 4);
	result_ok(expect(t->b, 1, 4));
}

/* Goal: one that has delivered all it owes may go; the expectation waits for the others. */
static void owes_of_one_that_delivered_let_it_go(void **state)
{
	struct trio *t = trio_open();
	struct result *r = expect_owed(t, 1, 5, 2, 3);

	(void)state;
	send_imm(t, 0, 1, 2);
	node_close(t->w[0]);
	assert_wait(one_is_down, t->b);
	assert_false(result_there(r));
	send_imm(t, 1, 1, 3);
	result_ok(r);
	assert_int_equal(imm_now(t->b, 1), 0);
}

/* Goal: an expectation that names a lost peer after it is gone fails at once. */
static void owes_of_a_peer_that_is_gone_fail_at_once(void **state)
{
	struct trio *t = trio_open();
	struct result *r;

	(void)state;
	node_close(t->w[0]);
	assert_wait(one_is_down, t->b);
	r = expect_owed(t, 1, 5, 2, 3);
	result_is(r, WIMM_E_PEER_LOST);
	assert_true(r->peer == t->peer[0]);
}

/* Goal: without owes nobody in particular is waited for: a loss fails nothing. */
static void expectation_of_nobody_in_particular_outlives_a_loss(void **state)
{
	struct trio *t = trio_open();
	struct result *r = expect(t->b, 1, 4);

	(void)state;
	send_imm(t, 0, 1, 1);
	node_close(t->w[0]);
	assert_wait(one_is_down, t->b);
	assert_false(result_there(r));
	send_imm(t, 1, 1, 3); /* with the one that stays countable after a goodbye */
	result_ok(r);
}

/* Goal: what a peer that was lost without a goodbye delivered and nobody consumed is dropped before
 * its event; a successor starts clean. */
static void counts_of_a_vanished_peer_are_dropped_before_its_event(void **state)
{
	struct trio *t = trio_open();

	(void)state;
	send_imm(t, 0, 1, 3);
	send_imm(t, 1, 1, 2);
	imm_reaches(t->b, 1, 5);
	vanish(t, 0);
	assert_wait(one_is_down, t->b);
	assert_int_equal(imm_now(t->b, 1), 2);
	assert_int_equal(imm_now(t->b, 999), 1);
}

/* Goal: of two expectations in a queue the first takes what the named peers owe it; the second
 * fails when its peer goes, and the first stays. */
static void owes_of_queued_expectations_are_kept_apart(void **state)
{
	struct trio *t = trio_open();
	struct result *first = expect_owed(t, 1, 3, 1, 2), *second = expect_owed(t, 1, 2, 1, 1);

	(void)state;
	send_imm(t, 0, 1, 1); /* covers the first one's, not the second's */
	node_close(t->w[0]);
	result_is(second, WIMM_E_PEER_LOST);
	assert_true(second->peer == t->peer[0]);
	assert_false(result_there(first));
	send_imm(t, 1, 1, 2);
	result_ok(first);
	assert_int_equal(imm_now(t->b, 1), 0);
}

/* Goal: peers that come, deliver and go, with a count over all of them. */
static void peers_coming_and_going_add_up(void **state)
{
	/* Fewer where each goodbye lingers, since nobody drives the other side meanwhile. */
	uint32_t peers = cfg.driven ? 5 : 20;
	struct node *b = node_open(64);
	struct result *r = expect(b, 1, 2 * peers);

	(void)state;
	for (uint32_t i = 0; i < peers; i++) {
		struct node *a = node_open(64);
		struct wimm_remote_mr *to = remote_of(a, b);

		for (int k = 0; k < 2; k++) {
			struct wimm_write w = single(a, to, 0, 0, 8);

			w.flags = WIMM_IMM | WIMM_CONFIRMED;
			w.imm = 1;
			result_ok(submit_write(a, &w));
		}
		node_close(a);
	}
	result_ok(r);
}

/* --- retire --- */

static struct result *retire(struct node *n, uint32_t imm)
{
	struct result *r = result_new();
	struct wimm_on_done done = to_result(r);

	assert_ok(wimm_retire_imm(n->engine, imm, &done, &r->id));
	r->accepted = true;
	return r;
}

/* Goal: with nobody connected, and with idle peers, a value is retired at once; what is left of its
 * count is dropped. */
static void retire_of_an_idle_value_drops_its_count(void **state)
{
	struct node *alone = node_open(64);
	struct trio *t;
	struct result *r;

	(void)state;
	r = retire(alone, 5);
	result_ok(r);
	assert_int_equal(r->imm, 5);
	t = trio_open();
	send_imm(t, 0, 5, 3);
	imm_reaches(t->b, 5, 3);
	result_ok(retire(t->b, 5));
	assert_int_equal(imm_now(t->b, 5), 0);
	assert_int_equal(imm_now(t->b, 999), 2);
}

/* Goal: as long as a write with the value is under way the retire waits; afterwards nothing of the
 * value comes any more. */
static void retire_waits_for_writes_under_way(void **state)
{
	struct node *a = node_open(1 << 20), *b = node_open(1 << 20);
	struct wimm_remote_mr *to = remote_of(a, b);
	unsigned rounds = 20 * test_scale();

	(void)state;
	result_ok(write_imm(a, to, 0, 0, 8, 1));
	for (unsigned i = 0; i < rounds; i++) {
		struct result *w[8], *r;

		for (int k = 0; k < 8; k++)
			w[k] = write_imm(a, to, 0, 0, i % 2 ? 1 << 18 : 64, 7);
		drive_rounds(i % 3);
		r = retire(b, 7);
		/* Some are given up meanwhile, as an aborted request does. */
		for (int k = 0; k < 8; k += 3)
			(void)(wimm_cancel(a->engine, w[k]->id) == WIMM_OK);
		result_ok(r);
		assert_int_equal(imm_now(b, 7), 0);
		/* Accepted before the question, so settled by now or never counted. */
		for (int k = 0; k < 8; k++)
			result_wait(w[k]);
		drive_rounds(3);
		result_ok(write_imm(a, to, 0, 0, 8, 8)); /* other values live on */
	}
	imm_reaches(b, 8, rounds);
	/* The value may be given to another request now. */
	result_ok(write_imm(a, to, 0, 0, 8, 7));
	imm_reaches(b, 7, 1);
}

/* A writer that is told by a message to stop, and has not got so far yet. */
struct stopping {
	struct node *writer;
	struct wimm_remote_mr *to;
	struct result *last;
	bool inside, go;
};

static bool stopping_is_inside(void *arg)
{
	bool yes;

	gate_lock();
	yes = ((struct stopping *)arg)->inside;
	gate_unlock();
	return yes;
}

static bool stopping_may_go(void *arg)
{
	return ((struct stopping *)arg)->go;
}

static void on_stop(void *context, const struct wimm_received *m)
{
	struct stopping *s = context;

	if (m->status != WIMM_OK)
		return;
	gate_lock();
	s->inside = true;
	gate_unlock();
	if (gate_wait(stopping_may_go, s))
		s->last = write_imm(s->writer, s->to, 0, 0, 8, 7); /* the last one */
}

/* Goal: the retire waits for the callback of a message that came before it, however many turns the
 * peer's worker takes meanwhile, and for what that callback still writes. */
static void retire_waits_for_the_callback_of_an_earlier_message(void **state)
{
	struct node *a = node_open(64), *b = node_open(64);
	struct stopping *s = case_memory(sizeof(*s));
	struct wimm_recv_buffer buffer = { case_memory(64), 64 };
	uint64_t *total = case_memory(sizeof(*total));
	struct wimm_remote_mr *back = remote_of(b, a);
	struct wimm_send stop = WIMM_SEND_INIT;
	struct result *sent = result_new(), *r;
	struct wimm_on_done done = to_result(sent);

	(void)state;
	s->writer = a;
	s->to = remote_of(a, b);
	result_ok(write_imm(a, s->to, 0, 0, 8, 1));
	assert_ok(wimm_submit_recvs(a->engine, &buffer, 1, on_stop, s, NULL));
	assert_ok(wimm_mirror_enable(b->engine, 7, total));
	stop.peer = peer_of(b, a);
	assert_ok(wimm_submit_send(b->engine, &stop, &done, &sent->id));
	sent->accepted = true;
	result_ok(sent);
	assert_wait(stopping_is_inside, s);
	r = retire(b, 7);
	for (int i = 0; i < 50; i++) /* the worker over there is awake, and has had the question */
		result_ok(write_imm(b, back, 0, 0, 8, 2));
	assert_false(result_there(r));
	gate_lock();
	s->go = true;
	gate_unlock();
	result_ok(r);
	assert_int_equal(wimm_mirror_load(total), 1);
	result_ok(s->last);
}

/* Goal: over NICs without order a later write of another value may be counted before an earlier one
 * of this value. It does not stand for that one: after the retire not one of the value comes. */
static void retire_is_not_ended_by_later_writes_of_other_values(void **state)
{
	struct node *a = node_open(64), *b = node_open(64);
	struct wimm_remote_mr *to = remote_of(a, b);
	struct wimm_write other = single(a, to, 0, 0, 8), last = other;
	unsigned rounds = 30 * test_scale();
	uint64_t others = 0;

	(void)state;
	other.flags = WIMM_IMM;
	other.imm = 8;
	last.flags = WIMM_IMM | WIMM_CONFIRMED;
	last.imm = 9;
	for (unsigned i = 0; i < rounds; i++) {
		struct result *r[4], *retired;

		for (int k = 0; k < 4; k++)
			r[k] = write_imm(a, to, 0, 0, 8, 7);
		for (int k = 0; k < 4; k++)
			result_ok(r[k]);
		retired = retire(b, 7);
		for (uint32_t k = 0; !result_there(retired); k++) {
			wimm_status st = WIMM_AGAIN;

			if (k < 256) /* more would only be a queue to wait for */
				st = wimm_submit_single_write(a->engine, &other, NULL, NULL);
			assert_true(st == WIMM_OK || st == WIMM_AGAIN);
			others += st == WIMM_OK;
			if (st == WIMM_AGAIN || cfg.driven)
				drive();
		}
		result_ok(retired);
		result_ok(submit_write(a, &last)); /* behind all that was under way */
		assert_int_equal(imm_now(b, 7), 0);
	}
	imm_reaches(b, 8, others);
}

/* Goal: the values of other requests do not hold a retire up, nor does a lost peer. */
static void retire_goes_on_when_a_peer_is_lost(void **state)
{
	struct wimm_engine_opts opts = node_opts();
	struct node *b = node_open(64), *silent;
	struct wimm_remote_mr *to;
	struct result *r;

	(void)state;
	opts.progress = WIMM_PROGRESS_CALLER;
	silent = node_open_apart(&opts, 64);
	to = remote_of(silent, b);
	r = write_imm(silent, to, 0, 0, 8, 1);
	drive_until(result_there_driving(r, silent));
	result_ok(r);
	imm_reaches(b, 1, 1);
	r = retire(b, 1);
	drive_rounds(50);
	assert_false(result_there(r));
	node_close(silent);
	result_ok(r);
}

/* Goal: a retire may be cancelled. */
static void retire_cancelled_settles_once(void **state)
{
	struct wimm_engine_opts opts = node_opts();
	struct node *b = node_open(64), *silent;
	struct result *r;

	(void)state;
	opts.progress = WIMM_PROGRESS_CALLER;
	silent = node_open_apart(&opts, 64);
	r = write_imm(silent, remote_of(silent, b), 0, 0, 8, 1);
	drive_until(result_there_driving(r, silent));
	r = retire(b, 1);
	assert_ok(wimm_cancel(b->engine, r->id));
	result_is(r, WIMM_E_CANCELLED);
	assert_int_equal(wimm_cancel(b->engine, r->id), WIMM_E_NOT_FOUND);
}

/* --- confirmed --- */

/* Goal: a confirmed write is done only when the receiver's engine has counted it. */
static void confirmed_write_is_counted_when_it_is_done(void **state)
{
	struct node *a = node_open(1 << 20), *b = node_open(1 << 20);
	struct wimm_remote_mr *to = remote_of(a, b);
	unsigned rounds = 50 * test_scale();

	(void)state;
	fill(a->mem, a->bytes, 3);
	for (unsigned i = 0; i < rounds; i++) {
		struct wimm_write w = single(a, to, 0, 0, i % 5 == 0 ? 1 << 20 : 100);

		w.flags = WIMM_IMM | WIMM_CONFIRMED;
		w.imm = 4;
		result_ok(submit_write(a, &w));
		assert_int_equal(imm_now(b, 4), i + 1);
	}
	assert_true(holds(b->mem, b->bytes, 3));
}

/* Goal: confirmed and plain writes at once, some cancelled in between: each settles once, each done
 * confirmed one is counted. */
static void confirmed_writes_among_cancelled_ones_settle(void **state)
{
	struct node *a = node_open(1 << 18), *b = node_open(1 << 18);
	struct wimm_remote_mr *to = remote_of(a, b);
	unsigned rounds = 20 * test_scale();
	uint64_t confirmed = 0;

	(void)state;
	for (unsigned round = 0; round < rounds; round++) {
		struct result *r[32];

		for (uint32_t i = 0; i < 32; i++) {
			struct wimm_write w = single(a, to, 0, 0, i % 3 == 0 ? 1 << 18 : 64);

			w.flags = WIMM_IMM | (i % 2 == 0 ? WIMM_CONFIRMED : 0);
			w.imm = i % 2;
			r[i] = submit_write(a, &w);
		}
		drive_rounds(round % 4);
		for (uint32_t i = 1; i < 32; i += 2)
			(void)(wimm_cancel(a->engine, r[i]->id) == WIMM_OK);
		for (uint32_t i = 0; i < 32; i++) {
			result_wait(r[i]);
			if (i % 2 == 0) {
				result_ok(r[i]);
				confirmed++;
			}
		}
		assert_int_equal(imm_now(b, 0), confirmed);
	}
}

/* Goal: the same for scatters over peers and for pages with one immediate. */
static void confirmed_pages_are_counted_when_they_are_done(void **state)
{
	struct node *a = node_open(1 << 16), *b = node_open(1 << 16);
	struct wimm_remote_mr *to = remote_of(a, b);
	struct wimm_paged_writes p = WIMM_PAGED_WRITES_INIT;
	uint32_t indices[64];

	(void)state;
	for (uint32_t i = 0; i < 64; i++)
		indices[i] = i;
	p.src = a->mr;
	p.dst = to;
	p.src_pages = p.dst_pages = (struct wimm_pages){ indices, 64, 1024, 0 };
	p.page_len_bytes = 1024;
	fill(a->mem, a->bytes, 6);
	for (uint32_t i = 1; i <= 20; i++) {
		p.flags = WIMM_IMM | WIMM_CONFIRMED;
		p.imm = 1;
		result_ok(submit_pages(a, &p));
		assert_int_equal(imm_now(b, 1), 64 * i);
		p.flags |= WIMM_IMM_ONCE;
		p.imm = 2;
		result_ok(submit_pages(a, &p));
		assert_int_equal(imm_now(b, 2), i);
	}
	assert_true(holds(b->mem, b->bytes, 6));
}

static const struct contract_case cases[] = {
	CASE(owes_fire_when_all_have_delivered),
	CASE(owes_of_a_leaving_peer_fail_naming_it),
	CASE(owes_of_one_that_delivered_let_it_go),
	CASE(owes_of_a_peer_that_is_gone_fail_at_once),
	CASE(expectation_of_nobody_in_particular_outlives_a_loss),
	CASE_ONLY(counts_of_a_vanished_peer_are_dropped_before_its_event, ONLY_SIM),
	CASE(owes_of_queued_expectations_are_kept_apart),
	CASE(peers_coming_and_going_add_up),
	CASE(retire_of_an_idle_value_drops_its_count),
	CASE(retire_waits_for_writes_under_way),
	CASE_ONLY(retire_waits_for_the_callback_of_an_earlier_message, ONLY_THREADS),
	CASE(retire_is_not_ended_by_later_writes_of_other_values),
	CASE(retire_goes_on_when_a_peer_is_lost),
	CASE(retire_cancelled_settles_once),
	CASE(confirmed_write_is_counted_when_it_is_done),
	CASE(confirmed_writes_among_cancelled_ones_settle),
	CASE(confirmed_pages_are_counted_when_they_are_done),
};
GROUP(owes, cases);
