/* SPDX-License-Identifier: Apache-2.0 */
#include "core/timers.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "core/op.h"
#include "plat/clock.h"

wimm_status timers_init(struct timers *t, uint32_t max_ops)
{
	t->count = 0;
	t->heap = mem_calloc((size_t)max_ops + 1, sizeof(*t->heap));
	return t->heap != NULL ? WIMM_OK : WIMM_E_NOMEM;
}

void timers_fini(struct timers *t)
{
	mem_free(t->heap);
	t->heap = NULL;
}

static void place(struct timers *t, uint32_t i, struct op *op)
{
	t->heap[i] = op;
	op->heap_index = i;
}

static void sift_up(struct timers *t, uint32_t i, struct op *op)
{
	while (i > 1 && t->heap[i / 2]->deadline_ns > op->deadline_ns) {
		place(t, i, t->heap[i / 2]);
		i /= 2;
	}
	place(t, i, op);
}

static void sift_down(struct timers *t, uint32_t i, struct op *op)
{
	for (;;) {
		uint32_t child = 2 * i;

		if (child > t->count)
			break;
		if (child < t->count &&
		    t->heap[child + 1]->deadline_ns < t->heap[child]->deadline_ns)
			child++;
		if (t->heap[child]->deadline_ns >= op->deadline_ns)
			break;
		place(t, i, t->heap[child]);
		i = child;
	}
	place(t, i, op);
}

void timers_add(struct timers *t, struct op *op)
{
	DASSERT(op->heap_index == 0);
	t->count++;
	sift_up(t, t->count, op);
}

void timers_remove(struct timers *t, struct op *op)
{
	uint32_t i = op->heap_index;
	struct op *last;

	if (i == 0)
		return;
	op->heap_index = 0;
	last = t->heap[t->count--];
	if (last == op)
		return;
	if (i > 1 && t->heap[i / 2]->deadline_ns > last->deadline_ns)
		sift_up(t, i, last);
	else
		sift_down(t, i, last);
}

struct op *timers_pop_due(struct timers *t, uint64_t now_ns)
{
	struct op *op;

	if (t->count == 0 || t->heap[1]->deadline_ns > now_ns)
		return NULL;
	op = t->heap[1];
	timers_remove(t, op);
	return op;
}

uint64_t timers_next_ns(const struct timers *t)
{
	return t->count == 0 ? CLOCK_NEVER_NS : t->heap[1]->deadline_ns;
}
