/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROV_HOST_MAPS_H
#define PROV_HOST_MAPS_H

/* The writer's side of share.h: regions of the peer that this process may write into itself. Owned
 * by the worker. */

#include "base/hash.h"
#include "mem/cuda.h"
#include "prov/host/ring.h"
#include "prov/host/share.h"

struct host_map {
	uint64_t key;
	uint64_t addr; /* of the region, in its owner */
	uint64_t len_bytes;
	uint8_t kind;  /* enum host_give; NOTHING also while the answer is under way */
	bool answered; /* by the peer */
	uint8_t *base; /* MEMFD, CUDA: the region's first byte here */
	void *map;
	size_t map_bytes;
	bool imported; /* CUDA: `cuda` is what was mapped */
	struct mem_cuda_map cuda;
};

struct host_maps {
	struct hash by_key;  /* of struct host_map */
	struct hash sources; /* the same: what the peer offers, to read only */
	struct host_map *last;
	uint64_t gate; /* all of them were given under it */
	uint64_t writing;
};

wimm_status host_maps_init(struct host_maps *maps);
void host_maps_fini(struct host_maps *maps);
/* Forget them all. */
void host_maps_flush(struct host_maps *maps);
/* A map that holds the range; NULL: none, and if the peer was not asked for the region, it is. */
struct host_map *host_maps_find(struct host_path *path, uint64_t key, uint64_t addr,
                                uint64_t len_bytes);
/* The same for memory of a GPU. *out_refused: there is none, and will be none. */
struct host_map *host_maps_find_gpu(struct host_path *path, uint64_t key, uint64_t addr,
                                    uint64_t len_bytes, bool *out_refused);
/* The same for the source of an offer. No gate guards it: see host_share_give_source(). */
struct host_map *host_maps_source(struct host_path *path, uint64_t key, uint64_t addr,
                                  uint64_t len_bytes, bool *out_refused);
/* A region has ended: unmap it. */
void host_maps_forget(struct host_path *path, uint64_t key);
/* The peer's answers; fd is the caller's. False: it is malformed. */
WIMM_MUST_CHECK bool host_maps_given(struct host_path *path, const struct host_given *given,
                                     int fd);
WIMM_MUST_CHECK bool host_maps_given_source(struct host_path *path, const struct host_given *given,
                                            int fd);

/* Around a copy. False: what was given is void; forget it and ask anew. [H] with [I] and [J] in
 * share.c; the argument is in share.h. */
static inline bool host_maps_enter(struct host_maps *maps, struct host_lane *lane)
{
	atomic_store_explicit(&lane->writing, ++maps->writing, memory_order_seq_cst);
	return atomic_load_explicit(&lane->gate, memory_order_seq_cst) == maps->gate;
}

static inline bool host_maps_leave(struct host_maps *maps, struct host_lane *lane)
{
	atomic_store_explicit(&lane->writing, ++maps->writing, memory_order_seq_cst);
	return atomic_load_explicit(&lane->gate, memory_order_seq_cst) == maps->gate;
}

#endif
