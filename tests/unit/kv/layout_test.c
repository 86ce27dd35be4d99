/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include <string.h>

#include <wimm/kv.h>

static struct wimm_kv_layout llama(void)
{
	struct wimm_kv_layout l = WIMM_KV_LAYOUT_INIT;

	l.kind = WIMM_KV_GQA;
	l.layers = 32;
	l.kv_heads = 8;
	l.head_dim = 128;
	l.elem_bytes = 2;
	l.elem_type = 7;
	l.page_tokens = 16;
	l.model_tag = 0x1234;
	l.tp = 4;
	l.tp_rank = 1;
	l.pages = 100;
	return l;
}

static void layout_packed_has_no_gaps(void **state)
{
	/* Goal: the strides of a packed cache multiply up, and its extent is the product. */
	struct wimm_kv_layout l = llama();
	uint64_t extent = 0;

	(void)state;
	assert_ok(wimm_kv_layout_pack(&l, NULL));
	assert_int_equal(l.token_stride_bytes, 256);
	assert_int_equal(l.head_stride_bytes, 4096);
	assert_int_equal(l.part_stride_bytes, 2 * 4096);
	assert_int_equal(l.page_stride_bytes, 4 * 4096);
	assert_int_equal(l.layer_stride_bytes, 100 * 4 * 4096);
	assert_ok(wimm_kv_layout_extent(&l, &extent, NULL));
	assert_int_equal(extent, UINT64_C(32) * 100 * 4 * 4096);
	l.offset_bytes = 5;
	assert_ok(wimm_kv_layout_extent(&l, &extent, NULL));
	assert_int_equal(extent, UINT64_C(32) * 100 * 4 * 4096 + 5);
}

static void layout_mla_has_one_part_and_one_head(void **state)
{
	/* Goal: a latent cache is the same on every rank, whatever their number. */
	struct wimm_kv_layout l = llama();

	(void)state;
	l.kind = WIMM_KV_MLA;
	l.kv_heads = 1;
	l.head_dim = 576;
	l.page_tokens = 64;
	l.tp = 8;
	l.tp_rank = 5;
	assert_ok(wimm_kv_layout_pack(&l, NULL));
	assert_int_equal(l.page_stride_bytes, 64 * 576 * 2);
	l.kv_heads = 2;
	assert_int_equal(wimm_kv_layout_pack(&l, NULL), WIMM_E_INVAL);
}

