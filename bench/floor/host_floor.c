/* SPDX-License-Identifier: Apache-2.0 */

/* What two plain processes of one machine reach, to hold the host provider against.
 *
 *   host_floor copy --size 64K        the writer copies into the reader's memfd and puts an
 *                                     immediate into a ring; the reader counts
 *   host_floor readv --size 16K --batch 64 [--huge]    the reader fetches pages from the writer's
 *                                     memory, that many with one system call; nothing is said
 *   host_floor writev ...             the same, written by the writer
 *   host_floor lat                    8 bytes and an immediate there and back; half of it
 *
 * Two processes, one pinned to each CPU, memory walked over 64 MiB. No check, no acknowledgement
 * but the ring's own room: a provider has to do more than this. */

#include "../util.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SLOTS = 1024, BATCH_MAX = 256, LAT_ROUNDS = 200000 };

struct ring {
	_Alignas(128) _Atomic uint64_t head;
	struct {
		_Alignas(64) _Atomic uint64_t seq;
		uint64_t imm;
	} slot[SLOTS];
};

struct shared {
	struct ring ring[2];
	_Alignas(128) _Atomic uint32_t ready;
	_Atomic uint32_t over;
	_Atomic uint64_t remote; /* address of the reader's, or writer's, memory in its process */
	double seconds;
	double cpu_seconds; /* of the side that works, for the process_vm modes */
};

struct options {
	const char *mode;
	bool json;
	bool huge;
	uint64_t size;
	uint64_t batch;
	uint64_t total;
};

static void ring_put(struct ring *r, uint64_t pos, uint64_t imm)
{
	while (pos - atomic_load_explicit(&r->head, memory_order_acquire) >= SLOTS)
		;
	r->slot[pos % SLOTS].imm = imm;
	atomic_store_explicit(&r->slot[pos % SLOTS].seq, pos + 1, memory_order_release);
}

static uint64_t ring_get(struct ring *r, uint64_t pos)
{
	uint64_t imm;

	while (atomic_load_explicit(&r->slot[pos % SLOTS].seq, memory_order_acquire) != pos + 1)
		;
	imm = r->slot[pos % SLOTS].imm;
	atomic_store_explicit(&r->head, pos + 1, memory_order_release);
	return imm;
}

