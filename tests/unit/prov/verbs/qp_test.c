/* SPDX-License-Identifier: Apache-2.0 */
#include "vm/pair.h"

#include "base/alloc.h"
#include "base/config.h"

#include <wimm/engine.h>
#include <wimm/region.h>
#include <wimm/transfer.h>

#include <string.h>
#include <sys/resource.h>

static void qp_too_many_are_refused_and_nothing_is_left(void **state)
{
	/* Goal: paths up to the device's limit, then NULL; closing gives all of it back. */
	struct fake_knobs *fake = pair_fake();
	struct prov_error error = { 0 };
	struct prov_offer offer;
	struct pair p;
	uint32_t paths = 0;

	(void)state;
	pair_open_devs(&p);
	fake->max_qps = 12;
	while (p.ops->path_open(p.a.dev, &p.b.addr, true, &p.a, &offer, &error) != NULL)
		paths++;
	assert_int_equal(paths, 10);
	assert_non_null(strstr(error.text, "fake0 port 1: no queue pair"));
	assert_non_null(strstr(error.text, "fewer peers, or a lower verbs_depth"));
	assert_non_null(strstr(error.text, "the device has 256 of 1024"));
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

/* --- limits, as an application sees them --- */

static struct wimm_engine *engine_open(const char *nic, wimm_status *out_status)
{
	struct wimm_engine_opts opts = WIMM_ENGINE_OPTS_INIT;
	struct wimm_engine *engine = NULL;

	opts.provider = "verbs";
	opts.nics = nic;
	opts.progress = WIMM_PROGRESS_CALLER;
	*out_status = wimm_engine_open(&opts, &engine);
	return engine;
}

struct attempt {
	struct wimm_engine *a, *b;
	uint64_t flag;
};

static bool attempt_over(void *arg)
{
	struct attempt *t = arg;

	assert_ok(wimm_progress(t->a, NULL));
	assert_ok(wimm_progress(t->b, NULL));
	return wimm_flag_load(&t->flag) != 0;
}

/* A write from one engine to another where no more than max_qps queue pairs can be had; it fails,
 * and the error of its peer is that text. */
static void peer_says(uint32_t max_qps, const char *const words[], uint32_t count)
{
	struct fake_knobs *fake = pair_fake();
	static uint8_t mem[2][4096];
	struct wimm_write w = WIMM_WRITE_INIT;
	struct wimm_error_info info;
	struct attempt t = { 0 };
	struct wimm_on_done done = { .flag = &t.flag };
	struct wimm_mr *from, *into;
	struct wimm_remote_mr *to;
	struct wimm_mr_desc desc;
	wimm_status st;

	assert_ok(config_set("same_host", "off"));
	t.a = engine_open("fake0", &st);
	assert_ok(st);
	t.b = engine_open("fake1", &st);
	assert_ok(st);
	assert_ok(wimm_reg_mr(t.a, mem[0], 4096, NULL, &from));
	assert_ok(wimm_reg_mr(t.b, mem[1], 4096, NULL, &into));
	assert_ok(wimm_mr_get_desc(into, &desc));
	fake->max_qps = max_qps;
	assert_ok(wimm_open_remote_mr(t.a, &desc, &to)); /* dials */
	w.src = from;
	w.dst = to;
	w.len_bytes = 64;
	st = wimm_submit_single_write(t.a, &w, &done, NULL);
	if (st == WIMM_OK) {
		assert_true(test_wait_until(attempt_over, &t, TEST_DEADLINE_MS));
		assert_true(wimm_flag_load(&t.flag) < 0);
	}
	assert_ok(wimm_peer_last_error(t.a, wimm_remote_mr_peer(to), &info));
	for (uint32_t i = 0; i < count; i++)
		if (strstr(info.text, words[i]) == NULL)
			fail_msg("\"%s\" says nothing of \"%s\"", info.text, words[i]);
	assert_ok(wimm_engine_close(&t.a));
	assert_ok(wimm_engine_close(&t.b));
	assert_ok(config_set("same_host", "auto"));
	assert_int_equal(fake->objects(), 0);
}

static void qp_too_many_are_told_to_who_writes(void **state)
{
	/* Goal: whichever queue pair of a session is one too many, the error of its peer names
	 * the device and what to do. Two are for the engines' datagrams; then come two for
	 * messages, the path at the other end, and its own. */
	static const char *const words[] = { "fake0 port 1: no queue pair", "fewer peers",
		                             "verbs_depth" };

	(void)state;
	peer_says(2, words, 3);
	peer_says(5, words, 3);
}

static void qp_mtu_that_the_device_refuses_is_named_with_the_setting(void **state)
{
	/* Goal: both ends' MTU and what to set, when the two are joined. */
	struct fake_knobs *fake = pair_fake();
	struct pair p;

	(void)state;
	pair_open_devs(&p);
	fake->max_path_mtu = 1; /* 256 */
	pair_dial(&p);
	pair_await(&p, &p.a.down);
	assert_non_null(strstr(p.a.down_text, "fake0 port 1"));
	assert_non_null(strstr(p.a.down_text, "MTU 1024 here, 1024 there"));
	assert_non_null(strstr(p.a.down_text, "verbs_mtu"));
	pair_close(&p);
	assert_int_equal(fake->objects(), 0);
}

static void qp_open_with_an_mtu_the_port_has_not_says_which_it_takes(void **state)
{
	/* Goal: more than the port's, or no MTU at all: refused at open, with both figures. */
	static const char *const wanted[] = { "4096", "1000" };

	(void)state;
	for (int i = 0; i < 2; i++) {
		struct fake_knobs *fake = pair_fake();
		wimm_status st;

		assert_ok(config_set("verbs_mtu", wanted[i]));
		assert_null(engine_open("fake0", &st));
		assert_int_equal(st, WIMM_E_LIMIT);
		assert_non_null(strstr(wimm_last_error_text(), wanted[i]));
		assert_non_null(strstr(wimm_last_error_text(), "fake0 port 1 takes 1024"));
		assert_non_null(strstr(wimm_last_error_text(), "verbs_mtu"));
		assert_int_equal(fake->objects(), 0);
	}
	assert_ok(config_set("verbs_mtu", "0"));
}

static void qp_lock_limit_too_low_is_named_with_the_fix(void **state)
{
	/* Goal: at open and at a registration: the device, the limit in bytes and how to lift
	 * it. */
	static const char *const words[] = { "fake0 port 1", "memory-lock limit is 65536 bytes",
		                             "ulimit -l" };
	struct fake_knobs *fake = pair_fake();
	struct rlimit old, low;
	static uint8_t mem[1 << 20];
	struct wimm_engine *e;
	struct wimm_mr *mr;
	wimm_status st;

	(void)state;
	assert_int_equal(getrlimit(RLIMIT_MEMLOCK, &old), 0);
	low = old;
	low.rlim_cur = 65536;
	assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &low), 0);
	fake->lock_bytes = 65536;
	assert_null(engine_open("fake0", &st));
	assert_int_equal(st, WIMM_E_LOCK_LIMIT);
	for (int i = 0; i < 3; i++)
		assert_non_null(strstr(wimm_last_error_text(), words[i]));
	assert_int_equal(fake->objects(), 0);
	fake->lock_bytes = 1 << 20;
	e = engine_open("fake0", &st);
	assert_ok(st);
	assert_int_equal(wimm_reg_mr(e, mem, sizeof(mem), NULL, &mr), WIMM_E_LOCK_LIMIT);
	for (int i = 0; i < 3; i++)
		assert_non_null(strstr(wimm_last_error_text(), words[i]));
	assert_non_null(strstr(wimm_last_error_text(), "1048576 bytes"));
	assert_ok(wimm_engine_close(&e));
	assert_int_equal(fake->objects(), 0);
	assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &old), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(qp_too_many_are_refused_and_nothing_is_left),
		cmocka_unit_test(qp_open_without_a_port_names_it),
		cmocka_unit_test(qp_open_leaks_nothing_when_memory_runs_out),
		cmocka_unit_test(qp_capabilities_tell_the_device),
		cmocka_unit_test(qp_too_many_are_told_to_who_writes),
		cmocka_unit_test(qp_mtu_that_the_device_refuses_is_named_with_the_setting),
		cmocka_unit_test(qp_open_with_an_mtu_the_port_has_not_says_which_it_takes),
		cmocka_unit_test(qp_lock_limit_too_low_is_named_with_the_fix),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
