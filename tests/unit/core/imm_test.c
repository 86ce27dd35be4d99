/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include "base/alloc.h"
#include "core/imm.h"

#include <stdlib.h>

enum { LIMIT = 8 };

struct fixture {
	struct imm_table *t;
	struct list fired, failed;
	uint64_t live_blocks;
};

static int set_up(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));

	if (!f)
		return -1;
	f->live_blocks = mem_live_blocks();
	list_init(&f->fired);
	list_init(&f->failed);
	*state = f;
	return imm_open(LIMIT, &f->t);
}

static int tear_down(void **state)
{
	struct fixture *f = *state;
	uint64_t live_blocks = f->live_blocks;

	imm_close(f->t);
	free(f);
	return mem_live_blocks() == live_blocks ? 0 : -1;
}

static struct imm_expect *expect(struct fixture *f, struct imm_expect *e, uint32_t imm,
                                 uint64_t count)
{
	*e = (struct imm_expect){ .imm = imm, .count = count };
	list_init(&e->link);
	assert_ok(imm_expect(f->t, e, &f->fired));
	return e;
}

static struct imm_expect *expect_owes(struct fixture *f, struct imm_expect *e, uint32_t imm,
                                      uint64_t count, struct imm_owes *owes, uint32_t owes_count)
{
	*e = (struct imm_expect){
		.imm = imm, .count = count, .owes = owes, .owes_count = owes_count
	};
	list_init(&e->link);
	assert_ok(imm_expect(f->t, e, &f->fired));
	return e;
}

static void arrive(struct fixture *f, uint32_t peer, uint32_t imm, uint64_t count)
{
	assert_ok(imm_arrived(f->t, peer, imm, count, &f->fired));
}

/* The next expectation of a list; NULL when empty. */
static struct imm_expect *next_of(struct list *l)
{
	struct list *link = list_pop_front(l);

	return link ? LIST_ENTRY(link, struct imm_expect, link) : NULL;
}

static void assert_fires(struct fixture *f, const struct imm_expect *e)
{
	assert_ptr_equal(next_of(&f->fired), e);
	assert_false(e->waiting);
}

/* --- the cases --- */

static void case_1_immediates_before_the_expectation_count(void **state)
{
	/* Goal: an expectation made late fires at once, without further arrivals. */
	struct fixture *f = *state;
	struct imm_expect e;

	for (int i = 0; i < 3; i++)
		arrive(f, 0, 7, 1);
	expect(f, &e, 7, 3);
	assert_fires(f, &e);
	assert_true(imm_count(f->t, 7) == 0);
	assert_true(imm_values(f->t) == 0);
}

static void case_5_one_arrival_call_may_carry_many(void **state)
{
	/* Goal: the count is what arrived, however the arrivals were batched. */
	struct fixture *f = *state;
	struct imm_expect e;

	expect(f, &e, 7, 65);
	arrive(f, 0, 7, 64);
	assert_null(next_of(&f->fired));
	arrive(f, 0, 7, 0);
	assert_null(next_of(&f->fired));
	assert_true(imm_count(f->t, 7) == 64);
	arrive(f, 0, 7, 1);
	assert_fires(f, &e);
}

static void case_7_late_immediates_wait_for_a_later_expectation(void **state)
{
	/* Goal: arrivals after their expectation are counted, reported to nobody, found later. */
	struct fixture *f = *state;
	struct imm_expect first, second;

	expect(f, &first, 9, 1);
	arrive(f, 0, 9, 1);
	assert_fires(f, &first);
	for (int i = 0; i < 3; i++)
		arrive(f, 0, 9, 1);
	arrive(f, 0, 10, 2);
	assert_null(next_of(&f->fired));
	assert_true(imm_count(f->t, 9) == 3);
	assert_true(imm_count(f->t, 10) == 2);
	expect(f, &second, 9, 3);
	assert_fires(f, &second);
	assert_true(imm_count(f->t, 10) == 2);
}

