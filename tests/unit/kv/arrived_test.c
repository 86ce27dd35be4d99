/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include "kv/arrived.h"
#include "kv/mem.h"

#include <string.h>

#define PAGES 4 /* of four tokens each */

static struct wimm_kv_layout layout(uint32_t tp, uint32_t rank, wimm_kv_kind kind)
{
	struct wimm_kv_layout l = WIMM_KV_LAYOUT_INIT;

	l.kind = kind;
	l.layers = 2;
	l.kv_heads = kind == WIMM_KV_MLA ? 1 : 4;
	l.head_dim = 8;
	l.elem_bytes = 2;
	l.page_tokens = 4;
	l.tp = tp;
	l.tp_rank = rank;
	l.pages = 16;
	assert_ok(wimm_kv_layout_pack(&l, NULL));
	return l;
}

static bool up_but(void *context, wimm_peer peer)
{
	return peer != *(wimm_peer *)context;
}

static void heard(struct kv_arrived *a, wimm_peer peer, uint32_t rank, uint64_t token)
{
	const struct kv_message m = { .kind = KV_BLOB_WRITTEN,
		                      .rank = rank,
		                      .written_token = token };

	kv_arrived_heard(a, peer, &m);
}

/* Pages 1 to 4 of a prompt of 18 tokens, from so many prefill ranks. */
static struct kv_arrived open_arrived(uint32_t prefill_tp, wimm_kv_kind kind, uint8_t *pages)
{
	const struct wimm_kv_layout p = layout(prefill_tp, 0, kind), d = layout(1, 0, kind);
	struct wimm_kv_receive_opts o = WIMM_KV_RECEIVE_OPTS_INIT;
	struct kv_arrived a = { 0 };

	o.tokens = 18;
	o.first_token = 4;
	o.page_count = PAGES;
	o.arrived = pages;
	assert_ok(kv_arrived_init(&a, &p, &d, &o));
	return a;
}

static void arrived_pages_are_those_that_every_rank_has_written(void **state)
{
	/* Goal: whole pages below the least of what the ranks say; none where one is silent or its
	 * session is down; the last page, which is not full, with the prompt's last token. */
	static const struct {
		uint64_t written[2];
		wimm_peer down;
		uint8_t want[PAGES];
	} rows[] = {
		{ { 0, 0 }, 0, { 0, 0, 0, 0 } },   { { 18, 0 }, 0, { 0, 0, 0, 0 } },
		{ { 18, 7 }, 0, { 0, 0, 0, 0 } },  { { 18, 8 }, 0, { 1, 0, 0, 0 } },
		{ { 17, 12 }, 0, { 1, 1, 0, 0 } }, { { 17, 17 }, 0, { 1, 1, 1, 0 } },
		{ { 18, 99 }, 0, { 1, 1, 1, 1 } }, { { 18, 18 }, 11, { 0, 0, 0, 0 } },
		{ { 18, 18 }, 77, { 1, 1, 1, 1 } },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		uint8_t pages[PAGES] = { 7, 7, 7, 7 };
		struct kv_arrived a = open_arrived(2, WIMM_KV_GQA, pages);
		wimm_peer down = rows[i].down;

		for (uint32_t rank = 0; rank < 2; rank++)
			heard(&a, 10 + rank, rank, rows[i].written[rank]);
		kv_arrived_mark(&a, up_but, &down);
		assert_memory_equal(pages, rows[i].want, PAGES);
		kv_arrived_all(&a);
		for (uint32_t k = 0; k < PAGES; k++)
			assert_int_equal(pages[k], 1);
		kv_arrived_fini(&a);
	}
}

static void arrived_ranks_that_owe_nothing_need_not_speak(void **state)
{
	/* Goal: of two MLA ranks one serves this decode rank; the other's word does not matter. */
	static const uint8_t want[PAGES] = { 1, 1, 0, 0 };
	uint8_t pages[PAGES];
	struct kv_arrived a = open_arrived(2, WIMM_KV_MLA, pages);
	wimm_peer down = 11;

	(void)state;
	heard(&a, 10, 0, 12);
	heard(&a, 11, 1, 4);
	kv_arrived_mark(&a, up_but, &down);
	assert_memory_equal(pages, want, PAGES);
	kv_arrived_fini(&a);
}

static void arrived_words_that_make_no_sense_are_ignored(void **state)
{
	/* Goal: what a peer says is input: a rank that does not exist, a second peer with a rank
	 * that has spoken, an earlier word that comes later. */
	static const uint8_t want[PAGES] = { 1, 0, 0, 0 };
	uint8_t pages[PAGES];
	struct kv_arrived a = open_arrived(1, WIMM_KV_GQA, pages);
	wimm_peer down = 0;

	(void)state;
	heard(&a, 10, 1, 18);
	heard(&a, 10, UINT32_MAX, 18);
	heard(&a, 10, 0, 8);
	heard(&a, 10, 0, 4); /* late */
	heard(&a, 12, 0, 18);
	kv_arrived_mark(&a, up_but, &down);
	assert_memory_equal(pages, want, PAGES);
	kv_arrived_fini(&a);
}

static void arrived_without_a_place_for_it_does_nothing(void **state)
{
	/* Goal: nobody asks: nothing is allocated, and nothing is written anywhere. */
	const uint64_t before = kv_live_blocks();
	struct kv_arrived a = open_arrived(2, WIMM_KV_GQA, NULL);
	wimm_peer down = 0;

	(void)state;
	assert_int_equal(kv_live_blocks(), before);
	heard(&a, 10, 0, 18);
	kv_arrived_mark(&a, up_but, &down);
	kv_arrived_all(&a);
	kv_arrived_fini(&a);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(arrived_pages_are_those_that_every_rank_has_written),
		cmocka_unit_test(arrived_ranks_that_owe_nothing_need_not_speak),
		cmocka_unit_test(arrived_words_that_make_no_sense_are_ignored),
		cmocka_unit_test(arrived_without_a_place_for_it_does_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
