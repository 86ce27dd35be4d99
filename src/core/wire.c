/* SPDX-License-Identifier: Apache-2.0 */
#include "core/wire.h"

#include "base/bytes.h"
#include "core/wire_parts.h"

#include <string.h>

enum { STATUS_BYTES = 4, TEXT_MAX_BYTES = 255 };

/* --- parts --- */

static bool status_known(int32_t status)
{
	switch (status) {
#define X(name, value, scope, text) case value:
		WIMM_STATUS_MAP(X)
#undef X
		return true;
	}
	return false;
}

static bool put_status(struct bw *w, wimm_status status)
{
	bw_u32(w, (uint32_t)(int32_t)status);
	return status_known((int32_t)status);
}

static bool get_status(struct br *r, wimm_status *out)
{
	int32_t status = (int32_t)br_u32(r);

	if (!status_known(status))
		return false;
	*out = (wimm_status)status;
	return true;
}

static bool put_offers(struct bw *w, const struct prov_offer *offer, uint32_t count)
{
	bw_u8(w, (uint8_t)count);
	for (uint32_t i = 0; i < count; i++) {
		if (offer[i].len_bytes > PROV_OFFER_BYTES)
			return false;
		bw_u8(w, (uint8_t)offer[i].len_bytes);
		bw_bytes(w, offer[i].bytes, offer[i].len_bytes);
	}
	return true;
}

static bool get_offers(struct br *r, struct prov_offer *offer, uint32_t *out_count)
{
	uint32_t count = br_u8(r);

	if (count > WIRE_MAX_PATHS)
		return false;
	for (uint32_t i = 0; i < count; i++) {
		offer[i].len_bytes = br_u8(r);
		if (offer[i].len_bytes > PROV_OFFER_BYTES)
			return false;
		br_bytes(r, offer[i].bytes, offer[i].len_bytes);
	}
	*out_count = count;
	return true;
}

/* --- what each message may say, for both directions --- */

static bool hello_valid(const struct wire_msg *m)
{
	if (m->u.hello.progress_mode > WIMM_PROGRESS_CALLER || m->u.hello.heartbeat_ms == 0 ||
	    m->u.hello.peer_timeout_ms == 0 || m->u.hello.path_count > WIRE_MAX_PATHS ||
	    wire_instance_is_zero(m->u.hello.self.instance))
		return false;
	if (m->type == WIRE_HELLO)
		return m->u.hello.status == WIMM_OK;
	return m->u.hello.status != WIMM_OK || m->u.hello.path_count != 0;
}

static bool msg_valid(const struct wire_msg *m)
{
	switch (m->type) {
	case WIRE_HELLO:
	case WIRE_HELLO_ACK:
		return hello_valid(m);
	case WIRE_PATHS:
		return m->u.paths.path_count != 0 && m->u.paths.path_count <= WIRE_MAX_PATHS;
	case WIRE_HEARTBEAT:
	case WIRE_RETIRE_ACK:
	case WIRE_FENCE_ACK:
		return m->u.marks.path_count <= WIRE_MAX_PATHS;
	case WIRE_GOODBYE:
		return m->u.goodbye.text_len_bytes <= TEXT_MAX_BYTES;
	case WIRE_MR_CHECK:
	case WIRE_MR_STATE:
	case WIRE_REVOKE:
	case WIRE_REVOKE_ACK:
		return m->u.mr.generation != 0;
	case WIRE_MSG:
	case WIRE_MSG_ACK:
	case WIRE_MSG_READY:
	case WIRE_CONFIRM:
	case WIRE_RETIRE:
	case WIRE_ABANDON:
	case WIRE_LAND_ASK:
	case WIRE_LANDED:
		return true;
	case WIRE_LAND_AREA:
		return m->u.land.key_count <= WIMM_MAX_NICS;
	case WIRE_FENCE:
	case WIRE_ALIVE_ASK:
	case WIRE_ALIVE:
		return m->u.marks.id != 0;
	case WIRE_PATH_OPEN:
	case WIRE_PATH_STATE:
		return m->u.path.index < WIRE_MAX_PATHS && m->u.path.seq != 0 &&
		       m->u.path.offer.len_bytes <= PROV_OFFER_BYTES;
	}
	return false;
}

/* --- bodies: hello --- */

