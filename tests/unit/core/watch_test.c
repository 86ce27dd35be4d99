/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include "core/engine.h"
#include "plat/clock.h"

#include <wimm/watcher.h>

#include <stdatomic.h>

#define GAP_NS (3 * CLOCK_NS_PER_MS)

struct rhythm {
	struct wimm_engine *engine;
	struct wimm_uvm_watcher *watcher;
	_Atomic uint64_t told;
	uint64_t value;
	uint64_t next_ns;
};

static void on_change(void *context, uint64_t old_value, uint64_t new_value)
{
	struct rhythm *r = context;

	(void)old_value;
	atomic_store(&r->told, new_value);
}

/* The word changes every three milliseconds, as long as somebody waits. */
static bool is_expected(void *arg)
{
	struct rhythm *r = arg;

	if (clock_now_ns() >= r->next_ns && atomic_load(&r->told) == r->value) {
		r->value = wimm_uvm_watcher_add(r->watcher, 1);
		r->next_ns = clock_now_ns() + GAP_NS;
	}
	return deliver_soon_ns(r->engine) > r->next_ns;
}

static void watcher_that_changes_in_a_rhythm_wakes_who_is_to_be_called(void **state)
{
	/* Goal: before a change that is due, worker and callback thread are told to be awake. */
	struct wimm_engine_opts opts = WIMM_ENGINE_OPTS_INIT;
	struct rhythm r = { 0 };

	(void)state;
	opts.provider = "tcp";
	opts.nics = "127.0.0.1:0";
	opts.progress = WIMM_PROGRESS_THREADS;
	assert_ok(wimm_engine_open(&opts, &r.engine));
	atomic_store(&r.engine->may_spin, 1); /* whatever this machine has */
	assert_ok(wimm_alloc_uvm_watcher(r.engine, on_change, &r, &r.watcher));
	assert_true(test_wait_until(is_expected, &r, TEST_DEADLINE_MS));
	assert_ok(wimm_free_uvm_watcher(r.watcher));
	assert_ok(wimm_engine_close(&r.engine));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(watcher_that_changes_in_a_rhythm_wakes_who_is_to_be_called),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
