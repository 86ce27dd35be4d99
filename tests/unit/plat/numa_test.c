/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include "plat/numa.h"

static void cpulist_is_read_with_ranges_and_newline(void **state)
{
	/* Goal: the forms the kernel writes. */
	cpu_set_t cpus;

	(void)state;
	assert_ok(numa_parse_cpulist("0-3,8,10-11\n", &cpus));
	assert_int_equal(CPU_COUNT(&cpus), 7);
	assert_true(CPU_ISSET(0, &cpus) && CPU_ISSET(3, &cpus) && CPU_ISSET(8, &cpus));
	assert_true(CPU_ISSET(11, &cpus) && !CPU_ISSET(4, &cpus) && !CPU_ISSET(9, &cpus));
	assert_ok(numa_parse_cpulist("\n", &cpus));
	assert_int_equal(CPU_COUNT(&cpus), 0);
}

static void cpulist_that_is_malformed_is_refused(void **state)
{
	/* Goal: refusals leave the output alone; numbers beyond the set are a range error. */
	static const char *const broken[] = { "a", "1-", "3-1", "1;2", "-1", "1,,2", "1 2" };
	cpu_set_t cpus;

	(void)state;
	CPU_ZERO(&cpus);
	CPU_SET(5, &cpus);
	for (size_t i = 0; i < sizeof(broken) / sizeof(broken[0]); i++)
		assert_int_equal(numa_parse_cpulist(broken[i], &cpus), WIMM_E_PARSE);
	assert_int_equal(numa_parse_cpulist("1024", &cpus), WIMM_E_RANGE);
	assert_int_equal(numa_parse_cpulist("99999999999999999999999", &cpus), WIMM_E_RANGE);
	assert_int_equal(CPU_COUNT(&cpus), 1);
	assert_true(CPU_ISSET(5, &cpus));
}

static void node_of_loopback_and_of_odd_names_is_none(void **state)
{
	/* Goal: an interface without a device, a missing one, a path in disguise: no node. */
	(void)state;
	assert_int_equal(numa_node_of_netdev("lo"), NUMA_NODE_NONE);
	assert_int_equal(numa_node_of_netdev("no-such-nic"), NUMA_NODE_NONE);
	assert_int_equal(numa_node_of_netdev("../net/lo"), NUMA_NODE_NONE);
	assert_int_equal(numa_node_of_netdev(".."), NUMA_NODE_NONE);
	assert_int_equal(numa_node_of_netdev(""), NUMA_NODE_NONE);
}

static void cpus_of_any_node_are_some_this_process_may_use(void **state)
{
	/* Goal: a thread can always be pinned to the answer, for no node and unknown nodes too. */
	static const int nodes[] = { NUMA_NODE_NONE, 0, 60000 };
	cpu_set_t allowed;

	(void)state;
	assert_ok(sched_getaffinity(0, sizeof(allowed), &allowed));
	for (size_t i = 0; i < 3; i++) {
		cpu_set_t cpus;
		cpu_set_t both;

		assert_ok(numa_cpus_of_node(nodes[i], &cpus));
		assert_true(CPU_COUNT(&cpus) > 0);
		CPU_AND(&both, &cpus, &allowed);
		assert_true(CPU_EQUAL(&both, &cpus));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(cpulist_is_read_with_ranges_and_newline),
		cmocka_unit_test(cpulist_that_is_malformed_is_refused),
		cmocka_unit_test(node_of_loopback_and_of_odd_names_is_none),
		cmocka_unit_test(cpus_of_any_node_are_some_this_process_may_use),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
