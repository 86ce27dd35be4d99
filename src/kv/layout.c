/* SPDX-License-Identifier: Apache-2.0 */
/* What a cache looks like: its checks, its extent, its hash and the comparison of two. */
#include "kv/layout.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* X(field, lowest, highest): what must agree on both sides, in the order of the comparison. */
#define AGREED_MAP(X)                                                                              \
	X(kind, WIMM_KV_GQA, WIMM_KV_MLA)                                                          \
	X(layers, 1, 4096)                                                                         \
	X(kv_heads, 1, 4096)                                                                       \
	X(head_dim, 1, 65536)                                                                      \
	X(elem_bytes, 1, 16)                                                                       \
	X(elem_type, 0, UINT32_MAX)                                                                \
	X(model_tag, 0, UINT64_MAX)

#define TP_MAX    4096
#define PAGES_MAX (UINT64_C(1) << 32)

wimm_status kv_error(struct wimm_error_info *error, wimm_status status, const char *fmt, ...)
{
	va_list args;

	if (error == NULL)
		return status;
	error->status = status;
	error->vendor_code = 0;
	va_start(args, fmt);
	(void)vsnprintf(error->text, sizeof(error->text), fmt, args);
	va_end(args);
	return status;
}

uint32_t kv_layout_parts(const struct wimm_kv_layout *layout)
{
	return layout->kind == WIMM_KV_MLA ? 1 : 2;
}

uint64_t kv_layout_row_bytes(const struct wimm_kv_layout *layout)
{
	return (uint64_t)layout->head_dim * layout->elem_bytes;
}

struct kv_heads kv_layout_heads(const struct wimm_kv_layout *layout, uint32_t rank)
{
	struct kv_heads h = { 0, 1, 1 };

	if (layout->kind == WIMM_KV_MLA) {
		h.copies = layout->tp;
	} else if (layout->tp <= layout->kv_heads) {
		h.count = layout->kv_heads / layout->tp;
		h.first = rank * h.count;
	} else {
		h.copies = layout->tp / layout->kv_heads;
		h.first = rank / h.copies;
	}
	return h;
}

static wimm_status check_range(const char *name, uint64_t value, uint64_t low, uint64_t high,
                               struct wimm_error_info *error)
{
	if (value >= low && value <= high)
		return WIMM_OK;
	return kv_error(error, WIMM_E_INVAL,
	                "kv layout: %s is %" PRIu64 ", allowed are %" PRIu64 " to %" PRIu64, name,
	                value, low, high);
}

