/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/wire_samples.h"

#include <string.h>

static const char text[256] = "closing down for maintenance";
static const uint8_t data[512] = { 0xde, 0xad, 0xbe, 0xef, 0xff, 0x00, 0x01 };

/* 1, 2, 7, 16 for the variants. */
static uint32_t count_of(uint32_t variant)
{
	static const uint32_t counts[WIRE_SAMPLE_VARIANTS] = { 1, 2, 7, WIMM_MAX_NICS };

	return counts[variant % WIRE_SAMPLE_VARIANTS];
}

static void fill(uint8_t *bytes, uint32_t len_bytes, uint32_t start)
{
	for (uint32_t i = 0; i < len_bytes; i++)
		bytes[i] = (uint8_t)(start + 31 * i);
}

void wire_sample_addr(uint32_t variant, struct wire_addr *out)
{
	memset(out, 0, sizeof(*out));
	fill(out->instance, sizeof(out->instance), 1 + variant);
	memcpy(out->provider, variant == 3 ? "efa_0123456789-" : "tcp", variant == 3 ? 15 : 3);
	out->nic_count = count_of(variant);
	for (uint32_t i = 0; i < out->nic_count; i++) {
		/* An IPv4 endpoint as tcp writes it; the longest form in the last variant. */
		static const uint8_t v4[8] = { 4, 0, 0x67, 0x12, 127, 0, 0, 1 };
		struct prov_addr *nic = &out->nic[i];

		nic->len_bytes = variant == 3 ? PROV_ADDR_MAX_BYTES : sizeof(v4);
		fill(nic->bytes, nic->len_bytes, i);
		memcpy(nic->bytes, v4, sizeof(v4));
		nic->bytes[7] = (uint8_t)(i + 1);
	}
}

void wire_sample_desc(uint32_t variant, struct wire_desc *out)
{
	memset(out, 0, sizeof(*out));
	wire_sample_addr(variant, &out->owner);
	out->base = variant == 3 ? UINT64_MAX - (UINT64_C(1) << 63) : 0x7f0000001000;
	out->len_bytes = variant == 3 ? UINT64_C(1) << 63 : 1 + 4096 * (uint64_t)variant;
	out->region_slot = variant == 3 ? UINT32_MAX : variant;
	out->generation = UINT32_MAX - variant;
	for (uint32_t i = 0; i < out->owner.nic_count; i++)
		out->key[i] = UINT64_MAX - i;
}

static void sample_offers(uint32_t variant, struct prov_offer *offer, uint32_t *out_count)
{
	*out_count = count_of(variant);
	for (uint32_t i = 0; i < *out_count; i++) {
		offer[i].len_bytes = variant == 3 ? PROV_OFFER_BYTES : 16 * variant;
		fill(offer[i].bytes, offer[i].len_bytes, 7 * i);
	}
}

static void sample_hello(uint32_t variant, struct wire_msg *m)
{
	m->u.hello.major = WIRE_MAJOR;
	m->u.hello.minor = WIRE_MINOR;
	m->u.hello.progress_mode = variant % 2 ? WIMM_PROGRESS_CALLER : WIMM_PROGRESS_THREADS;
	m->u.hello.status = WIMM_OK;
	fill(m->u.hello.target, sizeof(m->u.hello.target), variant == 0 ? 0 : 90);
	m->u.hello.nonce = 0x0123456789abcdef;
	m->u.hello.heartbeat_ms = 500;
	m->u.hello.peer_timeout_ms = 3000;
	m->u.hello.max_msg_bytes = 65536;
	m->u.hello.attempt = 0x0123456789abcdef;
	wire_sample_addr(variant, &m->u.hello.self);
	if (m->type == WIRE_HELLO_ACK && variant == 2)
		m->u.hello.status = WIMM_E_PEER_REFUSED;
	else if (m->type == WIRE_HELLO_ACK)
		sample_offers(variant, m->u.hello.offer, &m->u.hello.path_count);
}

