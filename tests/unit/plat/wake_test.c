/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include <poll.h>
#include <stdatomic.h>
#include <sys/resource.h>

#include "base/log.h"
#include "plat/clock.h"
#include "plat/thread.h"
#include "plat/wake.h"

static bool readable(const struct wake *w)
{
	struct pollfd pfd = { .fd = wake_fd(w), .events = POLLIN };

	return poll(&pfd, 1, 0) == 1;
}

static uint64_t soon_ns(uint64_t after_ms)
{
	return clock_deadline_ns(clock_now_ns(), after_ms * CLOCK_NS_PER_MS);
}

static void wake_signal_while_awake_makes_no_system_call(void **state)
{
	/* Goal: the descriptor stays unreadable unless a sleeper has announced itself. */
	struct wake w;

	(void)state;
	assert_ok(wake_init(&w));
	wake_signal(&w);
	assert_false(readable(&w));
	wake_announce(&w);
	wake_cancel(&w);
	wake_signal(&w);
	assert_false(readable(&w));
	wake_announce(&w);
	wake_signal(&w);
	assert_true(readable(&w));
	wake_drain(&w);
	assert_false(readable(&w));
	wake_signal_always(&w);
	assert_true(readable(&w));
	wake_fini(&w);
}

static void wake_wait_returns_at_once_when_signalled_before(void **state)
{
	/* Goal: a signal between announcing and waiting is not lost, and waiting cleans up. */
	struct wake w;

	(void)state;
	assert_ok(wake_init(&w));
	wake_announce(&w);
	wake_signal(&w);
	assert_true(wake_wait(&w, CLOCK_NEVER_NS));
	assert_false(readable(&w));
	wake_signal(&w); /* nobody sleeps any more */
	assert_false(readable(&w));
	wake_fini(&w);
}

static void wake_wait_without_signal_ends_at_its_deadline(void **state)
{
	/* Goal: a deadline in the past or near future ends the wait and says so. */
	struct wake w;

	(void)state;
	assert_ok(wake_init(&w));
	wake_announce(&w);
	assert_false(wake_wait(&w, 0));
	wake_announce(&w);
	assert_false(wake_wait(&w, soon_ns(2)));
	wake_fini(&w);
}

struct pair {
	struct wake wake;
	_Alignas(64) _Atomic uint32_t work; /* how much is published */
	uint32_t produce;
};

static void produce(void *arg)
{
	struct pair *p = arg;

	for (uint32_t i = 0; i < p->produce; i++) {
		/* Relaxed: only the exchanges inside wake order this against the sleeper. */
		atomic_fetch_add_explicit(&p->work, 1, memory_order_relaxed);
		wake_signal(&p->wake);
		if (i % 64 == 0)
			plat_thread_yield();
	}
}

static void wake_of_a_consumer_that_keeps_sleeping_is_never_lost(void **state)
{
	/* Goal: with two producers the consumer sees everything; a lost wake-up hangs until the
	 * deadline and fails. */
	struct plat_thread threads[2];
	static struct pair p;
	uint32_t want;
	uint32_t seen = 0;

	(void)state;
	p.produce = 10000 * test_scale();
	want = 2 * p.produce;
	assert_ok(wake_init(&p.wake));
	for (uint32_t i = 0; i < 2; i++)
		assert_ok(plat_thread_start(&threads[i], produce, &p, "produce", PLAT_CPU_ANY));
	while (seen < want) {
		wake_announce(&p.wake);
		uint32_t now = atomic_load_explicit(&p.work, memory_order_relaxed);

		if (now != seen) {
			seen = now;
			wake_cancel(&p.wake);
		} else {
			assert_true(wake_wait(&p.wake, soon_ns(TEST_DEADLINE_MS)));
		}
	}
	for (uint32_t i = 0; i < 2; i++)
		plat_thread_join(&threads[i]);
	assert_int_equal(seen, want);
	wake_fini(&p.wake);
}

static void wake_init_without_descriptors_is_refused(void **state)
{
	/* Goal: the descriptor limit is an error of the call. */
	struct rlimit before;
	struct rlimit none;
	struct wake w;

	(void)state;
	assert_ok(getrlimit(RLIMIT_NOFILE, &before));
	none = before;
	none.rlim_cur = 0;
	log_set_level(LOG_LEVEL_OFF);
	assert_ok(setrlimit(RLIMIT_NOFILE, &none));
	assert_int_equal(wake_init(&w), WIMM_E_SYSTEM);
	assert_ok(setrlimit(RLIMIT_NOFILE, &before));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(wake_signal_while_awake_makes_no_system_call),
		cmocka_unit_test(wake_wait_returns_at_once_when_signalled_before),
		cmocka_unit_test(wake_wait_without_signal_ends_at_its_deadline),
		cmocka_unit_test(wake_of_a_consumer_that_keeps_sleeping_is_never_lost),
		cmocka_unit_test(wake_init_without_descriptors_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
