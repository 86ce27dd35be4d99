/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include "kv/blob.h"
#include "kv/mem.h"
#include "plat/rand.h"

#include <stdlib.h>
#include <string.h>

#define PAGES 3

static const uint32_t pages[PAGES] = { 7, 0, 0xfffffffe };

static struct kv_request sample(void)
{
	struct kv_request q = { .r = WIMM_KV_REQUEST_INIT };
	struct wimm_kv_layout *l = &q.r.decode;

	q.r.id = UINT64_C(0x1122334455667788);
	q.r.imm = 0xffffffff;
	q.r.tokens = 40;
	q.r.first_token = 0;
	q.r.page_count = PAGES;
	q.r.group_units = 4;
	q.r.tail = 1;
	q.r.tail_room_bytes = 4096;
	q.r.note = "the note";
	q.r.note_bytes = 8;
	l->size = sizeof(*l);
	l->kind = WIMM_KV_GQA;
	l->layers = 30;
	l->kv_heads = 3;
	l->head_dim = 64;
	l->elem_bytes = 4;
	l->elem_type = 9;
	l->page_tokens = 16;
	l->model_tag = UINT64_MAX;
	l->tp = 3;
	l->tp_rank = 2;
	l->pages = UINT64_C(1) << 32;
	l->offset_bytes = 64;
	assert_ok(wimm_kv_layout_pack(l, NULL));
	q.r.prefill = *l;
	q.r.prefill.tp = 1;
	q.r.prefill.tp_rank = 0;
	q.region.len_bytes = 5;
	memcpy(q.region.bytes, "region", 5);
	q.tail_region.len_bytes = 4;
	memcpy(q.tail_region.bytes, "tail", 4);
	q.tail_offset_bytes = 128;
	q.wants_written = true;
	return q;
}

static void blob_request_reads_as_written(void **state)
{
	/* Goal: every field of a request survives the way. */
	struct kv_request q = sample();
	struct kv_request back;
	uint64_t len = 0;
	uint8_t *data = kv_blob_request(&q, pages, &len);

	(void)state;
	assert_non_null(data);
	assert_ok(kv_blob_parse(data, len, &back));
	assert_true(back.r.id == q.r.id);
	assert_int_equal(back.r.imm, q.r.imm);
	assert_int_equal(back.r.tail, 1);
	assert_int_equal(back.r.tokens, 40);
	assert_int_equal(back.r.page_count, PAGES);
	assert_int_equal(back.r.tail_room_bytes, 4096);
	assert_int_equal(back.tail_offset_bytes, 128);
	assert_true(back.wants_written);
	assert_memory_equal(&back.r.decode, &q.r.decode, sizeof(q.r.decode));
	assert_memory_equal(&back.r.prefill, &q.r.prefill, sizeof(q.r.prefill));
	assert_memory_equal(&back.region, &q.region, sizeof(q.region));
	assert_memory_equal(&back.tail_region, &q.tail_region, sizeof(q.tail_region));
	assert_int_equal(back.r.note_bytes, 8);
	assert_memory_equal(back.r.note, "the note", 8);
	for (uint32_t i = 0; i < PAGES; i++)
		assert_int_equal(kv_blob_page(&back, i), pages[i]);
	kv_free(data);
}

static void case_105_broken_request_is_refused(void **state)
{
	/* Goal: every truncation is refused; every flipped bit is refused or gives a request that
	 * leads nowhere outside of its bytes. */
	struct kv_request q = sample();
	struct kv_request back;
	uint64_t len = 0;
	uint8_t *data = kv_blob_request(&q, pages, &len);
	uint64_t accepted = 0;

	(void)state;
	for (uint64_t i = 0; i < len; i++) {
		uint8_t *copy = malloc(i + 1);

		memcpy(copy, data, i);
		assert_true(kv_blob_parse(copy, i, &back) < 0);
		free(copy);
	}
	for (uint64_t bit = 0; bit < 8 * len; bit++) {
		data[bit / 8] ^= (uint8_t)(1u << bit % 8);
		if (kv_blob_parse(data, len, &back) == WIMM_OK) {
			const uint8_t *note = back.r.note;
			uint64_t sum = 0;

			for (uint64_t i = 0; i < back.r.page_count; i++)
				sum += kv_blob_page(&back, i);
			for (uint64_t i = 0; i < back.r.note_bytes; i++)
				sum += note[i];
			assert_true(note + back.r.note_bytes <= data + len);
			accepted += sum != 0;
		}
		data[bit / 8] ^= (uint8_t)(1u << bit % 8);
	}
	assert_true(accepted > 0);
	kv_free(data);
}

static void case_76_other_versions_of_a_request_are_told_apart(void **state)
{
	/* Goal: another version is refused as such; the same one with fields this reader does not
	 * know is accepted. */
	struct kv_request q = sample();
	struct kv_request back;
	uint64_t len = 0;
	uint8_t *data = kv_blob_request(&q, pages, &len);
	uint8_t *longer = malloc(len + 3);
	uint32_t fixed_bytes;

	(void)state;
	data[6]++;
	assert_int_equal(kv_blob_parse(data, len, &back), WIMM_E_VERSION);
	data[6] -= 2;
	assert_int_equal(kv_blob_parse(data, len, &back), WIMM_E_VERSION);
	data[6]++;
	/* The fixed part of a later minor, three bytes longer. */
	fixed_bytes = data[12];
	memcpy(longer, data, 16 + fixed_bytes);
	memset(longer + 16 + fixed_bytes, 0x5a, 3);
	memcpy(longer + 16 + fixed_bytes + 3, data + 16 + fixed_bytes, len - 16 - fixed_bytes);
	longer[12] = (uint8_t)(longer[12] + 3);
	longer[8] = (uint8_t)(len + 3);
	longer[9] = (uint8_t)((len + 3) >> 8);
	assert_ok(kv_blob_parse(longer, len + 3, &back));
	assert_int_equal(back.r.page_count, PAGES);
	assert_int_equal(kv_blob_page(&back, 2), pages[2]);
	free(longer);
	kv_free(data);
}

