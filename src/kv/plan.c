/* SPDX-License-Identifier: Apache-2.0 */
/* A request's index lists. They are made once; a layer and a chunk only choose an offset and a
 * stretch of them, so that nothing is computed per page while layers go out. */
#include "kv/plan.h"
#include "kv/layout.h"
#include "kv/map.h"
#include "kv/mem.h"

#include <string.h>

static uint64_t gcd(uint64_t a, uint64_t b)
{
	while (b != 0) {
		uint64_t rest = a % b;

		a = b;
		b = rest;
	}
	return a;
}

/* The longest step that reaches every piece of every page by whole numbers. */
static uint64_t unit_of(const struct wimm_kv_layout *l, const struct kv_places *n)
{
	uint64_t unit = l->pages > 1 ? l->page_stride_bytes : 0;

	if (n->parts > 1)
		unit = gcd(unit, l->part_stride_bytes);
	if (n->heads > 1)
		unit = gcd(unit, l->head_stride_bytes);
	if (n->tokens > 1)
		unit = gcd(unit, l->token_stride_bytes);
	return unit;
}

static uint64_t place_bytes(const struct wimm_kv_layout *l, uint32_t part, uint32_t head,
                            uint32_t token)
{
	return part * l->part_stride_bytes + head * l->head_stride_bytes +
	       token * l->token_stride_bytes;
}

/* Whether one list of 32-bit indices in steps of `unit` reaches all of it. */
static bool indexable(const struct wimm_kv_layout *l, const struct kv_places *n, uint64_t unit)
{
	uint64_t last = (l->pages - 1) * l->page_stride_bytes +
	                place_bytes(l, n->parts - 1, n->heads - 1, n->tokens - 1);

	return unit != 0 && last / unit <= UINT32_MAX;
}

static wimm_status allocate(struct kv_plan *plan)
{
	uint64_t entries;

	if (__builtin_mul_overflow(plan->pages * 2, plan->entries * plan->lanes, &entries) ||
	    entries > SIZE_MAX / sizeof(uint32_t))
		return WIMM_E_LIMIT;
	plan->lane = kv_calloc(plan->lanes, sizeof(*plan->lane));
	plan->indices = kv_calloc(entries, sizeof(*plan->indices));
	if (plan->lane == NULL || plan->indices == NULL) {
		kv_plan_fini(plan);
		return WIMM_E_NOMEM;
	}
	for (uint32_t i = 0; i < plan->lanes; i++) {
		plan->lane[i].src = plan->indices + 2 * i * plan->pages * plan->entries;
		plan->lane[i].dst = plan->lane[i].src + plan->pages * plan->entries;
	}
	return WIMM_OK;
}

/* One lane for everything: the indices count units. */
static void fill_joined(uint32_t *out, const struct wimm_kv_layout *l, const struct kv_places *n,
                        uint64_t unit, const uint32_t *pages, uint64_t count)
{
	for (uint64_t i = 0; i < count; i++)
		for (uint32_t part = 0; part < n->parts; part++)
			for (uint32_t head = 0; head < n->heads; head++)
				for (uint32_t token = 0; token < n->tokens; token++)
					*out++ = (uint32_t)((pages[i] * l->page_stride_bytes +
					                     place_bytes(l, part, head, token)) /
					                    unit);
}

/* A lane for each place: the indices are the pages, the place goes into the offset. */
static void set_apart(struct kv_plan *plan, const struct wimm_kv_layout *src,
                      const struct wimm_kv_layout *dst)
{
	const struct kv_places *n = &plan->places;

	for (uint32_t i = 0; i < plan->lanes; i++) {
		uint32_t token = i % n->tokens;
		uint32_t head = i / n->tokens % n->heads;
		uint32_t part = i / n->tokens / n->heads;

		plan->lane[i].src_offset_bytes = place_bytes(src, part, head, token);
		plan->lane[i].dst_offset_bytes = place_bytes(dst, part, head, token);
	}
	plan->src_stride_bytes = src->page_stride_bytes;
	plan->dst_stride_bytes = dst->page_stride_bytes;
}

