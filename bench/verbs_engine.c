/* SPDX-License-Identifier: Apache-2.0 */

/* Two whole engines over provider verbs, each a process driven by its caller and, where there are
 * two, pinned to a CPU.
 *
 *   verbs_engine write NIC NIC --size 64K [--imm]          single writes, 64 under way
 *   verbs_engine pages NIC NIC --size 4K [--imm]           requests of 256 pages, two under way
 *   verbs_engine lat NIC NIC                               8 bytes and an immediate, there and back
 *
 * Time of a stream is the sender's, from the first submission until all is acknowledged, as
 * perftest takes it. */

#include "must.h"
#include "util.h"

#include <wimm/engine.h>
#include <wimm/imm.h>
#include <wimm/region.h>
#include <wimm/transfer.h>

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	IMM = 7,
	WALK_BYTES = 4 << 20,
	WINDOW = 64,
	PAGES = 256,
	LAT_ROUNDS = 2000,
	LAT_WARM = 200,
	WAIT_US = 100000
};

static struct {
	const char *mode;
	const char *nic[2];
	bool imm;
	uint64_t size, total;
} o = { .size = 64 << 10, .total = 64 << 20 };

static struct shared {
	struct wimm_mr_desc desc[2];
	_Atomic uint32_t ready, over;
} * shared;

static struct wimm_engine *engine;
static struct wimm_mr *mr;
static struct wimm_remote_mr *remote;

/* Else the receiver sleeps, as the server of ib_write_bw does, and the sender's polling is its own
 * affair, as that of ib_write_bw is. */
static bool both_poll(void)
{
	return o.imm || strcmp(o.mode, "lat") == 0;
}

static void turn(void)
{
	int busy = 0;

	must(wimm_progress(engine, &busy), "progress");
	if (busy == 0 && both_poll())
		bench_look_again();
}

static void side_open(bool child)
{
	struct wimm_engine_opts opts = WIMM_ENGINE_OPTS_INIT;
	void *mem = NULL;

	bench_pin(child);
	opts.provider = "verbs";
	opts.nics = o.nic[child];
	opts.progress = WIMM_PROGRESS_CALLER;
	must(wimm_engine_open(&opts, &engine), "open");
	if (posix_memalign(&mem, 4096, WALK_BYTES) != 0)
		bench_die("memory");
	memset(mem, 0x5a, WALK_BYTES);
	must(wimm_reg_mr(engine, mem, WALK_BYTES, NULL, &mr), "reg");
	must(wimm_mr_get_desc(mr, &shared->desc[child]), "desc");
	atomic_fetch_add(&shared->ready, 1);
	while (atomic_load(&shared->ready) < 2) {
		turn();
		bench_look_again();
	}
	must(wimm_open_remote_mr(engine, &shared->desc[!child], &remote), "remote");
}

static void wait_flag(const uint64_t *flag)
{
	while (wimm_flag_load(flag) == 0)
		turn();
	if (wimm_flag_load(flag) != 1)
		must((wimm_status)wimm_flag_load(flag), "operation");
}

static void put(uint64_t at, uint64_t len, bool imm, uint64_t *flag)
{
	struct wimm_on_done on_done = { .flag = flag };
	struct wimm_write w = WIMM_WRITE_INIT;
	wimm_status st;

	*flag = 0;
	w.flags = imm ? WIMM_IMM : 0;
	w.imm = imm ? IMM : 0;
	w.src = mr;
	w.dst = remote;
	w.src_offset_bytes = w.dst_offset_bytes = at;
	w.len_bytes = len;
	while ((st = wimm_submit_single_write(engine, &w, &on_done, NULL)) == WIMM_AGAIN)
		turn();
	must(st, "write");
}

static void put_pages(uint64_t *flag)
{
	static uint32_t indices[PAGES];
	struct wimm_paged_writes w = WIMM_PAGED_WRITES_INIT;
	struct wimm_on_done on_done = { .flag = flag };

	/* Every other one: neighbours would be merged, which perftest's are not. */
	for (uint32_t i = 0; i < PAGES; i++)
		indices[i] = i * 2 % PAGES + i * 2 / PAGES;
	*flag = 0;
	w.flags = o.imm ? WIMM_IMM : 0;
	w.imm = o.imm ? IMM : 0;
	w.src = mr;
	w.dst = remote;
	w.src_pages = (struct wimm_pages){ indices, PAGES, o.size, 0 };
	w.dst_pages = w.src_pages;
	w.page_len_bytes = o.size;
	must(wimm_submit_paged_writes(engine, &w, &on_done, NULL), "pages");
}

