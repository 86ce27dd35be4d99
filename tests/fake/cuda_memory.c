/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the driver that is none, here and in other processes. */
#include "fake/cuda_int.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* What lies at an address: device memory, or host memory that was pinned. */
struct range {
	uint64_t addr;
	size_t bytes;
	uint8_t *shadow; /* NULL: host memory */
	int fd;
	bool vmm;
	bool imported;
	int device;
};

struct allocation { /* of cuMemCreate and of cuMemImportFromShareableHandle */
	int fd;
	size_t bytes;
	uint32_t refs;
};

static struct range ranges[RANGES];
static struct allocation allocations[RANGES];

static struct range *range_of(uint64_t ptr)
{
	for (size_t i = 0; i < RANGES; i++)
		if (ranges[i].bytes != 0 && ptr - ranges[i].addr < ranges[i].bytes)
			return &ranges[i];
	return NULL;
}

void *fake_host(uint64_t ptr)
{
	struct range *r = range_of(ptr);

	return r && r->shadow ? r->shadow + (ptr - r->addr) : (void *)(uintptr_t)ptr;
}

int fake_device(uint64_t ptr)
{
	struct range *r;
	int device;

	pthread_mutex_lock(&fake_lock);
	r = range_of(ptr);
	device = r && r->shadow ? r->device : -1;
	pthread_mutex_unlock(&fake_lock);
	return device;
}

void *fake_shadow(uint64_t ptr)
{
	struct range *r;
	void *at;

	pthread_mutex_lock(&fake_lock);
	r = range_of(ptr);
	at = r && r->shadow ? r->shadow + (ptr - r->addr) : NULL;
	pthread_mutex_unlock(&fake_lock);
	return at;
}

/* --- memory --- */

static struct range *add_range(uint64_t at, int fd, size_t bytes, bool vmm)
{
	struct range *r = NULL;
	void *addr;

	for (size_t i = 0; i < RANGES && !r; i++)
		if (ranges[i].bytes == 0)
			r = &ranges[i];
	if (!r)
		return NULL;
	addr = mmap((void *)(uintptr_t)at, bytes, PROT_NONE,
	            MAP_SHARED | (at != 0 ? MAP_FIXED : 0), fd, 0);
	if (addr == MAP_FAILED)
		return NULL;
	*r = (struct range){ .addr = (uint64_t)(uintptr_t)addr, .bytes = bytes, .fd = fd,
		             .vmm = vmm, .device = fake_current() };
	r->shadow = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	fake_objects++;
	return r;
}

static void drop_range(struct range *r)
{
	(void)munmap((void *)(uintptr_t)r->addr, r->bytes);
	(void)munmap(r->shadow, r->bytes);
	(void)close(r->fd);
	memset(r, 0, sizeof(*r));
	fake_objects--;
}

static int make_fd(size_t bytes)
{
	int fd = memfd_create("fake-cuda", MFD_CLOEXEC);

	return fd >= 0 && ftruncate(fd, (off_t)bytes) == 0 ? fd : -1;
}

uint64_t fake_alloc(size_t bytes, int vmm)
{
	struct range *r;

	bytes = (bytes + 4095) / 4096 * 4096;
	pthread_mutex_lock(&fake_lock);
	r = add_range(0, make_fd(bytes), bytes, vmm != 0);
	pthread_mutex_unlock(&fake_lock);
	return r ? r->addr : 0;
}

void fake_free(uint64_t ptr)
{
	pthread_mutex_lock(&fake_lock);
	if (range_of(ptr))
		drop_range(range_of(ptr));
	pthread_mutex_unlock(&fake_lock);
}

uint64_t fake_alloc_on(int device, size_t bytes)
{
	uint64_t ptr;

	fake_enter(device);
	ptr = fake_alloc(bytes, 0);
	fake_leave();
	return ptr;
}

