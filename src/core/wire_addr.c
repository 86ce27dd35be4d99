/* SPDX-License-Identifier: Apache-2.0 */
#include "core/wire.h"

#include "base/bytes.h"
#include "core/wire_parts.h"

#include <string.h>

static const uint8_t nobody[WIMM_INSTANCE_BYTES];

bool wire_instance_is_zero(const uint8_t *instance)
{
	return memcmp(instance, nobody, sizeof(nobody)) == 0;
}

/* --- one part after another, shared with the messages --- */

static bool provider_char(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

/* The length of a well-formed provider name, else 0. */
static uint32_t provider_len(const char *name, uint32_t max)
{
	uint32_t len = 0;

	while (len < max && name[len] != '\0') {
		if (!provider_char(name[len]))
			return 0;
		len++;
	}
	return len < sizeof(((struct wire_addr *)0)->provider) ? len : 0;
}

bool wire_put_addr(struct bw *w, const struct wire_addr *a)
{
	uint32_t name_len = provider_len(a->provider, sizeof(a->provider));

	if (name_len == 0 || a->nic_count == 0 || a->nic_count > WIMM_MAX_NICS)
		return false;
	bw_bytes(w, a->instance, sizeof(a->instance));
	bw_u8(w, (uint8_t)name_len);
	bw_bytes(w, a->provider, name_len);
	bw_u8(w, (uint8_t)a->nic_count);
	for (uint32_t i = 0; i < a->nic_count; i++) {
		const struct prov_addr *nic = &a->nic[i];

		if (nic->len_bytes == 0 || nic->len_bytes > PROV_ADDR_MAX_BYTES)
			return false;
		bw_u8(w, (uint8_t)nic->len_bytes);
		bw_bytes(w, nic->bytes, nic->len_bytes);
	}
	return !w->bad;
}

bool wire_get_addr(struct br *r, struct wire_addr *out)
{
	uint32_t name_len;

	*out = (struct wire_addr){ 0 };
	br_bytes(r, out->instance, sizeof(out->instance));
	name_len = br_u8(r);
	if (name_len == 0 || name_len >= sizeof(out->provider))
		return false;
	br_bytes(r, out->provider, name_len);
	if (r->bad || provider_len(out->provider, name_len) != name_len)
		return false;
	out->nic_count = br_u8(r);
	if (out->nic_count == 0 || out->nic_count > WIMM_MAX_NICS)
		return false;
	for (uint32_t i = 0; i < out->nic_count; i++) {
		struct prov_addr *nic = &out->nic[i];

		nic->len_bytes = br_u8(r);
		if (nic->len_bytes == 0 || nic->len_bytes > PROV_ADDR_MAX_BYTES)
			return false;
		br_bytes(r, nic->bytes, nic->len_bytes);
	}
	return !r->bad;
}

/* An address with its length in front, so that a later version may add to it. */
bool wire_put_sized_addr(struct bw *w, const struct wire_addr *a)
{
	uint8_t bytes[WIMM_NET_ADDR_MAX_BYTES];
	struct bw inner;

	bw_init(&inner, bytes, sizeof(bytes));
	if (!wire_put_addr(&inner, a))
		return false;
	bw_u16(w, (uint16_t)bw_len(&inner));
	bw_bytes(w, bytes, bw_len(&inner));
	return !w->bad;
}

bool wire_get_sized_addr(struct br *r, struct wire_addr *out)
{
	size_t len_bytes = br_u16(r);
	const void *bytes = br_view(r, len_bytes);
	struct br inner;

	if (!bytes)
		return false;
	br_init(&inner, bytes, len_bytes);
	return wire_get_addr(&inner, out);
}

/* Head of an address or descriptor: what it is, its format's version. */
static void put_head(struct bw *w, char kind)
{
	bw_u8(w, WIRE_MAJOR);
	bw_u8(w, WIRE_ADDR_MINOR);
	bw_u8(w, (uint8_t)kind);
	bw_u8(w, 0);
}

static wimm_status get_head(struct br *r, char kind)
{
	uint8_t major = br_u8(r);

	br_skip(r, 1); /* any minor: what it adds comes at the end */
	if (br_u8(r) != (uint8_t)kind || r->bad || major == 0)
		return WIMM_E_PARSE;
	if (major > WIRE_MAJOR)
		return WIMM_E_VERSION;
	return br_u8(r) == 0 && !r->bad ? WIMM_OK : WIMM_E_PARSE;
}

/* --- addresses --- */

wimm_status wire_addr_encode(const struct wire_addr *a, struct wimm_net_addr *out)
{
	struct wimm_net_addr made = { 0 };
	struct bw w;

	bw_init(&w, made.bytes, sizeof(made.bytes));
	put_head(&w, 'A');
	if (!wire_put_addr(&w, a))
		return WIMM_E_INVAL;
	made.len_bytes = (uint32_t)bw_len(&w);
	*out = made;
	return WIMM_OK;
}

wimm_status wire_addr_decode(const struct wimm_net_addr *in, struct wire_addr *out)
{
	struct wire_addr a;
	struct br r;
	wimm_status st;

	if (in->len_bytes > sizeof(in->bytes))
		return WIMM_E_PARSE;
	br_init(&r, in->bytes, in->len_bytes);
	st = get_head(&r, 'A');
	if (st != WIMM_OK)
		return st;
	if (!wire_get_addr(&r, &a))
		return WIMM_E_PARSE;
	*out = a;
	return WIMM_OK;
}

/* --- descriptors --- */

#define CUDA_TAG 0x41445543u /* "CUDA" behind what every descriptor has: memory of a GPU */

static bool desc_valid(const struct wire_desc *d)
{
	return !wire_instance_is_zero(d->owner.instance) && d->len_bytes != 0 &&
	       d->base <= UINT64_MAX - d->len_bytes && d->generation != 0 &&
	       d->kind <= WIRE_MEMORY_CUDA;
}

wimm_status wire_desc_encode(const struct wire_desc *d, struct wimm_mr_desc *out)
{
	struct wimm_mr_desc made = { 0 };
	struct bw w;

	bw_init(&w, made.bytes, sizeof(made.bytes));
	put_head(&w, 'D');
	if (!desc_valid(d) || !wire_put_sized_addr(&w, &d->owner))
		return WIMM_E_INVAL;
	bw_u64(&w, d->base);
	bw_u64(&w, d->len_bytes);
	bw_u32(&w, d->region_slot);
	bw_u32(&w, d->generation);
	for (uint32_t i = 0; i < d->owner.nic_count; i++)
		bw_u64(&w, d->key[i]);
	if (d->kind == WIRE_MEMORY_CUDA) {
		bw_u32(&w, CUDA_TAG);
		bw_u64(&w, d->card);
	}
	if (w.bad)
		return WIMM_E_INVAL;
	made.len_bytes = (uint32_t)bw_len(&w);
	*out = made;
	return WIMM_OK;
}

wimm_status wire_desc_decode(const struct wimm_mr_desc *in, struct wire_desc *out)
{
	struct wire_desc d = { 0 };
	struct br r;
	wimm_status st;

	if (in->len_bytes > sizeof(in->bytes))
		return WIMM_E_PARSE;
	br_init(&r, in->bytes, in->len_bytes);
	st = get_head(&r, 'D');
	if (st != WIMM_OK)
		return st;
	if (!wire_get_sized_addr(&r, &d.owner))
		return WIMM_E_PARSE;
	d.base = br_u64(&r);
	d.len_bytes = br_u64(&r);
	d.region_slot = br_u32(&r);
	d.generation = br_u32(&r);
	for (uint32_t i = 0; i < d.owner.nic_count; i++)
		d.key[i] = br_u64(&r);
	if (br_left(&r) >= sizeof(uint32_t) && br_u32(&r) == CUDA_TAG) {
		d.kind = WIRE_MEMORY_CUDA;
		d.card = br_left(&r) >= sizeof(d.card) ? br_u64(&r) : WIRE_CARD_NONE;
	}
	if (r.bad || !desc_valid(&d))
		return WIMM_E_PARSE;
	*out = d;
	return WIMM_OK;
}
