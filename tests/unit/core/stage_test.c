/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of GPUs over paths that do not reach it. */
#include "unit/core/gpu_side.h"

#include "core/engine.h"
#include "core/stage.h"
#include "plat/clock.h"
#include "plat/thread.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <stddef.h>
#include <sys/socket.h>
#include <unistd.h>

enum { FILLERS = 2000 }; /* more than a path takes */

static void staged(int from_kind, int to_kind)
{
	static const uint64_t lens[] = { 0, 1, 5000, 1 << 20, (4 << 20) + 77 };
	struct wimm_remote_mr *to;
	struct side a, b;
	uint64_t count;

	provider = "tcp";
	assert_ok(config_set("same_host", "off"));
	side_open(&a, from_kind);
	side_open(&b, to_kind);
	assert_ok(wimm_open_remote_mr(a.engine, &b.desc, &to));
	fill(a.shadow, BYTES, 3);
	for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
		memset(b.shadow, 0, BYTES);
		assert_int_equal(write_one(&a, to, 100, 201, lens[i]), 1);
		assert_memory_equal(b.shadow + 201, a.shadow + 100, lens[i]);
		assert_int_equal(b.shadow[200], 0);
		assert_int_equal(b.shadow[201 + lens[i]], 0);
		assert_ok(wimm_forget_imm(b.engine, IMM, &count));
		assert_int_equal(count, 1);
	}
	staged_pages(&a, &b, to, PAGE, PAGES);
	staged_pages(&a, &b, to, 36, PAGES);
	staged_pages(&a, &b, to, 1300000, 3);
	side_close(&a);
	side_close(&b);
	assert_ok(config_set("same_host", "auto"));
	provider = "host";
}

static void gpu_to_gpu_over_tcp_goes_through_slots_of_both(void **state)
{
	/* Goal: bytes, counts and what lies beside them are right; the host touches no GPU memory
	 * (the fake's ends the process). */
	(void)state;
	staged(0, 1);
}

static void gpu_to_host_over_tcp_goes_through_slots(void **state)
{
	/* Goal: the same where only the source is memory of a GPU. */
	(void)state;
	staged(0, ON_HOST);
}

static void host_to_gpu_over_tcp_goes_through_slots(void **state)
{
	/* Goal: the same where only the target is. */
	(void)state;
	staged(ON_HOST, 0);
}

static void drive_until(struct wimm_engine *engine, uint64_t *flag)
{
	uint64_t end_ns = clock_now_ns() + 60 * (uint64_t)CLOCK_NS_PER_S;
	int busy;

	while (wimm_flag_load(flag) == 0) {
		assert_true(clock_now_ns() < end_ns);
		assert_ok(wimm_progress(engine, &busy));
	}
	assert_int_equal(wimm_flag_load(flag), 1);
}

static void gpu_staged_write_is_not_counted_before_its_card_has_copied(void **state)
{
	/* Goal: C6 for staged writes: neither done nor counted while the receiver's card copies. */
	struct wimm_write wr = WIMM_WRITE_INIT;
	uint64_t flag = 0, count = 1;
	struct wimm_on_done on_done = { .flag = &flag };
	struct wimm_remote_mr *to;
	struct side a, b;

	(void)state;
	provider = "tcp";
	assert_ok(config_set("same_host", "off"));
	side_open(&a, ON_HOST);
	side_open(&b, 0);
	assert_ok(wimm_open_remote_mr(a.engine, &b.desc, &to));
	fill(a.shadow, BYTES, 8);
	assert_int_equal(write_one(&a, to, 0, 0, 64), 1);
	assert_ok(wimm_forget_imm(b.engine, IMM, &count));
	__atomic_store_n(&fake->hold, 1, __ATOMIC_RELEASE);
	wr.src = a.mr;
	wr.dst = to;
	wr.len_bytes = 100000;
	wr.imm = IMM;
	wr.flags = WIMM_IMM;
	assert_ok(wimm_submit_single_write(a.engine, &wr, &on_done, NULL));
	for (int i = 0; i < 2000; i++) {
		plat_thread_yield();
		assert_ok(wimm_poll_imm(b.engine, IMM, &count));
		assert_int_equal(count, 0);
		assert_int_equal(wimm_flag_load(&flag), 0);
	}
	__atomic_store_n(&fake->hold, 0, __ATOMIC_RELEASE);
	while (wimm_flag_load(&flag) == 0)
		(void)fake->run();
	assert_memory_equal(b.shadow, a.shadow, 100000);
	assert_ok(wimm_poll_imm(b.engine, IMM, &count));
	assert_int_equal(count, 1);
	side_close(&a);
	side_close(&b);
	assert_ok(config_set("same_host", "auto"));
	provider = "host";
}

