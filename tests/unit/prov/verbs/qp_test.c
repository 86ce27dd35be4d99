/* SPDX-License-Identifier: Apache-2.0 */
#include "vm/pair.h"

#include "base/alloc.h"

#include <string.h>

static void qp_too_many_are_refused_and_nothing_is_left(void **state)
{
	/* Goal: paths up to the device's limit, then NULL; closing gives all of it back. */
	struct fake_knobs *fake = pair_fake();
	struct prov_offer offer;
	struct pair p;
	uint32_t paths = 0;

	(void)state;
	pair_open_devs(&p);
	fake->max_qps = 12;
	while (p.ops->path_open(p.a.dev, &p.b.addr, true, &p.a, &offer) != NULL)
		paths++;
	assert_int_equal(paths, 10);
	pair_close(&p);
	assert_int_equal(fake->objects(), 0);
}

static void qp_open_without_a_port_names_it(void **state)
{
	/* Goal: port down, no such device, port or GID: each has its own words. */
	static const struct {
		const char *nic;
		const char *text;
		bool port_down;
	} cases[] = {
		{ "fake0", "fake0 port 1 is down", true },
		{ "fake7", "no RDMA device \"fake7\"", false },
		{ "fake0:2", "fake0 port 2", false },
		{ "fake0:1/9", "no GID at index 9", false },
		{ "fake0:", "is not of the form", false },
		{ "fake0/x", "is not of the form", false },
	};
	struct prov_args args = { .peer_timeout_ms = 1000, .max_regions = 1 };
	struct prov_caps caps;
	struct prov_error error;
	struct prov_dev *dev;
	uint64_t blocks = mem_live_blocks();

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct fake_knobs *fake = pair_fake();

		fake->port_down = cases[i].port_down;
		args.nic = cases[i].nic;
		assert_int_not_equal(prov_verbs_ops.open(&args, &caps, &dev, &error), WIMM_OK);
		if (strstr(error.text, cases[i].text) == NULL)
			fail_msg("\"%s\" says nothing of \"%s\"", error.text, cases[i].text);
		assert_int_equal(fake->objects(), 0);
	}
	assert_int_equal(mem_live_blocks(), blocks);
}

static void qp_open_leaks_nothing_when_memory_runs_out(void **state)
{
	/* Goal: each allocation of an open fails once; all that was made is unmade. */
	struct fake_knobs *fake = pair_fake();
	struct prov_args args = { .nic = "fake0", .peer_timeout_ms = 1000, .max_regions = 1 };
	uint64_t blocks = mem_live_blocks();
	struct prov_caps caps;
	struct prov_error error;
	struct prov_dev *dev;

	(void)state;
	for (uint64_t n = 1;; n++) {
		mem_fail_nth(n);
		if (prov_verbs_ops.open(&args, &caps, &dev, &error) == WIMM_OK) {
			prov_verbs_ops.close(dev);
			if (!mem_fail_fired())
				break;
		}
		assert_int_equal(fake->objects(), 0);
		assert_int_equal(mem_live_blocks(), blocks);
	}
	mem_fail_nth(0);
}

static void qp_capabilities_tell_the_device(void **state)
{
	/* Goal: what the port says is what the core learns. */
	struct pair p;

	(void)state;
	(void)pair_fake();
	pair_open_devs(&p);
	assert_string_equal(p.a.caps.device, "fake0");
	assert_int_equal(p.a.caps.link_bytes_per_s, UINT64_C(12500000000));
	assert_int_equal(p.a.caps.post_depth, 256);
	assert_true(p.a.caps.ordered && p.a.caps.identifies_source && !p.a.caps.can_cancel);
	pair_close(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(qp_too_many_are_refused_and_nothing_is_left),
		cmocka_unit_test(qp_open_without_a_port_names_it),
		cmocka_unit_test(qp_open_leaks_nothing_when_memory_runs_out),
		cmocka_unit_test(qp_capabilities_tell_the_device),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
