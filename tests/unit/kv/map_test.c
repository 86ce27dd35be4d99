/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#include <wimm/kv.h>

#define SEGMENTS_MAX 64

static cJSON *cases;

static int read_cases(void **state)
{
	static char text[65536];
	FILE *file = fopen(KV_CASES, "r");
	size_t len;

	(void)state;
	if (file == NULL)
		return -1;
	len = fread(text, 1, sizeof(text) - 1, file);
	fclose(file);
	text[len] = '\0';
	cases = cJSON_Parse(text);
	return cases != NULL ? 0 : -1;
}

static int free_cases(void **state)
{
	(void)state;
	cJSON_Delete(cases);
	return 0;
}

static uint32_t number(const cJSON *object, const char *name)
{
	const cJSON *item = cJSON_GetObjectItem(object, name);

	if (!cJSON_IsNumber(item))
		fail_msg("%s is missing", name);
	return (uint32_t)item->valuedouble;
}

static struct wimm_kv_layout side(const cJSON *row, const char *tp, uint32_t rank)
{
	struct wimm_kv_layout l = WIMM_KV_LAYOUT_INIT;

	l.kind = WIMM_KV_GQA;
	l.layers = number(row, "layers");
	l.kv_heads = number(row, "kv_heads");
	l.head_dim = number(row, "head_dim");
	l.elem_bytes = 2;
	l.page_tokens = number(row, "page_tokens");
	l.tp = number(row, tp);
	l.tp_rank = rank;
	l.pages = number(row, "pages");
	return l;
}

static uint64_t count_of(const struct wimm_kv_layout *p, const struct wimm_kv_layout *d,
                         uint64_t pages, int tail, uint32_t rank)
{
	uint64_t count = 0;

	assert_ok(wimm_kv_count(p, d, pages, tail, rank, &count, NULL));
	return count;
}

static void check_segment(const struct wimm_kv_segment *s, const cJSON *want, uint64_t page_bytes)
{
	assert_int_equal(s->src_rank, number(want, "src_rank"));
	assert_int_equal(s->src_head, number(want, "src_head"));
	assert_int_equal(s->dst_head, number(want, "dst_head"));
	assert_int_equal(s->heads, number(want, "heads"));
	assert_int_equal(s->pieces, 1);
	assert_int_equal(s->piece_bytes, s->heads * page_bytes);
}

static void check_rank(const cJSON *row, const cJSON *expect, const cJSON *want, uint32_t rank)
{
	struct wimm_kv_layout p = side(row, "prefill_tp", 0);
	struct wimm_kv_layout d = side(row, "decode_tp", rank);
	struct wimm_kv_segment segment[SEGMENTS_MAX];
	uint64_t pages = number(row, "pages");
	uint32_t count = 0;
	uint64_t sum = 0;

	assert_ok(wimm_kv_layout_pack(&p, NULL));
	assert_ok(wimm_kv_layout_pack(&d, NULL));
	assert_ok(wimm_kv_map(&p, &d, segment, SEGMENTS_MAX, &count, NULL));
	assert_int_equal(count, number(expect, "segments_per_decode_rank"));
	assert_int_equal(count, cJSON_GetArraySize(want));
	for (uint32_t i = 0; i < count; i++)
		check_segment(&segment[i], cJSON_GetArrayItem(want, (int)i),
		              number(expect, "head_bytes_per_page_bf16"));
	assert_int_equal(count_of(&p, &d, pages, 0, WIMM_KV_ALL_RANKS),
	                 number(expect, "imms_per_decode_rank_all_layers"));
	assert_int_equal(count_of(&p, &d, pages, 0, WIMM_KV_ALL_RANKS),
	                 p.layers * number(expect, "writes_per_layer_per_decode_rank"));
	assert_int_equal(count_of(&p, &d, pages, 1, WIMM_KV_ALL_RANKS),
	                 number(expect, "imms_per_decode_rank_all_layers") + 1);
	for (uint32_t i = 0; i < p.tp; i++)
		sum += count_of(&p, &d, pages, 1, i);
	assert_int_equal(sum, count_of(&p, &d, pages, 1, WIMM_KV_ALL_RANKS));
}

