/* SPDX-License-Identifier: Apache-2.0 */
/* Words between kernels and the host: watchers, and counters that a kernel waits on. */
#include "gpu/gpu.h"

#include "mem/word.h"
#include "plat/thread.h"

#include <wimm/imm.h>
#include <wimm/region.h>
#include <wimm/transfer.h>
#include <wimm/watcher.h>

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 20000, GRAPH_BUMPS = 64, GRAPH_RUNS = 200, WATCHERS = 300 };

static struct wimm_engine *engine;

static void add_u64(volatile uint64_t *word, uint64_t value)
{
	__atomic_store_n(word, value, __ATOMIC_RELEASE);
}

/* --- the round: kernel, host, kernel --- */

static uint64_t *flag;

static void answer(void *context, uint64_t old_value, uint64_t new_value)
{
	(void)context;
	(void)old_value;
	add_u64(flag, new_value);
}

static void spin_raw(void *arg)
{
	uint64_t *word = arg;
	uint64_t seen = 0;

	while (seen < ROUNDS) {
		uint64_t now = __atomic_load_n(word, __ATOMIC_ACQUIRE);

		if (now == seen)
			continue;
		seen = now;
		add_u64(flag, now);
	}
}

/* p50 and p99 of a round in us, by the card's clock. */
static void rounds(const char *name, uint64_t *word, double *out_p50)
{
	uint32_t *cycles = cuda_host_alloc(ROUNDS * sizeof(*cycles));
	uint64_t *span = cuda_host_alloc(2 * sizeof(*span));
	static double us[ROUNDS];
	uint64_t n = ROUNDS;
	double total = 0;
	double scale;
	char full[64];
	void *params[] = { &word, &flag, &n, &cycles, &span };

	gpu_launch(gpu.stream, "round_trips", 1, 1, params);
	MUST(gpu.lib->stream_sync(gpu.stream));
	for (int i = 0; i < ROUNDS; i++)
		total += cycles[i];
	scale = (double)(span[1] - span[0]) / total / 1e3;
	for (int i = 0; i < ROUNDS; i++)
		us[i] = cycles[i] * scale;
	*out_p50 = gpu_percentile(us, ROUNDS, 0.5);
	(void)snprintf(full, sizeof(full), "%s_p50", name);
	gpu_figure(full, *out_p50, "us");
	(void)snprintf(full, sizeof(full), "%s_p99", name);
	gpu_figure(full, gpu_percentile(us, ROUNDS, 0.99), "us");
	(void)snprintf(full, sizeof(full), "%s_p999", name);
	gpu_figure(full, gpu_percentile(us, ROUNDS, 0.999), "us");
	cuda_host_free(cycles);
	cuda_host_free(span);
}

static void round_case(void)
{
	struct wimm_uvm_watcher *wa;
	struct plat_thread thread;
	uint64_t *word = mem_word_alloc();
	double raw, ours;

	gpu_case("watcher: kernel, callback, kernel");
	flag = mem_word_alloc();
	MUST(plat_thread_start(&thread, spin_raw, word, "raw", PLAT_CPU_ANY));
	rounds("round_raw", word, &raw);
	plat_thread_join(&thread);
	add_u64(flag, 0);
	MUST(wimm_alloc_uvm_watcher(engine, answer, NULL, &wa));
	rounds("round_watcher", wimm_uvm_watcher_word(wa), &ours);
	MUST(wimm_free_uvm_watcher(wa));
	gpu_figure("round_watcher_over_raw", ours - raw, "us");
	mem_word_free(word);
	mem_word_free(flag);
}

/* --- graphs, many words --- */

struct seen {
	_Atomic uint64_t calls;
	_Atomic uint64_t last;
	_Atomic uint64_t broken; /* steps back, or from a value not told before */
};

static void count_calls(void *context, uint64_t old_value, uint64_t new_value)
{
	struct seen *s = context;

	if (old_value != atomic_load(&s->last) || new_value <= old_value)
		atomic_fetch_add(&s->broken, 1);
	atomic_store(&s->last, new_value);
	atomic_fetch_add(&s->calls, 1);
}

