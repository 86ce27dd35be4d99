/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include "base/alloc.h"
#include "mem/memfd.h"
#include "mem/shared.h"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 1 << 20 };

static void shared_range_is_found_while_it_lives_only(void **state)
{
	/* Goal: a range belongs to an allocation only when it lies in it whole; holds keep it. */
	uint8_t *addr;
	void *out;
	int code;
	struct mem_shared *m;

	(void)state;
	assert_ok(mem_shared_alloc(BYTES - 5, &out, &code));
	addr = out;
	assert_int_equal(addr[BYTES - 1], 0); /* rounded up to a page */
	m = mem_shared_get(addr + 100, BYTES - 100);
	assert_non_null(m);
	assert_null(mem_shared_get(addr, BYTES + 1));
	assert_null(mem_shared_get(addr - 1, 1));
	assert_null(mem_shared_get(&addr, 1));
	assert_int_equal(mem_shared_free(addr), WIMM_E_BUSY);
	mem_shared_put(m);
	assert_int_equal(mem_shared_free(addr + 4096), WIMM_E_INVAL);
	assert_ok(mem_shared_free(addr));
	assert_int_equal(mem_shared_free(addr), WIMM_E_INVAL);
	assert_null(mem_shared_get(addr, 1));
}

static void shared_fence_leaves_a_writer_outside(void **state)
{
	/* Goal: after the fence the content is the same, and what a holder of the old descriptor
	 * writes goes nowhere; the new descriptor is the memory again. */
	struct mem_shared_view view;
	struct mem_shared *m;
	void *theirs;
	void *out;
	uint8_t *mine;
	int code;

	(void)state;
	assert_ok(mem_shared_alloc(BYTES, &out, &code));
	mine = out;
	memset(mine + 4096, 1, 4096);
	m = mem_shared_get(mine, BYTES);
	mem_shared_view(m, &view);
	assert_ok(memfd_map(view.fd, BYTES, &theirs));
	memset(theirs, 2, 4096);
	assert_int_equal(mine[0], 2);
	assert_ok(mem_shared_fence(m));
	memset(theirs, 3, BYTES);
	assert_int_equal(mine[0], 2);
	assert_int_equal(mine[4096], 1);
	assert_int_equal(mine[BYTES - 1], 0);
	memfd_unmap(theirs, BYTES);
	mem_shared_view(m, &view);
	assert_ok(memfd_map(view.fd, BYTES, &theirs));
	((uint8_t *)theirs)[7] = 9;
	assert_int_equal(mine[7], 9);
	memfd_unmap(theirs, BYTES);
	mem_shared_put(m);
	assert_ok(mem_shared_free(mine));
}

static void shared_child_of_a_fork_has_no_part_in_it(void **state)
{
	/* Goal: the child neither finds nor frees the parent's memory; its own, which comes to lie
	 * where the parent's is, it does. */
	void *out, *own;
	int status;
	int code;
	pid_t child;

	(void)state;
	assert_ok(mem_shared_alloc(BYTES, &out, &code));
	child = fork();
	if (child == 0) {
		if (mem_shared_get(out, 1) != NULL || mem_shared_free(out) != WIMM_E_FORKED)
			_exit(1);
		for (int i = 0; i < 8; i++)
			if (mem_shared_alloc(BYTES, &own, &code) != WIMM_OK ||
			    mem_shared_free(own) != WIMM_OK)
				_exit(2);
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	assert_ok(mem_shared_free(out));
}

static void shared_alloc_without_memory_leaves_nothing(void **state)
{
	/* Goal: a failing allocation is reported and nothing stays behind. */
	uint64_t before = mem_live_blocks();
	void *out = NULL;
	int code;

	(void)state;
	mem_fail_nth(1);
	assert_int_equal(mem_shared_alloc(BYTES, &out, &code), WIMM_E_NOMEM);
	mem_fail_nth(0);
	assert_int_equal(mem_shared_alloc(0, &out, &code), WIMM_E_NOMEM);
	assert_int_not_equal(mem_shared_alloc((size_t)1 << 61, &out, &code), WIMM_OK);
	assert_null(out);
	assert_int_equal(mem_live_blocks(), before);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(shared_range_is_found_while_it_lives_only),
		cmocka_unit_test(shared_fence_leaves_a_writer_outside),
		cmocka_unit_test(shared_child_of_a_fork_has_no_part_in_it),
		cmocka_unit_test(shared_alloc_without_memory_leaves_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
