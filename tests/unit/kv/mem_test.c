/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include "kv/mem.h"

static void mem_blocks_are_zeroed_and_counted(void **state)
{
	/* Goal: memory comes zeroed, size 0 and NULL are legal, and the count follows. */
	uint64_t before = kv_live_blocks();
	uint8_t *block = kv_calloc(100, 3);
	void *empty = kv_calloc(0, 8);

	(void)state;
	assert_non_null(block);
	assert_non_null(empty);
	for (int i = 0; i < 300; i++)
		assert_int_equal(block[i], 0);
	assert_int_equal(kv_live_blocks(), before + 2);
	kv_free(block);
	kv_free(empty);
	kv_free(NULL);
	assert_int_equal(kv_live_blocks(), before);
}

static void mem_overflow_and_asked_failure_return_null(void **state)
{
	/* Goal: a product that wraps is refused, and the n-th allocation fails once. */
	void *first;

	(void)state;
	assert_null(kv_calloc(SIZE_MAX / 2, 4));
	kv_fail_nth(2);
	first = kv_calloc(1, 1);
	assert_non_null(first);
	assert_false(kv_fail_fired());
	assert_null(kv_calloc(1, 1));
	assert_true(kv_fail_fired());
	kv_free(first);
	first = kv_calloc(1, 1);
	assert_non_null(first);
	kv_free(first);
	kv_fail_nth(0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(mem_blocks_are_zeroed_and_counted),
		cmocka_unit_test(mem_overflow_and_asked_failure_return_null),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