static void layout_field_out_of_range_is_named(void **state)
{
	/* Goal: each field has its range, and the text names field and value. */
	struct wimm_error_info error = { 0 };
	struct wimm_kv_layout l;

	(void)state;
#define REFUSED(field, value)                                                                      \
	do {                                                                                       \
		l = llama();                                                                       \
		l.field = (value);                                                                 \
		assert_int_equal(wimm_kv_layout_pack(&l, &error), WIMM_E_INVAL);                   \
		assert_non_null(strstr(error.text, #field));                                       \
	} while (0)
	REFUSED(kind, 3);
	REFUSED(layers, 0);
	REFUSED(layers, 4097);
	REFUSED(kv_heads, 0);
	REFUSED(head_dim, 0);
	REFUSED(elem_bytes, 17);
	REFUSED(page_tokens, 0);
	REFUSED(tp, 0);
	REFUSED(tp_rank, 4);
	REFUSED(pages, 0);
	REFUSED(pages, (UINT64_C(1) << 32) + 1);
	REFUSED(size, 8);
	l = llama();
	l.reserved[1] = 1;
	assert_int_equal(wimm_kv_layout_pack(&l, NULL), WIMM_E_INVAL);
#undef REFUSED
}

static void layout_overlapping_strides_are_refused(void **state)
{
	/* Goal: a dimension that does not step over what lies within it is named with both
	 * numbers; any order of the dimensions is fine. */
	struct wimm_error_info error = { 0 };
	struct wimm_kv_layout l = llama();
	uint64_t extent = 0;

	(void)state;
	assert_ok(wimm_kv_layout_pack(&l, NULL));
	l.part_stride_bytes -= 1;
	assert_int_equal(wimm_kv_layout_extent(&l, &extent, &error), WIMM_E_INVAL);
	assert_non_null(strstr(error.text, "part_stride_bytes is 8191"));
	assert_non_null(strstr(error.text, "takes 8192 bytes"));
	/* Parts outermost, then layers, pages, tokens, heads. */
	l.head_stride_bytes = 256;
	l.token_stride_bytes = 2 * 256;
	l.page_stride_bytes = 16 * 512;
	l.layer_stride_bytes = 100 * 8192;
	l.part_stride_bytes = 32 * 819200 + 4096;
	assert_ok(wimm_kv_layout_extent(&l, &extent, NULL));
	assert_int_equal(extent, 2 * 32 * 819200 + 4096);
	l.layer_stride_bytes = UINT64_MAX / 8;
	assert_int_equal(wimm_kv_layout_extent(&l, &extent, &error), WIMM_E_INVAL);
}

static void case_75_layout_hash_and_first_differing_field(void **state)
{
	/* Goal: the hash changes with every field that must agree and with no other, and the
	 * comparison names the first of them with both values. */
	struct wimm_error_info error = { 0 };
	struct wimm_kv_layout a = llama();
	struct wimm_kv_layout b = llama();

	(void)state;
	assert_ok(wimm_kv_layout_pack(&a, NULL));
	b.tp = 8;
	b.tp_rank = 7;
	b.pages = 211;
	assert_ok(wimm_kv_layout_pack(&b, NULL));
	assert_true(wimm_kv_layout_hash(&a) == wimm_kv_layout_hash(&b));
	assert_ok(wimm_kv_compare(&a, &b, NULL));
	/* Written down, so that two versions and two byte orders can be seen to agree. */
	assert_true(wimm_kv_layout_hash(&a) == UINT64_C(0xb2a4b06e17fd70f7));
#define DIFFERS(field, value, words)                                                               \
	do {                                                                                       \
		b = a;                                                                             \
		b.field = (value);                                                                 \
		assert_true(wimm_kv_layout_hash(&a) != wimm_kv_layout_hash(&b));                   \
		assert_int_equal(wimm_kv_compare(&a, &b, &error), WIMM_E_MISMATCH);                \
		assert_int_equal(error.status, WIMM_E_MISMATCH);                                   \
		if (strstr(error.text, words) == NULL)                                             \
			fail_msg("\"%s\" does not say \"%s\"", error.text, words);                 \
	} while (0)
	DIFFERS(layers, 31, "layers is 32 at prefill, 31 at decode");
	DIFFERS(kv_heads, 4, "kv_heads is 8 at prefill, 4 at decode");
	DIFFERS(head_dim, 64, "head_dim is 128 at prefill, 64 at decode");
	DIFFERS(elem_bytes, 1, "elem_bytes is 2 at prefill, 1 at decode");
	DIFFERS(elem_type, 8, "elem_type is 7 at prefill, 8 at decode");
	DIFFERS(model_tag, 1, "model_tag is 4660 at prefill, 1 at decode");
	b = a;
	b.model_tag = 1;
	b.layers = 61;
	assert_int_equal(wimm_kv_compare(&a, &b, &error), WIMM_E_MISMATCH);
	assert_non_null(strstr(error.text, "layers is 32 at prefill, 61 at decode"));
}

static void case_70_impossible_tensor_parallel_pair_is_refused(void **state)
{
	/* Goal: a number of ranks that does not divide the heads is refused whichever side has it,
	 * with both numbers, and has no map, no count. */
	static const struct {
		uint32_t heads, prefill, decode;
	} bad[] = { { 8, 3, 4 }, { 8, 8, 6 }, { 3, 2, 1 }, { 3, 1, 2 } };
	struct wimm_error_info error = { 0 };
	struct wimm_kv_segment segment;
	char words[64];
	uint32_t segments;
	uint64_t count;

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct wimm_kv_layout p = llama();
		struct wimm_kv_layout d = llama();

		p.kv_heads = d.kv_heads = bad[i].heads;
		p.tp_rank = d.tp_rank = 0;
		p.tp = bad[i].prefill;
		d.tp = bad[i].decode;
		snprintf(words, sizeof(words), "tp is %u at prefill, %u at decode", p.tp, d.tp);
		assert_int_equal(wimm_kv_compare(&p, &d, &error), WIMM_E_MISMATCH);
		assert_non_null(strstr(error.text, words));
		assert_int_equal(wimm_kv_map(&p, &d, &segment, 1, &segments, NULL),
		                 WIMM_E_MISMATCH);
		assert_int_equal(wimm_kv_count(&p, &d, 1, 0, WIMM_KV_ALL_RANKS, &count, NULL),
		                 WIMM_E_MISMATCH);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(layout_packed_has_no_gaps),
		cmocka_unit_test(layout_mla_has_one_part_and_one_head),
		cmocka_unit_test(layout_field_out_of_range_is_named),
		cmocka_unit_test(layout_overlapping_strides_are_refused),
		cmocka_unit_test(case_75_layout_hash_and_first_differing_field),
		cmocka_unit_test(case_70_impossible_tensor_parallel_pair_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