static void case_9_a_round_that_comes_early_is_not_lost(void **state)
{
	/* Goal: two rounds' immediates at once fire two rounds' expectations, one each. */
	struct fixture *f = *state;
	struct imm_expect e;

	for (int round = 0; round < 1000; round += 2) {
		expect(f, &e, 4, 4);
		arrive(f, 0, 4, 8);
		assert_fires(f, &e);
		assert_null(next_of(&f->fired));
		expect(f, &e, 4, 4);
		assert_fires(f, &e);
		assert_null(next_of(&f->fired));
		assert_true(imm_values(f->t) == 0);
	}
}

static void case_11_extreme_values_count_apart(void **state)
{
	/* Goal: no value is reserved, signed or mixed with another. */
	static const uint32_t imms[] = { 0, 1, 0x7fffffff, 0x80000000, 0xfffffffe, 0xffffffff };
	enum { N = sizeof(imms) / sizeof(imms[0]) };
	struct fixture *f = *state;
	struct imm_expect e[N];

	for (uint32_t i = 0; i < N; i++) {
		arrive(f, 0, imms[i], i + 1);
		for (uint32_t j = 0; j < N; j++)
			assert_true(imm_count(f->t, imms[j]) == (j <= i ? j + 1 : 0));
	}
	for (uint32_t i = 0; i < N; i++) {
		expect(f, &e[i], imms[i], i + 2);
		assert_null(next_of(&f->fired));
	}
	for (uint32_t i = 0; i < N; i++) {
		arrive(f, 0, imms[i], 1);
		assert_fires(f, &e[i]);
		assert_null(next_of(&f->fired));
	}
}

static void case_12_counters_are_per_value_and_sum_over_peers(void **state)
{
	/* Goal: three peers add up on each value; values with swapped halves stay apart. */
	struct fixture *f = *state;
	struct imm_expect a, b;

	expect(f, &a, 0x00010002, 30);
	expect(f, &b, 0x00020001, 30);
	for (uint32_t i = 0; i < 10; i++) {
		for (uint32_t peer = 0; peer < 3; peer++) {
			assert_null(next_of(&f->fired));
			arrive(f, peer, 0x00010002, 1);
			if (i == 9 && peer == 2)
				assert_fires(f, &a);
			arrive(f, peer, 0x00020001, 1);
		}
	}
	assert_fires(f, &b);
	assert_null(next_of(&f->fired));
	assert_true(imm_values(f->t) == 0);
}

/* --- order, cancel, forget --- */

static void imm_expectations_of_one_value_fire_in_order(void **state)
{
	/* Goal: a small expectation does not overtake a large one; one arrival may fire several. */
	struct fixture *f = *state;
	struct imm_expect e[3];

	expect(f, &e[0], 5, 10);
	expect(f, &e[1], 5, 1);
	expect(f, &e[2], 5, 2);
	arrive(f, 0, 5, 9);
	assert_null(next_of(&f->fired));
	arrive(f, 1, 5, 4);
	for (int i = 0; i < 3; i++)
		assert_fires(f, &e[i]);
	assert_true(imm_count(f->t, 5) == 0);
}

static void imm_cancel_takes_nothing_and_frees_those_behind(void **state)
{
	/* Goal: what a cancelled expectation waited for counts for the next one. */
	struct fixture *f = *state;
	struct imm_expect e[3];

	expect(f, &e[0], 5, 10);
	expect(f, &e[1], 5, 4);
	expect(f, &e[2], 5, 2);
	arrive(f, 0, 5, 5);
	imm_cancel(f->t, &e[0], &f->fired);
	assert_false(e[0].waiting);
	assert_fires(f, &e[1]);
	assert_null(next_of(&f->fired));
	imm_cancel(f->t, &e[2], &f->fired);
	assert_null(next_of(&f->fired));
	assert_true(imm_count(f->t, 5) == 1);
}

static void imm_forget_drops_the_count_and_keeps_expectations(void **state)
{
	/* Goal: forget says how many there were; an expectation needs its full number again. */
	struct fixture *f = *state;
	struct imm_expect e;

	assert_true(imm_forget(f->t, 3) == 0);
	arrive(f, 0, 3, 2);
	arrive(f, 1, 3, 5);
	assert_true(imm_forget(f->t, 3) == 7);
	assert_true(imm_values(f->t) == 0);
	expect(f, &e, 3, 4);
	arrive(f, 0, 3, 3);
	assert_true(imm_forget(f->t, 3) == 3);
	arrive(f, 0, 3, 3);
	assert_null(next_of(&f->fired));
	arrive(f, 0, 3, 1);
	assert_fires(f, &e);
}