/* The readable sides follow one another, too. */
uint64_t fake_alloc_spanning(size_t bytes)
{
	size_t half = bytes / 2 / 4096 * 4096;
	int none = PROT_NONE, fd = make_fd(bytes);
	uint8_t *at = mmap(NULL, bytes, none, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint8_t *shadow = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (at == MAP_FAILED || shadow == MAP_FAILED)
		return 0;
	pthread_mutex_lock(&fake_lock);
	for (int i = 0; i < 2; i++) {
		uint64_t from = (uint64_t)(uintptr_t)(at + (i == 0 ? 0 : half));
		struct range *r = add_range(from, make_fd(half), i == 0 ? half : bytes - half,
		                            true);

		(void)munmap(r->shadow, r->bytes);
		r->shadow = shadow + (i == 0 ? 0 : half);
	}
	pthread_mutex_unlock(&fake_lock);
	(void)close(fd);
	return (uint64_t)(uintptr_t)at;
}

EXPORT uint64_t fake_cuda_alloc(size_t bytes)
{
	return fake_alloc(bytes, 0);
}

EXPORT void fake_cuda_free(uint64_t ptr)
{
	fake_free(ptr);
}

EXPORT void *fake_cuda_shadow(uint64_t ptr)
{
	return fake_shadow(ptr);
}

EXPORT int cuMemAlloc_v2(uint64_t *out, size_t bytes)
{
	*out = fake_alloc(bytes, 0);
	return *out != 0 ? OK : OUT_OF_MEMORY;
}

EXPORT int cuMemFree_v2(uint64_t ptr)
{
	fake_free(ptr);
	return OK;
}

static int add_pinned(void *ptr, size_t bytes)
{
	for (size_t i = 0; i < RANGES; i++) {
		if (ranges[i].bytes != 0)
			continue;
		ranges[i] = (struct range){ .addr = (uint64_t)(uintptr_t)ptr, .bytes = bytes };
		fake_objects++;
		return OK;
	}
	return OUT_OF_MEMORY;
}

EXPORT int cuMemHostAlloc(void **out, size_t bytes, unsigned int flags)
{
	int code;

	(void)flags;
	if (fake_unsafe())
		return CAPTURE_UNSAFE;
	*out = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (*out == MAP_FAILED)
		return OUT_OF_MEMORY;
	pthread_mutex_lock(&fake_lock);
	code = add_pinned(*out, bytes);
	pthread_mutex_unlock(&fake_lock);
	return code;
}

EXPORT int cuMemHostRegister_v2(void *ptr, size_t bytes, unsigned int flags)
{
	int code;

	(void)flags;
	pthread_mutex_lock(&fake_lock);
	code = add_pinned(ptr, bytes);
	pthread_mutex_unlock(&fake_lock);
	return code;
}

static int unpin(void *ptr, bool unmap)
{
	struct range *r;

	pthread_mutex_lock(&fake_lock);
	r = range_of((uint64_t)(uintptr_t)ptr);
	if (r && !r->shadow) {
		if (unmap)
			(void)munmap(ptr, r->bytes);
		memset(r, 0, sizeof(*r));
		fake_objects--;
	}
	pthread_mutex_unlock(&fake_lock);
	return r ? OK : INVALID_VALUE;
}

EXPORT int cuMemFreeHost(void *ptr)
{
	return unpin(ptr, true);
}

EXPORT int cuMemHostUnregister(void *ptr)
{
	return unpin(ptr, false);
}

EXPORT int cuPointerGetAttribute(void *out, int which, uint64_t ptr)
{
	uint32_t value = 0;
	struct range *r;
	int code = OK;

	pthread_mutex_lock(&fake_lock);
	r = range_of(ptr);
	if (!r)
		code = INVALID_VALUE;
	else if (which == 2)
		value = r->shadow ? 2 : 1;
	else if (which == 9)
		value = (uint32_t)r->device;
	if (code == OK && which == 18)
		memcpy(out, &r->bytes, sizeof(r->bytes));
	else if (code == OK && which == 19)
		memcpy(out, &r->addr, sizeof(r->addr));
	else if (code == OK)
		memcpy(out, &value, sizeof(value));
	pthread_mutex_unlock(&fake_lock);
	return code;
}

EXPORT int cuPointerSetAttribute(const void *value, int which, uint64_t ptr)
{
	(void)value;
	return which == 6 && fake_shadow(ptr) ? OK : INVALID_VALUE;
}

EXPORT int cuMemGetAddressRange_v2(uint64_t *base, size_t *bytes, uint64_t ptr)
{
	struct range *r;

	if (!fake_inside())
		return INVALID_CONTEXT; /* as the real one */
	pthread_mutex_lock(&fake_lock);
	r = range_of(ptr);
	if (r) {
		*base = r->addr;
		*bytes = r->bytes;
	}
	pthread_mutex_unlock(&fake_lock);
	return r ? OK : INVALID_VALUE;
}

EXPORT int cuMemGetHandleForAddressRange(void *out, uint64_t ptr, size_t bytes, int type,
                                         unsigned long long flags)
{
	struct range *r = range_of(ptr);
	int fd;

	(void)flags;
	if (fake_cuda_knobs.no_dmabuf)
		return NOT_SUPPORTED;
	if (type != 1 || !r || !r->shadow || ptr % 4096 != 0 || bytes % 4096 != 0 ||
	    ptr + bytes > r->addr + r->bytes)
		return INVALID_VALUE;
	fd = fcntl(r->fd, F_DUPFD_CLOEXEC, 0);
	memcpy(out, &fd, sizeof(fd));
	return OK;
}

/* --- between processes --- */

struct handle {
	int pid;
	int fd;
	uint64_t bytes;
	uint8_t rest[48];
};

EXPORT int cuIpcGetMemHandle(struct handle *out, uint64_t ptr)
{
	struct range *r;
	int code = INVALID_VALUE;

	memset(out, 0, sizeof(*out));
	pthread_mutex_lock(&fake_lock);
	r = range_of(ptr);
	if (r && r->shadow && !r->vmm && r->addr == ptr) {
		out->pid = getpid();
		out->fd = r->fd;
		out->bytes = r->bytes;
		code = OK;
	}
	pthread_mutex_unlock(&fake_lock);
	return code;
}

EXPORT int cuIpcOpenMemHandle_v2(uint64_t *out, struct handle h, unsigned int flags)
{
	char path[64];
	struct range *r = NULL;
	int fd;

	(void)flags;
	if (h.pid == getpid())
		return INVALID_CONTEXT; /* as the real one */
	(void)snprintf(path, sizeof(path), "/proc/%d/fd/%d", h.pid, h.fd);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return INVALID_VALUE;
	pthread_mutex_lock(&fake_lock);
	r = add_range(0, fd, h.bytes, false);
	pthread_mutex_unlock(&fake_lock);
	if (!r)
		return OUT_OF_MEMORY;
	r->imported = true;
	*out = r->addr;
	return OK;
}

EXPORT int cuIpcCloseMemHandle(uint64_t ptr)
{
	struct range *r;
	bool mine;

	pthread_mutex_lock(&fake_lock);
	r = range_of(ptr);
	mine = r && r->imported && r->addr == ptr;
	pthread_mutex_unlock(&fake_lock);
	if (!mine)
		return INVALID_VALUE;
	fake_free(ptr);
	return OK;
}

static uint64_t add_allocation(int fd, size_t bytes)
{
	for (size_t i = 0; i < RANGES; i++) {
		if (allocations[i].refs != 0)
			continue;
		allocations[i] = (struct allocation){ fd, bytes, 1 };
		fake_objects++;
		return i + 1;
	}
	return 0;
}

EXPORT int cuMemRetainAllocationHandle(uint64_t *out, void *ptr)
{
	struct range *r;

	pthread_mutex_lock(&fake_lock);
	r = range_of((uint64_t)(uintptr_t)ptr);
	*out = r && r->vmm ? add_allocation(fcntl(r->fd, F_DUPFD_CLOEXEC, 0), r->bytes) : 0;
	pthread_mutex_unlock(&fake_lock);
	return *out != 0 ? OK : INVALID_VALUE;
}

EXPORT int cuMemRelease(uint64_t handle)
{
	struct allocation *a = &allocations[handle - 1];

	pthread_mutex_lock(&fake_lock);
	if (--a->refs == 0) {
		(void)close(a->fd);
		fake_objects--;
	}
	pthread_mutex_unlock(&fake_lock);
	return OK;
}

EXPORT int cuMemExportToShareableHandle(void *out, uint64_t handle, int type,
                                        unsigned long long flags)
{
	int fd = fcntl(allocations[handle - 1].fd, F_DUPFD_CLOEXEC, 0);

	(void)type;
	(void)flags;
	memcpy(out, &fd, sizeof(fd));
	return OK;
}

EXPORT int cuMemImportFromShareableHandle(uint64_t *out, void *os_handle, int type)
{
	int fd = fcntl((int)(intptr_t)os_handle, F_DUPFD_CLOEXEC, 0);

	(void)type;
	if (fd < 0)
		return INVALID_VALUE;
	pthread_mutex_lock(&fake_lock);
	*out = add_allocation(fd, (size_t)lseek(fd, 0, SEEK_END));
	pthread_mutex_unlock(&fake_lock);
	return OK;
}

EXPORT int cuMemAddressReserve(uint64_t *out, size_t bytes, size_t align, uint64_t at,
                               unsigned long long flags)
{
	void *addr = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	(void)align;
	(void)at;
	(void)flags;
	*out = (uint64_t)(uintptr_t)addr;
	return addr != MAP_FAILED ? OK : OUT_OF_MEMORY;
}

EXPORT int cuMemAddressFree(uint64_t ptr, size_t bytes)
{
	(void)munmap((void *)(uintptr_t)ptr, bytes);
	return OK;
}

EXPORT int cuMemMap(uint64_t ptr, size_t bytes, size_t offset, uint64_t handle,
                    unsigned long long flags)
{
	struct range *r;

	(void)flags;
	if (offset != 0 || bytes > allocations[handle - 1].bytes)
		return INVALID_VALUE;
	pthread_mutex_lock(&fake_lock);
	r = add_range(ptr, fcntl(allocations[handle - 1].fd, F_DUPFD_CLOEXEC, 0), bytes, true);
	pthread_mutex_unlock(&fake_lock);
	return r ? OK : OUT_OF_MEMORY;
}

EXPORT int cuMemUnmap(uint64_t ptr, size_t bytes)
{
	(void)bytes;
	fake_free(ptr);
	return OK;
}

EXPORT int cuMemSetAccess(uint64_t ptr, size_t bytes, const void *desc, size_t count)
{
	(void)ptr;
	(void)bytes;
	(void)desc;
	(void)count;
	return OK;
}
