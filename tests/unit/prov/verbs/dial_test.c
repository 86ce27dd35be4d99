/* SPDX-License-Identifier: Apache-2.0 */
#include "vm/pair.h"

#include "base/config.h"

#include <string.h>

static void dial_lost_hellos_are_sent_again(void **state)
{
	/* Goal: the first datagrams are lost, calls and answers; the ctl comes up all the same. */
	(void)state;
	for (uint32_t lost = 0; lost <= 4; lost++) {
		struct fake_knobs *fake = pair_fake();
		struct pair p;

		pair_open_devs(&p);
		fake->drop_ud = lost;
		pair_talk(&p);
		assert_int_equal(p.b.ctl_new, 1);
		assert_int_equal(fake->drop_ud, 0);
		pair_close(&p);
		assert_int_equal(fake->objects(), 0);
	}
}

static bool b_has_message(const struct pair *p)
{
	return p->b.ctl_msgs == 1;
}

static void dial_doubled_hellos_make_one_ctl(void **state)
{
	/* Goal: each datagram comes twice, and neither side sees more than one channel. */
	struct fake_knobs *fake = pair_fake();
	uint8_t data[100];
	struct pair p;

	(void)state;
	pair_open_devs(&p);
	fake->double_ud = 100;
	pair_talk(&p);
	ctl_fill(data, sizeof(data), 0);
	assert_ok(p.ops->ctl_send(p.a.ctl, data, sizeof(data)));
	assert_true(pair_until(&p, b_has_message));
	assert_int_equal(p.b.ctl_new, 1);
	assert_int_equal(p.b.ctl_wrong, 0);
	pair_close(&p);
	assert_int_equal(fake->objects(), 0);
}

static void dial_refused_says_so(void **state)
{
	/* Goal: a peer that has no queue pair to spare answers at once. */
	struct fake_knobs *fake = pair_fake();
	struct pair p;

	(void)state;
	pair_open_devs(&p);
	fake->max_qps = 3; /* two for datagrams, one for the dialler's end */
	p.a.ctl = p.ops->ctl_open(p.a.dev, &p.b.addr, &p.a);
	pair_await(&p, &p.a.ctl_down);
	assert_int_equal(p.a.ctl_down_status, WIMM_E_PEER_REFUSED);
	p.ops->ctl_close(p.a.ctl, false);
	assert_int_equal(p.b.ctl_new, 0);
	pair_close(&p);
}

static void dial_of_a_malformed_address_fails_as_a_ctl(void **state)
{
	/* Goal: bytes that are no address end in CTL_DOWN, not in a crash. */
	struct prov_addr none = { .len_bytes = 7 };
	struct pair p;

	(void)state;
	(void)pair_fake();
	pair_open_devs(&p);
	p.a.ctl = p.ops->ctl_open(p.a.dev, &none, &p.a);
	assert_non_null(p.a.ctl);
	pair_await(&p, &p.a.ctl_down);
	assert_int_equal(p.a.ctl_down_status, WIMM_E_PEER_LOST);
	p.ops->ctl_close(p.a.ctl, true);
	pair_close(&p);
}

static void dial_lost_notice_is_sent_again(void **state)
{
	/* Goal: the other end of a closed path hears of it though the first datagrams are lost. */
	struct fake_knobs *fake = pair_fake();
	struct pair p;

	(void)state;
	pair_open(&p);
	fake->drop_ud = 2;
	p.ops->path_close(p.a.path);
	pair_await(&p, &p.b.down);
	p.ops->path_close(p.b.path);
	pair_await(&p, &p.a.closed);
	pair_await(&p, &p.b.closed);
	pair_close(&p);
	assert_int_equal(fake->objects(), 0);
}

static void dial_goes_over_tcp_where_datagrams_do_not_pass(void **state)
{
	/* Goal: all datagrams lost, no UD queue pair, UD switched off: the ctl comes up. */
	(void)state;
	for (int how = 0; how < 3; how++) {
		struct fake_knobs *fake = pair_fake();
		uint8_t data[5000];
		struct pair p;

		fake->no_ud = how == 1;
		assert_ok(config_set("verbs_hello", how == 2 ? "tcp" : "auto"));
		pair_open_devs(&p);
		fake->drop_ud = UINT32_MAX;
		pair_talk(&p);
		ctl_fill(data, sizeof(data), 0);
		assert_ok(p.ops->ctl_send(p.a.ctl, data, sizeof(data)));
		assert_true(pair_until(&p, b_has_message));
		assert_int_equal(p.b.ctl_wrong, 0);
		pair_join(&p);
		pair_close(&p);
		assert_int_equal(fake->objects(), 0);
	}
	assert_ok(config_set("verbs_hello", "auto"));
}

static void dial_over_tcp_to_nobody_fails_at_once(void **state)
{
	/* Goal: a refused connection is an answer. */
	struct prov_addr gone;
	struct pair p;

	(void)state;
	(void)pair_fake();
	assert_ok(config_set("verbs_hello", "tcp"));
	pair_open_devs(&p);
	gone = p.b.addr;
	side_close(&p.b);
	p.a.ctl = p.ops->ctl_open(p.a.dev, &gone, &p.a);
	pair_await(&p, &p.a.ctl_down);
	assert_int_equal(p.a.ctl_down_status, WIMM_E_PEER_LOST);
	p.ops->ctl_close(p.a.ctl, false);
	pair_close(&p);
	assert_ok(config_set("verbs_hello", "auto"));
}

static void dial_with_nothing_in_common_says_so(void **state)
{
	/* Goal: one side speaks UD alone, the other TCP alone. */
	struct pair p = { .ops = &prov_verbs_ops };

	(void)state;
	(void)pair_fake();
	assert_ok(config_set("verbs_hello", "ud"));
	side_open(&p.a, pair_nic(0));
	assert_ok(config_set("verbs_hello", "tcp"));
	side_open(&p.b, pair_nic(1));
	p.a.ctl = p.ops->ctl_open(p.a.dev, &p.b.addr, &p.a);
	pair_await(&p, &p.a.ctl_down);
	assert_int_equal(p.a.ctl_down_status, WIMM_E_UNSUPPORTED);
	assert_non_null(strstr(p.a.ctl_down_text, "verbs_hello"));
	p.ops->ctl_close(p.a.ctl, false);
	pair_close(&p);
	assert_ok(config_set("verbs_hello", "auto"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(dial_lost_hellos_are_sent_again),
		cmocka_unit_test(dial_doubled_hellos_make_one_ctl),
		cmocka_unit_test(dial_refused_says_so),
		cmocka_unit_test(dial_of_a_malformed_address_fails_as_a_ctl),
		cmocka_unit_test(dial_lost_notice_is_sent_again),
		cmocka_unit_test(dial_goes_over_tcp_where_datagrams_do_not_pass),
		cmocka_unit_test(dial_over_tcp_to_nobody_fails_at_once),
		cmocka_unit_test(dial_with_nothing_in_common_says_so),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
