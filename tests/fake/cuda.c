/* SPDX-License-Identifier: Apache-2.0 */
#include "fake/cuda.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum {
	OK = 0,
	INVALID_VALUE = 1,
	OUT_OF_MEMORY = 2,
	INVALID_CONTEXT = 201,
	NOT_READY = 600,
	NOT_SUPPORTED = 801,
	RANGES = 256,
	OPS = 65536,
	UNIT = 2 << 20,
};

static uint64_t run_all(void);
static void *shadow_of(uint64_t ptr);
static uint64_t test_alloc(size_t bytes, int vmm);
static void test_free(uint64_t ptr);
static uint32_t count_objects(void);

EXPORT struct fake_cuda_knobs fake_cuda_knobs = {
	.writes_ordering = 100,
	.flush_options = 1,
	.run = run_all,
	.shadow = shadow_of,
	.alloc = test_alloc,
	.free = test_free,
	.objects = count_objects,
};

/* What lies at an address: device memory, or host memory that was pinned. */
struct range {
	uint64_t addr;
	size_t bytes;
	uint8_t *shadow; /* NULL: host memory */
	int fd;
	bool vmm;
	bool imported;
};

struct allocation { /* of cuMemCreate and of cuMemImportFromShareableHandle */
	int fd;
	size_t bytes;
	uint32_t refs;
};

struct event {
	uint64_t recorded;
	uint64_t reached;
};

struct stream {
	uint64_t asked;
};

struct function {
	char name[64];
};

enum kind { COPY, KERNEL, WRITE, RECORD, WAIT };

/* As in kernels/page_copy.cu. */
struct pages {
	uint64_t src, dst, src_index, dst_index, count, src_stride, dst_stride, page_bytes;
	uint32_t units, run_units;
	uint64_t done, ticket;
};

struct op {
	enum kind kind;
	bool done;
	struct stream *stream;
	uint64_t a, b, n;
	struct event *event;
	struct pages pages;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct range ranges[RANGES];
static struct allocation allocations[RANGES];
static struct op ops[OPS];
static uint32_t op_count;
static uint32_t objects;
static __thread int ctx_depth;
static int the_ctx;

static struct range *range_of(uint64_t ptr)
{
	for (size_t i = 0; i < RANGES; i++)
		if (ranges[i].bytes != 0 && ptr - ranges[i].addr < ranges[i].bytes)
			return &ranges[i];
	return NULL;
}

static void *host(uint64_t ptr)
{
	struct range *r = range_of(ptr);

	return r && r->shadow ? r->shadow + (ptr - r->addr) : (void *)(uintptr_t)ptr;
}

static void *shadow_of(uint64_t ptr)
{
	struct range *r;
	void *at;

	pthread_mutex_lock(&lock);
	r = range_of(ptr);
	at = r && r->shadow ? r->shadow + (ptr - r->addr) : NULL;
	pthread_mutex_unlock(&lock);
	return at;
}

static uint32_t count_objects(void)
{
	return objects;
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
		             .vmm = vmm };
	r->shadow = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	objects++;
	return r;
}

static void drop_range(struct range *r)
{
	(void)munmap((void *)(uintptr_t)r->addr, r->bytes);
	(void)munmap(r->shadow, r->bytes);
	(void)close(r->fd);
	memset(r, 0, sizeof(*r));
	objects--;
}

static int make_fd(size_t bytes)
{
	int fd = memfd_create("fake-cuda", MFD_CLOEXEC);

	return fd >= 0 && ftruncate(fd, (off_t)bytes) == 0 ? fd : -1;
}

static uint64_t test_alloc(size_t bytes, int vmm)
{
	struct range *r;

	bytes = (bytes + 4095) / 4096 * 4096;
	pthread_mutex_lock(&lock);
	r = add_range(0, make_fd(bytes), bytes, vmm != 0);
	pthread_mutex_unlock(&lock);
	return r ? r->addr : 0;
}

static void test_free(uint64_t ptr)
{
	pthread_mutex_lock(&lock);
	if (range_of(ptr))
		drop_range(range_of(ptr));
	pthread_mutex_unlock(&lock);
}

EXPORT int cuMemAlloc_v2(uint64_t *out, size_t bytes)
{
	*out = test_alloc(bytes, 0);
	return *out != 0 ? OK : OUT_OF_MEMORY;
}

EXPORT int cuMemFree_v2(uint64_t ptr)
{
	test_free(ptr);
	return OK;
}

