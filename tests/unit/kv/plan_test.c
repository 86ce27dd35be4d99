/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include "kv/layout.h"
#include "kv/map.h"
#include "kv/mem.h"
#include "kv/plan.h"
#include "plat/rand.h"

#include <stdlib.h>
#include <string.h>

#define PAGES     5 /* of the side with the longer pages */
#define PAGES_MAX (PAGES * 8 + 2)
#define LAYERS    3
#define DIM       2

/* A rank's layout with its dimensions in a random order and random gaps between them. apart: tokens
 * of a page follow each other, pages begin at whole pages, as where both sides' pages differ. */
static struct wimm_kv_layout random_layout(struct rng *rng, uint32_t heads, uint32_t page_tokens,
                                           uint32_t tp, uint32_t rank, uint64_t pages, bool apart)
{
	struct wimm_kv_layout l = WIMM_KV_LAYOUT_INIT;
	uint64_t count[5], stride[5], extent;
	uint32_t order[5] = { 0, 1, 2, 3, 4 };
	bool gaps = !apart && rng_below(rng, 2) == 0;
	bool seen = false;

	l.kind = WIMM_KV_GQA;
	l.layers = LAYERS;
	l.kv_heads = heads;
	l.head_dim = DIM;
	l.elem_bytes = 1;
	l.page_tokens = page_tokens;
	l.tp = tp;
	l.tp_rank = rank;
	l.pages = pages;
	l.offset_bytes = rng_below(rng, 9);
	assert_ok(wimm_kv_layout_pack(&l, NULL));
	if (rng_below(rng, 4) == 0)
		return l;
	count[0] = page_tokens;
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
	for (uint32_t i = 0; i < 5 && apart; i++) /* the first of the two is the tokens' */
		if (order[i] == 0 || order[i] == 3) {
			order[i] = seen ? 3 : 0;
			seen = true;
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

static uint64_t place(const struct wimm_kv_layout *l, uint32_t layer, const uint32_t *pages,
                      uint64_t at, uint32_t part, uint32_t head)
{
	return l->offset_bytes + layer * l->layer_stride_bytes +
	       pages[at / l->page_tokens] * l->page_stride_bytes + part * l->part_stride_bytes +
	       head * l->head_stride_bytes + at % l->page_tokens * l->token_stride_bytes;
}

struct fixture {
	struct wimm_kv_layout p, d;
	struct wimm_kv_segment segment;
	struct kv_job job;
	struct kv_plan plan;
	uint32_t src_page[PAGES_MAX], dst_page[PAGES_MAX];
	uint8_t *src, *dst, *want;
	uint64_t src_bytes, dst_bytes;
};

static void list_init(uint32_t *list, uint64_t pages, struct rng *rng)
{
	for (uint32_t i = 0; i < pages; i++)
		list[i] = i;
	if (rng_below(rng, 3) != 0)
		rng_shuffle_u32(rng, list, pages);
}

struct shape {
	uint32_t heads, ptp, dtp, src_tokens, dst_tokens;
	uint64_t first, tokens, group;
};

static void fixture_open(struct fixture *f, struct rng *rng, const struct shape *s)
{
	struct kv_map_step step = { 0 };
	bool apart = s->src_tokens != s->dst_tokens;
	uint64_t src_pages = s->tokens / s->src_tokens + 2;
	uint64_t dst_pages = s->tokens / s->dst_tokens + 1;

	f->p = random_layout(rng, s->heads, s->src_tokens, s->ptp, 0, src_pages, apart);
	f->d = random_layout(rng, s->heads, s->dst_tokens, s->dtp, (uint32_t)rng_below(rng, s->dtp),
	                     dst_pages, apart);
	assert_ok(wimm_kv_layout_extent(&f->p, &f->src_bytes, NULL));
	assert_ok(wimm_kv_layout_extent(&f->d, &f->dst_bytes, NULL));
	assert_ok(wimm_kv_compare(&f->p, &f->d, NULL));
	assert_true(kv_map_next(&f->p, &f->d, &step, &f->segment));
	f->src = malloc(f->src_bytes);
	f->dst = malloc(f->dst_bytes);
	f->want = malloc(f->dst_bytes);
	for (uint64_t i = 0; i < f->src_bytes; i++)
		f->src[i] = (uint8_t)rng_below(rng, 255); /* never 0xff */
	memset(f->dst, 0xff, f->dst_bytes);
	memset(f->want, 0xff, f->dst_bytes);
	list_init(f->src_page, src_pages, rng);
	list_init(f->dst_page, dst_pages, rng);
	f->job = (struct kv_job){ .src = &f->p,
		                  .dst = &f->d,
		                  .segment = &f->segment,
		                  .src_pages = f->src_page,
		                  .dst_pages = f->dst_page,
		                  .src_skip_tokens = (uint32_t)(s->first % s->src_tokens),
		                  .units = kv_map_units(&f->p, &f->d, s->first, s->tokens),
		                  .group = s->group };
	assert_ok(kv_plan_init(&f->plan, &f->job));
}

static void fixture_close(struct fixture *f)
{
	kv_plan_fini(&f->plan);
	free(f->src);
	free(f->dst);
	free(f->want);
}

/* What one paged write does, each destination byte written once. */
static void run(struct fixture *f, const struct wimm_paged_writes *w)
{
	assert_int_equal(w->src_pages.count, w->dst_pages.count);
	assert_true(w->src_pages.count != 0);
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
}

/* Tokens first..end, counted from the request's first. */
static void expect_tokens(struct fixture *f, uint64_t first, uint64_t end)
{
	uint64_t skip = f->job.src_skip_tokens;

	for (uint32_t layer = 0; layer < LAYERS; layer++)
		for (uint64_t t = first; t < end; t++)
			for (uint32_t part = 0; part < 2; part++)
				for (uint32_t h = 0; h < f->segment.heads; h++)
					memcpy(f->want + place(&f->d, layer, f->dst_page, t, part,
					                       f->segment.dst_head + h),
					       f->src + place(&f->p, layer, f->src_page, skip + t,
					                      part, f->segment.src_head + h),
					       DIM);
}

/* Units first..end of every layer. Returns the immediates. */
static uint64_t run_units(struct fixture *f, uint64_t first, uint64_t end)
{
	uint64_t immediates = 0;

	for (uint32_t layer = 0; layer < LAYERS; layer++)
		for (uint64_t call = 0; call < kv_plan_calls(&f->plan, first, end); call++) {
			struct wimm_paged_writes w = WIMM_PAGED_WRITES_INIT;

			immediates += kv_plan_fill(&f->plan, layer, first, end, call, &w);
			run(f, &w);
		}
	return immediates;
}

static void check_shape(struct rng *rng, const struct shape *s, uint64_t *joined, uint64_t *apart)
{
	struct fixture f;
	struct kv_units units;
	uint64_t total, first, end, immediates, groups;

	fixture_open(&f, rng, s);
	units = f.job.units;
	total = kv_plan_total(&f.plan);
	*joined += f.plan.lanes == 1;
	*apart += f.plan.lanes != 1;
	assert_int_equal(total, units.whole + (units.last_tokens != 0));
	/* A stretch, then what is left before and behind it: as chunks do. */
	first = rng_below(rng, total + 1);
	first = first <= units.whole ? first - first % s->group : total;
	end = first + rng_below(rng, total - first + 1);
	end = end == total || end - end % s->group < first ? total : end - end % s->group;
	immediates = run_units(&f, first, end);
	expect_tokens(&f, first * units.tokens,
	              end == total ? s->tokens - s->first : end * units.tokens);
	if (first != total) /* else nothing was asked for */
		assert_memory_equal(f.dst, f.want, f.dst_bytes);
	immediates += run_units(&f, 0, first) + run_units(&f, end, total);
	expect_tokens(&f, 0, s->tokens - s->first);
	assert_memory_equal(f.dst, f.want, f.dst_bytes);
	groups = kv_map_groups(&units, s->group);
	assert_int_equal(immediates, groups * LAYERS * 2 * f.segment.pieces);
	fixture_close(&f);
}

static void plan_of_any_strides_moves_every_byte_once(void **state)
{
	/* Goal: whatever the order and the gaps of both sides' dimensions, their page sizes, the
	 * groups and where the prompt ends, the paged writes of a plan copy the segment's bytes,
	 * each once, and no other, with as many immediates as the map counts; a stretch of units
	 * copies those alone. */
	static const uint32_t tps[] = { 1, 2, 4 }, sizes[] = { 4, 1, 2, 8, 12 };
	uint64_t joined = 0, apart = 0;
	struct rng rng;

	(void)state;
	rng_init(&rng, test_seed(11));
	for (unsigned round = 0; round < 4000 * test_scale(); round++) {
		struct shape s = { .heads = 4,
			           .ptp = tps[rng_below(&rng, 3)],
			           .dtp = tps[rng_below(&rng, 3)],
			           .src_tokens = sizes[rng_below(&rng, 5)],
			           .group = 1 + rng_below(&rng, 2) * rng_below(&rng, 5) };

		s.dst_tokens = rng_below(&rng, 2) != 0 ? s.src_tokens : sizes[rng_below(&rng, 5)];
		s.tokens = 1 + rng_below(&rng, 32);
		s.first = rng_below(&rng, s.tokens);
		s.first -= s.first % s.dst_tokens;
		check_shape(&rng, &s, &joined, &apart);
	}
	assert_true(joined > 100);
	assert_true(apart > 100);
}

static void case_71_units_of_the_published_pairs_are_as_listed(void **state)
{
	/* Goal: pages of 16 and 128, 128 and 16, 64 and 64 tokens: units and the last one's tokens,
	 * and the place of each listed unit on both sides. */
	static const struct {
		uint32_t src, dst;
		uint64_t tokens, whole;
		uint32_t unit, last;
		struct {
			uint64_t unit, src_page, src_token, dst_page, dst_token;
		} at[3];
	} rows[] = {
		{ 16,
		  128,
		  300,
		  18,
		  16,
		  12,
		  { { 0, 0, 0, 0, 0 }, { 1, 1, 0, 0, 16 }, { 18, 18, 0, 2, 32 } } },
		{ 128,
		  16,
		  300,
		  18,
		  16,
		  12,
		  { { 0, 0, 0, 0, 0 }, { 1, 0, 16, 1, 0 }, { 18, 2, 32, 18, 0 } } },
		{ 64,
		  64,
		  4097,
		  64,
		  64,
		  1,
		  { { 0, 0, 0, 0, 0 }, { 1, 1, 0, 1, 0 }, { 64, 64, 0, 64, 0 } } },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct wimm_kv_layout p = WIMM_KV_LAYOUT_INIT, d;
		struct kv_units u;

		p.kind = WIMM_KV_GQA;
		p.layers = p.kv_heads = p.head_dim = p.elem_bytes = p.tp = 1;
		p.pages = 65;
		p.page_tokens = rows[i].src;
		assert_ok(wimm_kv_layout_pack(&p, NULL));
		d = p;
		d.page_tokens = rows[i].dst;
		assert_ok(wimm_kv_layout_pack(&d, NULL));
		assert_ok(wimm_kv_compare(&p, &d, NULL));
		u = kv_map_units(&p, &d, 0, rows[i].tokens);
		assert_int_equal(u.tokens, rows[i].unit);
		assert_int_equal(u.whole, rows[i].whole);
		assert_int_equal(u.last_tokens, rows[i].last);
		for (size_t k = 0; k < 3; k++) {
			uint64_t token = rows[i].at[k].unit * u.tokens;

			assert_int_equal(token / rows[i].src, rows[i].at[k].src_page);
			assert_int_equal(token % rows[i].src, rows[i].at[k].src_token);
			assert_int_equal(token / rows[i].dst, rows[i].at[k].dst_page);
			assert_int_equal(token % rows[i].dst, rows[i].at[k].dst_token);
		}
	}
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
		struct kv_job job = { .src = &l,
			              .dst = &l,
			              .segment = &s,
			              .src_pages = pages,
			              .dst_pages = pages,
			              .units = { 16, 2, 0 },
			              .group = 1 };

		assert_ok(wimm_kv_layout_pack(&l, NULL));
		if (i == 1) { /* parts outside of the pages */
			l.page_stride_bytes = l.part_stride_bytes;
			l.part_stride_bytes = 10 * l.page_stride_bytes;
		}
		step.next_head = 0;
		assert_true(kv_map_next(&l, &l, &step, &s));
		assert_ok(kv_plan_init(&plan, &job));
		assert_int_equal(plan.lanes, 1);
		assert_int_equal(plan.entries, 2);
		assert_int_equal(kv_plan_calls(&plan, 0, 2), 1);
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
	struct kv_job job = { .src = &l,
		              .dst = &l,
		              .segment = &s,
		              .src_pages = &page,
		              .dst_pages = &page,
		              .units = { 2, 0, 1 },
		              .group = 1 };
	uint64_t n = 1;

	(void)state;
	l.kind = WIMM_KV_GQA;
	l.layers = l.kv_heads = l.head_dim = l.elem_bytes = l.tp = 1;
	l.page_tokens = 2;
	l.pages = 1;
	assert_ok(wimm_kv_layout_pack(&l, NULL));
	assert_true(kv_map_next(&l, &l, &step, &s));
	for (;; n++) {
		wimm_status st;

		kv_fail_nth(n);
		st = kv_plan_init(&plan, &job);
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
		cmocka_unit_test(case_71_units_of_the_published_pairs_are_as_listed),
		cmocka_unit_test(plan_of_a_packed_pair_is_one_call_a_layer),
		cmocka_unit_test(plan_without_memory_leaves_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
