/* SPDX-License-Identifier: Apache-2.0 */
#include "prov/host/ring.h"

#include <string.h>

/* States of an offer; the position is in them, so that one of an earlier lap is no match. */
enum {
	OFFERED = 1,
	WITHDRAWN = 2,
	TAKEN = 3,
	FETCHING = 4,
};

static uint64_t state_of(uint32_t pos, uint64_t state)
{
	return (uint64_t)pos << 8 | state;
}

static void store(struct host_slot *slot, uint32_t i, uint64_t value)
{
	atomic_store_explicit(&slot->word[i], value, memory_order_relaxed);
}

static uint64_t load(const struct host_slot *slot, uint32_t i)
{
	return atomic_load_explicit(&slot->word[i], memory_order_relaxed);
}

void host_slot_put(struct host_slot *slot, uint32_t pos, const struct host_entry *e)
{
	store(slot, 1, (uint64_t)e->imm << 32 | e->len_bytes);
	store(slot, 2, e->addr);
	store(slot, 3, e->key);
	if ((e->flags & HOST_ENTRY_PART) || e->kind >= HOST_ENTRY_PLACED) {
		store(slot, 4, e->op_seq);
		store(slot, 5, e->parts);
	}
	store(slot, 6, e->kind == HOST_ENTRY_INLINE ? e->inlined[0] : e->src);
	store(slot, 7, e->kind == HOST_ENTRY_INLINE ? e->inlined[1] : state_of(pos, OFFERED));
	/* [A] with [B] in host_slot_get(): the words above, and the bytes, before the sequence. */
	atomic_store_explicit(&slot->word[0],
	                      (uint64_t)e->flags << 40 | (uint64_t)e->kind << 32 |
	                              (uint32_t)(pos + 1),
	                      memory_order_release);
}

static bool sane(const struct host_entry *e)
{
	static const uint32_t longest[] = {
		[HOST_ENTRY_INLINE] = HOST_INLINE_BYTES,
		[HOST_ENTRY_SLOT] = HOST_PIECE_BYTES,
		[HOST_ENTRY_OFFER] = HOST_OFFER_BYTES,
		[HOST_ENTRY_PLACED] = UINT32_MAX,
		[HOST_ENTRY_CARD] = HOST_PIECE_BYTES,
	};
	bool counts = e->flags & (HOST_ENTRY_IMM | HOST_ENTRY_PART);

	if (e->kind < HOST_ENTRY_INLINE || e->kind > HOST_ENTRY_CARD ||
	    e->len_bytes > longest[e->kind])
		return false;
	if ((e->flags & ~(HOST_ENTRY_IMM | HOST_ENTRY_PART | HOST_ENTRY_LAST)) != 0 ||
	    (counts && !(e->flags & HOST_ENTRY_LAST)))
		return false;
	if (e->flags & HOST_ENTRY_PART)
		return !(e->flags & HOST_ENTRY_IMM) && e->parts >= 2;
	return true;
}

enum host_slot_look host_slot_get(const struct host_slot *slot, uint32_t pos,
                                  struct host_entry *out)
{
	/* [B] with [A] in host_slot_put(). */
	uint64_t head = atomic_load_explicit(&slot->word[0], memory_order_acquire);
	uint64_t lens;

	if ((uint32_t)head != pos + 1) {
		/* What was here a lap ago, or nothing in the first lap. */
		bool old = (uint32_t)head == pos + 1 - HOST_RING_ENTRIES || head == 0;

		return old ? HOST_SLOT_EMPTY : HOST_SLOT_BROKEN;
	}
	lens = load(slot, 1);
	*out = (struct host_entry){
		.kind = (uint8_t)(head >> 32),
		.flags = (uint32_t)(head >> 40),
		.len_bytes = (uint32_t)lens,
		.imm = (uint32_t)(lens >> 32),
		.addr = load(slot, 2),
		.key = load(slot, 3),
		.src = load(slot, 6),
	};
	if (out->kind == HOST_ENTRY_INLINE) {
		out->inlined[0] = out->src;
		out->inlined[1] = load(slot, 7);
	}
	if ((out->flags & HOST_ENTRY_PART) || out->kind >= HOST_ENTRY_PLACED) {
		out->op_seq = load(slot, 4);
		out->parts = (uint32_t)load(slot, 5);
	}
	return sane(out) ? HOST_SLOT_FULL : HOST_SLOT_BROKEN;
}

static bool change(struct host_slot *slot, uint32_t pos, uint64_t from, uint64_t to)
{
	uint64_t expect = state_of(pos, from);

	/* [C] with itself at the other side: of withdraw and take one comes first and wins, and so
	 * of withdraw and begin. Acquire and release: a receiver that takes has copied before, one
	 * that begins copies after; a sender that wins reuses after. */
	return atomic_compare_exchange_strong_explicit(&slot->word[7], &expect, state_of(pos, to),
	                                               memory_order_acq_rel, memory_order_acquire);
}

enum host_slot_end host_slot_withdraw(struct host_slot *slot, uint32_t pos)
{
	if (change(slot, pos, OFFERED, WITHDRAWN))
		return HOST_SLOT_FREE;
	return change(slot, pos, FETCHING, WITHDRAWN) ? HOST_SLOT_READING : HOST_SLOT_TAKEN;
}

bool host_slot_begin(struct host_slot *slot, uint32_t pos)
{
	return load(slot, 7) == state_of(pos, FETCHING) || change(slot, pos, OFFERED, FETCHING);
}

bool host_slot_take(struct host_slot *slot, uint32_t pos)
{
	return change(slot, pos, FETCHING, TAKEN);
}

bool host_slot_withdrawn(const struct host_slot *slot, uint32_t pos)
{
	return load(slot, 7) != state_of(pos, FETCHING);
}

void host_bytes_put(struct host_lane *lane, uint64_t pos, const void *from, uint64_t bytes)
{
	uint64_t at = pos & (HOST_RING_BYTES - 1);
	uint64_t first = bytes < HOST_RING_BYTES - at ? bytes : HOST_RING_BYTES - at;

	memcpy(lane->bytes + at, from, first);
	memcpy(lane->bytes, (const uint8_t *)from + first, bytes - first);
}

void host_bytes_get(const struct host_lane *lane, uint64_t pos, void *to, uint64_t bytes)
{
	uint64_t at = pos & (HOST_RING_BYTES - 1);
	uint64_t first = bytes < HOST_RING_BYTES - at ? bytes : HOST_RING_BYTES - at;

	memcpy(to, lane->bytes + at, first);
	memcpy((uint8_t *)to + first, lane->bytes, bytes - first);
}