static bool path_is_full(void *engine)
{
	static uint64_t sleeps; /* as they were when the last place was taken */
	struct wimm_engine_stats s = WIMM_ENGINE_STATS_INIT;

	assert_ok(wimm_engine_get_stats(engine, &s));
	if (s.ops_open != FILLERS + 1 || s.writes_posted < 1024)
		sleeps = s.worker_sleeps;
	return s.worker_sleeps > sleeps + 1;
}

static void gpu_staged_write_behind_a_full_path_is_posted_when_there_is_room(void **state)
{
	/* Goal: a slot that found its path full goes out once the requests there are done. */
	static uint8_t from[64], into[64];
	static uint64_t flags[FILLERS + 1];
	struct wimm_write wr = WIMM_WRITE_INIT;
	struct wimm_remote_mr *to, *to_host;
	struct wimm_mr *here, *there;
	struct wimm_mr_desc desc;
	struct side a, b;
	uint64_t flag = 0;
	struct wimm_on_done on_done = { .flag = &flag };

	(void)state;
	provider = "tcp";
	assert_ok(config_set("same_host", "off"));
	side_open(&a, ON_HOST);
	progress = WIMM_PROGRESS_CALLER;
	side_open(&b, 0);
	progress = WIMM_PROGRESS_THREADS;
	assert_ok(wimm_reg_mr(a.engine, from, sizeof(from), NULL, &here));
	assert_ok(wimm_reg_mr(b.engine, into, sizeof(into), NULL, &there));
	assert_ok(wimm_mr_get_desc(there, &desc));
	assert_ok(wimm_open_remote_mr(a.engine, &b.desc, &to));
	assert_ok(wimm_open_remote_mr(a.engine, &desc, &to_host));
	wr.len_bytes = 64;
	for (int i = 0; i < 2; i++) { /* the second one's end tells that nothing is outstanding */
		flag = 0;
		wr.src = i == 0 ? a.mr : here;
		wr.dst = i == 0 ? to : to_host;
		assert_ok(wimm_submit_single_write(a.engine, &wr, &on_done, NULL));
		drive_until(b.engine, &flag);
	}
	/* Nobody drives the receiver: all places of the path are taken. */
	memset(flags, 0, sizeof(flags));
	for (int i = 0; i <= FILLERS; i++) {
		bool last = i == FILLERS;

		wr.src = last ? a.mr : here;
		wr.dst = last ? to : to_host;
		on_done.flag = &flags[i];
		assert_ok(wimm_submit_single_write(a.engine, &wr, &on_done, NULL));
	}
	assert_true(test_wait_until(path_is_full, a.engine, 60000));
	for (int i = 0; i <= FILLERS; i++)
		drive_until(b.engine, &flags[i]);
	side_close(&a);
	side_close(&b);
	assert_ok(config_set("same_host", "auto"));
	provider = "host";
}

static void gpu_staged_write_that_is_pinned_is_refused(void **state)
{
	/* Goal: slots take the path that they choose, so a pinned write says that it cannot. */
	struct wimm_write wr = WIMM_WRITE_INIT;
	struct wimm_remote_mr *to;
	struct side a, b;
	uint64_t flag = 0;
	struct wimm_on_done on_done = { .flag = &flag };

	(void)state;
	provider = "tcp";
	assert_ok(config_set("same_host", "off"));
	side_open(&a, 0);
	side_open(&b, 0);
	assert_ok(wimm_open_remote_mr(a.engine, &b.desc, &to));
	wr.src = a.mr;
	wr.dst = to;
	wr.len_bytes = 64;
	wr.flags = WIMM_PIN_NIC;
	assert_ok(wimm_submit_single_write(a.engine, &wr, &on_done, NULL));
	assert_int_equal(wait_flag(&flag), WIMM_E_UNSUPPORTED);
	side_close(&a);
	side_close(&b);
	assert_ok(config_set("same_host", "auto"));
	provider = "host";
}