static void imm_take_all_returns_every_waiting_expectation_in_order(void **state)
{
	/* Goal: at close each expectation comes back once, and the counts stay. */
	struct fixture *f = *state;
	struct imm_owes owes = { .peer_slot = 1, .count = 1 };
	struct imm_expect e[3];
	struct list all;

	list_init(&all);
	expect(f, &e[0], 8, 2);
	expect_owes(f, &e[1], 4, 2, &owes, 1);
	expect(f, &e[2], 8, 1);
	arrive(f, 0, 8, 1);
	imm_take_all(f->t, &all);
	assert_ptr_equal(next_of(&all), &e[0]);
	assert_ptr_equal(next_of(&all), &e[2]);
	assert_ptr_equal(next_of(&all), &e[1]);
	assert_null(next_of(&all));
	assert_true(imm_count(f->t, 8) == 1);
	assert_true(imm_values(f->t) == 1);
	imm_peer_lost(f->t, 1, &f->failed, &f->fired);
	assert_null(next_of(&f->failed));
}

/* --- lost peers --- */

static void imm_lost_peer_that_still_owes_fails_the_expectation_by_name(void **state)
{
	/* Goal: the failure names the peer, takes nothing, and lets the next one fire. */
	struct fixture *f = *state;
	struct imm_owes owes[2] = { { .peer_slot = 0, .count = 5 },
		                    { .peer_slot = 1, .count = 5 } };
	struct imm_expect e[2];

	expect_owes(f, &e[0], 5, 10, owes, 2);
	expect(f, &e[1], 5, 3);
	arrive(f, 0, 5, 4);
	arrive(f, 1, 5, 4);
	imm_peer_lost(f->t, 1, &f->failed, &f->fired);
	assert_ptr_equal(next_of(&f->failed), &e[0]);
	assert_int_equal(e[0].lost_peer_slot, 1);
	assert_false(e[0].waiting);
	assert_fires(f, &e[1]);
	assert_true(imm_count(f->t, 5) == 1);
}

static void imm_lost_peer_that_has_delivered_may_go(void **state)
{
	/* Goal: its part stays with the expectation; the rest is dropped; its slot is clean. */
	struct fixture *f = *state;
	struct imm_owes owes[2] = { { .peer_slot = 0, .count = 5 },
		                    { .peer_slot = 1, .count = 5 } };
	struct imm_expect e;

	expect_owes(f, &e, 5, 12, owes, 2);
	arrive(f, 1, 5, 6);
	imm_peer_lost(f->t, 1, &f->failed, &f->fired);
	assert_null(next_of(&f->failed));
	assert_true(e.kept == 5);
	assert_true(imm_count(f->t, 5) == 0);
	imm_peer_lost(f->t, 1, &f->failed, &f->fired);
	assert_null(next_of(&f->failed));
	arrive(f, 1, 5, 1);
	arrive(f, 0, 5, 5);
	assert_null(next_of(&f->fired));
	arrive(f, 2, 5, 1);
	assert_fires(f, &e);
	assert_true(imm_values(f->t) == 0);
}

static void imm_lost_peer_leaves_nothing_to_its_successor(void **state)
{
	/* Goal: unconsumed counts of a lost peer are gone, those of the others stay. */
	struct fixture *f = *state;
	struct imm_expect e;

	arrive(f, 0, 5, 2);
	arrive(f, 1, 5, 3);
	arrive(f, 1, 6, 3);
	imm_peer_lost(f->t, 1, &f->failed, &f->fired);
	assert_true(imm_count(f->t, 5) == 2);
	assert_true(imm_count(f->t, 6) == 0);
	assert_true(imm_values(f->t) == 1);
	expect(f, &e, 5, 3);
	imm_peer_lost(f->t, 0, &f->failed, &f->fired);
	arrive(f, 1, 5, 2);
	assert_null(next_of(&f->fired));
	arrive(f, 1, 5, 1);
	assert_fires(f, &e);
}