static bool put_hello(struct bw *w, const struct wire_msg *m)
{
	bw_u8(w, WIRE_MINOR);
	bw_u8(w, m->u.hello.progress_mode);
	bw_u16(w, 0);
	if (!put_status(w, m->u.hello.status))
		return false;
	bw_bytes(w, m->u.hello.target, WIMM_INSTANCE_BYTES);
	bw_u64(w, m->u.hello.nonce);
	bw_u32(w, m->u.hello.heartbeat_ms);
	bw_u32(w, m->u.hello.peer_timeout_ms);
	bw_u32(w, m->u.hello.max_msg_bytes);
	bw_u64(w, m->u.hello.attempt);
	if (!wire_put_sized_addr(w, &m->u.hello.self) ||
	    !put_offers(w, m->u.hello.offer, m->u.hello.path_count))
		return false;
	if (m->u.hello.auth == 0 && m->u.hello.former == 0)
		return true;
	bw_u8(w, m->u.hello.auth);
	if (m->u.hello.auth == 0) {
		bw_u64(w, m->u.hello.former);
		return true;
	}
	bw_bytes(w, m->u.hello.auth_nonce, WIRE_AUTH_BYTES);
	bw_bytes(w, m->u.hello.mac, WIRE_AUTH_BYTES);
	return true;
}

/* What came with minor version 2. Nothing there, or a way that is not known here: no proof. Without
 * one, since minor version 6, the session before may be named. */
static bool get_auth(struct br *r, struct wire_msg *m, uint32_t len_bytes)
{
	uint8_t way;

	if (m->u.hello.minor < WIRE_MINOR_AUTH || br_left(r) == 0)
		return true;
	way = br_u8(r);
	if (way == 0 && m->u.hello.minor >= WIRE_MINOR_FORMER)
		m->u.hello.former = br_u64(r);
	if (way != WIRE_AUTH_BLAKE2B)
		return true;
	m->u.hello.auth = WIRE_AUTH_BLAKE2B;
	br_bytes(r, m->u.hello.auth_nonce, WIRE_AUTH_BYTES);
	m->mac_at = len_bytes - (uint32_t)br_left(r);
	br_bytes(r, m->u.hello.mac, WIRE_AUTH_BYTES);
	return true;
}

static bool get_hello(struct br *r, struct wire_msg *m, uint32_t len_bytes)
{
	m->u.hello.major = WIRE_MAJOR;
	m->u.hello.minor = br_u8(r);
	m->u.hello.progress_mode = br_u8(r);
	if (br_u16(r) != 0 || !get_status(r, &m->u.hello.status))
		return false;
	br_bytes(r, m->u.hello.target, WIMM_INSTANCE_BYTES);
	m->u.hello.nonce = br_u64(r);
	m->u.hello.heartbeat_ms = br_u32(r);
	m->u.hello.peer_timeout_ms = br_u32(r);
	m->u.hello.max_msg_bytes = br_u32(r);
	m->u.hello.attempt = br_u64(r);
	return wire_get_sized_addr(r, &m->u.hello.self) &&
	       get_offers(r, m->u.hello.offer, &m->u.hello.path_count) && get_auth(r, m, len_bytes);
}

/* --- bodies: the others --- */

static void put_land(struct bw *w, const struct wire_land *land)
{
	bw_u64(w, land->base);
	bw_u32(w, land->region_slot);
	bw_u32(w, land->generation);
	bw_u8(w, (uint8_t)land->key_count);
	for (uint32_t i = 0; i < land->key_count; i++)
		bw_u64(w, land->key[i]);
}

static bool get_land(struct br *r, struct wire_land *land)
{
	land->base = br_u64(r);
	land->region_slot = br_u32(r);
	land->generation = br_u32(r);
	land->key_count = br_u8(r);
	if (land->key_count > WIMM_MAX_NICS)
		return false;
	for (uint32_t i = 0; i < land->key_count; i++)
		land->key[i] = br_u64(r);
	return true;
}

static bool put_marks(struct bw *w, const struct wire_msg *m)
{
	bw_u64(w, m->u.marks.id);
	bw_u8(w, (uint8_t)m->u.marks.path_count);
	for (uint32_t i = 0; i < m->u.marks.path_count; i++) {
		bw_u32(w, m->u.marks.path_seq[i]);
		bw_u64(w, m->u.marks.mark[i]);
	}
	return true;
}

static bool get_marks(struct br *r, struct wire_msg *m)
{
	m->u.marks.id = br_u64(r);
	m->u.marks.path_count = br_u8(r);
	if (m->u.marks.path_count > WIRE_MAX_PATHS)
		return false;
	for (uint32_t i = 0; i < m->u.marks.path_count; i++) {
		m->u.marks.path_seq[i] = br_u32(r);
		m->u.marks.mark[i] = br_u64(r);
	}
	return true;
}

