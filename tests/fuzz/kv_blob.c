/* SPDX-License-Identifier: Apache-2.0 */
#include "fuzz.h"

#include "kv/blob.h"
#include "kv/layout.h"
#include "kv/mem.h"

#include <string.h>

/* A request that was taken reads the same after it is written anew. */
static void check_request(const struct kv_request *q)
{
	uint32_t *pages = kv_calloc(q->r.page_count, sizeof(*pages));
	struct kv_request again;
	uint64_t len = 0;
	uint64_t extent;
	uint8_t *data;

	FUZZ_CHECK(pages != NULL);
	for (uint64_t i = 0; i < q->r.page_count; i++)
		pages[i] = kv_blob_page(q, i);
	data = kv_blob_request(q, pages, &len);
	FUZZ_CHECK(data != NULL);
	FUZZ_CHECK(kv_blob_parse(data, len, &again) == WIMM_OK);
	FUZZ_CHECK(again.r.id == q->r.id && again.r.page_count == q->r.page_count);
	FUZZ_CHECK(memcmp(&again.r.decode, &q->r.decode, sizeof(again.r.decode)) == 0);
	FUZZ_CHECK(again.r.note_bytes == q->r.note_bytes);
	/* Whatever the strides are: an extent or a refusal. */
	if (wimm_kv_layout_extent(&q->r.decode, &extent, NULL) == WIMM_OK)
		FUZZ_CHECK(extent >= kv_layout_row_bytes(&q->r.decode));
	(void)wimm_kv_compare(&q->r.prefill, &q->r.decode, NULL);
	kv_free(data);
	kv_free(pages);
}

/* Bytes of a KvCache request or message. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	enum kv_blob_kind kind = KV_BLOB_REQUEST;
	struct kv_request q;
	struct kv_message m;
	uint8_t again[KV_MESSAGE_MAX_BYTES];

	if (kv_blob_kind(data, size, &kind) != WIMM_OK)
		return 0;
	if (kind == KV_BLOB_REQUEST) {
		if (kv_blob_parse(data, size, &q) == WIMM_OK)
			check_request(&q);
		return 0;
	}
	if (kv_blob_message_parse(data, size, &m) != WIMM_OK)
		return 0;
	FUZZ_CHECK(m.status < 0 && strlen(m.text) < sizeof(m.text));
	FUZZ_CHECK(kv_blob_message(&m, again) <= size + 12); /* what the first minor lacks */
	return 0;
}
