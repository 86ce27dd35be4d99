/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include "base/alloc.h"
#include "core/wire.h"
#include "lib/wire_samples.h"
#include "plat/rand.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST = WIRE_HELLO, LAST = WIRE_LANDED, MAX = WIRE_SAMPLE_MAX_BYTES };

/* Where the header and the version byte are. */
enum { AT_MAJOR = 0, AT_TYPE = 1, AT_ZERO = 2, AT_LEN = 4 };

static uint32_t encode_sample(enum wire_type type, uint32_t variant, uint8_t *out)
{
	struct wire_msg m;
	uint32_t len;

	wire_sample_msg(type, variant, &m);
	len = wire_encode(&m, out, MAX);
	assert_true(len >= WIRE_HEADER_BYTES);
	return len;
}

static void set_len(uint8_t *bytes, uint32_t len)
{
	for (uint32_t i = 0; i < 4; i++)
		bytes[AT_LEN + i] = (uint8_t)((len - WIRE_HEADER_BYTES) >> (8 * i));
}

/* Decode from memory of exactly that length, so that a sanitizer sees a read past its end, and
 * check that a value that was accepted stays the same when it travels on. */
static wimm_status decode_checked(const uint8_t *bytes, uint32_t len)
{
	static uint8_t once[MAX], twice[MAX];
	struct wire_msg m, again;
	uint8_t *exact = malloc(len ? len : 1);
	uint32_t once_len;
	wimm_status st;

	assert_non_null(exact);
	memcpy(exact, bytes, len);
	mem_fail_nth(1);
	st = wire_decode(exact, len, &m);
	assert_false(mem_fail_fired());
	mem_fail_nth(0);
	if (st == WIMM_OK) {
		once_len = wire_encode(&m, once, sizeof(once));
		assert_true(once_len != 0 && once_len <= len);
		assert_ok(wire_decode(once, once_len, &again));
		assert_int_equal(wire_encode(&again, twice, sizeof(twice)), once_len);
		assert_memory_equal(once, twice, once_len);
	} else {
		assert_true(st == WIMM_E_PARSE || st == WIMM_E_VERSION);
	}
	free(exact);
	return st;
}

static void wire_every_message_survives_the_trip(void **state)
{
	/* Goal: each type and size decodes to what was encoded. */
	(void)state;
	for (uint32_t type = FIRST; type <= LAST; type++) {
		for (uint32_t v = 0; v < WIRE_SAMPLE_VARIANTS; v++) {
			uint8_t bytes[MAX], again[MAX];
			struct wire_msg m;
			uint32_t len = encode_sample(type, v, bytes);

			assert_ok(wire_decode(bytes, len, &m));
			assert_int_equal(m.type, type);
			assert_int_equal(wire_encode(&m, again, sizeof(again)), len);
			assert_memory_equal(bytes, again, len);
			assert_int_equal(wire_major(bytes, len), WIRE_MAJOR);
		}
	}
}

static void wire_decoded_fields_are_those_sent(void **state)
{
	/* Goal: no field lands in another one's place. */
	uint8_t bytes[MAX];
	struct wire_msg m, sent;
	uint32_t len;

	(void)state;
	len = encode_sample(WIRE_HELLO_ACK, 3, bytes);
	wire_sample_msg(WIRE_HELLO_ACK, 3, &sent);
	assert_ok(wire_decode(bytes, len, &m));
	assert_ptr_equal(m.raw, bytes);
	sent.raw = bytes;
	assert_memory_equal(&m, &sent, sizeof(m));
	len = encode_sample(WIRE_HEARTBEAT, 3, bytes);
	wire_sample_msg(WIRE_HEARTBEAT, 3, &sent);
	sent.raw = bytes;
	assert_ok(wire_decode(bytes, len, &m));
	assert_memory_equal(&m, &sent, sizeof(m));
	len = encode_sample(WIRE_GOODBYE, 2, bytes);
	assert_ok(wire_decode(bytes, len, &m));
	assert_int_equal(m.u.goodbye.reason, WIMM_E_CLOSED);
	assert_int_equal(m.u.goodbye.text_len_bytes, 14);
	assert_memory_equal(m.u.goodbye.text, "closing down f", 14);
	len = encode_sample(WIRE_MSG, 2, bytes);
	assert_true(len - 340 <= WIRE_MAX_OVERHEAD_BYTES);
	assert_ok(wire_decode(bytes, len, &m));
	assert_true(m.u.msg.seq == UINT64_C(1) << 40);
	assert_int_equal(m.u.msg.len_bytes, 340);
	assert_ptr_equal(m.u.msg.data, bytes + len - 340);
}