static bool put_goodbye(struct bw *w, const struct wire_msg *m)
{
	if (!put_status(w, m->u.goodbye.reason))
		return false;
	bw_u8(w, (uint8_t)m->u.goodbye.text_len_bytes);
	bw_bytes(w, m->u.goodbye.text, m->u.goodbye.text_len_bytes);
	return true;
}

static bool get_goodbye(struct br *r, struct wire_msg *m)
{
	if (!get_status(r, &m->u.goodbye.reason))
		return false;
	m->u.goodbye.text_len_bytes = br_u8(r);
	m->u.goodbye.text = br_view(r, m->u.goodbye.text_len_bytes);
	return true;
}

static bool put_mr(struct bw *w, const struct wire_msg *m)
{
	bw_u32(w, m->u.mr.region_slot);
	bw_u32(w, m->u.mr.generation);
	return m->type != WIRE_MR_STATE || put_status(w, m->u.mr.status);
}

static bool get_mr(struct br *r, struct wire_msg *m)
{
	m->u.mr.region_slot = br_u32(r);
	m->u.mr.generation = br_u32(r);
	return m->type != WIRE_MR_STATE || get_status(r, &m->u.mr.status);
}

static bool put_msg(struct bw *w, const struct wire_msg *m)
{
	bw_u64(w, m->u.msg.seq);
	if (m->type == WIRE_MSG_ACK)
		return put_status(w, m->u.msg.status);
	bw_u32(w, m->u.msg.len_bytes);
	bw_bytes(w, m->u.msg.data, m->u.msg.len_bytes);
	return true;
}

static bool get_msg(struct br *r, struct wire_msg *m)
{
	m->u.msg.seq = br_u64(r);
	if (m->type == WIRE_MSG_ACK)
		return get_status(r, &m->u.msg.status);
	m->u.msg.len_bytes = br_u32(r);
	m->u.msg.data = br_view(r, m->u.msg.len_bytes);
	return true;
}

static void put_path(struct bw *w, const struct wire_msg *m)
{
	bw_u8(w, (uint8_t)m->u.path.index);
	bw_u32(w, m->u.path.seq);
	bw_u8(w, (uint8_t)m->u.path.offer.len_bytes);
	bw_bytes(w, m->u.path.offer.bytes, m->u.path.offer.len_bytes);
}

static bool get_path(struct br *r, struct wire_msg *m)
{
	m->u.path.index = br_u8(r);
	m->u.path.seq = br_u32(r);
	m->u.path.offer.len_bytes = br_u8(r);
	if (m->u.path.offer.len_bytes > PROV_OFFER_BYTES)
		return false;
	br_bytes(r, m->u.path.offer.bytes, m->u.path.offer.len_bytes);
	return true;
}

static bool put_body(struct bw *w, const struct wire_msg *m)
{
	switch (m->type) {
	case WIRE_HELLO:
	case WIRE_HELLO_ACK:
		return put_hello(w, m);
	case WIRE_PATHS:
		bw_u64(w, m->u.paths.nonce);
		if (!put_offers(w, m->u.paths.offer, m->u.paths.path_count))
			return false;
		if (!m->u.paths.has_mac)
			return true;
		bw_u8(w, WIRE_AUTH_BLAKE2B);
		bw_bytes(w, m->u.paths.mac, WIRE_AUTH_BYTES);
		return true;
	case WIRE_HEARTBEAT:
	case WIRE_CONFIRM:
	case WIRE_RETIRE_ACK:
	case WIRE_FENCE_ACK:
		return put_marks(w, m);
	case WIRE_FENCE:
	case WIRE_ALIVE_ASK:
	case WIRE_ALIVE:
		bw_u64(w, m->u.marks.id);
		return true;
	case WIRE_PATH_OPEN:
	case WIRE_PATH_STATE:
		put_path(w, m);
		return true;
	case WIRE_GOODBYE:
		return put_goodbye(w, m);
	case WIRE_MR_CHECK:
	case WIRE_MR_STATE:
	case WIRE_REVOKE:
	case WIRE_REVOKE_ACK:
		return put_mr(w, m);
	case WIRE_MSG:
	case WIRE_MSG_ACK:
		return put_msg(w, m);
	case WIRE_MSG_READY:
		return true;
	case WIRE_RETIRE:
		bw_u64(w, m->u.retire.id);
		bw_u32(w, m->u.retire.imm);
		return true;
	case WIRE_ABANDON:
		bw_u64(w, m->u.abandon.op_seq);
		bw_u32(w, m->u.abandon.parts_sent);
		return true;
	case WIRE_LAND_ASK:
		return true;
	case WIRE_LAND_AREA:
		put_land(w, &m->u.land);
		return true;
	case WIRE_LANDED:
		bw_u32(w, m->u.landed.slot);
		return put_status(w, m->u.landed.status);
	}
	return false;
}

