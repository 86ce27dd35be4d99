/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MEM_GDR_H
#define MEM_GDR_H

/* GDRCopy: memory of a card that the host reads and writes where it is mapped for it. Its library
 * is loaded at run time, by the setting gdrcopy_library; where it or its kernel module is not there
 * words lie in pinned memory of the host instead (word.h). */

#include "mem/cuda.h"

/* Memory of a card, mapped. */
struct gdr_area {
	int device;
	uint64_t bytes;
	uint8_t *host;    /* where the host has it: not for large copies, and written in words */
	cu_ptr card;      /* the same for kernels */
	cu_ptr allocated; /* what is to be freed */
	void *map;
	unsigned long handle;
};

/* Thread: any. Blocks: for the kernel module. OK, or E_UNSUPPORTED; `text` says why. */
WIMM_MUST_CHECK wimm_status gdr_area_open(int device, uint64_t bytes, struct gdr_area *out,
                                          char *text, size_t text_bytes);
void gdr_area_close(const struct gdr_area *area);
/* For people: whether it is there, in which versions, or why not; and the last failure. Loads the
 * library if need be. Thread: any. */
bool gdr_state(char *text, size_t text_bytes);

#endif
