/* SPDX-License-Identifier: Apache-2.0 */
/* What a layer's transfer spends its time on. Functions that the library calls from one file to
 * another are wrapped by this program's linker (--wrap), and two of the driver's by its table, so
 * the library has nothing of it. Each mark keeps the last time that it was passed: that of the last
 * layer. */
#include "gpu/kv_layers.h"

#include "core/engine.h"
#include "core/op.h"
#include "plat/clock.h"
#include "prov/host/path.h"

#include <dlfcn.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

static struct kvl_share *sh;
static _Atomic(struct wimm_engine *) engine;
static bool is_prefill;
static _Thread_local bool in_wake_wait;
static _Atomic uint64_t worker_woke, caller_woke;

/* The driver's own, and two events around a list where they are asked for. */
static cu_result (*launch_real)(struct cu_function *, unsigned int, unsigned int, unsigned int,
                                unsigned int, unsigned int, unsigned int, unsigned int,
                                struct cu_stream *, void **, void **);
static cu_result (*elapsed)(float *, struct cu_event *, struct cu_event *);
static struct cu_event *begins, *ends;
static bool is_list;

static uint64_t get(enum kvl_mark m)
{
	return atomic_load_explicit(&sh->mark[m], memory_order_relaxed);
}

static void set(enum kvl_mark m)
{
	if (sh)
		atomic_store_explicit(&sh->mark[m], clock_now_ns(), memory_order_relaxed);
}

/* When a thread that gets there was woken, as it does. */
static void set_woke(enum kvl_mark m, const _Atomic uint64_t *woke)
{
	if (sh)
		atomic_store_explicit(&sh->mark[m], atomic_load(woke), memory_order_relaxed);
}

void kvl_times_called(void)
{
	set_woke(KVL_RECEIVER_CALLER_WOKE, &caller_woke);
}

/* Once after the last list was asked for. */
static void set_first(enum kvl_mark m)
{
	if (sh && get(m) < get(KVL_ASKED))
		set(m);
}

/* --- the library --- */

#define WRAP(type, name, ...)                                                                      \
	type __real_##name(__VA_ARGS__);                                                           \
	type __wrap_##name(__VA_ARGS__);                                                           \
	type __wrap_##name(__VA_ARGS__)

WRAP(void, deliver_push, struct wimm_engine *of, struct delivery *d)
{
	if (plat_thread_is_self(&of->watch.thread))
		set(KVL_SEEN);
	else if (!is_prefill)
		set(KVL_COUNTED);
	__real_deliver_push(of, d);
}

WRAP(void, kv_cache_turn_due, struct wimm_kv_cache *cache)
{
	if (is_prefill) {
		set(KVL_CALLED);
		set_woke(KVL_SENDER_CALLER_WOKE, &caller_woke);
	}
	__real_kv_cache_turn_due(cache);
}

WRAP(wimm_status, wimm_submit_paged_writes, struct wimm_engine *of,
     const struct wimm_paged_writes *wr, const struct wimm_on_done *on_done, wimm_op *out_op)
{
	wimm_status st;

	set(KVL_SUBMIT);
	st = __real_wimm_submit_paged_writes(of, wr, on_done, out_op);
	set(KVL_SUBMITTED);
	return st;
}

WRAP(void, op_start, struct worker *w, struct op *op)
{
	if (op->kind == OP_PAGED) {
		set(KVL_STARTED);
		set_woke(KVL_SENDER_WORKER_WOKE, &worker_woke);
	}
	__real_op_start(w, op);
}

WRAP(wimm_status, cuda_queue_pages, struct cuda_queue *q, const struct cuda_pages *p,
     uint64_t *out_ticket)
{
	wimm_status st;

	set(KVL_ASKED);
	is_list = true;
	st = __real_cuda_queue_pages(q, p, out_ticket);
	is_list = false;
	set(KVL_SIGNED);
	return st;
}

WRAP(bool, cuda_queue_done, const struct cuda_queue *q, uint64_t ticket)
{
	bool done = __real_cuda_queue_done(q, ticket);

	if (done)
		set_first(KVL_COPIED);
	return done;
}

WRAP(void, host_tx_publish, struct host_path *path, struct host_req *req, struct host_entry *e)
{
	__real_host_tx_publish(path, req, e);
	if (is_prefill)
		set(KVL_ENTERED);
}

WRAP(void, host_path_ring, struct host_path *path)
{
	__real_host_path_ring(path);
	if (is_prefill)
		set_first(KVL_RUNG);
}

WRAP(enum host_slot_look, host_slot_get, const struct host_slot *slot, uint32_t pos,
     struct host_entry *out)
{
	enum host_slot_look look = __real_host_slot_get(slot, pos, out);

