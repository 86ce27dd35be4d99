/* SPDX-License-Identifier: Apache-2.0 */
#include "prov/tcp/frame.h"

#include "base/bytes.h"

#include <endian.h>
#include <string.h>

#define PREFACE_MAGIC UINT32_C(0x4d4d4957) /* "WIMM" on the wire */
#define ANSWER_MAGIC  UINT32_C(0x6d6d6977) /* "wimm": no preface, so a self-connection is noticed */

/* Headers and descriptors are per-request work: moved as words, not byte by byte. */
static void put16(uint8_t *at, uint16_t v)
{
	v = htole16(v);
	memcpy(at, &v, sizeof(v));
}

static void put32(uint8_t *at, uint32_t v)
{
	v = htole32(v);
	memcpy(at, &v, sizeof(v));
}

static void put64(uint8_t *at, uint64_t v)
{
	v = htole64(v);
	memcpy(at, &v, sizeof(v));
}

static uint16_t get16(const uint8_t *at)
{
	uint16_t v;

	memcpy(&v, at, sizeof(v));
	return le16toh(v);
}

static uint32_t get32(const uint8_t *at)
{
	uint32_t v;

	memcpy(&v, at, sizeof(v));
	return le32toh(v);
}

static uint64_t get64(const uint8_t *at)
{
	uint64_t v;

	memcpy(&v, at, sizeof(v));
	return le64toh(v);
}

void tcp_preface_encode(enum tcp_kind kind, const uint8_t *token, uint8_t *out)
{
	struct bw w;

	bw_init(&w, out, TCP_PREFACE_BYTES);
	bw_u32(&w, PREFACE_MAGIC);
	bw_u8(&w, TCP_VERSION);
	bw_u8(&w, (uint8_t)kind);
	bw_u16(&w, 0);
	if (token)
		bw_bytes(&w, token, TCP_TOKEN_BYTES);
	else
		bw_zeros(&w, TCP_TOKEN_BYTES);
	bw_u64(&w, 0);
}

wimm_status tcp_preface_decode(const uint8_t *in, struct tcp_preface *out)
{
	struct tcp_preface p;
	struct br r;
	uint32_t magic;
	uint64_t zero;

	br_init(&r, in, TCP_PREFACE_BYTES);
	magic = br_u32(&r);
	p.version = br_u8(&r);
	p.kind = br_u8(&r);
	zero = br_u16(&r);
	br_bytes(&r, p.token, sizeof(p.token));
	zero |= br_u64(&r);
	if (magic != PREFACE_MAGIC)
		return WIMM_E_PARSE;
	if (p.version == TCP_VERSION &&
	    (zero != 0 || (p.kind != TCP_KIND_CTL && p.kind != TCP_KIND_PATH)))
		return WIMM_E_PARSE;
	*out = p;
	return p.version == TCP_VERSION ? WIMM_OK : WIMM_E_VERSION;
}

void tcp_answer_encode(enum tcp_refusal refusal, uint8_t *out)
{
	struct bw w;

	bw_init(&w, out, TCP_ANSWER_BYTES);
	bw_u32(&w, ANSWER_MAGIC);
	bw_u8(&w, TCP_VERSION);
	bw_u8(&w, (uint8_t)refusal);
	bw_u16(&w, 0);
}

wimm_status tcp_answer_decode(const uint8_t *in, uint8_t *out)
{
	struct br r;
	uint8_t refusal;
	uint8_t version;

	br_init(&r, in, TCP_ANSWER_BYTES);
	if (br_u32(&r) != ANSWER_MAGIC)
		return WIMM_E_PARSE;
	version = br_u8(&r);
	refusal = br_u8(&r);
	if (version != TCP_VERSION)
		return WIMM_E_VERSION;
	if (br_u16(&r) != 0)
		return WIMM_E_PARSE;
	*out = refusal;
	return WIMM_OK;
}

void tcp_hdr_encode(const struct tcp_hdr *hdr, uint8_t *out)
{
	out[0] = hdr->type;
	out[1] = 0;
	put16(out + 2, hdr->count);
	put32(out + 4, 0);
	put64(out + 8, hdr->value);
}

wimm_status tcp_hdr_decode(const uint8_t *in, struct tcp_hdr *out)
{
	struct tcp_hdr hdr = { .type = in[0], .count = get16(in + 2), .value = get64(in + 8) };

	if (in[1] != 0 || get32(in + 4) != 0)
		return WIMM_E_PROTOCOL;
	switch (hdr.type) {
	case TCP_FRAME_DATA:
		if (hdr.count == 0 || hdr.count > TCP_BATCH_MAX)
			return WIMM_E_PROTOCOL;
		break;
	case TCP_FRAME_ACK:
		if (hdr.count != 0)
			return WIMM_E_PROTOCOL;
		break;
	case TCP_FRAME_ERROR:
		if (hdr.count > TCP_ERROR_TEXT_MAX || hdr.value > UINT32_MAX)
			return WIMM_E_PROTOCOL;
		break;
	default:
		return WIMM_E_PROTOCOL;
	}
	*out = hdr;
	return WIMM_OK;
}

void tcp_desc_encode(const struct tcp_desc *desc, uint8_t *out)
{
	put64(out, desc->addr);
	put64(out + 8, desc->key);
	put64(out + 16, desc->op_seq);
	put32(out + 24, desc->len_bytes);
	put32(out + 28, desc->imm);
	put32(out + 32, desc->parts);
	put32(out + 36, desc->flags);
}

static bool flags_legal(uint32_t flags, uint32_t parts)
{
	const uint32_t both = TCP_DESC_IMM | TCP_DESC_PART;

	if (flags & ~(both | TCP_DESC_LAST) || (flags & both) == both)
		return false;
	if ((flags & both) && !(flags & TCP_DESC_LAST))
		return false;
	return !(flags & TCP_DESC_PART) || parts >= 2;
}

wimm_status tcp_descs_decode(const struct tcp_hdr *hdr, const uint8_t *in, struct tcp_desc *out)
{
	uint64_t total = 0; /* at most 64 lengths of 32 bits: cannot wrap */

	for (uint32_t i = 0; i < hdr->count; i++, in += TCP_DESC_BYTES) {
		out[i] = (struct tcp_desc){
			.addr = get64(in),
			.key = get64(in + 8),
			.op_seq = get64(in + 16),
			.len_bytes = get32(in + 24),
			.imm = get32(in + 28),
			.parts = get32(in + 32),
			.flags = get32(in + 36),
		};
		total += out[i].len_bytes;
		if (!flags_legal(out[i].flags, out[i].parts))
			return WIMM_E_PROTOCOL;
	}
	return total == hdr->value ? WIMM_OK : WIMM_E_PROTOCOL;
}
