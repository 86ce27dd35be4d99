/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TOOLS_LIB_KVRANK_H
#define TOOLS_LIB_KVRANK_H

/* One process of a run. */

#include "lib/kvrun.h"

#include <wimm/kv.h>

#include <pthread.h>

/* What a rank says of a pass. */
struct kvrank_says {
	uint64_t begin_ns; /* prefill: before its first step */
	uint64_t last_ns;  /* prefill: before its last step */
	uint64_t done_ns;  /* decode: all is there */
	uint64_t immediates, bytes, checked_bytes, group_units;
	double cpu;
};

/* Seen by all processes of a run. */
struct kvrank_shared {
	pthread_barrier_t meet;
	uint64_t layer_ns; /* of the layer-by-layer pass */
	struct kvrank_says says[2 * KVRUN_RANKS_MAX];
	uint64_t request_room;
	uint64_t request_bytes[KVRUN_RANKS_MAX];
	uint8_t requests[]; /* request_room each */
};

enum kvrank_pass {
	KVRANK_FIRST, /* a page, so that all is connected */
	KVRANK_ALONE, /* nothing leaves before all is computed */
	KVRANK_LAYERS,
};

struct kvrank {
	const struct kvrun_spec *spec;
	struct kvrank_shared *shared;
	enum kvrun_side side;
	uint32_t rank;
	uint32_t layers; /* at a time */
	/* Filled by kvrank_open(). */
	struct wimm_engine *engine;
	struct wimm_mr *mr;
	struct wimm_kv_cache *cache;
	struct wimm_kv_watch *watch;
	struct wimm_kv_layout layout[KVRUN_SIDES]; /* this side's is this rank's */
	uint32_t *pages;
	uint8_t *memory;
	uint64_t memory_bytes;
};

/* A rank's layout of so many layers. */
struct wimm_kv_layout kvrank_layout(const struct kvrun_spec *spec, enum kvrun_side side,
                                    uint32_t rank, uint32_t layers);
void kvrank_open(struct kvrank *r);
/* One prompt of so many tokens; every rank makes the same call. */
void kvrank_pass(struct kvrank *r, enum kvrank_pass pass, uint64_t tokens);
void kvrank_close(struct kvrank *r);

/* --- kvbytes.c --- */
/* Put what each place of the model holds into this rank's cache. */
void kvbytes_fill(const struct kvrank *r);
/* Bytes beyond those of the tokens must be as kvbytes_poison() left them. Dies of a wrong byte.
 * Returns: bytes compared. */
uint64_t kvbytes_check(const struct kvrank *r, uint64_t tokens);
void kvbytes_poison(const struct kvrank *r);

#endif