/* The socket that has sent most, that of the path of the slots, is shut down. */
static void break_path(void)
{
	uint64_t most = 0;
	int worst = -1;

	for (int fd = 3; fd < 1024; fd++) {
		struct tcp_info info = { 0 };
		socklen_t bytes = sizeof(info);

		if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) == 0 &&
		    info.tcpi_state == 1 /* established */ && info.tcpi_bytes_acked > most) {
			most = info.tcpi_bytes_acked;
			worst = fd;
		}
	}
	assert_true(worst >= 0);
	assert_int_equal(shutdown(worst, SHUT_RDWR), 0);
}

static const char *const addresses[] = { NULL, "127.0.0.1:0", "127.0.0.1:0,127.0.0.2:0", NULL,
	                                 "127.0.0.1:0,127.0.0.2:0,127.0.0.3:0,127.0.0.4:0" };

enum { WRITES = TEST_SANITIZED ? 8 : 24, LEN = (4 << 20) + 5 };

/* Writes of several slots each, all at once; `hit` happens while they are under way. Each ends well
 * and is counted once. */
static void write_many(struct side *a, struct side *b, struct wimm_remote_mr *to, void (*hit)(void))
{
	static uint64_t flags[WRITES];
	struct wimm_write wr = WIMM_WRITE_INIT;
	uint64_t count;

	assert_int_equal(write_one(a, to, 0, 0, 64), 1);
	assert_ok(wimm_forget_imm(b->engine, IMM, &count));
	fill(a->shadow, BYTES, 8);
	memset(b->shadow, 0, BYTES);
	memset(flags, 0, sizeof(flags));
	wr.src = a->mr;
	wr.dst = to;
	wr.len_bytes = LEN;
	wr.imm = IMM;
	wr.flags = WIMM_IMM;
	for (int i = 0; i < WRITES; i++) {
		struct wimm_on_done on_done = { .flag = &flags[i] };

		assert_ok(wimm_submit_single_write(a->engine, &wr, &on_done, NULL));
		if (i == WRITES / 4)
			assert_int_equal(wait_flag(&flags[0]), 1);
	}
	if (hit != NULL)
		hit();
	for (int i = 0; i < WRITES; i++)
		assert_int_equal(wait_flag(&flags[i]), 1);
	assert_memory_equal(b->shadow, a->shadow, LEN);
	assert_ok(wimm_poll_imm(b->engine, IMM, &count));
	assert_int_equal(count, WRITES);
	assert_ok(wimm_forget_imm(b->engine, IMM, &count));
}

static void count_paths(struct worker *w, void *arg)
{
	uint32_t *used = arg;

	*used = 0;
	LIST_FOR_EACH(it, &w->peers) {
		const struct peer *p = LIST_ENTRY(it, struct peer, link);

		for (uint32_t k = 0; k < p->path_count; k++)
			*used += p->path[k].posted_marks > 4;
	}
}

static void gpu_staged_writes_go_over_every_path(void **state)
{
	/* Goal: slots of one write take all paths of the peer at once, land right whatever their
	 * order, and count as over one path. */
	struct wimm_remote_mr *to;
	struct side a, b;
	uint32_t used;

	(void)state;
	provider = "tcp";
	assert_ok(config_set("same_host", "off"));
	for (uint32_t paths = 1; paths <= 4; paths *= 2) {
		nics = addresses[paths];
		side_open(&a, 0);
		side_open(&b, 1);
		assert_ok(wimm_open_remote_mr(a.engine, &b.desc, &to));
		write_many(&a, &b, to, NULL);
		worker_call(&a.engine->worker, count_paths, &used);
		assert_int_equal(used, paths);
		staged_pages(&a, &b, to, PAGE, PAGES);
		side_close(&a);
		side_close(&b);
	}
	assert_ok(config_set("same_host", "auto"));
	provider = "host";
	nics = addresses[1];
}

/* An emulator of another CPU passes on four bytes of it. */
static bool has_tcp_info(void)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct tcp_info info;
	socklen_t bytes = sizeof(info);
	bool has = fd >= 0 && getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) == 0 &&
	           bytes > offsetof(struct tcp_info, tcpi_bytes_acked);

	(void)close(fd);
	return has;
}