static void wait_for_value(const struct seen *s, uint64_t value)
{
	double limit = gpu_now_s() + 30;

	while (atomic_load(&s->last) < value && gpu_now_s() < limit)
		plat_thread_yield();
	CHECK(atomic_load(&s->last) == value);
	CHECK(atomic_load(&s->broken) == 0);
}

static void graph_case(void)
{
	static struct seen seen;
	struct wimm_uvm_watcher *wa;
	uint64_t *word;
	void *graph, *exec;
	void *params[] = { &word };

	gpu_case("watcher: bumps of kernels of one graph, replayed");
	MUST(wimm_alloc_uvm_watcher(engine, count_calls, &seen, &wa));
	word = wimm_uvm_watcher_word(wa);
	MUST(gpu.capture(gpu.stream, 2));
	for (int i = 0; i < GRAPH_BUMPS; i++)
		gpu_launch(gpu.stream, "bump", 1, 1, params);
	MUST(gpu.captured(gpu.stream, &graph));
	MUST(gpu.instantiate(&exec, graph, 0));
	for (int i = 0; i < GRAPH_RUNS; i++)
		MUST(gpu.graph_launch(exec, gpu.stream));
	MUST(gpu.lib->stream_sync(gpu.stream));
	wait_for_value(&seen, (uint64_t)GRAPH_BUMPS * GRAPH_RUNS);
	gpu_figure("graph_bumps_reported_share",
	           100.0 * (double)atomic_load(&seen.calls) / (GRAPH_BUMPS * GRAPH_RUNS), "%");
	MUST(wimm_free_uvm_watcher(wa));
}

static void many_case(void)
{
	static struct seen seen[WATCHERS];
	struct wimm_uvm_watcher *wa[WATCHERS];

	gpu_case("watcher: allocation, release and reuse of many");
	for (int run = 0; run < 3; run++) {
		memset(seen, 0, sizeof(seen));
		for (int i = 0; i < WATCHERS; i++)
			MUST(wimm_alloc_uvm_watcher(engine, count_calls, &seen[i], &wa[i]));
		for (int i = 0; i < WATCHERS; i++) {
			uint64_t *word = wimm_uvm_watcher_word(wa[i]);
			void *params[] = { &word };

			for (int k = 0; k <= i % 3; k++)
				gpu_launch(gpu.stream, "bump", 1, 1, params);
		}
		MUST(gpu.lib->stream_sync(gpu.stream));
		for (int i = 0; i < WATCHERS; i++) {
			MUST(wimm_free_uvm_watcher(wa[i]));
			CHECK(atomic_load(&seen[i].last) == (uint64_t)(i % 3) + 1);
			CHECK(atomic_load(&seen[i].broken) == 0);
		}
	}
}

/* --- counters --- */

static void counter_case(void)
{
	struct wimm_mr *mr;
	struct wimm_mr_desc desc;
	struct wimm_remote_mr *remote;
	struct wimm_write wr = WIMM_WRITE_INIT;
	uint64_t *done = mem_word_alloc();
	uint64_t *left = mem_word_alloc();
	struct wimm_on_done on_done = { .flag = done };
	static uint64_t memory[64];
	uint64_t one = 1;
	void *params[] = { &done, &one, &left };
	struct cu_stream *second = gpu_stream();

	gpu_case("counter: a count that is reached releases a kernel and a waiting stream");
	MUST(wimm_reg_mr(engine, memory, sizeof(memory), NULL, &mr));
	MUST(wimm_mr_get_desc(mr, &desc));
	MUST(wimm_open_remote_mr(engine, &desc, &remote));
	wr.src = mr;
	wr.dst = remote;
	wr.len_bytes = 8;
	wr.dst_offset_bytes = 64;
	wr.imm = 5;
	wr.flags = WIMM_IMM;
	for (int i = 0; i < 200; i++) {
		add_u64(done, 0);
		add_u64(left, 0);
		MUST(wimm_expect_imm_count(engine, 5, 3, NULL, &on_done, NULL));
		if (i % 2 == 0) {
			gpu_launch(second, "wait_for", 1, 1, params);
		} else {
			MUST(gpu.stream_wait64(second, (cu_ptr)(uintptr_t)done, 1, 0));
			MUST(gpu.lib->stream_write64(second, (cu_ptr)(uintptr_t)left, 1, 0));
		}
		for (int k = 0; k < 3; k++) {
			CHECK(gpu.lib->stream_query(second) == CU_NOT_READY);
			MUST(wimm_submit_single_write(engine, &wr, NULL, NULL));
		}
		MUST(gpu.lib->stream_sync(second));
		CHECK(__atomic_load_n(left, __ATOMIC_ACQUIRE) == 1);
	}
	MUST(wimm_close_remote_mr(engine, remote));
}

