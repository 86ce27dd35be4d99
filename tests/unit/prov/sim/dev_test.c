/* SPDX-License-Identifier: Apache-2.0 */
#include "pair.h"

#include "base/alloc.h"

#include <string.h>

static void dev_address_survives_text_and_back(void **state)
{
	/* Goal: format and parse agree, with and without the provider's name in front. */
	static struct pair p;
	struct prov_addr back;
	char text[32];

	(void)state;
	pair_open(&p, &(struct sim_cfg){ 0 });
	assert_ok(p.ops->addr_format(&p.side[1].addr, text, sizeof(text)));
	assert_string_equal(text, "2");
	assert_ok(p.ops->addr_parse("sim:2", &back));
	assert_memory_equal(&back, &p.side[1].addr, sizeof(back));
	assert_ok(p.ops->addr_parse(text, &back));
	assert_memory_equal(&back, &p.side[1].addr, sizeof(back));
	assert_int_equal(p.ops->addr_format(&p.side[1].addr, text, 1), WIMM_E_LIMIT);
	pair_close(&p);
}

static void dev_address_that_is_malformed_is_refused(void **state)
{
	/* Goal: neither text nor bytes that are no address are taken for one. */
	static const char *const bad[] = { "",   "sim:", "0",        "sim:0",      "07",
		                           "1x", "-1",   "99999999", "4294967297", "tcp:1" };
	struct prov_addr addr = { .len_bytes = 3, .bytes = { 1 } };
	char text[32];

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_int_equal(prov_sim_ops.addr_parse(bad[i], &addr), WIMM_E_PARSE);
	assert_int_equal(prov_sim_ops.addr_format(&addr, text, sizeof(text)), WIMM_E_PARSE);
}

static void dev_number_in_use_is_refused_by_name(void **state)
{
	/* Goal: the second NIC of one number is refused with the number in the text. */
	static struct pair p;
	struct prov_error error = { 0 };
	struct prov_dev *dev = NULL;

	(void)state;
	pair_open(&p, &(struct sim_cfg){ 0 });
	assert_int_equal(pair_dev(&p, "sim:2", p.side[0].instance, &dev, &error),
	                 WIMM_E_ADDR_IN_USE);
	assert_non_null(strstr(error.text, "2"));
	assert_int_equal(pair_dev(&p, "eth0", p.side[0].instance, &dev, &error), WIMM_E_NOT_FOUND);
	assert_non_null(strstr(error.text, "eth0"));
	assert_null(dev);
	pair_close(&p);
}

static void dev_of_a_killed_engine_leaves_its_number_to_a_successor(void **state)
{
	/* Goal: a new process comes up at the old address while the dead one is not yet freed. */
	static struct pair p;
	struct prov_error error;
	struct prov_dev *dev;
	uint8_t instance[16] = { 9 }, found[16];

	(void)state;
	pair_open_path(&p, &(struct sim_cfg){ 0 });
	sim_kill_engine(p.world, p.side[1].instance, true);
	assert_false(sim_nic_instance(p.world, 2, found));
	assert_ok(pair_dev(&p, "2", instance, &dev, &error));
	assert_true(sim_nic_instance(p.world, 2, found));
	assert_memory_equal(found, instance, sizeof(found));
	p.ops->close(dev);
	pair_close(&p);
}

static void dev_open_without_memory_leaves_nothing(void **state)
{
	/* Goal: whichever allocation fails, open reports it and keeps no memory. */
	struct prov_args args = { .nic = "any" };
	struct prov_caps caps;
	struct prov_dev *dev;
	struct prov_error error;
	wimm_status st = WIMM_E_NOMEM;
	uint64_t n;

	(void)state;
	for (n = 1; st != WIMM_OK; n++) {
		mem_fail_nth(n);
		st = prov_sim_ops.open(&args, &caps, &dev, &error);
		if (st == WIMM_OK)
			break;
		assert_int_equal(st, WIMM_E_NOMEM);
		assert_int_equal(mem_live_blocks(), 0);
	}
	mem_fail_nth(0);
	assert_true(n > 2);
	prov_sim_ops.close(dev);
	assert_int_equal(mem_live_blocks(), 0);
}

static void dev_closed_with_writes_in_flight_takes_them_along(void **state)
{
	/* Goal: closing at any moment frees all, and the peer's path goes down. */
	static struct pair p;
	struct sim_cfg cfg = { .seed = 3, .max_delay_ns = 50 * PAIR_US, .late_ns = 50 * PAIR_US };
	static const char *const profile[] = { "rc", "efa", "late" };
	struct prov_dev *gone;

	(void)state;
	for (uint32_t i = 0; i < 60; i++) {
		cfg.profile = profile[i % 3];
		pair_open_path(&p, &cfg);
		for (uint32_t k = 0; k < 10; k++)
			pair_write(&p, k, k * 64, 64, PROV_WR_IMM, k);
		pair_run_until(&p, sim_world_now_ns(p.world) + i * 2 * PAIR_US);
		gone = p.side[i % 2].dev;
		p.ops->close(gone);
		p.side[i % 2].dev = p.side[1 - i % 2].dev; /* only it is polled from now on */
		pair_run(&p);
		assert_int_equal(
			pair_count(&p, 0, PROV_PATH_DOWN) + pair_count(&p, 1, PROV_PATH_DOWN), 1);
		p.ops->close(p.side[0].dev);
		sim_world_close(p.world);
		assert_int_equal(mem_live_blocks(), 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(dev_address_survives_text_and_back),
		cmocka_unit_test(dev_address_that_is_malformed_is_refused),
		cmocka_unit_test(dev_number_in_use_is_refused_by_name),
		cmocka_unit_test(dev_of_a_killed_engine_leaves_its_number_to_a_successor),
		cmocka_unit_test(dev_open_without_memory_leaves_nothing),
		cmocka_unit_test(dev_closed_with_writes_in_flight_takes_them_along),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
