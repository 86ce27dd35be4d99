/* SPDX-License-Identifier: Apache-2.0 */
#include "unit/core/duo.h"

enum { ENTRY = 10000 }; /* three requests of 4 KiB at most */

static const struct sim_cfg cfg = { .seed = 7, .max_write_bytes = 4096 };

static int64_t scatter_two(struct duo *d)
{
	const struct wimm_scatter_entry entries[] = {
		{ d->to, 0, 0, ENTRY },
		{ d->to, 20000, 30000, ENTRY },
	};

	return duo_scatter(d, entries, 2);
}

/* Split writes of which the receiver waits for more parts. */
static bool nothing_waits(void *arg)
{
	const struct duo *d = arg;
	uint32_t count = 0;

	duo_step(arg);
	LIST_FOR_EACH(it, &d->b->worker.peers)
		count += LIST_ENTRY(it, struct peer, link)->parts.count;
	return count == 0;
}

static void post_scatter_of_long_entries_counts_one_each(void **state)
{
	/* Goal: an entry longer than a request counts once, when all of it is there. */
	static struct duo d;

	(void)state;
	duo_open(&d, &cfg, "1", "2");
	assert_int_equal(scatter_two(&d), 1);
	duo_reaches(&d, 2);
	assert_memory_equal(d.dst, d.src, ENTRY);
	assert_memory_equal(d.dst + 30000, d.src + 20000, ENTRY);
	assert_true(nothing_waits(&d));
	duo_close(&d);
}

static void post_failing_scatter_entry_gives_up_its_own_parts(void **state)
{
	/* Goal: the receiver hears of each entry how many parts it will ever see; else it waits for
	 * the rest as long as the session lasts. The entries' first requests go first, so that one
	 * loss is of the first entry, and two are of both. */
	static struct duo d;

	(void)state;
	for (uint32_t lost = 1; lost <= 2; lost++) {
		duo_open(&d, &cfg, "1", "2");
		assert_int_equal(scatter_two(&d), 1); /* sets the session up */
		duo_reaches(&d, 2);
		sim_lose_next(d.world, 1, SIM_LOSS_UNSENT, lost);
		assert_true(scatter_two(&d) < 0);
		duo_reaches(&d, 2 + (2 - lost));
		assert_true(test_wait_until(nothing_waits, &d, TEST_DEADLINE_MS));
		duo_close(&d);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(post_scatter_of_long_entries_counts_one_each),
		cmocka_unit_test(post_failing_scatter_entry_gives_up_its_own_parts),
	};

	return cmocka_run_group_tests_name("core/post", tests, NULL, NULL);
}
