/* SPDX-License-Identifier: Apache-2.0 */
#include "vm/pair.h"

#include "base/config.h"

#include <string.h>

static uint8_t mem[4096];

static void region_relaxed_ordering_is_asked_for_unless_set_off(void **state)
{
	/* Goal: the setting decides. */
	struct fake_knobs *fake = pair_fake();
	struct side s = { 0 };
	struct prov_error error;
	uint64_t key;

	(void)state;
	for (int on = 1; on >= 0; on--) {
		assert_ok(config_set("verbs_relaxed_ordering", on ? "yes" : "no"));
		side_open(&s, "fake0");
		fake->saw_relaxed = false;
		assert_ok(prov_verbs_ops.reg(s.dev, mem, sizeof(mem), PROV_REG_REMOTE, 0, &key,
		                             &error));
		assert_int_equal(fake->saw_relaxed, on);
		prov_verbs_ops.dereg(s.dev, key);
		side_close(&s);
	}
	assert_ok(config_set("verbs_relaxed_ordering", "yes"));
	assert_int_equal(fake->objects(), 0);
}

static void region_with_strict_order_is_never_relaxed(void **state)
{
	/* Goal: the application that polls content gets its order, whatever the setting. */
	static const uint32_t flags[] = { PROV_REG_STRICT_ORDER,
		                          PROV_REG_STRICT_ORDER | PROV_REG_REMOTE, 0,
		                          PROV_REG_REMOTE };
	struct fake_knobs *fake = pair_fake();
	struct prov_error error;
	struct side s = { 0 };

	(void)state;
	side_open(&s, "fake0");
	for (int i = 0; i < 4; i++) {
		uint64_t key;

		fake->saw_relaxed = false;
		assert_ok(prov_verbs_ops.reg(s.dev, mem, sizeof(mem), flags[i], 0, &key, &error));
		assert_int_equal(fake->saw_relaxed, (flags[i] & PROV_REG_STRICT_ORDER) == 0);
		assert_int_equal(fake->access & 4, 0); /* IBV_ACCESS_REMOTE_READ */
		prov_verbs_ops.dereg(s.dev, key);
	}
	side_close(&s);
	assert_int_equal(fake->objects(), 0);
}

static void region_limit_of_the_device_is_named(void **state)
{
	/* Goal: a refusal says how long, how many and how many are allowed; no region is left. */
	struct fake_knobs *fake = pair_fake();
	struct prov_error error;
	struct side s = { 0 };
	uint64_t key = 0, first = 0;
	uint32_t count = 0;

	(void)state;
	side_open(&s, "fake0");
	fake->max_mrs = 10;
	while (prov_verbs_ops.reg(s.dev, mem, sizeof(mem), PROV_REG_REMOTE, 0, &key, &error) ==
	       WIMM_OK) {
		first = count++ == 0 ? key : first;
		assert_true(count < 10);
	}
	assert_non_null(strstr(error.text, "4096 bytes"));
	assert_non_null(strstr(error.text, "fake0 port 1"));
	prov_verbs_ops.dereg(s.dev, first);
	prov_verbs_ops.dereg(s.dev, first); /* twice does no harm */
	assert_ok(prov_verbs_ops.reg(s.dev, mem, sizeof(mem), PROV_REG_REMOTE, 0, &key, &error));
	side_close(&s);
	assert_int_equal(fake->objects(), 0);
}

static void region_released_key_takes_no_more_writes(void **state)
{
	/* Goal: after dereg() a write with the old key costs the path and moves no byte. */
	struct prov_wr wr;
	struct pair p;

	(void)state;
	(void)pair_fake();
	pair_open(&p);
	memset(p.b.mem, 0x55, 4096);
	wr = pair_wr(&p, 1, 0, 4096);
	prov_verbs_ops.dereg(p.b.dev, p.b.key);
	pair_post_all(&p, &wr, 1);
	pair_await(&p, &p.a.down);
	pair_await(&p, &p.b.down);
	assert_int_equal(p.b.down_status, WIMM_E_PROTOCOL);
	for (uint32_t i = 0; i < 4096; i++)
		assert_int_equal(p.b.mem[i], 0x55);
	pair_close(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(region_relaxed_ordering_is_asked_for_unless_set_off),
		cmocka_unit_test(region_with_strict_order_is_never_relaxed),
		cmocka_unit_test(region_limit_of_the_device_is_named),
		cmocka_unit_test(region_released_key_takes_no_more_writes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
