/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"
#include "unit/mem/fake.h"

#include "core/engine.h"
#include "core/stage.h"
#include "mem/kernels.h"
#include "plat/clock.h"
#include "plat/thread.h"

#include <wimm/cuda.h>
#include <wimm/imm.h>
#include <wimm/region.h>
#include <wimm/transfer.h>

#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 5 << 20, PAGE = 4096, PAGES = 100, IMM = 7 };
enum { FILLERS = 2000 }; /* more than a path takes */
enum { ON_HOST = -1 }; /* instead of vmm: memory of the host */

static struct fake_cuda_knobs *fake;

/* An engine with a region in memory of the (fake) GPU. */
struct side {
	struct wimm_engine *engine;
	struct wimm_mr *mr;
	uint64_t ptr;
	uint8_t *shadow;
	struct wimm_mr_desc desc;
};

static const char *provider = "host";
static const char *nics = "127.0.0.1:0"; /* of tcp */
static wimm_progress_mode progress; /* of the engines opened next */

static void side_open(struct side *s, int vmm)
{
	struct wimm_engine_opts opts = WIMM_ENGINE_OPTS_INIT;

	opts.provider = provider;
	opts.progress = progress;
	opts.nics = strcmp(provider, "tcp") == 0 ? nics : NULL;
	assert_ok(wimm_engine_open(&opts, &s->engine));
	if (vmm == ON_HOST) {
		s->shadow = aligned_alloc(4096, BYTES);
		s->ptr = (uint64_t)(uintptr_t)s->shadow;
	} else {
		s->ptr = fake->alloc(BYTES, vmm);
		s->shadow = fake->shadow(s->ptr);
	}
	memset(s->shadow, 0, BYTES);
	assert_ok(wimm_reg_mr(s->engine, (void *)(uintptr_t)s->ptr, BYTES, NULL, &s->mr));
	assert_ok(wimm_mr_get_desc(s->mr, &s->desc));
}

static void side_close(struct side *s)
{
	assert_ok(wimm_engine_close(&s->engine));
	if (s->ptr == (uint64_t)(uintptr_t)s->shadow)
		free(s->shadow);
	else
		fake->free(s->ptr);
}

static bool is_set(void *arg)
{
	return wimm_flag_load(arg) != 0;
}

static int64_t wait_flag(uint64_t *flag)
{
	assert_true(test_wait_until(is_set, flag, 60000));
	return wimm_flag_load(flag);
}

static int64_t write_one(struct side *from, struct wimm_remote_mr *to, uint64_t src, uint64_t dst,
                         uint64_t len)
{
	struct wimm_write wr = WIMM_WRITE_INIT;
	uint64_t flag = 0;
	struct wimm_on_done on_done = { .flag = &flag };
	wimm_status st;

	wr.src = from->mr;
	wr.dst = to;
	wr.src_offset_bytes = src;
	wr.dst_offset_bytes = dst;
	wr.len_bytes = len;
	wr.imm = IMM;
	wr.flags = WIMM_IMM;
	st = wimm_submit_single_write(from->engine, &wr, &on_done, NULL);
	return st == WIMM_OK ? wait_flag(&flag) : st;
}

static void fill(uint8_t *at, uint64_t n, unsigned seed)
{
	for (uint64_t i = 0; i < n; i++)
		at[i] = (uint8_t)(i * 31 + seed + i / 251);
}

static void gpu_single_write_lands_and_is_counted_after_its_bytes(void **state)
{
	/* Goal: GPU to GPU in one process; nothing is counted while the card still copies. */
	struct side a, b;
	struct wimm_remote_mr *to;
	struct wimm_write wr = WIMM_WRITE_INIT;
	uint64_t flag = 0, count = 1;
	struct wimm_on_done on_done = { .flag = &flag };

	(void)state;
	side_open(&a, 0);
	side_open(&b, 0);
	assert_ok(wimm_open_remote_mr(a.engine, &b.desc, &to));
	fill(a.shadow, BYTES, 3);
	assert_int_equal(write_one(&a, to, 100, 200, 5000), 1);
	assert_memory_equal(b.shadow + 200, a.shadow + 100, 5000);
	assert_ok(wimm_forget_imm(b.engine, IMM, &count));
	assert_int_equal(count, 1);
	__atomic_store_n(&fake->hold, 1, __ATOMIC_RELEASE);
	wr.src = a.mr;
	wr.dst = to;
	wr.len_bytes = BYTES;
	wr.imm = IMM;
	wr.flags = WIMM_IMM;
	assert_ok(wimm_submit_single_write(a.engine, &wr, &on_done, NULL));
	for (int i = 0; i < 200; i++)
		plat_thread_yield();
	assert_ok(wimm_poll_imm(b.engine, IMM, &count));
	assert_int_equal(count, 0);
	assert_int_equal(wimm_flag_load(&flag), 0);
	__atomic_store_n(&fake->hold, 0, __ATOMIC_RELEASE);
	while (wimm_flag_load(&flag) == 0)
		(void)fake->run();
	assert_memory_equal(b.shadow, a.shadow, BYTES);
	side_close(&a);
	side_close(&b);
}

