/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include "core/session.h"
#include "core/wire.h"
#include "plat/rand.h"

#include <stdlib.h>
#include <string.h>

#define INSTANCE_TEXT "00112233445566778899aabbccddeeff"

static void assert_parses_to(const char *text, const char *printed)
{
	char again[WIMM_NET_ADDR_MAX_TEXT];
	struct wire_addr a;

	assert_ok(wire_addr_parse(text, &a));
	assert_ok(wire_addr_format(&a, again, sizeof(again)));
	assert_string_equal(again, printed);
}

static void wire_text_in_every_form_reads_and_prints(void **state)
{
	/* Goal: provider and instance may be left out; printing always names the provider. */
	struct wire_addr a;

	(void)state;
	assert_parses_to("tcp:127.0.0.1:4711,127.0.0.2:4711#" INSTANCE_TEXT,
	                 "tcp:127.0.0.1:4711,127.0.0.2:4711#" INSTANCE_TEXT);
	assert_parses_to("127.0.0.1:4711", "tcp:127.0.0.1:4711");
	assert_parses_to("[::1]:4711,127.0.0.1:1", "tcp:[::1]:4711,127.0.0.1:1");
	assert_parses_to("127.0.0.1", "tcp:127.0.0.1:18515");
	assert_parses_to("tcp:::1", "tcp:[::1]:18515");
	assert_parses_to("::1", "tcp:[::1]:18515");
	assert_parses_to("127.0.0.1:65535#00112233445566778899AABBCCDDEEFF",
	                 "tcp:127.0.0.1:65535#" INSTANCE_TEXT);
	assert_ok(wire_addr_parse("127.0.0.1:1", &a));
	for (size_t i = 0; i < sizeof(a.instance); i++)
		assert_int_equal(a.instance[i], 0);
}

static void wire_text_malformed_is_refused_with_words(void **state)
{
	/* Goal: each wrong text is a parse error that quotes what is wrong, and *out stays. */
	static const char *const bad[] = {
		"",
		":",
		"tcp:",
		"tcp:,",
		"127.0.0.1:1,",
		",127.0.0.1:1",
		"127.0.0.1:1,,127.0.0.1:2",
		"127.0.0.1:0",
		"127.0.0.1:65536",
		"127.0.0.1:1#",
		"127.0.0.1:1#00",
		"127.0.0.1:1#0011223344556677889900aabbccddeg",
		"#" INSTANCE_TEXT,
		"127.0.0.1:1#" INSTANCE_TEXT "0",
		"127.0.0.1:1#" INSTANCE_TEXT "#" INSTANCE_TEXT,
		"verbs:127.0.0.1:1",
		"tcp:tcp:127.0.0.1:1",
		"[::1:4711",
		"127.0.0.1 :1",
	};
	struct wire_addr a = { .nic_count = 77 };

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		assert_int_equal(wire_addr_parse(bad[i], &a), WIMM_E_PARSE);
		assert_int_equal(a.nic_count, 77);
		assert_true(strlen(wimm_last_error_text()) > 10);
	}
	assert_int_equal(wire_addr_parse("127.0.0.1:4711x", &a), WIMM_E_PARSE);
	assert_non_null(strstr(wimm_last_error_text(), "127.0.0.1:4711x"));
}

