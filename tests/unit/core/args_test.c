/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include "core/args.h"

#include <string.h>

#include <wimm/transfer.h>

static void args_of_the_right_shape_are_good(void **state)
{
	/* Goal: an untouched _INIT is good, and every allowed flag too. */
	struct wimm_write w = WIMM_WRITE_INIT;

	(void)state;
	assert_true(ARGS_GOOD(&w, 0));
	w.flags = WIMM_IMM;
	assert_false(ARGS_GOOD(&w, 0));
	assert_true(ARGS_GOOD(&w, WIMM_IMM | WIMM_BLOCK));
}

static void args_say_what_is_wrong_with_them(void **state)
{
	/* Goal: NULL, another library's size, an unknown flag and a used reserve each say so. */
	struct wimm_write w = WIMM_WRITE_INIT, *none = NULL;

	(void)state;
	assert_int_equal(ARGS_REFUSED(none, "wimm_write", 0), WIMM_E_INVAL);
	assert_string_equal(wimm_last_error_text(), "wimm_write is NULL");
	w.reserved[0] = 1;
	assert_false(ARGS_GOOD(&w, UINT32_MAX));
	assert_int_equal(ARGS_REFUSED(&w, "wimm_write", UINT32_MAX), WIMM_E_INVAL);
	assert_non_null(strstr(wimm_last_error_text(), "reserved"));
	w.flags = 0x50;
	assert_int_equal(ARGS_REFUSED(&w, "wimm_write", 0x10), WIMM_E_INVAL);
	assert_non_null(strstr(wimm_last_error_text(), "0x40"));
	w.size = 7;
	assert_false(ARGS_GOOD(&w, UINT32_MAX));
	assert_int_equal(ARGS_REFUSED(&w, "wimm_write", 0), WIMM_E_INVAL);
	assert_non_null(strstr(wimm_last_error_text(), "size is 7"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(args_of_the_right_shape_are_good),
		cmocka_unit_test(args_say_what_is_wrong_with_them),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
