/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include <string.h>

#include <wimm/region.h>

static void memory_bad_arguments_are_refused(void **state)
{
	/* Goal: nothing is allocated or freed by a call that makes no sense, and it says why. */
	struct wimm_alloc_opts opts = WIMM_ALLOC_OPTS_INIT;
	void *out = &opts;
	int here;

	(void)state;
	assert_int_equal(wimm_alloc(0, NULL, &out), WIMM_E_INVAL);
	assert_non_null(strstr(wimm_last_error_text(), "0 bytes"));
	assert_int_equal(wimm_alloc(1, NULL, NULL), WIMM_E_INVAL);
	assert_int_equal(wimm_alloc(UINT64_MAX, NULL, &out), WIMM_E_INVAL);
	opts.flags = 1;
	assert_int_equal(wimm_alloc(1, &opts, &out), WIMM_E_INVAL);
	opts.flags = 0;
	opts.reserved[3] = 1;
	assert_int_equal(wimm_alloc(1, &opts, &out), WIMM_E_INVAL);
	opts.reserved[3] = 0;
	opts.size--;
	assert_int_equal(wimm_alloc(1, &opts, &out), WIMM_E_INVAL);
	assert_ptr_equal(out, &opts);
	assert_int_equal(wimm_free(&here), WIMM_E_INVAL);
	assert_ok(wimm_free(NULL));
}

static void memory_of_a_region_cannot_be_freed(void **state)
{
	/* Goal: an allocation is busy while an engine has a region in it, and free afterwards. */
	struct wimm_engine_opts opts = WIMM_ENGINE_OPTS_INIT;
	struct wimm_on_done on_done = { 0 };
	struct wimm_engine *engine;
	struct wimm_mr *mr;
	uint64_t flag = 0;
	void *mem;

	(void)state;
	opts.provider = "host";
	opts.progress = WIMM_PROGRESS_CALLER;
	assert_ok(wimm_engine_open(&opts, &engine));
	assert_ok(wimm_alloc(100000, NULL, &mem));
	assert_int_equal((uintptr_t)mem % 4096, 0);
	assert_ok(wimm_reg_mr(engine, (char *)mem + 100, 5000, NULL, &mr));
	assert_int_equal(wimm_free(mem), WIMM_E_BUSY);
	on_done.flag = &flag;
	assert_ok(wimm_dereg_mr(engine, mr, &on_done));
	while (wimm_flag_load(&flag) == 0)
		assert_ok(wimm_progress(engine, NULL));
	assert_ok(wimm_free(mem));
	assert_ok(wimm_engine_close(&engine));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(memory_bad_arguments_are_refused),
		cmocka_unit_test(memory_of_a_region_cannot_be_freed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
