/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include "base/alloc.h"
#include "core/merge.h"
#include "plat/rand.h"

#include <string.h>

#define PAGES_MAX 300

static struct op_paged pages_of(const uint32_t *src, const uint32_t *dst, uint64_t count,
                                uint64_t src_stride, uint64_t dst_stride, uint64_t len)
{
	struct op_paged p = { .count = count,
		              .src_stride = src_stride,
		              .dst_stride = dst_stride,
		              .page_len_bytes = len };

	p.indices = mem_alloc(2 * count * sizeof(*p.indices));
	memcpy(p.indices, src, count * sizeof(*src));
	memcpy(p.indices + count, dst, count * sizeof(*dst));
	return p;
}

static void merge_is(struct op_paged *p, uint64_t longest_bytes, uint64_t entries)
{
	merge_pages(p, longest_bytes);
	assert_int_equal(p->count, entries);
}

static void merge_neighbours_on_both_sides_become_runs(void **state)
{
	/* Goal: neighbours on both sides become one entry with their number; one that breaks off
	 * on either side begins anew. */
	static const uint32_t src[] = { 4, 5, 6, 7, 9, 10, 11, 12 };
	static const uint32_t dst[] = { 0, 1, 2, 3, 4, 5, 6, 9 };
	struct op_paged p = pages_of(src, dst, 8, 64, 64, 64);

	(void)state;
	merge_is(&p, UINT64_MAX, 3);
	assert_true(p.merged);
	assert_int_equal(p.indices[0], 4);
	assert_int_equal(p.indices[1], 9);
	assert_int_equal(p.indices[2], 12);
	assert_int_equal(p.indices[3], 0);
	assert_int_equal(p.indices[4], 4);
	assert_int_equal(p.indices[5], 9);
	assert_int_equal(p.indices[6], 4);
	assert_int_equal(p.indices[7], 3);
	assert_int_equal(p.indices[8], 1);
	mem_free(p.indices);
}

static void merge_of_what_is_no_run_changes_nothing(void **state)
{
	/* Goal: pages with a gap in memory, falling indices, or too few runs stay as they are. */
	static const uint32_t up[] = { 0, 1, 2, 3 }, down[] = { 3, 2, 1, 0 };
	static const uint32_t same[] = { 7, 7, 7, 7 };
	static const uint32_t most[] = { UINT32_MAX, 0, UINT32_MAX, 0 };
	static const struct {
		const uint32_t *src, *dst;
		uint64_t src_stride, dst_stride, len;
	} rows[] = {
		{ up, up, 65, 64, 64 },     { up, up, 64, 65, 64 },   { up, down, 64, 64, 64 },
		{ down, down, 64, 64, 64 }, { same, up, 64, 64, 64 }, { most, most, 64, 64, 64 },
		{ up, up, 0, 0, 0 },        { up, up, 64, 64, 0 },    { up, up, 100, 100, 64 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct op_paged p = pages_of(rows[i].src, rows[i].dst, 4, rows[i].src_stride,
		                             rows[i].dst_stride, rows[i].len);

		merge_is(&p, UINT64_MAX, 4);
		assert_false(p.merged);
		mem_free(p.indices);
	}
}

static void merge_keeps_to_the_longest_run(void **state)
{
	/* Goal: no run passes the longest, but a page that is longer by itself stays whole. */
	uint32_t list[100];
	struct op_paged p;

	(void)state;
	for (uint32_t i = 0; i < 100; i++)
		list[i] = i;
	p = pages_of(list, list, 100, 64, 64, 64);
	merge_is(&p, 10 * 64 + 63, 10);
	for (uint32_t i = 0; i < 10; i++)
		assert_int_equal(p.indices[20 + i], 10);
	mem_free(p.indices);
	p = pages_of(list, list, 100, 64, 64, 64);
	merge_is(&p, 63, 100);
	mem_free(p.indices);
}

static void merge_without_memory_leaves_the_list(void **state)
{
	/* Goal: without memory the list stays right. */
	static const uint32_t up[] = { 0, 1, 2, 3 };
	struct op_paged p = pages_of(up, up, 4, 64, 64, 64);

	(void)state;
	mem_fail_nth(1);
	merge_is(&p, UINT64_MAX, 4);
	assert_true(mem_fail_fired());
	mem_fail_nth(0);
	assert_false(p.merged);
	mem_free(p.indices);
}

/* The page that byte `at` of a side belongs to, by the entries. */
static void expand(const struct op_paged *p, uint64_t *src, uint64_t *dst, uint64_t *out_count)
{
	uint64_t n = 0;

	for (uint64_t i = 0; i < p->count; i++) {
		uint64_t len = p->merged ? p->indices[2 * p->count + i] : 1;

		for (uint64_t k = 0; k < len; k++) {
			src[n] = p->indices[i] * p->src_stride + k * p->page_len_bytes;
			dst[n] = p->indices[p->count + i] * p->dst_stride + k * p->page_len_bytes;
			n++;
		}
	}
	*out_count = n;
}

static void merge_of_random_lists_moves_the_same_bytes(void **state)
{
	/* Goal: whatever the lists, the same bytes go to the same places, in their order. */
	struct rng r;

	(void)state;
	rng_init(&r, 11);
	for (int round = 0; round < 3000; round++) {
		uint64_t n = 1 + rng_below(&r, PAGES_MAX);
		uint64_t len = 16, src_stride = 16u >> rng_below(&r, 3), count;
		uint32_t src[PAGES_MAX], dst[PAGES_MAX];
		uint64_t from[PAGES_MAX], to[PAGES_MAX], from_after[PAGES_MAX], to_after[PAGES_MAX];
		struct op_paged p;

		for (uint64_t i = 0; i < n; i++) {
			bool jump = i == 0 || rng_chance(&r, 1, 4);
			uint32_t step = (uint32_t)(len / src_stride);

			src[i] = jump ? (uint32_t)rng_below(&r, 4000) : src[i - 1] + step;
			dst[i] = jump && rng_chance(&r, 1, 2) ? (uint32_t)rng_below(&r, 4000)
			         : i == 0                     ? 0
			                                      : dst[i - 1] + 1;
		}
		p = pages_of(src, dst, n, src_stride, len, len);
		expand(&p, from, to, &count);
		merge_pages(&p, len * (1 + rng_below(&r, 40)));
		expand(&p, from_after, to_after, &count);
		assert_int_equal(count, n);
		assert_memory_equal(from, from_after, n * sizeof(from[0]));
		assert_memory_equal(to, to_after, n * sizeof(to[0]));
		assert_true(p.count <= n);
		mem_free(p.indices);
	}
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(merge_neighbours_on_both_sides_become_runs),
		cmocka_unit_test(merge_of_what_is_no_run_changes_nothing),
		cmocka_unit_test(merge_keeps_to_the_longest_run),
		cmocka_unit_test(merge_without_memory_leaves_the_list),
		cmocka_unit_test(merge_of_random_lists_moves_the_same_bytes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
