/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TOOLS_LIB_KVRUN_H
#define TOOLS_LIB_KVRUN_H

/* One run of `wimm kv bench`: a process for each prefill and each decode rank, with caches of a
 * model's shape, one prompt from all of the ones to all of the others. */

#include "lib/models.h"

#include <stdbool.h>
#include <stdint.h>

#define KVRUN_RANKS_MAX 64

enum kvrun_side {
	KVRUN_PREFILL,
	KVRUN_DECODE,
	KVRUN_SIDES,
};

struct kvrun_spec {
	const struct model *model;
	const char *provider;
	uint32_t nics;
	uint32_t elem_bytes;
	uint32_t tp[KVRUN_SIDES];
	uint64_t page_tokens[KVRUN_SIDES];
	uint64_t tokens;
	uint64_t chunk_tokens; /* 0: all at once */
	uint64_t group_units;  /* as in wimm/kv.h */
	uint64_t layer_us;     /* that a chunk's layer computes; 0: as long as its transfer takes */
	uint64_t memory_bytes; /* for all caches together */
	bool in_order;         /* pages in a row, else in a random order */
	bool validate;
};

struct kvrun_result {
	uint32_t layers_at_a_time; /* fewer than the model's: folded */
	uint32_t requests;         /* of so many layers each, that one prompt became */
	uint64_t pages;            /* of a decode rank */
	uint64_t immediates;       /* of all decode ranks */
	uint64_t bytes;
	uint64_t checked_bytes;
	uint64_t group_units;
	double seconds; /* of the transfer alone */
	double compute; /* seconds waited for compute in the layer-by-layer pass */
	double exposed; /* seconds of that pass after the last layer was computed */
	double cpu;     /* seconds of all ranks, of the transfer alone */
	double setup;   /* seconds until the first byte: processes, engines, first connection */
};

/* Layers that fit into the memory; 0: not even one. *out_bytes: what one takes. */
uint32_t kvrun_fit(const struct kvrun_spec *spec, uint64_t *out_bytes);
/* NULL, or what is wrong with it, in words. */
const char *kvrun_fault(const struct kvrun_spec *spec);
/* Ends the program when a rank fails, which has said why. */
void kvrun(const struct kvrun_spec *spec, struct kvrun_result *out);

#endif
