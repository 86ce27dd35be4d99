/* SPDX-License-Identifier: Apache-2.0 */
#include "unit/core/gpu_side.h"

#include "mem/kernels.h"
#include "plat/thread.h"

#include <wimm/cuda.h>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

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

/* Writes what it is asked for, until its pipe closes. */
static void writer(int in, int out)
{
	struct wimm_mr_desc desc;
	struct wimm_remote_mr *to;
	struct side s;
	char go;

	test_talk(in, NULL, &desc, sizeof(desc));
	fake->devices = 2;
	side_open(&s, 0);
	fill(s.shadow, BYTES, 5);
	assert_ok(wimm_open_remote_mr(s.engine, &desc, &to));
	while (read(in, &go, 1) == 1) {
		int64_t st = write_one(&s, to, 4096, 8192, 3 * PAGE);

		test_talk(out, &st, NULL, sizeof(st));
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
	test_talk(down, &b.desc, NULL, sizeof(b.desc));
	test_talk(down, "g", NULL, 1);
	test_talk(up, NULL, &st, sizeof(st));
	assert_int_equal(st, 1);
	fill(want, BYTES, 5);
	assert_memory_equal(b.shadow + 8192, want + 4096, 3 * PAGE);
	/* A region that has ended is written by nobody, whatever has been mapped. */
	assert_ok(wimm_dereg_mr(b.engine, b.mr, &on_done));
	assert_int_equal(wait_flag(&flag), 1);
	memset(b.shadow, 0, BYTES);
	test_talk(down, "g", NULL, 1);
	test_talk(up, NULL, &st, sizeof(st));
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
	test_talk(writers[2].down, &b.desc, NULL, sizeof(b.desc));
	test_talk(writers[2].down, "g", NULL, 1);
	test_talk(writers[2].up, NULL, &st, sizeof(st));
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
		cmocka_unit_test(gpu_single_write_lands_and_is_counted_after_its_bytes),
		cmocka_unit_test(gpu_page_list_is_one_launch_and_counts_each_page),
		cmocka_unit_test(gpu_page_list_of_empty_pages_counts_each_page),
	};

	return cmocka_run_group_tests(tests, setup, NULL);
}
