/* SPDX-License-Identifier: Apache-2.0 */
#include "base/bytes.h"

#include <string.h>

/* The next len_bytes, consumed; NULL (and bad) when there are fewer. */
static const uint8_t *take(struct br *r, size_t len_bytes)
{
	const uint8_t *at;

	if (r->bad || len_bytes > r->len_bytes - r->pos_bytes) {
		r->bad = true;
		return NULL;
	}
	at = r->buf + r->pos_bytes;
	r->pos_bytes += len_bytes;
	return at;
}

static uint64_t take_uint(struct br *r, size_t len_bytes)
{
	const uint8_t *at = take(r, len_bytes);
	uint64_t v = 0;

	for (size_t i = 0; at && i < len_bytes; i++)
		v |= (uint64_t)at[i] << (8 * i);
	return v;
}

void br_init(struct br *r, const void *buf, size_t len_bytes)
{
	static const uint8_t none; /* so that an empty NULL buffer needs no case of its own */

	*r = (struct br){ .buf = buf ? buf : &none, .len_bytes = buf ? len_bytes : 0 };
}

uint8_t br_u8(struct br *r)
{
	return (uint8_t)take_uint(r, 1);
}

uint16_t br_u16(struct br *r)
{
	return (uint16_t)take_uint(r, 2);
}

uint32_t br_u32(struct br *r)
{
	return (uint32_t)take_uint(r, 4);
}

uint64_t br_u64(struct br *r)
{
	return take_uint(r, 8);
}

void br_bytes(struct br *r, void *out, size_t len_bytes)
{
	const uint8_t *at = take(r, len_bytes);

	if (len_bytes == 0)
		return;
	if (at)
		memcpy(out, at, len_bytes);
	else
		memset(out, 0, len_bytes);
}

const void *br_view(struct br *r, size_t len_bytes)
{
	return take(r, len_bytes);
}

void br_skip(struct br *r, size_t len_bytes)
{
	(void)take(r, len_bytes);
}

size_t br_left(const struct br *r)
{
	return r->bad ? 0 : r->len_bytes - r->pos_bytes;
}

bool br_done(const struct br *r)
{
	return !r->bad && r->pos_bytes == r->len_bytes;
}

static uint8_t *room(struct bw *w, size_t len_bytes)
{
	uint8_t *at;

	if (w->bad || len_bytes > w->cap_bytes - w->pos_bytes) {
		w->bad = true;
		return NULL;
	}
	at = w->buf + w->pos_bytes;
	w->pos_bytes += len_bytes;
	return at;
}

static void add_uint(struct bw *w, uint64_t v, size_t len_bytes)
{
	uint8_t *at = room(w, len_bytes);

	for (size_t i = 0; at && i < len_bytes; i++)
		at[i] = (uint8_t)(v >> (8 * i));
}

void bw_init(struct bw *w, void *buf, size_t cap_bytes)
{
	static uint8_t none;

	*w = (struct bw){ .buf = buf ? buf : &none, .cap_bytes = buf ? cap_bytes : 0 };
}

void bw_u8(struct bw *w, uint8_t v)
{
	add_uint(w, v, 1);
}

void bw_u16(struct bw *w, uint16_t v)
{
	add_uint(w, v, 2);
}

void bw_u32(struct bw *w, uint32_t v)
{
	add_uint(w, v, 4);
}

void bw_u64(struct bw *w, uint64_t v)
{
	add_uint(w, v, 8);
}

void bw_bytes(struct bw *w, const void *src, size_t len_bytes)
{
	uint8_t *at = room(w, len_bytes);

	if (at && len_bytes != 0)
		memcpy(at, src, len_bytes);
}

void bw_zeros(struct bw *w, size_t len_bytes)
{
	uint8_t *at = room(w, len_bytes);

	if (at && len_bytes != 0)
		memset(at, 0, len_bytes);
}

size_t bw_len(const struct bw *w)
{
	return w->pos_bytes;
}

enum { LANES = 16 / sizeof(uint32_t), AT_ONCE = 2 * LANES };
typedef uint32_t lanes __attribute__((vector_size(16)));

/* By hand, since what a compiler makes of the plain loop at -O2 takes one at a time. */
static lanes larger(lanes a, lanes b)
{
	lanes mask = (lanes)(a > b);

	return (a & mask) | (b & ~mask);
}

uint32_t max_u32(const uint32_t *values, uint64_t count)
{
	lanes max[2] = { { 0 }, { 0 } };
	uint32_t all = 0;
	uint64_t i = 0;

	for (; count - i >= AT_ONCE; i += AT_ONCE) {
		lanes v[2];

		memcpy(v, values + i, sizeof(v));
		max[0] = larger(v[0], max[0]);
		max[1] = larger(v[1], max[1]);
	}
	max[0] = larger(max[0], max[1]);
	for (uint32_t k = 0; k < LANES; k++)
		all = max[0][k] > all ? max[0][k] : all;
	for (; i < count; i++)
		all = values[i] > all ? values[i] : all;
	return all;
}
