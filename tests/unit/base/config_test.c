/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "base/log.h"

static char logged[4096];

static void keep(void *arg, log_level level, const char *text)
{
	size_t len = strlen(logged);

	(void)arg;
	(void)level;
	snprintf(logged + len, sizeof(logged) - len, "%s\n", text);
}

static struct config_info info_of(config_id id)
{
	struct config_info info;

	assert_true(config_info_at((uint32_t)id, &info));
	return info;
}

static int setup(void **state)
{
	struct config_info info;

	(void)state;
	for (uint32_t i = 0; config_info_at(i, &info); i++)
		unsetenv(info.env);
	setenv("WIMM_CONFIG", test_file("empty.conf", ""), 1);
	logged[0] = '\0';
	log_set_sink(keep, NULL);
	config_reload();
	return 0;
}

static void config_without_sources_gives_the_documented_defaults(void **state)
{
	/* Goal: every row has its default, within its own range, a name, a variable and a help. */
	struct config_info info;
	uint32_t count = 0;

	(void)state;
	for (; config_info_at(count, &info); count++) {
		assert_true(info.value == info.def);
		assert_true(info.min <= info.def && info.def <= info.max);
		assert_true((info.type == CONFIG_TEXT) == (info.text_def != NULL));
		assert_string_equal(info.text, info.text_def ? info.text_def : "");
		assert_int_equal(info.source, CONFIG_FROM_DEFAULT);
		assert_ptr_equal(strstr(info.env, "WIMM_"), info.env);
		assert_int_equal(strlen(info.env), strlen(info.name) + 5);
		assert_true(strlen(info.help) > 10);
	}
	assert_int_equal(count, CFG_COUNT);
	assert_int_equal(config_get_u64(CFG_MAX_OPS), 16384);
	assert_int_equal(config_get_u64(CFG_INDEX_BYTES_LIMIT), 268435456);
	assert_int_equal(config_get_i64(CFG_PROGRESS_CPU), -1);
	assert_false(config_get_bool(CFG_BUSY_POLL));
	assert_string_equal(logged, "");
}

static void config_environment_wins_over_file_over_default(void **state)
{
	/* Goal: precedence, and the source is told. */
	(void)state;
	setenv("WIMM_CONFIG", test_file("a.conf", "# comment\n\n spin_us = 7 # here\npost_batch=9"),
	       1);
	setenv("WIMM_POST_BATCH", "11", 1);
	config_reload();
	assert_int_equal(config_get_u64(CFG_SPIN_US), 7);
	assert_int_equal(info_of(CFG_SPIN_US).source, CONFIG_FROM_FILE);
	assert_int_equal(config_get_u64(CFG_POST_BATCH), 11);
	assert_int_equal(info_of(CFG_POST_BATCH).source, CONFIG_FROM_ENV);
	assert_int_equal(config_get_u64(CFG_MAX_PEERS), 4096);
	assert_string_equal(config_source_name(CONFIG_FROM_ENV), "environment");
	assert_string_equal(logged, "");
}

static void config_bad_value_is_reported_and_the_lower_source_counts(void **state)
{
	/* Goal: out of range and malformed values never take effect and name variable and range. */
	(void)state;
	setenv("WIMM_CONFIG", test_file("b.conf", "post_batch = 9\n"), 1);
	setenv("WIMM_POST_BATCH", "0", 1);
	setenv("WIMM_SPIN_US", "20us", 1);
	setenv("WIMM_MAX_OPS", "99999999999999999999999", 1);
	setenv("WIMM_HEARTBEAT_MS", "", 1);
	setenv("WIMM_BUSY_POLL", "maybe", 1);
	setenv("WIMM_LOG_LEVEL", "loud", 1);
	config_reload();
	assert_int_equal(config_get_u64(CFG_POST_BATCH), 9);
	assert_int_equal(config_get_u64(CFG_SPIN_US), 20);
	assert_int_equal(config_get_u64(CFG_MAX_OPS), 16384);
	assert_int_equal(config_get_u64(CFG_HEARTBEAT_MS), 1000);
	assert_non_null(strstr(logged, "WIMM_POST_BATCH: \"0\" is no value for post_batch: "
	                               "1 to 65536 requests wanted; keeping 9"));
	assert_non_null(strstr(logged, "WIMM_SPIN_US"));
	assert_non_null(strstr(logged, "WIMM_MAX_OPS"));
	assert_non_null(strstr(logged, "WIMM_HEARTBEAT_MS"));
	assert_non_null(strstr(logged, "no to yes wanted; keeping no"));
	assert_non_null(strstr(logged, "off to debug wanted; keeping warn"));
}

static void config_broken_file_is_reported_line_by_line(void **state)
{
	/* Goal: unknown names, lines of another form and over-long lines cost only themselves. */
	char text[2048];
	char rest[1000];

	(void)state;
	memset(rest, 'x', sizeof(rest) - 1);
	rest[sizeof(rest) - 1] = '\0';
	snprintf(text, sizeof(text), "no_such = 1\nnonsense\n%s\nspin_us = 5\n", rest);
	setenv("WIMM_CONFIG", test_file("c.conf", text), 1);
	config_reload();
	assert_int_equal(config_get_u64(CFG_SPIN_US), 5);
	assert_non_null(strstr(logged, "c.conf:1: there is no setting \"no_such\""));
	assert_non_null(strstr(logged, "c.conf:2: \"nonsense\" is not"));
	assert_non_null(strstr(logged, "c.conf:3: line of 511 bytes or more"));
	assert_null(strstr(logged, "c.conf:4"));
}