static void imm_lost_peer_delivered_in_queue_order(void **state)
{
	/* Goal: one delivery is never taken for two expectations' parts; doubt fails. */
	struct fixture *f = *state;
	struct imm_owes owes[3][2];
	struct imm_expect e[3];

	for (int i = 0; i < 3; i++) {
		owes[i][0] = (struct imm_owes){ .peer_slot = 0, .count = 2 };
		owes[i][1] = (struct imm_owes){ .peer_slot = 1, .count = 2 };
		expect_owes(f, &e[i], 5, 4, owes[i], 2);
	}
	arrive(f, 0, 5, 3);
	imm_peer_lost(f->t, 0, &f->failed, &f->fired);
	assert_ptr_equal(next_of(&f->failed), &e[1]);
	assert_ptr_equal(next_of(&f->failed), &e[2]);
	assert_null(next_of(&f->failed));
	arrive(f, 1, 5, 2);
	assert_fires(f, &e[0]);
}

static void imm_lost_peer_with_an_open_expectation_ahead_has_not_delivered(void **state)
{
	/* Goal: what an earlier expectation could take is not taken for a later one's part. */
	struct fixture *f = *state;
	struct imm_owes owes = { .peer_slot = 0, .count = 2 };
	struct imm_expect open, e;

	expect(f, &open, 5, 10);
	expect_owes(f, &e, 5, 4, &owes, 1);
	arrive(f, 0, 5, 2);
	imm_peer_lost(f->t, 0, &f->failed, &f->fired);
	assert_ptr_equal(next_of(&f->failed), &e);
	assert_true(open.waiting);
	imm_cancel(f->t, &open, &f->fired);
	assert_true(imm_values(f->t) == 0);
}

static void imm_left_peer_keeps_what_it_delivered_countable(void **state)
{
	/* Goal: after a goodbye its counts still fire expectations, also together with others'. */
	struct fixture *f = *state;
	struct imm_expect e[2];

	arrive(f, 0, 5, 2);
	arrive(f, 1, 5, 3);
	arrive(f, 1, 6, 4);
	arrive(f, 2, 5, 1);
	imm_peer_left(f->t, 1, &f->failed, &f->fired);
	imm_peer_left(f->t, 2, &f->failed, &f->fired);
	assert_true(imm_count(f->t, 5) == 6);
	arrive(f, 1, 6, 1); /* its successor in the slot */
	imm_peer_lost(f->t, 1, &f->failed, &f->fired);
	assert_true(imm_count(f->t, 6) == 4);
	assert_fires(f, expect(f, &e[0], 6, 4));
	assert_fires(f, expect(f, &e[1], 5, 6));
	assert_true(imm_values(f->t) == 0);
}

static void imm_left_peer_that_owes_fails_the_expectation_one_that_delivered_does_not(void **state)
{
	/* Goal: nothing is counted twice for a part delivered before the goodbye. */
	struct fixture *f = *state;
	struct imm_owes owes[2] = { { .peer_slot = 0, .count = 2 },
		                    { .peer_slot = 1, .count = 2 } };
	struct imm_expect e;

	expect_owes(f, &e, 5, 4, owes, 2);
	arrive(f, 0, 5, 2);
	imm_peer_left(f->t, 0, &f->failed, &f->fired);
	assert_null(next_of(&f->failed));
	arrive(f, 1, 5, 1);
	assert_null(next_of(&f->fired));
	assert_true(imm_count(f->t, 5) == 3);
	imm_peer_left(f->t, 1, &f->failed, &f->fired);
	assert_ptr_equal(next_of(&f->failed), &e);
	assert_true(imm_forget(f->t, 5) == 3);
}

static void imm_left_peers_keep_at_most_the_limit_of_values(void **state)
{
	/* Goal: coming and going does not grow the table without bound. */
	struct fixture *f = *state;

	for (uint32_t round = 0; round < 4; round++) {
		for (uint32_t i = 0; i < LIMIT; i++)
			arrive(f, round, round * LIMIT + i, 1);
		imm_peer_left(f->t, round, &f->failed, &f->fired);
	}
	assert_true(imm_values(f->t) == LIMIT);
}