/* Marks of each path. */
static void sample_marks(uint32_t variant, struct wire_msg *out)
{
	out->u.marks.id = 17;
	out->u.marks.path_count = variant == 0 ? 0 : count_of(variant);
	for (uint32_t i = 0; i < out->u.marks.path_count; i++) {
		out->u.marks.path_seq[i] = 0xfffffff0 + i;
		out->u.marks.mark[i] = UINT64_MAX - i;
	}
}

/* Slots for memory of GPUs. */
static void sample_land(uint32_t variant, struct wire_msg *out)
{
	if (out->type == WIRE_LANDED) {
		out->u.landed.slot = variant;
		out->u.landed.status = variant % 2 == 0 ? WIMM_OK : WIMM_E_REVOKED;
	}
	if (out->type != WIRE_LAND_AREA)
		return;
	out->u.land.base = UINT64_MAX - variant;
	out->u.land.region_slot = variant;
	out->u.land.generation = UINT32_MAX;
	out->u.land.key_count = variant % (WIMM_MAX_NICS + 1);
	for (uint32_t i = 0; i < out->u.land.key_count; i++)
		out->u.land.key[i] = UINT64_MAX / (i + 1);
}

void wire_sample_msg(enum wire_type type, uint32_t variant, struct wire_msg *out)
{
	memset(out, 0, sizeof(*out));
	out->type = type;
	switch (type) {
	case WIRE_HELLO:
	case WIRE_HELLO_ACK:
		sample_hello(variant, out);
		break;
	case WIRE_PATHS:
		out->u.paths.nonce = variant;
		sample_offers(variant, out->u.paths.offer, &out->u.paths.path_count);
		break;
	case WIRE_HEARTBEAT:
	case WIRE_RETIRE_ACK:
	case WIRE_FENCE_ACK:
		sample_marks(variant, out);
		break;
	case WIRE_FENCE:
	case WIRE_ALIVE_ASK:
	case WIRE_ALIVE:
	case WIRE_CONFIRM:
		out->u.marks.id = UINT64_MAX - variant;
		break;
	case WIRE_PATH_OPEN:
	case WIRE_PATH_STATE:
		out->u.path.index = variant % WIRE_MAX_PATHS;
		out->u.path.seq = UINT32_MAX - variant;
		out->u.path.offer.len_bytes = variant == 3 ? PROV_OFFER_BYTES : 9 * variant;
		fill(out->u.path.offer.bytes, out->u.path.offer.len_bytes, 31);
		break;
	case WIRE_GOODBYE:
		out->u.goodbye.reason = variant == 0 ? WIMM_OK : WIMM_E_CLOSED;
		out->u.goodbye.text = text;
		out->u.goodbye.text_len_bytes = variant == 3 ? 255 : 7 * variant;
		break;
	case WIRE_MR_CHECK:
	case WIRE_MR_STATE:
	case WIRE_REVOKE:
	case WIRE_REVOKE_ACK:
		out->u.mr.region_slot = variant;
		out->u.mr.generation = UINT32_MAX - variant;
		out->u.mr.status = type == WIRE_MR_STATE && variant ? WIMM_E_REVOKED : WIMM_OK;
		break;
	case WIRE_MSG:
		out->u.msg.seq = UINT64_C(1) << 40;
		out->u.msg.data = data;
		out->u.msg.len_bytes = 170 * variant;
		break;
	case WIRE_MSG_ACK:
		out->u.msg.seq = variant;
		out->u.msg.status = variant == 1 ? WIMM_AGAIN : WIMM_E_TOO_LONG;
		break;
	case WIRE_MSG_READY:
		break;
	case WIRE_RETIRE:
		out->u.retire.id = 3;
		out->u.retire.imm = UINT32_MAX - variant;
		break;
	case WIRE_LAND_ASK:
	case WIRE_LAND_AREA:
	case WIRE_LANDED:
		sample_land(variant, out);
		break;
	case WIRE_ABANDON:
		out->u.abandon.op_seq = UINT64_MAX;
		out->u.abandon.parts_sent = variant;
		break;
	}
}