static void gpu_page_list_is_one_launch_and_counts_each_page(void **state)
{
	/* Goal: a list of pages costs one launch, lands page by page, and counts as C1 says. */
	struct side a, b;
	struct wimm_remote_mr *to;
	struct wimm_paged_writes wr = WIMM_PAGED_WRITES_INIT;
	uint32_t from[PAGES], into[PAGES];
	uint64_t launches;
	uint64_t count = 0;

	(void)state;
	side_open(&a, 0);
	side_open(&b, 1);
	assert_ok(wimm_open_remote_mr(a.engine, &b.desc, &to));
	fill(a.shadow, BYTES, 9);
	for (uint32_t i = 0; i < PAGES; i++) {
		from[i] = i * 2;
		into[i] = PAGES - i;
	}
	wr.src = a.mr;
	wr.dst = to;
	wr.page_len_bytes = PAGE;
	wr.src_pages = (struct wimm_pages){ .indices = from, .count = PAGES,
		                            .stride_bytes = PAGE };
	wr.dst_pages = (struct wimm_pages){ .indices = into, .count = PAGES,
		                            .stride_bytes = PAGE, .offset_bytes = 512 };
	wr.imm = IMM;
	for (int once = 0; once < 2; once++) {
		uint64_t flag = 0;
		struct wimm_on_done on_done = { .flag = &flag };

		memset(b.shadow, 0, BYTES);
		launches = fake->launches;
		wr.flags = WIMM_IMM | (once ? WIMM_IMM_ONCE : 0);
		assert_ok(wimm_submit_paged_writes(a.engine, &wr, &on_done, NULL));
		assert_int_equal(wait_flag(&flag), 1);
		for (uint32_t i = 0; i < PAGES; i++)
			assert_memory_equal(b.shadow + 512 + (size_t)into[i] * PAGE,
			                    a.shadow + (size_t)from[i] * PAGE, PAGE);
		if (kernels_image() != NULL)
			assert_int_equal(fake->launches, launches + 1);
		assert_ok(wimm_forget_imm(b.engine, IMM, &count));
		assert_int_equal(count, once ? 1 : PAGES);
	}
	side_close(&a);
	side_close(&b);
}

static void gpu_page_list_of_empty_pages_counts_each_page(void **state)
{
	/* Goal: C1 holds for pages without bytes, too. */
	struct wimm_paged_writes wr = WIMM_PAGED_WRITES_INIT;
	uint32_t index[PAGES] = { 0 };
	struct wimm_remote_mr *to;
	struct side a, b;
	uint64_t count = 0;
	uint64_t flag = 0;
	struct wimm_on_done on_done = { .flag = &flag };

	(void)state;
	side_open(&a, 0);
	side_open(&b, 0);
	assert_ok(wimm_open_remote_mr(a.engine, &b.desc, &to));
	wr.src = a.mr;
	wr.dst = to;
	wr.src_pages = (struct wimm_pages){ .indices = index, .count = PAGES,
		                            .stride_bytes = PAGE };
	wr.dst_pages = wr.src_pages;
	wr.imm = IMM;
	wr.flags = WIMM_IMM | WIMM_CONFIRMED;
	assert_ok(wimm_submit_paged_writes(a.engine, &wr, &on_done, NULL));
	assert_int_equal(wait_flag(&flag), 1);
	assert_ok(wimm_forget_imm(b.engine, IMM, &count));
	assert_int_equal(count, PAGES);
	side_close(&a);
	side_close(&b);
}

/* --- through slots --- */

