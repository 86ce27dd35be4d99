/* SPDX-License-Identifier: Apache-2.0 */
#include "duo.h"
#include "pair.h"

#include "plat/clock.h"
#include "plat/thread.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A receiver that is stopped in the middle of fetching, and wakes after the sender has given up. */

static const struct prov_ops *const ops = &prov_host_ops;

enum {
	ROUNDS = 200,
	ASLEEP_ROUNDS = 4, /* each takes as long as the provider waits for the receiver */
	ALL_ROUNDS = ROUNDS + ASLEEP_ROUNDS,
};

static bool late(struct duo_side *s, uint64_t deadline)
{
	return s->down || (clock_now_ns() > deadline && !duo_fail(s, "nothing happens any more"));
}

/* SIGSTOP acts when the process next leaves the kernel: wait until /proc says it has. */
static bool stop(struct duo_side *s, pid_t pid, uint64_t deadline)
{
	char path[64];
	char state = '?';

	(void)snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	(void)kill(pid, SIGSTOP);
	while (state != 'T') {
		FILE *file = fopen(path, "re");

		if (!file || fscanf(file, "%*d (%*[^)]) %c", &state) != 1)
			state = '?';
		if (file)
			(void)fclose(file);
		if (late(s, deadline))
			return false;
		plat_thread_yield();
	}
	return true;
}

static bool told(struct duo_side *s, uint64_t ends, uint64_t deadline)
{
	while (s->cancelled + s->done_ok < ends) {
		duo_turn(s);
		if (late(s, deadline))
			return false;
	}
	return true;
}

/* A whole long write, stopped in the middle, cancelled, its source used for something else as soon
 * as that is allowed. awake: the receiver goes on before the sender is told. */
static bool round_of(struct duo_side *s, bool awake, uint64_t *in_the_middle)
{
	uint64_t deadline = clock_now_ns() + TEST_DEADLINE_MS * CLOCK_NS_PER_MS;
	struct prov_wr wr = duo_wr(s, 1, 0, DUO_MEM_BYTES, 1);
	pid_t b = atomic_load(&s->shared->pid_b);
	uint64_t cancelled = s->cancelled;
	uint64_t done = s->done_ok;

	if (ops->post(s->path, &wr, 1) != 1)
		return duo_fail(s, "no room for one write");
	while (atomic_load(&s->shared->fetched) == 0 && s->done_ok == done) {
		duo_turn(s);
		if (late(s, deadline))
			return false;
	}
	if (!stop(s, b, deadline))
		return false;
	*in_the_middle += atomic_load(&s->shared->fetched) != 0;
	ops->cancel(s->path, 1);
	duo_turn(s);
	if (awake)
		(void)kill(b, SIGCONT);
	if (!told(s, cancelled + done + 1, deadline))
		return false;
	if (awake && s->reading != 0)
		return duo_fail(s, "a receiver that is awake leaves the source alone");
	memset(s->mem, 3, 4096); /* the source is free, or quarantined: it is not counted */
	(void)kill(b, SIGCONT);
	/* What b does with the first is over when it has counted the second. */
	wr = duo_wr(s, 2, 0, 8, 2);
	if (ops->post(s->path, &wr, 1) != 1)
		return duo_fail(s, "no room for one write");
	for (done = s->done_ok + 1; s->done_ok < done;) {
		duo_turn(s);
		if (late(s, deadline))
			return false;
	}
	return true;
}

static bool stop_and_cancel(struct duo_side *s)
{
	uint64_t in_the_middle = 0;
	uint64_t deadline;
	uint64_t counted;

	for (uint32_t i = 0; i < ROUNDS; i++) {
		if (!round_of(s, true, &in_the_middle))
			return false;
	}
	for (uint32_t i = 0; i < ASLEEP_ROUNDS; i++) {
		if (!round_of(s, false, &in_the_middle))
			return false;
	}
	if (s->reading == 0 || s->reading > ASLEEP_ROUNDS)
		return duo_fail(s, "nobody said that a stopped receiver may read on");
	/* A write may be done before the other side's program has seen its immediate. */
	deadline = clock_now_ns() + TEST_DEADLINE_MS * CLOCK_NS_PER_MS;
	while (atomic_load(&s->shared->imms[2]) < ALL_ROUNDS) {
		duo_turn(s);
		if (late(s, deadline))
			return duo_fail(s, "a write was lost");
	}
	/* Each first write was counted exactly when its sender was not told that it never will. */
	counted = atomic_load(&s->shared->imms[1]);
	if (counted != s->done_ok - ALL_ROUNDS + s->cancelled_sent)
		return duo_fail(s, "a write that was taken back was counted");
	if (atomic_load(&s->shared->imms[2]) != ALL_ROUNDS)
		return duo_fail(s, "a write was counted twice");
	if (in_the_middle < ROUNDS / 10 || counted == ALL_ROUNDS)
		return duo_fail(s, "too few were stopped in the middle to say anything");
	return true;
}

static void stop_in_mid_fetch_then_cancel_counts_nothing(void **state)
{
	/* Goal: 200 times: the receiver is stopped while it fetches, the write is cancelled and its
	 * source used again; when it wakes it counts nothing, and the path goes on. */
	(void)state;
	duo_run(&(struct duo){ .act_a = stop_and_cancel });
}