static void stream(uint64_t bytes)
{
	static uint64_t flags[WINDOW];
	bool pages = strcmp(o.mode, "pages") == 0;
	uint64_t window = pages ? 2 : WINDOW, each = pages ? PAGES * o.size : o.size;

	for (uint64_t i = 0; i < window; i++)
		flags[i] = 1;
	for (uint64_t sent = 0, i = 0; sent < bytes; sent += each, i++) {
		uint64_t *flag = &flags[i % window];

		wait_flag(flag);
		if (pages)
			put_pages(flag);
		else
			put(sent % WALK_BYTES, o.size, o.imm, flag);
	}
	for (uint64_t i = 0; i < window; i++)
		wait_flag(&flags[i]);
}

static void be_sender(void)
{
	struct bench_result r = { .name = o.mode, .block_bytes = o.size, .batch = 1 };
	double start;

	stream(WALK_BYTES);
	start = bench_now_s();
	stream(o.total);
	r.seconds = bench_now_s() - start;
	r.blocks = o.total / o.size;
	bench_print(&r, true);
}

static void latency(bool child)
{
	static uint64_t flags[WINDOW];
	uint64_t counted = 0, now;
	double start = 0;

	for (uint64_t i = 0; i < LAT_WARM + LAT_ROUNDS; i++) {
		if (i == LAT_WARM)
			start = bench_now_s();
		for (bool mine = !child, seen = false; mine || !seen; mine = false) {
			if (mine) {
				if (i >= WINDOW)
					wait_flag(&flags[i % WINDOW]);
				put(child ? 4096 : 0, 8, true, &flags[i % WINDOW]);
			}
			turn();
			must(wimm_poll_imm(engine, IMM, &now), "poll");
			seen = now != counted;
		}
		counted++;
		if (child) {
			if (i >= WINDOW)
				wait_flag(&flags[i % WINDOW]);
			put(4096, 8, true, &flags[i % WINDOW]);
		}
	}
	if (!child)
		printf("{\"name\": \"lat\", \"one_way_us\": %.3f}\n",
		       (bench_now_s() - start) / LAT_ROUNDS / 2 * 1e6);
}

static void run(bool child)
{
	side_open(child);
	if (strcmp(o.mode, "lat") == 0)
		latency(child);
	else if (!child)
		be_sender();
	if (!child)
		atomic_store(&shared->over, 1);
	while (!atomic_load(&shared->over)) {
		if (child && !both_poll())
			must(wimm_progress_wait(engine, WAIT_US), "wait");
		turn();
	}
	must(wimm_engine_close(&engine), "close");
}

static void parse(int argc, char **argv)
{
	if (argc < 4) {
		(void)fprintf(stderr, "usage: verbs_engine write|pages|lat NIC NIC [--size N] "
		                      "[--total N] [--imm]\n");
		exit(2);
	}
	o.mode = argv[1];
	o.nic[0] = argv[2];
	o.nic[1] = argv[3];
	for (int i = 4; i < argc; i++) {
		if (strcmp(argv[i], "--imm") == 0)
			o.imm = true;
		else if (strcmp(argv[i], "--size") == 0 && i + 1 < argc)
			o.size = bench_size(argv[++i]);
		else if (strcmp(argv[i], "--total") == 0 && i + 1 < argc)
			o.total = bench_size(argv[++i]);
		else
			exit(2);
	}
	if (o.size == 0 || o.size > WALK_BYTES ||
	    (strcmp(o.mode, "pages") == 0 && PAGES * o.size > WALK_BYTES))
		exit(2);
}

int main(int argc, char **argv)
{
	int status;
	pid_t child;

	parse(argc, argv);
	shared = bench_shared(sizeof(*shared));
	memset(shared, 0, sizeof(*shared));
	child = fork();
	if (child < 0)
		bench_die("fork");
	if (child == 0)
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* it polls */
	run(child == 0);
	if (child == 0)
		_exit(0);
	if (waitpid(child, &status, 0) != child || status != 0)
		bench_die("receiver");
	return 0;
}
