/* SPDX-License-Identifier: Apache-2.0 */
/* Neighbours of a list of pages become one request. A request costs its frame and its completion
 * whatever its length, so small pages of a cache that lie in a row go as fast as one long write. */
#include "core/merge.h"

#include "base/alloc.h"

#include <string.h>

/* Indices from one page to its neighbour. 0: neighbours by index are none in memory. */
static uint32_t step_of(uint64_t stride_bytes, uint64_t len_bytes)
{
	uint64_t step = stride_bytes != 0 ? len_bytes / stride_bytes : 0;

	return step <= UINT32_MAX && step * stride_bytes == len_bytes ? (uint32_t)step : 0;
}

/* Not by the difference alone: the first index is no neighbour of the last there is. */
static inline uint32_t follows(uint32_t index, uint32_t before, uint32_t step)
{
	return (uint32_t)(index - before == step) & (uint32_t)(index >= step);
}

/* One look at every pair without a branch, which the compiler makes vectors of. */
static uint64_t breaks_of(const uint32_t *src, const uint32_t *dst, uint64_t count,
                          uint32_t src_step, uint32_t dst_step)
{
	uint64_t breaks = 0;

	for (uint64_t i = 1; i < count; i++)
		breaks += 1 - (follows(src[i], src[i - 1], src_step) &
		               follows(dst[i], dst[i - 1], dst_step));
	return breaks;
}

struct runs {
	uint64_t count;
	uint32_t *src, *dst, *len; /* NULL: only counted */
};

static void run_put(struct runs *r, uint32_t src, uint32_t dst, uint64_t len)
{
	if (r->src != NULL) {
		r->src[r->count] = src;
		r->dst[r->count] = dst;
		r->len[r->count] = (uint32_t)len;
	}
	r->count++;
}

static void runs_find(const struct op_paged *p, uint32_t src_step, uint32_t dst_step,
                      uint64_t longest, struct runs *r)
{
	const uint32_t *src = p->indices;
	const uint32_t *dst = p->indices + p->count;
	uint64_t first = 0;

	r->count = 0;
	for (uint64_t i = 1; i < p->count; i++) {
		if (follows(src[i], src[i - 1], src_step) != 0 &&
		    follows(dst[i], dst[i - 1], dst_step) != 0 && i - first < longest)
			continue;
		run_put(r, src[first], dst[first], i - first);
		first = i;
	}
	run_put(r, src[first], dst[first], p->count - first);
}

static bool saves_enough(uint64_t runs, uint64_t pages)
{
	return 3 * runs <= 2 * pages; /* so the three arrays take no more than the two did */
}

void merge_pages(struct op_paged *p, uint64_t longest_bytes)
{
	uint32_t src_step = step_of(p->src_stride, p->page_len_bytes);
	uint32_t dst_step = step_of(p->dst_stride, p->page_len_bytes);
	struct runs r = { 0, NULL, NULL, NULL };
	uint32_t *merged;
	uint64_t longest;

	if (p->count < 2 || src_step == 0 || dst_step == 0)
		return;
	if (!saves_enough(
		    1 + breaks_of(p->indices, p->indices + p->count, p->count, src_step, dst_step),
		    p->count))
		return;
	longest = longest_bytes / p->page_len_bytes;
	longest = longest < 1 ? 1 : longest < UINT32_MAX ? longest : UINT32_MAX;
	runs_find(p, src_step, dst_step, longest, &r);
	if (!saves_enough(r.count, p->count))
		return;
	merged = mem_alloc(3 * r.count * sizeof(*merged));
	if (merged == NULL)
		return;
	r.src = merged;
	r.dst = merged + r.count;
	r.len = r.dst + r.count;
	runs_find(p, src_step, dst_step, longest, &r);
	mem_free(p->indices);
	p->indices = merged;
	p->dst_indices = r.dst;
	p->count = r.count;
	p->merged = true;
}
