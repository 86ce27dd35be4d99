/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include "plat/rand.h"
#include "prov/tcp/frame.h"

#include <string.h>

static void frame_layout_is_as_documented(void **state)
{
	/* Goal: a peer built from frame.h's table reads these bytes. */
	static const uint8_t want_hdr[TCP_HDR_BYTES] = { 1, 0, 2, 0, 0, 0, 0, 0,
		                                         8, 7, 6, 5, 4, 3, 2, 1 };
	static const uint8_t want_desc[TCP_DESC_BYTES] = {
		1, 0, 0, 0, 0, 0, 0, 0x80, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0,
		0, 0, 0, 0, 5, 0, 0, 0,    6, 0, 0, 0, 7, 0, 0, 0, 6, 0, 0, 0,
	};
	struct tcp_hdr hdr = { TCP_FRAME_DATA, 2, UINT64_C(0x0102030405060708) };
	struct tcp_desc desc = {
		.addr = UINT64_C(0x8000000000000001),
		.key = UINT64_C(3) << 32 | 2,
		.op_seq = 4,
		.len_bytes = 5,
		.imm = 6,
		.parts = 7,
		.flags = TCP_DESC_PART | TCP_DESC_LAST,
	};
	uint8_t out[TCP_DESC_BYTES];

	(void)state;
	tcp_hdr_encode(&hdr, out);
	assert_memory_equal(out, want_hdr, sizeof(want_hdr));
	tcp_desc_encode(&desc, out);
	assert_memory_equal(out, want_desc, sizeof(want_desc));
}

static void frame_preface_and_answer_survive_the_way(void **state)
{
	/* Goal: encode and decode agree; one flipped bit is noticed or is another legal value. */
	uint8_t token[TCP_TOKEN_BYTES];
	uint8_t out[TCP_PREFACE_BYTES];
	struct tcp_preface p;

	(void)state;
	for (size_t i = 0; i < sizeof(token); i++)
		token[i] = (uint8_t)(i + 1);
	tcp_preface_encode(TCP_KIND_PATH, token, out);
	assert_ok(tcp_preface_decode(out, &p));
	assert_int_equal(p.kind, TCP_KIND_PATH);
	assert_memory_equal(p.token, token, sizeof(token));
	for (uint32_t bit = 0; bit < 8 * sizeof(out); bit++) {
		wimm_status st;

		out[bit / 8] ^= (uint8_t)(1u << bit % 8);
		st = tcp_preface_decode(out, &p);
		if (bit / 8 == 4)
			assert_int_equal(st, WIMM_E_VERSION);
		else if (bit / 8 < 8 && !(bit / 8 == 5 && p.kind == TCP_KIND_CTL))
			assert_int_equal(st, WIMM_E_PARSE);
		else if (bit / 8 < 24)
			assert_int_equal(st, WIMM_OK);
		else
			assert_int_equal(st, WIMM_E_PARSE);
		out[bit / 8] ^= (uint8_t)(1u << bit % 8);
	}
}

static void frame_descriptors_must_make_the_announced_payload(void **state)
{
	/* Goal: 64 of the longest do not wrap; a sum that is off by one is refused. */
	struct tcp_hdr hdr = { TCP_FRAME_DATA, TCP_BATCH_MAX, 64 * (uint64_t)UINT32_MAX };
	struct tcp_desc desc = { .len_bytes = UINT32_MAX, .flags = TCP_DESC_LAST };
	struct tcp_desc out[TCP_BATCH_MAX];
	uint8_t bytes[TCP_BATCH_MAX * TCP_DESC_BYTES];

	(void)state;
	for (uint32_t i = 0; i < TCP_BATCH_MAX; i++)
		tcp_desc_encode(&desc, bytes + i * TCP_DESC_BYTES);
	assert_ok(tcp_descs_decode(&hdr, bytes, out));
	hdr.value--;
	assert_int_equal(tcp_descs_decode(&hdr, bytes, out), WIMM_E_PROTOCOL);
}

static void frame_random_headers_are_refused_or_within_limits(void **state)
{
	/* Goal: whatever passes may be acted on without another check of count. */
	struct rng r;

	(void)state;
	rng_init(&r, test_seed(4));
	for (uint32_t i = 0; i < 100000; i++) {
		uint8_t in[TCP_HDR_BYTES] = { (uint8_t)rng_below(&r, 5), 0,
			                      (uint8_t)rng_below(&r, 70),
			                      (uint8_t)rng_chance(&r, 1, 9) };
		struct tcp_hdr hdr;

		in[rng_below(&r, sizeof(in))] = (uint8_t)rng_u64(&r);
		if (tcp_hdr_decode(in, &hdr) != WIMM_OK)
			continue;
		assert_true(hdr.type >= TCP_FRAME_DATA && hdr.type <= TCP_FRAME_ERROR);
		if (hdr.type == TCP_FRAME_DATA)
			assert_true(hdr.count >= 1 && hdr.count <= TCP_BATCH_MAX);
		if (hdr.type == TCP_FRAME_ERROR)
			assert_true(hdr.count <= TCP_ERROR_TEXT_MAX);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(frame_layout_is_as_documented),
		cmocka_unit_test(frame_preface_and_answer_survive_the_way),
		cmocka_unit_test(frame_descriptors_must_make_the_announced_payload),
		cmocka_unit_test(frame_random_headers_are_refused_or_within_limits),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
