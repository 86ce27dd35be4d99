/* SPDX-License-Identifier: Apache-2.0 */
/* Pages of other sizes on both sides, prompts that end inside a page, groups that share an
 * immediate: over engines, every byte of both caches looked at. */
#include "kv/pair.h"

#include "kv/layout.h"
#include "kv/map.h"

#include <stdlib.h>
#include <string.h>

#define EMPTY    0xee
#define LAYERS   3
#define LIST_MAX 300

struct row {
	wimm_kv_kind kind;
	uint32_t prefill_page, decode_page, prefill_tp, decode_tp;
	uint64_t first, tokens, computed, chunk, group;
	bool told;      /* the chunks are told as they come */
	uint32_t heads; /* of the model; 0: 4 */
};

static uint32_t list_p[LIST_MAX], list_d[LIST_MAX];

static struct wimm_kv_layout layout_of(const struct row *row, bool decode, uint32_t rank)
{
	struct wimm_kv_layout l = WIMM_KV_LAYOUT_INIT;

	l.kind = row->kind;
	l.layers = LAYERS;
	l.kv_heads = row->kind == WIMM_KV_MLA ? 1 : row->heads != 0 ? row->heads : 4;
	l.head_dim = 4;
	l.elem_bytes = 2;
	l.page_tokens = decode ? row->decode_page : row->prefill_page;
	l.tp = decode ? row->decode_tp : row->prefill_tp;
	l.tp_rank = rank;
	l.pages = row->tokens / l.page_tokens + 3;
	assert_ok(wimm_kv_layout_pack(&l, NULL));
	return l;
}

static void open_row(struct kv_pair *p, const struct row *row)
{
	kv_open(p, 0, 0, NULL, NULL);
	p->prefill_tp = row->prefill_tp;
	p->decode_tp = row->decode_tp;
	for (uint32_t i = 0; i < row->prefill_tp; i++) {
		struct wimm_kv_layout l = layout_of(row, false, i);

		kv_side_open(p, &p->prefill[i], &l);
		kv_fill(&p->prefill[i], row->kind == WIMM_KV_MLA ? 0 : i);
	}
	for (uint32_t i = 0; i < row->decode_tp; i++) {
		struct wimm_kv_layout l = layout_of(row, true, i);

		kv_side_open(p, &p->decode[i], &l);
	}
	/* The first half of each cache's pages in a row, the rest backwards. */
	for (uint32_t i = 0; i < LIST_MAX; i++) {
		uint32_t n = (uint32_t)p->prefill[0].layout.pages;
		uint32_t m = (uint32_t)p->decode[0].layout.pages;

		list_p[i] = i < n / 2 ? i : n - 1 - (i - n / 2);
		list_d[i] = i < m / 2 ? i + m - m / 2 : m - 1 - i;
	}
}

/* Token by token; whatever holds none is as it was. */
static void check_rank(struct kv_pair *p, const struct row *row, uint32_t rank)
{
	struct kv_side *s = &p->decode[rank];
	const struct wimm_kv_layout *l = &s->layout;
	struct kv_heads heads = kv_layout_heads(l, rank);
	uint64_t skip = row->first % row->prefill_page;
	uint8_t *want = malloc(s->bytes);

	memset(want, EMPTY, s->bytes);
	for (uint64_t t = 0; t < row->tokens - row->first; t++)
		for (uint32_t layer = 0; layer < LAYERS; layer++)
			for (uint32_t part = 0; part < kv_layout_parts(l); part++)
				for (uint32_t h = 0; h < heads.count; h++)
					memcpy(want + (kv_at(s, layer, list_d[t / row->decode_page],
					                     part, h,
					                     (uint32_t)(t % row->decode_page)) -
					               s->mem),
					       kv_source(p, layer,
					              list_p[(skip + t) / row->prefill_page], part,
					              heads.first + h,
					              (uint32_t)((skip + t) % row->prefill_page)),
					       kv_layout_row_bytes(l));
	assert_memory_equal(s->mem, want, s->bytes);
	free(want);
}

