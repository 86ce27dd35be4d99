/* SPDX-License-Identifier: Apache-2.0 */
#include "base/hash.h"

#include "base/alloc.h"

enum { HASH_MIN_SLOTS = 16 };
#define HASH_MAX_SLOTS (UINT32_C(1) << 31)

/* Two rounds of multiply and shift (the finaliser of splitmix64) spread every input bit. */
static uint32_t home_of(const struct hash *h, uint64_t key)
{
	uint64_t x = key ^ h->seed;

	x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
	x ^= x >> 31;
	return (uint32_t)x & h->mask_slots;
}

/* The slot of the key, or the free one where it belongs. The map has a free slot. */
static uint32_t slot_of(const struct hash *h, uint64_t key)
{
	uint32_t i = home_of(h, key);

	while (h->used[i] && h->slots[i].key != key)
		i = (i + 1) & h->mask_slots;
	return i;
}

void hash_init(struct hash *h, uint64_t seed)
{
	*h = (struct hash){ .seed = seed };
}

void hash_fini(struct hash *h)
{
	mem_free(h->slots);
	mem_free(h->used);
	*h = (struct hash){ .seed = h->seed };
}

static wimm_status resize(struct hash *h, uint32_t slots)
{
	struct hash grown = { .seed = h->seed, .mask_slots = slots - 1, .count = h->count };

	grown.slots = mem_alloc(slots * sizeof(*grown.slots));
	if (!grown.slots)
		return WIMM_E_NOMEM;
	grown.used = mem_calloc(slots, 1);
	if (!grown.used) {
		mem_free(grown.slots);
		return WIMM_E_NOMEM;
	}
	for (uint32_t i = 0; h->slots && i <= h->mask_slots; i++) {
		if (h->used[i]) {
			uint32_t to = slot_of(&grown, h->slots[i].key);

			grown.slots[to] = h->slots[i];
			grown.used[to] = 1;
		}
	}
	mem_free(h->slots);
	mem_free(h->used);
	*h = grown;
	return WIMM_OK;
}

wimm_status hash_reserve(struct hash *h, uint32_t count)
{
	uint64_t need = (uint64_t)count + count / 2 + 1; /* at most two thirds full */
	uint64_t slots = h->slots ? (uint64_t)h->mask_slots + 1 : HASH_MIN_SLOTS;

	while (slots < need)
		slots *= 2;
	if (slots > HASH_MAX_SLOTS)
		return WIMM_E_NOMEM;
	if (h->slots && slots == (uint64_t)h->mask_slots + 1)
		return WIMM_OK;
	return resize(h, (uint32_t)slots);
}

wimm_status hash_insert(struct hash *h, uint64_t key, uint64_t value)
{
	wimm_status st;
	uint32_t i;

	if (h->slots) {
		i = slot_of(h, key);
		if (h->used[i]) {
			h->slots[i].value = value;
			return WIMM_OK;
		}
	}
	st = hash_reserve(h, h->count + 1);
	if (st != WIMM_OK)
		return st;
	i = slot_of(h, key);
	h->slots[i] = (struct hash_slot){ key, value };
	h->used[i] = 1;
	h->count++;
	return WIMM_OK;
}

bool hash_find(const struct hash *h, uint64_t key, uint64_t *out)
{
	uint32_t i;

	if (h->count == 0)
		return false;
	i = slot_of(h, key);
	if (!h->used[i])
		return false;
	if (out)
		*out = h->slots[i].value;
	return true;
}

bool hash_remove(struct hash *h, uint64_t key)
{
	uint32_t hole;

	if (h->count == 0)
		return false;
	hole = slot_of(h, key);
	if (!h->used[hole])
		return false;
	/* Close the gap: whatever sits behind it and may not be reached past a hole moves up. */
	for (uint32_t i = (hole + 1) & h->mask_slots; h->used[i]; i = (i + 1) & h->mask_slots) {
		uint32_t from_home = (i - home_of(h, h->slots[i].key)) & h->mask_slots;

		if (from_home >= ((i - hole) & h->mask_slots)) {
			h->slots[hole] = h->slots[i];
			hole = i;
		}
	}
	h->used[hole] = 0;
	h->count--;
	return true;
}

bool hash_next(const struct hash *h, uint32_t *cursor, uint64_t *out_key, uint64_t *out_value)
{
	if (h->count == 0)
		return false;
	for (uint32_t i = *cursor; i <= h->mask_slots; i++) {
		if (h->used[i]) {
			*cursor = i + 1;
			*out_key = h->slots[i].key;
			*out_value = h->slots[i].value;
			return true;
		}
	}
	*cursor = h->mask_slots + 1;
	return false;
}

wimm_status hash_insert_ptr(struct hash *h, uint64_t key, void *value)
{
	return hash_insert(h, key, (uint64_t)(uintptr_t)value);
}

void *hash_find_ptr(const struct hash *h, uint64_t key)
{
	uint64_t value;

	return hash_find(h, key, &value) ? (void *)(uintptr_t)value : NULL;
}
