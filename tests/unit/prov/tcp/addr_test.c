/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include "plat/rand.h"
#include "prov/tcp/addr.h"

#include <string.h>
#include <wimm/engine.h>

static void addr_text_and_bytes_go_both_ways(void **state)
{
	/* Goal: what format writes parse reads; names, zones, mapped addresses are normalised. */
	static const struct {
		const char *text;
		const char *again;
	} rows[] = {
		{ "127.0.0.1:5000", "127.0.0.1:5000" },   { "[::1]:9000", "[::1]:9000" },
		{ "2001:db8::1", "[2001:db8::1]:18515" }, { "127.0.0.1", "127.0.0.1:18515" },
		{ "[fe80::1%lo]:7", "[fe80::1%lo]:7" },   { "[::ffff:127.0.0.1]:5", "127.0.0.1:5" },
		{ "localhost:65535", "127.0.0.1:65535" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct prov_addr addr;
		char text[TCP_ADDR_TEXT_BYTES];

		if (tcp_op_addr_parse(rows[i].text, &addr) != WIMM_OK)
			fail_msg("%s", rows[i].text);
		assert_ok(tcp_op_addr_format(&addr, text, sizeof(text)));
		assert_string_equal(text, rows[i].again);
		assert_int_equal(tcp_op_addr_format(&addr, text, strlen(text)), WIMM_E_LIMIT);
	}
}

static void addr_of_a_peer_is_refused_where_it_cannot_be_one(void **state)
{
	/* Goal: port 0 is for listening only; an unknown name or zone is not found. */
	struct prov_addr addr = { .len_bytes = 77 };

	(void)state;
	assert_int_equal(tcp_op_addr_parse("localhost:0", &addr), WIMM_E_PARSE);
	assert_int_equal(tcp_op_addr_parse("a:b:c", &addr), WIMM_E_PARSE);
	assert_int_equal(tcp_op_addr_parse("no-such-host.invalid:5", &addr), WIMM_E_NOT_FOUND);
	assert_int_equal(tcp_op_addr_parse("[fe80::1%nosuchif]:5", &addr), WIMM_E_NOT_FOUND);
	assert_int_equal(addr.len_bytes, 77);
}

static void addr_bytes_from_outside_are_checked(void **state)
{
	/* Goal: every length, every truncation and random bytes: an address or E_PARSE. */
	struct prov_addr addr;
	union tcp_sockaddr sa;
	struct rng r;

	(void)state;
	assert_ok(tcp_op_addr_parse("[::1]:9000", &addr));
	for (uint32_t len = 0; len <= 60; len++) {
		struct prov_addr cut = addr;

		cut.len_bytes = len;
		assert_int_equal(tcp_addr_decode(&cut, &sa),
		                 len == addr.len_bytes ? WIMM_OK : WIMM_E_PARSE);
	}
	rng_init(&r, test_seed(8));
	for (uint32_t i = 0; i < 100000; i++) {
		char text[TCP_ADDR_TEXT_BYTES];

		addr.len_bytes = (uint32_t)rng_below(&r, PROV_ADDR_MAX_BYTES + 2);
		for (uint32_t k = 0; k < PROV_ADDR_MAX_BYTES; k++)
			addr.bytes[k] = (uint8_t)rng_u64(&r);
		addr.bytes[0] = (uint8_t)rng_below(&r, 8);
		if (rng_chance(&r, 1, 2)) {
			addr.bytes[1] = 0;
			addr.len_bytes = addr.bytes[0] == 4 ? 8 : 24;
		}
		if (tcp_addr_decode(&addr, &sa) == WIMM_OK)
			assert_ok(tcp_sockaddr_format(&sa, text, sizeof(text)));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(addr_text_and_bytes_go_both_ways),
		cmocka_unit_test(addr_of_a_peer_is_refused_where_it_cannot_be_one),
		cmocka_unit_test(addr_bytes_from_outside_are_checked),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
