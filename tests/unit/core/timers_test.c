/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include "base/alloc.h"
#include "core/op.h"
#include "core/timers.h"
#include "plat/clock.h"
#include "plat/rand.h"

#define OPS 300

static void timers_random_use_pops_in_order(void **state)
{
	/* Goal: random adds, removes and expiries come out exactly when due, earliest first. */
	struct op *ops = mem_calloc(OPS, sizeof(*ops));
	struct timers t;
	struct rng r;
	uint32_t in = 0;
	uint64_t now = 0;

	(void)state;
	rng_init(&r, 7);
	assert_int_equal(timers_init(&t, OPS), WIMM_OK);
	for (int round = 0; round < 20000; round++) {
		struct op *op = &ops[rng_below(&r, OPS)];
		uint64_t last = 0;

		if (op->heap_index == 0) {
			op->deadline_ns = now + rng_below(&r, 1000);
			timers_add(&t, op);
			in++;
		} else if (rng_chance(&r, 1, 3)) {
			timers_remove(&t, op);
			in--;
		}
		now += rng_below(&r, 8);
		while ((op = timers_pop_due(&t, now)) != NULL) {
			assert_true(op->deadline_ns <= now && op->deadline_ns >= last);
			last = op->deadline_ns;
			in--;
		}
		assert_int_equal(t.count, in);
		for (int i = 0; i < OPS; i++)
			assert_true(ops[i].heap_index == 0 || ops[i].deadline_ns > now);
	}
	timers_fini(&t);
	mem_free(ops);
}

static void timers_empty_is_never_due(void **state)
{
	/* Goal: an empty heap is due never, and removing what is not in changes nothing. */
	struct op *op = mem_calloc(1, sizeof(*op));
	struct timers t;

	(void)state;
	assert_int_equal(timers_init(&t, 1), WIMM_OK);
	assert_true(timers_next_ns(&t) == CLOCK_NEVER_NS);
	timers_remove(&t, op);
	assert_null(timers_pop_due(&t, UINT64_MAX - 1));
	timers_fini(&t);
	mem_free(op);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(timers_random_use_pops_in_order),
		cmocka_unit_test(timers_empty_is_never_due),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
