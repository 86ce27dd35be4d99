/* SPDX-License-Identifier: Apache-2.0 */
#include "mem/cuda_queue.h"

#include "base/alloc.h"
#include "base/config.h"
#include "base/log.h"
#include "base/tsa.h"
#include "mem/kernels.h"
#include "mem/word.h"
#include "plat/mutex.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum {
	UNIT_BYTES = 4096,  /* as in kernels/page_copy.cu */
	THREADS = 1024,
	WARPS = THREADS / 32,
	RUN_UNITS_MAX = 32,
	RUNS_A_WARP = 4,       /* lists are cut so that a warp has about so many runs */
	ONE_BLOCK_UNITS = 16,  /* up to here one block does it all and says so itself */
	STREAM_PRIORITY = -1,
};

/* As in kernels/page_copy.cu. */
struct kernel_pages {
	uint64_t src;
	uint64_t dst;
	uint64_t src_index;
	uint64_t dst_index;
	uint64_t count;
	uint64_t src_stride;
	uint64_t dst_stride;
	uint64_t page_bytes;
	uint32_t units;
	uint32_t run_units;
	uint64_t done;
	uint64_t ticket;
};

struct cuda_queue {
	const struct cuda_lib *lib;
	int device;
	uint32_t sms;          /* that a copy may take */
	uint64_t kernel_bytes; /* longest single copy by a kernel */
	struct cu_stream *stream;
	struct cu_function *copy_pages; /* NULL: no kernels in this build, or not for this card */
	uint64_t *done;                 /* the card writes the last ticket that has ended */
	uint64_t ticket;                /* last given out */
	bool batch;                     /* between begin and end */
	bool failed;
	char text[MEM_CUDA_TEXT_BYTES];
};

static wimm_status fail(struct cuda_queue *q, const char *what, cu_result code)
{
	if (!q->failed) {
		(void)snprintf(q->text, sizeof(q->text), "cuda: %s on device %d: %s", what,
		               q->device, cuda_lib_error(q->lib, code));
		LOG_ERROR("%s", q->text);
	}
	q->failed = true;
	return WIMM_E_SYSTEM;
}

/* Loaded once a device and kept. Inside its context. */
static struct mutex lock = MUTEX_INIT;
static struct cu_function *functions[MEM_CUDA_MAX_DEVICES] TSA(guarded_by(lock));
static bool tried[MEM_CUDA_MAX_DEVICES] TSA(guarded_by(lock));
static uint64_t *kept_word TSA(guarded_by(lock));

static void load(const struct cuda_lib *lib, int device) TSA(requires_capability(lock))
{
	const void *image = kernels_image();
	struct cu_module *module;
	cu_result code;

	tried[device] = true;
	if (!image)
		return;
	code = lib->module_load(&module, image);
	if (code == CU_OK)
		code = lib->module_function(&functions[device], module, "wimm_copy_pages");
	if (code == CU_OK)
		return;
	functions[device] = NULL;
	LOG_WARN("cuda: no copy kernel for device %d (%s): its copy engine does it all", device,
	         cuda_lib_error(lib, code));
}

static struct cu_function *kernel_of(const struct cuda_lib *lib, int device)
{
	struct cu_function *f;

	mutex_lock(&lock);
	if (!tried[device])
		load(lib, device);
	f = functions[device];
	mutex_unlock(&lock);
	return f;
}

void cuda_queue_prepare(int device)
{
	const struct cuda_lib *lib;

	if (mem_cuda_enter(device, &lib) != WIMM_OK)
		return;
	(void)kernel_of(lib, device);
	mem_cuda_leave(lib);
	cuda_host_prepare();
	mutex_lock(&lock);
	if (!kept_word)
		kept_word = mem_word_alloc(); /* with it its chunk stays pinned */
	mutex_unlock(&lock);
}

static uint32_t sm_limit(const struct cuda_lib *lib, int device)
{
	uint32_t wanted = (uint32_t)config_get_u64(CFG_GPU_SMS);
	int have = 0;

	if (lib->device_attribute(&have, CU_DEV_SM_COUNT, device) != CU_OK || have < 1)
		have = 1;
	return wanted == 0 || wanted > (uint32_t)have ? (uint32_t)have : wanted;
}

