/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KV_PLAN_H
#define KV_PLAN_H

#include "kv/map.h"

#include <wimm/kv.h>

/* What is written for one segment of a request. The layouts are checked and fit, every page is
 * within its own. */
struct kv_job {
	const struct wimm_kv_layout *src, *dst;
	const struct wimm_kv_segment *segment;
	const uint32_t *src_pages, *dst_pages;
	uint32_t src_skip_tokens; /* of the first source page: before the request's first token */
	struct kv_units units;
	uint64_t group; /* units whose like pieces share an immediate; 1: each piece has its own */
};

/* The places of a unit that a segment's pieces start at: parts times heads times tokens. */
struct kv_places {
	uint32_t parts, heads, tokens;
};

/* One paged write a layer and chunk: where its pieces lie on both sides, counted from the layer. */
struct kv_lane {
	uint32_t *src; /* unit by unit, `entries` each; part of the plan's block */
	uint32_t *dst;
	uint64_t src_offset_bytes;
	uint64_t dst_offset_bytes;
};

/* The unit in which the prompt ends: its pieces are shorter, so that no byte beyond is touched. */
struct kv_end {
	uint32_t calls; /* a layer takes; 0: there is no such unit */
	uint32_t tokens;
	uint32_t unit_tokens;
	uint32_t heads;
	struct kv_cut cut;
	bool by_token; /* no cut, and the run is token by token */
	uint64_t row_bytes;
	struct {
		uint64_t offset_bytes, part_bytes, head_bytes, token_bytes;
	} src, dst;
	uint32_t *count; /* 0, 1, 2...; part of the plan's block */
};

/* How one segment of a request is written: usually one lane that holds K and V of every unit, so
 * that a layer is one call. Where the strides have no useful common unit, and in groups, each part
 * and piece of a unit has a lane of its own. Fixed after kv_plan_init(), and kv_plan_tell() for the
 * source. */
struct kv_plan {
	struct wimm_kv_layout src; /* the sender's */
	uint32_t src_skip_tokens;
	uint32_t unit_tokens;
	struct kv_places places;
	bool joined; /* one lane, whose indices count steps */
	uint64_t units; /* whole ones */
	uint64_t group;
	uint64_t entries; /* of a unit in each lane */
	uint32_t lanes;
	uint64_t piece_bytes;
	uint64_t src_stride_bytes;
	uint64_t dst_stride_bytes;
	uint64_t src_layer_bytes;
	uint64_t dst_layer_bytes;
	struct kv_lane *lane;
	struct kv_end end;
	uint32_t *indices;
	struct wimm_page_list *list; /* the first lane's, or NULL; the others have the same */
};

/* src_pages may be NULL: they are told before kv_plan_fill() reads them. Returns: OK, E_NOMEM,
 * E_LIMIT. */
wimm_status kv_plan_init(struct kv_plan *plan, const struct kv_job *job);
/* Hand the lanes' indices to the engine for good, if it takes them: the source must be known. */
void kv_plan_keep(struct kv_plan *plan, struct wimm_engine *engine, const struct wimm_mr *src);
/* Set where units first..end come from; pages: from the request's first on, all that they need. */
void kv_plan_tell(struct kv_plan *plan, const uint32_t *pages, uint64_t first, uint64_t end);
void kv_plan_fini(struct kv_plan *plan); /* also of a zeroed one */

/* Units, with the one in which the prompt ends. */
uint64_t kv_plan_total(const struct kv_plan *plan);
/* Writes that units first..end of a layer take. With groups both are ends of one, or the total. */
uint64_t kv_plan_calls(const struct kv_plan *plan, uint64_t first, uint64_t end);
/* Set what one of them says of places, lengths and flags.  Returns: immediates it counts. */
uint64_t kv_plan_fill(const struct kv_plan *plan, uint32_t layer, uint64_t first, uint64_t end,
                      uint64_t call, struct wimm_paged_writes *out);

#endif