static bool get_paths(struct br *r, struct wire_msg *m, uint32_t len_bytes)
{
	m->u.paths.nonce = br_u64(r);
	if (!get_offers(r, m->u.paths.offer, &m->u.paths.path_count))
		return false;
	m->u.paths.has_mac = br_left(r) != 0 && br_u8(r) == WIRE_AUTH_BLAKE2B;
	if (!m->u.paths.has_mac)
		return true;
	m->mac_at = len_bytes - (uint32_t)br_left(r);
	br_bytes(r, m->u.paths.mac, WIRE_AUTH_BYTES);
	return true;
}

static bool get_body(struct br *r, struct wire_msg *m, uint32_t len_bytes)
{
	switch (m->type) {
	case WIRE_HELLO:
	case WIRE_HELLO_ACK:
		return get_hello(r, m, len_bytes);
	case WIRE_PATHS:
		return get_paths(r, m, len_bytes);
	case WIRE_HEARTBEAT:
	case WIRE_CONFIRM:
	case WIRE_RETIRE_ACK:
	case WIRE_FENCE_ACK:
		return get_marks(r, m);
	case WIRE_FENCE:
	case WIRE_ALIVE_ASK:
	case WIRE_ALIVE:
		m->u.marks.id = br_u64(r);
		return true;
	case WIRE_PATH_OPEN:
	case WIRE_PATH_STATE:
		return get_path(r, m);
	case WIRE_GOODBYE:
		return get_goodbye(r, m);
	case WIRE_MR_CHECK:
	case WIRE_MR_STATE:
	case WIRE_REVOKE:
	case WIRE_REVOKE_ACK:
		return get_mr(r, m);
	case WIRE_MSG:
	case WIRE_MSG_ACK:
		return get_msg(r, m);
	case WIRE_MSG_READY:
		return true;
	case WIRE_RETIRE:
		m->u.retire.id = br_u64(r);
		m->u.retire.imm = br_u32(r);
		return true;
	case WIRE_ABANDON:
		m->u.abandon.op_seq = br_u64(r);
		m->u.abandon.parts_sent = br_u32(r);
		return true;
	case WIRE_LAND_ASK:
		return true;
	case WIRE_LAND_AREA:
		return get_land(r, &m->u.land);
	case WIRE_LANDED:
		m->u.landed.slot = br_u32(r);
		return get_status(r, &m->u.landed.status);
	}
	return false;
}

/* --- whole messages --- */

uint32_t wire_encode(const struct wire_msg *m, uint8_t *out, uint32_t out_bytes)
{
	struct bw w, head;
	uint32_t len_bytes;

	if (!msg_valid(m))
		return 0;
	bw_init(&w, out, out_bytes);
	bw_zeros(&w, WIRE_HEADER_BYTES);
	if (!put_body(&w, m) || w.bad)
		return 0;
	len_bytes = (uint32_t)bw_len(&w);
	bw_init(&head, out, WIRE_HEADER_BYTES);
	bw_u8(&head, WIRE_MAJOR);
	bw_u8(&head, (uint8_t)m->type);
	bw_u16(&head, 0);
	bw_u32(&head, len_bytes - WIRE_HEADER_BYTES);
	return len_bytes;
}

uint32_t wire_major(const uint8_t *in, uint32_t len_bytes)
{
	return len_bytes != 0 ? in[0] : 0;
}

wimm_status wire_decode(const uint8_t *in, uint32_t len_bytes, struct wire_msg *out)
{
	struct br r;
	uint32_t major;

	br_init(&r, in, len_bytes);
	major = br_u8(&r);
	if (r.bad || major == 0)
		return WIMM_E_PARSE;
	if (major > WIRE_MAJOR)
		return WIMM_E_VERSION;
	memset(out, 0, sizeof(*out));
	out->type = (enum wire_type)br_u8(&r);
	if (br_u16(&r) != 0 || br_u32(&r) != br_left(&r) || r.bad)
		return WIMM_E_PARSE;
	out->raw = in;
	if (!get_body(&r, out, len_bytes) || r.bad || !msg_valid(out))
		return WIMM_E_PARSE;
	return WIMM_OK;
}
