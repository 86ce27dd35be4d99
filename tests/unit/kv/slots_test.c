/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include "kv/mem.h"
#include "kv/slots.h"

static void slots_come_back_in_the_order_of_their_return(void **state)
{
	/* Goal: every number once, then none; the longest free one is next. */
	struct kv_slots s;
	uint32_t slot = 0;

	(void)state;
	assert_true(kv_slots_init(&s, 3));
	for (uint32_t i = 0; i < 3; i++) {
		assert_true(kv_slots_get(&s, &slot));
		assert_int_equal(slot, i);
	}
	assert_false(kv_slots_get(&s, &slot));
	kv_slots_put(&s, 2);
	kv_slots_put(&s, 0);
	assert_true(kv_slots_get(&s, &slot));
	assert_int_equal(slot, 2);
	kv_slots_put(&s, 1);
	assert_true(kv_slots_get(&s, &slot));
	assert_int_equal(slot, 0);
	assert_true(kv_slots_get(&s, &slot));
	assert_int_equal(slot, 1);
	assert_false(kv_slots_get(&s, &slot));
	kv_slots_fini(&s);
}

static void slots_without_memory_are_refused(void **state)
{
	/* Goal: no memory is an answer. */
	struct kv_slots s;

	(void)state;
	kv_fail_nth(1);
	assert_false(kv_slots_init(&s, 3));
	kv_fail_nth(0);
	kv_slots_fini(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(slots_come_back_in_the_order_of_their_return),
		cmocka_unit_test(slots_without_memory_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
