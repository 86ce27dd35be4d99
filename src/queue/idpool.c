/* SPDX-License-Identifier: Apache-2.0 */
#include "queue/idpool.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "plat/thread.h"

/* A ring whose slots carry their turn: whoever finds the turn equal to its position owns the slot
 * for one step. Positions run freely; only differences are taken, so wrapping is harmless. */

wimm_status idpool_init(struct idpool *p, uint32_t count)
{
	return idpool_init_at(p, count, 0);
}

wimm_status idpool_init_at(struct idpool *p, uint32_t count, uint64_t start_pos)
{
	uint64_t slots = 2;

	if (count == 0 || count > UINT32_C(1) << 30)
		return WIMM_E_INVAL;
	while (slots < count)
		slots *= 2;
	p->slots = mem_alloc(slots * sizeof(*p->slots));
	if (!p->slots)
		return WIMM_E_NOMEM;
	p->mask_slots = slots - 1;
	p->count = count;
	for (uint64_t i = 0; i < slots; i++) {
		struct idpool_slot *slot = &p->slots[(start_pos + i) & p->mask_slots];

		/* The first `count` hold an index, the rest wait for a put. */
		atomic_init(&slot->turn, start_pos + i + (i < count ? 1 : 0));
		slot->index = (uint32_t)i;
	}
	atomic_init(&p->get_pos, start_pos);
	atomic_init(&p->put_pos, start_pos + count);
	return WIMM_OK;
}

void idpool_fini(struct idpool *p)
{
	mem_free(p->slots);
	p->slots = NULL;
}

bool idpool_get(struct idpool *p, uint32_t *out)
{
	/* Relaxed: a stale position only makes the turn test fail. */
	uint64_t pos = atomic_load_explicit(&p->get_pos, memory_order_relaxed);

	for (;;) {
		struct idpool_slot *slot = &p->slots[pos & p->mask_slots];
		/* [A] with [D] in idpool_put: the index is visible before its turn. */
		uint64_t turn = atomic_load_explicit(&slot->turn, memory_order_acquire);
		int64_t ahead = (int64_t)(turn - (pos + 1));

		if (ahead < 0)
			return false;
		if (ahead > 0) { /* another getter was faster */
			pos = atomic_load_explicit(&p->get_pos, memory_order_relaxed);
			continue;
		}
		/* Relaxed: the swap only decides who; the turn carries the data. */
		if (!atomic_compare_exchange_weak_explicit(
			    &p->get_pos, &pos, pos + 1, memory_order_relaxed, memory_order_relaxed))
			continue;
		*out = slot->index;
		/* [B] with [C] in idpool_put: we have read the slot before it is filled again. */
		atomic_store_explicit(&slot->turn, pos + p->mask_slots + 1, memory_order_release);
		return true;
	}
}

void idpool_put(struct idpool *p, uint32_t index)
{
	/* Relaxed: each putter owns the position it draws. There is room, since no more indices
	 * exist than slots. */
	uint64_t pos = atomic_fetch_add_explicit(&p->put_pos, 1, memory_order_relaxed);
	struct idpool_slot *slot = &p->slots[pos & p->mask_slots];

	DASSERT(index < p->count);
	/* [C] with [B] in idpool_get. */
	while (atomic_load_explicit(&slot->turn, memory_order_acquire) != pos)
		plat_thread_yield();
	slot->index = index;
	/* [D] with [A] in idpool_get. */
	atomic_store_explicit(&slot->turn, pos + 1, memory_order_release);
}

uint32_t idpool_free_hint(const struct idpool *p)
{
	/* Relaxed: a hint. The getters' position first, so that the difference is not negative. */
	uint64_t got = atomic_load_explicit(&p->get_pos, memory_order_relaxed);
	uint64_t put = atomic_load_explicit(&p->put_pos, memory_order_relaxed);

	return put - got > p->count ? p->count : (uint32_t)(put - got);
}