static int add_pinned(void *ptr, size_t bytes)
{
	for (size_t i = 0; i < RANGES; i++) {
		if (ranges[i].bytes != 0)
			continue;
		ranges[i] = (struct range){ .addr = (uint64_t)(uintptr_t)ptr, .bytes = bytes };
		objects++;
		return OK;
	}
	return OUT_OF_MEMORY;
}

EXPORT int cuMemHostAlloc(void **out, size_t bytes, unsigned int flags)
{
	int code;

	(void)flags;
	*out = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (*out == MAP_FAILED)
		return OUT_OF_MEMORY;
	pthread_mutex_lock(&lock);
	code = add_pinned(*out, bytes);
	pthread_mutex_unlock(&lock);
	return code;
}

EXPORT int cuMemHostRegister_v2(void *ptr, size_t bytes, unsigned int flags)
{
	int code;

	(void)flags;
	pthread_mutex_lock(&lock);
	code = add_pinned(ptr, bytes);
	pthread_mutex_unlock(&lock);
	return code;
}

static int unpin(void *ptr, bool unmap)
{
	struct range *r;

	pthread_mutex_lock(&lock);
	r = range_of((uint64_t)(uintptr_t)ptr);
	if (r && !r->shadow) {
		if (unmap)
			(void)munmap(ptr, r->bytes);
		memset(r, 0, sizeof(*r));
		objects--;
	}
	pthread_mutex_unlock(&lock);
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

	pthread_mutex_lock(&lock);
	r = range_of(ptr);
	if (!r)
		code = INVALID_VALUE;
	else if (which == 2)
		value = r->shadow ? 2 : 1;
	if (code == OK && which == 18)
		memcpy(out, &r->bytes, sizeof(r->bytes));
	else if (code == OK && which == 19)
		memcpy(out, &r->addr, sizeof(r->addr));
	else if (code == OK)
		memcpy(out, &value, sizeof(value));
	pthread_mutex_unlock(&lock);
	return code;
}

EXPORT int cuMemGetAddressRange_v2(uint64_t *base, size_t *bytes, uint64_t ptr)
{
	struct range *r;

	if (ctx_depth == 0)
		return INVALID_CONTEXT; /* as the real one */
	pthread_mutex_lock(&lock);
	r = range_of(ptr);
	if (r) {
		*base = r->addr;
		*bytes = r->bytes;
	}
	pthread_mutex_unlock(&lock);
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
	pthread_mutex_lock(&lock);
	r = range_of(ptr);
	if (r && r->shadow && !r->vmm && r->addr == ptr) {
		out->pid = getpid();
		out->fd = r->fd;
		out->bytes = r->bytes;
		code = OK;
	}
	pthread_mutex_unlock(&lock);
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
	pthread_mutex_lock(&lock);
	r = add_range(0, fd, h.bytes, false);
	pthread_mutex_unlock(&lock);
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

	pthread_mutex_lock(&lock);
	r = range_of(ptr);
	mine = r && r->imported && r->addr == ptr;
	pthread_mutex_unlock(&lock);
	if (!mine)
		return INVALID_VALUE;
	test_free(ptr);
	return OK;
}

static uint64_t add_allocation(int fd, size_t bytes)
{
	for (size_t i = 0; i < RANGES; i++) {
		if (allocations[i].refs != 0)
			continue;
		allocations[i] = (struct allocation){ fd, bytes, 1 };
		objects++;
		return i + 1;
	}
	return 0;
}

EXPORT int cuMemRetainAllocationHandle(uint64_t *out, void *ptr)
{
	struct range *r;

	pthread_mutex_lock(&lock);
	r = range_of((uint64_t)(uintptr_t)ptr);
	*out = r && r->vmm ? add_allocation(fcntl(r->fd, F_DUPFD_CLOEXEC, 0), r->bytes) : 0;
	pthread_mutex_unlock(&lock);
	return *out != 0 ? OK : INVALID_VALUE;
}

EXPORT int cuMemRelease(uint64_t handle)
{
	struct allocation *a = &allocations[handle - 1];

	pthread_mutex_lock(&lock);
	if (--a->refs == 0) {
		(void)close(a->fd);
		objects--;
	}
	pthread_mutex_unlock(&lock);
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
	pthread_mutex_lock(&lock);
	*out = add_allocation(fd, (size_t)lseek(fd, 0, SEEK_END));
	pthread_mutex_unlock(&lock);
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
	pthread_mutex_lock(&lock);
	r = add_range(ptr, fcntl(allocations[handle - 1].fd, F_DUPFD_CLOEXEC, 0), bytes, true);
	pthread_mutex_unlock(&lock);
	return r ? OK : OUT_OF_MEMORY;
}