wimm_status cuda_queue_open(int device, struct cuda_queue **out, char *text, size_t text_bytes)
{
	struct cuda_queue *q = mem_calloc(1, sizeof(*q));
	wimm_status st = WIMM_E_NOMEM;

	(void)snprintf(text, text_bytes, "cuda: out of memory");
	if (!q)
		return st;
	q->device = device;
	q->done = mem_word_alloc();
	if (!q->done)
		goto undo_queue;
	st = mem_cuda_enter(device, &q->lib);
	if (st != WIMM_OK) {
		(void)snprintf(text, text_bytes, "cuda: device %d is not here", device);
		goto undo_word;
	}
	q->sms = sm_limit(q->lib, device);
	q->kernel_bytes = config_get_u64(CFG_GPU_KERNEL_BYTES);
	st = WIMM_E_UNSUPPORTED;
	if (!mem_word_pin(q->done) ||
	    q->lib->stream_create(&q->stream, CU_STREAM_FLAG, STREAM_PRIORITY) != CU_OK) {
		(void)snprintf(text, text_bytes, "cuda: no stream on device %d", device);
		mem_cuda_leave(q->lib);
		goto undo_word;
	}
	q->copy_pages = kernel_of(q->lib, device);
	mem_cuda_leave(q->lib);
	*out = q;
	return WIMM_OK;
undo_word:
	mem_word_free(q->done);
undo_queue:
	mem_free(q);
	return st;
}

void cuda_queue_close(struct cuda_queue *q)
{
	const struct cuda_lib *lib;

	if (!q)
		return;
	if (mem_cuda_enter(q->device, &lib) == WIMM_OK) {
		(void)lib->stream_sync(q->stream);
		(void)lib->stream_destroy(q->stream);
		mem_cuda_leave(lib);
	}
	mem_word_free(q->done);
	mem_free(q);
}

/* The next ticket, written by the card when all before it has ended. */
static wimm_status sign(struct cuda_queue *q, uint64_t *out_ticket)
{
	cu_result code = q->lib->stream_write64(q->stream, (cu_ptr)(uintptr_t)q->done,
	                                        q->ticket + 1, 0);

	if (code != CU_OK)
		return fail(q, "a copy cannot be signed", code);
	*out_ticket = ++q->ticket;
	return WIMM_OK;
}

static wimm_status enter(struct cuda_queue *q, const struct cuda_lib **out_lib)
{
	if (q->failed)
		return WIMM_E_SYSTEM;
	if (mem_cuda_enter(q->device, out_lib) != WIMM_OK)
		return fail(q, "the context is gone", CU_OK);
	return WIMM_OK;
}

static wimm_status engine_copy(struct cuda_queue *q, uint64_t dst, uint64_t src,
                               uint64_t len_bytes)
{
	cu_result code = q->lib->copy_async(dst, src, len_bytes, q->stream);

	return code == CU_OK ? WIMM_OK : fail(q, "a copy does not start", code);
}

/* *out_signed: the kernel writes the next ticket itself. No pages: one warp, which finds so. */
static wimm_status launch(struct cuda_queue *q, const struct cuda_pages *p, bool *out_signed)
{
	uint64_t units = (p->page_bytes + UNIT_BYTES - 1) / UNIT_BYTES;
	uint64_t total = units * p->count;
	uint64_t run = total / ((uint64_t)q->sms * WARPS * RUNS_A_WARP);
	uint64_t blocks;
	struct kernel_pages k = {
		.src = p->src,
		.dst = p->dst,
		.src_index = (uint64_t)(uintptr_t)p->src_index,
		.dst_index = (uint64_t)(uintptr_t)p->dst_index,
		.count = p->count,
		.src_stride = p->src_stride,
		.dst_stride = p->dst_stride,
		.page_bytes = p->page_bytes,
		.units = (uint32_t)units,
	};
	void *params[] = { &k };
	uint32_t threads = THREADS;
	cu_result code;

	run = run < 1 ? 1 : run > RUN_UNITS_MAX ? RUN_UNITS_MAX : run;
	k.run_units = (uint32_t)run;
	blocks = (total + run * WARPS - 1) / (run * WARPS);
	blocks = blocks < q->sms ? blocks : q->sms;
	*out_signed = !q->batch && total != 0 && total <= ONE_BLOCK_UNITS;
	if (total == 0) {
		blocks = 1;
		threads = 32;
	} else if (*out_signed) {
		blocks = 1;
		threads = (uint32_t)total * 32;
		k.done = (uint64_t)(uintptr_t)q->done;
		k.ticket = q->ticket + 1;
	}
	code = q->lib->launch(q->copy_pages, (unsigned int)blocks, 1, 1, threads, 1, 1, 0,
	                      q->stream, params, NULL);
	return code == CU_OK ? WIMM_OK : fail(q, "the copy kernel does not start", code);
}

