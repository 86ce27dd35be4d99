/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MEM_CUDA_H
#define MEM_CUDA_H

/* The memory kind cuda: what a pointer is, memory that a card can reach, what leaves the process.
 * Pinned host memory and managed memory count as host memory: the CPU can read and write them.
 * Thread: any, unless a line says otherwise. */

#include "mem/cuda_lib.h"

#include <stdbool.h>

#define MEM_CUDA_MAX_DEVICES 64
#define MEM_CUDA_TEXT_BYTES  256

/* A range of device memory. */
struct mem_cuda_range {
	int device;
	uint64_t base; /* of the allocation, or of the mapping */
	uint64_t base_bytes;
	bool vmm;       /* mapped by cuMemMap(): exported as a file descriptor */
	bool whole;     /* one allocation or mapping holds all of the range asked for */
};

/* Whether [addr, addr + len_bytes) is device memory, and of which kind. OK: *out_is_cuda and, if
 * so, *out are set. E_RANGE: it begins in device memory and ends outside; `text` has both. */
WIMM_MUST_CHECK wimm_status mem_cuda_describe(const void *addr, uint64_t len_bytes,
                                              bool *out_is_cuda, struct mem_cuda_range *out,
                                              char *text, size_t text_bytes);

/* Make the primary context of a device current on this thread until mem_cuda_leave(). Meanwhile its
 * calls do not end a capture into a graph that another thread is making.
 * Returns OK, E_UNSUPPORTED (no driver in use, or no such device). */
WIMM_MUST_CHECK wimm_status mem_cuda_enter(int device, const struct cuda_lib **out_lib);
/* The same with a context that is there. */
WIMM_MUST_CHECK cu_result mem_cuda_enter_ctx(const struct cuda_lib *lib, struct cu_ctx *ctx);
void mem_cuda_leave(const struct cuda_lib *lib);
/* Where a device sits, and back; -1: not visible to this process. */
uint64_t mem_cuda_pci(int device);
int mem_cuda_device_at(uint64_t pci);
/* A device whose primary context this process uses; -1: none. */
int mem_cuda_active_device(void);

/* A descriptor of the range for NICs (dma-buf): the caller's to close. *out_offset: where the range
 * begins in it, since only whole pages are exported.
 * Returns OK, E_UNSUPPORTED (the driver or the card cannot), E_SYSTEM; `text` says why. */
WIMM_MUST_CHECK wimm_status mem_cuda_dmabuf(const void *addr, uint64_t len_bytes, int *out_fd,
                                            uint64_t *out_offset, char *text, size_t text_bytes);

/* What another process needs to map a range: a handle, or (vmm) a descriptor of the caller's. */
struct mem_cuda_export {
	bool vmm;
	uint64_t pci; /* which GPU; devices are numbered by each process for itself */
	struct cu_ipc_handle handle;
	int fd;          /* -1: none */
	uint64_t offset; /* of the range */
	uint64_t bytes;  /* of all that is mapped */
};
/* Whether there is such a thing: not of a range of several mappings, nor of the memory pools of
 * cuMemAllocAsync(). */
bool mem_cuda_exportable(const void *addr, uint64_t len_bytes);
WIMM_MUST_CHECK wimm_status mem_cuda_export(const void *addr, uint64_t len_bytes,
                                            struct mem_cuda_export *out, char *text,
                                            size_t text_bytes);
/* Map it here. An export of this very process is not for this call. */
struct mem_cuda_map {
	bool vmm;
	int device;
	cu_ptr base;
	uint64_t bytes;
	uint64_t handle; /* vmm */
};
WIMM_MUST_CHECK wimm_status mem_cuda_import(const struct mem_cuda_export *given,
                                            struct mem_cuda_map *out, char *text,
                                            size_t text_bytes);
void mem_cuda_unmap(const struct mem_cuda_map *map);

#endif