static void tell_chunks(struct wimm_kv_sender *sender, const struct row *row)
{
	uint64_t told = 0;

	for (uint64_t token = 0; token < row->tokens;) {
		uint64_t pages;
		wimm_status st;

		token = token + row->chunk < row->tokens ? token + row->chunk : row->tokens;
		pages = token <= row->first ? 0
		                            : (token + row->prefill_page - 1) / row->prefill_page -
		                                      row->first / row->prefill_page;
		st = wimm_kv_sender_chunk(sender, token, list_p + told, pages - told, NULL);
		if (st == WIMM_E_CLOSED && row->prefill_tp > 1)
			return; /* a rank that has nothing to send ends at once */
		assert_ok(st);
		told = pages;
	}
}

static void run_rank(struct kv_pair *p, const struct row *row, uint32_t rank)
{
	struct kv_result got, sent[RANKS_MAX];
	struct wimm_kv_receiver *receiver = NULL;
	struct wimm_kv_sender *sender[RANKS_MAX] = { NULL };
	uint64_t pages_d = (row->tokens + row->decode_page - 1) / row->decode_page -
	                   row->first / row->decode_page;
	uint64_t pages_p = (row->tokens + row->prefill_page - 1) / row->prefill_page -
	                   row->first / row->prefill_page;
	struct wimm_kv_receive_opts r = kv_receive_opts(&got, row->tokens, list_d, pages_d);
	struct wimm_error_info error = { 0 };
	uint64_t immediates = 0, bytes = 0;

	assert_true(pages_d <= LIST_MAX && pages_p <= LIST_MAX);
	r.prefill = &p->prefill[0].layout;
	r.first_token = row->first;
	r.group_units = row->group;
	if (wimm_kv_receiver_open(p->decode[rank].cache, &r, &receiver, &error) != WIMM_OK)
		fail_msg("receiver: %s", error.text);
	for (uint32_t k = 0; k < row->prefill_tp; k++) {
		struct wimm_kv_send_opts o = kv_send_opts(&sent[k], receiver, list_p, pages_p);

		if (row->told) {
			o = kv_send_opts(&sent[k], receiver, NULL, 0);
			o.flags = WIMM_KV_CHUNKS_TOLD;
		}
		o.computed_token = row->computed;
		o.chunk_tokens = row->told ? 0 : row->chunk;
		if (wimm_kv_sender_open(p->prefill[k].cache, &o, &sender[k], &error) != WIMM_OK)
			fail_msg("sender: %s", error.text);
	}
	for (uint32_t k = 0; k < row->prefill_tp && row->told; k++)
		tell_chunks(sender[k], row);
	for (uint32_t k = 0; k < row->prefill_tp; k++)
		for (uint64_t step = wimm_kv_sender_steps(sender[k]); step != 0; step--)
			wimm_kv_sender_bump(sender[k], 1);
	kv_wait(p, &got, WIMM_OK);
	for (uint32_t k = 0; k < row->prefill_tp; k++) {
		kv_wait(p, &sent[k], WIMM_OK);
		immediates += sent[k].immediates;
		bytes += sent[k].bytes;
		assert_ok(wimm_kv_sender_close(&sender[k]));
	}
	assert_int_equal(immediates, wimm_kv_receiver_count(receiver));
	assert_int_equal(bytes, got.bytes);
	check_rank(p, row, rank);
	assert_ok(wimm_kv_receiver_close(&receiver, NULL));
}

static void run_row(const struct row *row)
{
	struct kv_pair p = { .provider = NULL };

	open_row(&p, row);
	for (uint32_t rank = 0; rank < row->decode_tp; rank++)
		run_rank(&p, row, rank);
	kv_close(&p);
}

