/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_HASH_H
#define BASE_HASH_H

#include <stdbool.h>
#include <stdint.h>

#include "wimm/status.h"

/* Open-addressing map of uint64_t to uint64_t (or a pointer, through the _ptr forms). Every key
 * and value is legal. Not thread-safe: one owner. Removing leaves no tombstones. */
struct hash_slot {
	uint64_t key;
	uint64_t value;
};

struct hash {
	struct hash_slot *slots;
	uint8_t *used; /* one byte a slot */
	uint64_t seed;
	uint32_t mask_slots; /* slots - 1; meaningless while slots is NULL */
	uint32_t count;
};

/* Allocates nothing. seed: random where a peer chooses the keys, so that it cannot make them
 * collide; fixed where runs must repeat. */
void hash_init(struct hash *h, uint64_t seed);
void hash_fini(struct hash *h);

/* Room for `count` keys, so that inserting up to that many never allocates. */
WIMM_MUST_CHECK wimm_status hash_reserve(struct hash *h, uint32_t count);
/* Adds or replaces. E_NOMEM leaves the map as it was. */
WIMM_MUST_CHECK wimm_status hash_insert(struct hash *h, uint64_t key, uint64_t value);
/* *out only when found; out may be NULL. */
bool hash_find(const struct hash *h, uint64_t key, uint64_t *out);
bool hash_remove(struct hash *h, uint64_t key);
/* Walks in slot order: start with *cursor = 0, stop at false. The map must not change meanwhile. */
bool hash_next(const struct hash *h, uint32_t *cursor, uint64_t *out_key, uint64_t *out_value);

WIMM_MUST_CHECK wimm_status hash_insert_ptr(struct hash *h, uint64_t key, void *value);
/* NULL when not found. */
void *hash_find_ptr(const struct hash *h, uint64_t key);

#endif
