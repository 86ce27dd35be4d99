/* SPDX-License-Identifier: Apache-2.0 */
/* Counting immediates: contract C1 and C2 without lost peers. */
#include "contract/fixture.h"

#include <stdlib.h>
#include <string.h>

/* Goal: immediates that came before an expectation count towards it, without further traffic. */
static void imm_before_the_expectation_case_01_fires_at_once(void **state)
{
	struct node *a = node_open(4096), *b = node_open(4096);
	struct wimm_remote_mr *to = remote_of(a, b);
	uint64_t sent;
	struct result *r;

	(void)state;
	for (int i = 0; i < 3; i++)
		result_ok(write_imm(a, to, 0, 0, 8, 7));
	imm_reaches(b, 7, 3);
	sent = stats_of(a).writes_posted;
	r = expect(b, 7, 3);
	result_ok(r);
	assert_int_equal(r->imm, 7);
	assert_int_equal(imm_now(b, 7), 0);
	assert_int_equal(stats_of(a).writes_posted, sent);
}

/* Goal: small batches lose no immediate, whatever their size. */
static void imm_of_small_batches_case_03_are_all_counted(void **state)
{
	struct node *a = node_open(8192), *b = node_open(20 * 8192);
	struct wimm_remote_mr *to = remote_of(a, b);
	unsigned rounds = 2 * test_scale();

	(void)state;
	fill(a->mem, 8192, 3);
	for (unsigned round = 0; round < (rounds > 200 ? 200 : rounds); round++) {
		for (uint32_t k = 1; k <= 20; k++) {
			struct result *fires = expect(b, k, k);

			for (uint32_t i = 0; i < k; i++)
				(void)write_imm(a, to, 0, i * 8192, 8192, k);
			result_ok(fires);
			assert_int_equal(imm_now(b, k), 0);
		}
	}
}

/* Goal: one immediate a write and one a page, whatever the length and the number of NICs. */
static void imm_count_case_05_does_not_depend_on_sharding(void **state)
{
	static const uint64_t lengths[] = { 1, 8191, 8192, 8193, 100000, 1 << 20 };
	struct node *a = node_open(1 << 20), *b = node_open(1 << 20);
	struct wimm_remote_mr *to = remote_of(a, b);
	struct wimm_paged_writes p = WIMM_PAGED_WRITES_INIT;
	uint32_t indices[64];

	(void)state;
	fill(a->mem, a->bytes, 5);
	for (uint32_t i = 0; i < 6; i++) {
		memset(b->mem, 0, b->bytes);
		result_ok(write_imm(a, to, 0, 0, lengths[i], i));
		imm_reaches(b, i, 1);
		assert_true(holds(b->mem, lengths[i], 5));
		assert_true(all_are(b->mem + lengths[i], b->bytes - lengths[i], 0));
	}
	for (uint32_t i = 0; i < 64; i++)
		indices[i] = i;
	p.flags = WIMM_IMM;
	p.imm = 77;
	p.src = a->mr;
	p.dst = to;
	p.src_pages = p.dst_pages = (struct wimm_pages){ indices, 64, 4096, 0 };
	p.page_len_bytes = 4096;
	result_ok(submit_pages(a, &p));
	imm_reaches(b, 77, 64);
	/* Nothing more comes of the earlier ones. */
	for (uint32_t i = 0; i < 6; i++)
		assert_int_equal(imm_now(b, i), 1);
}

/* Goal: what arrives after an expectation has fired waits for the next one and harms nothing. */
static void imm_late_case_07_counts_for_the_next_expectation(void **state)
{
	struct node *a = node_open(64), *b = node_open(64);
	struct wimm_remote_mr *to = remote_of(a, b);
	struct result *first = expect(b, 9, 1);

	(void)state;
	(void)write_imm(a, to, 0, 0, 8, 9);
	result_ok(first);
	for (int i = 0; i < 3; i++)
		(void)write_imm(a, to, 0, 0, 8, 9);
	for (int i = 0; i < 2; i++)
		(void)write_imm(a, to, 0, 0, 8, 10);
	imm_reaches(b, 9, 3);
	imm_reaches(b, 10, 2);
	result_ok(expect(b, 9, 3));
	assert_int_equal(imm_now(b, 10), 2);
	assert_int_equal(imm_now(b, 11), 0);
}

struct rearm {
	struct node *b;
	uint32_t rounds, target, fired, failed;
	bool hold;
};

static bool released(void *arg)
{
	return !((struct rearm *)arg)->hold;
}

