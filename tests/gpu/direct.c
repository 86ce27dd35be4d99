/* SPDX-License-Identifier: Apache-2.0 */
/* GPU to GPU between two processes of one machine, over provider host. A child writes, this process
 * receives and checks; the children are one after the other, since most of them come to grief.
 *   gpu_direct SECONDS ROUNDS    of random lengths and places, three parts of it push, pull and
 *                                through slots; and of releases by immediates. ROUNDS 0: slots only
 */
#include "gpu/gpu.h"

#include "base/config.h"
#include "core/engine.h"
#include "mem/word.h"
#include "plat/clock.h"
#include "plat/rand.h"
#include "plat/thread.h"

#include <wimm/imm.h>
#include <wimm/region.h>
#include <wimm/transfer.h>

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)
#define STAGED_BYTES (256 * MIB)

enum {
	LATENCY_ROUNDS = 5000,
	IMM_DATA = 1,
	IMM_NONE = 2,
	GUARD = 256,
	WORDS = 1024,
	BLOCKS = 64,
	CHILDREN = 4,
	CHILD_PATIENCE_S = 200, /* between two commands */
};

enum command {
	CMD_NONE,
	CMD_SINGLE,
	CMD_PAGES,
	CMD_LATENCY,
	CMD_RANDOM,
	CMD_NUMBERED,
	CMD_ENDLESS,
};

/* Between the two processes. */
struct shared {
	_Atomic uint32_t asked;
	_Atomic uint32_t answered;
	enum command command;
	struct wimm_mr_desc desc;
	uint64_t region_bytes;
	char sms[8];
	char provider[8];
	char way[8];      /* setting host_gpu_way of both */
	bool host_memory; /* of the child's */
	uint64_t len, count, times;
	double rate;
	double submit_us; /* of the list's submission */
	uint64_t src_offset, dst_offset;
	_Atomic uint64_t arrived;    /* latency: the round that has come */
	_Atomic uint64_t arrived_ns;
	double us[LATENCY_ROUNDS];
	_Atomic uint64_t next;       /* numbered: the value the consumer has seen */
};

static struct shared *sh;
static struct rng rng;
static struct wimm_engine *engine;
static bool driven; /* this process drives its engine itself */

static void progress(void)
{
	int busy;

	if (driven)
		MUST(wimm_progress(engine, &busy));
	else
		plat_cpu_relax();
}

static void wait_within(const _Atomic uint32_t *word, uint32_t value, double seconds)
{
	double limit = gpu_now_s() + seconds;

	while (atomic_load(word) != value) {
		MUST(gpu_now_s() > limit);
		progress();
	}
}

static void wait_for(const _Atomic uint32_t *word, uint32_t value)
{
	wait_within(word, value, 15);
}

static uint64_t flag_wait(uint64_t *flag)
{
	double limit = gpu_now_s() + 15;

	while (wimm_flag_load(flag) == 0) {
		MUST(gpu_now_s() > limit);
		progress();
	}
	return *flag;
}

/* --- the child: writes --- */

static struct wimm_mr *src_mr;
static struct wimm_remote_mr *dst;
static cu_ptr src;

static void open_engine(wimm_progress_mode mode)
{
	struct wimm_engine_opts opts = WIMM_ENGINE_OPTS_INIT;

	opts.provider = sh->provider;
	opts.nics = strcmp(sh->provider, "tcp") == 0 ? "127.0.0.1:0" : NULL;
	opts.progress = mode;
	MUST(config_set("same_host", "off"));
	MUST(config_set("host_gpu_way", sh->way));
	MUST(wimm_engine_open(&opts, &engine));
}

static struct wimm_write one_write(uint64_t len)
{
	struct wimm_write wr = WIMM_WRITE_INIT;

	wr.src = src_mr;
	wr.dst = dst;
	wr.len_bytes = len;
	wr.flags = WIMM_IMM;
	wr.imm = IMM_NONE;
	return wr;
}

static void do_single(void)
{
	struct wimm_write wr = one_write(sh->len);
	uint64_t flags[64];
	double from = 0;

	for (uint64_t run = 0; run < 2; run++) { /* the first opens the way */
		memset(flags, 0, sizeof(flags));
		from = gpu_now_s();
		for (uint64_t i = 0; i < sh->times; i++) {
			struct wimm_on_done on_done = { .flag = &flags[i] };

			MUST(wimm_submit_single_write(engine, &wr, &on_done, NULL));
		}
		for (uint64_t i = 0; i < sh->times; i++)
			MUST(flag_wait(&flags[i]) != 1);
	}
	sh->rate = (double)(sh->len * sh->times) / (gpu_now_s() - from) / 1e9;
}