/* One side's indices of pages first..first + count. */
static void set_indices(struct kv_plan *plan, bool src, const struct wimm_kv_layout *l,
                        const uint32_t *pages, uint64_t first, uint64_t count)
{
	for (uint32_t i = 0; i < plan->lanes; i++) {
		uint32_t *out = (src ? plan->lane[i].src : plan->lane[i].dst) +
		                first * plan->entries;

		if (plan->joined)
			fill_joined(out, l, &plan->places,
			            src ? plan->src_stride_bytes : plan->dst_stride_bytes, pages,
			            count);
		else if (count != 0)
			memcpy(out, pages, count * sizeof(*pages));
	}
}

void kv_plan_tell(struct kv_plan *plan, const struct wimm_kv_layout *src, const uint32_t *src_pages,
                  uint64_t first, uint64_t count)
{
	set_indices(plan, true, src, src_pages, first, count);
}

wimm_status kv_plan_init(struct kv_plan *plan, const struct wimm_kv_layout *src,
                         const struct wimm_kv_layout *dst, const struct wimm_kv_segment *segment,
                         const uint32_t *src_pages, const uint32_t *dst_pages, uint64_t pages)
{
	struct kv_cut cut = kv_map_cut(src, dst, segment->heads);
	const struct kv_places n = { kv_layout_parts(src), cut.by_head ? segment->heads : 1,
		                  cut.by_token ? src->page_tokens : 1 };
	uint64_t src_unit = unit_of(src, &n);
	uint64_t dst_unit = unit_of(dst, &n);
	/* Pages of one list may not overlap by their stride. */
	bool joined = dst_unit >= segment->piece_bytes && indexable(src, &n, src_unit) &&
	              indexable(dst, &n, dst_unit);
	uint32_t places = n.parts * n.heads * n.tokens;
	wimm_status st;

	memset(plan, 0, sizeof(*plan));
	plan->pages = pages;
	plan->entries = joined ? places : 1;
	plan->lanes = joined ? 1 : places;
	plan->places = n;
	plan->joined = joined;
	plan->piece_bytes = segment->piece_bytes;
	plan->src_layer_bytes = src->layer_stride_bytes;
	plan->dst_layer_bytes = dst->layer_stride_bytes;
	st = allocate(plan);
	if (st != WIMM_OK)
		return st;
	if (joined) {
		plan->src_stride_bytes = src_unit;
		plan->dst_stride_bytes = dst_unit;
	} else {
		set_apart(plan, src, dst);
	}
	if (src_pages != NULL)
		kv_plan_tell(plan, src, src_pages, 0, pages);
	set_indices(plan, false, dst, dst_pages, 0, pages);
	for (uint32_t i = 0; i < plan->lanes; i++) {
		plan->lane[i].src_offset_bytes +=
			src->offset_bytes + segment->src_head * src->head_stride_bytes;
		plan->lane[i].dst_offset_bytes +=
			dst->offset_bytes + segment->dst_head * dst->head_stride_bytes;
	}
	return WIMM_OK;
}

void kv_plan_fini(struct kv_plan *plan)
{
	kv_free(plan->lane);
	kv_free(plan->indices);
	plan->lane = NULL;
	plan->indices = NULL;
}

void kv_plan_fill(const struct kv_plan *plan, uint32_t layer, uint32_t lane_index, uint64_t first,
                  uint64_t end, struct wimm_paged_writes *out)
{
	const struct kv_lane *lane = &plan->lane[lane_index];

	out->src_pages.indices = lane->src + first * plan->entries;
	out->src_pages.count = (end - first) * plan->entries;
	out->src_pages.stride_bytes = plan->src_stride_bytes;
	out->src_pages.offset_bytes = lane->src_offset_bytes + layer * plan->src_layer_bytes;
	out->dst_pages.indices = lane->dst + first * plan->entries;
	out->dst_pages.count = out->src_pages.count;
	out->dst_pages.stride_bytes = plan->dst_stride_bytes;
	out->dst_pages.offset_bytes = lane->dst_offset_bytes + layer * plan->dst_layer_bytes;
	out->page_len_bytes = plan->piece_bytes;
}
