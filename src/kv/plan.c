/* SPDX-License-Identifier: Apache-2.0 */
/* A request's index lists. They are made once; a layer and a chunk only choose an offset and a
 * stretch of them, so that nothing is computed per page while layers go out. plan_end.c has the
 * unit in which the prompt ends. */
#include "kv/plan.h"
#include "kv/layout.h"
#include "kv/mem.h"
#include "kv/plan_end.h"

#include <stdbool.h>
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

/* The longest step that reaches the same place of every unit by whole numbers. */
static uint64_t unit_step(const struct wimm_kv_layout *l, uint32_t unit_tokens)
{
	uint64_t step = l->pages > 1 ? l->page_stride_bytes : 0;

	return unit_tokens < l->page_tokens ? gcd(step, unit_tokens * l->token_stride_bytes) : step;
}

/* The same for every piece of every unit. */
static uint64_t piece_step(const struct wimm_kv_layout *l, uint32_t unit_tokens,
                           const struct kv_places *n)
{
	uint64_t step = unit_step(l, unit_tokens);

	if (n->parts > 1)
		step = gcd(step, l->part_stride_bytes);
	if (n->heads > 1)
		step = gcd(step, l->head_stride_bytes);
	if (n->tokens > 1)
		step = gcd(step, l->token_stride_bytes);
	return step;
}

static uint64_t place_bytes(const struct wimm_kv_layout *l, uint32_t part, uint32_t head,
                            uint32_t token)
{
	return part * l->part_stride_bytes + head * l->head_stride_bytes +
	       token * l->token_stride_bytes;
}

/* Where a token lies, counted from the layer. at: tokens from the start of the first page on. */
static uint64_t token_bytes(const struct wimm_kv_layout *l, const uint32_t *pages, uint64_t at)
{
	return pages[at / l->page_tokens] * l->page_stride_bytes +
	       at % l->page_tokens * l->token_stride_bytes;
}

/* Whether one list of 32-bit indices in steps of `step` reaches all of it. */
static bool indexable(const struct wimm_kv_layout *l, const struct kv_places *n, uint64_t step)
{
	uint64_t last = (l->pages - 1) * l->page_stride_bytes +
	                (l->page_tokens - 1) * l->token_stride_bytes +
	                place_bytes(l, n->parts - 1, n->heads - 1, n->tokens - 1);

	return step != 0 && last / step <= UINT32_MAX;
}

static wimm_status allocate(struct kv_plan *plan, uint64_t counted)
{
	uint64_t lane, entries;

	if (__builtin_mul_overflow(plan->units, plan->entries, &lane) ||
	    __builtin_mul_overflow(lane * 2, plan->lanes, &entries) || lane > UINT64_MAX / 2 ||
	    __builtin_add_overflow(entries, counted, &entries) ||
	    entries > SIZE_MAX / sizeof(uint32_t))
		return WIMM_E_LIMIT;
	plan->lane = kv_calloc(plan->lanes, sizeof(*plan->lane));
	plan->indices = kv_calloc(entries, sizeof(*plan->indices));
	if (plan->lane == NULL || plan->indices == NULL) {
		kv_plan_fini(plan);
		return WIMM_E_NOMEM;
	}
	for (uint32_t i = 0; i < plan->lanes; i++) {
		plan->lane[i].src = plan->indices + 2 * i * lane;
		plan->lane[i].dst = plan->lane[i].src + lane;
	}
	plan->end.count = plan->indices + 2 * plan->lanes * lane;
	for (uint64_t i = 0; i < counted; i++)
		plan->end.count[i] = (uint32_t)i;
	return WIMM_OK;
}

/* One side of the plan. */
struct reach {
	const struct wimm_kv_layout *l;
	const uint32_t *pages;
	uint32_t skip_tokens;
	uint64_t step;
};