/* --- a kernel that waits for "at least n", on two streams --- */

enum { BLOCKS = 64, WORDS = 256, IMM_MIRROR = 9 };

static struct wimm_mr *gpu_region(cu_ptr *out, struct wimm_mr_desc *desc)
{
	struct wimm_mr *mr;

	*out = gpu_alloc(BLOCKS * WORDS * 8);
	MUST(wimm_reg_mr(engine, (void *)(uintptr_t)*out, BLOCKS * WORDS * 8, NULL, &mr));
	MUST(wimm_mr_get_desc(mr, desc));
	return mr;
}

/* The words say 5 and the mirror does before anything was written: the consumer must see it. */
static void planted_case(void)
{
	struct cu_stream *consumer = gpu_stream();
	uint64_t *flag_word = mem_word_alloc();
	uint64_t *next = mem_word_alloc();
	unsigned long long *wrong = cuda_host_alloc(sizeof(*wrong));
	uint32_t n = WORDS, blocks = BLOCKS;
	uint64_t rounds = 5;
	cu_ptr dst = gpu_alloc(BLOCKS * WORDS * 8);
	void *params[] = { &flag_word, &rounds, &dst, &n, &blocks, &next, &wrong };

	gpu_case("counter: a planted early release is caught");
	*wrong = 0;
	gpu_fill(dst, BLOCKS * WORDS * 8, 3, 0);
	gpu_launch(consumer, "consume", 1, 128, params);
	add_u64(flag_word, 5);
	MUST(gpu.lib->stream_sync(consumer));
	CHECK(*wrong != 0);
	gpu_figure("mirror_planted_release_seen", (double)*wrong, "wrong words");
	MUST(gpu.free(dst));
}

/* A stream's own wait for "at least n" of a mirror. */
static void stream_mirror_case(void)
{
	enum { VALUES = 100, IMM_STREAM = 11 };
	struct cu_stream *stream = gpu_stream();
	struct wimm_write wr = WIMM_WRITE_INIT;
	uint64_t *mirror = mem_word_alloc();
	uint64_t *passed = mem_word_alloc();
	static uint64_t memory[2];
	struct wimm_remote_mr *remote;
	struct wimm_mr_desc desc;
	uint64_t total;

	gpu_case("counter: a stream waits for at least n of a mirror");
	MUST(wimm_reg_mr(engine, memory, sizeof(memory), NULL, (struct wimm_mr **)&wr.src));
	MUST(wimm_mr_get_desc(wr.src, &desc));
	MUST(wimm_open_remote_mr(engine, &desc, &remote));
	MUST(wimm_mirror_enable(engine, IMM_STREAM, mirror));
	wr.dst = remote;
	wr.len_bytes = 8;
	wr.dst_offset_bytes = 8;
	wr.imm = IMM_STREAM;
	wr.flags = WIMM_IMM | WIMM_BLOCK;
	for (uint64_t i = 1; i <= VALUES; i++) {
		MUST(gpu.stream_wait64(stream, (cu_ptr)(uintptr_t)mirror, 3 * i, 0));
		MUST(gpu.lib->stream_write64(stream, (cu_ptr)(uintptr_t)passed, i, 0));
	}
	for (uint64_t i = 1; i <= VALUES; i++) {
		double limit = gpu_now_s() + 15;

		for (int k = 0; k < 3; k++) {
			CHECK(__atomic_load_n(passed, __ATOMIC_ACQUIRE) == i - 1);
			MUST(wimm_submit_single_write(engine, &wr, NULL, NULL));
		}
		while (__atomic_load_n(passed, __ATOMIC_ACQUIRE) != i)
			MUST(gpu_now_s() > limit);
	}
	MUST(wimm_mirror_disable(engine, IMM_STREAM, &total));
	CHECK(total == 3 * VALUES);
	MUST(wimm_close_remote_mr(engine, remote));
}

