/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include <string.h>

#include "base/bytes.h"

static void bytes_written_are_little_endian_and_read_back(void **state)
{
	/* Goal: the wire order is fixed, whatever the machine's. */
	static const uint8_t want[] = { 0x01, 0x03, 0x02, 0x07, 0x06, 0x05, 0x04, 0x0f, 0x0e, 0x0d,
		                        0x0c, 0x0b, 0x0a, 0x09, 0x08, 'a',  'b',  0,    0 };
	uint8_t buf[sizeof(want)];
	char text[2];
	struct br r;
	struct bw w;

	(void)state;
	bw_init(&w, buf, sizeof(buf));
	bw_u8(&w, 0x01);
	bw_u16(&w, 0x0203);
	bw_u32(&w, 0x04050607);
	bw_u64(&w, UINT64_C(0x08090a0b0c0d0e0f));
	bw_bytes(&w, "ab", 2);
	bw_zeros(&w, 2);
	assert_false(w.bad);
	assert_int_equal(bw_len(&w), sizeof(want));
	assert_memory_equal(buf, want, sizeof(want));

	br_init(&r, buf, sizeof(buf));
	assert_int_equal(br_u8(&r), 0x01);
	assert_int_equal(br_u16(&r), 0x0203);
	assert_int_equal(br_u32(&r), 0x04050607);
	assert_true(br_u64(&r) == UINT64_C(0x08090a0b0c0d0e0f));
	br_bytes(&r, text, 2);
	assert_memory_equal(text, "ab", 2);
	assert_int_equal(br_left(&r), 2);
	assert_false(br_done(&r));
	assert_memory_equal(br_view(&r, 1), "", 1);
	br_skip(&r, 1);
	assert_true(br_done(&r));
}

static void reader_over_the_end_stays_bad_and_gives_zeros(void **state)
{
	/* Goal: one check at the end suffices, for every kind of read and each length too short. */
	static const uint8_t buf[8] = { 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff };
	uint8_t out[4] = { 1, 1, 1, 1 };
	struct br r;

	(void)state;
	for (size_t len = 0; len < 8; len++) {
		br_init(&r, buf, len);
		assert_true(br_u64(&r) == 0);
		assert_true(r.bad);
		assert_int_equal(br_u8(&r), 0);
		assert_int_equal(br_left(&r), 0);
		assert_false(br_done(&r));
	}
	br_init(&r, buf, 3);
	br_bytes(&r, out, 4);
	assert_memory_equal(out, "\0\0\0\0", 4);
	br_init(&r, buf, 3);
	assert_null(br_view(&r, SIZE_MAX));
	br_init(&r, NULL, 0);
	assert_true(br_done(&r));
	assert_int_equal(br_u8(&r), 0);
	assert_true(r.bad);
}

static void writer_over_the_end_stays_bad_and_touches_nothing(void **state)
{
	/* Goal: no byte behind the capacity changes, and later short writes do not sneak in. */
	uint8_t buf[8];
	struct bw w;

	(void)state;
	memset(buf, 0xee, sizeof(buf));
	bw_init(&w, buf, 5);
	bw_u32(&w, 0);
	bw_u16(&w, 0);
	assert_true(w.bad);
	bw_u8(&w, 0);
	bw_bytes(&w, "x", 1);
	bw_zeros(&w, SIZE_MAX);
	assert_memory_equal(buf, "\0\0\0\0\xee\xee\xee\xee", 8);
	bw_init(&w, NULL, 0);
	bw_u8(&w, 1);
	assert_true(w.bad);
}

static void largest_of_values_is_found_wherever_it_is(void **state)
{
	/* Goal: every length and place, values with the highest bit set too. */
	uint32_t values[40];

	(void)state;
	assert_int_equal(max_u32(NULL, 0), 0);
	for (uint32_t count = 1; count < 39; count++)
		for (uint32_t at = 0; at < count; at++) {
			for (uint32_t i = 0; i < count; i++)
				values[1 + i] = 0x7fffff00 + i % 7;
			values[1 + count] = UINT32_MAX; /* behind them */
			values[1 + at] = 0x80000001;
			assert_int_equal(max_u32(values + 1, count), 0x80000001);
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bytes_written_are_little_endian_and_read_back),
		cmocka_unit_test(reader_over_the_end_stays_bad_and_gives_zeros),
		cmocka_unit_test(writer_over_the_end_stays_bad_and_touches_nothing),
		cmocka_unit_test(largest_of_values_is_found_wherever_it_is),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