static wimm_status pages_by_engine(struct cuda_queue *q, const struct cuda_pages *p)
{
	wimm_status st = WIMM_OK;

	for (uint64_t i = 0; st == WIMM_OK && i < p->count; i++) {
		uint64_t from = p->src_index ? p->src_index[i] : 0;
		uint64_t to = p->dst_index ? p->dst_index[i] : 0;

		st = engine_copy(q, p->dst + to * p->dst_stride, p->src + from * p->src_stride,
		                 p->page_bytes);
	}
	return st;
}

/* One of the three copies, and its ticket. */
static wimm_status ask(struct cuda_queue *q, const struct cuda_pages *p, bool by_kernel,
                       uint64_t *out_ticket)
{
	const struct cuda_lib *lib;
	wimm_status st = enter(q, &lib);
	bool is_signed = false;

	if (st != WIMM_OK)
		return st;
	if (p->page_bytes != 0)
		st = by_kernel ? launch(q, p, &is_signed) : pages_by_engine(q, p);
	if (st == WIMM_OK && is_signed)
		*out_ticket = ++q->ticket;
	else if (st == WIMM_OK && !q->batch)
		st = sign(q, out_ticket);
	mem_cuda_leave(lib);
	return st;
}

wimm_status cuda_queue_copy(struct cuda_queue *q, uint64_t dst, uint64_t src, uint64_t len_bytes,
                            uint64_t *out_ticket)
{
	struct cuda_pages p = { .src = src, .dst = dst, .count = 1, .page_bytes = len_bytes };

	return ask(q, &p, false, out_ticket);
}

wimm_status cuda_queue_copy_device(struct cuda_queue *q, uint64_t dst, uint64_t src,
                                   uint64_t len_bytes, uint64_t *out_ticket)
{
	struct cuda_pages p = { .src = src, .dst = dst, .count = 1, .page_bytes = len_bytes };

	return ask(q, &p, q->copy_pages && len_bytes <= q->kernel_bytes, out_ticket);
}

wimm_status cuda_queue_pages(struct cuda_queue *q, const struct cuda_pages *p, uint64_t *out_ticket)
{
	return ask(q, p, q->copy_pages != NULL, out_ticket);
}

void cuda_queue_begin(struct cuda_queue *q)
{
	q->batch = true;
}

wimm_status cuda_queue_end(struct cuda_queue *q, uint64_t *out_ticket)
{
	const struct cuda_lib *lib;
	wimm_status st = enter(q, &lib);

	q->batch = false;
	if (st != WIMM_OK)
		return st;
	st = sign(q, out_ticket);
	mem_cuda_leave(lib);
	return st;
}

void cuda_queue_end_empty(struct cuda_queue *q)
{
	q->batch = false;
}

void cuda_queue_warm(struct cuda_queue *q)
{
	struct cuda_pages none = { .page_bytes = UNIT_BYTES };
	const struct cuda_lib *lib;
	bool is_signed;

	if (!q->copy_pages || q->batch || enter(q, &lib) != WIMM_OK)
		return;
	if (launch(q, &none, &is_signed) == WIMM_OK)
		(void)lib->stream_write64(q->stream, (cu_ptr)(uintptr_t)q->done, q->ticket, 0);
	mem_cuda_leave(lib);
}

bool cuda_queue_done(const struct cuda_queue *q, uint64_t ticket)
{
	/* Acquire, with the card's write, which comes after the bytes that it stands for. */
	return __atomic_load_n(q->done, __ATOMIC_ACQUIRE) >= ticket;
}

wimm_status cuda_queue_check(struct cuda_queue *q)
{
	const struct cuda_lib *lib;
	wimm_status st = enter(q, &lib);
	cu_result code;

	if (st != WIMM_OK)
		return st;
	code = lib->stream_query(q->stream);
	mem_cuda_leave(lib);
	if (code != CU_OK && code != CU_NOT_READY)
		return fail(q, "a copy failed", code);
	return WIMM_OK;
}

const char *cuda_queue_error(const struct cuda_queue *q)
{
	return q->text;
}

void cuda_queue_drain(struct cuda_queue *q)
{
	const struct cuda_lib *lib;

	if (mem_cuda_enter(q->device, &lib) != WIMM_OK)
		return;
	(void)lib->stream_sync(q->stream);
	mem_cuda_leave(lib);
}
