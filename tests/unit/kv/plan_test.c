/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include "kv/layout.h"
#include "kv/map.h"
#include "kv/mem.h"
#include "kv/plan.h"
#include "plat/rand.h"

#include <stdlib.h>
#include <string.h>

#define PAGES  5 /* of the decode cache; prefill has two more */
#define LAYERS 3
#define TOKENS 4
#define DIM    2

/* A rank's layout with its dimensions in a random order and random gaps between them. */
static struct wimm_kv_layout random_layout(struct rng *rng, uint32_t heads, uint32_t tp,
                                           uint32_t rank, uint64_t pages)
{
	struct wimm_kv_layout l = WIMM_KV_LAYOUT_INIT;
	uint64_t count[5], stride[5], extent;
	uint32_t order[5] = { 0, 1, 2, 3, 4 };
	bool gaps = rng_below(rng, 2) == 0;

	l.kind = WIMM_KV_GQA;
	l.layers = LAYERS;
	l.kv_heads = heads;
	l.head_dim = DIM;
	l.elem_bytes = 1;
	l.page_tokens = TOKENS;
	l.tp = tp;
	l.tp_rank = rank;
	l.pages = pages;
	l.offset_bytes = rng_below(rng, 9);
	assert_ok(wimm_kv_layout_pack(&l, NULL));
	if (rng_below(rng, 4) == 0)
		return l;
	count[0] = TOKENS;
	count[1] = kv_layout_heads(&l, rank).count;
	count[2] = 2;
	count[3] = pages;
	count[4] = LAYERS;
	for (uint32_t i = 4; i != 0; i--) {
		uint32_t k = (uint32_t)rng_below(rng, i + 1);
		uint32_t swap = order[i];

		order[i] = order[k];
		order[k] = swap;
	}
	extent = DIM;
	for (uint32_t i = 0; i < 5; i++) {
		if (gaps)
			extent += rng_below(rng, 3);
		stride[order[i]] = extent;
		extent *= count[order[i]];
	}
	l.token_stride_bytes = stride[0];
	l.head_stride_bytes = stride[1];
	l.part_stride_bytes = stride[2];
	l.page_stride_bytes = stride[3];
	l.layer_stride_bytes = stride[4];
	return l;
}

static uint64_t place(const struct wimm_kv_layout *l, uint32_t layer, uint32_t page, uint32_t part,
                      uint32_t head, uint32_t token)
{
	return l->offset_bytes + layer * l->layer_stride_bytes + page * l->page_stride_bytes +
	       part * l->part_stride_bytes + head * l->head_stride_bytes +
	       token * l->token_stride_bytes;
}

struct fixture {
	struct wimm_kv_layout p, d;
	struct wimm_kv_segment segment;
	struct kv_plan plan;
	uint32_t src_page[PAGES], dst_page[PAGES];
	uint8_t *src, *dst, *want;
	uint64_t src_bytes, dst_bytes;
};

static void fixture_open(struct fixture *f, struct rng *rng, uint32_t heads, uint32_t ptp,
                         uint32_t dtp)
{
	struct kv_map_step step = { 0 };

	f->p = random_layout(rng, heads, ptp, 0, PAGES + 2);
	f->d = random_layout(rng, heads, dtp, (uint32_t)rng_below(rng, dtp), PAGES);
	assert_ok(wimm_kv_layout_extent(&f->p, &f->src_bytes, NULL));
	assert_ok(wimm_kv_layout_extent(&f->d, &f->dst_bytes, NULL));
	assert_true(kv_map_next(&f->p, &f->d, &step, &f->segment));
	f->src = malloc(f->src_bytes);
	f->dst = malloc(f->dst_bytes);
	f->want = malloc(f->dst_bytes);
	for (uint64_t i = 0; i < f->src_bytes; i++)
		f->src[i] = (uint8_t)rng_below(rng, 255); /* never 0xff */
	memset(f->dst, 0xff, f->dst_bytes);
	memset(f->want, 0xff, f->dst_bytes);
	for (uint32_t i = 0; i < PAGES; i++) {
		f->src_page[i] = (i * 3 + 1) % (PAGES + 2);
		f->dst_page[i] = (i * 2 + 3) % PAGES;
	}
	assert_ok(
		kv_plan_init(&f->plan, &f->p, &f->d, &f->segment, f->src_page, f->dst_page, PAGES));
}

static void fixture_close(struct fixture *f)
{
	kv_plan_fini(&f->plan);
	free(f->src);
	free(f->dst);
	free(f->want);
}

/* What one paged write does, each destination byte written once. */
static uint64_t run(struct fixture *f, const struct wimm_paged_writes *w)
{
	assert_int_equal(w->src_pages.count, w->dst_pages.count);
	if (w->dst_pages.count > 1)
		assert_true(w->dst_pages.stride_bytes >= w->page_len_bytes);
	for (uint64_t i = 0; i < w->src_pages.count; i++) {
		uint64_t from = w->src_pages.offset_bytes +
		                w->src_pages.indices[i] * w->src_pages.stride_bytes;
		uint64_t to = w->dst_pages.offset_bytes +
		              w->dst_pages.indices[i] * w->dst_pages.stride_bytes;

		assert_true(from + w->page_len_bytes <= f->src_bytes);
		assert_true(to + w->page_len_bytes <= f->dst_bytes);
		for (uint64_t k = 0; k < w->page_len_bytes; k++) {
			assert_int_equal(f->dst[to + k], 0xff);
			f->dst[to + k] = f->src[from + k];
		}
	}
	return w->src_pages.count;
}

