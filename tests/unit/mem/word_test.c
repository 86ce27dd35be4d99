/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"
#include "unit/mem/fake.h"

#include "mem/cuda.h"
#include "mem/word.h"

#include <sys/wait.h>
#include <unistd.h>

enum { MANY = 3000 };

static void word_each_has_a_line_of_its_own_and_starts_at_zero(void **state)
{
	/* Goal: words do not share cache lines, come zeroed, and come back. */
	static uint64_t *words[MANY];

	(void)state;
	for (int i = 0; i < MANY; i++) {
		words[i] = mem_word_alloc();
		assert_non_null(words[i]);
		assert_int_equal((uintptr_t)words[i] % 64, 0);
		assert_int_equal(*words[i], 0);
		*words[i] = (uint64_t)i + 1;
	}
	for (int i = 0; i < MANY; i++)
		assert_int_equal(*words[i], i + 1);
	mem_word_free(words[7]);
	assert_ptr_equal(mem_word_alloc(), words[7]);
	assert_int_equal(*words[7], 0);
	for (int i = 0; i < MANY; i++)
		mem_word_free(words[i]);
	mem_word_free(NULL);
}

static void word_of_a_child_of_a_fork_is_its_own(void **state)
{
	/* Goal: the child does not get a word in memory that it has not inherited. */
	uint64_t *word = mem_word_alloc();
	pid_t child;
	int status;

	(void)state;
	child = fork();
	if (child == 0) {
		uint64_t *own = mem_word_alloc();

		if (own == NULL)
			_exit(1);
		*own = 1;
		mem_word_free(own);
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	mem_word_free(word);
}

static void word_made_before_the_process_uses_a_gpu_is_pinned_later(void **state)
{
	/* Goal: an engine opened first and CUDA used later is no trap. */
	uint64_t *word = mem_word_alloc();
	struct fake_cuda_knobs *fake;
	uint32_t type = 0;

	(void)state;
	assert_false(mem_word_pin(word));
	fake = fake_cuda_start();
	assert_non_null(fake);
	fake->inactive = 1;
	assert_false(mem_word_pin(word));
	fake->inactive = 0;
	assert_true(mem_word_pin(word));
	assert_int_equal(cuda_lib_used()->pointer_attribute(&type, CU_PTR_MEMORY_TYPE,
	                                                    (cu_ptr)(uintptr_t)word),
	                 CU_OK);
	assert_int_equal(type, 1);
	assert_int_equal(fake->objects(), 1);
	mem_word_free(word);
	assert_int_equal(fake->objects(), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(word_each_has_a_line_of_its_own_and_starts_at_zero),
		cmocka_unit_test(word_of_a_child_of_a_fork_is_its_own),
		cmocka_unit_test(word_made_before_the_process_uses_a_gpu_is_pinned_later),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
