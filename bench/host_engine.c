/* SPDX-License-Identifier: Apache-2.0 */

/* Two whole engines on one machine, through the public interface, provider host.
 *
 *   host_engine stream --size 64K [--foreign [--huge]]   single writes with an immediate each
 *   host_engine paged --size 16K [--foreign [--huge]]    one request of 64 MiB at a time
 *   host_engine lat [--threads]                          8 bytes there and back; half of it
 *
 * The receiver's memory is wimm_alloc()'s, or with --foreign ordinary memory. Time ends when the
 * receiver has counted everything. The way bytes travel is the setting WIMM_HOST_WAY.
 *
 * Engines are driven by their callers, each pinned to a CPU of its own and polling. With --threads
 * they drive themselves, nothing is pinned and nobody of the application polls: stream and paged
 * sleep until a callback tells that half of what is under way is done, lat answers from inside the
 * callback. (An application that polls a flag on the CPU of its own worker takes turns with it, a
 * time slice each; that measures the kernel's scheduler.) WIMM_BUSY_POLL=1 keeps the workers awake.
 *
 * With --one (stream, paged) one thread drives both engines and CPU time is told, not time: what
 * the work costs, where waiting for each other, or for a busy machine, is not counted. */

#include "must.h"
#include "util.h"

#include <wimm/engine.h>
#include <wimm/imm.h>
#include <wimm/region.h>
#include <wimm/transfer.h>

#include <errno.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	IMM = 7,
	LAT_ROUNDS = 300000,
	LAT_WARM = 1000,
	RALLY_ROUNDS = 20000,
	OPEN_MAX_OPS = 64,
	BATCHES = 2,
};

struct options {
	const char *mode;
	bool json;
	bool foreign;
	bool huge;
	bool threads;
	bool one;
	uint64_t size;
	uint64_t total;
};

struct shared {
	struct wimm_mr_desc desc[2];
	_Atomic uint32_t ready;
	_Atomic uint32_t done; /* rounds that the receiver has counted */
	_Atomic uint32_t over;
	sem_t told;         /* the same, for a sender that sleeps */
	sem_t ended;        /* `over`, for a receiver that sleeps */
	double cpu_seconds; /* of the receiver, for the measured part */
};

/* Operations that a sleeper waits for together. */
struct batch {
	_Atomic uint32_t left;
	sem_t done;
};

struct side {
	const struct options *o;
	struct shared *shared;
	struct wimm_engine *engine;
	struct wimm_mr *mr;
	struct wimm_remote_mr *remote;
	const struct side *other; /* --one: driven along */
};

static void turn(const struct side *s)
{
	if (!s->o->threads)
		must(wimm_progress(s->engine, NULL), "progress");
	if (s->other)
		must(wimm_progress(s->other->engine, NULL), "progress");
}

