/* SPDX-License-Identifier: Apache-2.0 */
#ifndef QUEUE_IDPOOL_H
#define QUEUE_IDPOOL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "wimm/status.h"

/* Bounded pool of the indices 0..count - 1. Any thread gets, any thread puts; the one that was
 * put longest ago comes out first, so that a stale index stays unused for as long as possible. */
struct idpool_slot {
	_Atomic uint64_t turn; /* == position: free to put; == position + 1: holds an index */
	uint32_t index;
};

struct idpool {
	struct idpool_slot *slots; /* fixed after init, like the next two */
	uint64_t mask_slots;
	uint32_t count;
	_Alignas(64) _Atomic uint64_t get_pos; /* shared by all that get */
	_Alignas(64) _Atomic uint64_t put_pos; /* shared by all that put */
};

/* count: 1..2^30. Returns OK, E_INVAL, E_NOMEM. */
WIMM_MUST_CHECK wimm_status idpool_init(struct idpool *p, uint32_t count);
/* The same with the positions starting elsewhere, so that a test sees them wrap around. */
WIMM_MUST_CHECK wimm_status idpool_init_at(struct idpool *p, uint32_t count, uint64_t start_pos);
void idpool_fini(struct idpool *p);

/* False when no index is free, or while the thread that puts the next one is between its two
 * steps. Blocks: no. */
bool idpool_get(struct idpool *p, uint32_t *out);
/* index: one that was got. Waits (yielding) only for a getter that is half done in the very slot
 * needed, which takes a whole round of the ring to come about. */
void idpool_put(struct idpool *p, uint32_t index);
/* How many are free; exact only while no other thread is active. */
uint32_t idpool_free_hint(const struct idpool *p);

#endif
