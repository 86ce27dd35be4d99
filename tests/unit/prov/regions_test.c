/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include "plat/thread.h"
#include "prov/regions.h"

#include <string.h>

enum { PART_BYTES = 65536 }; /* a placement long enough to be met in the middle */

#define KEY(slot, generation) ((uint64_t)(generation) << 32 | (slot))

static uint64_t addr_of(const void *p)
{
	return (uint64_t)(uintptr_t)p;
}

static void regions_is_checked_at_every_edge(void **state)
{
	/* Goal: one byte outside is refused; the whole, and nothing at its end, is not. */
	static uint8_t mem[100];
	struct prov_regions r;

	(void)state;
	assert_ok(prov_regions_init(&r, 4));
	assert_ok(prov_regions_add(&r, mem, 100, true, KEY(2, 9)));
	assert_ok(prov_regions_check(&r, KEY(2, 9), addr_of(mem), 100));
	assert_ok(prov_regions_check(&r, KEY(2, 9), addr_of(mem + 100), 0));
	assert_int_equal(prov_regions_check(&r, KEY(2, 9), addr_of(mem), 101), WIMM_E_RANGE);
	assert_int_equal(prov_regions_check(&r, KEY(2, 9), addr_of(mem + 1), 100), WIMM_E_RANGE);
	assert_int_equal(prov_regions_check(&r, KEY(2, 9), addr_of(mem) - 1, 1), WIMM_E_RANGE);
	assert_int_equal(prov_regions_check(&r, KEY(2, 9), addr_of(mem + 50), UINT64_MAX),
	                 WIMM_E_RANGE);
	assert_int_equal(prov_regions_check(&r, KEY(2, 8), addr_of(mem), 1), WIMM_E_REVOKED);
	assert_int_equal(prov_regions_check(&r, KEY(4, 9), addr_of(mem), 1), WIMM_E_REVOKED);
	assert_int_equal(prov_regions_check(&r, 0, addr_of(mem), 1), WIMM_E_REVOKED);
	prov_regions_fini(&r);
}

static void regions_add_refuses_what_cannot_be(void **state)
{
	/* Goal: a used slot, a slot outside, generation 0, an empty or wrapping range. */
	static uint8_t mem[100];
	struct prov_regions r;

	(void)state;
	assert_ok(prov_regions_init(&r, 4));
	assert_ok(prov_regions_add(&r, mem, 100, false, KEY(0, 1)));
	assert_int_equal(prov_regions_add(&r, mem, 100, true, KEY(0, 2)), WIMM_E_BUSY);
	assert_int_equal(prov_regions_add(&r, mem, 100, true, KEY(4, 1)), WIMM_E_LIMIT);
	assert_int_equal(prov_regions_add(&r, mem, 100, true, KEY(1, 0)), WIMM_E_INVAL);
	assert_int_equal(prov_regions_add(&r, mem, 0, true, KEY(1, 1)), WIMM_E_INVAL);
	assert_int_equal(prov_regions_add(&r, mem, UINT64_MAX, true, KEY(1, 1)), WIMM_E_INVAL);
	assert_int_equal(prov_regions_check(&r, KEY(0, 1), addr_of(mem), 1), WIMM_E_PROTOCOL);
	prov_regions_remove(&r, KEY(0, 2)); /* not that one */
	prov_regions_remove(&r, KEY(9, 2));
	assert_int_equal(prov_regions_check(&r, KEY(0, 1), addr_of(mem), 1), WIMM_E_PROTOCOL);
	prov_regions_remove(&r, KEY(0, 1));
	assert_ok(prov_regions_add(&r, mem, 50, true, KEY(0, 2)));
	prov_regions_fini(&r);
}

/* A worker that places a frame in several stays, as path_rx.c does. */
struct placer {
	struct prov_regions r;
	uint8_t mem[4 * PART_BYTES];
	_Atomic uint64_t key; /* what peers use */
	_Atomic uint64_t placed;
	_Atomic bool stop;
};

static void place_frame(struct placer *p, uint8_t value)
{
	uint64_t key = atomic_load_explicit(&p->key, memory_order_relaxed);
	uint64_t removals = 0;

	for (uint32_t part = 0; part < 4; part++) {
		bool legal = true;

		prov_regions_enter(&p->r);
		if (part == 0 || removals != prov_regions_removals(&p->r)) {
			removals = prov_regions_removals(&p->r);
			legal = prov_regions_check(&p->r, key, addr_of(p->mem), sizeof(p->mem)) ==
			        WIMM_OK;
		}
		if (legal)
			memset(p->mem + part * PART_BYTES, value, PART_BYTES);
		prov_regions_leave(&p->r);
		if (!legal)
			return;
	}
	atomic_fetch_add_explicit(&p->placed, 1, memory_order_relaxed);
}

static void placer_main(void *arg)
{
	struct placer *p = arg;
	uint8_t value = 0;

	while (!atomic_load_explicit(&p->stop, memory_order_relaxed))
		place_frame(p, value++);
}

static void regions_removed_while_frames_are_placed_takes_no_more_bytes(void **state)
{
	/* Goal: with a worker placing all the time, memory is still once remove has returned. */
	static struct placer p;
	struct plat_thread thread;
	static uint8_t seen[sizeof(p.mem)];
	uint8_t last;

	(void)state;
	assert_ok(prov_regions_init(&p.r, 4));
	assert_ok(plat_thread_start(&thread, placer_main, &p, "placer", PLAT_CPU_ANY));
	for (uint32_t i = 1; i <= 300 * test_scale(); i++) {
		uint64_t before = atomic_load_explicit(&p.placed, memory_order_relaxed);

		assert_ok(prov_regions_add(&p.r, p.mem, sizeof(p.mem), true, KEY(1, i)));
		atomic_store_explicit(&p.key, KEY(1, i), memory_order_relaxed);
		while (atomic_load_explicit(&p.placed, memory_order_relaxed) < before + 2)
			plat_thread_yield();
		prov_regions_remove(&p.r, KEY(1, i));
		/* Where a frame would go on to, first. Races here are sanitizer errors. */
		last = p.mem[sizeof(p.mem) - 1];
		memcpy(seen, p.mem, sizeof(seen));
		for (int k = 0; k < 20; k++)
			plat_thread_yield();
		assert_int_equal(last, p.mem[sizeof(p.mem) - 1]);
		assert_memory_equal(seen, p.mem, sizeof(seen));
	}
	atomic_store_explicit(&p.stop, true, memory_order_relaxed);
	plat_thread_join(&thread);
	prov_regions_fini(&p.r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(regions_is_checked_at_every_edge),
		cmocka_unit_test(regions_add_refuses_what_cannot_be),
		cmocka_unit_test(regions_removed_while_frames_are_placed_takes_no_more_bytes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
