/* SPDX-License-Identifier: Apache-2.0 */
#include "queue/idpool.h"

#include "base/alloc.h"
#include "base/assert.h"

/* A stack whose links are indices. All that changes `top` is a read-modify-write, so an acquire of
 * it synchronizes with every put before, not only with the last. */

#define ONE_GET (UINT64_C(1) << 32)

static uint32_t name_of(uint64_t top)
{
	return (uint32_t)top;
}

wimm_status idpool_init(struct idpool *p, uint32_t count)
{
	return idpool_init_at(p, count, 0);
}

wimm_status idpool_init_at(struct idpool *p, uint32_t count, uint32_t gets)
{
	if (count == 0 || count > UINT32_C(1) << 30)
		return WIMM_E_INVAL;
	p->below = mem_alloc(count * sizeof(*p->below));
	if (!p->below)
		return WIMM_E_NOMEM;
	p->count = count;
	for (uint32_t i = 0; i < count; i++)
		atomic_init(&p->below[i], i + 1 < count ? i + 2 : 0);
	atomic_init(&p->top, gets * ONE_GET | 1);
	return WIMM_OK;
}

void idpool_fini(struct idpool *p)
{
	mem_free((void *)p->below);
	p->below = NULL;
}

bool idpool_get(struct idpool *p, uint32_t *out)
{
	/* [A] with [B] in idpool_put: its link, and all that was done with it before. */
	uint64_t top = atomic_load_explicit(&p->top, memory_order_acquire);
	uint64_t next;

	do {
		if (name_of(top) == 0)
			return false;
		/* Relaxed: another getter may have it by now and put it elsewhere; then the number
		 * of gets is another and the swap fails. */
		next = ((top & ~(ONE_GET - 1)) + ONE_GET) |
		       atomic_load_explicit(&p->below[name_of(top) - 1], memory_order_relaxed);
		/* [A] again, for the value that a failure brings. */
	} while (!atomic_compare_exchange_weak_explicit(&p->top, &top, next, memory_order_acquire,
	                                                memory_order_acquire));
	*out = name_of(top) - 1;
	return true;
}

void idpool_put(struct idpool *p, uint32_t index)
{
	/* Relaxed: what lies below is only named, not touched. */
	uint64_t top = atomic_load_explicit(&p->top, memory_order_relaxed);
	uint64_t next;

	DASSERT(index < p->count);
	do {
		atomic_store_explicit(&p->below[index], name_of(top), memory_order_relaxed);
		next = (top & ~(ONE_GET - 1)) | (index + 1);
		/* [B] with [A] in idpool_get. */
	} while (!atomic_compare_exchange_weak_explicit(&p->top, &top, next, memory_order_release,
	                                                memory_order_relaxed));
}
