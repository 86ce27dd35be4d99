/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"
#include "unit/mem/fake.h"

#include "mem/cuda_lib.h"

static void cuda_lib_not_loaded_by_the_process_is_not_used(void **state)
{
	/* Goal: who does not use CUDA gets nothing of it loaded. Comes first in this program. */
	(void)state;
	assert_null(cuda_lib_used());
}

static void cuda_lib_missing_file_says_so_with_the_setting(void **state)
{
	/* Goal: a host without a driver is told which file, and where that is set. */
	char path[CONFIG_TEXT_BYTES];
	char why[256];

	(void)state;
	config_get_text(CFG_CUDA_LIBRARY, path);
	assert_ok(config_set("cuda_library", "/nowhere/libcuda.so.1"));
	assert_null(cuda_lib_load(why, sizeof(why)));
	assert_non_null(strstr(why, "/nowhere/libcuda.so.1"));
	assert_non_null(strstr(why, "cuda_library"));
	assert_ok(config_set("cuda_library", ""));
	assert_null(cuda_lib_load(why, sizeof(why)));
	assert_non_null(strstr(why, "switched off"));
	assert_ok(config_set("cuda_library", path));
}

static void cuda_lib_loaded_by_the_process_is_found(void **state)
{
	/* Goal: once the program has the driver, so have we, with every function filled in. */
	const struct cuda_lib *lib;
	int version = 0;

	(void)state;
	assert_non_null(fake_cuda_start());
	lib = cuda_lib_used();
	assert_non_null(lib);
	assert_int_equal(lib->driver_version(&version), CU_OK);
	assert_int_equal(version, 13000);
	assert_string_equal(cuda_lib_error(lib, 1), "CUDA_ERROR_INVALID_VALUE");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(cuda_lib_not_loaded_by_the_process_is_not_used),
		cmocka_unit_test(cuda_lib_missing_file_says_so_with_the_setting),
		cmocka_unit_test(cuda_lib_loaded_by_the_process_is_found),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