static void blob_request_that_contradicts_itself_is_refused(void **state)
{
	/* Goal: pages and tokens that do not fit, and a first token inside a page. */
	static const struct {
		uint64_t tokens, first;
	} bad[] = { { 49, 0 },  { 32, 0 },         { 0, 0 },  { 40, 8 },
		    { 40, 48 }, { UINT64_MAX, 0 }, { 40, 16 } };
	struct kv_request q = sample();
	struct kv_request back;

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		uint64_t len = 0;
		uint8_t *data;

		q.r.tokens = bad[i].tokens;
		q.r.first_token = bad[i].first;
		data = kv_blob_request(&q, pages, &len);
		assert_int_equal(kv_blob_parse(data, len, &back), WIMM_E_PARSE);
		kv_free(data);
	}
}

static void blob_random_bytes_are_never_taken(void **state)
{
	/* Goal: noise is no request and no message, with or without the right beginning. */
	uint8_t data[256];
	struct kv_request back;
	struct kv_message m;
	struct rng rng;

	(void)state;
	rng_init(&rng, test_seed(12));
	for (unsigned i = 0; i < 20000 * test_scale(); i++) {
		uint64_t len = rng_below(&rng, sizeof(data) + 1);

		for (uint64_t k = 0; k < len; k++)
			data[k] = (uint8_t)rng_below(&rng, 256);
		if (i % 2 == 0 && len >= 12) {
			memcpy(data, "WKV1\1\0\2\0", 8);
			data[8] = (uint8_t)len;
			data[9] = (uint8_t)(len >> 8);
			data[10] = data[11] = 0;
		}
		assert_true(kv_blob_parse(data, len, &back) < 0);
		if (i % 2 == 1)
			assert_true(kv_blob_message_parse(data, len, &m) < 0);
	}
}

static void blob_message_reads_as_written(void **state)
{
	/* Goal: id, status and words arrive; words that could upset a terminal do not; a status
	 * that says success becomes a failure; one that says nothing of what was written, as the
	 * first minor does, has written nothing. */
	struct kv_message m = { .kind = KV_BLOB_FAILED,
		                .id = 5,
		                .status = WIMM_E_PATH_LOST,
		                .text = "page 5 of 10\033[2J",
		                .rank = 3,
		                .written_token = UINT64_C(1) << 33 };
	uint8_t data[KV_MESSAGE_MAX_BYTES];
	enum kv_blob_kind kind = KV_BLOB_REQUEST;
	struct kv_message back;
	uint64_t len = kv_blob_message(&m, data);

	(void)state;
	assert_ok(kv_blob_kind(data, len, &kind));
	assert_int_equal(kind, KV_BLOB_FAILED);
	assert_ok(kv_blob_message_parse(data, len, &back));
	assert_int_equal(back.id, 5);
	assert_int_equal(back.status, WIMM_E_PATH_LOST);
	assert_string_equal(back.text, "page 5 of 10?[2J");
	assert_int_equal(back.rank, 3);
	assert_true(back.written_token == UINT64_C(1) << 33);
	for (uint64_t i = 0; i < len; i++)
		assert_true(kv_blob_message_parse(data, i, &back) < 0);
	m.status = WIMM_OK;
	len = kv_blob_message(&m, data);
	assert_ok(kv_blob_message_parse(data, len, &back));
	assert_int_equal(back.status, WIMM_E_PROTOCOL);
	len -= 12;
	data[8] = (uint8_t)len;
	assert_ok(kv_blob_message_parse(data, len, &back));
	assert_true(back.rank == 0 && back.written_token == 0);
	assert_int_equal(kv_blob_kind("hello", 5, &kind), WIMM_E_NOT_FOUND);
	assert_int_equal(kv_blob_kind("", 0, &kind), WIMM_E_NOT_FOUND);
}

static void blob_tail_longer_than_its_room_is_refused(void **state)
{
	/* Goal: what a peer wrote into our memory is checked like any other input. */
	uint8_t tail[KV_TAIL_HEAD_BYTES] = { 0 };
	uint32_t first = 0;
	uint64_t len = 0;

	(void)state;
	assert_int_equal(kv_blob_tail_parse(tail, 100, &first, &len), WIMM_E_PARSE);
	kv_blob_tail(tail, 0xdeadbeef, 100);
	assert_ok(kv_blob_tail_parse(tail, 100, &first, &len));
	assert_int_equal(first, 0xdeadbeef);
	assert_int_equal(len, 100);
	assert_int_equal(kv_blob_tail_parse(tail, 99, &first, &len), WIMM_E_PARSE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(blob_request_reads_as_written),
		cmocka_unit_test(case_105_broken_request_is_refused),
		cmocka_unit_test(case_76_other_versions_of_a_request_are_told_apart),
		cmocka_unit_test(blob_request_that_contradicts_itself_is_refused),
		cmocka_unit_test(blob_random_bytes_are_never_taken),
		cmocka_unit_test(blob_message_reads_as_written),
		cmocka_unit_test(blob_tail_longer_than_its_room_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
