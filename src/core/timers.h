/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CORE_TIMERS_H
#define CORE_TIMERS_H

/* Deadlines of operations: a binary heap over op.deadline_ns, room reserved for every operation at
 * the start, so that adding one never fails. Owned by the worker. */

#include <wimm/status.h>

#include <stdint.h>

struct op;

struct timers {
	struct op **heap; /* heap[1..count] */
	uint32_t count;
};

wimm_status timers_init(struct timers *t, uint32_t max_ops);
void timers_fini(struct timers *t);
void timers_add(struct timers *t, struct op *op);
void timers_remove(struct timers *t, struct op *op); /* no effect when it is not in */
struct op *timers_pop_due(struct timers *t, uint64_t now_ns);
uint64_t timers_next_ns(const struct timers *t);

#endif