static void staged_pages(struct side *a, struct side *b, struct wimm_remote_mr *to, uint64_t page,
                         uint32_t count)
{
	struct wimm_paged_writes wr = WIMM_PAGED_WRITES_INIT;
	uint32_t from[PAGES], into[PAGES];
	uint64_t total = 0;

	assert_ok(wimm_forget_imm(b->engine, IMM, &total));
	for (uint32_t i = 0; i < count; i++) {
		from[i] = count - 1 - i;
		into[i] = (i * 7 + 3) % count;
	}
	wr.src = a->mr;
	wr.dst = to;
	wr.page_len_bytes = page;
	wr.src_pages = (struct wimm_pages){ .indices = from, .count = count,
		                            .stride_bytes = page + 8 };
	wr.dst_pages = (struct wimm_pages){ .indices = into, .count = count,
		                            .stride_bytes = page, .offset_bytes = 48 };
	wr.imm = IMM;
	for (int once = 0; once < 2; once++) {
		uint64_t flag = 0;
		struct wimm_on_done on_done = { .flag = &flag };

		memset(b->shadow, 0, BYTES);
		wr.flags = WIMM_IMM | (once ? WIMM_IMM_ONCE : 0) | WIMM_CONFIRMED;
		assert_ok(wimm_submit_paged_writes(a->engine, &wr, &on_done, NULL));
		assert_int_equal(wait_flag(&flag), 1);
		for (uint32_t i = 0; i < count; i++)
			assert_memory_equal(b->shadow + 48 + into[i] * page,
			                    a->shadow + from[i] * (page + 8), page);
		assert_ok(wimm_forget_imm(b->engine, IMM, &total));
		assert_int_equal(total, once ? 1 : count);
	}
}

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

