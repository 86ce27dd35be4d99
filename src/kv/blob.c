/* SPDX-License-Identifier: Apache-2.0 */
/* Requests and messages as bytes. What is read here comes from a peer. */
#include "kv/blob.h"
#include "kv/layout.h"
#include "kv/mem.h"

#include <stdbool.h>
#include <string.h>

#define MAGIC        0x31564b57u /* "WKV1" */
#define VERSION      2
#define HEAD_BYTES   12
#define LAYOUT_BYTES (8 * 4 + 8 * 9)
#define FIXED_BYTES  (8 + 4 + 4 + 8 * 7)
#define TOKENS_MAX   (UINT64_C(1) << 40)

/* Bits of a request. */
#define WANTS_TAIL    1u
#define WANTS_WRITTEN 2u

/* Writing: a first pass with data NULL finds the length. */
struct writer {
	uint8_t *data;
	uint64_t at;
};

static void put(struct writer *w, uint64_t value, uint32_t bytes)
{
	for (uint32_t i = 0; i < bytes && w->data != NULL; i++)
		w->data[w->at + i] = (uint8_t)(value >> (8 * i));
	w->at += bytes;
}

static void put_bytes(struct writer *w, const void *bytes, uint64_t len_bytes)
{
	if (w->data != NULL && len_bytes != 0)
		memcpy(w->data + w->at, bytes, len_bytes);
	w->at += len_bytes;
}

static void put_head(struct writer *w, enum kv_blob_kind kind, uint64_t total_bytes)
{
	put(w, MAGIC, 4);
	put(w, kind, 2);
	put(w, VERSION, 2);
	put(w, total_bytes, 4);
}

/* Reading: after a failure everything reads as zero. */
struct reader {
	const uint8_t *data;
	uint64_t left;
	bool failed;
};

static const uint8_t *get_bytes(struct reader *r, uint64_t len_bytes)
{
	const uint8_t *at = r->data;

	if (len_bytes > r->left) {
		r->failed = true;
		r->left = 0;
		return NULL;
	}
	r->data += len_bytes;
	r->left -= len_bytes;
	return at;
}

static uint64_t get(struct reader *r, uint32_t bytes)
{
	const uint8_t *at = get_bytes(r, bytes);
	uint64_t value = 0;

	for (uint32_t i = 0; i < bytes && at != NULL; i++)
		value |= (uint64_t)at[i] << (8 * i);
	return value;
}

/* A part with its length in front; what is left of it after reading is skipped. */
static struct reader get_part(struct reader *r, uint64_t least_bytes)
{
	struct reader part = { NULL, get(r, 4), false };

	part.data = get_bytes(r, part.left);
	if (part.data == NULL || part.left < least_bytes) {
		r->failed = true;
		part = (struct reader){ r->data, 0, true };
	}
	return part;
}

static wimm_status get_head(struct reader *r, enum kv_blob_kind *out)
{
	uint64_t whole = r->left;
	uint64_t kind;

	if (r->data == NULL || get(r, 4) != MAGIC || r->failed)
		return WIMM_E_NOT_FOUND;
	kind = get(r, 2);
	if (get(r, 2) != VERSION && !r->failed)
		return WIMM_E_VERSION;
	if (get(r, 4) != whole || r->failed)
		return WIMM_E_PARSE;
	if (kind < KV_BLOB_REQUEST || kind > KV_BLOB_WRITTEN)
		return WIMM_E_VERSION; /* of a later minor */
	*out = (enum kv_blob_kind)kind;
	return WIMM_OK;
}

wimm_status kv_blob_kind(const void *data, uint64_t len_bytes, enum kv_blob_kind *out)
{
	struct reader r = { data, len_bytes, false };

	return get_head(&r, out);
}

static void put_layout(struct writer *w, const struct wimm_kv_layout *l)
{
	put(w, LAYOUT_BYTES, 4);
	put(w, (uint64_t)l->kind, 4);
	put(w, l->layers, 4);
	put(w, l->kv_heads, 4);
	put(w, l->head_dim, 4);
	put(w, l->elem_bytes, 4);
	put(w, l->elem_type, 4);
	put(w, l->page_tokens, 4);
	put(w, l->tp, 4);
	put(w, l->tp_rank, 8);
	put(w, l->model_tag, 8);
	put(w, l->pages, 8);
	put(w, l->offset_bytes, 8);
	put(w, l->layer_stride_bytes, 8);
	put(w, l->page_stride_bytes, 8);
	put(w, l->part_stride_bytes, 8);
	put(w, l->head_stride_bytes, 8);
	put(w, l->token_stride_bytes, 8);
}

