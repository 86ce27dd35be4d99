/* SPDX-License-Identifier: Apache-2.0 */
#include "prov/regions.h"

#include "base/alloc.h"
#include "plat/thread.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

wimm_status prov_regions_init(struct prov_regions *r, uint32_t count)
{
	memset(r, 0, sizeof(*r));
	r->slots = mem_calloc(count, sizeof(*r->slots));
	if (!r->slots)
		return WIMM_E_NOMEM;
	r->count = count;
	return WIMM_OK;
}

void prov_regions_fini(struct prov_regions *r)
{
	mem_free(r->slots);
	r->slots = NULL;
}

wimm_status prov_regions_add(struct prov_regions *r, void *addr, uint64_t len_bytes, bool remote,
                             uint64_t key)
{
	uint32_t index = PROV_KEY_SLOT(key);
	struct prov_region *slot;

	if (PROV_KEY_GENERATION(key) == 0 || len_bytes == 0 ||
	    len_bytes - 1 > UINT64_MAX - (uint64_t)(uintptr_t)addr)
		return WIMM_E_INVAL;
	if (index >= r->count)
		return WIMM_E_LIMIT;
	slot = &r->slots[index];
	if (atomic_load_explicit(&slot->key, memory_order_relaxed) != 0)
		return WIMM_E_BUSY;
	slot->addr = addr;
	slot->len_bytes = len_bytes;
	slot->remote = remote;
	/* [F] with [G] in prov_regions_check(): the fields are there before the key is. */
	atomic_store_explicit(&slot->key, key, memory_order_release);
	return WIMM_OK;
}

void prov_regions_remove(struct prov_regions *r, uint64_t key)
{
	uint32_t index = PROV_KEY_SLOT(key);
	uint64_t seen;

	if (index >= r->count ||
	    atomic_load_explicit(&r->slots[index].key, memory_order_relaxed) != key)
		return;
	/* [E] with [D] and [G]: seen by every stay that [B] below does not see. */
	atomic_store_explicit(&r->slots[index].key, 0, memory_order_seq_cst);
	atomic_fetch_add_explicit(&r->removals, 1, memory_order_seq_cst);
	/* [B] with [A] and [C]. */
	seen = atomic_load_explicit(&r->placing, memory_order_seq_cst);
	if (seen % 2 == 0)
		return;
	while (atomic_load_explicit(&r->placing, memory_order_acquire) == seen)
		plat_thread_yield();
}

wimm_status prov_regions_check(const struct prov_regions *r, uint64_t key, uint64_t addr,
                               uint64_t len_bytes)
{
	uint32_t index = PROV_KEY_SLOT(key);
	const struct prov_region *slot;
	uint64_t offset;

	if (index >= r->count || key == 0)
		return WIMM_E_REVOKED;
	slot = &r->slots[index];
	/* [G] with [F] and [E]; sequentially consistent for the argument in region.h. */
	if (atomic_load_explicit(&slot->key, memory_order_seq_cst) != key)
		return WIMM_E_REVOKED;
	if (!slot->remote)
		return WIMM_E_PROTOCOL;
	offset =
		addr - (uint64_t)(uintptr_t)slot->addr; /* wraps to something huge below the base */
	if (offset > slot->len_bytes || len_bytes > slot->len_bytes - offset)
		return WIMM_E_RANGE;
	return WIMM_OK;
}

bool prov_regions_find_own(const struct prov_regions *r, uint64_t key, uint64_t *out_addr,
                           uint64_t *out_len_bytes)
{
	uint32_t index = PROV_KEY_SLOT(key);
	const struct prov_region *slot;

	if (index >= r->count || key == 0)
		return false;
	slot = &r->slots[index];
	/* [G] as in prov_regions_check(). */
	if (atomic_load_explicit(&slot->key, memory_order_seq_cst) != key)
		return false;
	*out_addr = (uint64_t)(uintptr_t)slot->addr;
	*out_len_bytes = slot->len_bytes;
	return true;
}

bool prov_regions_find(const struct prov_regions *r, uint64_t key, uint64_t *out_addr,
                       uint64_t *out_len_bytes)
{
	return prov_regions_find_own(r, key, out_addr, out_len_bytes) &&
	       r->slots[PROV_KEY_SLOT(key)].remote;
}

void prov_regions_explain(const struct prov_regions *r, uint64_t key, uint64_t addr,
                          uint64_t len_bytes, char *text, size_t text_bytes)
{
	uint32_t index = PROV_KEY_SLOT(key);
	const struct prov_region *slot;
	uint64_t now;

	if (index >= r->count) {
		(void)snprintf(text, text_bytes,
		               "key names region %" PRIu32 " of a table of %" PRIu32, index,
		               r->count);
		return;
	}
	slot = &r->slots[index];
	now = atomic_load_explicit(&slot->key, memory_order_seq_cst);
	if (now == 0) {
		(void)snprintf(text, text_bytes,
		               "region %" PRIu32 " generation %08" PRIx32
		               " is not registered any more",
		               index, PROV_KEY_GENERATION(key));
	} else if (now != key) {
		(void)snprintf(text, text_bytes,
		               "region %" PRIu32 " has generation %08" PRIx32
		               ", the write's key says %08" PRIx32,
		               index, PROV_KEY_GENERATION(now), PROV_KEY_GENERATION(key));
	} else if (!slot->remote) {
		(void)snprintf(text, text_bytes, "region %" PRIu32 " is for local use only", index);
	} else {
		(void)snprintf(text, text_bytes,
		               "write of %" PRIu64 " bytes at offset %" PRId64 " of region %" PRIu32
		               ", which has %" PRIu64 " bytes",
		               len_bytes, (int64_t)(addr - (uint64_t)(uintptr_t)slot->addr), index,
		               slot->len_bytes);
	}
}

uint32_t prov_post_pages_none(struct prov_path *path, const struct prov_pages *pages)
{
	(void)path;
	(void)pages;
	return 0;
}

void prov_forget_none(struct prov_path *path, uint64_t remote_key)
{
	(void)path;
	(void)remote_key;
}

void prov_warm_none(struct prov_dev *dev)
{
	(void)dev;
}
