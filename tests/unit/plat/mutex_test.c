/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include "plat/mutex.h"
#include "plat/thread.h"

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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(mutex_held_by_several_threads_loses_no_update),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
