/* SPDX-License-Identifier: Apache-2.0 */
#ifndef QUEUE_IDPOOL_H
#define QUEUE_IDPOOL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "wimm/status.h"

/* Bounded pool of the indices 0..count - 1. Any thread gets, any thread puts, nobody waits; the one
 * that was put last comes out first, since what it names is still in a cache. */
struct idpool {
	_Atomic uint32_t *below; /* of a free index: the one under it + 1; 0: it is the last */
	uint32_t count;
	/* Upper half: how many gets there were, so that a top that came back is told from one that
	 * stayed. Lower half: the free index on top + 1; 0: none is free. */
	_Alignas(64) _Atomic uint64_t top;
};

/* count: 1..2^30. Returns OK, E_INVAL, E_NOMEM. */
WIMM_MUST_CHECK wimm_status idpool_init(struct idpool *p, uint32_t count);
/* The same with the number of gets starting elsewhere, so that a test sees it wrap around. */
WIMM_MUST_CHECK wimm_status idpool_init_at(struct idpool *p, uint32_t count, uint32_t gets);
void idpool_fini(struct idpool *p);

/* False when no index is free. Blocks: no. */
bool idpool_get(struct idpool *p, uint32_t *out);
/* index: one that was got. Blocks: no. */
void idpool_put(struct idpool *p, uint32_t index);

#endif
