/* SPDX-License-Identifier: Apache-2.0 */
#include "mem/cuda.h"

#include "base/tsa.h"
#include "plat/mutex.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

static struct mutex lock = MUTEX_INIT;
/* Retained when first used and kept: the process's own code uses the same ones. */
static struct cu_ctx *contexts[MEM_CUDA_MAX_DEVICES] TSA(guarded_by(lock));

/* --- contexts --- */

static struct cu_ctx *context_of(const struct cuda_lib *lib, int device)
{
	struct cu_ctx *ctx;

	if (device < 0 || device >= MEM_CUDA_MAX_DEVICES)
		return NULL;
	mutex_lock(&lock);
	if (!contexts[device] && lib->primary_retain(&contexts[device], device) != CU_OK)
		contexts[device] = NULL;
	ctx = contexts[device];
	mutex_unlock(&lock);
	return ctx;
}

/* A thread that captures a stream into a graph forbids, unless it says otherwise, every thread of
 * the process calls such as looking at an event, and loses its graph if one makes them. Ours have
 * nothing to do with its stream. */
static _Thread_local struct {
	uint32_t depth; /* of mem_cuda_enter() */
	int mode;       /* as it was before */
} capture;

cu_result mem_cuda_enter_ctx(const struct cuda_lib *lib, struct cu_ctx *ctx)
{
	cu_result code = lib->ctx_push(ctx);

	if (code != CU_OK || capture.depth++ != 0 || !lib->capture_mode)
		return code;
	capture.mode = CU_CAPTURE_RELAXED;
	(void)lib->capture_mode(&capture.mode);
	return CU_OK;
}

wimm_status mem_cuda_enter(int device, const struct cuda_lib **out_lib)
{
	const struct cuda_lib *lib = cuda_lib_used();
	struct cu_ctx *ctx = lib ? context_of(lib, device) : NULL;

	if (!ctx || mem_cuda_enter_ctx(lib, ctx) != CU_OK)
		return WIMM_E_UNSUPPORTED;
	*out_lib = lib;
	return WIMM_OK;
}

void mem_cuda_leave(const struct cuda_lib *lib)
{
	struct cu_ctx *ctx;

	if (--capture.depth == 0 && lib->capture_mode)
		(void)lib->capture_mode(&capture.mode);
	(void)lib->ctx_pop(&ctx);
}

uint64_t mem_cuda_pci(int device)
{
	const struct cuda_lib *lib = cuda_lib_used();
	int domain = 0, bus = 0, slot = 0;

	if (!lib || lib->device_attribute(&domain, CU_DEV_PCI_DOMAIN, device) != CU_OK ||
	    lib->device_attribute(&bus, CU_DEV_PCI_BUS, device) != CU_OK ||
	    lib->device_attribute(&slot, CU_DEV_PCI_DEVICE, device) != CU_OK)
		return UINT64_MAX;
	return (uint64_t)(uint32_t)domain << 32 | (uint64_t)(uint16_t)bus << 16 | (uint16_t)slot;
}

int mem_cuda_device_at(uint64_t pci)
{
	const struct cuda_lib *lib = cuda_lib_used();
	int count = 0;

	if (!lib || lib->device_count(&count) != CU_OK)
		return -1;
	for (int i = 0; i < count; i++)
		if (mem_cuda_pci(i) == pci)
			return i;
	return -1;
}

int mem_cuda_active_device(void)
{
	const struct cuda_lib *lib = cuda_lib_used();
	int count = 0;

	if (!lib || lib->device_count(&count) != CU_OK)
		return -1;
	for (int i = 0; i < count; i++) {
		unsigned int flags;
		int active = 0;

		if (lib->primary_state(i, &flags, &active) == CU_OK && active)
			return i;
	}
	return -1;
}

/* --- what a pointer is --- */

static bool attribute_u32(const struct cuda_lib *lib, int which, uint64_t addr, uint32_t *out)
{
	return lib->pointer_attribute(out, which, addr) == CU_OK;
}

static bool is_device_memory(const struct cuda_lib *lib, uint64_t addr)
{
	uint32_t type = 0;
	uint32_t managed = 0;

	/* The driver refuses memory it does not know: ordinary memory of the host. */
	if (!attribute_u32(lib, CU_PTR_MEMORY_TYPE, addr, &type) || type != CU_MEMORY_DEVICE)
		return false;
	return !attribute_u32(lib, CU_PTR_IS_MANAGED, addr, &managed) || managed == 0;
}

static bool is_vmm(const struct cuda_lib *lib, uint64_t addr)
{
	uint64_t handle;

	if (!lib->vmm_retain || !lib->vmm_release || !lib->vmm_export ||
	    lib->vmm_retain(&handle, (void *)(uintptr_t)addr) != CU_OK)
		return false;
	(void)lib->vmm_release(handle);
	return true;
}