static void do_pages(void)
{
	struct wimm_paged_writes wr = WIMM_PAGED_WRITES_INIT;
	uint32_t *index = malloc(2 * sh->count * sizeof(*index));
	uint64_t stride = sh->region_bytes / sh->count / sh->len * sh->len;
	uint64_t flags[64];
	double from = 0;

	for (uint64_t i = 0; i < sh->count; i++)
		index[i] = index[sh->count + i] = (uint32_t)i;
	rng_shuffle_u32(&rng, index, sh->count);
	rng_shuffle_u32(&rng, index + sh->count, sh->count);
	wr.src = src_mr;
	wr.dst = dst;
	wr.page_len_bytes = sh->len;
	wr.src_pages = (struct wimm_pages){ .indices = index, .count = sh->count,
		                            .stride_bytes = stride };
	wr.dst_pages = wr.src_pages;
	wr.dst_pages.indices = index + sh->count;
	wr.flags = WIMM_IMM;
	wr.imm = IMM_NONE;
	for (uint64_t run = 0; run < 2; run++) {
		memset(flags, 0, sizeof(flags));
		from = gpu_now_s();
		for (uint64_t i = 0; i < sh->times; i++) {
			struct wimm_on_done on_done = { .flag = &flags[i] };

			MUST(wimm_submit_paged_writes(engine, &wr, &on_done, NULL));
		}
		sh->submit_us = (gpu_now_s() - from) * 1e6 / (double)sh->times;
		for (uint64_t i = 0; i < sh->times; i++)
			MUST(flag_wait(&flags[i]) != 1);
	}
	sh->rate = (double)(sh->len * sh->count * sh->times) / (gpu_now_s() - from) / 1e9;
	free(index);
}

static void do_latency(void)
{
	struct wimm_write wr = one_write(sh->len);

	wr.imm = IMM_DATA;
	for (uint64_t i = 0; i < LATENCY_ROUNDS; i++) {
		uint64_t from = clock_now_ns();
		double limit = gpu_now_s() + 20;

		MUST(wimm_submit_single_write(engine, &wr, NULL, NULL));
		while (atomic_load(&sh->arrived) != i + 1)
			MUST(gpu_now_s() > limit);
		sh->us[i] = (double)(atomic_load(&sh->arrived_ns) - from) / 1e3;
	}
}

static void do_random(void)
{
	struct wimm_write wr = one_write(sh->len);
	uint64_t flag = 0;
	struct wimm_on_done on_done = { .flag = &flag };

	wr.imm = IMM_DATA;
	wr.src_offset_bytes = sh->src_offset;
	wr.dst_offset_bytes = sh->dst_offset;
	MUST(wimm_submit_single_write(engine, &wr, &on_done, NULL));
	MUST(flag_wait(&flag) != 1);
}

/* Value i goes as block i modulo BLOCKS; the consumer lets a few be under way. */
static void do_numbered(void)
{
	struct wimm_write wr = one_write(WORDS * 8);
	uint32_t n = WORDS;

	wr.imm = IMM_DATA;
	for (uint64_t value = 1; value <= sh->times; value++) {
		double limit = gpu_now_s() + 15;

		if (value % BLOCKS == 1) {
			void *params[] = { &src, &n, &value };

			/* All of the lap before have been seen, so their sources are free. */
			while (atomic_load(&sh->next) + 1 < value)
				MUST(gpu_now_s() > limit);
			gpu_launch(gpu.stream, "number_blocks", BLOCKS, 256, params);
			MUST(gpu.lib->stream_sync(gpu.stream));
		}
		wr.src_offset_bytes = (value - 1) % BLOCKS * WORDS * 8;
		wr.dst_offset_bytes = value % BLOCKS * WORDS * 8;
		while (wimm_submit_single_write(engine, &wr, NULL, NULL) == WIMM_AGAIN)
			MUST(gpu_now_s() > limit);
	}
	while (atomic_load(&sh->next) < sh->times)
		plat_cpu_relax();
	gpu_fill(src, BLOCKS * WORDS * 8, 5, 0);
}

