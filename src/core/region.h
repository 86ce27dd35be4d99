/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CORE_REGION_H
#define CORE_REGION_H

/* Local registrations and the handles of remote ones. Their memory is reused, never returned before
 * the engine closes, so that a stale handle is found out instead of followed. */

#include "core/peer.h"
#include "plat/mutex.h"

enum mr_state { MR_FREE = 0, MR_LIVE, MR_CLOSING };

struct wimm_mr {
	struct request request;        /* REQUEST_DEREG */
	struct delivery delivery;      /* dereg's on_done */
	_Atomic uint32_t public_state; /* enum mr_state */
	_Atomic uint32_t generation;   /* never 0 */
	struct wimm_engine *engine;
	uint32_t slot;

	/* Fixed while it lives. */
	void *addr;
	uint64_t len_bytes;
	uint32_t flags;
	int device; /* the GPU whose memory it is; -1: the host's */
	uint64_t card; /* where that sits */
	bool apart;    /* nobody else can map it */
	uint64_t key[WIMM_MAX_NICS + 1]; /* of each device */
	struct wimm_on_done on_done;

	/* Owned by the worker. */
	struct list link;   /* worker.deregs */
	uint32_t refs;      /* operations that have it as their source */
	uint32_t acks_left; /* sessions that have not acknowledged the revocation */
	bool revoking;
	uint8_t *acked; /* one bit a peer slot that still owes an acknowledgement */
};

static inline bool mr_usable(const struct wimm_engine *engine, const struct wimm_mr *mr)
{
	/* [D] with [C] in wimm_reg_mr(). */
	return mr != NULL && mr->engine == engine &&
	       atomic_load_explicit(&mr->public_state, memory_order_acquire) == MR_LIVE;
}

/* Worker: whether an operation may still take this region, of that life, for its source. With [C]
 * in wimm_reg_mr(): the state first, so that the generation is not the older one. The end of a life
 * is the worker's to begin; once it has, the region waits for those that came before alone. */
static inline bool mr_holds(const struct wimm_mr *mr, uint32_t generation)
{
	return atomic_load_explicit(&mr->public_state, memory_order_acquire) != MR_FREE &&
	       atomic_load_explicit(&mr->generation, memory_order_relaxed) == generation &&
	       !list_linked(&mr->link);
}

struct region_table {
	_Atomic(struct wimm_mr *) *slot;
	uint32_t max;
	uint32_t used;  /* slots ever handed out */
	uint32_t *free; /* stack */
	uint32_t free_count;
	_Atomic uint64_t live;
	struct wimm_remote_mr **remote; /* the worker's */
	uint32_t remote_used, remote_max;
	uint32_t *remote_free;
	uint32_t remote_free_count;
};

wimm_status region_table_init(struct region_table *t, uint32_t max);
void region_table_fini(struct region_table *t);
void remotes_fini(struct region_table *t);

#endif