static void wire_text_of_too_many_nics_or_bytes_is_refused(void **state)
{
	/* Goal: the bounds of the address hold for its text. */
	char text[2 * WIMM_NET_ADDR_MAX_TEXT] = "127.0.0.1:1";
	struct wire_addr a;

	(void)state;
	for (int i = 1; i < WIMM_MAX_NICS; i++)
		strcat(text, ",127.0.0.1:1");
	assert_ok(wire_addr_parse(text, &a));
	assert_int_equal(a.nic_count, WIMM_MAX_NICS);
	strcat(text, ",127.0.0.1:1");
	assert_int_equal(wire_addr_parse(text, &a), WIMM_E_PARSE);
	assert_non_null(strstr(wimm_last_error_text(), "16"));
	memset(text, '1', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	assert_int_equal(wire_addr_parse(text, &a), WIMM_E_PARSE);
}

static void wire_text_without_room_says_how_much_it_needs(void **state)
{
	/* Goal: exact room suffices, one byte less is refused and written to by nobody. */
	static const char want[] = "tcp:127.0.0.1:4711#" INSTANCE_TEXT;
	char text[sizeof(want)] = "untouched";
	struct wire_addr a;

	(void)state;
	assert_ok(wire_addr_parse(want, &a));
	assert_int_equal(wire_addr_format(&a, text, sizeof(want) - 1), WIMM_E_LIMIT);
	assert_string_equal(text, "untouched");
	assert_non_null(strstr(wimm_last_error_text(), "52"));
	assert_non_null(strstr(wimm_last_error_text(), "51"));
	assert_ok(wire_addr_format(&a, text, sizeof(want)));
	assert_string_equal(text, want);
}

static void wire_text_of_an_unknown_provider_names_it(void **state)
{
	/* Goal: an address of a provider that this build lacks is no parse error and no crash. */
	char text[WIMM_NET_ADDR_MAX_TEXT];
	struct wire_addr a;

	(void)state;
	assert_ok(wire_addr_parse("127.0.0.1:1", &a));
	strcpy(a.provider, "carrier-pigeon");
	assert_int_equal(wire_addr_format(&a, text, sizeof(text)), WIMM_E_NOT_FOUND);
	assert_non_null(strstr(wimm_last_error_text(), "carrier-pigeon"));
	strcpy(a.provider, "tcp");
	a.nic[0].bytes[0] = 99;
	assert_int_equal(wire_addr_format(&a, text, sizeof(text)), WIMM_E_PARSE);
}

static void wire_text_of_random_addresses_reads_back_the_same(void **state)
{
	/* Goal: whatever addresses an engine has, their text loses nothing. */
	struct rng r;

	(void)state;
	rng_init(&r, test_seed(37));
	for (int i = 0; i < 2000; i++) {
		char text[WIMM_NET_ADDR_MAX_TEXT], list[WIMM_NET_ADDR_MAX_TEXT] = "";
		struct wire_addr a, b;
		uint64_t nics = rng_between(&r, 1, WIMM_MAX_NICS);

		for (uint64_t n = 0; n < nics; n++) {
			size_t at = strlen(list);

			if (rng_chance(&r, 1, 2))
				snprintf(list + at, sizeof(list) - at, "%s%u.%u.%u.%u:%u",
				         n ? "," : "", (unsigned)rng_below(&r, 256),
				         (unsigned)rng_below(&r, 256), (unsigned)rng_below(&r, 256),
				         (unsigned)rng_below(&r, 256),
				         (unsigned)rng_between(&r, 1, 65535));
			else
				snprintf(list + at, sizeof(list) - at, "%s[2001:db8::%x:%x]:%u",
				         n ? "," : "", (unsigned)rng_below(&r, 65536),
				         (unsigned)rng_below(&r, 65536),
				         (unsigned)rng_between(&r, 1, 65535));
		}
		assert_ok(wire_addr_parse(list, &a));
		assert_int_equal(a.nic_count, nics);
		for (size_t n = 0; rng_chance(&r, 1, 2) && n < sizeof(a.instance); n++)
			a.instance[n] = (uint8_t)rng_below(&r, 256);
		assert_ok(wire_addr_format(&a, text, sizeof(text)));
		assert_ok(wire_addr_parse(text, &b));
		assert_memory_equal(&a, &b, sizeof(a));
	}
}

static void wire_text_for_an_error_is_cut_where_it_is_too_long(void **state)
{
	/* Goal: an error names the first NICs of an address that does not fit, never nobody. */
	const char *text = "tcp:127.0.0.1:4711,127.0.0.2:4711,127.0.0.3:4711#" INSTANCE_TEXT;
	struct wire_addr a;
	char cut[24], whole[100];

	(void)state;
	assert_ok(wire_addr_parse(text, &a));
	assert_string_equal(session_addr_text(&a, whole, sizeof(whole)), text);
	assert_string_equal(session_addr_text(&a, cut, sizeof(cut)), "tcp:127.0.0.1:4711,1...");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(wire_text_in_every_form_reads_and_prints),
		cmocka_unit_test(wire_text_malformed_is_refused_with_words),
		cmocka_unit_test(wire_text_of_too_many_nics_or_bytes_is_refused),
		cmocka_unit_test(wire_text_without_room_says_how_much_it_needs),
		cmocka_unit_test(wire_text_of_an_unknown_provider_names_it),
		cmocka_unit_test(wire_text_of_random_addresses_reads_back_the_same),
		cmocka_unit_test(wire_text_for_an_error_is_cut_where_it_is_too_long),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
