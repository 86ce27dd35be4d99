/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include "core/error_text.h"
#include "core/page_list.h"

#include <string.h>

#include <wimm/engine.h>

#define PAGES_MAX 40

static void indices_greatest_is_found_at_every_place(void **state)
{
	/* Goal: whatever the length, and wherever the greatest is, it is found and all is
	 * copied; no entry beside them is written. */
	uint32_t from[PAGES_MAX], to[PAGES_MAX + 1];

	(void)state;
	for (uint32_t count = 0; count <= PAGES_MAX; count++) {
		for (uint32_t at = 0; at < count; at++) {
			for (uint32_t i = 0; i < count; i++)
				from[i] = 100 + i % 7;
			from[at] = at % 2 != 0 ? UINT32_MAX : 0x80000000u;
			memset(to, 0x5a, sizeof(to));
			assert_int_equal(indices_copy(to, from, count), from[at]);
			assert_memory_equal(to, from, count * sizeof(*from));
			assert_int_equal(to[count], 0x5a5a5a5a);
		}
	}
	assert_int_equal(indices_copy(to, from, 0), 0);
}

static wimm_status check(uint64_t stride, uint64_t offset, uint32_t most, uint64_t page_len,
                         uint64_t total)
{
	const struct wimm_pages pages = { .count = 1,
		                          .stride_bytes = stride,
		                          .offset_bytes = offset };
	uint64_t bytes;
	wimm_status st =
		indices_check("source", &pages, NULL, 1, most, page_len, total, &bytes);

	if (st == WIMM_OK)
		assert_int_equal(bytes, most * stride + page_len);
	return st;
}

static void indices_past_the_end_are_refused_without_overflow(void **state)
{
	/* Goal: the last byte that fits is accepted, the next is not, and sums that pass 64 bits
	 * are no way round it. */
	(void)state;
	assert_int_equal(check(64, 0, 9, 64, 640), WIMM_OK);
	assert_int_equal(check(64, 1, 9, 64, 640), WIMM_E_RANGE);
	assert_int_equal(check(64, 0, 9, 65, 640), WIMM_E_RANGE);
	assert_int_equal(check(64, 0, 10, 64, 640), WIMM_E_RANGE);
	assert_int_equal(check(64, 640, 0, 0, 640), WIMM_OK);
	assert_int_equal(check(64, 641, 0, 0, 640), WIMM_E_RANGE);
	assert_int_equal(check(UINT64_MAX / 4, 0, 5, 8, UINT64_MAX), WIMM_E_RANGE);
	assert_int_equal(check(8, UINT64_MAX - 7, 1, 8, UINT64_MAX), WIMM_E_RANGE);
	assert_int_equal(check(8, UINT64_MAX - 8, 1, 8, UINT64_MAX), WIMM_E_RANGE);
	assert_int_equal(check(8, 8, 0, UINT64_MAX, UINT64_MAX), WIMM_E_RANGE);
	assert_int_equal(check(8, 0, 0, UINT64_MAX, UINT64_MAX), WIMM_OK);
}

static void indices_of_a_part_are_looked_at_when_the_whole_does_not_fit(void **state)
{
	/* Goal: a greatest that is elsewhere in its list refuses no part that fits, and the text
	 * names the part's own. */
	static const uint32_t part[] = { 3, 8, 2 };
	const struct wimm_pages pages = { .count = 3, .stride_bytes = 64 };
	uint64_t bytes;

	(void)state;
	assert_int_equal(indices_check("source", &pages, part, 3, 99, 64, 640, &bytes), WIMM_OK);
	assert_int_equal(bytes, 8 * 64 + 64);
	assert_int_equal(indices_check("source", &pages, part, 3, 99, 64, 512, &bytes),
	                 WIMM_E_RANGE);
	assert_non_null(strstr(wimm_last_error_text(), "source: page index 8 "));
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(indices_greatest_is_found_at_every_place),
		cmocka_unit_test(indices_past_the_end_are_refused_without_overflow),
		cmocka_unit_test(indices_of_a_part_are_looked_at_when_the_whole_does_not_fit),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