/* Whatever it says: the ranges are checked by kv_layout_check() later. */
static void get_layout(struct reader *from, struct wimm_kv_layout *l)
{
	struct reader r = get_part(from, LAYOUT_BYTES);
	uint32_t kind = (uint32_t)get(&r, 4);
	uint64_t rank;

	memset(l, 0, sizeof(*l));
	l->size = sizeof(*l);
	l->kind = kind == WIMM_KV_MLA ? WIMM_KV_MLA : WIMM_KV_GQA;
	if (kind != WIMM_KV_MLA && kind != WIMM_KV_GQA)
		from->failed = true;
	l->layers = (uint32_t)get(&r, 4);
	l->kv_heads = (uint32_t)get(&r, 4);
	l->head_dim = (uint32_t)get(&r, 4);
	l->elem_bytes = (uint32_t)get(&r, 4);
	l->elem_type = (uint32_t)get(&r, 4);
	l->page_tokens = (uint32_t)get(&r, 4);
	l->tp = (uint32_t)get(&r, 4);
	rank = get(&r, 8);
	l->tp_rank = (uint32_t)rank;
	if (rank >= l->tp)
		from->failed = true;
	l->model_tag = get(&r, 8);
	l->pages = get(&r, 8);
	l->offset_bytes = get(&r, 8);
	l->layer_stride_bytes = get(&r, 8);
	l->page_stride_bytes = get(&r, 8);
	l->part_stride_bytes = get(&r, 8);
	l->head_stride_bytes = get(&r, 8);
	l->token_stride_bytes = get(&r, 8);
}

static void put_desc(struct writer *w, const struct wimm_mr_desc *d)
{
	put(w, d->len_bytes, 4);
	put_bytes(w, d->bytes, d->len_bytes);
}

static void get_desc(struct reader *r, struct wimm_mr_desc *d)
{
	uint64_t len = get(r, 4);
	const uint8_t *at;

	memset(d, 0, sizeof(*d));
	if (len > sizeof(d->bytes)) {
		r->failed = true;
		return;
	}
	at = get_bytes(r, len);
	if (at == NULL)
		return;
	d->len_bytes = (uint32_t)len;
	memcpy(d->bytes, at, len);
}

static void put_request(struct writer *w, const struct kv_request *q, const uint32_t *pages,
                        uint64_t total_bytes)
{
	const struct wimm_kv_request *r = &q->r;

	put_head(w, KV_BLOB_REQUEST, total_bytes);
	put(w, FIXED_BYTES, 4);
	put(w, r->id, 8);
	put(w, r->imm, 4);
	put(w, (r->tail != 0 ? WANTS_TAIL : 0) | (q->wants_written ? WANTS_WRITTEN : 0), 4);
	put(w, r->tokens, 8);
	put(w, r->first_token, 8);
	put(w, r->page_count, 8);
	put(w, r->tail_room_bytes, 8);
	put(w, q->tail_offset_bytes, 8);
	put(w, r->note_bytes, 8);
	put(w, r->group_units, 8);
	put_layout(w, &r->decode);
	put_layout(w, &r->prefill);
	put_desc(w, &q->region);
	put_desc(w, &q->tail_region);
	for (uint64_t i = 0; i < r->page_count; i++)
		put(w, pages[i], 4);
	put_bytes(w, r->note, r->note_bytes);
}

uint8_t *kv_blob_request(const struct kv_request *q, const uint32_t *pages, uint64_t *out_bytes)
{
	struct writer w = { NULL, 0 };

	put_request(&w, q, pages, 0);
	if (w.at > UINT32_MAX)
		return NULL;
	*out_bytes = w.at;
	w.data = kv_calloc(1, w.at);
	if (w.data == NULL)
		return NULL;
	w.at = 0;
	put_request(&w, q, pages, *out_bytes);
	return w.data;
}

static bool pages_fit(const struct wimm_kv_request *r)
{
	uint64_t page = r->decode.page_tokens;

	return r->tokens != 0 && r->tokens <= TOKENS_MAX && r->first_token <= r->tokens &&
	       r->first_token % page == 0 &&
	       r->page_count == (r->tokens + page - 1) / page - r->first_token / page &&
	       r->group_units != 0 && r->group_units <= UINT32_MAX;
}