static void *private_memory(const struct options *o)
{
	void *mem = mmap(NULL, BENCH_WALK_BYTES + (2u << 20), PROT_READ | PROT_WRITE,
	                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (mem == MAP_FAILED)
		bench_die("mmap");
	mem = (void *)(((uintptr_t)mem + (2u << 20) - 1) & ~(uintptr_t)((2u << 20) - 1));
	(void)madvise(mem, BENCH_WALK_BYTES, o->huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
	memset(mem, 0x5a, BENCH_WALK_BYTES);
	return mem;
}

static void meet(struct shared *s)
{
	atomic_fetch_add(&s->ready, 1);
	while (atomic_load(&s->ready) < 2)
		;
}

static void copy_writer(struct shared *s, const struct options *o, char *theirs)
{
	const char *mine = private_memory(o);
	uint64_t blocks = o->total / o->size;
	double start;

	for (uint64_t at = 0; at < BENCH_WALK_BYTES; at += 4096)
		theirs[at] = 1;
	meet(s);
	start = bench_now_s();
	for (uint64_t i = 0; i < blocks; i++) {
		uint64_t at = i * o->size % BENCH_WALK_BYTES;

		memcpy(theirs + at, mine + at, o->size);
		ring_put(&s->ring[0], i, 7);
	}
	while (atomic_load_explicit(&s->ring[0].head, memory_order_acquire) != blocks)
		;
	s->seconds = bench_now_s() - start;
}

static void copy_reader(struct shared *s, const struct options *o)
{
	uint64_t sum = 0;

	meet(s);
	for (uint64_t i = 0; i < o->total / o->size; i++)
		sum += ring_get(&s->ring[0], i);
	if (sum != o->total / o->size * 7)
		bench_die("count");
}

static void lat_side(struct shared *s, char *mem, bool first)
{
	struct ring *out = &s->ring[first ? 0 : 1];
	struct ring *in = &s->ring[first ? 1 : 0];
	uint64_t value = 0;
	double start;

	meet(s);
	start = bench_now_s();
	for (uint64_t i = 0; i < LAT_ROUNDS; i++) {
		if (!first)
			(void)ring_get(in, i);
		value += i;
		memcpy(mem + (first ? 0 : 4096), &value, sizeof(value));
		ring_put(out, i, 7);
		if (first)
			(void)ring_get(in, i);
	}
	if (first)
		s->seconds = bench_now_s() - start;
}

/* The side that makes the calls; the other one only has memory. */
static void vm_caller(struct shared *s, const struct options *o, pid_t pid, bool read_it)
{
	char *mine = private_memory(o);
	char *theirs;
	double start;

	while (atomic_load(&s->remote) == 0)
		;
	theirs = (char *)(uintptr_t)atomic_load(&s->remote);
	start = bench_now_s();
	s->cpu_seconds = bench_cpu_s();
	for (uint64_t done = 0; done < o->total;) {
		struct iovec local[BATCH_MAX];
		struct iovec remote[BATCH_MAX];
		ssize_t got;

		for (uint64_t i = 0; i < o->batch; i++, done += o->size) {
			local[i] = (struct iovec){ mine + done % BENCH_WALK_BYTES, o->size };
			remote[i] = (struct iovec){ theirs + done % BENCH_WALK_BYTES, o->size };
		}
		got = read_it ? process_vm_readv(pid, local, o->batch, remote, o->batch, 0)
		              : process_vm_writev(pid, local, o->batch, remote, o->batch, 0);
		if (got != (ssize_t)(o->batch * o->size))
			bench_die("process_vm");
	}
	s->seconds = bench_now_s() - start;
	s->cpu_seconds = bench_cpu_s() - s->cpu_seconds;
	atomic_store(&s->over, 1);
}

static void vm_victim(struct shared *s, const struct options *o)
{
	atomic_store(&s->remote, (uint64_t)(uintptr_t)private_memory(o));
	while (!atomic_load(&s->over))
		(void)usleep(1000);
}

static void parse(int argc, char **argv, struct options *o)
{
	*o = (struct options){ .size = 64 << 10, .batch = 1, .total = UINT64_C(2) << 30 };
	if (argc < 2) {
		(void)fprintf(stderr, "usage: host_floor copy|readv|writev|lat [--size N] "
		                      "[--batch N] [--total N] [--huge] [--json]\n");
		exit(2);
	}
	o->mode = argv[1];
	for (int i = 2; i < argc; i++) {
		uint64_t *value = strcmp(argv[i], "--size") == 0    ? &o->size
		                  : strcmp(argv[i], "--batch") == 0 ? &o->batch
		                  : strcmp(argv[i], "--total") == 0 ? &o->total
		                                                    : NULL;

		if (strcmp(argv[i], "--json") == 0)
			o->json = true;
		else if (strcmp(argv[i], "--huge") == 0)
			o->huge = true;
		else if (value && i + 1 < argc)
			*value = bench_size(argv[++i]);
		else
			exit(2);
	}
	if (o->size == 0 || BENCH_WALK_BYTES % o->size != 0 || o->batch == 0 ||
	    o->batch > BATCH_MAX || BENCH_WALK_BYTES % (o->size * o->batch) != 0)
		exit(2);
	o->total -= o->total % (o->size * o->batch);
}

/* The parent writes, the child reads. */
static void run(const struct options *o, struct shared *s, char *mem, bool child)
{
	bool readv_mode = strcmp(o->mode, "readv") == 0;

	bench_pin(child ? 1 : 0);
	if (strcmp(o->mode, "copy") == 0) {
		if (child)
			copy_reader(s, o);
		else
			copy_writer(s, o, mem);
	} else if (strcmp(o->mode, "lat") == 0) {
		lat_side(s, mem, !child);
	} else if (child == readv_mode) {
		vm_caller(s, o, child ? getppid() : (pid_t)atomic_load(&s->ready), readv_mode);
	} else {
		vm_victim(s, o);
	}
}

int main(int argc, char **argv)
{
	struct bench_result r = { .name = "floor" };
	struct shared *s;
	struct options o;
	char *mem;
	int status;
	pid_t child;

	parse(argc, argv, &o);
	s = bench_shared(sizeof(*s));
	memset(s, 0, sizeof(*s));
	mem = bench_shared(BENCH_WALK_BYTES);
	child = fork();
	if (child < 0)
		bench_die("fork");
	if (child == 0) {
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* it may be polling */
		run(&o, s, mem, true);
		_exit(0);
	}
	if (strcmp(o.mode, "writev") == 0)
		atomic_store(&s->ready, (uint32_t)child);
	run(&o, s, mem, false);
	if (waitpid(child, &status, 0) != child || status != 0)
		bench_die("other process");
	if (strcmp(o.mode, "lat") == 0) {
		printf(o.json ? "{\"name\": \"floor-lat\", \"one_way_us\": %.4f}\n"
		              : "floor-lat  8 B  %.3f us one way, mean\n",
		       s->seconds / LAT_ROUNDS / 2 * 1e6);
		return 0;
	}
	r.name = o.mode;
	r.block_bytes = o.size;
	r.batch = o.batch;
	r.blocks = o.total / o.size;
	r.seconds = s->seconds;
	r.cpu_seconds = s->cpu_seconds;
	bench_print(&r, o.json);
	return 0;
}
