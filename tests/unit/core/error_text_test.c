/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include "core/error_text.h"
#include "plat/thread.h"

#include <string.h>
#include <wimm/engine.h>

static void error_text_keeps_the_last_one_and_may_quote_itself(void **state)
{
	/* Goal: it starts empty, and a text may be built from the one before. */
	(void)state;
	assert_string_equal(wimm_last_error_text(), "");
	error_text_set("port %d is in use", 4711);
	assert_string_equal(wimm_last_error_text(), "port 4711 is in use");
	error_text_set("nic 2: %s", wimm_last_error_text());
	assert_string_equal(wimm_last_error_text(), "nic 2: port 4711 is in use");
}

static void error_text_too_long_is_cut_and_terminated(void **state)
{
	/* Goal: whatever the length, the text stays within its bytes. */
	char text[2 * WIMM_ERROR_TEXT_BYTES];

	(void)state;
	memset(text, 'a', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	error_text_set("%s", text);
	assert_int_equal(strlen(wimm_last_error_text()), WIMM_ERROR_TEXT_BYTES - 1);
}

static void other_thread(void *arg)
{
	bool *was_empty = arg;

	*was_empty = wimm_last_error_text()[0] == '\0';
	error_text_set("theirs");
}

static void error_text_of_one_thread_is_not_seen_by_another(void **state)
{
	/* Goal: each thread has its own text. */
	struct plat_thread thread;
	bool was_empty = false;

	(void)state;
	error_text_set("mine");
	assert_ok(plat_thread_start(&thread, other_thread, &was_empty, "error-text", -1));
	plat_thread_join(&thread);
	assert_true(was_empty);
	assert_string_equal(wimm_last_error_text(), "mine");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(error_text_keeps_the_last_one_and_may_quote_itself),
		cmocka_unit_test(error_text_too_long_is_cut_and_terminated),
		cmocka_unit_test(error_text_of_one_thread_is_not_seen_by_another),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