EXPORT int cuMemUnmap(uint64_t ptr, size_t bytes)
{
	(void)bytes;
	test_free(ptr);
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

/* --- work --- */

static void run_pages(const struct pages *p)
{
	const uint32_t *from = (const uint32_t *)(uintptr_t)p->src_index;
	const uint32_t *to = (const uint32_t *)(uintptr_t)p->dst_index;

	for (uint64_t i = 0; i < p->count; i++)
		memcpy(host(p->dst + (to ? to[i] : 0) * p->dst_stride),
		       host(p->src + (from ? from[i] : 0) * p->src_stride), p->page_bytes);
	if (p->done != 0)
		__atomic_store_n((uint64_t *)(uintptr_t)p->done, p->ticket, __ATOMIC_RELEASE);
}

/* False: it has to wait. */
static bool run_one(struct op *op)
{
	switch (op->kind) {
	case COPY:
		memmove(host(op->a), host(op->b), op->n);
		break;
	case KERNEL:
		run_pages(&op->pages);
		break;
	case WRITE:
		__atomic_store_n((uint64_t *)host(op->a), op->b, __ATOMIC_RELEASE);
		break;
	case RECORD:
		op->event->reached = op->a;
		break;
	case WAIT:
		if (op->event->reached < op->a)
			return false;
		break;
	}
	op->done = true;
	return true;
}

/* Everything that can be, in the order of each stream. */
static uint64_t run_locked(void)
{
	uint64_t total = 0;
	uint64_t before;

	do {
		before = total;
		for (uint32_t i = 0; i < op_count; i++) {
			bool first = !ops[i].done;

			for (uint32_t k = 0; k < i && first; k++)
				first = ops[k].done || ops[k].stream != ops[i].stream;
			if (first && run_one(&ops[i]))
				total++;
		}
	} while (total != before);
	while (op_count != 0 && ops[op_count - 1].done)
		op_count--;
	return total;
}

static uint64_t run_all(void)
{
	uint64_t n;

	pthread_mutex_lock(&lock);
	n = run_locked();
	pthread_mutex_unlock(&lock);
	return n;
}

static int ask(struct op op)
{
	int code = OK;

	pthread_mutex_lock(&lock);
	if (op.kind == COPY || op.kind == KERNEL) {
		fake_cuda_knobs.copies++;
		code = fake_cuda_knobs.fail_copies;
	}
	if (op.kind == RECORD)
		op.a = ++op.event->recorded;
	if (op.kind == WAIT)
		op.a = op.event->recorded;
	if (code == OK && op_count == OPS)
		code = OUT_OF_MEMORY;
	if (code == OK)
		ops[op_count++] = op;
	if (!__atomic_load_n(&fake_cuda_knobs.hold, __ATOMIC_ACQUIRE))
		(void)run_locked();
	pthread_mutex_unlock(&lock);
	return code;
}

EXPORT int cuMemcpyAsync(uint64_t dst, uint64_t src, size_t bytes, struct stream *stream)
{
	return ask((struct op){ .kind = COPY, .stream = stream, .a = dst, .b = src, .n = bytes });
}

EXPORT int cuStreamWriteValue64_v2(struct stream *stream, uint64_t ptr, uint64_t value,
                                   unsigned int flags)
{
	(void)flags;
	return ask((struct op){ .kind = WRITE, .stream = stream, .a = ptr, .b = value });
}

EXPORT int cuLaunchKernel(struct function *f, unsigned int gx, unsigned int gy, unsigned int gz,
                          unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared,
                          struct stream *stream, void **params, void **extra)
{
	struct op op = { .kind = KERNEL, .stream = stream };

	(void)extra;
	(void)shared;
	if (gx == 0 || gy != 1 || gz != 1 || bx == 0 || bx > 1024 || by != 1 || bz != 1 ||
	    strcmp(f->name, "wimm_copy_pages") != 0)
		return INVALID_VALUE;
	memcpy(&op.pages, params[0], sizeof(op.pages));
	fake_cuda_knobs.launches++;
	return ask(op);
}

EXPORT int cuStreamCreateWithPriority(struct stream **out, unsigned int flags, int priority)
{
	(void)flags;
	(void)priority;
	*out = calloc(1, sizeof(**out));
	objects++;
	return OK;
}

EXPORT int cuStreamSynchronize(struct stream *stream)
{
	(void)stream;
	(void)run_all();
	return OK;
}

EXPORT int cuStreamDestroy_v2(struct stream *stream)
{
	(void)run_all();
	free(stream);
	objects--;
	return OK;
}

EXPORT int cuStreamQuery(struct stream *stream)
{
	int code = OK;

	pthread_mutex_lock(&lock);
	for (uint32_t i = 0; i < op_count; i++)
		if (!ops[i].done && ops[i].stream == stream)
			code = NOT_READY;
	pthread_mutex_unlock(&lock);
	return code;
}

EXPORT int cuEventCreate(struct event **out, unsigned int flags)
{
	(void)flags;
	*out = calloc(1, sizeof(**out));
	objects++;
	return OK;
}

EXPORT int cuEventDestroy_v2(struct event *event)
{
	free(event);
	objects--;
	return OK;
}

EXPORT int cuEventRecord(struct event *event, struct stream *stream)
{
	return ask((struct op){ .kind = RECORD, .stream = stream, .event = event });
}

EXPORT int cuEventQuery(struct event *event)
{
	return event->reached == event->recorded ? OK : NOT_READY;
}

EXPORT int cuStreamWaitEvent(struct stream *stream, struct event *event, unsigned int flags)
{
	(void)flags;
	return ask((struct op){ .kind = WAIT, .stream = stream, .event = event });
}

EXPORT int cuModuleLoadData(void **out, const void *image)
{
	*out = (void *)(uintptr_t)image;
	return image ? OK : INVALID_VALUE;
}

EXPORT int cuModuleGetFunction(struct function **out, void *module, const char *name)
{
	static struct function functions[8];
	static int count;
	int i = 0;

	(void)module;
	pthread_mutex_lock(&lock);
	while (i < count && strcmp(functions[i].name, name) != 0)
		i++;
	if (i == count && count < 8)
		(void)snprintf(functions[count++].name, sizeof(functions[0].name), "%s", name);
	*out = &functions[i];
	pthread_mutex_unlock(&lock);
	return OK;
}

/* --- the device --- */

EXPORT int cuInit(unsigned int flags)
{
	return flags == 0 ? OK : INVALID_VALUE;
}

EXPORT int cuDriverGetVersion(int *out)
{
	*out = 13000;
	return OK;
}

EXPORT int cuGetErrorName(int code, const char **out)
{
	*out = code == INVALID_VALUE ? "CUDA_ERROR_INVALID_VALUE" : "CUDA_ERROR_OF_THE_FAKE";
	return OK;
}

EXPORT int cuDeviceGetCount(int *out)
{
	*out = 1;
	return OK;
}

EXPORT int cuDeviceGetName(char *out, int bytes, int device)
{
	(void)snprintf(out, (size_t)bytes, "fake device %d", device);
	return OK;
}

EXPORT int cuDeviceGetAttribute(int *out, int which, int device)
{
	(void)device;
	switch (which) {
	case 16:
		*out = 132;
		return OK;
	case 117:
		*out = fake_cuda_knobs.flush_options;
		return OK;
	case 118:
		*out = fake_cuda_knobs.writes_ordering;
		return OK;
	default:
		*out = 0;
		return OK;
	}
}

EXPORT int cuDevicePrimaryCtxRetain(void **out, int device)
{
	*out = &the_ctx;
	return device == 0 ? OK : 101;
}

EXPORT int cuDevicePrimaryCtxGetState(int device, unsigned int *flags, int *active)
{
	*flags = 0;
	*active = !fake_cuda_knobs.inactive;
	return device == 0 ? OK : 101;
}

EXPORT int cuCtxPushCurrent_v2(void *ctx)
{
	ctx_depth++;
	return ctx == &the_ctx ? OK : INVALID_VALUE;
}

EXPORT int cuCtxPopCurrent_v2(void **out)
{
	*out = &the_ctx;
	return ctx_depth-- > 0 ? OK : INVALID_CONTEXT;
}

EXPORT int cuCtxGetCurrent(void **out)
{
	*out = ctx_depth > 0 ? &the_ctx : NULL;
	return OK;
}

EXPORT int cuFlushGPUDirectRDMAWrites(int target, int scope)
{
	(void)target;
	(void)scope;
	__atomic_fetch_add(&fake_cuda_knobs.flushes, 1, __ATOMIC_RELAXED);
	return OK;
}