static void rearm_fired(void *context, const struct wimm_done *done)
{
	struct rearm *r = context;
	struct wimm_on_done again = { .fn = rearm_fired, .context = r };
	bool more, failed = done->status != WIMM_OK;

	/* A slow callback: the sender is done with the next rounds before this one re-arms. */
	if (!cfg.driven)
		(void)gate_wait(released, r);
	gate_lock();
	more = r->fired + 1 < r->rounds;
	gate_unlock();
	if (more &&
	    wimm_expect_imm_count(r->b->engine, 4, r->target, NULL, &again, NULL) != WIMM_OK)
		failed = true;
	gate_lock();
	r->fired++;
	r->failed += failed;
	gate_unlock();
}

static bool all_rounds_fired(void *arg)
{
	struct rearm *r = arg;
	bool yes;

	gate_lock();
	yes = r->fired == r->rounds;
	gate_unlock();
	return yes;
}

/* Goal: rounds that arrive while the callback of an earlier one is busy are neither lost nor
 * merged: one callback a round. */
static void imm_rounds_case_09_survive_a_slow_callback(void **state)
{
	struct node *a = node_open(64), *b = node_open(64);
	struct wimm_remote_mr *to = remote_of(a, b);
	struct rearm r = { .b = b, .rounds = 400 * test_scale(), .target = 4, .hold = true };
	struct wimm_on_done done = { .fn = rearm_fired, .context = &r };
	struct wimm_write w = single(a, to, 0, 0, 8);

	(void)state;
	if (r.rounds > 10000)
		r.rounds = 10000;
	assert_ok(wimm_expect_imm_count(b->engine, 4, r.target, NULL, &done, NULL));
	w.flags = WIMM_IMM;
	w.imm = 4;
	for (uint32_t i = 0; i < r.rounds * r.target; i++) {
		wimm_status st;

		while ((st = wimm_submit_single_write(a->engine, &w, NULL, NULL)) == WIMM_AGAIN)
			drive();
		assert_ok(st);
		if (i == 8) { /* the second round is under way, the first is being handled */
			gate_lock();
			r.hold = false;
			gate_unlock();
		}
	}
	assert_wait(all_rounds_fired, &r);
	assert_int_equal(r.failed, 0);
	assert_int_equal(imm_now(b, 4), 0);
	assert_int_equal(stats_of(b).expectations, 0);
}

/* Goal: every 32-bit value is its own counter, and no value means "none". */
static void imm_extreme_values_case_11_are_ordinary(void **state)
{
	static const uint32_t values[] = { 0, 1, 0x7fffffff, 0x80000000, 0xfffffffe, 0xffffffff };
	struct node *a = node_open(64), *b = node_open(64);
	struct wimm_remote_mr *to = remote_of(a, b);
	struct wimm_write plain = single(a, to, 0, 0, 8);

	(void)state;
	for (uint32_t i = 0; i < 6; i++)
		for (uint32_t k = 0; k <= i; k++)
			(void)write_imm(a, to, 0, 0, 8, values[i]);
	/* Without the flag the field is not sent. */
	plain.imm = 1;
	result_ok(submit_write(a, &plain));
	for (uint32_t i = 0; i < 6; i++)
		imm_reaches(b, values[i], i + 1);
	for (uint32_t i = 0; i < 6; i++) {
		struct result *r = expect(b, values[i], i + 1);

		result_ok(r);
		assert_int_equal(r->imm, values[i]);
		assert_int_equal(imm_now(b, values[i]), 0);
	}
}

/* Goal: counters are per value, summed over the peers that write it. */
static void imm_counters_case_12_sum_over_peers_and_never_mix(void **state)
{
	static const uint32_t values[] = { 0x00010002, 0x00020001 };
	struct node *b = node_open(64);
	struct result *fires[2] = { expect(b, values[0], 30), expect(b, values[1], 30) };

	(void)state;
	for (int peer = 0; peer < 3; peer++) {
		struct node *a = node_open(64);
		struct wimm_remote_mr *to = remote_of(a, b);

		for (int i = 0; i < 20; i++)
			(void)write_imm(a, to, 0, 0, 8, values[i % 2]);
	}
	result_ok(fires[0]);
	result_ok(fires[1]);
	assert_int_equal(imm_now(b, values[0]) + imm_now(b, values[1]), 0);
	assert_int_equal(imm_now(b, 0x00010001) + imm_now(b, 0x00020002), 0);
	assert_int_equal(stats_of(b).imms_received, 60);
}