static void config_named_file_that_is_missing_is_reported(void **state)
{
	/* Goal: a mistyped WIMM_CONFIG does not pass in silence. */
	(void)state;
	setenv("WIMM_CONFIG", "/nonexistent/wimm.conf", 1);
	config_reload();
	assert_non_null(strstr(logged, "/nonexistent/wimm.conf: No such file"));
}

static void config_file_that_cannot_be_read_is_reported(void **state)
{
	/* Goal: what opens but is no file of settings, such as a folder or an endless device, does
	 * not pass in silence either, nor is it read for ever. */
	(void)state;
	setenv("WIMM_CONFIG", test_dir(), 1);
	config_reload();
	assert_non_null(strstr(logged, "Is a directory"));
	setenv("WIMM_CONFIG", "/dev/zero", 1);
	config_reload();
	assert_non_null(strstr(logged, "/dev/zero:1: nor is there an end of it"));
}

static void config_set_takes_suffixes_words_and_refuses_the_rest(void **state)
{
	/* Goal: each type's spellings, and refusals that change nothing. */
	(void)state;
	assert_ok(config_set("split_bytes", "1M"));
	assert_int_equal(config_get_u64(CFG_SPLIT_BYTES), 1048576);
	assert_int_equal(info_of(CFG_SPLIT_BYTES).source, CONFIG_FROM_CALL);
	assert_ok(config_set("split_bytes", "8k"));
	assert_int_equal(config_get_u64(CFG_SPLIT_BYTES), 8192);
	assert_ok(config_set("busy_poll", "yes"));
	assert_true(config_get_bool(CFG_BUSY_POLL));
	assert_ok(config_set("busy_poll", "OFF"));
	assert_false(config_get_bool(CFG_BUSY_POLL));
	assert_ok(config_set("log_level", "info"));
	assert_int_equal(config_get_i64(CFG_LOG_LEVEL), LOG_LEVEL_INFO);
	assert_true(log_enabled(LOG_LEVEL_INFO));
	assert_ok(config_set("progress_cpu", "-1"));
	assert_int_equal(config_set("progress_cpu", "-2"), WIMM_E_RANGE);
	assert_int_equal(config_set("split_bytes", "9223372036854775807K"), WIMM_E_PARSE);
	assert_int_equal(config_set("split_bytes", "1KB"), WIMM_E_PARSE);
	assert_int_equal(config_set("spin_us", "1K"), WIMM_E_PARSE);
	assert_int_equal(config_set("spin_us", "yes"), WIMM_E_PARSE);
	assert_int_equal(config_set("no_such", "1"), WIMM_E_NOT_FOUND);
	assert_int_equal(config_get_u64(CFG_SPLIT_BYTES), 8192);
}

static void config_text_settings_follow_the_same_sources_within_their_length(void **state)
{
	/* Goal: texts have precedence and bounds like numbers, and what is too long changes
	 * nothing. */
	char text[CONFIG_TEXT_BYTES];
	char longer[CONFIG_TEXT_BYTES + 1];

	(void)state;
	config_get_text(CFG_PROVIDER, text);
	assert_string_equal(text, "tcp");
	config_get_text(CFG_NICS, text);
	assert_string_equal(text, "");
	memset(longer, 'n', sizeof(longer) - 1);
	longer[sizeof(longer) - 1] = '\0';
	setenv("WIMM_CONFIG",
	       test_file("d.conf", "provider = sim\nnics = 127.0.0.1, [::1]:0 # both\n"), 1);
	setenv("WIMM_PROVIDER", "efa", 1);
	setenv("WIMM_NICS", longer, 1);
	config_reload();
	config_get_text(CFG_PROVIDER, text);
	assert_string_equal(text, "efa");
	assert_string_equal(info_of(CFG_PROVIDER).text, "efa");
	assert_int_equal(info_of(CFG_PROVIDER).source, CONFIG_FROM_ENV);
	config_get_text(CFG_NICS, text);
	assert_string_equal(text, "127.0.0.1, [::1]:0");
	assert_int_equal(info_of(CFG_NICS).source, CONFIG_FROM_FILE);
	assert_non_null(strstr(logged, "WIMM_NICS: nics may have 511 bytes, not 512"));
	assert_ok(config_set("provider", "tcp"));
	config_get_text(CFG_PROVIDER, text);
	assert_string_equal(text, "tcp");
	assert_int_equal(config_set("nics", longer), WIMM_E_RANGE);
	config_get_text(CFG_NICS, text);
	assert_string_equal(text, "127.0.0.1, [::1]:0");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(config_without_sources_gives_the_documented_defaults, setup),
		cmocka_unit_test_setup(config_environment_wins_over_file_over_default, setup),
		cmocka_unit_test_setup(config_bad_value_is_reported_and_the_lower_source_counts,
		                       setup),
		cmocka_unit_test_setup(config_broken_file_is_reported_line_by_line, setup),
		cmocka_unit_test_setup(config_named_file_that_is_missing_is_reported, setup),
		cmocka_unit_test_setup(config_file_that_cannot_be_read_is_reported, setup),
		cmocka_unit_test_setup(config_set_takes_suffixes_words_and_refuses_the_rest, setup),
		cmocka_unit_test_setup(
			config_text_settings_follow_the_same_sources_within_their_length, setup),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
