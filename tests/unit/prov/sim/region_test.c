/* SPDX-License-Identifier: Apache-2.0 */
#include "pair.h"

#include <string.h>

#define KIB UINT64_C(1024)

static void region_over_the_lock_limit_names_wanted_allowed_and_nics(void **state)
{
	/* Goal: case 45: 4 NICs, 512 KiB against 1 MiB is refused whole, 128 and 256 KiB fit. */
	static struct pair p;
	static uint8_t memory[512 * KIB];
	struct prov_dev *nic[4];
	struct prov_error error = { 0 };
	uint8_t instance[16] = { 4 };
	uint64_t key;

	(void)state;
	pair_open(&p, &(struct sim_cfg){ .lock_limit_bytes = 1024 * KIB });
	for (int i = 0; i < 4; i++)
		assert_ok(pair_dev(&p, "any", instance, &nic[i], &error));
	assert_int_equal(p.ops->reg(nic[0], memory, 512 * KIB, PROV_REG_REMOTE, 1, &key, &error),
	                 WIMM_E_LOCK_LIMIT);
	assert_non_null(strstr(error.text, "2097152"));
	assert_non_null(strstr(error.text, "1048576"));
	assert_non_null(strstr(error.text, "4 NICs"));
	assert_int_equal(sim_locked_bytes(p.world, instance), 0);
	assert_int_equal(sim_faults(p.world, SIM_LOCK_LIMIT), 1);
	for (uint64_t len = 128 * KIB; len <= 256 * KIB; len *= 2) {
		for (int i = 0; i < 4; i++)
			assert_ok(p.ops->reg(nic[i], memory, len, PROV_REG_REMOTE, len, &key,
			                     &error));
		assert_int_equal(sim_locked_bytes(p.world, instance), 4 * len);
		for (int i = 0; i < 4; i++)
			p.ops->dereg(nic[i], key);
		assert_int_equal(sim_locked_bytes(p.world, instance), 0);
	}
	for (int i = 0; i < 4; i++)
		p.ops->close(nic[i]);
	pair_close(&p);
}

static void region_past_the_number_allowed_is_refused_with_figures(void **state)
{
	/* Goal: the limit counts what is registered now, and says so. */
	static struct pair p;
	struct prov_error error = { 0 };
	uint64_t key;

	(void)state;
	pair_open(&p, &(struct sim_cfg){ .max_regions = 2 });
	assert_ok(p.ops->reg(p.side[0].dev, p.dst, 8, PROV_REG_REMOTE, 77, &key, &error));
	assert_int_equal(p.ops->reg(p.side[0].dev, p.dst, 8, PROV_REG_REMOTE, 78, &key, &error),
	                 WIMM_E_LIMIT);
	assert_non_null(strstr(error.text, "at most 2"));
	assert_int_equal(key, 77);
	p.ops->dereg(p.side[0].dev, 77);
	assert_ok(p.ops->reg(p.side[0].dev, p.dst, 8, PROV_REG_REMOTE, 78, &key, &error));
	pair_close(&p);
}

static void region_keys_recycled_name_the_next_region_at_once(void **state)
{
	/* Goal: with recycle_keys a stale key hits whatever was registered after it. */
	static struct pair p;
	struct prov_error error;
	uint64_t key;

	(void)state;
	pair_open_path(&p, &(struct sim_cfg){ .recycle_keys = true });
	assert_int_equal(p.dst_key, 1);
	p.ops->dereg(p.side[1].dev, p.dst_key);
	assert_ok(p.ops->reg(p.side[1].dev, p.dst, sizeof(p.dst), PROV_REG_REMOTE, 0x900000002,
	                     &key, &error));
	assert_int_equal(key, p.dst_key);
	pair_write(&p, 1, 0, 64, PROV_WR_IMM, 5);
	pair_run(&p);
	assert_int_equal(pair_done(&p, 1)->status, WIMM_OK);
	assert_memory_equal(p.dst, p.src, 64);
	pair_close(&p);
}

static void region_released_stops_a_write_under_way(void **state)
{
	/* Goal: after dereg nothing lands by the key, whenever it is called (profiles without a
	 * buffer of their own). */
	static struct pair p;
	static uint8_t before[sizeof(p.dst)];
	struct sim_cfg cfg = { .max_delay_ns = 50 * PAIR_US };
	uint32_t cut = 0;

	(void)state;
	for (uint64_t i = 0; i < 100; i++) {
		cfg.seed = i;
		cfg.profile = i % 2 ? "rc" : "efa";
		pair_open_path(&p, &cfg);
		pair_write(&p, 1, 0, sizeof(p.src), PROV_WR_IMM, 5);
		pair_run_until(&p, sim_world_now_ns(p.world) + 25 * PAIR_US);
		p.ops->dereg(p.side[1].dev, p.dst_key);
		memcpy(before, p.dst, sizeof(before));
		pair_run(&p);
		assert_memory_equal(p.dst, before, sizeof(before));
		if (pair_count(&p, 1, PROV_IMM) == 0) {
			cut++;
			assert_int_equal(pair_done(&p, 1)->status, WIMM_E_PATH_LOST);
			assert_int_equal(pair_count(&p, 0, PROV_PATH_DOWN), 1);
			assert_int_equal(pair_count(&p, 1, PROV_PATH_DOWN), 1);
		}
		pair_close(&p);
	}
	assert_in_range(cut, 10, 100);
}

static void region_released_under_a_local_write_is_a_violation(void **state)
{
	/* Goal: a core that releases a source too early is found out. */
	static struct pair p;

	(void)state;
	pair_open_path(&p, &(struct sim_cfg){ .max_delay_ns = 50 * PAIR_US });
	pair_write(&p, 1, 0, 64, 0, 0);
	p.ops->dereg(p.side[0].dev, p.src_key);
	assert_non_null(strstr(sim_violation(p.world), "released under a write"));
	p.ops->close(p.side[0].dev);
	p.ops->close(p.side[1].dev);
	sim_world_close(p.world);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(region_over_the_lock_limit_names_wanted_allowed_and_nics),
		cmocka_unit_test(region_past_the_number_allowed_is_refused_with_figures),
		cmocka_unit_test(region_keys_recycled_name_the_next_region_at_once),
		cmocka_unit_test(region_released_stops_a_write_under_way),
		cmocka_unit_test(region_released_under_a_local_write_is_a_violation),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
