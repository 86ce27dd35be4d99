/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KV_MAP_H
#define KV_MAP_H

#include <stdbool.h>

#include <wimm/kv.h>

/* The segments of a decode rank one after the other, none of them stored: start with { 0 }. */
struct kv_map_step {
	uint32_t next_head; /* of the decode rank */
};
/* The caller has compared the two. False: there are no more. */
bool kv_map_next(const struct wimm_kv_layout *prefill, const struct wimm_kv_layout *decode,
                 struct kv_map_step *step, struct wimm_kv_segment *out);
/* The one segment from a prefill rank. False: it has none for this decode rank. */
bool kv_map_from(const struct wimm_kv_layout *prefill, const struct wimm_kv_layout *decode,
                 uint32_t src_rank, struct wimm_kv_segment *out);

/* How a segment's part of a page is cut: one piece a head, one a token, both or neither. */
struct kv_cut {
	bool by_head;
	bool by_token;
};
struct kv_cut kv_map_cut(const struct wimm_kv_layout *prefill, const struct wimm_kv_layout *decode,
                         uint32_t heads);

#endif