static void case_71_pages_of_other_sizes_get_every_token_and_no_other_byte(void **state)
{
	/* Goal: the published pairs with 300 and 4097 tokens, with a prefix hit that begins inside
	 * a page of the other side, chunks that end anywhere, other numbers of ranks, MLA. */
	static const struct row rows[] = {
		{ WIMM_KV_GQA, 16, 128, 1, 1, 0, 300, 0, 0, 0, false, 0 },
		{ WIMM_KV_GQA, 128, 16, 1, 1, 0, 300, 0, 0, 0, false, 0 },
		{ WIMM_KV_GQA, 64, 64, 1, 1, 0, 4097, 0, 0, 0, false, 0 },
		{ WIMM_KV_GQA, 64, 64, 1, 1, 0, 300, 0, 0, 0, false, 0 },
		{ WIMM_KV_GQA, 16, 128, 1, 1, 0, 4097, 0, 1000, 0, false, 0 },
		{ WIMM_KV_GQA, 128, 16, 1, 1, 0, 4097, 0, 1000, 0, false, 0 },
		{ WIMM_KV_GQA, 128, 16, 2, 1, 48, 300, 40, 77, 0, false, 0 },
		{ WIMM_KV_GQA, 16, 128, 1, 4, 128, 300, 130, 50, 0, false, 0 },
		{ WIMM_KV_GQA, 24, 16, 4, 2, 32, 301, 0, 64, 0, false, 0 },
		{ WIMM_KV_GQA, 64, 32, 1, 2, 0, 128, 0, 0, 0, false, 0 },
		{ WIMM_KV_GQA, 32, 64, 2, 1, 0, 300, 0, 0, 0, false, 0 },
		{ WIMM_KV_MLA, 64, 16, 4, 2, 16, 299, 0, 100, 0, false, 0 },
		{ WIMM_KV_GQA, 1, 16, 1, 1, 0, 200, 0, 30, 0, false, 0 },
		{ WIMM_KV_GQA, 16, 64, 1, 1, 64, 299, 0, 37, 0, true, 0 },
		{ WIMM_KV_GQA, 64, 16, 2, 1, 80, 299, 0, 37, 0, true, 0 },
		{ WIMM_KV_GQA, 16, 16, 1, 1, 0, 299, 0, 50, 0, true, 0 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		run_row(&rows[i]);
}

static void case_68_published_shapes_get_every_byte_once(void **state)
{
	/* Goal: ranks, heads, pages and tokens of rows kv-a, b, c, h and i of kv_cases.json, with
	 * fewer layers and dimensions: each byte is a pattern of its layer, head and token. */
	static const struct row rows[] = {
		{ WIMM_KV_GQA, 16, 16, 4, 4, 0, 1000, 0, 0, 0, false, 8 },
		{ WIMM_KV_GQA, 16, 16, 2, 4, 0, 1000, 0, 0, 0, false, 8 },
		{ WIMM_KV_GQA, 16, 16, 4, 1, 0, 17, 0, 0, 0, false, 8 },
		{ WIMM_KV_GQA, 16, 16, 2, 1, 0, 31, 0, 0, 0, false, 8 },
		{ WIMM_KV_GQA, 32, 32, 1, 4, 0, 129, 0, 0, 0, false, 8 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		run_row(&rows[i]);
}

static void case_73_mla_prefill_ranks_share_the_work_and_all_learn_the_end(void **state)
{
	/* Goal: a latent cache from 8 ranks to 8 and to 4: each decode rank has every byte from the
	 * one rank that the map names, and all 8 report their end, once, for each request. */
	static const struct row rows[] = {
		{ WIMM_KV_MLA, 64, 64, 8, 8, 0, 4096, 0, 0, 0, false, 0 },
		{ WIMM_KV_MLA, 64, 64, 8, 4, 0, 4097, 0, 0, 0, false, 0 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		run_row(&rows[i]);
}

static void pages_in_groups_count_one_immediate_each(void **state)
{
	/* Goal: whatever the group, the chunks and the pages' order, a group's units leave together
	 * and all is there when the fewer immediates are counted. */
	static const struct row rows[] = {
		{ WIMM_KV_GQA, 1, 1, 1, 1, 0, 290, 0, 0, 256, false, 0 },
		{ WIMM_KV_GQA, 1, 1, 1, 1, 0, 290, 0, 33, 64, false, 0 },
		{ WIMM_KV_GQA, 1, 1, 2, 1, 7, 290, 0, 33, 1000, false, 0 },
		{ WIMM_KV_GQA, 4, 4, 1, 2, 8, 291, 10, 40, 5, false, 0 },
		{ WIMM_KV_GQA, 16, 4, 1, 1, 12, 291, 0, 40, 3, false, 0 },
		{ WIMM_KV_MLA, 1, 1, 2, 2, 0, 200, 0, 90, 16, false, 0 },
		{ WIMM_KV_MLA, 1, 1, 2, 2, 0, 200, 0, 90, 16, true, 0 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		run_row(&rows[i]);
}

static void pages_many_and_small_in_a_row_are_grouped_unasked(void **state)
{
	/* Goal: the choice: few pages, large ones and ones in no order keep an immediate each. */
	static const struct row row = { WIMM_KV_GQA, 1, 1, 1, 1, 0, 290, 0, 0, 0, false, 0 };
	struct kv_pair p = { .provider = NULL };
	static const struct {
		uint64_t tokens;
		bool shuffled;
		uint64_t count;
	} want[] = {
		{ 290, false, LAYERS * 2 * 2 },
		{ 255, false, LAYERS * 2 * 255 },
		{ 290, true, LAYERS * 2 * 290 },
	};

	(void)state;
	open_row(&p, &row);
	for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
		struct kv_result got;
		struct wimm_kv_receive_opts r =
			kv_receive_opts(&got, want[i].tokens, list_d, want[i].tokens);
		struct wimm_kv_receiver *receiver = NULL;

		for (uint32_t k = 0; k < LIST_MAX; k++)
			list_d[k] = want[i].shuffled ? k * 7 % 290 : k;
		assert_ok(wimm_kv_receiver_open(p.decode[0].cache, &r, &receiver, NULL));
		assert_int_equal(wimm_kv_receiver_count(receiver), want[i].count);
		assert_ok(wimm_kv_receiver_close(&receiver, NULL));
		kv_wait(&p, &got, WIMM_E_CANCELLED);
	}
	kv_close(&p);
}

static void pages_that_cannot_be_cut_are_refused_with_both_numbers(void **state)
{
	/* Goal: page sizes that differ and a stride that is no multiple of what both have in
	 * common: refused by the comparison, which both sides make. */
	static const struct row row = { WIMM_KV_GQA, 16, 128, 1, 1, 0, 300, 0, 0, 0, false, 0 };
	struct wimm_kv_layout p = layout_of(&row, false, 0), d = layout_of(&row, true, 0);
	struct wimm_error_info error = { 0 };

	(void)state;
	assert_ok(wimm_kv_compare(&p, &d, NULL));
	assert_int_equal(wimm_kv_unit_tokens(&p, &d), 16);
	assert_true(wimm_kv_layout_hash(&p) == wimm_kv_layout_hash(&d));
	d.page_stride_bytes += 8;
	assert_int_equal(wimm_kv_compare(&p, &d, &error), WIMM_E_MISMATCH);
	assert_non_null(strstr(error.text, "units of 16 tokens, but at decode page_stride_bytes "
	                                   "8200 is no multiple"));
	assert_int_equal(wimm_kv_compare(&d, &p, &error), WIMM_E_MISMATCH);
	assert_non_null(strstr(error.text, "at prefill page_stride_bytes 8200"));
	p.page_tokens = 128; /* with pages of one size nothing is cut */
	p.token_stride_bytes = 8;
	assert_ok(wimm_kv_compare(&d, &d, NULL));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(case_71_pages_of_other_sizes_get_every_token_and_no_other_byte),
		cmocka_unit_test(case_68_published_shapes_get_every_byte_once),
		cmocka_unit_test(case_73_mla_prefill_ranks_share_the_work_and_all_learn_the_end),
		cmocka_unit_test(pages_in_groups_count_one_immediate_each),
		cmocka_unit_test(pages_many_and_small_in_a_row_are_grouped_unasked),
		cmocka_unit_test(pages_that_cannot_be_cut_are_refused_with_both_numbers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
