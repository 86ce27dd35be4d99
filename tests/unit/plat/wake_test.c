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
	_Alignas(64) _Atomic uint32_t work;     /* how much is published */
	_Alignas(64) _Atomic uint32_t consumed; /* how much of it was seen */
	_Atomic uint32_t given_up;
	uint32_t rounds;
};

/* Relaxed everywhere below: the exchanges inside wake alone order work against the sleeper. */
static void produce_one_by_one(void *arg)
{
	struct pair *p = arg;

	for (uint32_t i = 1; i <= p->rounds; i++) {
		atomic_store_explicit(&p->work, i, memory_order_relaxed);
		wake_signal(&p->wake);
		while (atomic_load_explicit(&p->consumed, memory_order_relaxed) != i) {
			if (atomic_load_explicit(&p->given_up, memory_order_relaxed))
				return;
			plat_cpu_relax();
		}
	}
}

static void wake_of_a_consumer_about_to_sleep_is_never_lost(void **state)
{
	/* Goal: one item at a time, so that any single lost wake-up leaves both sides waiting until
	 * the deadline, which fails. */
	static struct pair p;
	struct plat_thread thread;
	bool woken = true;
	uint32_t seen = 0;

	(void)state;
	p.rounds = 30000 * test_scale();
	assert_ok(wake_init(&p.wake));
	assert_ok(plat_thread_start(&thread, produce_one_by_one, &p, "produce", PLAT_CPU_ANY));
	while (seen < p.rounds && woken) {
		uint32_t now;

		wake_announce(&p.wake);
		now = atomic_load_explicit(&p.work, memory_order_relaxed);
		if (now == seen) {
			woken = wake_wait(&p.wake, soon_ns(TEST_DEADLINE_MS));
			continue;
		}
		wake_cancel(&p.wake);
		seen = now;
		atomic_store_explicit(&p.consumed, seen, memory_order_relaxed);
	}
	atomic_store_explicit(&p.given_up, 1, memory_order_relaxed);
	plat_thread_join(&thread);
	wake_fini(&p.wake);
	assert_true(woken);
	assert_int_equal(seen, p.rounds);
}

struct crowd {
	struct wake wake;
	_Alignas(64) _Atomic uint32_t work;
	uint32_t rounds;
};

static void produce_in_a_crowd(void *arg)
{
	struct crowd *c = arg;

	for (uint32_t i = 0; i < c->rounds; i++) {
		atomic_fetch_add_explicit(&c->work, 1, memory_order_relaxed);
		wake_signal(&c->wake);
		if (i % 64 == 0)
			plat_thread_yield();
	}
}

static void wake_by_several_producers_ends_with_everything_seen(void **state)
{
	/* Goal: the last item of two racing producers wakes the consumer. */
	struct plat_thread threads[2];
	static struct crowd c;
	uint32_t seen = 0;

	(void)state;
	c.rounds = 10000 * test_scale();
	assert_ok(wake_init(&c.wake));
	for (uint32_t i = 0; i < 2; i++)
		assert_ok(plat_thread_start(&threads[i], produce_in_a_crowd, &c, "crowd",
		                            PLAT_CPU_ANY));
	while (seen < 2 * c.rounds) {
		uint32_t now;

		wake_announce(&c.wake);
		now = atomic_load_explicit(&c.work, memory_order_relaxed);
		if (now == seen)
			assert_true(wake_wait(&c.wake, soon_ns(TEST_DEADLINE_MS)));
		else
			wake_cancel(&c.wake);
		seen = now;
	}
	for (uint32_t i = 0; i < 2; i++)
		plat_thread_join(&threads[i]);
	assert_int_equal(seen, 2 * c.rounds);
	wake_fini(&c.wake);
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
		cmocka_unit_test(wake_of_a_consumer_about_to_sleep_is_never_lost),
		cmocka_unit_test(wake_by_several_producers_ends_with_everything_seen),
		cmocka_unit_test(wake_init_without_descriptors_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
