/* SPDX-License-Identifier: Apache-2.0 */
#include "pair.h"

#include "base/alloc.h"
#include "plat/clock.h"

#include <dirent.h>
#include <poll.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static uint32_t open_descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	uint32_t count = 0;

	while (readdir(dir))
		count++;
	(void)closedir(dir);
	return count;
}

static void dev_open_survives_every_failed_allocation(void **state)
{
	/* Goal: the n-th allocation fails, n = 1, 2, ...: a status, no output, nothing left. */
	uint64_t blocks = mem_live_blocks();
	uint32_t fds = open_descriptors();
	wimm_status st = WIMM_E_NOMEM;
	uint64_t n = 0;

	(void)state;
	while (st != WIMM_OK) {
		struct prov_args args = { .nic = "127.0.0.1:0", .max_regions = 8 };
		struct prov_caps caps;
		struct prov_error error;
		struct prov_dev *dev = NULL;

		mem_fail_nth(++n);
		st = prov_tcp_ops.open(&args, &caps, &dev, &error);
		if (st == WIMM_OK) {
			assert_false(mem_fail_fired());
			prov_tcp_ops.close(dev);
		} else {
			assert_int_equal(st, WIMM_E_NOMEM);
			assert_null(dev);
		}
		mem_fail_nth(0);
		assert_int_equal(mem_live_blocks(), blocks);
		assert_int_equal(open_descriptors(), fds);
	}
	assert_true(n >= 3);
}

static void dev_path_and_ctl_open_survive_failed_allocations(void **state)
{
	/* Goal: NULL and nothing left over, on the side that is dialled too. */
	struct pair p;
	struct prov_offer offer;
	struct prov_ctl *ctl = NULL;
	struct prov_path *path = NULL;
	uint64_t blocks;

	(void)state;
	pair_open_devs(&p, "127.0.0.1:0");
	blocks = mem_live_blocks();
	for (uint64_t n = 1; !path; n++) {
		assert_int_equal(mem_live_blocks(), blocks);
		mem_fail_nth(n);
		path = p.ops->path_open(p.b.dev, &p.a.addr, false, &p.b, &offer,
		                        &(struct prov_error){ 0 });
		assert_true(path || mem_fail_fired());
		mem_fail_nth(0);
	}
	p.b.path = path;
	p.ops->path_close(path);
	side_await(&p.b, &p.b.closed);
	(void)side_poll(&p.b);
	for (uint64_t n = 1; !ctl; n++) {
		(void)side_poll(&p.a);
		assert_int_equal(mem_live_blocks(), blocks);
		mem_fail_nth(n);
		ctl = p.ops->ctl_open(p.a.dev, &p.b.addr, &p.a);
		assert_true(ctl || mem_fail_fired());
		mem_fail_nth(0);
	}
	p.ops->ctl_close(ctl, false);
	pair_close(&p);
}

static void dev_close_with_everything_open_leaves_nothing(void **state)
{
	/* Goal: paths in mid-write, ctls, a connection in mid-hello: no block, no descriptor. */
	uint64_t blocks = mem_live_blocks();
	uint32_t fds = open_descriptors();
	struct pair p;
	struct prov_wr wr;
	int raw;

	(void)state;
	pair_open(&p, "127.0.0.1:0");
	p.a.ctl = p.ops->ctl_open(p.a.dev, &p.b.addr, &p.a);
	assert_ok(p.ops->ctl_send(p.a.ctl, "x", 1));
	raw = raw_dial(&p.b);
	wr = pair_wr(&p, 1, 0, 0, 8 << 20);
	assert_int_equal(p.ops->post(p.a.path, &wr, 1), 1);
	side_turns(&p.a, 5);
	side_turns(&p.b, 2);
	(void)close(raw);
	pair_close(&p);
	assert_int_equal(mem_live_blocks(), blocks);
	assert_int_equal(open_descriptors(), fds);
}

static bool readable(struct prov_dev *dev)
{
	struct pollfd fd = { prov_tcp_ops.fd(dev), POLLIN, 0 };

	return poll(&fd, 1, 0) == 1;
}

static void dev_idle_is_armed_and_woken_by_each_kind_of_event(void **state)
{
	/* Goal: with nothing to do arm() is true and fd() quiet; a connection, a write and an end
	 * each make it readable. */
	struct pair p;
	struct prov_wr wr;
	uint64_t deadline = clock_now_ns() + TEST_DEADLINE_MS * CLOCK_NS_PER_MS;

	(void)state;
	pair_open(&p, "127.0.0.1:0");
	while (!p.ops->arm(p.b.dev) || readable(p.b.dev))
		(void)side_poll(&p.b);
	assert_true(p.ops->next_ns(p.b.dev) == UINT64_MAX);
	wr = pair_wr(&p, 1, 0, 0, 10);
	wr.flags = PROV_WR_IMM;
	assert_int_equal(p.ops->post(p.a.path, &wr, 1), 1);
	assert_false(p.ops->arm(p.a.dev)); /* something is to be sent */
	(void)side_poll(&p.a);
	while (!readable(p.b.dev))
		assert_true(clock_now_ns() < deadline);
	pair_drain(&p, 1, 1);
	while (!p.ops->arm(p.b.dev) || readable(p.b.dev))
		(void)side_poll(&p.b);
	(void)close(raw_dial(&p.b));
	while (!readable(p.b.dev))
		assert_true(clock_now_ns() < deadline);
	while (!p.ops->arm(p.b.dev) || readable(p.b.dev))
		(void)side_poll(&p.b);
	p.ops->path_close(p.a.path);
	while (!readable(p.b.dev))
		assert_true(clock_now_ns() < deadline);
	side_await(&p.b, &p.b.down);
	pair_close(&p);
}

