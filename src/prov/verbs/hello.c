/* SPDX-License-Identifier: Apache-2.0 */
#include "prov/verbs/hello.h"

#include "base/bytes.h"

#include <string.h>

#define MAGIC 0x766d6d77u /* "wmmv" */

enum { VERSION = 1, NUMBER_MAX = 0xffffff };

void verbs_hello_encode(const struct verbs_hello *h, uint8_t *out)
{
	struct bw w;

	bw_init(&w, out, VERBS_HELLO_BYTES);
	bw_u32(&w, MAGIC);
	bw_u8(&w, VERSION);
	bw_u8(&w, (uint8_t)h->type);
	bw_u8(&w, (uint8_t)h->from.len_bytes);
	bw_u8(&w, 0);
	bw_u64(&w, h->token);
	bw_u32(&w, h->qpn);
	bw_u32(&w, h->psn);
	bw_u32(&w, (uint32_t)h->status);
	bw_bytes(&w, h->from.bytes, sizeof(h->from.bytes));
	bw_zeros(&w, VERBS_HELLO_BYTES - bw_len(&w));
}

wimm_status verbs_hello_decode(const uint8_t *in, size_t len_bytes, struct verbs_hello *out)
{
	struct verbs_hello h = { 0 };
	uint32_t magic;
	uint8_t version;
	uint8_t type;
	struct br r;

	br_init(&r, in, len_bytes);
	magic = br_u32(&r);
	version = br_u8(&r);
	type = br_u8(&r);
	h.from.len_bytes = br_u8(&r);
	br_skip(&r, 1);
	h.token = br_u64(&r);
	h.qpn = br_u32(&r);
	h.psn = br_u32(&r);
	h.status = (wimm_status)br_u32(&r);
	br_bytes(&r, h.from.bytes, sizeof(h.from.bytes));
	if (r.bad || magic != MAGIC)
		return WIMM_E_PARSE;
	if (version != VERSION)
		return WIMM_E_VERSION;
	if (type < VERBS_HELLO_DIAL || type > VERBS_HELLO_NOTED ||
	    h.from.len_bytes > sizeof(h.from.bytes) || h.qpn == 0 || h.qpn > NUMBER_MAX ||
	    h.psn > NUMBER_MAX || len_bytes != VERBS_HELLO_BYTES)
		return WIMM_E_PARSE;
	h.type = (enum verbs_hello_type)type;
	*out = h;
	return WIMM_OK;
}