static void wire_bytes_are_those_of_the_specification(void **state)
{
	/* Goal: version 1 stays version 1: these bytes never change. */
	static const uint8_t mr_state[] = { 1, 7, 0,    0,    12,   0,    0,    0,    2,    0,
		                            0, 0, 0xfd, 0xff, 0xff, 0xff, 0xea, 0xff, 0xff, 0xff };
	static const uint8_t retire[] = { 1, 14, 0, 0, 12, 0, 0,    0,    3,    0,
		                          0, 0,  0, 0, 0,  0, 0xff, 0xff, 0xff, 0xff };
	static const uint8_t heartbeat[] = { 1,    4,    0,    0,    33,   0,    0,    0,    17,
		                             0,    0,    0,    0,    0,    0,    0,    2,    0xf0,
		                             0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
		                             0xff, 0xff, 0xf1, 0xff, 0xff, 0xff, 0xfe, 0xff, 0xff,
		                             0xff, 0xff, 0xff, 0xff, 0xff };
	uint8_t bytes[MAX];

	(void)state;
	assert_int_equal(encode_sample(WIRE_MR_STATE, 2, bytes), sizeof(mr_state));
	assert_memory_equal(bytes, mr_state, sizeof(mr_state));
	assert_int_equal(encode_sample(WIRE_RETIRE, 0, bytes), sizeof(retire));
	assert_memory_equal(bytes, retire, sizeof(retire));
	assert_int_equal(encode_sample(WIRE_HEARTBEAT, 1, bytes), sizeof(heartbeat));
	assert_memory_equal(bytes, heartbeat, sizeof(heartbeat));
}

static void wire_message_that_does_not_fit_is_not_encoded(void **state)
{
	/* Goal: encoding into too little room says so and stays inside it. */
	(void)state;
	for (uint32_t type = FIRST; type <= LAST; type++) {
		struct wire_msg m;
		uint8_t bytes[MAX];
		uint32_t len = encode_sample(type, 3, bytes);

		wire_sample_msg(type, 3, &m);
		for (uint32_t room = 0; room < len; room++) {
			uint8_t *exact = malloc(room ? room : 1);

			assert_non_null(exact);
			assert_int_equal(wire_encode(&m, exact, room), 0);
			free(exact);
		}
		assert_int_equal(wire_encode(&m, bytes, len), len);
	}
}