static void case_68_maps_of_the_published_shapes_are_as_listed(void **state)
{
	/* Goal: every row of kv_cases.json gives the segments and the counts written there, and the
	 * parts of the prefill ranks add up; impossible rows are refused. */
	const cJSON *row;
	uint32_t refused = 0;

	(void)state;
	cJSON_ArrayForEach(row, cJSON_GetObjectItem(cases, "gqa_cases"))
	{
		const cJSON *expect = cJSON_GetObjectItem(row, "expect");
		const cJSON *map = cJSON_GetObjectItem(expect, "map_decode_rank_to_segments");
		uint32_t rank = 0;
		const cJSON *want;

		if (!cJSON_IsObject(expect)) {
			struct wimm_kv_layout p = side(row, "prefill_tp", 0);
			struct wimm_kv_layout d = side(row, "decode_tp", 0);

			assert_int_equal(wimm_kv_compare(&p, &d, NULL), WIMM_E_MISMATCH);
			refused++;
			continue;
		}
		assert_int_equal(cJSON_GetArraySize(map), number(row, "decode_tp"));
		cJSON_ArrayForEach(want, map) check_rank(row, expect, want, rank++);
	}
	assert_int_equal(refused, 2);
}

static void map_of_kv_a_counts_4032_and_with_a_tail_4033(void **state)
{
	/* Goal: the figure that users can check by hand: 32 layers, K and V, 63 pages. */
	const cJSON *row = cJSON_GetArrayItem(cJSON_GetObjectItem(cases, "gqa_cases"), 0);
	struct wimm_kv_layout p = side(row, "prefill_tp", 0);
	struct wimm_kv_layout d = side(row, "decode_tp", 3);

	(void)state;
	assert_ok(wimm_kv_layout_pack(&p, NULL));
	assert_ok(wimm_kv_layout_pack(&d, NULL));
	assert_int_equal(count_of(&p, &d, 63, 0, WIMM_KV_ALL_RANKS), 4032);
	assert_int_equal(count_of(&p, &d, 63, 1, WIMM_KV_ALL_RANKS), 4033);
	assert_int_equal(count_of(&p, &d, 63, 1, 3), 4033);
	assert_int_equal(count_of(&p, &d, 63, 1, 0), 0);
}

static void case_57_nothing_to_write_still_counts_one(void **state)
{
	/* Goal: after a full prefix hit one immediate says "finished": the tail's, or an empty
	 * write's of the rank that would have sent it. */
	const cJSON *row = cJSON_GetArrayItem(cJSON_GetObjectItem(cases, "gqa_cases"), 2);
	struct wimm_kv_layout p = side(row, "prefill_tp", 0);
	struct wimm_kv_layout d = side(row, "decode_tp", 0);

	(void)state;
	assert_ok(wimm_kv_layout_pack(&p, NULL));
	assert_ok(wimm_kv_layout_pack(&d, NULL));
	for (int tail = 0; tail < 2; tail++) {
		assert_int_equal(count_of(&p, &d, 0, tail, WIMM_KV_ALL_RANKS), 1);
		assert_int_equal(count_of(&p, &d, 0, tail, 0), 1);
		assert_int_equal(count_of(&p, &d, 0, tail, 1), 0);
	}
}

