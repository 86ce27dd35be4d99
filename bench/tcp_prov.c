/* SPDX-License-Identifier: Apache-2.0 */

/* The tcp provider alone, without the core: one path, driven through the ops table by two pinned
 * processes, to be held against floor/tcp_floor.
 *
 *   tcp_prov --size 4K --request 256    requests of 256 writes, posted as fast as the queue takes
 *                                       them; each write carries an immediate
 *   tcp_prov --size 8 --one             one write at a time, the next when the last is done
 *
 * Time ends when the receiver has counted every immediate. */

#include "util.h"

#include "base/config.h"
#include "plat/clock.h"
#include "prov/providers.h"

#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CQES = 256, REQUEST_MAX = 4096 };

struct options {
	bool json;
	bool one;
	bool sleep; /* block on the device's descriptor when there is nothing to do */
	uint64_t size;
	uint64_t request;
	uint64_t total;
};

/* What the two processes tell each other beside the path. */
struct board {
	struct prov_addr addr[2];
	struct prov_offer offer[2];
	uint64_t key;
	uint64_t base;
	_Atomic uint32_t step;
	_Atomic uint64_t counted;
	_Atomic uint32_t finished;
};

struct end {
	const struct prov_ops *ops;
	struct prov_dev *dev;
	struct prov_path *path;
	uint64_t done;
	uint64_t counted;
	uint64_t failed;
	bool up;
};

static void await_step(struct board *b, uint32_t step)
{
	while (atomic_load_explicit(&b->step, memory_order_acquire) < step)
		continue;
}

static void turn(struct end *e, bool sleep)
{
	struct prov_cqe cqe[CQES];
	uint32_t n = e->ops->poll(e->dev, clock_now_ns(), cqe, CQES);

	for (uint32_t i = 0; i < n; i++) {
		if (cqe[i].kind == PROV_DONE && cqe[i].status == WIMM_OK)
			e->done += cqe[i].count;
		else if (cqe[i].kind == PROV_IMM)
			e->counted += cqe[i].count;
		else if (cqe[i].kind == PROV_PATH_UP)
			e->up = true;
		else if (e->failed++ == 0)
			(void)fprintf(stderr, "event %d, status %d: %s\n", (int)cqe[i].kind,
			              (int)cqe[i].status, cqe[i].text ? cqe[i].text : "");
	}
	if (sleep && n == 0 && e->ops->arm(e->dev)) {
		struct pollfd fd = { e->ops->fd(e->dev), POLLIN, 0 };

		(void)poll(&fd, 1, 10);
	}
}

static void open_end(struct end *e, struct board *b, int side, const char *mem)
{
	struct prov_args args = { .nic = "127.0.0.1:0",
		                  .peer_timeout_ms = 5000,
		                  .max_regions = 16 };
	struct prov_caps caps;
	struct prov_error error;
	uint64_t key;

	*e = (struct end){ .ops = &prov_tcp_ops };
	if (e->ops->open(&args, &caps, &e->dev, &error) != WIMM_OK)
		bench_die(error.text);
	if (e->ops->reg(e->dev, (void *)(uintptr_t)mem, BENCH_WALK_BYTES, PROV_REG_REMOTE,
	                UINT64_C(0x77) << 32 | 3, &key, &error) != WIMM_OK)
		bench_die(error.text);
	e->ops->addr(e->dev, &b->addr[side]);
	if (side == 1) {
		b->key = key;
		b->base = (uint64_t)(uintptr_t)mem;
	}
}

static void join(struct end *e, struct board *b, int side)
{
	atomic_fetch_add_explicit(&b->step, 1, memory_order_acq_rel);
	await_step(b, 2);
	e->path = e->ops->path_open(e->dev, &b->addr[1 - side], side == 0, e, &b->offer[side],
	                            &(struct prov_error){ 0 });
	atomic_fetch_add_explicit(&b->step, 1, memory_order_acq_rel);
	await_step(b, 4);
	e->ops->path_connect(e->path, &b->offer[1 - side]);
	while (!e->up && e->failed == 0)
		turn(e, false);
}