/* One lane for everything: the indices count steps. */
static void fill_joined(uint32_t *out, const struct kv_plan *plan, const struct reach *r,
                        uint64_t first, uint64_t end)
{
	const struct kv_places *n = &plan->places;

	for (uint64_t i = first; i < end; i++) {
		uint64_t at = token_bytes(r->l, r->pages, r->skip_tokens + i * plan->unit_tokens);

		for (uint32_t part = 0; part < n->parts; part++)
			for (uint32_t head = 0; head < n->heads; head++)
				for (uint32_t token = 0; token < n->tokens; token++)
					*out++ = (uint32_t)((at +
					                     place_bytes(r->l, part, head, token)) /
					                    r->step);
	}
}

/* A lane for each place: the indices say which unit, the place goes into the offset. */
static void fill_apart(uint32_t *out, const struct kv_plan *plan, const struct reach *r,
                       uint64_t first, uint64_t end)
{
	for (uint64_t i = first; i < end; i++)
		*out++ = (uint32_t)(token_bytes(r->l, r->pages,
		                                r->skip_tokens + i * plan->unit_tokens) /
		                    r->step);
}

/* One side's indices of units first..end. */
static void fill(struct kv_plan *plan, bool src, const struct reach *r, uint64_t first,
                 uint64_t end)
{
	for (uint32_t i = 0; i < plan->lanes; i++) {
		uint32_t *out =
			(src ? plan->lane[i].src : plan->lane[i].dst) + first * plan->entries;

		if (plan->joined)
			fill_joined(out, plan, r, first, end);
		else
			fill_apart(out, plan, r, first, end);
	}
}

/* Several indices may reach the same byte, so a step of nothing is as good as any. */
static uint64_t apart_step(const struct wimm_kv_layout *l, uint32_t unit_tokens)
{
	uint64_t step = unit_step(l, unit_tokens);

	return step != 0 ? step : l->page_stride_bytes != 0 ? l->page_stride_bytes : 1;
}

static void set_offsets(struct kv_plan *plan, const struct kv_job *j)
{
	const struct wimm_kv_segment *s = j->segment;
	const struct kv_places *n = &plan->places;

	for (uint32_t i = 0; i < plan->lanes; i++) {
		struct kv_lane *lane = &plan->lane[i];
		uint32_t token = i % n->tokens;
		uint32_t head = i / n->tokens % n->heads;
		uint32_t part = i / n->tokens / n->heads;

		lane->src_offset_bytes = j->src->offset_bytes +
		                         s->src_head * j->src->head_stride_bytes +
		                         place_bytes(j->src, part, head, token);
		lane->dst_offset_bytes = j->dst->offset_bytes +
		                         s->dst_head * j->dst->head_stride_bytes +
		                         place_bytes(j->dst, part, head, token);
	}
}

void kv_plan_tell(struct kv_plan *plan, const uint32_t *pages, uint64_t first, uint64_t end)
{
	struct reach src = { &plan->src, pages, plan->src_skip_tokens, plan->src_stride_bytes };

	if (end > plan->units)
		kv_plan_end_tell(&plan->end,
		                 token_bytes(src.l, pages,
		                             src.skip_tokens + plan->units * plan->unit_tokens));
	fill(plan, true, &src, first, end < plan->units ? end : plan->units);
}

wimm_status kv_plan_init(struct kv_plan *plan, const struct kv_job *j)
{
	struct kv_cut cut = kv_map_cut(j->src, j->dst, j->segment->heads);
	const struct kv_places n = { kv_layout_parts(j->src), cut.by_head ? j->segment->heads : 1,
		                     cut.by_token ? j->units.tokens : 1 };
	uint64_t src_step = piece_step(j->src, j->units.tokens, &n);
	uint64_t dst_step = piece_step(j->dst, j->units.tokens, &n);
	/* Pages of one list may not overlap by their stride. */
	bool joined = j->group == 1 && dst_step >= j->segment->piece_bytes &&
	              indexable(j->src, &n, src_step) && indexable(j->dst, &n, dst_step);
	uint32_t places = n.parts * n.heads * n.tokens;
	struct reach dst = { j->dst, j->dst_pages, 0, dst_step };
	wimm_status st;

	memset(plan, 0, sizeof(*plan));
	plan->src = *j->src;
	plan->src_skip_tokens = j->src_skip_tokens;
	plan->unit_tokens = j->units.tokens;
	plan->places = n;
	plan->joined = joined;
	plan->units = j->units.whole;
	plan->group = j->group;
	plan->entries = joined ? places : 1;
	plan->lanes = joined ? 1 : places;
	plan->piece_bytes = j->segment->piece_bytes;
	plan->src_stride_bytes = joined ? src_step : apart_step(j->src, j->units.tokens);
	plan->dst_stride_bytes = joined ? dst_step : apart_step(j->dst, j->units.tokens);
	plan->src_layer_bytes = j->src->layer_stride_bytes;
	plan->dst_layer_bytes = j->dst->layer_stride_bytes;
	st = allocate(plan, kv_plan_end_counts(j));
	if (st != WIMM_OK)
		return st;
	set_offsets(plan, j);
	kv_plan_end_init(&plan->end, j);
	dst.step = plan->dst_stride_bytes;
	fill(plan, false, &dst, 0, plan->units);
	if (j->src_pages != NULL)
		kv_plan_tell(plan, j->src_pages, 0, kv_plan_total(plan));
	return WIMM_OK;
}

