/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include "core/engine.h"
#include "plat/clock.h"

#include <wimm/imm.h>
#include <wimm/region.h>
#include <wimm/transfer.h>
#include <wimm/watcher.h>

#include <stdatomic.h>

#define GAP_NS (3 * CLOCK_NS_PER_MS)

struct beat {
	struct wimm_engine *engine;
	struct wimm_uvm_watcher *watcher;
	_Atomic uint64_t told;
	uint64_t value;
	uint64_t next_ns;
};

static void on_change(void *context, uint64_t old_value, uint64_t new_value)
{
	struct beat *r = context;

	(void)old_value;
	atomic_store(&r->told, new_value);
}

/* The word changes every three milliseconds, as long as somebody waits. */
static bool is_expected(void *arg)
{
	struct beat *r = arg;

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
	struct beat r = { 0 };

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

struct arrivals {
	struct wimm_engine *engine;
	struct wimm_write write;
	uint64_t landed; /* writes to itself */
	uint64_t sent;
	uint64_t next_ns;
};

/* An immediate comes every twenty milliseconds. */
static bool is_expected_to_arrive(void *arg)
{
	struct arrivals *a = arg;
	struct wimm_on_done done = { .flag = &a->landed };
	uint64_t now_ns = clock_now_ns();

	if (now_ns >= a->next_ns && (a->sent == 0 || wimm_flag_load(&a->landed) != 0)) {
		a->landed = 0;
		assert_ok(wimm_submit_single_write(a->engine, &a->write, &done, NULL));
		a->sent++;
		a->next_ns = now_ns + 20 * CLOCK_NS_PER_MS;
	}
	return a->next_ns > now_ns + CLOCK_NS_PER_MS && deliver_soon_ns(a->engine) > a->next_ns;
}

static void arrivals_in_a_rhythm_keep_the_receiver_awake_for_the_next(void **state)
{
	/* Goal: a receiver that nobody rings is awake before an immediate that is due. */
	struct wimm_engine_opts opts = WIMM_ENGINE_OPTS_INIT;
	struct arrivals a = { .write = WIMM_WRITE_INIT };
	static uint8_t bytes[64];
	struct wimm_mr *region;
	struct wimm_remote_mr *to;
	struct wimm_mr_desc desc;

	(void)state;
	opts.provider = "tcp";
	opts.nics = "127.0.0.1:0";
	opts.progress = WIMM_PROGRESS_THREADS;
	assert_ok(wimm_engine_open(&opts, &a.engine));
	atomic_store(&a.engine->may_spin, 1); /* whatever this machine has */
	assert_ok(wimm_reg_mr(a.engine, bytes, sizeof(bytes), NULL, &region));
	assert_ok(wimm_mr_get_desc(region, &desc));
	assert_ok(wimm_open_remote_mr(a.engine, &desc, &to));
	a.write.flags = WIMM_IMM;
	a.write.imm = 7;
	a.write.src = region;
	a.write.dst = to;
	assert_ok(wimm_expect_imm_count(a.engine, 7, 100000, NULL, NULL, NULL));
	assert_true(test_wait_until(is_expected_to_arrive, &a, TEST_DEADLINE_MS));
	assert_true(a.sent >= 3);
	assert_ok(wimm_engine_close(&a.engine));
}

static void rhythm_tells_when_the_next_event_is_due(void **state)
{
	/* Goal: none of what comes too close, too rarely, or each time after another while. */
	struct rhythm r = { 0 };

	(void)state;
	rhythm_note(&r, 10 * CLOCK_NS_PER_S);
	assert_int_equal(rhythm_from(&r), 0); /* one event tells nothing */
	rhythm_note(&r, 10 * CLOCK_NS_PER_S + 16 * CLOCK_NS_PER_MS);
	assert_false(rhythm_is_steady(&r));
	rhythm_note(&r, 10 * CLOCK_NS_PER_S + 32 * CLOCK_NS_PER_MS);
	assert_true(rhythm_is_steady(&r));
	assert_int_equal(rhythm_from(&r),
	                 10 * CLOCK_NS_PER_S + 46 * CLOCK_NS_PER_MS - RHYTHM_EARLY_NS);
	assert_int_equal(rhythm_until(&r, rhythm_from(&r) - 1), 0);
	assert_int_equal(rhythm_until(&r, rhythm_from(&r)),
	                 10 * CLOCK_NS_PER_S + 52 * CLOCK_NS_PER_MS);
	assert_int_equal(rhythm_until(&r, 10 * CLOCK_NS_PER_S + 53 * CLOCK_NS_PER_MS), 0);
	rhythm_note(&r, 10 * CLOCK_NS_PER_S + 64 * CLOCK_NS_PER_MS);
	assert_false(rhythm_is_steady(&r));
	rhythm_note(&r, r.seen_ns + RHYTHM_MIN_NS - 1);
	assert_int_equal(rhythm_from(&r), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(watcher_that_changes_in_a_rhythm_wakes_who_is_to_be_called),
		cmocka_unit_test(arrivals_in_a_rhythm_keep_the_receiver_awake_for_the_next),
		cmocka_unit_test(rhythm_tells_when_the_next_event_is_due),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
