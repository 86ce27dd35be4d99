/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/config.h"
#include "base/log.h"

struct kept {
	uint32_t count;
	log_level level;
	char text[2048];
};

static void keep(void *arg, log_level level, const char *text)
{
	struct kept *kept = arg;

	kept->count++;
	kept->level = level;
	snprintf(kept->text, sizeof(kept->text), "%s", text);
}

static int teardown(void **state)
{
	(void)state;
	log_set_sink(NULL, NULL);
	return 0;
}

static void log_below_its_level_is_silent_and_does_not_evaluate(void **state)
{
	/* Goal: a message that is off costs no formatting and no side effect. */
	struct kept kept = { 0 };
	int evaluated = 0;

	(void)state;
	log_set_sink(keep, &kept);
	log_set_level(LOG_LEVEL_WARN);
	LOG_INFO("%d", ++evaluated);
	assert_int_equal(evaluated, 0);
	assert_int_equal(kept.count, 0);
	LOG_WARN("peer %d", ++evaluated);
	assert_int_equal(kept.count, 1);
	assert_int_equal(kept.level, LOG_LEVEL_WARN);
	assert_string_equal(kept.text, "peer 1");
	log_set_level(LOG_LEVEL_OFF);
	LOG_ERROR("nothing");
	assert_int_equal(kept.count, 1);
}

static void log_line_too_long_ends_in_dots(void **state)
{
	/* Goal: truncation is visible and bounded. */
	struct kept kept = { 0 };
	char text[3000];

	(void)state;
	memset(text, 'a', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	log_set_sink(keep, &kept);
	log_set_level(LOG_LEVEL_DEBUG);
	LOG_DEBUG("%s", text);
	assert_int_equal(strlen(kept.text), 1023);
	assert_string_equal(kept.text + 1019, "a...");
}

static void log_level_setting_decides_before_the_first_message(void **state)
{
	/* Goal: WIMM_LOG_LEVEL works without any call of the program. */
	struct kept kept = { 0 };

	(void)state;
	log_set_sink(keep, &kept);
	setenv("WIMM_LOG_LEVEL", "error", 1);
	config_reload();
	LOG_WARN("no");
	assert_int_equal(kept.count, 0);
	setenv("WIMM_LOG_LEVEL", "debug", 1);
	config_reload();
	LOG_DEBUG("yes");
	assert_int_equal(kept.count, 1);
	unsetenv("WIMM_LOG_LEVEL");
}

static void log_without_sink_writes_one_line_to_stderr(void **state)
{
	/* Goal: the line has the library's name, the level and one newline. */
	char text[128] = "";
	int saved = dup(STDERR_FILENO);
	ssize_t len;
	int fds[2];

	(void)state;
	assert_ok(pipe(fds));
	log_set_sink(NULL, NULL);
	log_set_level(LOG_LEVEL_ERROR);
	dup2(fds[1], STDERR_FILENO);
	LOG_ERROR("port %d in use", 5);
	dup2(saved, STDERR_FILENO);
	close(saved);
	close(fds[1]);
	len = read(fds[0], text, sizeof(text) - 1);
	close(fds[0]);
	assert_true(len > 0);
	assert_string_equal(text, "wimm: error: port 5 in use\n");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(log_below_its_level_is_silent_and_does_not_evaluate,
		                          teardown),
		cmocka_unit_test_teardown(log_line_too_long_ends_in_dots, teardown),
		cmocka_unit_test_teardown(log_level_setting_decides_before_the_first_message,
		                          teardown),
		cmocka_unit_test_teardown(log_without_sink_writes_one_line_to_stderr, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