/* The allocation, or mapping, that holds an address. */
static bool holder_of(const struct cuda_lib *lib, uint64_t addr, bool vmm, uint64_t *out_base,
                      uint64_t *out_bytes)
{
	cu_ptr base = 0;
	size_t bytes = 0;

	/* One reservation may hold many mappings; only a mapping has a handle. */
	if (vmm && lib->pointer_attribute(&base, CU_PTR_MAPPING_BASE, addr) == CU_OK &&
	    lib->pointer_attribute(&bytes, CU_PTR_MAPPING_SIZE, addr) == CU_OK && bytes != 0) {
		*out_base = base;
		*out_bytes = bytes;
		return true;
	}
	if (lib->address_range(&base, &bytes, addr) != CU_OK || bytes == 0)
		return false;
	*out_base = base;
	*out_bytes = bytes;
	return true;
}

/* Inside the device's context. Mappings that follow one another, as PyTorch's expandable segments
 * have them, make one range. */
static wimm_status measure(const struct cuda_lib *lib, uint64_t at, uint64_t len_bytes,
                           struct mem_cuda_range *r, char *text, size_t text_bytes)
{
	uint64_t end = at + len_bytes;

	r->vmm = is_vmm(lib, at);
	if (!holder_of(lib, at, r->vmm, &r->base, &r->base_bytes)) {
		(void)snprintf(text, text_bytes,
		               "cuda: the driver does not know the allocation at %#" PRIx64, at);
		return WIMM_E_INVAL;
	}
	r->whole = end <= r->base + r->base_bytes;
	for (uint64_t next = r->base + r->base_bytes; next < end;) {
		uint64_t base, bytes;

		if (!r->vmm || !is_device_memory(lib, next) ||
		    !holder_of(lib, next, true, &base, &bytes)) {
			(void)snprintf(text, text_bytes,
			               "cuda: %" PRIu64 " bytes at %#" PRIx64 " pass the end of "
			               "the allocation, which holds %" PRIu64 " from there",
			               len_bytes, at, next - at);
			return WIMM_E_RANGE;
		}
		next = base + bytes;
	}
	return WIMM_OK;
}

wimm_status mem_cuda_describe(const void *addr, uint64_t len_bytes, bool *out_is_cuda,
                              struct mem_cuda_range *out, char *text, size_t text_bytes)
{
	const struct cuda_lib *lib = cuda_lib_used();
	uint64_t at = (uint64_t)(uintptr_t)addr;
	struct mem_cuda_range r = { 0 };
	uint32_t device = 0;
	wimm_status st;

	*out_is_cuda = false;
	if (!lib || !is_device_memory(lib, at))
		return WIMM_OK;
	if (!attribute_u32(lib, CU_PTR_DEVICE, at, &device) ||
	    mem_cuda_enter((int)device, &lib) != WIMM_OK) {
		(void)snprintf(text, text_bytes, "cuda: no context of the GPU that has %p", addr);
		return WIMM_E_UNSUPPORTED;
	}
	r.device = (int)device;
	st = measure(lib, at, len_bytes, &r, text, text_bytes);
	mem_cuda_leave(lib);
	if (st != WIMM_OK)
		return st;
	*out = r;
	*out_is_cuda = true;
	return WIMM_OK;
}

/* --- out of the process --- */

static wimm_status fail(char *text, size_t text_bytes, const struct cuda_lib *lib,
                        const char *what, cu_result code)
{
	(void)snprintf(text, text_bytes, "cuda: %s: %s", what, cuda_lib_error(lib, code));
	return WIMM_E_UNSUPPORTED;
}

static wimm_status describe_device(const void *addr, uint64_t len_bytes, struct mem_cuda_range *out,
                                   char *text, size_t text_bytes)
{
	bool is_cuda;
	wimm_status st = mem_cuda_describe(addr, len_bytes, &is_cuda, out, text, text_bytes);

	if (st != WIMM_OK || is_cuda)
		return st;
	(void)snprintf(text, text_bytes, "cuda: %p is no device memory", addr);
	return WIMM_E_INVAL;
}

wimm_status mem_cuda_dmabuf(const void *addr, uint64_t len_bytes, int *out_fd, uint64_t *out_offset,
                            char *text, size_t text_bytes)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t at = (uint64_t)(uintptr_t)addr;
	uint64_t from = at / page * page;
	uint64_t to = (at + len_bytes + page - 1) / page * page;
	const struct cuda_lib *lib;
	struct mem_cuda_range range;
	cu_result code;
	wimm_status st = describe_device(addr, len_bytes, &range, text, text_bytes);
	int fd = -1;

	if (st == WIMM_OK)
		st = mem_cuda_enter(range.device, &lib);
	if (st != WIMM_OK)
		return st;
	if (!lib->handle_for_range) {
		(void)snprintf(text, text_bytes, "cuda: this driver exports no dma-buf");
		st = WIMM_E_UNSUPPORTED;
	} else {
		code = lib->handle_for_range(&fd, from, to - from, CU_RANGE_DMA_BUF_FD, 0);
		if (code != CU_OK)
			st = fail(text, text_bytes, lib, "no dma-buf of the range", code);
	}
	mem_cuda_leave(lib);
	if (st == WIMM_OK) {
		*out_fd = fd;
		*out_offset = at - from;
	}
	return st;
}

