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

/* How a segment's part of a unit is cut: one piece a head, one a token, both or neither. */
struct kv_cut {
	bool by_head;
	bool by_token;
};
struct kv_cut kv_map_cut(const struct wimm_kv_layout *prefill, const struct wimm_kv_layout *decode,
                         uint32_t heads);

/* What travels for a request, counted in units of wimm_kv_unit_tokens(). */
struct kv_units {
	uint32_t tokens;      /* of a unit */
	uint64_t whole;       /* full ones */
	uint32_t last_tokens; /* of one more, in which the prompt ends; 0: there is none */
};
struct kv_units kv_map_units(const struct wimm_kv_layout *prefill,
                             const struct wimm_kv_layout *decode, uint64_t first_token,
                             uint64_t tokens);
/* What wimm_kv_count() counts by: units, or groups of them that share an immediate a piece. The
 * unit in which the prompt ends is by itself. */
uint64_t kv_map_groups(const struct kv_units *units, uint64_t group);

/* What wimm_kv_count() gives for a request, of a prefill side that may differ from what it says. */
wimm_status kv_map_count(const struct wimm_kv_layout *prefill, const struct wimm_kv_request *r,
                         uint32_t src_rank, uint64_t *out, struct wimm_error_info *error);

#endif
