/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"
#include "unit/mem/fake.h"

#include "mem/cuda_info.h"

#include <stdlib.h>
#include <wimm/engine.h>

static struct fake_cuda_knobs *fake;

static void flush_rule_follows_topology_and_ordering(void **state)
{
	/* Goal: each combination has the weakest rule that keeps C6. */
	(void)state;
	assert_int_equal(mem_flush_rule(true, CU_ORDERING_NONE, 0, false), MEM_FLUSH_NONE);
	assert_int_equal(mem_flush_rule(false, CU_ORDERING_OWNER, 0, false), MEM_FLUSH_NONE);
	assert_int_equal(mem_flush_rule(false, CU_ORDERING_ALL, 1, true), MEM_FLUSH_NONE);
	assert_int_equal(mem_flush_rule(false, CU_ORDERING_NONE, 1, true), MEM_FLUSH_CALL);
	assert_int_equal(mem_flush_rule(false, CU_ORDERING_NONE, 1, false), MEM_FLUSH_READ);
	assert_int_equal(mem_flush_rule(false, CU_ORDERING_NONE, 2, true), MEM_FLUSH_READ);
}

static void info_prints_each_card_with_its_rule(void **state)
{
	/* Goal: wimm info shows what was chosen for the card that is there. */
	static const struct {
		int ordering, options;
		const char *text;
	} cases[] = {
		{ 100, 1, "no flush" },
		{ 0, 1, "cuFlushGPUDirectRDMAWrites()" },
		{ 0, 0, "a loopback READ" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char *json = malloc(1 << 20);
		size_t len;

		fake->writes_ordering = cases[i].ordering;
		fake->flush_options = cases[i].options;
		assert_ok(wimm_info_json(json, 1 << 20, &len));
		assert_non_null(strstr(json, "fake device 0"));
		assert_non_null(strstr(json, cases[i].text));
		free(json);
	}
}

static int setup(void **state)
{
	(void)state;
	fake = fake_cuda_start();
	return fake != NULL ? 0 : -1;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(flush_rule_follows_topology_and_ordering),
		cmocka_unit_test(info_prints_each_card_with_its_rule),
	};

	return cmocka_run_group_tests(tests, setup, NULL);
}
