/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include <string.h>

#include "wimm/status.h"

struct row {
	wimm_status status;
	const char *name;
	const char *text;
	wimm_scope scope;
};

static const struct row rows[] = {
#define X(name, value, scope, text) { WIMM_##name, #name, text, WIMM_SCOPE_##scope },
	WIMM_STATUS_MAP(X)
#undef X
};

static const size_t row_count = sizeof(rows) / sizeof(rows[0]);

static void status_of_the_table_has_its_name_text_and_scope(void **state)
{
	/* Goal: the three functions answer from the one table. */
	(void)state;
	for (size_t i = 0; i < row_count; i++) {
		assert_string_equal(wimm_status_name(rows[i].status), rows[i].name);
		assert_string_equal(wimm_status_text(rows[i].status), rows[i].text);
		assert_int_equal(wimm_status_scope(rows[i].status), rows[i].scope);
		assert_null(strchr(rows[i].text, '\n'));
		assert_true(strlen(rows[i].text) <= 80);
	}
}

static void status_values_are_unique_and_errors_negative(void **state)
{
	/* Goal: callers test st < 0; only AGAIN and OK are not errors. */
	(void)state;
	assert_int_equal(WIMM_OK, 0);
	assert_int_equal(WIMM_AGAIN, 1);
	for (size_t i = 0; i < row_count; i++) {
		assert_int_equal(rows[i].status < 0, rows[i].scope != WIMM_SCOPE_NONE);
		for (size_t j = 0; j < i; j++)
			assert_int_not_equal(rows[i].status, rows[j].status);
	}
}

static void status_unknown_value_is_named_and_reaches_the_engine(void **state)
{
	/* Goal: a newer library's code is handled by an older one's caller, at worst by closing. */
	(void)state;
	assert_string_equal(wimm_status_name((wimm_status)-9999), "UNKNOWN");
	assert_string_equal(wimm_status_text((wimm_status)-9999), "unknown status");
	assert_int_equal(wimm_status_scope((wimm_status)-9999), WIMM_SCOPE_ENGINE);
}

static void version_of_library_and_header_agree(void **state)
{
	/* Goal: number and string say the same. */
	char text[32];

	(void)state;
	assert_int_equal(wimm_version(), WIMM_VERSION_NUMBER);
	snprintf(text, sizeof(text), "%d.%d.%d", WIMM_VERSION_MAJOR, WIMM_VERSION_MINOR,
	         WIMM_VERSION_PATCH);
	assert_string_equal(text, WIMM_VERSION_STRING);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(status_of_the_table_has_its_name_text_and_scope),
		cmocka_unit_test(status_values_are_unique_and_errors_negative),
		cmocka_unit_test(status_unknown_value_is_named_and_reaches_the_engine),
		cmocka_unit_test(version_of_library_and_header_agree),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
