/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KV_PLAN_H
#define KV_PLAN_H

#include <stdbool.h>

#include <wimm/kv.h>

/* One paged write a layer and chunk: where its pieces lie on both sides, counted from the layer. */
struct kv_lane {
	uint32_t *src; /* page by page, `entries` each; part of the plan's block */
	uint32_t *dst;
	uint64_t src_offset_bytes;
	uint64_t dst_offset_bytes;
};

/* The places of a page that a segment's pieces start at: parts times heads times tokens. */
struct kv_places {
	uint32_t parts, heads, tokens;
};

/* How one segment of a request is written: usually one lane that holds K and V of every page, so
 * that a layer is one call. Where the strides have no useful common unit each part and piece of a
 * page has a lane of its own. Fixed after kv_plan_init(), and kv_plan_tell() for its pages. */
struct kv_plan {
	uint64_t pages;
	uint64_t entries; /* of a page in each lane */
	struct kv_places places;
	bool joined; /* one lane, whose indices count units and not pages */
	uint32_t lanes;
	uint64_t piece_bytes;
	uint64_t src_stride_bytes;
	uint64_t dst_stride_bytes;
	uint64_t src_layer_bytes;
	uint64_t dst_layer_bytes;
	struct kv_lane *lane;
	uint32_t *indices;
};

/* The layouts are checked and fit, every page is within its own. src_pages may be NULL: they are
 * told before kv_plan_fill() reads them. Returns: OK, E_NOMEM, E_LIMIT. */
wimm_status kv_plan_init(struct kv_plan *plan, const struct wimm_kv_layout *src,
                         const struct wimm_kv_layout *dst, const struct wimm_kv_segment *segment,
                         const uint32_t *src_pages, const uint32_t *dst_pages, uint64_t pages);
/* Set the source of the request's pages first..first + count; src as given to kv_plan_init(). */
void kv_plan_tell(struct kv_plan *plan, const struct wimm_kv_layout *src, const uint32_t *src_pages,
                  uint64_t first, uint64_t count);
void kv_plan_fini(struct kv_plan *plan); /* also of a zeroed one */

/* Set the parts of a request that write pages first..end of one layer through one lane. */
void kv_plan_fill(const struct kv_plan *plan, uint32_t layer, uint32_t lane, uint64_t first,
                  uint64_t end, struct wimm_paged_writes *out);

#endif
