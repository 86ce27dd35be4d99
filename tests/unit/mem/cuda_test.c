/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"
#include "unit/mem/fake.h"

#include "mem/cuda.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 64 << 10 };

static struct fake_cuda_knobs *fake;
static char text[MEM_CUDA_TEXT_BYTES];

static void *at(uint64_t ptr)
{
	return (void *)(uintptr_t)ptr;
}

static void cuda_host_memory_is_no_device_memory(void **state)
{
	/* Goal: ordinary memory, the stack and pinned memory are told apart from a card's. */
	struct mem_cuda_range range;
	bool is_cuda = true;
	char local[16] = { 0 };

	(void)state;
	assert_ok(mem_cuda_describe(local, sizeof(local), &is_cuda, &range, text, sizeof(text)));
	assert_false(is_cuda);
}

static void cuda_device_memory_is_known_with_its_allocation(void **state)
{
	/* Goal: device, base and length of the allocation come out right, for both kinds. */
	struct mem_cuda_range range;
	bool is_cuda;

	(void)state;
	for (int vmm = 0; vmm < 2; vmm++) {
		uint64_t ptr = fake->alloc(BYTES, vmm);

		assert_int_not_equal(ptr, 0);
		assert_ok(mem_cuda_describe(at(ptr + 512), 4096, &is_cuda, &range, text,
		                            sizeof(text)));
		assert_true(is_cuda);
		assert_int_equal(range.device, 0);
		assert_int_equal(range.base, ptr);
		assert_int_equal(range.base_bytes, BYTES);
		assert_int_equal(range.vmm, vmm);
		assert_true(range.whole);
		fake->free(ptr);
	}
}

static void cuda_range_past_the_allocation_is_refused_with_both_lengths(void **state)
{
	/* Goal: a region that leaves its allocation is found out, and the text has the figures. */
	uint64_t ptr = fake->alloc(BYTES, 0);
	struct mem_cuda_range range;
	bool is_cuda;

	(void)state;
	assert_int_equal(mem_cuda_describe(at(ptr + 4096), BYTES, &is_cuda, &range, text,
	                                   sizeof(text)),
	                 WIMM_E_RANGE);
	assert_non_null(strstr(text, "65536"));
	assert_non_null(strstr(text, "61440"));
	fake->free(ptr);
}

static void cuda_dmabuf_begins_at_a_page_and_says_the_offset(void **state)
{
	/* Goal: the descriptor holds the range's bytes at the offset given. */
	uint64_t ptr = fake->alloc(BYTES, 0);
	uint64_t offset;
	char byte = 0;
	int fd;

	(void)state;
	((char *)fake->shadow(ptr))[5000] = 77;
	assert_ok(mem_cuda_dmabuf(at(ptr + 5000), 3000, &fd, &offset, text, sizeof(text)));
	assert_int_equal(offset, 5000 - 4096);
	/* What stands behind a dma-buf of the fake is the allocation's file from its start. */
	assert_int_equal(pread(fd, &byte, 1, (off_t)(4096 + offset)), 1);
	assert_int_equal(byte, 77);
	assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	(void)close(fd);
	fake->no_dmabuf = 1;
	assert_int_equal(mem_cuda_dmabuf(at(ptr), 4096, &fd, &offset, text, sizeof(text)),
	                 WIMM_E_UNSUPPORTED);
	fake->no_dmabuf = 0;
	fake->free(ptr);
}

/* What the other process does with it: writes one byte at the range's start. */
static int child_writes(const struct mem_cuda_export *e)
{
	struct mem_cuda_map map;

	if (mem_cuda_import(e, &map, text, sizeof(text)) != WIMM_OK)
		return 1;
	*(char *)fake->shadow(map.base + e->offset) = 42;
	mem_cuda_unmap(&map);
	return 0;
}

static void cuda_exported_memory_is_written_by_another_process(void **state)
{
	/* Goal: both kinds of memory reach another process, at the right offset. */
	(void)state;
	for (int vmm = 0; vmm < 2; vmm++) {
		uint64_t ptr = fake->alloc(BYTES, vmm);
		struct mem_cuda_export e;
		int status;
		pid_t pid;

		assert_ok(mem_cuda_export(at(ptr + 8192), 4096, &e, text, sizeof(text)));
		assert_int_equal(e.offset, 8192);
		assert_int_equal(e.bytes, BYTES);
		assert_int_equal(e.vmm, vmm);
		pid = fork();
		if (pid == 0)
			_exit(child_writes(&e));
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_int_equal(status, 0);
		assert_int_equal(((char *)fake->shadow(ptr))[8192], 42);
		if (e.fd >= 0)
			(void)close(e.fd);
		fake->free(ptr);
	}
}

static int setup(void **state)
{
	(void)state;
	fake = fake_cuda_start();
	return fake != NULL ? 0 : -1;
}

static int teardown(void **state)
{
	(void)state;
	return fake->objects() == 0 ? 0 : -1;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(cuda_host_memory_is_no_device_memory),
		cmocka_unit_test(cuda_device_memory_is_known_with_its_allocation),
		cmocka_unit_test(cuda_range_past_the_allocation_is_refused_with_both_lengths),
		cmocka_unit_test(cuda_dmabuf_begins_at_a_page_and_says_the_offset),
		cmocka_unit_test(cuda_exported_memory_is_written_by_another_process),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