	if (look == HOST_SLOT_FULL && !is_prefill) {
		set(KVL_GOT);
		set_woke(KVL_RECEIVER_WORKER_WOKE, &worker_woke);
	}
	return look;
}

WRAP(bool, wake_wait, struct wake *w, uint64_t deadline_ns)
{
	struct wimm_engine *of = atomic_load(&engine);
	bool signalled;

	in_wake_wait = true;
	signalled = __real_wake_wait(w, deadline_ns);
	in_wake_wait = false;
	if (of && w == &of->delivery_wake)
		atomic_store(&caller_woke, clock_now_ns());
	return signalled;
}

WRAP(int, ppoll, struct pollfd *fds, nfds_t n, const struct timespec *limit, const sigset_t *mask)
{
	struct wimm_engine *of = atomic_load(&engine);
	int ready = __real_ppoll(fds, n, limit, mask);

	if (of && !in_wake_wait && plat_thread_is_self(&of->worker.thread))
		atomic_store(&worker_woke, clock_now_ns());
	return ready;
}

/* --- the driver --- */

static cu_result launch(struct cu_function *f, unsigned int x, unsigned int y, unsigned int z,
                        unsigned int tx, unsigned int ty, unsigned int tz, unsigned int shared,
                        struct cu_stream *stream, void **params, void **extra)
{
	bool timed = is_list && is_prefill && sh->events;
	cu_result code;

	if (timed)
		MUST(gpu.lib->event_record(begins, stream));
	code = launch_real(f, x, y, z, tx, ty, tz, shared, stream, params, extra);
	if (timed)
		MUST(gpu.lib->event_record(ends, stream));
	if (is_list)
		set(KVL_LAUNCHED);
	return code;
}

static void hook_driver(void)
{
	/* The table is written once, when the driver is loaded; nothing is under way yet. */
	struct cuda_lib *lib = (struct cuda_lib *)(uintptr_t)gpu.lib;
	void *self = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	void *symbol = self ? dlsym(self, "cuEventElapsedTime") : NULL;

	if (!symbol)
		return; /* the driver of tests/fake */
	memcpy(&elapsed, &symbol, sizeof(elapsed));
	MUST(lib->event_create(&begins, 0));
	MUST(lib->event_create(&ends, 0));
	launch_real = lib->launch;
	lib->launch = launch;
}

double kvl_card_us(void)
{
	float ms = 0;

	if (!sh->events || !elapsed || elapsed(&ms, begins, ends) != CU_OK)
		return 0;
	return ms * 1e3;
}

/* --- the card's clock --- */

struct nvml {
	int (*init)(void);
	int (*device)(unsigned int, void **);
	int (*clock)(void *, int, unsigned int *);
	int (*power)(void *, unsigned int *);
	void *card; /* NULL: not here */
};

static struct nvml nvml;

static bool nvml_find(void *lib, const char *name, void *out)
{
	void *symbol = dlsym(lib, name);

	memcpy(out, &symbol, sizeof(symbol));
	return symbol != NULL;
}

static void nvml_open(void)
{
	void *lib = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);

	if (!lib || !nvml_find(lib, "nvmlInit_v2", &nvml.init) ||
	    !nvml_find(lib, "nvmlDeviceGetHandleByIndex_v2", &nvml.device) ||
	    !nvml_find(lib, "nvmlDeviceGetClockInfo", &nvml.clock) ||
	    !nvml_find(lib, "nvmlDeviceGetPowerUsage", &nvml.power) || nvml.init() != 0 ||
	    nvml.device(0, &nvml.card) != 0)
		nvml.card = NULL;
}

void kvl_card_state(uint32_t *out_mhz, uint32_t *out_watts)
{
	unsigned int mhz = 0, milliwatts = 0;

	if (nvml.card) {
		(void)nvml.clock(nvml.card, 1, &mhz); /* of the SMs */
		(void)nvml.power(nvml.card, &milliwatts);
	}
	*out_mhz = mhz;
	*out_watts = milliwatts / 1000;
}

/* --- start and report --- */

void kvl_times_start(struct kvl_share *share, bool prefill)
{
	is_prefill = prefill;
	sh = share;
	if (!prefill)
		return;
	hook_driver();
	nvml_open();
}

void kvl_times_of(struct wimm_engine *of)
{
	atomic_store(&engine, of);
}

void kvl_times_add(struct kvl_steps *s, uint64_t counted_ns)
{
	uint64_t *to = s->at[s->count];

	if (s->count == KVL_STEP_ROUNDS)
		return;
	for (int m = 0; m < KVL_MARKS; m++)
		to[m] = get((enum kvl_mark)m);
	to[KVL_STORED] = sh->store_ns;
	to[KVL_CALLBACK] = counted_ns;
	s->card_us[s->count] = sh->card_us;
	s->mhz[s->count] = sh->card_mhz;
	s->watts[s->count] = sh->card_watts;
	s->count++;
}

