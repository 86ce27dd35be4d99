/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include "base/alloc.h"
#include "base/hash.h"
#include "plat/rand.h"

enum { KEYS = 512 };

static void hash_holds_extreme_keys_and_values(void **state)
{
	/* Goal: no key and no value is reserved, and an empty map answers. */
	struct hash h;
	uint64_t value = 7;

	(void)state;
	hash_init(&h, 0);
	assert_false(hash_find(&h, 0, &value));
	assert_false(hash_remove(&h, 0));
	assert_int_equal(value, 7);
	assert_ok(hash_insert(&h, 0, UINT64_MAX));
	assert_ok(hash_insert(&h, UINT64_MAX, 0));
	assert_true(hash_find(&h, 0, &value));
	assert_true(value == UINT64_MAX);
	assert_true(hash_find(&h, UINT64_MAX, &value));
	assert_true(value == 0);
	assert_ok(hash_insert(&h, 0, 1));
	assert_true(hash_find(&h, 0, &value));
	assert_int_equal(value, 1);
	assert_int_equal(h.count, 2);
	assert_ok(hash_insert_ptr(&h, 5, &h));
	assert_ptr_equal(hash_find_ptr(&h, 5), &h);
	assert_null(hash_find_ptr(&h, 6));
	hash_fini(&h);
}

static void hash_under_random_changes_agrees_with_a_plain_array(void **state)
{
	/* Goal: growth and removal (gap closing, around the end of the table too) lose nothing. */
	uint64_t model[KEYS] = { 0 }; /* 0 = absent */
	uint32_t present = 0;
	struct hash h;
	struct rng r;

	(void)state;
	rng_init(&r, test_seed(11));
	hash_init(&h, rng_u64(&r));
	for (uint32_t step = 0; step < 40000; step++) {
		uint64_t key = rng_below(&r, KEYS);
		uint64_t value = 0;

		if (rng_chance(&r, step % 4000 < 2000 ? 2 : 1, 3)) {
			present += model[key] == 0;
			model[key] = rng_between(&r, 1, 1000);
			assert_ok(hash_insert(&h, key, model[key]));
		} else {
			assert_int_equal(hash_remove(&h, key), model[key] != 0);
			present -= model[key] != 0;
			model[key] = 0;
		}
		assert_int_equal(h.count, present);
		key = rng_below(&r, KEYS);
		assert_int_equal(hash_find(&h, key, &value), model[key] != 0);
		assert_int_equal(value, model[key]);
	}
	hash_fini(&h);
}

static void hash_next_visits_each_key_once(void **state)
{
	/* Goal: the walk is complete, without repeats, and ends for good. */
	bool seen[KEYS] = { false };
	uint32_t visited = 0;
	uint32_t cursor = 0;
	uint64_t value;
	uint64_t key;
	struct hash h;

	(void)state;
	hash_init(&h, 3);
	assert_false(hash_next(&h, &cursor, &key, &value));
	for (uint64_t i = 0; i < KEYS; i++)
		assert_ok(hash_insert(&h, i, i * 2));
	while (hash_next(&h, &cursor, &key, &value)) {
		assert_true(key < KEYS && !seen[key] && value == key * 2);
		seen[key] = true;
		visited++;
	}
	assert_int_equal(visited, KEYS);
	assert_false(hash_next(&h, &cursor, &key, &value));
	hash_fini(&h);
}

static void hash_insert_when_an_allocation_fails_changes_nothing(void **state)
{
	/* Goal: every allocation of a growth may fail; the keys stay and a retry succeeds. */
	uint64_t blocks = mem_live_blocks();
	uint64_t inserted = 0;
	uint32_t failures = 0;
	struct hash h;

	(void)state;
	hash_init(&h, 1);
	while (inserted < 100) {
		for (uint64_t nth = 1;; nth++) {
			wimm_status st;

			mem_fail_nth(nth);
			st = hash_insert(&h, inserted, inserted);
			if (st == WIMM_OK)
				break;
			assert_int_equal(st, WIMM_E_NOMEM);
			assert_int_equal(h.count, inserted);
			failures++;
		}
		mem_fail_nth(0);
		inserted++;
		for (uint64_t key = 0; key < inserted; key++)
			assert_true(hash_find(&h, key, NULL));
	}
	assert_true(failures >= 8); /* 2 for each of at least 4 sizes */
	hash_fini(&h);
	assert_int_equal(mem_live_blocks(), blocks);
}

static void hash_reserve_makes_inserting_free_of_allocation(void **state)
{
	/* Goal: a data path can insert up to the reserved count without any allocation. */
	struct hash h;

	(void)state;
	hash_init(&h, 1);
	assert_ok(hash_reserve(&h, 1000));
	mem_fail_nth(1);
	for (uint64_t i = 0; i < 1000; i++)
		assert_ok(hash_insert(&h, i, i));
	assert_false(mem_fail_fired());
	mem_fail_nth(0);
	assert_int_equal(hash_reserve(&h, UINT32_MAX), WIMM_E_NOMEM);
	hash_fini(&h);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(hash_holds_extreme_keys_and_values),
		cmocka_unit_test(hash_under_random_changes_agrees_with_a_plain_array),
		cmocka_unit_test(hash_next_visits_each_key_once),
		cmocka_unit_test(hash_insert_when_an_allocation_fails_changes_nothing),
		cmocka_unit_test(hash_reserve_makes_inserting_free_of_allocation),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