static void do_endless(void)
{
	struct wimm_write wr = one_write(sh->len);

	for (;;) {
		while (wimm_submit_single_write(engine, &wr, NULL, NULL) != WIMM_OK)
			plat_thread_yield();
	}
}

static void *host_memory(void)
{
	static void *memory;

	if (memory == NULL)
		memory = aligned_alloc(4096, STAGED_BYTES);
	memset(memory, 9, STAGED_BYTES);
	return memory;
}

static void child(int start)
{
	uint32_t turn = 0;

	char go;

	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	MUST(read(start, &go, 1) != 1); /* its turn has come */
	gpu_start();
	open_engine(WIMM_PROGRESS_THREADS);
	src = gpu_alloc(sh->region_bytes);
	gpu_fill(src, sh->region_bytes, 5, 0);
	MUST(wimm_reg_mr(engine, (void *)(uintptr_t)src, sh->region_bytes, NULL, &src_mr));
	for (;;) {
		wait_within(&sh->asked, ++turn, CHILD_PATIENCE_S);
		if (sh->command == CMD_NONE) { /* take the descriptor */
			MUST(config_set("gpu_sms", sh->sms));
			MUST(wimm_engine_close(&engine));
			open_engine(WIMM_PROGRESS_THREADS);
			if (sh->host_memory)
				MUST(wimm_reg_mr(engine, host_memory(), STAGED_BYTES, NULL,
				                 &src_mr));
			else
				MUST(wimm_reg_mr(engine, (void *)(uintptr_t)src, sh->region_bytes,
				                 NULL, &src_mr));
			MUST(wimm_open_remote_mr(engine, &sh->desc, &dst));
		}
		if (sh->command == CMD_SINGLE)
			do_single();
		if (sh->command == CMD_PAGES)
			do_pages();
		if (sh->command == CMD_LATENCY)
			do_latency();
		if (sh->command == CMD_RANDOM)
			do_random();
		if (sh->command == CMD_NUMBERED)
			do_numbered();
		if (sh->command == CMD_ENDLESS) {
			atomic_store(&sh->answered, turn);
			do_endless();
		}
		atomic_store(&sh->answered, turn);
	}
}

/* --- this process: receives --- */

static cu_ptr area;
static struct wimm_mr *area_mr;
static pid_t pid;

static struct {
	struct shared *sh;
	pid_t pid;
	int start; /* a byte starts it */
} children[CHILDREN];

/* Before this process has anything of CUDA. */
static void start_children(void)
{
	for (int i = 0; i < CHILDREN; i++) {
		int start[2];

		MUST(pipe(start));
		sh = mmap(NULL, sizeof(*sh), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		          0);
		MUST(sh == MAP_FAILED);
		sh->region_bytes = 5 * GIB;
		(void)snprintf(sh->provider, sizeof(sh->provider), "host");
		children[i].sh = sh;
		children[i].start = start[1];
		children[i].pid = fork();
		if (children[i].pid == 0)
			child(start[0]);
		(void)close(start[0]);
	}
}

static uint32_t ask(enum command command)
{
	sh->command = command;
	return atomic_fetch_add(&sh->asked, 1) + 1;
}

static void run(enum command command)
{
	wait_for(&sh->answered, ask(command));
}

static void own_area(void);

/* This process's side with a child of its own and a way. */
static void begin(int i, const char *way)
{
	sh = children[i].sh;
	pid = children[i].pid;
	(void)snprintf(sh->way, sizeof(sh->way), "%s", way);
	MUST(write(children[i].start, "g", 1) != 1);
	open_engine(WIMM_PROGRESS_THREADS);
	area = gpu_alloc(sh->region_bytes);
	own_area();
}

static void connect_child(const char *sms)
{
	(void)snprintf(sh->sms, sizeof(sh->sms), "%s", sms);
	run(CMD_NONE);
}

static void drop_count(void)
{
	uint64_t count;

	MUST(wimm_forget_imm(engine, IMM_NONE, &count));
}

