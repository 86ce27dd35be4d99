/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include "base/alloc.h"
#include "plat/rand.h"
#include "plat/thread.h"
#include "queue/idpool.h"

enum { THREADS = 4, IDS = 5 };

static void take_all_and_give_back(struct idpool *p, uint32_t count)
{
	bool seen[64] = { false };
	uint32_t ids[64];
	uint32_t extra = 77;

	assert_true(count <= 64);
	for (uint32_t i = 0; i < count; i++) {
		assert_true(idpool_get(p, &ids[i]));
		assert_true(ids[i] < count && !seen[ids[i]]);
		seen[ids[i]] = true;
	}
	assert_false(idpool_get(p, &extra));
	assert_int_equal(extra, 77);
	for (uint32_t i = 0; i < count; i++)
		idpool_put(p, ids[count - 1 - i]);
}

static void idpool_gives_each_index_once_and_then_none(void **state)
{
	/* Goal: for counts that are and are not powers of two, over several rounds. */
	static const uint32_t counts[] = { 1, 2, 3, 16, 63, 64 };
	struct idpool p;

	(void)state;
	for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
		assert_ok(idpool_init(&p, counts[i]));
		for (uint32_t round = 0; round < 10; round++)
			take_all_and_give_back(&p, counts[i]);
		idpool_fini(&p);
	}
}

static void idpool_counts_of_gets_that_wrap_around_change_nothing(void **state)
{
	/* Goal: crossing 2^32 and the sign bit at any phase of a round. */
	static const uint32_t edges[] = { 0, UINT32_C(1) << 31 };
	struct idpool p;

	(void)state;
	for (size_t edge = 0; edge < 2; edge++) {
		for (uint32_t before = 0; before < 40; before++) {
			assert_ok(idpool_init_at(&p, 5, edges[edge] - before));
			for (uint32_t round = 0; round < 10; round++)
				take_all_and_give_back(&p, 5);
			idpool_fini(&p);
		}
	}
}

static void idpool_reuses_the_index_put_last(void **state)
{
	/* Goal: who puts and gets one at a time touches one slot, not all. */
	struct idpool p;
	uint32_t first, second, id;

	(void)state;
	assert_ok(idpool_init(&p, 8));
	assert_true(idpool_get(&p, &first));
	assert_true(idpool_get(&p, &second));
	idpool_put(&p, first);
	idpool_put(&p, second);
	assert_true(idpool_get(&p, &id));
	assert_int_equal(id, second);
	assert_true(idpool_get(&p, &id));
	assert_int_equal(id, first);
	idpool_fini(&p);
}

static void idpool_init_refuses_bad_counts_and_survives_no_memory(void **state)
{
	/* Goal: each refusal has its code and leaks nothing. */
	uint64_t blocks = mem_live_blocks();
	struct idpool p;

	(void)state;
	assert_int_equal(idpool_init(&p, 0), WIMM_E_INVAL);
	assert_int_equal(idpool_init(&p, (UINT32_C(1) << 30) + 1), WIMM_E_INVAL);
	mem_fail_nth(1);
	assert_int_equal(idpool_init(&p, 4), WIMM_E_NOMEM);
	mem_fail_nth(0);
	assert_int_equal(mem_live_blocks(), blocks);
}

struct stress {
	struct idpool pool;
	_Atomic uint32_t owners[IDS];
	_Atomic uint32_t clashes;
	/* Plain memory handed from owner to owner: a missing edge is a race that TSan reports. */
	uint64_t uses[IDS];
	_Atomic uint64_t gets;
	uint32_t rounds;
};

static void take_and_give(void *arg)
{
	struct stress *s = arg;

	for (uint32_t i = 0; i < s->rounds; i++) {
		uint32_t id;

		if (!idpool_get(&s->pool, &id)) {
			plat_thread_yield();
			continue;
		}
		/* Relaxed: the pool itself must order owners; this only counts clashes. */
		if (atomic_fetch_add_explicit(&s->owners[id], 1, memory_order_relaxed) != 0)
			atomic_fetch_add_explicit(&s->clashes, 1, memory_order_relaxed);
		s->uses[id]++;
		atomic_fetch_sub_explicit(&s->owners[id], 1, memory_order_relaxed);
		atomic_fetch_add_explicit(&s->gets, 1, memory_order_relaxed);
		idpool_put(&s->pool, id);
	}
}

static void idpool_under_contention_never_gives_one_index_twice(void **state)
{
	/* Goal: with as many indices as threads plus one, across the wrap, each has one owner at a
	 * time and its plain memory is handed on without a race. */
	struct plat_thread threads[THREADS];
	static struct stress s;
	uint64_t uses = 0;

	(void)state;
	s.rounds = 20000 * test_scale();
	assert_ok(idpool_init_at(&s.pool, IDS, (uint32_t)0 - 10000));
	for (uint32_t i = 0; i < THREADS; i++)
		assert_ok(plat_thread_start(&threads[i], take_and_give, &s, "ids", PLAT_CPU_ANY));
	for (uint32_t i = 0; i < THREADS; i++)
		plat_thread_join(&threads[i]);
	assert_int_equal(atomic_load(&s.clashes), 0);
	for (uint32_t i = 0; i < IDS; i++)
		uses += s.uses[i];
	assert_true(uses == atomic_load(&s.gets));
	assert_true(uses > s.rounds);
	take_all_and_give_back(&s.pool, IDS);
	idpool_fini(&s.pool);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(idpool_gives_each_index_once_and_then_none),
		cmocka_unit_test(idpool_counts_of_gets_that_wrap_around_change_nothing),
		cmocka_unit_test(idpool_reuses_the_index_put_last),
		cmocka_unit_test(idpool_init_refuses_bad_counts_and_survives_no_memory),
		cmocka_unit_test(idpool_under_contention_never_gives_one_index_twice),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
