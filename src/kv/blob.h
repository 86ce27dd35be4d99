/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KV_BLOB_H
#define KV_BLOB_H

#include <stdbool.h>

#include <wimm/kv.h>

/* Requests and messages as bytes, little endian. Each begins with
 *   u32 magic "WKV1"   u16 kind   u16 version   u32 length of the whole
 * A reader takes every minor of its version and skips what it does not know at the end of a
 * part. */
enum kv_blob_kind {
	KV_BLOB_REQUEST = 1,
	KV_BLOB_FAILED = 2, /* a sender to its receiver */
	KV_BLOB_CANCEL = 3, /* a receiver to its senders */
	KV_BLOB_WRITTEN = 4, /* a sender to a receiver that wants to know: it goes on */
};

#define KV_TEXT_BYTES 200

struct kv_request {
	struct wimm_kv_request r;
	struct wimm_mr_desc region;
	struct wimm_mr_desc tail_region;
	uint64_t tail_offset_bytes;
	bool wants_written; /* KV_BLOB_WRITTEN messages */
	const uint8_t *pages; /* page_count times u32; use kv_blob_page() */
};

struct kv_message {
	enum kv_blob_kind kind;
	uint64_t id;
	wimm_status status;
	char text[KV_TEXT_BYTES];
	/* Of a sender: its rank, and that all it has to send of the tokens before written_token was
	 * accepted by the decode side. */
	uint32_t rank;
	uint64_t written_token;
};

/* A block of kv_calloc() with the request; NULL: no memory. pages are host order. */
uint8_t *kv_blob_request(const struct kv_request *q, const uint32_t *pages, uint64_t *out_bytes);
/* Returns: OK, E_PARSE, E_VERSION, E_MISMATCH (heads). Pointers lead into data. */
wimm_status kv_blob_parse(const void *data, uint64_t len_bytes, struct kv_request *q);
uint32_t kv_blob_page(const struct kv_request *q, uint64_t index);

#define KV_MESSAGE_MAX_BYTES (12 + 8 + 4 + 2 + KV_TEXT_BYTES + 4 + 8)
/* Returns the length. */
uint64_t kv_blob_message(const struct kv_message *m, uint8_t out[KV_MESSAGE_MAX_BYTES]);
wimm_status kv_blob_message_parse(const void *data, uint64_t len_bytes, struct kv_message *m);

/* The kind of what may be one of these; E_NOT_FOUND: it is something else. */
wimm_status kv_blob_kind(const void *data, uint64_t len_bytes, enum kv_blob_kind *out);

/* In front of a tail in the receiver's memory. */
#define KV_TAIL_HEAD_BYTES 16
void kv_blob_tail(uint8_t *out, uint32_t first_token, uint64_t len_bytes);
/* E_PARSE: longer than the room. */
wimm_status kv_blob_tail_parse(const uint8_t *data, uint64_t room_bytes, uint32_t *out_first_token,
                               uint64_t *out_bytes);

#endif