static void case_73_mla_ranks_are_served_by_one_sender_each(void **state)
{
	/* Goal: rows mla_cases: who serves whom and how many immediates. */
	const cJSON *row;

	(void)state;
	cJSON_ArrayForEach(row, cJSON_GetObjectItem(cases, "mla_cases"))
	{
		const cJSON *expect = cJSON_GetObjectItem(row, "expect");
		const cJSON *senders = cJSON_GetObjectItem(expect, "senders");
		struct wimm_kv_layout p = WIMM_KV_LAYOUT_INIT;
		uint64_t pages = number(row, "pages");

		p.kind = WIMM_KV_MLA;
		p.layers = 61;
		p.kv_heads = 1;
		p.head_dim = 576;
		p.elem_bytes = 2;
		p.page_tokens = number(row, "page_tokens");
		p.tp = number(row, "prefill_tp");
		p.pages = pages;
		assert_ok(wimm_kv_layout_pack(&p, NULL));
		for (uint32_t rank = 0; rank < number(row, "decode_tp"); rank++) {
			struct wimm_kv_layout d = p;
			struct wimm_kv_segment s;
			uint32_t count = 0;

			d.tp = number(row, "decode_tp");
			d.tp_rank = rank;
			assert_ok(wimm_kv_map(&p, &d, &s, 1, &count, NULL));
			assert_int_equal(count, 1);
			assert_int_equal(
				s.src_rank,
				(uint32_t)cJSON_GetArrayItem(senders, (int)rank)->valuedouble);
			assert_int_equal(s.piece_bytes, number(expect, "bytes_per_page_per_layer"));
			assert_int_equal(count_of(&p, &d, pages, 0, WIMM_KV_ALL_RANKS),
			                 number(expect, "imms_per_decode_rank_all_layers"));
		}
	}
}

static void map_of_any_pair_covers_every_head_once(void **state)
{
	/* Goal: for every pair of rank numbers that fits, a decode rank's heads are covered once
	 * and in order, by prefill ranks that have them; replicated heads are taken from all. */
	(void)state;
	for (uint32_t heads = 1; heads <= 12; heads++)
		for (uint32_t ptp = 1; ptp <= 24; ptp++)
			for (uint32_t dtp = 1; dtp <= 24; dtp++) {
				struct wimm_kv_layout p = WIMM_KV_LAYOUT_INIT;
				struct wimm_kv_segment s[SEGMENTS_MAX];
				uint32_t copies, own;

				p.kind = WIMM_KV_GQA;
				p.layers = p.head_dim = p.elem_bytes = p.page_tokens = 1;
				p.pages = 1;
				p.kv_heads = heads;
				p.tp = ptp;
				if ((heads % ptp != 0 && ptp % heads != 0) ||
				    (heads % dtp != 0 && dtp % heads != 0))
					continue;
				copies = ptp > heads ? ptp / heads : 1;
				own = ptp > heads ? 1 : heads / ptp;
				for (uint32_t rank = 0; rank < dtp; rank++) {
					struct wimm_kv_layout d = p;
					uint32_t first, wanted, at = 0, count = 0;

					d.tp = dtp;
					d.tp_rank = rank;
					wanted = dtp > heads ? 1 : heads / dtp;
					first = dtp > heads ? rank / (dtp / heads) : rank * wanted;
					assert_ok(
						wimm_kv_map(&p, &d, s, SEGMENTS_MAX, &count, NULL));
					for (uint32_t i = 0; i < count; i++) {
						assert_int_equal(s[i].dst_head, at);
						assert_true(s[i].src_rank < ptp);
						assert_true(s[i].src_head + s[i].heads <= own);
						assert_int_equal(s[i].src_rank / copies * own +
						                         s[i].src_head,
						                 first + at);
						assert_int_equal(s[i].src_rank % copies,
						                 rank % copies);
						at += s[i].heads;
					}
					assert_int_equal(at, wanted);
				}
			}
}

