/* SPDX-License-Identifier: Apache-2.0 */
#include "fuzz.h"

#include "prov/tcp/frame.h"

#include <stdlib.h>
#include <string.h>

/* The tail of an input, in memory of exactly that length, so that reading past it is seen. */
static uint8_t *exact(const uint8_t *data, size_t size)
{
	uint8_t *copy = malloc(size ? size : 1);

	FUZZ_CHECK(copy);
	memcpy(copy, data, size);
	return copy;
}

static void try_preface(const uint8_t *data)
{
	uint8_t *in = exact(data, TCP_PREFACE_BYTES), again[TCP_PREFACE_BYTES];
	struct tcp_preface p;

	if (tcp_preface_decode(in, &p) == WIMM_OK) {
		tcp_preface_encode((enum tcp_kind)p.kind, p.token, again);
		FUZZ_CHECK(memcmp(in, again, sizeof(again)) == 0);
	}
	free(in);
}

static void try_answer(const uint8_t *data)
{
	uint8_t *in = exact(data, TCP_ANSWER_BYTES), again[TCP_ANSWER_BYTES], refusal;

	if (tcp_answer_decode(in, &refusal) == WIMM_OK) {
		tcp_answer_encode((enum tcp_refusal)refusal, again);
		FUZZ_CHECK(memcmp(in, again, sizeof(again)) == 0);
	}
	free(in);
}

static void try_descs(const struct tcp_hdr *hdr, const uint8_t *data)
{
	size_t size = hdr->count * (size_t)TCP_DESC_BYTES;
	uint8_t *in = exact(data, size), again[TCP_DESC_BYTES];
	struct tcp_desc desc[TCP_BATCH_MAX];
	uint64_t total = 0;

	if (tcp_descs_decode(hdr, in, desc) == WIMM_OK) {
		for (uint32_t i = 0; i < hdr->count; i++) {
			tcp_desc_encode(&desc[i], again);
			FUZZ_CHECK(memcmp(in + i * sizeof(again), again, sizeof(again)) == 0);
			total += desc[i].len_bytes;
		}
		FUZZ_CHECK(total == hdr->value);
	}
	free(in);
}

static void try_frame(const uint8_t *data, size_t size)
{
	uint8_t *in = exact(data, TCP_HDR_BYTES), again[TCP_HDR_BYTES];
	struct tcp_hdr hdr;

	if (tcp_hdr_decode(in, &hdr) == WIMM_OK) {
		tcp_hdr_encode(&hdr, again);
		FUZZ_CHECK(memcmp(in, again, sizeof(again)) == 0);
		FUZZ_CHECK(hdr.type != TCP_FRAME_DATA || hdr.count <= TCP_BATCH_MAX);
		if (hdr.type == TCP_FRAME_DATA &&
		    size >= TCP_HDR_BYTES + hdr.count * (size_t)TCP_DESC_BYTES)
			try_descs(&hdr, data + TCP_HDR_BYTES);
	}
	free(in);
}

/* What a tcp connection's first bytes, and the frames after them, are taken for. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size >= TCP_PREFACE_BYTES)
		try_preface(data);
	if (size >= TCP_ANSWER_BYTES)
		try_answer(data);
	if (size >= TCP_HDR_BYTES)
		try_frame(data, size);
	return 0;
}
