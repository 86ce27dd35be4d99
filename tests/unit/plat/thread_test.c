/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include <sched.h>
#include <signal.h>
#include <string.h>

#include "base/log.h"
#include "plat/numa.h"
#include "plat/thread.h"

struct seen {
	struct plat_thread thread;
	bool ran;
	bool is_self;
	bool signals_blocked;
	int cpu_count;
	char name[16];
};

static uint32_t warnings;

static void count_warnings(void *arg, log_level level, const char *text)
{
	(void)arg;
	(void)text;
	warnings += level == LOG_LEVEL_WARN;
}

static void look(void *arg)
{
	struct seen *seen = arg;
	cpu_set_t cpus;
	sigset_t mask;

	seen->ran = true;
	seen->is_self = plat_thread_is_self(&seen->thread);
	pthread_getname_np(pthread_self(), seen->name, sizeof(seen->name));
	pthread_sigmask(SIG_SETMASK, NULL, &mask);
	seen->signals_blocked = sigismember(&mask, SIGINT) && sigismember(&mask, SIGUSR1);
	sched_getaffinity(0, sizeof(cpus), &cpus);
	seen->cpu_count = CPU_COUNT(&cpus);
	plat_cpu_relax();
	plat_thread_yield();
}

static void thread_runs_its_function_named_and_deaf_to_signals(void **state)
{
	/* Goal: the argument arrives, the name is cut, signals stay with the application. */
	struct seen seen = { .ran = false };
	sigset_t mask;

	(void)state;
	assert_ok(plat_thread_start(&seen.thread, look, &seen, "a-name-that-is-too-long",
	                            PLAT_CPU_ANY));
	plat_thread_join(&seen.thread);
	assert_true(seen.ran);
	assert_true(seen.signals_blocked);
	assert_string_equal(seen.name, "a-name-that-is-");
	assert_false(plat_thread_is_self(&seen.thread));
	pthread_sigmask(SIG_SETMASK, NULL, &mask);
	assert_false(sigismember(&mask, SIGINT)); /* the starter's mask is as before */
}

static int first_allowed_cpu(void)
{
	cpu_set_t cpus;

	assert_ok(sched_getaffinity(0, sizeof(cpus), &cpus));
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (CPU_ISSET((size_t)cpu, &cpus))
			return cpu;
	}
	return -1;
}

static void thread_pinned_to_an_allowed_cpu_stays_there(void **state)
{
	/* Goal: pinning takes effect before the function runs. */
	struct seen seen = { .ran = false };

	(void)state;
	assert_ok(plat_thread_start(&seen.thread, look, &seen, "pinned", first_allowed_cpu()));
	plat_thread_join(&seen.thread);
	assert_int_equal(seen.cpu_count, 1);
}

static void thread_that_cannot_be_pinned_runs_and_is_logged_once(void **state)
{
	/* Goal: a bad CPU costs a warning, not the thread, and not a warning a thread. */
	static const int cpus[] = { 1023, 100000, -7 };

	(void)state;
	warnings = 0;
	log_set_sink(count_warnings, NULL);
	log_set_level(LOG_LEVEL_WARN);
	for (size_t i = 0; i < 3; i++) {
		struct seen seen = { .ran = false };

		assert_ok(plat_thread_start(&seen.thread, look, &seen, "unpinned", cpus[i]));
		plat_thread_join(&seen.thread);
		assert_true(seen.ran);
	}
	log_set_sink(NULL, NULL);
	assert_int_equal(warnings, 1);
}

static void look_on_node(void *arg)
{
	struct seen *seen = arg;
	cpu_set_t cpus, want;

	assert_ok(numa_cpus_of_node(0, &want));
	plat_thread_stay_on_node(0);
	assert_int_equal(sched_getaffinity(0, sizeof(cpus), &cpus), 0);
	seen->ran = CPU_EQUAL(&cpus, &want) != 0;
	plat_thread_stay_on_node(NUMA_NODE_NONE);
	assert_int_equal(sched_getaffinity(0, sizeof(cpus), &cpus), 0);
	seen->cpu_count = CPU_EQUAL(&cpus, &want) ? CPU_COUNT(&cpus) : 0;
}

static void thread_on_a_node_stays_within_what_it_may_use(void **state)
{
	/* Goal: the node's CPUs, never more than the thread was left with, and no node changes
	 * nothing. */
	struct seen seen = { .ran = false };
	cpu_set_t before, one;
	size_t cpu = 0;

	(void)state;
	assert_int_equal(sched_getaffinity(0, sizeof(before), &before), 0);
	while (!CPU_ISSET(cpu, &before))
		cpu++;
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	assert_ok(plat_thread_start(&seen.thread, look_on_node, &seen, "node", PLAT_CPU_ANY));
	plat_thread_join(&seen.thread);
	assert_true(seen.ran);
	assert_true(seen.cpu_count >= 1);
	assert_int_equal(plat_cpu_count(), CPU_COUNT(&before));
	assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
	assert_int_equal(plat_cpu_count(), 1);
	assert_ok(plat_thread_start(&seen.thread, look_on_node, &seen, "node", PLAT_CPU_ANY));
	plat_thread_join(&seen.thread);
	assert_int_equal(sched_setaffinity(0, sizeof(before), &before), 0);
	assert_int_equal(seen.cpu_count, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(thread_runs_its_function_named_and_deaf_to_signals),
		cmocka_unit_test(thread_pinned_to_an_allowed_cpu_stays_there),
		cmocka_unit_test(thread_that_cannot_be_pinned_runs_and_is_logged_once),
		cmocka_unit_test(thread_on_a_node_stays_within_what_it_may_use),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
