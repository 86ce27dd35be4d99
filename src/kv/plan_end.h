/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KV_PLAN_END_H
#define KV_PLAN_END_H

#include "kv/plan.h"

/* Numbers that its list needs. */
uint64_t kv_plan_end_counts(const struct kv_job *job);
/* All but the place of the source, counted from the layer. */
void kv_plan_end_init(struct kv_end *end, const struct kv_job *job);
void kv_plan_end_tell(struct kv_end *end, uint64_t src_bytes);
/* As kv_plan_fill() does, without the layer. flags is WIMM_IMM. */
void kv_plan_end_fill(const struct kv_end *end, uint32_t call, struct wimm_paged_writes *out);

#endif