static void dev_without_room_for_events_loses_none(void **state)
{
	/* Goal: polls with room for no event and for one; nothing is dropped. */
	enum { WRITES = 300 };
	struct pair p;
	struct prov_wr wr[WRITES];

	(void)state;
	pair_open(&p, "127.0.0.1:0");
	for (uint32_t i = 0; i < WRITES; i++) {
		wr[i] = pair_wr(&p, i, i, i, 1);
		wr[i].flags = PROV_WR_IMM;
		wr[i].imm = i;
	}
	p.a.max = p.b.max = 0;
	assert_int_equal(p.ops->post(p.a.path, wr, WRITES), WRITES);
	for (int i = 0; i < 10; i++)
		assert_int_equal(side_poll(&p.a) + side_poll(&p.b), 0);
	p.a.max = p.b.max = 1;
	pair_drain(&p, WRITES, WRITES);
	assert_int_equal(p.b.imm_events, WRITES);
	pair_close(&p);
}

/* What the two processes below tell each other. */
struct card {
	struct prov_addr addr;
	struct prov_offer offer;
	uint64_t key;
	uint64_t base;
};

static void exchange(int fd, const struct card *mine, struct card *theirs)
{
	assert_true(write(fd, mine, sizeof(*mine)) == (ssize_t)sizeof(*mine));
	assert_true(read(fd, theirs, sizeof(*theirs)) == (ssize_t)sizeof(*theirs));
}

/* The peer process: takes 100 immediates and dies without a word. */
static void doomed_peer(int fd)
{
	static uint8_t mem[1 << 20];
	struct side b = { .dev = NULL };
	struct card mine = { .base = (uint64_t)(uintptr_t)mem };
	struct card theirs;
	struct prov_error error;

	side_open(&b, "127.0.0.1:0");
	(void)prov_tcp_ops.reg(b.dev, mem, sizeof(mem), PROV_REG_REMOTE, UINT64_C(9) << 32,
	                       &mine.key, &error);
	mine.addr = b.addr;
	exchange(fd, &mine, &theirs); /* addresses */
	b.path = prov_tcp_ops.path_open(b.dev, &theirs.addr, false, &b, &mine.offer,
	                                &(struct prov_error){ 0 });
	exchange(fd, &mine, &theirs); /* offers */
	prov_tcp_ops.path_connect(b.path, &theirs.offer);
	while (b.imms < 100)
		(void)side_poll(&b);
	_exit(7);
}

static void dev_peer_process_death_fails_what_is_open(void **state)
{
	/* Goal: the survivor learns it at once, each write ends once, and a new peer is served. */
	enum { WRITES = 1000 };
	static struct prov_wr wr[WRITES];
	struct pair p;
	struct card mine = { .base = 0 };
	struct card theirs;
	int fds[2];
	int status;
	pid_t child;

	(void)state;
	assert_ok(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds));
	child = fork();
	assert_true(child >= 0);
	if (child == 0)
		doomed_peer(fds[1]);
	pair_open_devs(&p, "127.0.0.1:0");
	mine.addr = p.a.addr;
	exchange(fds[0], &mine, &theirs);
	p.a.path = p.ops->path_open(p.a.dev, &theirs.addr, true, &p.a, &mine.offer,
	                            &(struct prov_error){ 0 });
	exchange(fds[0], &mine, &theirs);
	p.ops->path_connect(p.a.path, &theirs.offer);
	side_await(&p.a, &p.a.up);
	for (uint32_t i = 0; i < WRITES; i++) {
		wr[i] = pair_wr(&p, i, 0, 0, 1 << 19);
		wr[i].remote_addr = theirs.base;
		wr[i].remote_key = theirs.key;
		wr[i].flags = PROV_WR_IMM;
	}
	assert_int_equal(p.ops->post(p.a.path, wr, WRITES), WRITES);
	side_await(&p.a, &p.a.down);
	assert_int_equal(p.a.down_status, WIMM_E_PATH_LOST);
	p.ops->path_close(p.a.path);
	side_await(&p.a, &p.a.closed);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 7);
	assert_true(p.a.done_lost > 0);
	assert_int_equal(p.a.done_ok + p.a.done_lost, WRITES);
	for (uint32_t i = 0; i < WRITES; i++)
		assert_int_equal(p.a.units[i], 1);
	pair_join(&p);
	(void)close(fds[0]);
	(void)close(fds[1]);
	pair_close(&p);
}

static void dev_forked_child_keeps_no_connection_alive(void **state)
{
	/* Goal: a child that inherited the descriptors does not keep a closed path open. */
	struct pair p;
	int hold[2];
	int status;
	char byte;
	pid_t child;

	(void)state;
	pair_open(&p, "127.0.0.1:0");
	assert_ok(pipe(hold));
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		(void)close(hold[1]);
		(void)read(hold[0], &byte, 1);
		_exit(0);
	}
	(void)close(hold[0]);
	p.ops->path_close(p.b.path);
	pair_await(&p, &p.a.down);
	(void)close(hold[1]);
	assert_int_equal(waitpid(child, &status, 0), child);
	pair_close(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(dev_open_survives_every_failed_allocation),
		cmocka_unit_test(dev_path_and_ctl_open_survive_failed_allocations),
		cmocka_unit_test(dev_close_with_everything_open_leaves_nothing),
		cmocka_unit_test(dev_idle_is_armed_and_woken_by_each_kind_of_event),
		cmocka_unit_test(dev_without_room_for_events_loses_none),
		cmocka_unit_test(dev_peer_process_death_fails_what_is_open),
		cmocka_unit_test(dev_forked_child_keeps_no_connection_alive),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
