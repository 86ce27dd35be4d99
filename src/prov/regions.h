/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROV_REGIONS_H
#define PROV_REGIONS_H

#include "prov/prov.h"

#include <stdatomic.h>

/* The regions that peers may write into, by key slot.
 *
 * Why a payload never lands behind dereg, without a lock on the hot path. The worker places bytes
 * only between prov_regions_enter() and prov_regions_leave(). Inside, it first loads `removals`
 * (or, for ranges not checked yet, the slot's key); prov_regions_remove() first clears the key,
 * then counts `removals` up, and only then loads `placing`. All are sequentially consistent,
 * so of the two sides at least one sees the other:
 *  - the worker sees the removal: it checks its ranges again, finds the key gone, places nothing;
 *  - or the remover sees `placing` odd and waits until it changes. One stay is one non-blocking
 *    system call long, so the wait is short however slow the peer is; a frame that is only half
 *    received is checked again at the next stay.
 * A slot's plain fields are written only while its key is 0 and after that wait, so the worker
 * never reads them while they change: it reads them inside a stay, after it saw the key. */
struct prov_region {
	_Atomic uint64_t key; /* 0: free. Stored last on adding, cleared first on removing */
	uint8_t *addr;
	uint64_t len_bytes;
	bool remote;
};

struct prov_regions {
	struct prov_region *slots; /* fixed after init */
	uint32_t count;
	/* Shared: the worker writes, removers read. Odd while the worker may be placing. */
	_Alignas(64) _Atomic uint64_t placing;
	/* Shared: removers write, the worker reads. */
	_Alignas(64) _Atomic uint64_t removals;
};

WIMM_MUST_CHECK wimm_status prov_regions_init(struct prov_regions *r, uint32_t count);
void prov_regions_fini(struct prov_regions *r);

/* Control plane. Returns OK, E_INVAL (generation 0, empty or wrapping range), E_LIMIT (slot outside
 * the table), E_BUSY (slot in use). */
WIMM_MUST_CHECK wimm_status prov_regions_add(struct prov_regions *r, void *addr, uint64_t len_bytes,
                                             bool remote, uint64_t key);
/* Control plane; any thread, the worker's own too. Nothing lands by this key after it returns. */
void prov_regions_remove(struct prov_regions *r, uint64_t key);

/* Worker: the stay in which bytes may be placed. */
static inline void prov_regions_enter(struct prov_regions *r)
{
	/* Only the worker writes it. [A] seq_cst with [B] in prov_regions_remove(). */
	uint64_t v = atomic_load_explicit(&r->placing, memory_order_relaxed);

	atomic_store_explicit(&r->placing, v + 1, memory_order_seq_cst);
}

static inline void prov_regions_leave(struct prov_regions *r)
{
	uint64_t v = atomic_load_explicit(&r->placing, memory_order_relaxed);

	/* [C] with [B]: placing, and reading the slot, is over before the remover goes on. */
	atomic_store_explicit(&r->placing, v + 1, memory_order_release);
}

/* Worker, inside a stay: unchanged since the last check means that what was checked still holds. */
static inline uint64_t prov_regions_removals(const struct prov_regions *r)
{
	/* [D] with [E] in prov_regions_remove(). */
	return atomic_load_explicit(&r->removals, memory_order_seq_cst);
}

/* Worker, inside a stay: may a peer write there? Returns OK, E_REVOKED (no region of that key),
 * E_RANGE, E_PROTOCOL (a region for local use only). */
WIMM_MUST_CHECK wimm_status prov_regions_check(const struct prov_regions *r, uint64_t key,
                                               uint64_t addr, uint64_t len_bytes);
/* The same failure in words. Off the hot path. */
void prov_regions_explain(const struct prov_regions *r, uint64_t key, uint64_t addr,
                          uint64_t len_bytes, char *text, size_t text_bytes);

/* Worker, inside a stay: where a region for peers lies. False: no region of that key, or for local
 * use only. */
bool prov_regions_find(const struct prov_regions *r, uint64_t key, uint64_t *out_addr,
                       uint64_t *out_len_bytes);
/* The same for any region. */
bool prov_regions_find_own(const struct prov_regions *r, uint64_t key, uint64_t *out_addr,
                           uint64_t *out_len_bytes);

#endif