/* One kernel consumes values in order as the mirror of an immediate grows; another stream makes
 * what is written. */
static void mirror_case(uint64_t rounds)
{
	struct cu_stream *consumer = gpu_stream();
	struct wimm_write wr = WIMM_WRITE_INIT;
	uint64_t *mirror = mem_word_alloc();
	uint64_t *next = mem_word_alloc();
	unsigned long long *wrong = cuda_host_alloc(sizeof(*wrong));
	struct wimm_mr_desc desc;
	struct wimm_remote_mr *remote;
	uint32_t n = WORDS, blocks = BLOCKS;
	uint64_t total;
	cu_ptr src, dst;
	void *params[] = { &mirror, &rounds, &dst, &n, &blocks, &next, &wrong };
	double from;

	gpu_case("counter: a kernel that waits for at least n reads what was written");
	*wrong = 0;
	wr.src = gpu_region(&src, &desc);
	(void)gpu_region(&dst, &desc);
	MUST(wimm_open_remote_mr(engine, &desc, &remote));
	MUST(wimm_mirror_enable(engine, IMM_MIRROR, mirror));
	{ /* loaded before a kernel runs that waits */
		uint64_t first = 1;
		void *made[] = { &src, &n, &first };

		gpu_launch(gpu.stream, "number_blocks", BLOCKS, WORDS, made);
		MUST(gpu.lib->stream_sync(gpu.stream));
	}
	gpu_launch(consumer, "consume", 1, 128, params);
	wr.dst = remote;
	wr.len_bytes = WORDS * 8;
	wr.imm = IMM_MIRROR;
	wr.flags = WIMM_IMM | WIMM_BLOCK;
	from = gpu_now_s();
	for (uint64_t value = 1; value <= rounds; value++) {
		if (value % BLOCKS == 1) {
			void *made[] = { &src, &n, &value };

			while (__atomic_load_n(next, __ATOMIC_ACQUIRE) + 1 < value)
				MUST(gpu_now_s() > from + 100);
			gpu_launch(gpu.stream, "number_blocks", BLOCKS, WORDS, made);
			MUST(gpu.lib->stream_sync(gpu.stream));
		}
		wr.src_offset_bytes = (value - 1) % BLOCKS * WORDS * 8;
		wr.dst_offset_bytes = value % BLOCKS * WORDS * 8;
		MUST(wimm_submit_single_write(engine, &wr, NULL, NULL));
	}
	MUST(gpu.lib->stream_sync(consumer));
	CHECK(*wrong == 0);
	gpu_figure("mirror_releases_checked", (double)rounds, "rounds");
	gpu_figure("mirror_round", (gpu_now_s() - from) * 1e6 / (double)rounds, "us");
	MUST(wimm_mirror_disable(engine, IMM_MIRROR, &total));
	CHECK(total == rounds);
	MUST(wimm_close_remote_mr(engine, remote));
}

int main(int argc, char **argv)
{
	struct wimm_engine_opts opts = WIMM_ENGINE_OPTS_INIT;

	gpu_start();
	opts.provider = "host";
	MUST(wimm_engine_open(&opts, &engine));
	round_case();
	graph_case();
	many_case();
	counter_case();
	stream_mirror_case();
	planted_case();
	mirror_case(argc > 1 ? strtoull(argv[1], NULL, 0) : 1000000);
	gpu_case(NULL);
	MUST(wimm_engine_close(&engine));
	return gpu_end();
}
