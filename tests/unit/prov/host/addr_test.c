/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include "prov/host/addr.h"

#include <string.h>

static void addr_name_survives_bytes_and_text(void **state)
{
	/* Goal: what is printed and what travels reads back to the same name. */
	static const char *const names[] = { "a", "prefill-0", "Decode_7.x",
		                             "0123456789abcdef0123456789abcdef" };

	(void)state;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		struct prov_addr addr;
		struct host_name name;
		char text[64];

		assert_ok(host_op_addr_parse(names[i], &addr));
		assert_ok(host_op_addr_format(&addr, text, sizeof(text)));
		assert_string_equal(text, names[i]);
		assert_ok(host_name_decode(&addr, &name));
		assert_string_equal(name.text, names[i]);
		assert_int_equal(host_op_addr_format(&addr, text, strlen(names[i])), WIMM_E_LIMIT);
	}
}

static void addr_any_and_numbers_make_random_names(void **state)
{
	/* Goal: two devices never take the same name by accident; a given one is kept. */
	static const char *const random[] = { "", "any", "0", "12" };
	struct host_name one;
	struct host_name two;

	(void)state;
	for (size_t i = 0; i < sizeof(random) / sizeof(random[0]); i++) {
		assert_ok(host_name_of_nic(random[i], &one));
		assert_ok(host_name_of_nic(random[i], &two));
		assert_int_equal(strlen(one.text), HOST_NAME_MAX_CHARS);
		assert_string_not_equal(one.text, two.text);
	}
	assert_ok(host_name_of_nic("mine", &one));
	assert_string_equal(one.text, "mine");
}

static void addr_malformed_is_refused(void **state)
{
	/* Goal: no foreign byte string or text becomes a name. */
	struct prov_addr good;
	struct prov_addr bad;
	struct host_name name;

	(void)state;
	assert_int_equal(host_op_addr_parse("", &good), WIMM_E_PARSE);
	assert_int_equal(host_op_addr_parse("a/b", &good), WIMM_E_PARSE);
	assert_int_equal(host_op_addr_parse("a,b", &good), WIMM_E_PARSE);
	assert_int_equal(host_op_addr_parse("0123456789abcdef0123456789abcdef0", &good),
	                 WIMM_E_PARSE);
	assert_ok(host_op_addr_parse("name", &good));
	for (uint32_t len = 0; len < good.len_bytes; len++) {
		bad = good;
		bad.len_bytes = len;
		assert_int_equal(host_name_decode(&bad, &name), WIMM_E_PARSE);
	}
	bad = good;
	bad.bytes[0] = 2;
	assert_int_equal(host_name_decode(&bad, &name), WIMM_E_PARSE);
	bad = good;
	bad.bytes[3] = '\0';
	assert_int_equal(host_name_decode(&bad, &name), WIMM_E_PARSE);
	bad = good;
	bad.len_bytes = UINT32_MAX;
	assert_int_equal(host_name_decode(&bad, &name), WIMM_E_PARSE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(addr_name_survives_bytes_and_text),
		cmocka_unit_test(addr_any_and_numbers_make_random_names),
		cmocka_unit_test(addr_malformed_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