static void gpu_staged_writes_lose_nothing_with_a_path(void **state)
{
	/* Goal: what was under way on a lost path goes over the others, and is counted once. */
	struct wimm_remote_mr *to;
	struct side a, b;

	(void)state;
	if (!has_tcp_info()) {
		print_message("skipped: no TCP_INFO here, which tells the paths apart\n");
		skip();
	}
	provider = "tcp";
	assert_ok(config_set("same_host", "off"));
	for (int round = 0; round < (TEST_SANITIZED ? 2 : 4); round++) {
		nics = addresses[round % 2 == 0 ? 2 : 4];
		side_open(&a, 0);
		side_open(&b, 0);
		assert_ok(wimm_open_remote_mr(a.engine, &b.desc, &to));
		write_many(&a, &b, to, break_path);
		write_many(&a, &b, to, NULL);
		side_close(&a);
		side_close(&b);
	}
	assert_ok(config_set("same_host", "auto"));
	provider = "host";
	nics = addresses[1];
}

/* What a peer sends that asks for slots again and again. */
static void ask_often(struct worker *w, void *arg) ON_WORKER
{
	uint32_t *most = arg;

	LIST_FOR_EACH(it, &w->peers) {
		struct peer *p = LIST_ENTRY(it, struct peer, link);

		for (int i = 0; i < 20 && p->state == PEER_UP; i++) {
			uint32_t areas;

			stage_asked(w, p);
			areas = atomic_load(&p->land_areas);
			*most = areas > *most ? areas : *most;
		}
	}
}

struct wanted {
	struct wimm_engine *a, *b;
	bool any;
};

static void look_wanted(struct worker *w, void *arg)
{
	struct wanted *seen = arg;

	seen->any = false;
	LIST_FOR_EACH(it, &w->peers)
		seen->any = seen->any || LIST_ENTRY(it, struct peer, link)->land_wanted;
}

static bool is_answered(void *arg)
{
	struct wanted *seen = arg;

	assert_ok(wimm_progress(seen->a, NULL));
	worker_call(&seen->b->worker, look_wanted, seen);
	return !seen->any;
}

static void gpu_peer_that_asks_for_slots_without_end_gets_few(void **state)
{
	/* Goal: what is pinned for a peer that takes nothing back is bounded; it is answered once
	 * it has. */
	struct wimm_write wr = WIMM_WRITE_INIT;
	struct wimm_remote_mr *to;
	struct side a, b;
	struct wanted seen;
	uint64_t flag = 0;
	uint32_t most = 0;
	struct wimm_on_done on_done = { .flag = &flag };

	(void)state;
	provider = "tcp";
	assert_ok(config_set("same_host", "off"));
	progress = WIMM_PROGRESS_CALLER;
	side_open(&a, 0);
	progress = WIMM_PROGRESS_THREADS;
	side_open(&b, 0);
	assert_ok(wimm_open_remote_mr(a.engine, &b.desc, &to));
	wr.src = a.mr;
	wr.dst = to;
	wr.len_bytes = 64;
	assert_ok(wimm_submit_single_write(a.engine, &wr, &on_done, NULL));
	drive_until(a.engine, &flag);
	worker_call(&b.engine->worker, ask_often, &most); /* nobody drives the other side */
	assert_int_equal(most, STAGE_AREAS_MAX);
	seen = (struct wanted){ a.engine, b.engine, false };
	worker_call(&b.engine->worker, look_wanted, &seen);
	assert_true(seen.any);
	assert_true(test_wait_until(is_answered, &seen, 60000));
	side_close(&a);
	side_close(&b);
	assert_ok(config_set("same_host", "auto"));
	provider = "host";
}

static int setup(void **state)
{
	(void)state;
	fake = fake_cuda_start();
	/* Silence of a peer is nothing to look at here: on a busy machine it may just not run. */
	if (fake == NULL || config_set("peer_timeout_ms", "120000") != WIMM_OK ||
	    config_set("hello_timeout_ms", "60000") != WIMM_OK)
		return -1;
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(gpu_peer_that_asks_for_slots_without_end_gets_few),
		cmocka_unit_test(gpu_to_gpu_over_tcp_goes_through_slots_of_both),
		cmocka_unit_test(gpu_to_host_over_tcp_goes_through_slots),
		cmocka_unit_test(host_to_gpu_over_tcp_goes_through_slots),
		cmocka_unit_test(gpu_staged_write_is_not_counted_before_its_card_has_copied),
		cmocka_unit_test(gpu_staged_write_that_is_pinned_is_refused),
		cmocka_unit_test(gpu_staged_writes_go_over_every_path),
		cmocka_unit_test(gpu_staged_writes_lose_nothing_with_a_path),
		cmocka_unit_test(gpu_staged_write_behind_a_full_path_is_posted_when_there_is_room),
	};

	return cmocka_run_group_tests(tests, setup, NULL);
}