static void wire_field_that_may_not_be_sent_is_not_encoded(void **state)
{
	/* Goal: our own mistakes do not leave the process. */
	struct wire_msg m;
	uint8_t bytes[MAX];

	(void)state;
	wire_sample_msg(WIRE_HELLO, 1, &m);
	m.u.hello.heartbeat_ms = 0;
	assert_int_equal(wire_encode(&m, bytes, MAX), 0);
	wire_sample_msg(WIRE_HELLO, 1, &m);
	memset(m.u.hello.self.instance, 0, WIMM_INSTANCE_BYTES);
	assert_int_equal(wire_encode(&m, bytes, MAX), 0);
	wire_sample_msg(WIRE_HELLO_ACK, 1, &m);
	m.u.hello.path_count = 0;
	assert_int_equal(wire_encode(&m, bytes, MAX), 0);
	m.u.hello.status = WIMM_AGAIN;
	assert_true(wire_encode(&m, bytes, MAX) != 0);
	wire_sample_msg(WIRE_PATHS, 1, &m);
	m.u.paths.path_count = WIRE_MAX_PATHS + 1;
	assert_int_equal(wire_encode(&m, bytes, MAX), 0);
	wire_sample_msg(WIRE_PATHS, 1, &m);
	m.u.paths.offer[1].len_bytes = PROV_OFFER_BYTES + 1;
	assert_int_equal(wire_encode(&m, bytes, MAX), 0);
	wire_sample_msg(WIRE_GOODBYE, 1, &m);
	m.u.goodbye.text_len_bytes = 256;
	assert_int_equal(wire_encode(&m, bytes, MAX), 0);
	wire_sample_msg(WIRE_GOODBYE, 1, &m);
	m.u.goodbye.reason = (wimm_status)-1000;
	assert_int_equal(wire_encode(&m, bytes, MAX), 0);
	wire_sample_msg(WIRE_REVOKE, 1, &m);
	m.u.mr.generation = 0;
	assert_int_equal(wire_encode(&m, bytes, MAX), 0);
	m.type = (enum wire_type)(LAST + 1);
	assert_int_equal(wire_encode(&m, bytes, MAX), 0);
}

static void wire_field_out_of_range_is_refused(void **state)
{
	/* Goal: unknown types, statuses, modes and counts beyond the arrays are parse errors. */
	uint8_t bytes[MAX];
	uint32_t len;

	(void)state;
	len = encode_sample(WIRE_MSG_ACK, 0, bytes);
	bytes[len - 4] = 100; /* the status */
	assert_int_equal(decode_checked(bytes, len), WIMM_E_PARSE);
	len = encode_sample(WIRE_MR_CHECK, 0, bytes);
	memset(bytes + len - 4, 0, 4); /* the generation */
	assert_int_equal(decode_checked(bytes, len), WIMM_E_PARSE);
	len = encode_sample(WIRE_HEARTBEAT, 3, bytes);
	bytes[WIRE_HEADER_BYTES + 8] = WIRE_MAX_PATHS + 1;
	assert_int_equal(decode_checked(bytes, len), WIMM_E_PARSE);
	len = encode_sample(WIRE_HELLO, 0, bytes);
	bytes[WIRE_HEADER_BYTES + 1] = 2; /* the progress mode */
	assert_int_equal(decode_checked(bytes, len), WIMM_E_PARSE);
	len = encode_sample(WIRE_MSG_READY, 0, bytes);
	bytes[AT_TYPE] = 0;
	assert_int_equal(decode_checked(bytes, len), WIMM_E_PARSE);
	bytes[AT_TYPE] = LAST + 1;
	assert_int_equal(decode_checked(bytes, len), WIMM_E_PARSE);
	bytes[AT_TYPE] = WIRE_MSG_READY;
	bytes[AT_ZERO] = 1;
	assert_int_equal(decode_checked(bytes, len), WIMM_E_PARSE);
}

static void case_76_higher_major_is_refused_by_number(void **state)
{
	/* Goal: a later format is told apart from garbage, and its number can be named. */
	(void)state;
	for (uint32_t type = FIRST; type <= LAST; type++) {
		uint8_t bytes[MAX];
		uint32_t len = encode_sample(type, 1, bytes);

		bytes[AT_MAJOR] = WIRE_MAJOR + 1;
		assert_int_equal(decode_checked(bytes, len), WIMM_E_VERSION);
		assert_int_equal(wire_major(bytes, len), WIRE_MAJOR + 1);
		bytes[AT_MAJOR] = WIRE_MAJOR - 1;
		assert_int_equal(decode_checked(bytes, len), WIMM_E_PARSE);
	}
}

