/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include "plat/code.h"

static void code_is_where_its_functions_are(void **state)
{
	/* Goal: the range found holds this library's code and no more than the most of it. */
	struct plat_code c;

	(void)state;
	plat_code_find(&c);
	assert_in_range((uintptr_t)plat_code_find, c.first, c.end - 1);
	assert_true(c.end - c.first <= 1u << 20);
	assert_int_equal(c.at, c.first);
}

static void code_is_touched_round_and_round(void **state)
{
	/* Goal: each look goes on where the last one ended, stays inside, and begins anew behind
	 * the end; where nothing was found it does nothing. */
	struct plat_code c = { 0, 0, 0 };
	uint64_t looks;

	(void)state;
	plat_code_touch(&c);
	assert_int_equal(c.at, 0);
	plat_code_find(&c);
	looks = (c.end - c.first - 1) / ((uint64_t)PLAT_CODE_LINES * PLAT_CODE_LINE_BYTES) + 1;
	for (uint64_t i = 0; i < looks; i++) {
		uintptr_t before = c.at;

		plat_code_touch(&c);
		assert_true(c.at > before || c.at == c.first);
		assert_in_range(c.at, c.first, c.end - 1);
	}
	assert_int_equal(c.at, c.first);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(code_is_where_its_functions_are),
		cmocka_unit_test(code_is_touched_round_and_round),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
