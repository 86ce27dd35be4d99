/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include "core/wire.h"

#include <string.h>

static const char sample[] = "tcp:127.0.0.1:4711,[::1]:4712#00112233445566778899aabbccddeeff";

static void net_addr_text_and_bytes_are_the_same_address(void **state)
{
	/* Goal: text to bytes to text is the identity, and bytes to text to bytes too. */
	struct wimm_net_addr addr, again;
	char text[WIMM_NET_ADDR_MAX_TEXT];

	(void)state;
	assert_ok(wimm_net_addr_from_string(sample, &addr));
	assert_ok(wimm_net_addr_to_string(&addr, text, sizeof(text)));
	assert_string_equal(text, sample);
	assert_ok(wimm_net_addr_from_string(text, &again));
	assert_memory_equal(&addr, &again, sizeof(addr));
}

static void net_addr_arguments_missing_are_refused(void **state)
{
	/* Goal: no pointer, no crash. */
	struct wimm_net_addr addr;
	char text[WIMM_NET_ADDR_MAX_TEXT];

	(void)state;
	assert_int_equal(wimm_net_addr_from_string(NULL, &addr), WIMM_E_INVAL);
	assert_int_equal(wimm_net_addr_from_string(sample, NULL), WIMM_E_INVAL);
	assert_ok(wimm_net_addr_from_string(sample, &addr));
	assert_int_equal(wimm_net_addr_to_string(NULL, text, sizeof(text)), WIMM_E_INVAL);
	assert_int_equal(wimm_net_addr_to_string(&addr, NULL, sizeof(text)), WIMM_E_INVAL);
	assert_int_equal(wimm_net_addr_to_string(&addr, text, 0), WIMM_E_INVAL);
	assert_int_equal(wimm_net_addr_to_string(&addr, text, 1), WIMM_E_LIMIT);
}

static void case_76_address_of_a_later_version_is_refused_by_number(void **state)
{
	/* Goal: the text names both versions, so that people know which side to update. */
	struct wimm_net_addr addr;
	char text[WIMM_NET_ADDR_MAX_TEXT] = "untouched";

	(void)state;
	assert_ok(wimm_net_addr_from_string(sample, &addr));
	addr.bytes[0] = 9;
	assert_int_equal(wimm_net_addr_to_string(&addr, text, sizeof(text)), WIMM_E_VERSION);
	assert_non_null(strstr(wimm_last_error_text(), "9"));
	assert_non_null(strstr(wimm_last_error_text(), "1"));
	assert_string_equal(text, "untouched");
}

static void case_105_every_bit_flip_of_an_address_prints_or_is_refused(void **state)
{
	/* Goal: a damaged address is refused, or its text reads back to the same bytes. */
	struct wimm_net_addr addr;
	uint32_t printed = 0;

	(void)state;
	assert_ok(wimm_net_addr_from_string(sample, &addr));
	for (uint32_t bit = 0; bit < 8 * addr.len_bytes; bit++) {
		struct wimm_net_addr flipped = addr, again;
		char text[WIMM_NET_ADDR_MAX_TEXT];

		flipped.bytes[bit / 8] ^= (uint8_t)(1u << (bit % 8));
		if (wimm_net_addr_to_string(&flipped, text, sizeof(text)) != WIMM_OK)
			continue;
		printed++;
		assert_ok(wimm_net_addr_from_string(text, &again));
		again.bytes[1] = flipped.bytes[1]; /* the minor version is the writer's */
		assert_memory_equal(&flipped, &again, sizeof(again));
	}
	assert_true(printed > 100);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(net_addr_text_and_bytes_are_the_same_address),
		cmocka_unit_test(net_addr_arguments_missing_are_refused),
		cmocka_unit_test(case_76_address_of_a_later_version_is_refused_by_number),
		cmocka_unit_test(case_105_every_bit_flip_of_an_address_prints_or_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