static void imm_firing_takes_from_named_peers_first(void **state)
{
	/* Goal: an older share of a peer that is not named survives when the named ones suffice. */
	struct fixture *f = *state;
	struct imm_owes owes = { .peer_slot = 1, .count = 2 };
	struct imm_expect e;

	arrive(f, 0, 5, 2);
	arrive(f, 2, 5, 1);
	arrive(f, 1, 5, 3);
	expect_owes(f, &e, 5, 3, &owes, 1);
	assert_fires(f, &e);
	/* Peer 1 gave 2 of 3, peer 0 (the oldest) 1 of 2. */
	assert_true(imm_count(f->t, 5) == 3);
	imm_peer_lost(f->t, 1, &f->failed, &f->fired);
	assert_true(imm_count(f->t, 5) == 2);
	imm_peer_lost(f->t, 0, &f->failed, &f->fired);
	assert_true(imm_count(f->t, 5) == 1);
}

/* --- bounds --- */

static void imm_values_beyond_the_limit_are_refused_until_one_is_consumed(void **state)
{
	/* Goal: a peer cannot make us hold entries without bound; expected values are free. */
	struct fixture *f = *state;
	struct imm_expect e, wanted;

	for (uint32_t i = 0; i < LIMIT; i++)
		arrive(f, 0, i, 1);
	assert_int_equal(imm_arrived(f->t, 0, LIMIT, 1, &f->fired), WIMM_E_LIMIT);
	assert_true(imm_count(f->t, LIMIT) == 0);
	assert_true(imm_values(f->t) == LIMIT);
	arrive(f, 0, 3, 1);
	arrive(f, 1, LIMIT, 1);
	assert_int_equal(imm_arrived(f->t, 0, LIMIT, 1, &f->fired), WIMM_E_LIMIT);
	expect(f, &e, 1000, 2);
	arrive(f, 0, 1000, 1);
	expect(f, &wanted, 2, 100);
	arrive(f, 0, LIMIT, 1);
	assert_int_equal(imm_arrived(f->t, 0, 2000, 1, &f->fired), WIMM_E_LIMIT);
	imm_cancel(f->t, &wanted, &f->fired);
	imm_cancel(f->t, &e, &f->fired);
	assert_true(imm_forget(f->t, 1000) == 1);
	assert_int_equal(imm_arrived(f->t, 0, 2000, 1, &f->fired), WIMM_E_LIMIT);
	assert_true(imm_forget(f->t, 0) == 1);
	assert_int_equal(imm_arrived(f->t, 0, 2000, 1, &f->fired), WIMM_E_LIMIT);
	assert_true(imm_forget(f->t, 1) == 1);
	arrive(f, 0, 2000, 1);
	imm_peer_lost(f->t, 0, &f->failed, &f->fired);
	for (uint32_t i = 0; i < LIMIT; i++)
		arrive(f, 0, i, 1);
}

static void imm_counts_beyond_64_bits_are_refused(void **state)
{
	/* Goal: a peer's absurd count neither wraps the sum nor fires anything. */
	struct fixture *f = *state;
	struct imm_expect e;

	arrive(f, 0, 5, UINT64_MAX / 2 + 1);
	assert_int_equal(imm_arrived(f->t, 0, 5, UINT64_MAX / 2 + 1, &f->fired), WIMM_E_LIMIT);
	assert_int_equal(imm_arrived(f->t, 1, 5, UINT64_MAX, &f->fired), WIMM_E_LIMIT);
	assert_true(imm_count(f->t, 5) == UINT64_MAX / 2 + 1);
	expect(f, &e, 5, UINT64_C(1) << 63);
	assert_fires(f, &e);
	assert_true(imm_count(f->t, 5) == 0);
}

/* --- memory --- */

static void imm_steady_state_allocates_nothing(void **state)
{
	/* Goal: rounds of expectations and arrivals on values seen before need no new memory. */
	struct fixture *f = *state;
	struct imm_expect e[4];

	for (int round = 0; round < 100; round++) {
		if (round == 1)
			mem_fail_nth(1);
		for (uint32_t v = 0; v < 4; v++)
			expect(f, &e[v], v, 6);
		for (uint32_t peer = 0; peer < 6; peer++)
			for (uint32_t v = 0; v < 4; v++)
				arrive(f, peer, v, 1);
		for (uint32_t v = 0; v < 4; v++)
			assert_fires(f, &e[v]);
	}
	assert_false(mem_fail_fired());
	mem_fail_nth(0);
}