static void expect_pages(struct fixture *f, uint32_t first, uint32_t end)
{
	for (uint32_t layer = 0; layer < LAYERS; layer++)
		for (uint32_t i = first; i < end; i++)
			for (uint32_t part = 0; part < 2; part++)
				for (uint32_t h = 0; h < f->segment.heads; h++)
					for (uint32_t t = 0; t < TOKENS; t++)
						memcpy(f->want + place(&f->d, layer, f->dst_page[i],
						                       part,
						                       f->segment.dst_head + h, t),
						       f->src + place(&f->p, layer, f->src_page[i],
						                      part, f->segment.src_head + h,
						                      t),
						       DIM);
}

static void plan_of_any_strides_moves_every_byte_once(void **state)
{
	/* Goal: whatever the order and the gaps of both sides' dimensions, the paged writes of a
	 * plan copy the segment's bytes, each once, and no other, in as many pieces as the map
	 * counts; a stretch of pages copies those pages alone. */
	static const uint32_t tps[] = { 1, 2, 4 };
	uint64_t joined = 0, apart = 0;
	struct rng rng;

	(void)state;
	rng_init(&rng, test_seed(11));
	for (unsigned round = 0; round < 3000 * test_scale(); round++) {
		struct fixture f;
		uint32_t first = (uint32_t)rng_below(&rng, PAGES);
		uint32_t end = first + (uint32_t)rng_below(&rng, PAGES - first + 1);
		uint64_t pieces = 0;

		fixture_open(&f, &rng, 4, tps[rng_below(&rng, 3)], tps[rng_below(&rng, 3)]);
		joined += f.plan.lanes == 1;
		apart += f.plan.lanes != 1;
		for (uint32_t layer = 0; layer < LAYERS; layer++)
			for (uint32_t lane = 0; lane < f.plan.lanes; lane++) {
				struct wimm_paged_writes w = WIMM_PAGED_WRITES_INIT;

				kv_plan_fill(&f.plan, layer, lane, first, end, &w);
				pieces += run(&f, &w);
			}
		expect_pages(&f, first, end);
		assert_memory_equal(f.dst, f.want, f.dst_bytes);
		assert_int_equal(pieces, (end - first) * LAYERS * 2 * f.segment.pieces);
		fixture_close(&f);
	}
	assert_true(joined > 100);
	assert_true(apart > 100);
}

static void plan_of_a_packed_pair_is_one_call_a_layer(void **state)
{
	/* Goal: the usual caches need one paged write for K and V of all pages of a layer. */
	struct wimm_kv_layout l = WIMM_KV_LAYOUT_INIT;
	static const uint32_t pages[] = { 3, 1 };
	struct wimm_kv_segment s;
	struct kv_map_step step = { 0 };
	struct kv_plan plan;

	(void)state;
	l.kind = WIMM_KV_GQA;
	l.layers = 32;
	l.kv_heads = 8;
	l.head_dim = 128;
	l.elem_bytes = 2;
	l.page_tokens = 16;
	l.tp = 1;
	l.pages = 10;
	for (int i = 0; i < 2; i++) {
		assert_ok(wimm_kv_layout_pack(&l, NULL));
		if (i == 1) { /* parts outside of the pages */
			l.page_stride_bytes = l.part_stride_bytes;
			l.part_stride_bytes = 10 * l.page_stride_bytes;
		}
		step.next_head = 0;
		assert_true(kv_map_next(&l, &l, &step, &s));
		assert_ok(kv_plan_init(&plan, &l, &l, &s, pages, pages, 2));
		assert_int_equal(plan.lanes, 1);
		assert_int_equal(plan.entries, 2);
		assert_int_equal(plan.piece_bytes, 8 * 16 * 256);
		assert_int_equal(plan.src_stride_bytes, plan.piece_bytes);
		assert_int_equal(plan.lane[0].src[0], i == 0 ? 6 : 3);
		assert_int_equal(plan.lane[0].src[1], i == 0 ? 7 : 13);
		kv_plan_fini(&plan);
	}
}

static void plan_without_memory_leaves_nothing(void **state)
{
	/* Goal: each allocation may fail; what was taken before is given back. */
	struct wimm_kv_layout l = WIMM_KV_LAYOUT_INIT;
	uint64_t before = kv_live_blocks();
	const uint32_t page = 0;
	struct wimm_kv_segment s;
	struct kv_map_step step = { 0 };
	struct kv_plan plan;
	uint64_t n = 1;

	(void)state;
	l.kind = WIMM_KV_GQA;
	l.layers = l.kv_heads = l.head_dim = l.elem_bytes = l.page_tokens = l.tp = 1;
	l.pages = 1;
	assert_ok(wimm_kv_layout_pack(&l, NULL));
	assert_true(kv_map_next(&l, &l, &step, &s));
	for (;; n++) {
		wimm_status st;

		kv_fail_nth(n);
		st = kv_plan_init(&plan, &l, &l, &s, &page, &page, 1);
		if (!kv_fail_fired()) {
			assert_ok(st);
			break;
		}
		assert_int_equal(st, WIMM_E_NOMEM);
		assert_int_equal(kv_live_blocks(), before);
	}
	kv_fail_nth(0);
	assert_true(n > 1);
	kv_plan_fini(&plan);
	assert_int_equal(kv_live_blocks(), before);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(plan_of_any_strides_moves_every_byte_once),
		cmocka_unit_test(plan_of_a_packed_pair_is_one_call_a_layer),
		cmocka_unit_test(plan_without_memory_leaves_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
