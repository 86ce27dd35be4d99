/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include "prov/verbs/hello.h"

#include <string.h>

static struct verbs_hello sample(enum verbs_hello_type type)
{
	struct verbs_hello h = { .type = type,
		                 .token = UINT64_C(0xfedcba9876543210),
		                 .qpn = 0xffffff,
		                 .psn = 0xabcdef,
		                 .status = type == VERBS_HELLO_REFUSE ? WIMM_E_LIMIT : WIMM_OK,
		                 .from = { .len_bytes = PROV_ADDR_MAX_BYTES } };

	for (uint32_t i = 0; i < PROV_ADDR_MAX_BYTES; i++)
		h.from.bytes[i] = (uint8_t)(i + 1);
	return h;
}

static void verbs_hello_of_each_type_reads_back(void **state)
{
	/* Goal: every field survives. */
	uint8_t bytes[VERBS_HELLO_BYTES];

	(void)state;
	for (int type = VERBS_HELLO_DIAL; type <= VERBS_HELLO_NOTED; type++) {
		struct verbs_hello h = sample((enum verbs_hello_type)type);
		struct verbs_hello back;

		verbs_hello_encode(&h, bytes);
		assert_ok(verbs_hello_decode(bytes, sizeof(bytes), &back));
		assert_int_equal(back.type, h.type);
		assert_int_equal(back.token, h.token);
		assert_int_equal(back.qpn, h.qpn);
		assert_int_equal(back.psn, h.psn);
		assert_int_equal(back.status, h.status);
		assert_memory_equal(&back.from, &h.from, sizeof(h.from));
	}
}

static void verbs_hello_damaged_is_refused(void **state)
{
	/* Goal: a datagram of anybody's, of any length, is refused or fully understood. */
	struct verbs_hello h = sample(VERBS_HELLO_DIAL), back;
	uint8_t good[VERBS_HELLO_BYTES], bytes[VERBS_HELLO_BYTES + 1] = { 0 };

	(void)state;
	verbs_hello_encode(&h, good);
	for (size_t len = 0; len <= VERBS_HELLO_BYTES + 1; len++) {
		memcpy(bytes, good, sizeof(good));
		if (len != VERBS_HELLO_BYTES)
			assert_int_equal(verbs_hello_decode(bytes, len, &back), WIMM_E_PARSE);
	}
	bytes[4] = 2;
	assert_int_equal(verbs_hello_decode(bytes, VERBS_HELLO_BYTES, &back), WIMM_E_VERSION);
	for (size_t at = 0; at < 7; at++) {
		if (at == 4)
			continue;
		memcpy(bytes, good, sizeof(good));
		bytes[at] = 0xff;
		assert_int_equal(verbs_hello_decode(bytes, VERBS_HELLO_BYTES, &back), WIMM_E_PARSE);
	}
	memcpy(bytes, good, sizeof(good));
	memset(bytes + 16, 0, 4); /* queue pair 0 */
	assert_int_equal(verbs_hello_decode(bytes, VERBS_HELLO_BYTES, &back), WIMM_E_PARSE);
	memcpy(bytes, good, sizeof(good));
	bytes[23] = 1; /* a sequence number of more than 24 bits */
	assert_int_equal(verbs_hello_decode(bytes, VERBS_HELLO_BYTES, &back), WIMM_E_PARSE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(verbs_hello_of_each_type_reads_back),
		cmocka_unit_test(verbs_hello_damaged_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