static void rates(void)
{
	static const char *const sms[] = { "16", "32", "64", "0" };
	static const uint64_t lens[] = { 1024, 4096, 16384, 65536, 262144 };
	char name[64];

	gpu_case("direct: rates between two processes");
	connect_child("64");
	sh->len = 256 * MIB;
	sh->times = 20;
	run(CMD_SINGLE);
	gpu_figure("direct_single_256MiB", sh->rate, "GB/s");
	sh->len = MIB;
	sh->times = 60;
	run(CMD_SINGLE);
	gpu_figure("direct_single_1MiB_60_at_once", sh->rate, "GB/s");
	drop_count();
	for (size_t s = 0; s < sizeof(sms) / sizeof(sms[0]); s++) {
		const char *text = strcmp(sms[s], "0") == 0 ? "all" : sms[s];

		connect_child(sms[s]);
		for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
			sh->len = lens[i];
			sh->count = 512 * MIB / lens[i];
			sh->times = 10;
			run(CMD_PAGES);
			(void)snprintf(name, sizeof(name), "direct_pages_%luKiB_%s_sms",
			               (unsigned long)(lens[i] >> 10), text);
			gpu_figure(name, sh->rate, "GB/s");
			drop_count();
		}
		sh->len = 16384;
		sh->count = 2048;
		sh->times = 50;
		run(CMD_PAGES);
		(void)snprintf(name, sizeof(name), "direct_pages_2048_of_16KiB_%s_sms", text);
		gpu_figure(name, sh->rate, "GB/s");
		drop_count();
	}
	connect_child("64");
	sh->len = 4096;
	sh->count = 1000000;
	sh->times = 1;
	run(CMD_PAGES);
	gpu_figure("direct_million_pages_4KiB", sh->rate, "GB/s");
	gpu_figure("direct_million_pages_submit", sh->submit_us, "us");
	drop_count();
}

/* Whose SMs take part is the receiver's setting here. */
static void pull_rates(void)
{
	static const char *const sms[] = { "64", "0" };
	static const uint64_t lens[] = { 4096, 16384 };
	char name[64];

	gpu_case("pull: rates between two processes");
	for (size_t s = 0; s < 2; s++) {
		const char *text = strcmp(sms[s], "0") == 0 ? "all" : sms[s];

		MUST(wimm_engine_close(&engine));
		MUST(config_set("gpu_sms", sms[s]));
		open_engine(WIMM_PROGRESS_THREADS);
		own_area();
		connect_child(sms[s]);
		sh->len = 256 * MIB;
		sh->times = 20;
		if (s == 0) {
			run(CMD_SINGLE);
			gpu_figure("pull_single_256MiB", sh->rate, "GB/s");
			drop_count();
		}
		for (size_t i = 0; i < 2; i++) {
			sh->len = lens[i];
			sh->count = 512 * MIB / lens[i];
			sh->times = 10;
			run(CMD_PAGES);
			(void)snprintf(name, sizeof(name), "pull_pages_%luKiB_%s_sms",
			               (unsigned long)(lens[i] >> 10), text);
			gpu_figure(name, sh->rate, "GB/s");
			drop_count();
		}
	}
}

static void on_arrival(void *context, const struct wimm_done *done)
{
	uint64_t now_ns = clock_now_ns();

	(void)context;
	MUST(done->status);
	atomic_store(&sh->arrived_ns, now_ns);
	atomic_fetch_add(&sh->arrived, 1);
}

static void own_area(void)
{
	MUST(wimm_reg_mr(engine, (void *)(uintptr_t)area, sh->region_bytes, NULL, &area_mr));
	MUST(wimm_mr_get_desc(area_mr, &sh->desc));
}

static void latency(wimm_progress_mode mode, const char *prefix, const char *how)
{
	const struct wimm_on_done on_done = { .fn = on_arrival };
	static const uint64_t lens[] = { 8, 4096, 65536 };
	char name[64];

	gpu_case(strcmp(prefix, "pull") == 0 ? "pull: submit to the receiver's callback"
	                                     : "direct: submit to the receiver's callback");
	MUST(wimm_engine_close(&engine));
	open_engine(mode);
	driven = mode == WIMM_PROGRESS_CALLER;
	own_area();
	connect_child("64");
	for (size_t k = 0; k < sizeof(lens) / sizeof(lens[0]); k++) {
		uint32_t turn;

		sh->len = lens[k];
		atomic_store(&sh->arrived, 0);
		for (int i = 0; i < LATENCY_ROUNDS; i++)
			MUST(wimm_expect_imm_count(engine, IMM_DATA, 1, NULL, &on_done, NULL));
		turn = ask(CMD_LATENCY);
		while (atomic_load(&sh->answered) != turn)
			progress();
		(void)snprintf(name, sizeof(name), "%s_%luB_to_callback_%s_p50", prefix,
		               (unsigned long)lens[k], how);
		gpu_figure(name, gpu_percentile(sh->us, LATENCY_ROUNDS, 0.5), "us");
		(void)snprintf(name, sizeof(name), "%s_%luB_to_callback_%s_p99", prefix,
		               (unsigned long)lens[k], how);
		gpu_figure(name, gpu_percentile(sh->us, LATENCY_ROUNDS, 0.99), "us");
	}
}

