/* SPDX-License-Identifier: Apache-2.0 */
/* Indices of pages: copied with their maximum, checked by it, and lists of them that are kept. What
 * a list is checked by is the maximum of its own copy, which nothing changes any more: a write of
 * 4,096 pages that uses one touches none of their indices on the CPU, whose cache the card has
 * emptied of them since the last write. */
#include "core/page_list.h"

#include "base/alloc.h"
#include "core/args.h"
#include "core/engine.h"
#include "core/error_text.h"
#include "mem/cuda_queue.h"

#include <inttypes.h>

/* Eight at a time, in registers: what is checked is what was copied, whoever changes the caller's
 * array meanwhile. A long list is on its way the sooner. */
typedef uint32_t indices4 __attribute__((vector_size(16), aligned(4), may_alias));

/* One load each: a longer one that every x86-64 takes would be cut into eight. */
static inline indices4 copy_four(uint32_t *to, const uint32_t *from, indices4 most)
{
	indices4 v = *(const volatile indices4 *)from;
	indices4 more = (indices4)(v > most);

	*(indices4 *)to = v;
	return (v & more) | (most & ~more);
}

uint32_t indices_copy(uint32_t *to, const uint32_t *from, uint64_t count)
{
	indices4 most[2] = { { 0 }, { 0 } };
	uint32_t max = 0;
	uint64_t i = 0;

	for (; i + 8 <= count; i += 8) {
		most[0] = copy_four(to + i, from + i, most[0]);
		most[1] = copy_four(to + i + 4, from + i + 4, most[1]);
	}
	for (; i < count; i++) {
		to[i] = *(const volatile uint32_t *)(from + i);
		max = to[i] > max ? to[i] : max;
	}
	for (int k = 0; k < 8; k++)
		max = most[k / 4][k % 4] > max ? most[k / 4][k % 4] : max;
	return max;
}

static uint32_t most_of(const uint32_t *indices, uint64_t count)
{
	uint32_t most = 0;

	for (uint64_t i = 0; i < count; i++)
		most = indices[i] > most ? indices[i] : most;
	return most;
}

static bool page_fits(const struct wimm_pages *pages, uint32_t index, uint64_t page_len,
                      uint64_t total)
{
	uint64_t end;

	return !__builtin_mul_overflow((uint64_t)index, pages->stride_bytes, &end) &&
	       !__builtin_add_overflow(end, pages->offset_bytes, &end) &&
	       !__builtin_add_overflow(end, page_len, &end) && end <= total;
}

wimm_status indices_check(const char *side, const struct wimm_pages *pages, const uint32_t *indices,
                          uint64_t count, uint32_t most, uint64_t page_len, uint64_t total,
                          uint64_t *out_bytes)
{
	bool fits = page_fits(pages, most, page_len, total);

	if (!fits && indices != NULL) { /* that one may be elsewhere in its list */
		most = most_of(indices, count);
		fits = page_fits(pages, most, page_len, total);
	}
	*out_bytes = (uint64_t)most * pages->stride_bytes + page_len; /* right if it fits */
	if (fits)
		return WIMM_OK;
	error_text_set("%s: page index %" PRIu32 " (stride %" PRIu64 ", offset %" PRIu64
	               ", %" PRIu64 " bytes) passes the region's end at %" PRIu64
	               ", which holds %" PRIu64 " pages",
	               side, most, pages->stride_bytes, pages->offset_bytes, page_len, total,
	               pages->stride_bytes != 0 && pages->offset_bytes <= total
	                       ? (total - pages->offset_bytes) / pages->stride_bytes
	                       : 0);
	return WIMM_E_RANGE;
}

/* --- lists that are kept --- */

wimm_status page_list_check(const struct wimm_engine *engine, const struct wimm_page_list *list,
                            uint64_t first, uint64_t count)
{
	if (list->engine != engine) {
		error_text_set("the page list is none of this engine's");
		return WIMM_E_INVAL;
	}
	if (first <= list->count && count <= list->count - first)
		return WIMM_OK;
	error_text_set("pages %" PRIu64 " and %" PRIu64 " more of a list of %" PRIu64, first, count,
	               list->count);
	return WIMM_E_RANGE;
}

void page_list_ref(struct wimm_page_list *list)
{
	/* Relaxed: who takes one has one. */
	atomic_fetch_add_explicit(&list->refs, 1, memory_order_relaxed);
}

static void page_list_free(struct wimm_page_list *list)
{
	if (list->pinned)
		cuda_host_free(list->indices);
	else
		mem_free(list->indices);
	mem_free(list);
}

void page_list_unref(struct wimm_page_list *list)
{
	/* Acquire and release: whoever is last sees all that the others did. */
	if (atomic_fetch_sub_explicit(&list->refs, 1, memory_order_acq_rel) == 1)
		page_list_free(list);
}

wimm_status wimm_page_list_open(struct wimm_engine *engine, const struct wimm_mr *src,
                                const uint32_t *src_indices, const uint32_t *dst_indices,
                                uint64_t count, struct wimm_page_list **out)
{
	wimm_status st = engine_check(engine);
	struct wimm_page_list *list;
	uint64_t bytes = 2 * count * sizeof(uint32_t);

	if (st != WIMM_OK)
		return st;
	if (out == NULL || (count != 0 && (src_indices == NULL || dst_indices == NULL)))
		return args_null(out == NULL ? "out" : "src_indices, dst_indices");
	if (count > UINT32_MAX) {
		error_text_set("%" PRIu64 " pages, the most are %" PRIu32, count, UINT32_MAX);
		return WIMM_E_LIMIT;
	}
	if (!mr_usable(engine, src)) {
		error_text_set("the source region is none of this engine's, or deregistered");
		return WIMM_E_INVAL;
	}
	list = mem_calloc(1, sizeof(*list));
	if (list == NULL)
		return WIMM_E_NOMEM;
	list->engine = engine;
	list->fork_epoch = engine_fork_epoch();
	list->pinned = src->device >= 0;
	list->count = count;
	atomic_init(&list->refs, 1);
	list->indices = list->pinned ? cuda_host_alloc(bytes) : mem_alloc(bytes != 0 ? bytes : 1);
	if (list->indices == NULL) {
		mem_free(list);
		return WIMM_E_NOMEM;
	}
	list->src_most = indices_copy(list->indices, src_indices, count);
	list->dst_most = indices_copy(list->indices + count, dst_indices, count);
	*out = list;
	return WIMM_OK;
}

void wimm_page_list_close(struct wimm_page_list **handle)
{
	struct wimm_page_list *list = handle != NULL ? *handle : NULL;

	if (list == NULL)
		return;
	*handle = NULL;
	if (list->fork_epoch == engine_fork_epoch()) /* a child has no pinned memory */
		page_list_unref(list);
}
