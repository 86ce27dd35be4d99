/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KV_LAYOUT_H
#define KV_LAYOUT_H

#include <wimm/kv.h>

/* Put words and status into *error, if there is one. Returns status. */
wimm_status kv_error(struct wimm_error_info *error, wimm_status status, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* Ranges of every field but the strides, and that the ranks share the heads evenly. */
wimm_status kv_layout_check(const struct wimm_kv_layout *layout, struct wimm_error_info *error);

/* As the two below see a checked layout. */
struct kv_heads {
	uint32_t first;  /* of the model */
	uint32_t count;  /* this rank's; 1 where several ranks hold the same one */
	uint32_t copies; /* ranks that hold each head */
};
struct kv_heads kv_layout_heads(const struct wimm_kv_layout *layout, uint32_t rank);
uint32_t kv_layout_parts(const struct wimm_kv_layout *layout);
/* Bytes of one head of one token. */
uint64_t kv_layout_row_bytes(const struct wimm_kv_layout *layout);
/* The first field that must agree and does not; words start with `what`. */
wimm_status kv_layout_same(const struct wimm_kv_layout *prefill,
                           const struct wimm_kv_layout *decode, struct wimm_error_info *error);

#endif
