/* SPDX-License-Identifier: Apache-2.0 */
#include "vm/pair.h"

#include <string.h>

static void events_port_down_costs_paths_and_ctls_after_a_while(void **state)
{
	/* Goal: a port that stays down takes what hangs on it, by name, and not the device. */
	struct fake_knobs *fake = pair_fake();
	struct pair p;

	(void)state;
	pair_open(&p);
	pair_talk(&p);
	fake->event(0, FAKE_PORT_DOWN);
	pair_await(&p, &p.a.down);
	pair_await(&p, &p.a.ctl_down);
	assert_int_equal(p.a.down_status, WIMM_E_NIC_LOST);
	assert_int_equal(p.a.ctl_down_status, WIMM_E_NIC_LOST);
	assert_non_null(strstr(p.a.down_text, "fake0 port 1 is down"));
	assert_false(p.a.nic_down);
	assert_false(p.b.nic_down);
	p.ops->ctl_close(p.a.ctl, false);
	p.ops->path_close(p.a.path);
	pair_await(&p, &p.a.closed);
	pair_await(&p, &p.b.down);
	p.ops->path_close(p.b.path);
	pair_await(&p, &p.b.closed);
	fake->event(0, FAKE_PORT_UP);
	pair_join(&p); /* as good as new */
	pair_close(&p);
}

static void events_port_that_comes_back_costs_nothing(void **state)
{
	/* Goal: a link that flaps is waited for. */
	struct fake_knobs *fake = pair_fake();
	struct prov_wr wr;
	struct pair p;

	(void)state;
	pair_open(&p);
	fake->event(0, FAKE_PORT_DOWN);
	fake->event(0, FAKE_PORT_UP);
	wr = pair_wr(&p, 1, 0, 4096);
	wr.flags = PROV_WR_IMM;
	pair_post_all(&p, &wr, 1);
	pair_drain(&p, 1, 1);
	assert_int_equal(p.ops->next_ns(p.a.dev), UINT64_MAX);
	pair_close(&p);
}

static void lose_nic(enum fake_event what, const char *text)
{
	struct fake_knobs *fake = pair_fake();
	struct prov_offer offer;
	struct pair p;

	pair_open(&p);
	pair_talk(&p);
	fake->event(0, what);
	pair_await(&p, &p.a.nic_down);
	pair_await(&p, &p.a.down);
	pair_await(&p, &p.a.ctl_down);
	assert_int_equal(p.a.down_status, WIMM_E_NIC_LOST);
	assert_int_equal(p.a.ctl_down_status, WIMM_E_NIC_LOST);
	if (strstr(p.a.nic_text, text) == NULL)
		fail_msg("\"%s\" says nothing of \"%s\"", p.a.nic_text, text);
	assert_int_equal(p.ops->post(p.a.path, &(struct prov_wr){ 0 }, 1), 0);
	p.ops->ctl_close(p.a.ctl, false);
	p.ops->path_close(p.a.path);
	pair_await(&p, &p.a.closed);
	/* Nothing can be opened on it, and asking does no harm. */
	p.a.ctl_down = false;
	p.a.ctl = p.ops->ctl_open(p.a.dev, &p.b.addr, &p.a);
	assert_non_null(p.a.ctl);
	pair_await(&p, &p.a.ctl_down);
	p.ops->ctl_close(p.a.ctl, false);
	assert_null(p.ops->path_open(p.a.dev, &p.b.addr, true, &p.a, &offer,
	                             &(struct prov_error){ 0 }));
	pair_close(&p);
	assert_int_equal(fake->objects(), 0);
}

static void events_fatal_device_is_lost_with_all_on_it(void **state)
{
	/* Goal: the core hears of the device once, of everything on it, and can close all of it. */
	(void)state;
	lose_nic(FAKE_DEVICE_FATAL, "device fatal");
}

static void events_changed_address_loses_the_device(void **state)
{
	/* Goal: a NIC whose GID has changed is not the one that peers were told of. */
	(void)state;
	lose_nic(FAKE_GID_CHANGE, "address has changed");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(events_port_down_costs_paths_and_ctls_after_a_while),
		cmocka_unit_test(events_port_that_comes_back_costs_nothing),
		cmocka_unit_test(events_fatal_device_is_lost_with_all_on_it),
		cmocka_unit_test(events_changed_address_loses_the_device),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
