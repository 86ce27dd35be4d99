/* SPDX-License-Identifier: Apache-2.0 */
#include "pair.h"

#include <string.h>

static void path_closed_returns_every_request_once_and_ends_with_closed(void **state)
{
	/* Goal: P3: closing with writes in flight gives each its DONE, then PATH_CLOSED, last. */
	static struct pair p;
	struct sim_cfg cfg = { .max_delay_ns = 50 * PAIR_US, .late_ns = 100 * PAIR_US };
	static const char *const profile[] = { "rc", "efa", "late" };

	(void)state;
	for (uint64_t seed = 0; seed < 60; seed++) {
		cfg.seed = seed;
		cfg.profile = profile[seed % 3];
		pair_open_path(&p, &cfg);
		for (uint32_t i = 0; i < 20; i++)
			pair_write(&p, i, i * 100, 100, PROV_WR_IMM, i);
		pair_run_until(&p, sim_world_now_ns(p.world) + seed * PAIR_US);
		p.ops->path_close(p.path[0]);
		pair_run(&p);
		for (uint32_t i = 0; i < 20; i++)
			pair_done(&p, i);
		assert_int_equal(p.side[0].event[p.side[0].events - 1].kind, PROV_PATH_CLOSED);
		assert_ptr_equal(p.side[0].event[p.side[0].events - 1].context, &p.context[0]);
		assert_int_equal(pair_count(&p, 1, PROV_PATH_DOWN), 1);
		pair_close(&p);
	}
}

static void path_closed_by_the_receiver_is_a_fence(void **state)
{
	/* Goal: from path_close() on nothing of the peer's lands, however much is in flight. */
	static struct pair p;
	static uint8_t before[sizeof(p.dst)];
	struct sim_cfg cfg = { .max_delay_ns = 50 * PAIR_US, .late_ns = 100 * PAIR_US };
	static const char *const profile[] = { "rc", "efa", "late" };

	(void)state;
	for (uint64_t seed = 0; seed < 60; seed++) {
		cfg.seed = seed;
		cfg.profile = profile[seed % 3];
		pair_open_path(&p, &cfg);
		for (uint32_t i = 0; i < 20; i++)
			pair_write(&p, i, i * 100, 100, PROV_WR_IMM, i);
		pair_run_until(&p, sim_world_now_ns(p.world) + seed * PAIR_US);
		p.ops->path_close(p.path[1]);
		memcpy(before, p.dst, sizeof(before));
		pair_run(&p);
		assert_memory_equal(p.dst, before, sizeof(before));
		for (uint32_t i = 0; i < 20; i++)
			pair_done(&p, i);
		assert_int_equal(pair_count(&p, 0, PROV_PATH_DOWN), 1);
		pair_close(&p);
	}
}

static void path_with_garbage_for_an_offer_goes_down(void **state)
{
	/* Goal: an offer is a peer's bytes; a malformed or foreign one costs that path alone. */
	static struct pair p;
	struct prov_offer mine, bad = { .len_bytes = 5 };
	struct prov_path *path;

	(void)state;
	pair_open_path(&p, &(struct sim_cfg){ .max_delay_ns = 10 * PAIR_US });
	path = p.ops->path_open(p.side[0].dev, &p.side[1].addr, true, &bad, &mine,
	                        &(struct prov_error){ 0 });
	p.ops->path_connect(path, &bad);
	pair_run(&p);
	assert_int_equal(pair_find(&p, 0, PROV_PATH_DOWN)->status, WIMM_E_PROTOCOL);
	assert_ptr_equal(pair_find(&p, 0, PROV_PATH_DOWN)->context, &bad);
	path = p.ops->path_open(p.side[0].dev, &p.side[1].addr, true, &bad, &mine,
	                        &(struct prov_error){ 0 });
	bad = mine;
	bad.bytes[6] ^= 0x55; /* no such end */
	p.ops->path_connect(path, &bad);
	pair_run(&p);
	assert_int_equal(pair_count(&p, 0, PROV_PATH_DOWN), 2);
	pair_write(&p, 1, 0, 8, 0, 0);
	pair_run(&p);
	assert_int_equal(pair_done(&p, 1)->status, WIMM_OK);
	pair_close(&p);
}

static void path_refused_goes_down_with_that_reason(void **state)
{
	/* Goal: a refusal is told to the one who asked, the NIC takes the next path. */
	static struct pair p;

	(void)state;
	pair_open(&p, &(struct sim_cfg){ .max_delay_ns = 10 * PAIR_US });
	sim_refuse_next(p.world, 1);
	pair_connect(&p);
	assert_int_equal(pair_count(&p, 0, PROV_PATH_UP), 0);
	assert_int_equal(pair_find(&p, 0, PROV_PATH_DOWN)->status, WIMM_E_PEER_REFUSED);
	assert_int_equal(pair_count(&p, 1, PROV_PATH_DOWN), 1);
	assert_int_equal(sim_faults(p.world, SIM_PATH_REFUSED), 1);
	p.ops->path_close(p.path[0]);
	p.ops->path_close(p.path[1]);
	pair_connect(&p);
	assert_int_equal(pair_count(&p, 0, PROV_PATH_UP), 1);
	assert_int_equal(pair_count(&p, 1, PROV_PATH_UP), 1);
	pair_close(&p);
}

static void path_up_is_told_before_anything_that_came_through_it(void **state)
{
	/* Goal: though both ends come up at their own time, an immediate never precedes PATH_UP. */
	static struct pair p;
	struct sim_cfg cfg = { .max_delay_ns = 90 * PAIR_US };
	struct prov_offer offer[2];

	(void)state;
	for (uint64_t seed = 0; seed < 40; seed++) {
		cfg.seed = seed;
		pair_open(&p, &cfg);
		for (int i = 0; i < 2; i++)
			p.path[i] = p.ops->path_open(p.side[i].dev, &p.side[1 - i].addr, i == 0,
			                             &p.context[i], &offer[i],
			                             &(struct prov_error){ 0 });
		p.ops->path_connect(p.path[0], &offer[1]);
		p.ops->path_connect(p.path[1], &offer[0]);
		while (pair_count(&p, 0, PROV_PATH_UP) == 0)
			pair_run_until(&p, sim_world_next_ns(p.world));
		pair_write(&p, 1, 0, 8, PROV_WR_IMM, 1);
		pair_run(&p);
		assert_int_equal(p.side[1].event[0].kind, PROV_PATH_UP);
		assert_int_equal(pair_count(&p, 1, PROV_PATH_UP), 1);
		assert_int_equal(pair_count(&p, 1, PROV_IMM), 1);
		pair_close(&p);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(path_closed_returns_every_request_once_and_ends_with_closed),
		cmocka_unit_test(path_closed_by_the_receiver_is_a_fence),
		cmocka_unit_test(path_with_garbage_for_an_offer_goes_down),
		cmocka_unit_test(path_refused_goes_down_with_that_reason),
		cmocka_unit_test(path_up_is_told_before_anything_that_came_through_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
