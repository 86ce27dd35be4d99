/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include "prov/verbs/addr.h"

#include <string.h>

static const struct verbs_addr sample = {
	.ethernet = true,
	.mtu = 5,
	.gid = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, 1 },
	.ud_qpn = 17,
	.ud_qkey = 0x1a2b3c4d,
	.tcp_port = 18515,
	.tcp_ip = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, 1 },
};

static void verbs_addr_reads_back_as_bytes_and_as_text(void **state)
{
	/* Goal: both forms keep every field, with IPv4, IPv6 and InfiniBand. */
	static const char *const texts[] = {
		"10.77.0.1/roce/mtu=4096/lid=0/ud=17:1a2b3c4d/tcp=10.77.0.1:18515",
		"fe80::77:ff:fe00:1/roce/mtu=1024/lid=0/ud=16777215:00000000",
		"2001:db8::7/roce/mtu=256/lid=0/tcp=2001:db8::8:1",
		"fe80::1234:5678/ib/mtu=4096/lid=65535/ud=1:7fffffff",
	};
	struct prov_addr addr, again;
	struct verbs_addr back;
	char text[PROV_TEXT_BYTES];

	(void)state;
	verbs_addr_encode(&sample, &addr);
	assert_int_equal(addr.len_bytes, 47);
	assert_ok(verbs_addr_decode(&addr, &back));
	assert_true(back.ethernet && back.mtu == 5 && back.lid == 0 && back.ud_qpn == 17);
	assert_true(back.ud_qkey == 0x1a2b3c4d && back.tcp_port == 18515);
	assert_memory_equal(back.gid, sample.gid, sizeof(back.gid));
	assert_memory_equal(back.tcp_ip, sample.tcp_ip, sizeof(back.tcp_ip));
	assert_ok(verbs_op_addr_format(&addr, text, sizeof(text)));
	assert_string_equal(text, texts[0]);
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		assert_ok(verbs_op_addr_parse(texts[i], &addr));
		assert_ok(verbs_op_addr_format(&addr, text, sizeof(text)));
		assert_string_equal(text, texts[i]);
		assert_ok(verbs_op_addr_parse(text, &again));
		assert_memory_equal(&again, &addr, sizeof(addr));
	}
}

static void verbs_addr_malformed_is_refused(void **state)
{
	/* Goal: no text and no bytes that make no sense get through. */
	static const char *const texts[] = {
		"",
		"10.77.0.1",
		"10.77.0.1/roce/ud=0:1",
		"10.77.0.1/roce/ud=17",
		"10.77.0.1/roce/ud=17:80000000",
		"10.77.0.1/roce/ud=16777216:1",
		"10.77.0.1/roce/ud=-1:1",
		"10.77.0.1/roce/mtu=1500/ud=17:1",
		"10.77.0.1/roce/tcp=10.77.0.1:0",
		"10.77.0.1/roce/tcp=10.77.0:1",
		"10.77.0.1/roce/tcp=10.77.0.1:65536",
		"10.77.0.1/iwarp/ud=17:1",
		"10.77.0.1/roce/ud=17:1/",
		"10.77.0.1/roce/roce/roce/roce/roce/roce/roce/roce/ud=17:1",
		"::/roce/ud=17:1",
		"fe80::1/ib/lid=0/ud=17:1",
		"host/roce/ud=17:1",
	};
	struct prov_addr addr, bad;
	struct verbs_addr out;
	char text[40];

	(void)state;
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		if (verbs_op_addr_parse(texts[i], &addr) != WIMM_E_PARSE)
			fail_msg("\"%s\" was taken", texts[i]);
	verbs_addr_encode(&sample, &addr);
	for (uint32_t len = 0; len <= PROV_ADDR_MAX_BYTES + 1; len++) {
		bad = addr;
		bad.len_bytes = len;
		if (len != addr.len_bytes)
			assert_int_equal(verbs_addr_decode(&bad, &out), WIMM_E_PARSE);
	}
	bad = addr;
	bad.bytes[0] = 2; /* version */
	assert_int_equal(verbs_addr_decode(&bad, &out), WIMM_E_PARSE);
	bad = addr;
	bad.bytes[1] |= 0x80; /* flags */
	assert_int_equal(verbs_addr_decode(&bad, &out), WIMM_E_PARSE);
	assert_int_equal(verbs_op_addr_format(&bad, text, sizeof(text)), WIMM_E_PARSE);
	assert_int_equal(verbs_op_addr_format(&addr, text, sizeof(text)), WIMM_E_LIMIT);
}

static void verbs_offer_reads_back_and_lies_are_refused(void **state)
{
	/* Goal: an end of a path keeps its fields; out-of-range numbers never reach the device. */
	struct verbs_end end = { .ethernet = true,
		                 .mtu = 3,
		                 .gid = { 0xfe, 0x80 },
		                 .lid = 9,
		                 .qpn = 0xffffff,
		                 .psn = 0x123456,
		                 .token = UINT64_MAX,
		                 .ud_qpn = 5,
		                 .ud_qkey = 6 };
	struct prov_offer offer, bad;
	struct verbs_end back;

	(void)state;
	verbs_end_encode(&end, &offer);
	assert_true(offer.len_bytes <= PROV_OFFER_BYTES);
	assert_ok(verbs_end_decode(&offer, &back));
	assert_memory_equal(back.gid, end.gid, sizeof(end.gid));
	assert_true(back.ethernet && back.mtu == 3 && back.lid == 9 && back.qpn == 0xffffff);
	assert_true(back.psn == 0x123456 && back.token == UINT64_MAX);
	assert_true(back.ud_qpn == 5 && back.ud_qkey == 6);
	for (uint32_t len = 0; len <= PROV_OFFER_BYTES + 1; len++) {
		bad = offer;
		bad.len_bytes = len;
		if (len != offer.len_bytes)
			assert_int_equal(verbs_end_decode(&bad, &back), WIMM_E_PARSE);
	}
	end.qpn = 0x1000000;
	verbs_end_encode(&end, &bad);
	assert_int_equal(verbs_end_decode(&bad, &back), WIMM_E_PARSE);
	end.qpn = 0;
	verbs_end_encode(&end, &bad);
	assert_int_equal(verbs_end_decode(&bad, &back), WIMM_E_PARSE);
	end.qpn = 1;
	end.mtu = 6;
	verbs_end_encode(&end, &bad);
	assert_int_equal(verbs_end_decode(&bad, &back), WIMM_E_PARSE);
}

static void verbs_mtu_has_five_values(void **state)
{
	/* Goal: codes and bytes agree, and nothing else is one. */
	(void)state;
	assert_int_equal(verbs_mtu_bytes(0), 0);
	assert_int_equal(verbs_mtu_bytes(1), 256);
	assert_int_equal(verbs_mtu_bytes(5), 4096);
	assert_int_equal(verbs_mtu_bytes(6), 0);
	assert_int_equal(verbs_mtu_of_bytes(1024), 3);
	assert_int_equal(verbs_mtu_of_bytes(1500), 0);
	assert_int_equal(verbs_mtu_of_bytes(0), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(verbs_addr_reads_back_as_bytes_and_as_text),
		cmocka_unit_test(verbs_addr_malformed_is_refused),
		cmocka_unit_test(verbs_offer_reads_back_and_lies_are_refused),
		cmocka_unit_test(verbs_mtu_has_five_values),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
