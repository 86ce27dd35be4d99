/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MEM_SHARED_H
#define MEM_SHARED_H

#include <stddef.h>
#include <stdint.h>

#include <wimm/status.h>

/* Memory of wimm's own making: one memfd an allocation, so that it can be given to processes of
 * this machine one by one, and taken back from all of them. The process's list of them is behind
 * one lock; nothing here is for the data path. Thread: any. */

struct mem_shared;

/* What one looks like at the moment; changes only in mem_shared_fence(). */
struct mem_shared_view {
	uint8_t *addr;
	size_t len_bytes;
	int fd; /* borrowed */
};

/* Zero-filled, page-aligned, huge pages asked for; not inherited by a fork.
 * Returns OK, E_NOMEM, E_SYSTEM; *out_errno: why. */
WIMM_MUST_CHECK wimm_status mem_shared_alloc(size_t len_bytes, void **out, int *out_errno);
/* Returns OK, E_INVAL (no address that mem_shared_alloc() returned), E_BUSY (held), E_FORKED. */
WIMM_MUST_CHECK wimm_status mem_shared_free(void *addr);

/* The allocation that holds the whole range, held until put; NULL: there is none. */
struct mem_shared *mem_shared_get(const void *addr, uint64_t len_bytes);
void mem_shared_put(struct mem_shared *m);
void mem_shared_view(const struct mem_shared *m, struct mem_shared_view *out);

/* Move the content to a fresh memfd mapped at the same address: whoever mapped the old one can
 * write into it for ever, and reaches nothing here. What other threads of this process write
 * meanwhile may be lost. The caller sees to it that nobody else is reading the view. Returns OK,
 * E_NOMEM, E_SYSTEM (then nothing has changed). Blocks: copies all of it. */
WIMM_MUST_CHECK wimm_status mem_shared_fence(struct mem_shared *m);

#endif
