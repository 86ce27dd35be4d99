/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KV_SLOTS_H
#define KV_SLOTS_H

#include <stdbool.h>
#include <stdint.h>

/* Numbers 0..count - 1, the one that was given back longest ago first: what an immediate and a
 * tail's place are chosen by. The caller has the lock. */
struct kv_slots {
	uint32_t *ring;
	uint32_t count;
	uint32_t head;
	uint32_t free;
};

bool kv_slots_init(struct kv_slots *s, uint32_t count); /* false: no memory */
void kv_slots_fini(struct kv_slots *s);                 /* also of a zeroed one */
bool kv_slots_get(struct kv_slots *s, uint32_t *out);
void kv_slots_put(struct kv_slots *s, uint32_t slot);

#endif