static void random_case(double seconds, const char *prefix)
{
	double end = gpu_now_s() + seconds;
	uint64_t runs = 0;
	char name[96];

	(void)snprintf(name, sizeof(name), "%s: random lengths and places, poisoned around",
	               prefix);
	gpu_case(strdup(name));
	gpu_fill(area, 64 * MIB, 6, 0);
	while (gpu_now_s() < end) {
		uint64_t flag = 0;
		struct wimm_on_done on_done = { .flag = &flag };
		uint64_t wrong;
		uint64_t len = rng_u64(&rng) >> (rng_u64(&rng) % 22 + 42);
		uint64_t to = GUARD + rng_u64(&rng) % (64 * MIB - len - 2 * GUARD);

		sh->len = len;
		sh->src_offset = rng_u64(&rng) % (sh->region_bytes - len);
		sh->dst_offset = to;
		MUST(wimm_expect_imm_count(engine, IMM_DATA, 1, NULL, &on_done, NULL));
		(void)ask(CMD_RANDOM);
		MUST(flag_wait(&flag) != 1);
		wrong = gpu_check(area + to, len, 5, sh->src_offset);
		if (wrong != 0) {
			double from = gpu_now_s();

			printf("# %lu of %lu bytes to %#lx from %#lx are wrong", wrong, len, to,
			       sh->src_offset);
			while (gpu_now_s() - from < 0.01)
				progress();
			printf(", %lu a little later, %lu are poison\n",
			       gpu_check(area + to, len, 5, sh->src_offset),
			       len - gpu_check(area + to, len, 6, to));
		}
		CHECK(wrong == 0);
		CHECK(gpu_check(area + to - GUARD, GUARD, 6, to - GUARD) == 0);
		CHECK(gpu_check(area + to + len, GUARD, 6, to + len) == 0);
		gpu_fill(area + to, len, 6, to);
		wait_for(&sh->answered, atomic_load(&sh->asked));
		runs++;
	}
	(void)snprintf(name, sizeof(name), "%s_random_writes_checked", prefix);
	gpu_figure(name, (double)runs, "writes");
	(void)snprintf(name, sizeof(name), "%s_random_seconds", prefix);
	gpu_figure(name, seconds, "s");
}

/* --- a kernel released by immediates --- */

static uint64_t *release;

static void on_number(void *context, const struct wimm_done *done)
{
	(void)context;
	MUST(done->status);
	__atomic_add_fetch(release, 1, __ATOMIC_RELEASE);
}

