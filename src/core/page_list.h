/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CORE_PAGE_LIST_H
#define CORE_PAGE_LIST_H

#include <wimm/transfer.h>

#include <stdatomic.h>
#include <stdbool.h>

/* Fixed after wimm_page_list_open(), but for refs. */
struct wimm_page_list {
	const struct wimm_engine *engine; /* only compared: it may be closed by now */
	_Atomic uint32_t refs; /* the application's, and one of each operation that reads it */
	uint32_t fork_epoch;
	bool pinned; /* where a GPU reads it */
	uint64_t count;
	uint32_t src_most, dst_most;
	uint32_t *indices; /* count of the source, then count of the destination */
};

/* Copy indices. Returns the greatest of the copy. */
uint32_t indices_copy(uint32_t *to, const uint32_t *from, uint64_t count);
/* Whether the pages of one side lie within `total` bytes. most: no less than any of their indices;
 * where there are others beside them, `indices` are the pages' own, else NULL. *out_bytes: from
 * index 0 to the end of the page of the greatest. OK or E_RANGE, with a text that names it. */
wimm_status indices_check(const char *side, const struct wimm_pages *pages, const uint32_t *indices,
                          uint64_t count, uint32_t most, uint64_t page_len, uint64_t total,
                          uint64_t *out_bytes);

/* OK, E_INVAL or E_RANGE, with a text. */
wimm_status page_list_check(const struct wimm_engine *engine, const struct wimm_page_list *list,
                            uint64_t first, uint64_t count);
void page_list_ref(struct wimm_page_list *list);
void page_list_unref(struct wimm_page_list *list);

#endif