wimm_status mem_cuda_export(const void *addr, uint64_t len_bytes, struct mem_cuda_export *out,
                            char *text, size_t text_bytes)
{
	struct mem_cuda_export e = { .fd = -1 };
	struct mem_cuda_range range;
	const struct cuda_lib *lib;
	wimm_status st = describe_device(addr, len_bytes, &range, text, text_bytes);
	uint64_t handle;
	cu_result code;

	if (st == WIMM_OK && !range.whole) {
		(void)snprintf(text, text_bytes, "cuda: the region spans several mappings");
		return WIMM_E_UNSUPPORTED;
	}
	if (st == WIMM_OK)
		st = mem_cuda_enter(range.device, &lib);
	if (st != WIMM_OK)
		return st;
	e.vmm = range.vmm;
	e.pci = mem_cuda_pci(range.device);
	e.offset = (uint64_t)(uintptr_t)addr - range.base;
	e.bytes = range.base_bytes;
	if (range.vmm) {
		code = lib->vmm_retain(&handle, (void *)(uintptr_t)range.base);
		if (code == CU_OK) {
			code = lib->vmm_export(&e.fd, handle, CU_HANDLE_POSIX_FD, 0);
			(void)lib->vmm_release(handle);
		}
	} else {
		code = lib->ipc_get(&e.handle, range.base);
	}
	mem_cuda_leave(lib);
	if (code != CU_OK)
		return fail(text, text_bytes, lib, "memory cannot be exported", code);
	*out = e;
	return WIMM_OK;
}

bool mem_cuda_exportable(const void *addr, uint64_t len_bytes)
{
	char text[MEM_CUDA_TEXT_BYTES];
	struct mem_cuda_export e;

	if (mem_cuda_export(addr, len_bytes, &e, text, sizeof(text)) != WIMM_OK)
		return false;
	if (e.fd >= 0)
		(void)close(e.fd);
	return true;
}

static cu_result import_vmm(const struct cuda_lib *lib, const struct mem_cuda_export *given,
                            struct mem_cuda_map *map)
{
	struct cu_access access = { { CU_LOCATION_DEVICE, map->device }, CU_ACCESS_READ_WRITE };
	cu_result code = lib->vmm_import(&map->handle, (void *)(intptr_t)given->fd,
	                                 CU_HANDLE_POSIX_FD);

	if (code != CU_OK)
		return code;
	code = lib->vmm_reserve(&map->base, given->bytes, 0, 0, 0);
	if (code != CU_OK)
		goto undo_handle;
	code = lib->vmm_map(map->base, given->bytes, 0, map->handle, 0);
	if (code != CU_OK)
		goto undo_range;
	code = lib->vmm_access(map->base, given->bytes, &access, 1);
	if (code == CU_OK)
		return CU_OK;
	(void)lib->vmm_unmap(map->base, given->bytes);
undo_range:
	(void)lib->vmm_unreserve(map->base, given->bytes);
undo_handle:
	(void)lib->vmm_release(map->handle);
	return code;
}

wimm_status mem_cuda_import(const struct mem_cuda_export *given, struct mem_cuda_map *out,
                            char *text, size_t text_bytes)
{
	struct mem_cuda_map map = { .vmm = given->vmm,
		                    .device = mem_cuda_device_at(given->pci),
		                    .bytes = given->bytes };
	const struct cuda_lib *lib;
	wimm_status st = mem_cuda_enter(map.device, &lib);
	cu_ptr base = 0;
	size_t bytes = 0;
	cu_result code;

	if (st != WIMM_OK) {
		(void)snprintf(text, text_bytes, "cuda: the GPU at PCI %" PRIx64 " is not here",
		               given->pci);
		return st;
	}
	if (given->vmm) {
		code = lib->vmm_import && lib->vmm_map ? import_vmm(lib, given, &map) : 1;
	} else {
		code = lib->ipc_open(&map.base, given->handle, CU_IPC_LAZY_PEER);
		/* The length that came along is the other process's word. */
		if (code == CU_OK && (lib->address_range(&base, &bytes, map.base) != CU_OK ||
		                      given->bytes > base + bytes - map.base)) {
			(void)lib->ipc_close(map.base);
			code = 1;
		}
	}
	mem_cuda_leave(lib);
	if (code != CU_OK)
		return fail(text, text_bytes, lib, "memory cannot be mapped", code);
	*out = map;
	return WIMM_OK;
}

void mem_cuda_unmap(const struct mem_cuda_map *map)
{
	const struct cuda_lib *lib;

	if (mem_cuda_enter(map->device, &lib) != WIMM_OK)
		return;
	if (map->vmm) {
		(void)lib->vmm_unmap(map->base, map->bytes);
		(void)lib->vmm_unreserve(map->base, map->bytes);
		(void)lib->vmm_release(map->handle);
	} else {
		(void)lib->ipc_close(map->base);
	}
	mem_cuda_leave(lib);
}