wimm_status kv_blob_parse(const void *data, uint64_t len_bytes, struct kv_request *q)
{
	struct reader r = { data, len_bytes, false };
	struct wimm_kv_request *out = &q->r;
	enum kv_blob_kind kind = KV_BLOB_FAILED;
	wimm_status st = get_head(&r, &kind);
	struct reader fixed;
	uint64_t bits;

	if (st != WIMM_OK || kind != KV_BLOB_REQUEST)
		return st == WIMM_E_VERSION ? st : WIMM_E_PARSE;
	memset(q, 0, sizeof(*q));
	out->size = sizeof(*out);
	fixed = get_part(&r, FIXED_BYTES);
	out->id = get(&fixed, 8);
	out->imm = (uint32_t)get(&fixed, 4);
	bits = get(&fixed, 4);
	out->tail = (bits & WANTS_TAIL) != 0;
	q->wants_written = (bits & WANTS_WRITTEN) != 0;
	out->tokens = get(&fixed, 8);
	out->first_token = get(&fixed, 8);
	out->page_count = get(&fixed, 8);
	out->tail_room_bytes = get(&fixed, 8);
	q->tail_offset_bytes = get(&fixed, 8);
	out->note_bytes = get(&fixed, 8);
	out->group_units = get(&fixed, 8);
	get_layout(&r, &out->decode);
	get_layout(&r, &out->prefill);
	get_desc(&r, &q->region);
	get_desc(&r, &q->tail_region);
	if (out->page_count > r.left / 4 || r.failed)
		return WIMM_E_PARSE;
	q->pages = get_bytes(&r, out->page_count * 4);
	out->note = get_bytes(&r, out->note_bytes);
	if (r.failed)
		return WIMM_E_PARSE;
	st = kv_layout_check(&out->decode, NULL);
	if (st == WIMM_OK)
		st = kv_layout_check(&out->prefill, NULL);
	if (st != WIMM_OK)
		return st == WIMM_E_MISMATCH ? st : WIMM_E_PARSE;
	return pages_fit(out) ? WIMM_OK : WIMM_E_PARSE;
}

uint32_t kv_blob_page(const struct kv_request *q, uint64_t index)
{
	struct reader r = { q->pages + 4 * index, 4, false };

	return (uint32_t)get(&r, 4);
}

wimm_status wimm_kv_request_parse(const void *data, uint64_t len_bytes, struct wimm_kv_request *out)
{
	struct kv_request q;
	wimm_status st;

	if (data == NULL || out == NULL || out->size != sizeof(*out))
		return WIMM_E_INVAL;
	st = kv_blob_parse(data, len_bytes, &q);
	if (st == WIMM_OK)
		*out = q.r;
	return st;
}

uint64_t kv_blob_message(const struct kv_message *m, uint8_t out[KV_MESSAGE_MAX_BYTES])
{
	struct writer w = { NULL, 0 };
	uint64_t text = strnlen(m->text, sizeof(m->text) - 1);

	w.data = out;
	put_head(&w, m->kind, HEAD_BYTES + 8 + 4 + 2 + text + 4 + 8);
	put(&w, m->id, 8);
	put(&w, (uint64_t)(int64_t)m->status, 4);
	put(&w, text, 2);
	put_bytes(&w, m->text, text);
	put(&w, m->rank, 4);
	put(&w, m->written_token, 8);
	return w.at;
}

wimm_status kv_blob_message_parse(const void *data, uint64_t len_bytes, struct kv_message *m)
{
	struct reader r = { data, len_bytes, false };
	enum kv_blob_kind kind = KV_BLOB_REQUEST;
	wimm_status st = get_head(&r, &kind);
	const uint8_t *text;
	uint64_t text_bytes;
	int32_t status;

	if (st != WIMM_OK)
		return st;
	if (kind == KV_BLOB_REQUEST)
		return WIMM_E_PARSE;
	memset(m, 0, sizeof(*m));
	m->kind = kind;
	m->id = get(&r, 8);
	status = (int32_t)(uint32_t)get(&r, 4);
	text_bytes = get(&r, 2);
	text = get_bytes(&r, text_bytes);
	if (r.failed || text_bytes >= sizeof(m->text))
		return WIMM_E_PARSE;
	if (r.left != 0) { /* one of the first minor ends here, and says nothing of it */
		m->rank = (uint32_t)get(&r, 4);
		m->written_token = get(&r, 8);
	}
	if (r.failed)
		return WIMM_E_PARSE;
	/* A status that says no failure would leave the receiver without one. */
	m->status = status < 0 ? (wimm_status)status : WIMM_E_PROTOCOL;
	for (uint64_t i = 0; i < text_bytes; i++)
		m->text[i] = text[i] >= 0x20 && text[i] != 0x7f ? (char)text[i] : '?';
	return WIMM_OK;
}

void kv_blob_tail(uint8_t *out, uint32_t first_token, uint64_t len_bytes)
{
	struct writer w = { NULL, 0 };

	w.data = out;
	put(&w, MAGIC, 4);
	put(&w, first_token, 4);
	put(&w, len_bytes, 8);
}

wimm_status kv_blob_tail_parse(const uint8_t *data, uint64_t room_bytes, uint32_t *out_first_token,
                               uint64_t *out_bytes)
{
	struct reader r = { data, KV_TAIL_HEAD_BYTES, false };
	uint64_t magic = get(&r, 4);
	uint64_t first_token = get(&r, 4);
	uint64_t len_bytes = get(&r, 8);

	if (magic != MAGIC || len_bytes > room_bytes)
		return WIMM_E_PARSE;
	*out_first_token = (uint32_t)first_token;
	*out_bytes = len_bytes;
	return WIMM_OK;
}
