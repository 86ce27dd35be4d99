/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include <string.h>

#include "base/alloc.h"

static void alloc_and_free_return_to_the_same_live_count(void **state)
{
	/* Goal: a leak shows as a difference of the two counters. */
	uint64_t blocks = mem_live_blocks();
	uint64_t bytes = mem_live_bytes();
	void *ptr[4];

	(void)state;
	ptr[0] = mem_alloc(100);
	ptr[1] = mem_calloc(3, 50);
	ptr[2] = mem_alloc_aligned(256, 1000);
	ptr[3] = mem_realloc(mem_alloc(10), 5000);
	assert_int_equal(mem_live_blocks(), blocks + 4);
	assert_true(mem_live_bytes() >= bytes + 100 + 150 + 1000 + 5000);
	assert_int_equal((uintptr_t)ptr[2] % 256, 0);
	for (size_t i = 0; i < 4; i++)
		mem_free(ptr[i]);
	mem_free(NULL);
	assert_int_equal(mem_live_blocks(), blocks);
	assert_int_equal(mem_live_bytes(), bytes);
}

static void calloc_overflowing_product_fails(void **state)
{
	/* Goal: count * size beyond size_t is refused, not wrapped; and memory comes zeroed. */
	static const char zeros[64];
	char *ptr;

	(void)state;
	assert_null(mem_calloc(SIZE_MAX / 2, 4));
	ptr = mem_calloc(8, 8);
	assert_memory_equal(ptr, zeros, sizeof(zeros));
	mem_free(ptr);
}

static void alloc_of_zero_bytes_gives_a_pointer(void **state)
{
	/* Goal: NULL always means out of memory. */
	void *a = mem_alloc(0);
	void *b = mem_calloc(0, 8);

	(void)state;
	assert_non_null(a);
	assert_non_null(b);
	mem_free(a);
	mem_free(b);
}

static void fail_nth_fails_that_allocation_only(void **state)
{
	/* Goal: the n-th from now fails once; the sweep can tell whether it was reached. */
	void *a;
	void *c;

	(void)state;
	mem_fail_nth(2);
	a = mem_alloc(1);
	assert_non_null(a);
	assert_false(mem_fail_fired());
	assert_null(mem_alloc(1));
	assert_true(mem_fail_fired());
	c = mem_alloc(1);
	assert_non_null(c);
	mem_fail_nth(1);
	assert_null(mem_realloc(c, 100)); /* and c stays */
	mem_fail_nth(1);
	assert_null(mem_alloc_aligned(64, 64));
	mem_fail_nth(0);
	mem_free(a);
	mem_free(c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(alloc_and_free_return_to_the_same_live_count),
		cmocka_unit_test(calloc_overflowing_product_fails),
		cmocka_unit_test(alloc_of_zero_bytes_gives_a_pointer),
		cmocka_unit_test(fail_nth_fails_that_allocation_only),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