static void numbered_case(uint64_t rounds, const char *prefix)
{
	const struct wimm_on_done on_done = { .fn = on_number };
	uint64_t *next = mem_word_alloc();
	unsigned long long *wrong = cuda_host_alloc(sizeof(*wrong));
	struct cu_stream *stream = gpu_stream();
	uint32_t n = WORDS, blocks = BLOCKS, turn;
	void *params[] = { &release, &rounds, &area, &n, &blocks, &next, &wrong };
	uint64_t expected = 0;

	char name[96];

	(void)snprintf(name, sizeof(name),
	               "%s: kernels released by immediates read what was written", prefix);
	gpu_case(strdup(name));
	*wrong = 0;
	release = mem_word_alloc();
	sh->times = rounds;
	atomic_store(&sh->next, 0);
	gpu_launch(stream, "consume", 1, 256, params);
	turn = ask(CMD_NUMBERED);
	while (atomic_load(&sh->answered) != turn || expected < rounds) {
		while (expected < rounds && expected < *(volatile uint64_t *)next + 1000) {
			MUST(wimm_expect_imm_count(engine, IMM_DATA, 1, NULL, &on_done, NULL));
			expected++;
		}
		atomic_store(&sh->next, *(volatile uint64_t *)next);
	}
	MUST(gpu.lib->stream_sync(stream));
	CHECK(*wrong == 0);
	(void)snprintf(name, sizeof(name), "%s_releases_checked", prefix);
	gpu_figure(name, (double)rounds, "kernels' rounds");
	/* A planted early release: the consumer must be able to see it. */
	(void)snprintf(name, sizeof(name), "%s: a planted early release is caught", prefix);
	gpu_case(strdup(name));
	gpu_fill(area, BLOCKS * WORDS * 8, 3, 0);
	__atomic_store_n(release, 5, __ATOMIC_RELEASE);
	rounds = 5;
	gpu_launch(stream, "consume", 1, 256, params);
	MUST(gpu.lib->stream_sync(stream));
	CHECK(*wrong != 0);
	(void)snprintf(name, sizeof(name), "%s_planted_release_seen", prefix);
	gpu_figure(name, (double)*wrong, "wrong words");
}

/* --- over tcp, through slots --- */

/* Reopen both sides on tcp, with one kind of memory each; the rates of single writes and pages. */
static void staged_pair(const char *name, bool from_host, bool to_host)
{
	char full[64];

	MUST(wimm_engine_close(&engine));
	(void)snprintf(sh->provider, sizeof(sh->provider), "tcp");
	sh->host_memory = from_host;
	open_engine(WIMM_PROGRESS_THREADS);
	if (to_host) {
		MUST(wimm_reg_mr(engine, host_memory(), STAGED_BYTES, NULL, &area_mr));
		MUST(wimm_mr_get_desc(area_mr, &sh->desc));
	} else {
		own_area();
	}
	connect_child("64");
	sh->len = 64 * MIB;
	sh->times = 24;
	run(CMD_SINGLE);
	(void)snprintf(full, sizeof(full), "tcp_%s_64MiB", name);
	gpu_figure(full, sh->rate, "GB/s");
	if (from_host || to_host)
		return;
	sh->len = 16384;
	sh->count = 8192;
	sh->times = 10;
	run(CMD_PAGES);
	(void)snprintf(full, sizeof(full), "tcp_%s_pages_16KiB", name);
	gpu_figure(full, sh->rate, "GB/s");
	drop_count();
}

static void staged_case(double seconds)
{
	gpu_case("staged: rates over tcp on loopback");
	staged_pair("host_to_host", true, true);
	staged_pair("gpu_to_host", false, true);
	staged_pair("host_to_gpu", true, false);
	staged_pair("gpu_to_gpu", false, false);
	random_case(seconds, "staged");
	(void)snprintf(sh->provider, sizeof(sh->provider), "host");
	sh->host_memory = false;
}

/* The memory is the card's again, and works. */
static void take_area_back(void)
{
	uint64_t flag = 0;
	struct wimm_on_done on_done = { .flag = &flag };
	double from = gpu_now_s();
	char name[64];

	MUST(wimm_dereg_mr(engine, area_mr, &on_done));
	CHECK(flag_wait(&flag) == 1);
	(void)snprintf(name, sizeof(name), "%s_dead_peer_to_deregistered", sh->way);
	gpu_figure(name, (gpu_now_s() - from) * 1e3, "ms");
	MUST(gpu.free(area));
	area = gpu_alloc(sh->region_bytes);
	gpu_fill(area, 64 * MIB, 2, 0);
	CHECK(gpu_check(area, 64 * MIB, 2, 0) == 0);
	MUST(gpu.free(area));
	MUST(wimm_engine_close(&engine));
}

/* Writes of the child without end, for a moment. */
static void writes_under_way(void)
{
	double from;

	connect_child("64");
	sh->len = 64 * MIB;
	wait_for(&sh->answered, ask(CMD_ENDLESS));
	from = gpu_now_s();
	while (gpu_now_s() - from < 0.2)
		plat_thread_yield();
}

static void end_child(void)
{
	int status;

	(void)kill(pid, SIGKILL);
	MUST(waitpid(pid, &status, 0) != pid);
}

