/* SPDX-License-Identifier: Apache-2.0 */
#include "fake/cuda_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t run_all(void);
static uint32_t count_objects(void);
static void block(void *stream);
static void unblock(void *stream);

EXPORT struct fake_cuda_knobs fake_cuda_knobs = {
	.writes_ordering = 100,
	.flush_options = 1,
	.devices = 1,
	.run = run_all,
	.shadow = fake_shadow,
	.alloc = fake_alloc,
	.free = fake_free,
	.alloc_on = fake_alloc_on,
	.alloc_spanning = fake_alloc_spanning,
	.objects = count_objects,
	.block = block,
	.unblock = unblock,
	.kernel = fake_kernel,
};

struct event {
	uint64_t recorded;
	uint64_t reached;
	uint32_t asked; /* of work that is not done */
	bool dead;
};

struct stream {
	int device;
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

pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;
_Atomic uint32_t fake_objects;
static struct op ops[OPS];
static uint32_t op_count;
static __thread int ctx_depth;
static __thread int ctx_stack[16]; /* devices */
static __thread int capture_mode;
static int the_ctx[DEVICES];
static struct event *gates[RANGES]; /* of streams that are blocked */
static void *gated[RANGES];

int fake_current(void)
{
	return ctx_depth > 0 ? ctx_stack[ctx_depth - 1] : 0;
}

bool fake_inside(void)
{
	return ctx_depth > 0;
}

void fake_enter(int device)
{
	ctx_stack[ctx_depth++] = device;
}

void fake_leave(void)
{
	ctx_depth--;
}

bool fake_unsafe(void)
{
	if (!__atomic_load_n(&fake_cuda_knobs.capturing, __ATOMIC_ACQUIRE) ||
	    capture_mode == CAPTURE_RELAXED)
		return false;
	__atomic_fetch_add(&fake_cuda_knobs.broken, 1, __ATOMIC_RELAXED);
	return true;
}

static uint32_t count_objects(void)
{
	return fake_objects;
}

/* --- work --- */

static void run_pages(const struct pages *p)
{
	const uint32_t *from = (const uint32_t *)(uintptr_t)p->src_index;
	const uint32_t *to = (const uint32_t *)(uintptr_t)p->dst_index;

	for (uint64_t i = 0; i < p->count && !fake_cuda_knobs.empty_kernels; i++)
		memcpy(fake_host(p->dst + (to ? to[i] : 0) * p->dst_stride),
		       fake_host(p->src + (from ? from[i] : 0) * p->src_stride), p->page_bytes);
	if (p->done != 0)
		__atomic_store_n((uint64_t *)(uintptr_t)p->done, p->ticket, __ATOMIC_RELEASE);
}

static void event_put(struct event *event)
{
	event->asked--;
	if (event->dead && event->asked == 0)
		free(event);
}

/* False: it has to wait. */
static bool run_one(struct op *op)
{
	switch (op->kind) {
	case COPY:
		memmove(fake_host(op->a), fake_host(op->b), op->n);
		break;
	case KERNEL:
		run_pages(&op->pages);
		break;
	case WRITE:
		__atomic_store_n((uint64_t *)fake_host(op->a), op->b, __ATOMIC_RELEASE);
		break;
	case RECORD:
		op->event->reached = op->a;
		event_put(op->event);
		break;
	case WAIT:
		if (op->event->reached < op->a)
			return false;
		event_put(op->event);
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

	pthread_mutex_lock(&fake_lock);
	n = run_locked();
	pthread_mutex_unlock(&fake_lock);
	return n;
}

static int ask(struct op op)
{
	int code = OK;

	pthread_mutex_lock(&fake_lock);
	if (op.kind == COPY || op.kind == KERNEL) {
		(void)__atomic_add_fetch(&fake_cuda_knobs.copies, 1, __ATOMIC_RELAXED); /* polled */
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
	if (code == OK && op.event)
		op.event->asked++;
	if (!__atomic_load_n(&fake_cuda_knobs.hold, __ATOMIC_ACQUIRE))
		(void)run_locked();
	pthread_mutex_unlock(&fake_lock);
	return code;
}

/* Without access of one card to the other's memory, which nobody here asks for. */
static void check_card(const struct stream *stream, uint64_t dst, uint64_t src)
{
	int to = fake_device(dst), from = fake_device(src);
	bool good;

	if ((uintptr_t)stream <= 2)
		return;
	good = (to < 0 || to == stream->device) && (from < 0 || from == stream->device);
	if (!good)
		__atomic_fetch_add(&fake_cuda_knobs.bad_copies, 1, __ATOMIC_RELAXED);
}

EXPORT int cuMemcpyAsync(uint64_t dst, uint64_t src, size_t bytes, struct stream *stream)
{
	check_card(stream, dst, src);
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
	if (gx == 0 || gy != 1 || gz != 1 || bx == 0 || bx > 1024 || by != 1 || bz != 1)
		return INVALID_VALUE;
	if (strcmp(f->name, "wimm_copy_pages") != 0)
		return fake_kernel_launch(f->name, stream, params);
	memcpy(&op.pages, params[0], sizeof(op.pages));
	check_card(stream, op.pages.dst, op.pages.src);
	fake_cuda_knobs.launches++;
	return ask(op);
}

EXPORT int cuStreamCreateWithPriority(struct stream **out, unsigned int flags, int priority)
{
	(void)flags;
	(void)priority;
	*out = calloc(1, sizeof(**out));
	(*out)->device = fake_current();
	fake_objects++;
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
	bool busy = false;

	(void)run_all();
	pthread_mutex_lock(&fake_lock);
	for (uint32_t i = 0; i < op_count; i++)
		busy = busy || (!ops[i].done && ops[i].stream == stream);
	fake_objects--;
	pthread_mutex_unlock(&fake_lock);
	if (!busy) /* else its work names it */
		free(stream);
	return OK;
}

EXPORT int cuStreamQuery(struct stream *stream)
{
	int code = OK;

	if (fake_unsafe())
		return CAPTURE_UNSAFE;
	pthread_mutex_lock(&fake_lock);
	for (uint32_t i = 0; i < op_count; i++)
		if (!ops[i].done && ops[i].stream == stream)
			code = NOT_READY;
	pthread_mutex_unlock(&fake_lock);
	return code;
}

EXPORT int cuEventCreate(struct event **out, unsigned int flags)
{
	(void)flags;
	*out = calloc(1, sizeof(**out));
	fake_objects++;
	return OK;
}

EXPORT int cuEventDestroy_v2(struct event *event)
{
	pthread_mutex_lock(&fake_lock);
	fake_objects--;
	event->dead = true;
	event->asked++;
	event_put(event);
	pthread_mutex_unlock(&fake_lock);
	return OK;
}

EXPORT int cuEventRecord(struct event *event, struct stream *stream)
{
	return ask((struct op){ .kind = RECORD, .stream = stream, .event = event });
}

EXPORT int cuEventQuery(struct event *event)
{
	int code;

	if (fake_unsafe())
		return CAPTURE_UNSAFE;
	pthread_mutex_lock(&fake_lock);
	(void)__atomic_add_fetch(&fake_cuda_knobs.looks, 1, __ATOMIC_RELAXED); /* tests poll it */
	code = event->reached == event->recorded ? OK : NOT_READY;
	pthread_mutex_unlock(&fake_lock);
	return code;
}

EXPORT int cuStreamWaitEvent(struct stream *stream, struct event *event, unsigned int flags)
{
	(void)flags;
	return ask((struct op){ .kind = WAIT, .stream = stream, .event = event });
}

EXPORT int cuStreamGetCtx(struct stream *stream, void **out)
{
	*out = &the_ctx[(uintptr_t)stream <= 2 ? fake_current() : stream->device];
	return OK;
}

EXPORT int cuStreamIsCapturing(struct stream *stream, int *out)
{
	*out = stream && stream == __atomic_load_n(&fake_cuda_knobs.capturing, __ATOMIC_ACQUIRE);
	return OK;
}

EXPORT int cuThreadExchangeStreamCaptureMode(int *mode)
{
	int old = capture_mode;

	capture_mode = *mode;
	*mode = old;
	return OK;
}

static void block(void *stream)
{
	struct event *gate = calloc(1, sizeof(*gate));
	int i = 0;

	pthread_mutex_lock(&fake_lock);
	while (gates[i] && i < RANGES - 1)
		i++;
	gate->recorded = 1;
	gate->asked = 1; /* by this list */
	gates[i] = gate;
	gated[i] = stream;
	pthread_mutex_unlock(&fake_lock);
	(void)ask((struct op){ .kind = WAIT, .stream = stream, .event = gate });
}

static void unblock(void *stream)
{
	pthread_mutex_lock(&fake_lock);
	for (int i = 0; i < RANGES; i++) {
		if (!gates[i] || gated[i] != stream)
			continue;
		gates[i]->reached = 1;
		gates[i]->dead = true;
		event_put(gates[i]);
		gates[i] = NULL;
	}
	if (!__atomic_load_n(&fake_cuda_knobs.hold, __ATOMIC_ACQUIRE))
		(void)run_locked();
	pthread_mutex_unlock(&fake_lock);
}

EXPORT void fake_cuda_block(void *stream)
{
	block(stream);
}

EXPORT void fake_cuda_unblock(void *stream)
{
	unblock(stream);
}

EXPORT uint64_t fake_cuda_looks(void)
{
	return __atomic_load_n(&fake_cuda_knobs.looks, __ATOMIC_RELAXED);
}

EXPORT int cuModuleLoadData(void **out, const void *image)
{
	*out = (void *)(uintptr_t)image;
	return image ? OK : INVALID_VALUE;
}

EXPORT int cuModuleGetFunction(struct function **out, void *module, const char *name)
{
	static struct function functions[32];
	static int count;
	int i = 0;

	(void)module;
	pthread_mutex_lock(&fake_lock);
	while (i < count && strcmp(functions[i].name, name) != 0)
		i++;
	if (i == count && count < 32)
		(void)snprintf(functions[count++].name, sizeof(functions[0].name), "%s", name);
	*out = &functions[i];
	pthread_mutex_unlock(&fake_lock);
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
	*out = fake_cuda_knobs.devices;
	return OK;
}

EXPORT int cuDeviceGetName(char *out, int bytes, int device)
{
	(void)snprintf(out, (size_t)bytes, "fake device %d", device);
	return OK;
}

EXPORT int cuDeviceGetAttribute(int *out, int which, int device)
{
	switch (which) {
	case 34:
		*out = device;
		return OK;
	case 16:
		*out = 132;
		return OK;
	case 116: /* NICs may reach its memory, */
	case 124: /* also by dma-buf */
		*out = 1;
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
	if (device < 0 || device >= fake_cuda_knobs.devices)
		return 101;
	*out = &the_ctx[device];
	return OK;
}

EXPORT int cuDevicePrimaryCtxGetState(int device, unsigned int *flags, int *active)
{
	*flags = 0;
	*active = !fake_cuda_knobs.inactive;
	return device >= 0 && device < fake_cuda_knobs.devices ? OK : 101;
}

EXPORT int cuCtxPushCurrent_v2(void *ctx)
{
	int device = (int)((int *)ctx - the_ctx);

	if (device < 0 || device >= DEVICES || ctx_depth == 16)
		return INVALID_VALUE;
	ctx_stack[ctx_depth++] = device;
	return OK;
}

EXPORT int cuCtxPopCurrent_v2(void **out)
{
	if (ctx_depth == 0)
		return INVALID_CONTEXT;
	*out = &the_ctx[ctx_stack[--ctx_depth]];
	return OK;
}

EXPORT int cuCtxGetCurrent(void **out)
{
	*out = ctx_depth > 0 ? &the_ctx[fake_current()] : NULL;
	return OK;
}

EXPORT int cuFlushGPUDirectRDMAWrites(int target, int scope)
{
	(void)target;
	(void)scope;
	__atomic_fetch_add(&fake_cuda_knobs.flushes, 1, __ATOMIC_RELAXED);
	return OK;
}