static void imm_open_without_memory_leaves_nothing(void **state)
{
	/* Goal: each allocation of open can fail cleanly. */
	uint64_t before = mem_live_blocks();
	struct imm_table *t = NULL;
	uint64_t n = 1;

	(void)state;
	for (;; n++) {
		wimm_status st;

		mem_fail_nth(n);
		st = imm_open(LIMIT, &t);
		if (!mem_fail_fired()) {
			assert_ok(st);
			break;
		}
		assert_int_equal(st, WIMM_E_NOMEM);
		assert_null(t);
		assert_true(mem_live_blocks() == before);
	}
	mem_fail_nth(0);
	assert_true(n > 1);
	imm_close(t);
	assert_true(mem_live_blocks() == before);
}

/* One step of a short story: an expectation among arrivals from new peers. */
static wimm_status story_step(struct fixture *f, struct imm_table *t, struct imm_expect *e,
                              int step)
{
	if (step == 2)
		return imm_expect(t, e, &f->fired);
	return imm_arrived(t, 100 * (uint32_t)step, 1, 1, &f->fired);
}

static void imm_call_without_memory_changes_nothing(void **state)
{
	/* Goal: whichever allocation of an arrival or expectation fails, the table is as before. */
	struct fixture *f = *state;
	uint32_t failures = 0;

	for (uint64_t n = 1; n <= 5; n++) {
		struct imm_owes owes = { .peer_slot = 1000, .count = 1 };
		struct imm_expect e = { .imm = 1, .count = 9, .owes = &owes, .owes_count = 1 };
		struct imm_table *t;

		assert_ok(imm_open(LIMIT, &t));
		for (int step = 0; step < 4; step++) {
			uint64_t values = imm_values(t), count = imm_count(t, 1);
			wimm_status st;

			mem_fail_nth(n);
			st = story_step(f, t, &e, step);
			mem_fail_nth(0);
			if (st != WIMM_OK) {
				failures++;
				assert_int_equal(st, WIMM_E_NOMEM);
				assert_true(imm_values(t) == values);
				assert_true(imm_count(t, 1) == count);
				assert_ok(story_step(f, t, &e, step));
			}
		}
		assert_true(imm_count(t, 1) == 3);
		imm_cancel(t, &e, &f->fired);
		imm_close(t);
	}
	assert_true(failures >= 8);
	assert_null(next_of(&f->fired));
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(case_1_immediates_before_the_expectation_count),
		CASE(case_5_one_arrival_call_may_carry_many),
		CASE(case_7_late_immediates_wait_for_a_later_expectation),
		CASE(case_9_a_round_that_comes_early_is_not_lost),
		CASE(case_11_extreme_values_count_apart),
		CASE(case_12_counters_are_per_value_and_sum_over_peers),
		CASE(imm_expectations_of_one_value_fire_in_order),
		CASE(imm_cancel_takes_nothing_and_frees_those_behind),
		CASE(imm_forget_drops_the_count_and_keeps_expectations),
		CASE(imm_take_all_returns_every_waiting_expectation_in_order),
		CASE(imm_lost_peer_that_still_owes_fails_the_expectation_by_name),
		CASE(imm_lost_peer_that_has_delivered_may_go),
		CASE(imm_lost_peer_leaves_nothing_to_its_successor),
		CASE(imm_lost_peer_delivered_in_queue_order),
		CASE(imm_lost_peer_with_an_open_expectation_ahead_has_not_delivered),
		CASE(imm_left_peer_keeps_what_it_delivered_countable),
		CASE(imm_left_peer_that_owes_fails_the_expectation_one_that_delivered_does_not),
		CASE(imm_left_peers_keep_at_most_the_limit_of_values),
		CASE(imm_firing_takes_from_named_peers_first),
		CASE(imm_values_beyond_the_limit_are_refused_until_one_is_consumed),
		CASE(imm_counts_beyond_64_bits_are_refused),
		CASE(imm_steady_state_allocates_nothing),
		CASE(imm_open_without_memory_leaves_nothing),
		CASE(imm_call_without_memory_changes_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