/* A page whose first reader waits until the test fills it. -1: the kernel does not let us. */
static int hold_page(void *page)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register reg = { .range = { (uint64_t)(uintptr_t)page, 4096 },
		                       .mode = UFFDIO_REGISTER_MODE_MISSING };
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);

	if (fd < 0)
		return -1;
	if (ioctl(fd, UFFDIO_API, &api) == 0 && ioctl(fd, UFFDIO_REGISTER, &reg) == 0)
		return fd;
	(void)close(fd);
	return -1;
}

static void fill_page(int fd, void *page)
{
	static uint8_t content[4096];
	struct uffdio_copy copy = { .dst = (uint64_t)(uintptr_t)page,
		                    .src = (uint64_t)(uintptr_t)content,
		                    .len = 4096 };

	assert_ok(ioctl(fd, UFFDIO_COPY, &copy));
}

static void poll_b(void *arg)
{
	struct pair *p = arg;

	while (((struct host_path *)p->b.path)->rx.acked < 2 && !p->b.down)
		(void)side_poll(&p->b);
}

/* A path whose b is inside the one system call that fetches all of a write, until the page is
 * filled. */
struct held {
	struct pair p;
	struct plat_thread thread;
	uint8_t *page;
	int fd;
};

static void held_open(struct held *h)
{
	struct uffd_msg msg;
	struct prov_wr wr;

	h->page = mmap(NULL, 4 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(h->page, MAP_FAILED);
	h->fd = hold_page(h->page);
	if (h->fd < 0)
		test_skip("userfaultfd is not allowed here");
	pair_open(&h->p, "pull");
	wr = pair_wr(&h->p, 1, 0, 0, 4 * 4096);
	wr.src = h->page;
	wr.flags = PROV_WR_IMM;
	assert_int_equal(ops->post(h->p.a.path, &wr, 1), 1);
	assert_ok(plat_thread_start(&h->thread, poll_b, &h->p, "b", PLAT_CPU_ANY));
	assert_int_equal(read(h->fd, &msg, sizeof(msg)), sizeof(msg)); /* b is in the call */
	assert_int_equal(msg.event, UFFD_EVENT_PAGEFAULT);
}

/* b comes out of the call, and goes on to a second write. */
static void held_release(struct held *h)
{
	struct prov_wr wr = pair_wr(&h->p, 2, 0, 0, 8);

	assert_int_equal(ops->post(h->p.a.path, &wr, 1), 1);
	fill_page(h->fd, h->page);
	plat_thread_join(&h->thread);
	assert_int_equal(h->p.b.imms, 0);
}

static void held_close(struct held *h)
{
	(void)close(h->fd);
	pair_close(&h->p);
	(void)munmap(h->page, 4 * 4096);
}

static bool a_cancelled(const struct pair *p)
{
	return p->a.done_cancelled == 1;
}

static void stop_cancel_during_the_call_counts_nothing(void **state)
{
	/* Goal: the write is taken back while the one system call that fetches all of it is under
	 * way: it is not told as cancelled before that call is over, and not counted. */
	struct held h;

	(void)state;
	held_open(&h);
	ops->cancel(h.p.a.path, 1);
	side_turns(&h.p.a, 1);
	assert_int_equal(h.p.a.done_cancelled, 0);
	held_release(&h);
	assert_true(pair_until(&h.p, a_cancelled));
	assert_int_equal(h.p.a.done_cancelled_sent, 0);
	assert_int_equal(h.p.a.done_reading, 0);
	held_close(&h);
}

static void stop_cancel_of_a_source_that_stays_in_use_says_so(void **state)
{
	/* Goal: a peer that does not leave the source does not hold up the answer for ever; the
	 * answer says that it is still there. */
	struct held h;
	uint64_t deadline = clock_now_ns() + TEST_DEADLINE_MS * CLOCK_NS_PER_MS;

	(void)state;
	held_open(&h);
	ops->cancel(h.p.a.path, 1);
	while (h.p.a.done_cancelled == 0 && clock_now_ns() < deadline)
		side_turns(&h.p.a, 1);
	assert_int_equal(h.p.a.done_cancelled, 1);
	assert_int_equal(h.p.a.done_cancelled_sent, 0);
	assert_int_equal(h.p.a.done_reading, 1);
	held_release(&h);
	held_close(&h);
}

static void stop_close_of_a_path_whose_source_is_read_says_so(void **state)
{
	/* Goal: the same for a path that is closed: the write comes back lost, and in use. */
	struct held h;
	uint64_t deadline = clock_now_ns() + TEST_DEADLINE_MS * CLOCK_NS_PER_MS;

	(void)state;
	held_open(&h);
	ops->path_close(h.p.a.path);
	while (!h.p.a.closed && clock_now_ns() < deadline)
		side_turns(&h.p.a, 1);
	assert_true(h.p.a.closed);
	assert_int_equal(h.p.a.done_lost, 1);
	assert_int_equal(h.p.a.done_reading, 1);
	fill_page(h.fd, h.page);
	plat_thread_join(&h.thread);
	assert_true(h.p.b.down);
	assert_int_equal(h.p.b.imms, 0);
	held_close(&h);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(stop_cancel_during_the_call_counts_nothing),
		cmocka_unit_test(stop_cancel_of_a_source_that_stays_in_use_says_so),
		cmocka_unit_test(stop_close_of_a_path_whose_source_is_read_says_so),
		cmocka_unit_test(stop_in_mid_fetch_then_cancel_counts_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
