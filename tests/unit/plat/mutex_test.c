/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include "plat/mutex.h"
#include "plat/thread.h"

#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 4, ROUNDS = 5000 };

static struct mutex lock;
static uint64_t count TSA(guarded_by(lock));

static void add_many(void *arg)
{
	(void)arg;
	for (uint32_t i = 0; i < ROUNDS; i++) {
		mutex_lock(&lock);
		count++;
		mutex_unlock(&lock);
	}
}

static void mutex_held_by_several_threads_loses_no_update(void **state)
{
	/* Goal: plain additions under the lock add up. */
	struct plat_thread threads[THREADS];

	(void)state;
	mutex_init(&lock);
	for (uint32_t i = 0; i < THREADS; i++)
		assert_ok(plat_thread_start(&threads[i], add_many, NULL, "add", PLAT_CPU_ANY));
	for (uint32_t i = 0; i < THREADS; i++)
		plat_thread_join(&threads[i]);
	mutex_lock(&lock);
	assert_int_equal(count, THREADS * ROUNDS);
	mutex_unlock(&lock);
	mutex_fini(&lock);
}

static struct mutex shared_lock = MUTEX_INIT_FOR_CHILDREN;
static _Atomic int stop;

/* Holds it nearly all the time. */
static void hold(void *arg)
{
	(void)arg;
	while (atomic_load(&stop) == 0) {
		mutex_lock(&shared_lock);
		for (int i = 0; i < 20; i++)
			plat_thread_yield();
		mutex_unlock(&shared_lock);
	}
}

static void mutex_for_children_is_free_in_a_child(void **state)
{
	/* Goal: whatever another thread holds while this one forks, the child can lock it. */
	struct plat_thread thread;

	(void)state;
	mutex_lock(&shared_lock);
	mutex_unlock(&shared_lock);
	assert_ok(plat_thread_start(&thread, hold, NULL, "hold", PLAT_CPU_ANY));
	for (int i = 0; i < 20; i++) {
		pid_t child = fork();
		int status;

		if (child == 0) {
			(void)alarm(TEST_DEADLINE_MS / 1000);
			mutex_lock(&shared_lock);
			mutex_unlock(&shared_lock);
			_exit(0);
		}
		assert_int_equal(waitpid(child, &status, 0), child);
		assert_int_equal(status, 0);
	}
	atomic_store(&stop, 1);
	plat_thread_join(&thread);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(mutex_held_by_several_threads_loses_no_update),
		cmocka_unit_test(mutex_for_children_is_free_in_a_child),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