/* Writes that a lost path hits end, and those that come later arrive. */
static void writes_over_a_broken_path(struct side *a, struct side *b)
{
	enum { WRITES = 6, LEN = 4 << 20, LATER = 20 }; /* later ones: more than there are slots */
	static uint64_t flags[WRITES];
	struct wimm_write wr = WIMM_WRITE_INIT;
	struct wimm_remote_mr *to;
	uint64_t count, ok = 0;

	assert_ok(wimm_open_remote_mr(a->engine, &b->desc, &to));
	fill(a->shadow, BYTES, 8);
	wr.src = a->mr;
	wr.dst = to;
	wr.len_bytes = LEN;
	wr.imm = IMM;
	wr.flags = WIMM_IMM;
	assert_int_equal(write_one(a, to, 0, 0, LEN), 1);
	assert_ok(wimm_forget_imm(b->engine, IMM, &count));
	memset(flags, 0, sizeof(flags));
	for (int i = 0; i < WRITES; i++) {
		struct wimm_on_done on_done = { .flag = &flags[i] };

		assert_ok(wimm_submit_single_write(a->engine, &wr, &on_done, NULL));
	}
	break_path();
	for (int i = 0; i < WRITES; i++) {
		int64_t st = wait_flag(&flags[i]);

		if (st != 1 && st != WIMM_E_PATH_LOST && st != WIMM_E_NIC_LOST)
			fail_msg("write %d: %s", i, wimm_status_text((wimm_status)st));
		ok += st == 1;
	}
	for (int i = 0; i < LATER; i++) {
		memset(b->shadow, 0, 100);
		assert_int_equal(write_one(a, to, 0, 0, 100), 1);
		assert_memory_equal(a->shadow, b->shadow, 100);
	}
	assert_ok(wimm_forget_imm(b->engine, IMM, &count));
	assert_in_range(count, ok + LATER, WRITES + LATER);
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

static void gpu_staged_writes_go_on_when_their_path_was_lost(void **state)
{
	/* Goal: what a lost path has hit ends, and the slots that it had are used again. */
	struct side a, b;

	(void)state;
	if (!has_tcp_info()) {
		print_message("skipped: no TCP_INFO here, which tells the paths apart\n");
		skip();
	}
	provider = "tcp";
	nics = "127.0.0.1:0,127.0.0.2:0";
	assert_ok(config_set("same_host", "off"));
	for (int round = 0; round < 5; round++) {
		side_open(&a, 0);
		side_open(&b, 0);
		writes_over_a_broken_path(&a, &b);
		side_close(&a);
		side_close(&b);
	}
	assert_ok(config_set("same_host", "auto"));
	provider = "host";
	nics = "127.0.0.1:0";
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

/* --- memory that one card does not copy --- */

static void region_at(struct side *s, uint64_t ptr, uint64_t bytes)
{
	struct wimm_engine_opts opts = WIMM_ENGINE_OPTS_INIT;

	opts.provider = provider;
	assert_ok(wimm_engine_open(&opts, &s->engine));
	s->ptr = ptr;
	s->shadow = fake->shadow(ptr);
	memset(s->shadow, 0, bytes);
	assert_ok(wimm_reg_mr(s->engine, (void *)(uintptr_t)ptr, bytes, NULL, &s->mr));
	assert_ok(wimm_mr_get_desc(s->mr, &s->desc));
}

static void gpu_write_to_another_card_goes_through_slots(void **state)
{
	/* Goal: between two cards of one machine the bytes are right, whichever cards they are. */
	struct wimm_remote_mr *to;
	struct side a, b;

	(void)state;
	fake->devices = 2;
	region_at(&a, fake->alloc_on(0, BYTES), BYTES);
	region_at(&b, fake->alloc_on(1, BYTES), BYTES);
	assert_int_equal(wimm_mr_cuda_device(b.mr), 1);
	assert_ok(wimm_open_remote_mr(a.engine, &b.desc, &to));
	fill(a.shadow, BYTES, 6);
	assert_int_equal(write_one(&a, to, 0, 77, (3 << 20) + 5), 1);
	assert_memory_equal(b.shadow + 77, a.shadow, (3 << 20) + 5);
	assert_true(fake->bad_copies == 0); /* none by a stream of the one in memory of the other */
	staged_pages(&a, &b, to, PAGE, PAGES);
	side_close(&a);
	side_close(&b);
	fake->devices = 1;
}

static void gpu_write_to_memory_of_several_mappings_goes_through_slots(void **state)
{
	/* Goal: what cannot be given to another process, as PyTorch's expandable segments, is
	 * written all the same, over the seam between two mappings and from such memory too. */
	struct wimm_remote_mr *to;
	struct side a, b;

	(void)state;
	region_at(&a, fake->alloc_spanning(BYTES), BYTES);
	region_at(&b, fake->alloc_spanning(BYTES), BYTES);
	assert_ok(wimm_open_remote_mr(a.engine, &b.desc, &to));
	fill(a.shadow, BYTES, 7);
	assert_int_equal(write_one(&a, to, 0, 0, BYTES), 1);
	assert_memory_equal(b.shadow, a.shadow, BYTES);
	staged_pages(&a, &b, to, PAGE, PAGES);
	assert_ok(wimm_engine_close(&a.engine));
	assert_ok(wimm_engine_close(&b.engine));
}

/* --- two processes --- */

static void talk(int fd, const void *out, void *in, size_t bytes)
{
	if (out != NULL)
		assert_int_equal(write(fd, out, bytes), (ssize_t)bytes);
	if (in != NULL)
		for (size_t at = 0; at < bytes;) {
			ssize_t got = read(fd, (char *)in + at, bytes - at);

			assert_true(got > 0);
			at += (size_t)got;
		}
}

/* Writes what it is asked for, until its pipe closes. */
static void writer(int in, int out)
{
	struct wimm_mr_desc desc;
	struct wimm_remote_mr *to;
	struct side s;
	char go;

	talk(in, NULL, &desc, sizeof(desc));
	fake->devices = 2;
	side_open(&s, 0);
	fill(s.shadow, BYTES, 5);
	assert_ok(wimm_open_remote_mr(s.engine, &desc, &to));
	while (read(in, &go, 1) == 1) {
		int64_t st = write_one(&s, to, 4096, 8192, 3 * PAGE);

		talk(out, &st, NULL, sizeof(st));
	}
	_exit(0);
}

/* Started before this process has any thread. */
static struct {
	int down, up;
	pid_t pid;
} writers[3];

static void start_writer(int i)
{
	int down[2], up[2];

	assert_int_equal(pipe(down), 0);
	assert_int_equal(pipe(up), 0);
	writers[i].pid = fork();
	if (writers[i].pid == 0) {
		(void)close(down[1]);
		(void)close(up[0]);
		writer(down[0], up[1]);
	}
	(void)close(down[0]);
	(void)close(up[1]);
	writers[i].down = down[1];
	writers[i].up = up[0];
}

static void gpu_write_between_processes(int vmm)
{
	int down = writers[vmm].down, up = writers[vmm].up;
	struct side b;
	int64_t st;
	int status;
	uint8_t *want = malloc(BYTES);
	uint64_t flag = 0;
	struct wimm_on_done on_done = { .flag = &flag };
	pid_t pid = writers[vmm].pid;

	side_open(&b, vmm);
	talk(down, &b.desc, NULL, sizeof(b.desc));
	talk(down, "g", NULL, 1);
	talk(up, NULL, &st, sizeof(st));
	assert_int_equal(st, 1);
	fill(want, BYTES, 5);
	assert_memory_equal(b.shadow + 8192, want + 4096, 3 * PAGE);
	/* A region that has ended is written by nobody, whatever has been mapped. */
	assert_ok(wimm_dereg_mr(b.engine, b.mr, &on_done));
	assert_int_equal(wait_flag(&flag), 1);
	memset(b.shadow, 0, BYTES);
	talk(down, "g", NULL, 1);
	talk(up, NULL, &st, sizeof(st));
	assert_int_equal(st, WIMM_E_REVOKED);
	assert_int_equal(b.shadow[8192], 0);
	(void)kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	side_close(&b);
	free(want);
	(void)close(down);
	(void)close(up);
}

static void gpu_write_by_ipc_handle_reaches_the_other_process(void **state)
{
	/* Goal: memory of cuMemAlloc() is mapped by its handle, and given up when it ends. */
	(void)state;
	gpu_write_between_processes(0);
}

static void gpu_write_by_descriptor_reaches_the_other_process(void **state)
{
	/* Goal: memory of cuMemMap() is mapped by its descriptor, and given up when it ends. */
	(void)state;
	gpu_write_between_processes(1);
}

static void gpu_write_that_a_descriptor_sends_to_another_card_is_refused(void **state)
{
	/* Goal: a descriptor that says the wrong card makes no card write into another's memory,
	 * and both are named. */
	struct side b;
	int64_t st;
	int status;

	(void)state;
	fake->devices = 2;
	region_at(&b, fake->alloc_on(1, BYTES), BYTES);
	memset(b.desc.bytes + b.desc.len_bytes - 8, 0, 8); /* the card's place: that of card 0 */
	talk(writers[2].down, &b.desc, NULL, sizeof(b.desc));
	talk(writers[2].down, "g", NULL, 1);
	talk(writers[2].up, NULL, &st, sizeof(st));
	assert_int_equal(st, WIMM_E_UNSUPPORTED);
	assert_int_equal(b.shadow[8192], 0);
	(void)kill(writers[2].pid, SIGKILL);
	assert_int_equal(waitpid(writers[2].pid, &status, 0), writers[2].pid);
	side_close(&b);
	fake->devices = 1;
}

static int setup(void **state)
{
	(void)state;
	fake = fake_cuda_start();
	/* Silence of a peer is nothing to look at here: on a busy machine it may just not run. */
	if (fake == NULL || config_set("peer_timeout_ms", "120000") != WIMM_OK ||
	    config_set("hello_timeout_ms", "60000") != WIMM_OK)
		return -1;
	start_writer(0);
	start_writer(1);
	start_writer(2);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(gpu_write_by_ipc_handle_reaches_the_other_process),
		cmocka_unit_test(gpu_write_by_descriptor_reaches_the_other_process),
		cmocka_unit_test(gpu_write_that_a_descriptor_sends_to_another_card_is_refused),
		cmocka_unit_test(gpu_write_to_another_card_goes_through_slots),
		cmocka_unit_test(gpu_write_to_memory_of_several_mappings_goes_through_slots),
		cmocka_unit_test(gpu_peer_that_asks_for_slots_without_end_gets_few),
		cmocka_unit_test(gpu_single_write_lands_and_is_counted_after_its_bytes),
		cmocka_unit_test(gpu_page_list_is_one_launch_and_counts_each_page),
		cmocka_unit_test(gpu_page_list_of_empty_pages_counts_each_page),
		cmocka_unit_test(gpu_to_gpu_over_tcp_goes_through_slots_of_both),
		cmocka_unit_test(gpu_to_host_over_tcp_goes_through_slots),
		cmocka_unit_test(host_to_gpu_over_tcp_goes_through_slots),
		cmocka_unit_test(gpu_staged_write_is_not_counted_before_its_card_has_copied),
		cmocka_unit_test(gpu_staged_write_that_is_pinned_is_refused),
		cmocka_unit_test(gpu_staged_writes_go_on_when_their_path_was_lost),
		cmocka_unit_test(gpu_staged_write_behind_a_full_path_is_posted_when_there_is_room),
	};

	return cmocka_run_group_tests(tests, setup, NULL);
}