wimm_status kv_layout_check(const struct wimm_kv_layout *l, struct wimm_error_info *error)
{
	wimm_status st = WIMM_OK;

	if (l == NULL || l->size != sizeof(*l))
		return kv_error(error, WIMM_E_INVAL, "kv layout: size is not this version's");
	for (size_t i = 0; i < sizeof(l->reserved) / sizeof(l->reserved[0]); i++)
		if (l->reserved[i] != 0)
			return kv_error(error, WIMM_E_INVAL, "kv layout: reserved is not zero");
#define X(field, low, high)                                                                        \
	if (st == WIMM_OK)                                                                         \
		st = check_range(#field, (uint64_t)l->field, low, high, error);
	AGREED_MAP(X)
#undef X
	if (st == WIMM_OK)
		st = check_range("page_tokens", l->page_tokens, 1, 65536, error);
	if (st == WIMM_OK)
		st = check_range("tp", l->tp, 1, TP_MAX, error);
	if (st == WIMM_OK)
		st = check_range("tp_rank", l->tp_rank, 0, l->tp - 1, error);
	if (st == WIMM_OK)
		st = check_range("pages", l->pages, 1, PAGES_MAX, error);
	if (st != WIMM_OK)
		return st;
	if (l->kind == WIMM_KV_MLA)
		return check_range("kv_heads of MLA", l->kv_heads, 1, 1, error);
	if (l->kv_heads % l->tp != 0 && l->tp % l->kv_heads != 0)
		return kv_error(error, WIMM_E_MISMATCH,
		                "kv layout: tp %" PRIu32 " does not divide %" PRIu32
		                " kv heads, nor the other way round",
		                l->tp, l->kv_heads);
	return WIMM_OK;
}

wimm_status wimm_kv_layout_pack(struct wimm_kv_layout *l, struct wimm_error_info *error)
{
	wimm_status st = kv_layout_check(l, error);
	uint64_t stride;

	if (st != WIMM_OK)
		return st;
	stride = kv_layout_row_bytes(l);
	l->token_stride_bytes = stride;
	stride *= l->page_tokens;
	l->head_stride_bytes = stride;
	stride *= kv_layout_heads(l, l->tp_rank).count;
	l->part_stride_bytes = stride;
	stride *= kv_layout_parts(l);
	l->page_stride_bytes = stride;
	if (__builtin_mul_overflow(stride, l->pages, &l->layer_stride_bytes))
		return kv_error(error, WIMM_E_INVAL,
		                "kv layout: %" PRIu64 " pages of %" PRIu64 " bytes pass 2^64",
		                l->pages, stride);
	return WIMM_OK;
}

struct dimension {
	const char *name;
	uint64_t count;
	uint64_t stride;
};

static void sort_by_stride(struct dimension *d, size_t count)
{
	for (size_t i = 1; i < count; i++)
		for (size_t k = i; k != 0 && d[k].stride < d[k - 1].stride; k--) {
			struct dimension swap = d[k];

			d[k] = d[k - 1];
			d[k - 1] = swap;
		}
}

wimm_status wimm_kv_layout_extent(const struct wimm_kv_layout *l, uint64_t *out_bytes,
                                  struct wimm_error_info *error)
{
	wimm_status st = kv_layout_check(l, error);
	struct dimension d[5];
	uint64_t extent;
	size_t used = 0;

	if (st != WIMM_OK)
		return st;
	const struct dimension all[5] = {
		{ "token_stride_bytes", l->page_tokens, l->token_stride_bytes },
		{ "head_stride_bytes", kv_layout_heads(l, l->tp_rank).count, l->head_stride_bytes },
		{ "part_stride_bytes", kv_layout_parts(l), l->part_stride_bytes },
		{ "page_stride_bytes", l->pages, l->page_stride_bytes },
		{ "layer_stride_bytes", l->layers, l->layer_stride_bytes },
	};

	/* A dimension of one element goes nowhere, whatever its stride. */
	for (size_t i = 0; i < 5; i++)
		if (all[i].count > 1)
			d[used++] = all[i];
	sort_by_stride(d, used);
	extent = kv_layout_row_bytes(l);
	for (size_t i = 0; i < used; i++) {
		uint64_t last;

		/* Sufficient for no overlap: each dimension steps over all that lies within. */
		if (d[i].stride < extent)
			return kv_error(error, WIMM_E_INVAL,
			                "kv layout: %s is %" PRIu64 ", but what lies within it"
			                " takes %" PRIu64 " bytes",
			                d[i].name, d[i].stride, extent);
		if (__builtin_mul_overflow(d[i].stride, d[i].count - 1, &last) ||
		    __builtin_add_overflow(last, extent, &extent))
			return kv_error(error, WIMM_E_INVAL,
			                "kv layout: %s times %" PRIu64 " passes 2^64", d[i].name,
			                d[i].count);
	}
	if (__builtin_add_overflow(extent, l->offset_bytes, &extent))
		return kv_error(error, WIMM_E_INVAL, "kv layout: offset_bytes passes 2^64");
	if (out_bytes != NULL)
		*out_bytes = extent;
	return WIMM_OK;
}

/* FNV-1a over the fields as 64-bit little-endian numbers. */
static uint64_t hash_u64(uint64_t hash, uint64_t value)
{
	for (int i = 0; i < 8; i++) {
		hash ^= value >> (8 * i) & 0xff;
		hash *= UINT64_C(0x100000001b3);
	}
	return hash;
}

uint64_t wimm_kv_layout_hash(const struct wimm_kv_layout *l)
{
	uint64_t hash = UINT64_C(0xcbf29ce484222325);

#define X(field, low, high) hash = hash_u64(hash, (uint64_t)l->field);
	AGREED_MAP(X)
#undef X
	return hash;
}

wimm_status kv_layout_same(const struct wimm_kv_layout *p, const struct wimm_kv_layout *d,
                           struct wimm_error_info *error)
{
#define X(field, low, high)                                                                        \
	if (p->field != d->field)                                                                  \
		return kv_error(error, WIMM_E_MISMATCH,                                            \
		                "kv layout: " #field " is %" PRIu64 " at prefill, %" PRIu64        \
		                " at decode",                                                      \
		                (uint64_t)p->field, (uint64_t)d->field);
	AGREED_MAP(X)
#undef X
	return WIMM_OK;
}

/* The ranges of one side alone; the heads are the pair's business. */
static wimm_status check_side(const struct wimm_kv_layout *l, const char *side,
                              struct wimm_error_info *error)
{
	struct wimm_error_info own = { 0 };
	wimm_status st = kv_layout_check(l, &own);

	if (st == WIMM_OK || st == WIMM_E_MISMATCH)
		return WIMM_OK;
	return kv_error(error, st, "%s: %s", side, own.text);
}

static uint32_t gcd(uint32_t a, uint32_t b)
{
	while (b != 0) {
		uint32_t rest = a % b;

		a = b;
		b = rest;
	}
	return a;
}

uint32_t wimm_kv_unit_tokens(const struct wimm_kv_layout *p, const struct wimm_kv_layout *d)
{
	return gcd(p->page_tokens, d->page_tokens);
}

/* Parts of a page are named by whole numbers of them, so pages must begin at such a number. */
static wimm_status check_units(const struct wimm_kv_layout *l, const char *side, uint32_t unit,
                               struct wimm_error_info *error)
{
	uint64_t unit_bytes;

	if (unit == l->page_tokens)
		return WIMM_OK;
	if (!__builtin_mul_overflow(l->token_stride_bytes, unit, &unit_bytes) && unit_bytes != 0 &&
	    (l->pages == 1 || (l->page_stride_bytes % unit_bytes == 0 &&
	                       l->page_stride_bytes / unit_bytes <= UINT32_MAX / l->pages)))
		return WIMM_OK;
	return kv_error(error, WIMM_E_MISMATCH,
	                "kv layout: pages of both sides are cut into units of %" PRIu32
	                " tokens, but at %s page_stride_bytes %" PRIu64
	                " is no multiple of that many token_stride_bytes %" PRIu64,
	                unit, side, l->page_stride_bytes, l->token_stride_bytes);
}

wimm_status wimm_kv_compare(const struct wimm_kv_layout *p, const struct wimm_kv_layout *d,
                            struct wimm_error_info *error)
{
	wimm_status st = check_side(p, "prefill", error);

	if (st == WIMM_OK)
		st = check_side(d, "decode", error);
	if (st == WIMM_OK)
		st = kv_layout_same(p, d, error);
	if (st != WIMM_OK)
		return st;
	if (kv_layout_check(p, NULL) != WIMM_OK || kv_layout_check(d, NULL) != WIMM_OK)
		return kv_error(error, WIMM_E_MISMATCH,
		                "kv layout: tp is %" PRIu32 " at prefill, %" PRIu32
		                " at decode: each must divide the %" PRIu32
		                " kv heads, or be a multiple of them",
		                p->tp, d->tp, p->kv_heads);
	st = check_units(p, "prefill", wimm_kv_unit_tokens(p, d), error);
	if (st == WIMM_OK)
		st = check_units(d, "decode", wimm_kv_unit_tokens(p, d), error);
	return st;
}