static void death_case(void)
{
	gpu_case(strcmp(sh->way, "pull") == 0
	                 ? "pull: a sender that dies in mid-write leaves memory that can be freed"
	                 : "push: a sender that dies in mid-write leaves memory that can be freed");
	writes_under_way();
	end_child();
	take_area_back();
}

/* --- a sender that is stopped --- */

static _Atomic uint32_t fence_answer; /* plus 1 */

static void on_fenced(void *context, const struct wimm_done *done)
{
	(void)context;
	atomic_store(&fence_answer, done->fence + 1);
}

static void first_peer(struct worker *w, void *arg) ON_WORKER
{
	*(wimm_peer *)arg = peer_id(LIST_ENTRY(w->peers.next, struct peer, link));
}

static uint32_t fence(wimm_peer peer, const char *figure)
{
	struct wimm_fence_opts opts = WIMM_FENCE_OPTS_INIT;
	struct wimm_on_done on_done = { .fn = on_fenced };
	double from = gpu_now_s();

	opts.deadline_us = 400000;
	atomic_store(&fence_answer, 0);
	MUST(wimm_fence_peer(engine, peer, &opts, &on_done, NULL));
	while (atomic_load(&fence_answer) == 0)
		MUST(gpu_now_s() > from + 20);
	gpu_figure(figure, (gpu_now_s() - from) * 1e3, "ms");
	return atomic_load(&fence_answer) - 1;
}

static void stopped_case(void)
{
	bool pull = strcmp(sh->way, "pull") == 0;
	wimm_peer peer;
	uint32_t answer;

	gpu_case(pull ? "pull: a sender stopped in mid-write is fenced"
	              : "push: a sender stopped in mid-write is quarantined until it is gone");
	writes_under_way();
	worker_call(&engine->worker, first_peer, &peer);
	(void)kill(pid, SIGSTOP);
	answer = fence(peer,
	               pull ? "pull_stopped_sender_to_answer" : "push_stopped_sender_to_answer");
	printf("# the answer of the fence: %s\n",
	       answer == WIMM_FENCE_FENCED        ? "fenced"
	       : answer == WIMM_FENCE_QUARANTINED ? "quarantined"
	                                          : "something else");
	if (pull) {
		CHECK(answer == WIMM_FENCE_FENCED);
		gpu_fill(area, 64 * MIB, 4, 0); /* nothing of the sender's comes over it */
		CHECK(gpu_check(area, 64 * MIB, 4, 0) == 0);
	} else { /* fenced, if it was stopped between two copies */
		CHECK(answer == WIMM_FENCE_FENCED || answer == WIMM_FENCE_QUARANTINED);
	}
	end_child();
	if (answer == WIMM_FENCE_QUARANTINED)
		CHECK(fence(peer, "push_gone_sender_to_answer") == WIMM_FENCE_FENCED);
	take_area_back();
}

static void push_cases(double seconds, uint64_t rounds)
{
	if (rounds != 0) {
		rates();
		random_case(seconds * 0.4, "direct");
		numbered_case(rounds, "direct");
		latency(WIMM_PROGRESS_CALLER, "direct", "driven");
		driven = false;
		latency(WIMM_PROGRESS_THREADS, "direct", "threads");
	}
	staged_case(seconds * 0.4);
	MUST(wimm_engine_close(&engine));
	open_engine(WIMM_PROGRESS_THREADS);
	own_area();
	death_case();
}

static void pull_cases(double seconds, uint64_t rounds)
{
	pull_rates();
	MUST(wimm_engine_close(&engine));
	MUST(config_set("gpu_sms", "64"));
	open_engine(WIMM_PROGRESS_THREADS);
	own_area();
	connect_child("64");
	random_case(seconds * 0.2, "pull");
	numbered_case(rounds, "pull");
	latency(WIMM_PROGRESS_THREADS, "pull", "threads");
	death_case();
}

int main(int argc, char **argv)
{
	double seconds = argc > 1 ? atof(argv[1]) : 5;
	uint64_t rounds = argc > 2 ? strtoull(argv[2], NULL, 0) : 10000;

	rng_init(&rng, 99);
	start_children();
	gpu_start();
	begin(0, "push");
	push_cases(seconds, rounds);
	if (rounds != 0) {
		begin(1, "pull");
		pull_cases(seconds, rounds);
		begin(2, "pull");
		stopped_case();
		begin(3, "push");
		stopped_case();
	}
	return gpu_end();
}