void kv_plan_keep(struct kv_plan *plan, struct wimm_engine *engine, const struct wimm_mr *src)
{
	if (plan->units == 0)
		return;
	/* Without memory for it each write copies its part. */
	if (wimm_page_list_open(engine, src, plan->lane[0].src, plan->lane[0].dst,
	                        plan->units * plan->entries, &plan->list) != WIMM_OK)
		plan->list = NULL;
}

void kv_plan_fini(struct kv_plan *plan)
{
	wimm_page_list_close(&plan->list);
	kv_free(plan->lane);
	kv_free(plan->indices);
	plan->lane = NULL;
	plan->indices = NULL;
}

/* --- the writes of a layer --- */

uint64_t kv_plan_total(const struct kv_plan *plan)
{
	return plan->units + (plan->end.calls != 0);
}

/* Of whole units alone. */
static uint64_t whole_calls(const struct kv_plan *plan, uint64_t first, uint64_t end)
{
	end = end < plan->units ? end : plan->units;
	if (end <= first)
		return 0;
	if (plan->group == 1)
		return plan->lanes;
	return (end - first + plan->group - 1) / plan->group * plan->lanes;
}

uint64_t kv_plan_calls(const struct kv_plan *plan, uint64_t first, uint64_t end)
{
	uint64_t calls = whole_calls(plan, first, end);

	return end > plan->units && end > first ? calls + plan->end.calls : calls;
}

uint64_t kv_plan_fill(const struct kv_plan *plan, uint32_t layer, uint64_t first, uint64_t end,
                      uint64_t call, struct wimm_paged_writes *out)
{
	uint64_t whole = whole_calls(plan, first, end);
	const struct kv_lane *lane = &plan->lane[call % plan->lanes];

	out->flags = WIMM_IMM;
	if (call >= whole) {
		kv_plan_end_fill(&plan->end, (uint32_t)(call - whole), out);
	} else {
		end = end < plan->units ? end : plan->units;
		if (plan->group > 1) {
			first += call / plan->lanes * plan->group;
			end = end < first + plan->group ? end : first + plan->group;
			out->flags |= WIMM_IMM_ONCE;
		}
		out->list = plan->list;
		out->list_first = first * plan->entries;
		out->src_pages.indices = lane->src + first * plan->entries;
		out->src_pages.stride_bytes = plan->src_stride_bytes;
		out->src_pages.offset_bytes = lane->src_offset_bytes;
		out->dst_pages.indices = lane->dst + first * plan->entries;
		out->dst_pages.stride_bytes = plan->dst_stride_bytes;
		out->dst_pages.offset_bytes = lane->dst_offset_bytes;
		out->src_pages.count = (end - first) * plan->entries;
		out->page_len_bytes = plan->piece_bytes;
	}
	out->src_pages.offset_bytes += layer * plan->src_layer_bytes;
	out->dst_pages.offset_bytes += layer * plan->dst_layer_bytes;
	out->dst_pages.count = out->src_pages.count;
	return (out->flags & WIMM_IMM_ONCE) != 0 ? 1 : out->src_pages.count;
}