static void map_without_room_says_how_many_there_are(void **state)
{
	/* Goal: the caller learns the number that it must have room for. */
	const cJSON *row = cJSON_GetArrayItem(cJSON_GetObjectItem(cases, "gqa_cases"), 2);
	struct wimm_kv_layout p = side(row, "prefill_tp", 0);
	struct wimm_kv_layout d = side(row, "decode_tp", 0);
	struct wimm_kv_segment s[2];
	uint32_t count = 0;

	(void)state;
	assert_ok(wimm_kv_layout_pack(&p, NULL));
	assert_ok(wimm_kv_layout_pack(&d, NULL));
	assert_int_equal(wimm_kv_map(&p, &d, s, 2, &count, NULL), WIMM_E_LIMIT);
	assert_int_equal(count, 4);
	assert_int_equal(s[1].src_rank, 1);
}

static void count_of_unlike_strides_is_the_number_of_runs(void **state)
{
	/* Goal: heads outside or tokens outside: one write where both sides agree on the order, one
	 * a head, a token or both where they do not. */
	const cJSON *row = cJSON_GetArrayItem(cJSON_GetObjectItem(cases, "gqa_cases"), 0);
	struct wimm_kv_layout p = side(row, "prefill_tp", 0); /* 2 heads, 16 tokens, 256 bytes */
	struct wimm_kv_layout d;

	(void)state;
	assert_ok(wimm_kv_layout_pack(&p, NULL));
	p.head_stride_bytes = 256;
	p.token_stride_bytes = 512;
	d = p;
	assert_int_equal(count_of(&p, &d, 1, 0, WIMM_KV_ALL_RANKS), 64);
	d.head_stride_bytes = 4096;
	d.token_stride_bytes = 256;
	assert_int_equal(count_of(&p, &d, 1, 0, WIMM_KV_ALL_RANKS), 64 * 2 * 16);
	p.head_stride_bytes = 5000;
	p.part_stride_bytes = 10000;
	p.page_stride_bytes = 20000;
	p.token_stride_bytes = 256;
	assert_int_equal(count_of(&p, &d, 1, 0, WIMM_KV_ALL_RANKS), 64 * 2);
	/* Tokens outside on both, and decode has all heads: each token is a run of the rank's. */
	d = p;
	d.tp = 1;
	p.head_stride_bytes = d.head_stride_bytes = 256;
	p.token_stride_bytes = 512;
	d.token_stride_bytes = 8 * 256;
	d.part_stride_bytes = 16 * 8 * 256;
	assert_int_equal(count_of(&p, &d, 1, 0, WIMM_KV_ALL_RANKS), 64 * 4 * 16);
}

static void count_too_large_is_refused(void **state)
{
	/* Goal: the number of writes never wraps. */
	struct wimm_kv_layout l = WIMM_KV_LAYOUT_INIT;
	uint64_t count = 7;

	(void)state;
	l.kind = WIMM_KV_GQA;
	l.layers = l.kv_heads = 4096;
	l.head_dim = l.elem_bytes = 1;
	l.page_tokens = 65536;
	l.tp = 1;
	l.pages = 1;
	assert_ok(wimm_kv_layout_pack(&l, NULL));
	l.head_stride_bytes = 3 * 65536;
	l.token_stride_bytes = 3;
	assert_int_equal(
		wimm_kv_count(&l, &l, UINT64_C(1) << 32, 1, WIMM_KV_ALL_RANKS, &count, NULL),
		WIMM_E_LIMIT);
	assert_int_equal(count, 7);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(case_68_maps_of_the_published_shapes_are_as_listed),
		cmocka_unit_test(map_of_kv_a_counts_4032_and_with_a_tail_4033),
		cmocka_unit_test(case_57_nothing_to_write_still_counts_one),
		cmocka_unit_test(case_73_mla_ranks_are_served_by_one_sender_each),
		cmocka_unit_test(map_of_any_pair_covers_every_head_once),
		cmocka_unit_test(map_without_room_says_how_many_there_are),
		cmocka_unit_test(count_of_unlike_strides_is_the_number_of_runs),
		cmocka_unit_test(count_too_large_is_refused),
	};

	return cmocka_run_group_tests(tests, read_cases, free_cases);
}