/* Goal: expectations on one value are served in the order in which they were made (C2). */
static void expectations_on_one_value_fire_in_order(void **state)
{
	struct node *a = node_open(64), *b = node_open(64);
	struct wimm_remote_mr *to = remote_of(a, b);
	struct result *two = expect(b, 5, 2), *three = expect(b, 5, 3), *one = expect(b, 5, 1);

	(void)state;
	(void)write_imm(a, to, 0, 0, 8, 5);
	imm_reaches(b, 5, 1);
	/* One is there, which would do for the third; the first still waits. */
	drive_rounds(20);
	assert_false(result_there(one));
	(void)write_imm(a, to, 0, 0, 8, 5);
	result_ok(two);
	for (int i = 0; i < 2; i++)
		(void)write_imm(a, to, 0, 0, 8, 5);
	imm_reaches(b, 5, 2);
	assert_false(result_there(three));
	assert_false(result_there(one));
	for (int i = 0; i < 2; i++)
		(void)write_imm(a, to, 0, 0, 8, 5);
	result_ok(three);
	result_ok(one);
	assert_int_equal(imm_now(b, 5), 0);
}

/* Goal: a cancelled expectation takes nothing away and lets those behind it fire. */
static void expectation_cancelled_takes_nothing_and_frees_those_behind(void **state)
{
	struct node *a = node_open(64), *b = node_open(64);
	struct wimm_remote_mr *to = remote_of(a, b);
	struct result *ten = expect(b, 1, 10), *two = expect(b, 1, 2);

	(void)state;
	for (int i = 0; i < 3; i++)
		(void)write_imm(a, to, 0, 0, 8, 1);
	imm_reaches(b, 1, 3);
	assert_false(result_there(two));
	assert_ok(wimm_cancel(b->engine, ten->id));
	result_is(ten, WIMM_E_CANCELLED);
	assert_non_null(strstr(ten->text, "3 of 10"));
	result_ok(two);
	assert_int_equal(imm_now(b, 1), 1);
	assert_int_equal(wimm_cancel(b->engine, ten->id), WIMM_E_NOT_FOUND);
}

/* Goal: an expectation ends at its deadline, naming both numbers, and takes nothing away. */
static void expectation_at_its_deadline_times_out(void **state)
{
	struct node *a = node_open(64), *b = node_open(64);
	struct wimm_remote_mr *to = remote_of(a, b);
	struct wimm_expect_opts opts = WIMM_EXPECT_OPTS_INIT;
	struct result *r;

	(void)state;
	(void)write_imm(a, to, 0, 0, 8, 2);
	imm_reaches(b, 2, 1);
	opts.deadline_us = 3000;
	r = expect_with(b, 2, 2, &opts);
	result_is(r, WIMM_E_TIMEOUT);
	assert_non_null(strstr(r->text, "1 of 2"));
	assert_int_equal(imm_now(b, 2), 1);
	/* One that is satisfied in time does not time out, however near the deadline. */
	opts.deadline_us = UINT64_MAX;
	result_ok(expect_with(b, 2, 1, &opts));
}

/* Goal: a flag tells the end of an operation without a callback. */
static void expectation_with_a_flag_sets_it_once(void **state)
{
	struct node *a = node_open(64), *b = node_open(64);
	struct wimm_remote_mr *to = remote_of(a, b);
	uint64_t fired = 0, cancelled = 0;
	struct wimm_on_done to_fired = { .flag = &fired }, to_cancelled = { .flag = &cancelled };
	wimm_op op;

	(void)state;
	assert_ok(wimm_expect_imm_count(b->engine, 3, 1, NULL, &to_fired, NULL));
	assert_ok(wimm_expect_imm_count(b->engine, 3, 1, NULL, &to_cancelled, &op));
	assert_int_equal(wimm_flag_load(&fired), 0);
	(void)write_imm(a, to, 0, 0, 8, 3);
	drive_until(wimm_flag_load(&fired) != 0);
	assert_int_equal(wimm_flag_load(&fired), 1);
	assert_ok(wimm_cancel(b->engine, op));
	drive_until(wimm_flag_load(&cancelled) != 0);
	assert_int_equal(wimm_flag_load(&cancelled), WIMM_E_CANCELLED);
}