static void *memory(const struct options *o, bool own)
{
	void *mem;

	if (own) {
		must(wimm_alloc(BENCH_WALK_BYTES, NULL, &mem), "alloc");
	} else {
		mem = mmap(NULL, BENCH_WALK_BYTES + (2u << 20), PROT_READ | PROT_WRITE,
		           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (mem == MAP_FAILED)
			bench_die("mmap");
		mem = (void *)(((uintptr_t)mem + (2u << 20) - 1) & ~(uintptr_t)((2u << 20) - 1));
		(void)madvise(mem, BENCH_WALK_BYTES, o->huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
	}
	memset(mem, 0x5a, BENCH_WALK_BYTES);
	return mem;
}

static void side_open(struct side *s, bool child)
{
	struct wimm_engine_opts opts = WIMM_ENGINE_OPTS_INIT;
	bool latency = strcmp(s->o->mode, "lat") == 0;

	if (!s->o->one && !s->o->threads)
		bench_pin(child ? 1 : 0);
	opts.provider = "host";
	opts.nics = "any";
	opts.progress = s->o->threads ? WIMM_PROGRESS_THREADS : WIMM_PROGRESS_CALLER;
	must(wimm_engine_open(&opts, &s->engine), "open");
	must(wimm_reg_mr(s->engine, memory(s->o, !s->o->foreign && (child || latency)),
	                 BENCH_WALK_BYTES, NULL, &s->mr),
	     "reg");
	must(wimm_mr_get_desc(s->mr, &s->shared->desc[child]), "desc");
	atomic_fetch_add(&s->shared->ready, 1);
}

static void side_connect(struct side *s, bool child)
{
	while (atomic_load(&s->shared->ready) < 2)
		;
	if (!child || strcmp(s->o->mode, "lat") == 0)
		must(wimm_open_remote_mr(s->engine, &s->shared->desc[!child], &s->remote),
		     "remote");
}

static void expect(const struct side *s, uint64_t count, const struct wimm_on_done *on_done)
{
	must(wimm_expect_imm_count(s->engine, IMM, count, NULL, on_done, NULL), "expect");
}

static void wait_flag(const struct side *s, const uint64_t *flag)
{
	while (wimm_flag_load(flag) == 0)
		turn(s);
	if (wimm_flag_load(flag) != 1)
		must((wimm_status)wimm_flag_load(flag), "operation");
}

static void sleep_on(sem_t *sem)
{
	while (sem_wait(sem) != 0)
		if (errno != EINTR)
			bench_die("sem_wait");
}

static void batch_init(struct batch *b)
{
	atomic_init(&b->left, 0);
	if (sem_init(&b->done, 0, 1) != 0)
		bench_die("sem_init");
}

static void batch_one_done(void *context, const struct wimm_done *done)
{
	struct batch *b = context;

	must(done->status, "operation");
	if (atomic_fetch_sub(&b->left, 1) == 1)
		(void)sem_post(&b->done);
}

/* Until all of the batch's last round are done; then it has `ops` to wait for. */
static void batch_begin(struct batch *b, uint32_t ops)
{
	sleep_on(&b->done);
	atomic_store(&b->left, ops);
}

/* One operation: by its flag while driving, asleep where the engine drives itself. */
struct waiter {
	uint64_t flag;
	struct batch batch;
};

static struct wimm_on_done waiter_arm(const struct side *s, struct waiter *w)
{
	struct wimm_on_done on_done = { 0 };

	w->flag = 0;
	if (!s->o->threads) {
		on_done.flag = &w->flag;
		return on_done;
	}
	batch_init(&w->batch);
	batch_begin(&w->batch, 1);
	on_done.fn = batch_one_done;
	on_done.context = &w->batch;
	return on_done;
}

static void waiter_wait(const struct side *s, struct waiter *w)
{
	if (!s->o->threads) {
		wait_flag(s, &w->flag);
		return;
	}
	batch_begin(&w->batch, 0);
	(void)sem_destroy(&w->batch.done);
}

static void put(const struct side *s, uint64_t at, uint64_t len,
                const struct wimm_on_done *on_done)
{
	struct wimm_write w = WIMM_WRITE_INIT;
	wimm_status st;

	w.flags = WIMM_IMM;
	w.imm = IMM;
	w.src = s->mr;
	w.dst = s->remote;
	w.src_offset_bytes = at;
	w.dst_offset_bytes = at;
	w.len_bytes = len;
	while ((st = wimm_submit_single_write(s->engine, &w, on_done, NULL)) == WIMM_AGAIN)
		turn(s);
	must(st, "write");
}

static void put_flagged(const struct side *s, uint64_t at, uint64_t len, uint64_t *flag)
{
	struct wimm_on_done on_done = { .flag = flag };

	*flag = 0;
	put(s, at, len, &on_done);
}

/* `bytes` in writes of the size, some of them under way. */
static void stream(const struct side *s, uint64_t bytes)
{
	static uint64_t flags[OPEN_MAX_OPS];

	for (uint64_t i = 0; i < OPEN_MAX_OPS; i++)
		flags[i] = 1;
	for (uint64_t sent = 0, i = 0; sent < bytes; sent += s->o->size, i++) {
		wait_flag(s, &flags[i % OPEN_MAX_OPS]);
		put_flagged(s, sent % BENCH_WALK_BYTES, s->o->size, &flags[i % OPEN_MAX_OPS]);
		turn(s);
	}
	for (uint64_t i = 0; i < OPEN_MAX_OPS; i++)
		wait_flag(s, &flags[i]);
}

static void paged(const struct side *s, uint64_t bytes)
{
	static uint32_t indices[BENCH_WALK_BYTES / 4096];
	uint64_t pages = BENCH_WALK_BYTES / s->o->size;
	struct wimm_paged_writes w = WIMM_PAGED_WRITES_INIT;
	struct waiter waiter;

	for (uint32_t i = 0; i < pages; i++)
		indices[i] = i;
	w.flags = WIMM_IMM;
	w.imm = IMM;
	w.src = s->mr;
	w.dst = s->remote;
	w.src_pages = (struct wimm_pages){ indices, pages, s->o->size, 0 };
	w.dst_pages = w.src_pages;
	w.page_len_bytes = s->o->size;
	for (uint64_t sent = 0; sent < bytes; sent += BENCH_WALK_BYTES) {
		struct wimm_on_done on_done = waiter_arm(s, &waiter);

		must(wimm_submit_paged_writes(s->engine, &w, &on_done, NULL), "pages");
		waiter_wait(s, &waiter);
	}
}

/* As stream(): one half of the writes is filled up while the other half is under way. */
static void stream_asleep(const struct side *s, uint64_t bytes)
{
	uint64_t blocks = bytes / s->o->size;
	uint32_t each = OPEN_MAX_OPS / BATCHES;
	struct batch batch[BATCHES];

	for (uint32_t i = 0; i < BATCHES; i++)
		batch_init(&batch[i]);
	for (uint64_t i = 0; i < blocks; i++) {
		struct batch *b = &batch[i / each % BATCHES];
		struct wimm_on_done on_done = { .fn = batch_one_done, .context = b };

		if (i % each == 0)
			batch_begin(b, blocks - i < each ? (uint32_t)(blocks - i) : each);
		put(s, i * s->o->size % BENCH_WALK_BYTES, s->o->size, &on_done);
	}
	for (uint32_t i = 0; i < BATCHES; i++) {
		batch_begin(&batch[i], 0);
		(void)sem_destroy(&batch[i].done);
	}
}

static void send_all(const struct side *s, uint64_t bytes)
{
	if (strcmp(s->o->mode, "paged") == 0)
		paged(s, bytes);
	else if (s->o->threads)
		stream_asleep(s, bytes);
	else
		stream(s, bytes);
}

/* The sender: until the receiver has counted that many rounds. */
static void wait_told(const struct side *s, uint32_t rounds)
{
	if (s->o->threads)
		sleep_on(&s->shared->told);
	while (atomic_load(&s->shared->done) < rounds)
		turn(s);
}

static void end(const struct side *s)
{
	atomic_store(&s->shared->over, 1);
	(void)sem_post(&s->shared->ended);
}

static void wait_over(const struct side *s)
{
	if (s->o->threads)
		sleep_on(&s->shared->ended);
	while (!atomic_load(&s->shared->over))
		turn(s);
}

static void be_receiver(const struct side *s)
{
	uint64_t amounts[] = { 2 * BENCH_WALK_BYTES, s->o->total };
	struct waiter waiter;

	for (int i = 0; i < 2; i++) {
		struct wimm_on_done on_done = waiter_arm(s, &waiter);
		double cpu = bench_cpu_s();

		expect(s, amounts[i] / s->o->size, &on_done);
		waiter_wait(s, &waiter);
		s->shared->cpu_seconds = bench_cpu_s() - cpu;
		atomic_fetch_add(&s->shared->done, 1);
		(void)sem_post(&s->shared->told);
	}
	wait_over(s);
}

static void be_sender(const struct side *s)
{
	struct bench_result r = { .name = s->o->mode, .block_bytes = s->o->size, .batch = 1 };
	double start;

	send_all(s, 2 * BENCH_WALK_BYTES); /* connects, maps, touches */
	wait_told(s, 1);
	start = bench_now_s();
	r.cpu_seconds = bench_cpu_s();
	send_all(s, s->o->total);
	wait_told(s, 2);
	r.seconds = bench_now_s() - start;
	r.cpu_seconds = bench_cpu_s() - r.cpu_seconds + s->shared->cpu_seconds;
	r.blocks = s->o->total / s->o->size;
	bench_print(&r, s->o->json);
	end(s);
}

/* The counter itself is polled, not an expectation. */
static void wait_count(const struct side *s, uint64_t *counted)
{
	uint64_t now;

	do {
		turn(s);
		must(wimm_poll_imm(s->engine, IMM, &now), "poll");
	} while (now == *counted);
	(*counted)++;
}

static void tell_latency(const struct side *s, double seconds, uint32_t rounds)
{
	printf(s->o->json ? "{\"name\": \"lat\", \"one_way_us\": %.4f}\n"
	                  : "lat  8 B  %.3f us one way, mean\n",
	       seconds / rounds / 2 * 1e6);
	end(s);
}

static void latency(const struct side *s, bool child)
{
	static uint64_t flags[OPEN_MAX_OPS];
	uint64_t counted = 0;
	double start = 0;

	for (uint64_t i = 0; i < LAT_WARM + LAT_ROUNDS; i++) {
		uint64_t *flag = &flags[i % OPEN_MAX_OPS];

		if (i == LAT_WARM)
			start = bench_now_s();
		if (child)
			wait_count(s, &counted);
		if (i >= OPEN_MAX_OPS)
			wait_flag(s, flag);
		put_flagged(s, child ? 4096 : 0, 8, flag);
		if (!child)
			wait_count(s, &counted);
	}
	start = bench_now_s() - start;
	if (child)
		wait_over(s);
	else
		tell_latency(s, start, LAT_ROUNDS);
}

/* With threads: each side answers from the callback of its expectation. */
struct rally {
	const struct side *s;
	bool child;
	uint32_t left;
	double start;
	sem_t over;
};

static void rally_write(struct rally *r)
{
	struct wimm_on_done nothing = { 0 };

	put(r->s, r->child ? 4096 : 0, 8, &nothing);
}

static void rally_expect(struct rally *r);

static void rally_turn(void *context, const struct wimm_done *done)
{
	struct rally *r = context;

	must(done->status, "expectation");
	r->left--;
	if (r->left == RALLY_ROUNDS)
		r->start = bench_now_s();
	if (r->left != 0)
		rally_expect(r);
	if (r->child || r->left != 0)
		rally_write(r);
	if (r->left == 0)
		(void)sem_post(&r->over);
}

static void rally_expect(struct rally *r)
{
	struct wimm_on_done on_done = { .fn = rally_turn, .context = r };

	expect(r->s, 1, &on_done);
}

static void rally(const struct side *s, bool child)
{
	struct rally r = { .s = s, .child = child, .left = RALLY_ROUNDS + LAT_WARM };

	if (sem_init(&r.over, 0, 0) != 0)
		bench_die("sem_init");
	rally_expect(&r);
	if (!child)
		rally_write(&r);
	sleep_on(&r.over);
	if (child)
		wait_over(s);
	else
		tell_latency(s, bench_now_s() - r.start, RALLY_ROUNDS);
	(void)sem_destroy(&r.over);
}

static void run(struct side *s, bool child)
{
	side_open(s, child);
	side_connect(s, child);
	if (strcmp(s->o->mode, "lat") == 0 && s->o->threads)
		rally(s, child);
	else if (strcmp(s->o->mode, "lat") == 0)
		latency(s, child);
	else if (child)
		be_receiver(s);
	else
		be_sender(s);
	must(wimm_engine_close(&s->engine), "close");
}

/* Both engines by this thread. */
static void run_one(struct side *a)
{
	struct bench_result r = { .name = a->o->mode, .block_bytes = a->o->size, .batch = 1 };
	uint64_t amounts[] = { 2 * BENCH_WALK_BYTES, a->o->total };
	struct side b = { .o = a->o, .shared = a->shared };
	struct waiter waiter;

	side_open(a, false);
	side_open(&b, true);
	side_connect(a, false);
	a->other = &b;
	for (int i = 0; i < 2; i++) {
		struct wimm_on_done on_done = waiter_arm(a, &waiter);

		expect(&b, amounts[i] / a->o->size, &on_done);
		r.cpu_seconds = bench_cpu_s();
		send_all(a, amounts[i]);
		waiter_wait(a, &waiter);
		r.cpu_seconds = bench_cpu_s() - r.cpu_seconds;
	}
	r.seconds = r.cpu_seconds;
	r.blocks = a->o->total / a->o->size;
	bench_print(&r, a->o->json);
	must(wimm_engine_close(&a->engine), "close");
	must(wimm_engine_close(&b.engine), "close");
}

static void parse(int argc, char **argv, struct options *o)
{
	*o = (struct options){ .size = 64 << 10, .total = UINT64_C(2) << 30 };
	if (argc < 2) {
		(void)fprintf(stderr, "usage: host_engine stream|paged|lat [--size N] [--total N] "
		                      "[--foreign] [--huge] [--threads | --one] [--json]\n");
		exit(2);
	}
	o->mode = argv[1];
	for (int i = 2; i < argc; i++) {
		uint64_t *value = strcmp(argv[i], "--size") == 0    ? &o->size
		                  : strcmp(argv[i], "--total") == 0 ? &o->total
		                                                    : NULL;
		bool *toggle = strcmp(argv[i], "--foreign") == 0   ? &o->foreign
		               : strcmp(argv[i], "--huge") == 0    ? &o->huge
		               : strcmp(argv[i], "--threads") == 0 ? &o->threads
		               : strcmp(argv[i], "--one") == 0     ? &o->one
		               : strcmp(argv[i], "--json") == 0    ? &o->json
		                                                   : NULL;

		if (toggle)
			*toggle = true;
		else if (value && i + 1 < argc)
			*value = bench_size(argv[++i]);
		else
			exit(2);
	}
	if (o->size < 4096 || BENCH_WALK_BYTES % o->size != 0 || o->total % BENCH_WALK_BYTES != 0)
		exit(2);
}

int main(int argc, char **argv)
{
	struct options o;
	struct side s = { .o = &o };
	int status;
	pid_t child;

	parse(argc, argv, &o);
	s.shared = bench_shared(sizeof(*s.shared));
	memset(s.shared, 0, sizeof(*s.shared));
	if (sem_init(&s.shared->told, 1, 0) != 0 || sem_init(&s.shared->ended, 1, 0) != 0)
		bench_die("sem_init");
	if (o.one) {
		run_one(&s);
		return 0;
	}
	child = fork();
	if (child < 0)
		bench_die("fork");
	if (child == 0)
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* it may be polling */
	run(&s, child == 0);
	if (child == 0)
		_exit(0);
	if (waitpid(child, &status, 0) != child || status != 0)
		bench_die("receiver");
	return 0;
}
