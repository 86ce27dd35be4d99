/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include "plat/sema.h"
#include "plat/thread.h"

static int handed_over;

static void post_it(void *arg)
{
	handed_over = 42;
	sema_post(arg);
}

static void sema_wait_after_post_sees_what_was_done(void **state)
{
	/* Goal: what the poster did before is there when the waiter goes on, on a semaphore of the
	 * stack. */
	(void)state;
	for (int i = 0; i < 200; i++) {
		struct plat_thread t;
		struct sema s;

		handed_over = 0;
		sema_init(&s);
		assert_int_equal(plat_thread_start(&t, post_it, &s, "poster", PLAT_CPU_ANY),
		                 WIMM_OK);
		sema_wait(&s);
		assert_int_equal(handed_over, 42);
		plat_thread_join(&t);
		sema_fini(&s);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sema_wait_after_post_sees_what_was_done),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