/* Goal: forget drops what is there, says how much, and leaves expectations standing. */
static void forget_returns_the_count_and_leaves_expectations(void **state)
{
	struct node *a = node_open(64), *b = node_open(64);
	struct wimm_remote_mr *to = remote_of(a, b);
	struct result *r;
	uint64_t dropped = 99;

	(void)state;
	assert_ok(wimm_forget_imm(b->engine, 6, &dropped));
	assert_int_equal(dropped, 0);
	for (int i = 0; i < 5; i++)
		(void)write_imm(a, to, 0, 0, 8, 6);
	imm_reaches(b, 6, 5);
	r = expect(b, 6, 6);
	assert_ok(wimm_forget_imm(b->engine, 6, &dropped));
	assert_int_equal(dropped, 5);
	assert_ok(wimm_forget_imm(b->engine, 6, NULL));
	for (int i = 0; i < 5; i++)
		(void)write_imm(a, to, 0, 0, 8, 6);
	imm_reaches(b, 6, 5);
	assert_false(result_there(r));
	(void)write_imm(a, to, 0, 0, 8, 6);
	result_ok(r);
}

/* Goal: a count of 0 or above 2^63 is refused; 2^63 is not. */
static void expectation_of_an_impossible_count_is_refused(void **state)
{
	struct node *b = node_open(64);
	struct result *r;

	(void)state;
	assert_refused(wimm_expect_imm_count(b->engine, 1, 0, NULL, NULL, NULL), WIMM_E_INVAL,
	               "not to 0");
	assert_refused(
		wimm_expect_imm_count(b->engine, 1, (UINT64_C(1) << 63) + 1, NULL, NULL, NULL),
		WIMM_E_INVAL, "9223372036854775809");
	r = expect(b, 1, UINT64_C(1) << 63);
	assert_ok(wimm_cancel(b->engine, r->id));
	result_is(r, WIMM_E_CANCELLED);
}

/* Goal: a peer that makes more unexpected values than the setting allows loses its connection and
 * nobody else anything; expected values do not count against it. */
static void imm_values_beyond_the_limit_cost_the_connection(void **state)
{
	enum { LIMIT = 65536 };
	struct node *a = node_open(64), *b = node_open(64), *c = node_open(64);
	struct wimm_remote_mr *to = remote_of(a, b), *other = remote_of(c, b);
	struct wimm_write w = single(a, to, 0, 0, 0);
	struct result *r;

	(void)state;
	w.flags = WIMM_IMM;
	for (uint32_t i = 0; i < LIMIT; i++) {
		wimm_status st;

		w.imm = i;
		while ((st = wimm_submit_single_write(a->engine, &w, NULL, NULL)) == WIMM_AGAIN)
			drive();
		assert_ok(st);
	}
	result_ok(write_imm(c, other, 0, 0, 8, 5));
	imm_reaches(b, 5, 2);
	imm_reaches(b, LIMIT - 1, 1);
	/* A value that somebody waits for is no burden. */
	r = expect(b, 1u << 20, 1);
	result_ok(write_imm(a, to, 0, 0, 8, 1u << 20));
	result_ok(r);
	assert_int_equal(stats_of(b).peers_up, 2);
	/* One more is too many. */
	r = write_imm(a, to, 0, 0, 8, 1u << 21);
	result_wait(r);
	drive_until(node_events(b, WIMM_PEER_DOWN) != 0);
	assert_int_equal(b->event[b->event_count - 1].cause, WIMM_E_LIMIT);
	assert_non_null(strstr(b->event_text, "unexpected_imms"));
	assert_int_equal(imm_now(b, LIMIT - 1), 0);
	result_ok(write_imm(c, other, 0, 0, 8, 6));
	imm_reaches(b, 6, 1);
	assert_int_equal(imm_now(b, 5), 1);
}

static const struct contract_case cases[] = {
	CASE(imm_before_the_expectation_case_01_fires_at_once),
	CASE(imm_of_small_batches_case_03_are_all_counted),
	CASE(imm_count_case_05_does_not_depend_on_sharding),
	CASE(imm_late_case_07_counts_for_the_next_expectation),
	CASE(imm_rounds_case_09_survive_a_slow_callback),
	CASE(imm_extreme_values_case_11_are_ordinary),
	CASE(imm_counters_case_12_sum_over_peers_and_never_mix),
	CASE(expectations_on_one_value_fire_in_order),
	CASE(expectation_cancelled_takes_nothing_and_frees_those_behind),
	CASE(expectation_at_its_deadline_times_out),
	CASE(expectation_with_a_flag_sets_it_once),
	CASE(forget_returns_the_count_and_leaves_expectations),
	CASE(expectation_of_an_impossible_count_is_refused),
	CASE_ONLY(imm_values_beyond_the_limit_cost_the_connection, ONLY_ONE_NIC),
};
GROUP(imm, cases);