static void wire_proof_of_a_job_key_is_all_or_nothing(void **state)
{
	/* Goal: a proof is read where it stands; cut short it is malformed, cut off it is none. */
	struct wire_msg m, sent;
	uint8_t bytes[MAX];
	uint32_t len, without;

	(void)state;
	without = encode_sample(WIRE_HELLO, 3, bytes);
	wire_sample_msg(WIRE_HELLO, 3, &sent);
	sent.u.hello.auth = WIRE_AUTH_BLAKE2B;
	memset(sent.u.hello.auth_nonce, 7, WIRE_AUTH_BYTES);
	memset(sent.u.hello.mac, 70, WIRE_AUTH_BYTES);
	len = wire_encode(&sent, bytes, sizeof(bytes));
	assert_int_equal(len, without + 1 + 2 * WIRE_AUTH_BYTES);
	assert_ok(wire_decode(bytes, len, &m));
	assert_int_equal(m.mac_at, len - WIRE_AUTH_BYTES);
	sent.raw = bytes;
	sent.mac_at = m.mac_at;
	assert_memory_equal(&m, &sent, sizeof(m));
	for (uint32_t cut = without + 1; cut < len; cut++) {
		set_len(bytes, cut);
		assert_int_equal(wire_decode(bytes, cut, &m), WIMM_E_PARSE);
	}
	set_len(bytes, without);
	assert_ok(wire_decode(bytes, without, &m));
	assert_int_equal(m.u.hello.auth, 0);
}

static void wire_former_session_is_named_by_a_hello_without_a_key(void **state)
{
	/* Goal: the number of a former session is read where it stands; cut short it is malformed,
	 * cut off there is none, and what an older version put there means nothing. */
	struct wire_msg m, sent;
	uint8_t bytes[MAX];
	uint32_t len, without;

	(void)state;
	without = encode_sample(WIRE_HELLO, 3, bytes);
	wire_sample_msg(WIRE_HELLO, 3, &sent);
	sent.u.hello.former = UINT64_MAX - 1;
	len = wire_encode(&sent, bytes, sizeof(bytes));
	assert_int_equal(len, without + 1 + 8);
	assert_ok(wire_decode(bytes, len, &m));
	sent.raw = bytes;
	assert_memory_equal(&m, &sent, sizeof(m));
	for (uint32_t cut = without + 1; cut < len; cut++) {
		set_len(bytes, cut);
		assert_int_equal(wire_decode(bytes, cut, &m), WIMM_E_PARSE);
	}
	set_len(bytes, without);
	assert_ok(wire_decode(bytes, without, &m));
	assert_int_equal(m.u.hello.former, 0);
	set_len(bytes, len);
	bytes[WIRE_HEADER_BYTES] = WIRE_MINOR_FORMER - 1;
	assert_ok(wire_decode(bytes, len, &m));
	assert_int_equal(m.u.hello.former, 0);
}

static void case_76_fields_added_at_the_end_are_skipped(void **state)
{
	/* Goal: a later minor version's longer messages are read as this version's. */
	(void)state;
	for (uint32_t type = FIRST; type <= LAST; type++) {
		for (uint32_t extra = 1; extra <= 40; extra += 13) {
			uint8_t bytes[MAX], known[MAX];
			struct wire_msg m;
			uint32_t len = encode_sample(type, 2, bytes);

			memset(bytes + len, 0xa5, extra);
			set_len(bytes, len + extra);
			if (type == WIRE_HELLO || type == WIRE_HELLO_ACK)
				bytes[WIRE_HEADER_BYTES] = WIRE_MINOR + 1;
			assert_ok(wire_decode(bytes, len + extra, &m));
			assert_int_equal(wire_encode(&m, known, MAX), len);
			set_len(bytes, len);
			if (type == WIRE_HELLO || type == WIRE_HELLO_ACK)
				bytes[WIRE_HEADER_BYTES] = WIRE_MINOR;
			assert_memory_equal(bytes, known, len);
		}
	}
}