static void receiver(struct board *b, const struct options *o, const char *mem)
{
	struct end e;

	open_end(&e, b, 1, mem);
	bench_pin(1);
	join(&e, b, 1);
	while (!atomic_load_explicit(&b->finished, memory_order_acquire) && e.failed == 0) {
		turn(&e, o->sleep);
		atomic_store_explicit(&b->counted, e.counted, memory_order_release);
	}
	e.ops->close(e.dev);
}

static double sender(struct board *b, const struct options *o, const char *mem)
{
	static struct prov_wr wr[REQUEST_MAX];
	uint64_t blocks = o->total / o->size;
	uint64_t posted = 0;
	uint64_t request = 0;
	struct end e;
	double start;

	open_end(&e, b, 0, mem);
	bench_pin(0);
	join(&e, b, 0);
	start = bench_now_s();
	while (posted < blocks) {
		uint64_t n = blocks - posted < o->request ? blocks - posted : o->request;
		uint64_t taken = 0;

		for (uint64_t i = 0; i < n; i++) {
			uint64_t at = (posted + i) * o->size % BENCH_WALK_BYTES;

			wr[i] = (struct prov_wr){ .token = request,
				                  .src = mem + at,
				                  .len_bytes = o->size,
				                  .remote_addr = b->base + at,
				                  .remote_key = b->key,
				                  .imm = 7,
				                  .flags = PROV_WR_IMM };
		}
		request++;
		while (taken < n && e.failed == 0) {
			taken += e.ops->post(e.path, wr + taken, (uint32_t)(n - taken));
			turn(&e, o->sleep);
		}
		posted += n;
		while (o->one && e.done < posted && e.failed == 0)
			turn(&e, o->sleep);
	}
	while ((e.done < blocks ||
	        atomic_load_explicit(&b->counted, memory_order_acquire) < blocks) &&
	       e.failed == 0)
		turn(&e, o->sleep);
	start = bench_now_s() - start;
	if (e.failed != 0)
		bench_die("path failed");
	atomic_store_explicit(&b->finished, 1, memory_order_release);
	e.ops->close(e.dev);
	return start;
}

static void parse(int argc, char **argv, struct options *o)
{
	*o = (struct options){ .size = 4096, .request = 256, .total = UINT64_C(4) << 30 };
	for (int i = 1; i < argc; i++) {
		uint64_t *value = strcmp(argv[i], "--size") == 0      ? &o->size
		                  : strcmp(argv[i], "--request") == 0 ? &o->request
		                  : strcmp(argv[i], "--total") == 0   ? &o->total
		                                                      : NULL;

		if (strcmp(argv[i], "--json") == 0)
			o->json = true;
		else if (strcmp(argv[i], "--one") == 0)
			o->one = true;
		else if (strcmp(argv[i], "--sleep") == 0)
			o->sleep = true;
		else if (value && i + 1 < argc)
			*value = bench_size(argv[++i]);
		else
			exit(2);
	}
	if (o->one)
		o->request = 1;
	if (o->size == 0 || BENCH_WALK_BYTES % o->size != 0 || o->request == 0 ||
	    o->request > REQUEST_MAX)
		exit(2);
}

int main(int argc, char **argv)
{
	struct options o;
	struct bench_result r;
	double cpu_s;
	struct board *b;
	char *mem;
	int status;
	pid_t child;

	parse(argc, argv, &o);
	mem = bench_shared(2 * BENCH_WALK_BYTES);
	b = bench_shared(sizeof(*b));
	memset(b, 0, sizeof(*b));
	cpu_s = bench_cpu_s();
	child = fork();
	if (child < 0)
		bench_die("fork");
	if (child == 0) {
		receiver(b, &o, mem + BENCH_WALK_BYTES);
		_exit(0);
	}
	r = (struct bench_result){ .name = "tcp-prov",
		                   .block_bytes = o.size,
		                   .batch = o.request,
		                   .blocks = o.total / o.size,
		                   .seconds = sender(b, &o, mem) };
	if (waitpid(child, &status, 0) != child || status != 0)
		bench_die("receiver");
	r.cpu_seconds = bench_cpu_s() - cpu_s;
	bench_print(&r, o.json);
	return 0;
}