/* Microseconds from one mark to another, of all rounds. */
static double between(const struct kvl_steps *s, enum kvl_mark from, enum kvl_mark to, double p)
{
	double us[KVL_STEP_ROUNDS];

	for (uint32_t i = 0; i < s->count; i++)
		us[i] = (double)(int64_t)(s->at[i][to] - s->at[i][from]) / 1e3;
	return gpu_percentile(us, s->count, p);
}

/* How often a thread woke up only after the store. */
static uint32_t late(const struct kvl_steps *s, enum kvl_mark woke)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < s->count; i++)
		n += s->at[i][woke] > s->at[i][KVL_STORED];
	return n;
}

void kvl_times_print(const char *title, struct kvl_steps *s, bool alone)
{
	static const struct {
		enum kvl_mark from, to;
		const char *what;
	} steps[] = {
		{ KVL_STORED, KVL_SEEN, "store to the watcher thread's report" },
		{ KVL_SEEN, KVL_CALLED, "to the callback" },
		{ KVL_CALLED, KVL_SUBMIT, "to the submission" },
		{ KVL_SUBMIT, KVL_SUBMITTED, "  the submission itself" },
		{ KVL_SUBMIT, KVL_STARTED, "to the worker's start" },
		{ KVL_STARTED, KVL_ASKED, "to the copy's launch" },
		{ KVL_ASKED, KVL_LAUNCHED, "  the launch itself" },
		{ KVL_LAUNCHED, KVL_SIGNED, "  its signature" },
		{ KVL_SIGNED, KVL_RUNG, "  the receiver is rung" },
		{ KVL_ASKED, KVL_COPIED, "to the end of the copy" },
		{ KVL_COPIED, KVL_ENTERED, "to the entry in the ring" },
		{ KVL_ENTERED, KVL_GOT, "to the receiver's look" },
		{ KVL_GOT, KVL_COUNTED, "to the count" },
		{ KVL_COUNTED, KVL_CALLBACK, "to the receiver's callback" },
		{ KVL_STORED, KVL_RECEIVER_WORKER_WOKE, "  receiver's worker was last woken" },
		{ KVL_STORED, KVL_RECEIVER_CALLER_WOKE, "  its callback thread" },
		{ KVL_STORED, KVL_SENDER_WORKER_WOKE, "  sender's worker" },
		{ KVL_STORED, KVL_SENDER_CALLER_WOKE, "  its callback thread" },
	};
	double card[KVL_STEP_ROUNDS], mhz[KVL_STEP_ROUNDS], watts[KVL_STEP_ROUNDS];

	if (s->count == 0)
		return;
	printf("\n# %s: us, of %u rounds\n| step | least | p50 | p90 | most |\n|---|---|---|---|"
	       "---|\n",
	       title, s->count);
	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		/* A list alone has no watcher, and nobody expects its immediates. */
		if (alone && (steps[i].to < KVL_SUBMIT || steps[i].from == KVL_CALLED ||
		              steps[i].to == KVL_COUNTED || steps[i].to == KVL_CALLBACK ||
		              steps[i].from == KVL_STORED))
			continue;
		printf("| %s | %.1f | %.1f | %.1f | %.1f |\n", steps[i].what,
		       between(s, steps[i].from, steps[i].to, 0),
		       between(s, steps[i].from, steps[i].to, 0.5),
		       between(s, steps[i].from, steps[i].to, 0.9),
		       between(s, steps[i].from, steps[i].to, 1));
	}
	for (uint32_t i = 0; i < s->count; i++) {
		card[i] = s->card_us[i];
		mhz[i] = s->mhz[i];
		watts[i] = s->watts[i];
	}
	printf("# woken after the store: sender's worker %u, its callback thread %u, receiver's "
	       "worker %u, its callback thread %u times\n",
	       late(s, KVL_SENDER_WORKER_WOKE), late(s, KVL_SENDER_CALLER_WOKE),
	       late(s, KVL_RECEIVER_WORKER_WOKE), late(s, KVL_RECEIVER_CALLER_WOKE));
	printf("# the card afterwards: %.0f MHz, %.0f W (p50)", gpu_percentile(mhz, s->count, 0.5),
	       gpu_percentile(watts, s->count, 0.5));
	if (card[0] != 0)
		printf("; the copy by the card's own clock: least %.1f, p50 %.1f, p90 %.1f us",
		       gpu_percentile(card, s->count, 0), gpu_percentile(card, s->count, 0.5),
		       gpu_percentile(card, s->count, 0.9));
	printf("\n");
}