static void case_105_every_truncation_is_a_parse_error(void **state)
{
	/* Goal: a message cut anywhere is refused, claiming its old length or a fitting one. */
	(void)state;
	for (uint32_t type = FIRST; type <= LAST; type++) {
		for (uint32_t v = 0; v < WIRE_SAMPLE_VARIANTS; v++) {
			uint8_t bytes[MAX];
			uint32_t full = encode_sample(type, v, bytes);

			for (uint32_t len = 0; len < full; len++) {
				assert_int_equal(decode_checked(bytes, len), WIMM_E_PARSE);
				if (len < WIRE_HEADER_BYTES)
					continue;
				set_len(bytes, len);
				assert_int_equal(decode_checked(bytes, len), WIMM_E_PARSE);
				set_len(bytes, full);
			}
		}
	}
}

static void case_105_every_bit_flip_is_refused_or_consistent(void **state)
{
	/* Goal: no flipped bit is misread past the end or yields what cannot travel. */
	(void)state;
	for (uint32_t type = FIRST; type <= LAST; type++) {
		for (uint32_t v = 0; v < WIRE_SAMPLE_VARIANTS; v++) {
			uint8_t bytes[MAX];
			uint32_t len = encode_sample(type, v, bytes);

			for (uint32_t bit = 0; bit < 8 * len; bit++) {
				uint8_t mask = (uint8_t)(1u << (bit % 8));

				bytes[bit / 8] ^= mask;
				(void)decode_checked(bytes, len);
				bytes[bit / 8] ^= mask;
			}
			assert_ok(decode_checked(bytes, len));
		}
	}
}

static void case_105_random_bytes_are_refused_or_consistent(void **state)
{
	/* Goal: 100,000 random bodies of each type, and as many without a header, do no harm. */
	uint32_t accepted = 0;
	struct rng r;

	(void)state;
	rng_init(&r, test_seed(105));
	for (uint32_t type = 0; type <= LAST; type++) {
		for (uint32_t i = 0; i < 100000; i++) {
			uint8_t bytes[128];
			uint32_t len = (uint32_t)rng_between(&r, type ? WIRE_HEADER_BYTES : 0,
			                                     sizeof(bytes));

			for (uint32_t j = 0; j < len; j++) /* small values reach further */
				bytes[j] = (uint8_t)rng_below(&r, rng_chance(&r, 1, 2) ? 256 : 3);
			if (type) {
				memset(bytes, 0, WIRE_HEADER_BYTES);
				bytes[AT_MAJOR] = WIRE_MAJOR;
				bytes[AT_TYPE] = (uint8_t)type;
				set_len(bytes, len);
			}
			accepted += decode_checked(bytes, len) == WIMM_OK;
		}
	}
	assert_true(accepted > 100000); /* else the blobs never got past the first check */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(wire_every_message_survives_the_trip),
		cmocka_unit_test(wire_decoded_fields_are_those_sent),
		cmocka_unit_test(wire_bytes_are_those_of_the_specification),
		cmocka_unit_test(wire_message_that_does_not_fit_is_not_encoded),
		cmocka_unit_test(wire_field_that_may_not_be_sent_is_not_encoded),
		cmocka_unit_test(wire_field_out_of_range_is_refused),
		cmocka_unit_test(case_76_higher_major_is_refused_by_number),
		cmocka_unit_test(wire_proof_of_a_job_key_is_all_or_nothing),
		cmocka_unit_test(wire_former_session_is_named_by_a_hello_without_a_key),
		cmocka_unit_test(case_76_fields_added_at_the_end_are_skipped),
		cmocka_unit_test(case_105_every_truncation_is_a_parse_error),
		cmocka_unit_test(case_105_every_bit_flip_is_refused_or_consistent),
		cmocka_unit_test(case_105_random_bytes_are_refused_or_consistent),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
