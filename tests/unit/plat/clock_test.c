/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include "plat/clock.h"

static void clock_never_runs_backwards_and_advances(void **state)
{
	/* Goal: later reads are not smaller, and within many reads one is larger. */
	uint64_t first_ns = clock_now_ns();
	uint64_t last_ns = first_ns;

	(void)state;
	for (uint32_t i = 0; i < 100000 && last_ns == first_ns; i++) {
		uint64_t now_ns = clock_now_ns();

		assert_true(now_ns >= last_ns);
		last_ns = now_ns;
	}
	assert_true(last_ns > first_ns);
}

static void clock_cached_follows_the_clock_closely(void **state)
{
	/* Goal: what is read again soon may be the same, is never ahead of the clock, and is
	 * read anew when the moment is over. */
	struct clock_cache cache = { 0, 0 };
	uint64_t first_ns = clock_cached_ns(&cache);
	uint64_t last_ns = first_ns;
	uint64_t end_ns = clock_now_ns() + 30 * CLOCK_NS_PER_S;

	(void)state;
	while (last_ns - first_ns < CLOCK_NS_PER_MS && clock_now_ns() < end_ns) {
		uint64_t now_ns = clock_cached_ns(&cache);

		assert_true(now_ns >= last_ns);
		assert_true(now_ns <= clock_now_ns());
		last_ns = now_ns;
	}
	assert_true(last_ns - first_ns >= CLOCK_NS_PER_MS);
}

static void clock_cached_after_a_jump_of_the_counter_is_read_anew(void **state)
{
	/* Goal: a counter that is behind what was seen, as on another CPU, is not believed. */
	struct clock_cache cache = { 0, 0 };
	uint64_t first_ns = clock_cached_ns(&cache);

	(void)state;
	cache.now_ns = 1;
	cache.ticks += UINT64_C(1) << 62;
	assert_true(clock_cached_ns(&cache) >= first_ns);
}

static void clock_cached_after_a_pause_is_read_anew(void **state)
{
	/* Goal: however often it was asked before, the first answer after a pause is a new one. */
	struct clock_cache cache = { 0, 0 };
	uint64_t end_ns;

	(void)state;
	for (unsigned i = 0; i < 100; i++)
		(void)clock_cached_ns(&cache);
	end_ns = clock_now_ns() + CLOCK_NS_PER_MS;
	while (clock_now_ns() < end_ns)
		;
	assert_true(clock_cached_ns(&cache) >= end_ns);
}

static void clock_deadline_saturates_at_never(void **state)
{
	/* Goal: a deadline too far away never comes instead of wrapping into the past. */
	(void)state;
	assert_true(clock_deadline_ns(5, 7) == 12);
	assert_true(clock_deadline_ns(5, CLOCK_NEVER_NS) == CLOCK_NEVER_NS);
	assert_true(clock_deadline_ns(5, CLOCK_NEVER_NS - 5) == CLOCK_NEVER_NS);
	assert_true(clock_deadline_ns(5, CLOCK_NEVER_NS - 6) == CLOCK_NEVER_NS - 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(clock_never_runs_backwards_and_advances),
		cmocka_unit_test(clock_cached_follows_the_clock_closely),
		cmocka_unit_test(clock_cached_after_a_jump_of_the_counter_is_read_anew),
		cmocka_unit_test(clock_cached_after_a_pause_is_read_anew),
		cmocka_unit_test(clock_deadline_saturates_at_never),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
