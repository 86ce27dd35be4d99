/* SPDX-License-Identifier: Apache-2.0 */
#include "pair.h"

#include "prov/tcp/ctl.h"

#include <stdlib.h>
#include <string.h>

static uint32_t want_msgs;

static bool b_got_messages(const struct pair *p)
{
	return p->b.ctl_msgs >= want_msgs;
}

static bool a_down(const struct pair *p)
{
	return p->a.ctl_down;
}

static bool b_down(const struct pair *p)
{
	return p->b.ctl_down;
}

static void ctl_messages_of_all_lengths_arrive_in_order(void **state)
{
	/* Goal: 0 bytes to the limit, sent before it is connected, come whole and in order. */
	static const uint32_t lens[] = { 0, 1, 63, 64, 65535, 1 << 20, (1 << 20) - 1, 2, 1 << 20 };
	struct pair p;
	uint8_t *msg = calloc(1, (1 << 20) + 1);
	uint64_t total = 0;

	(void)state;
	pair_open_devs(&p, "127.0.0.1:0");
	p.a.ctl = p.ops->ctl_open(p.a.dev, &p.b.addr, &p.a);
	assert_non_null(p.a.ctl);
	for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
		if (lens[i] > 0)
			msg[0] = (uint8_t)i;
		while (p.ops->ctl_send(p.a.ctl, msg, lens[i]) == WIMM_AGAIN)
			(void)(side_poll(&p.a) + side_poll(&p.b));
		total += lens[i];
		want_msgs = (uint32_t)i + 1;
		if (i >= 4) {
			assert_true(pair_until(&p, b_got_messages));
			assert_int_equal(p.b.ctl_last[0], (uint8_t)i);
		}
	}
	assert_int_equal(p.b.ctl_msg_bytes, total);
	assert_int_equal(p.b.ctl_new, 1);
	assert_int_equal(p.ops->ctl_send(p.a.ctl, msg, (1 << 20) + 1), WIMM_E_TOO_LONG);
	pair_close(&p);
	free(msg);
}

static void ctl_buffer_full_says_again_and_loses_nothing(void **state)
{
	/* Goal: at least four of the longest fit; more is back-pressure until the peer reads. */
	struct pair p;
	uint8_t *msg = calloc(1, 1 << 20);
	uint32_t taken = 0;

	(void)state;
	pair_open_devs(&p, "127.0.0.1:0");
	p.a.ctl = p.ops->ctl_open(p.a.dev, &p.b.addr, &p.a);
	while (p.ops->ctl_send(p.a.ctl, msg, 1 << 20) == WIMM_OK)
		taken++;
	assert_true(taken >= 4);
	want_msgs = taken;
	assert_true(pair_until(&p, b_got_messages));
	assert_ok(p.ops->ctl_send(p.a.ctl, msg, 1 << 20));
	pair_close(&p);
	free(msg);
}

static void ctl_closed_with_flush_delivers_what_was_sent(void **state)
{
	/* Goal: a goodbye sent before the connection stands arrives, then the peer sees the end. */
	struct pair p;

	(void)state;
	pair_open_devs(&p, "127.0.0.1:0");
	p.a.ctl = p.ops->ctl_open(p.a.dev, &p.b.addr, &p.a);
	assert_ok(p.ops->ctl_send(p.a.ctl, "bye", 4));
	p.ops->ctl_close(p.a.ctl, true);
	assert_true(pair_until(&p, b_down));
	assert_int_equal(p.b.ctl_msgs, 1);
	assert_string_equal((char *)p.b.ctl_last, "bye");
	p.ops->ctl_close(p.b.ctl, false);
	pair_close(&p);
}

static void ctl_to_a_port_where_nobody_listens_goes_down(void **state)
{
	/* Goal: the failure comes as an event that names the address, at once. */
	struct pair p;
	struct prov_addr gone;

	(void)state;
	pair_open_devs(&p, "127.0.0.1:0");
	gone = p.b.addr;
	side_close(&p.b);
	p.a.ctl = p.ops->ctl_open(p.a.dev, &gone, &p.a);
	assert_non_null(p.a.ctl);
	assert_true(pair_until(&p, a_down));
	assert_int_equal(p.a.ctl_down_status, WIMM_E_PEER_LOST);
	assert_non_null(strstr(p.a.ctl_down_text, "127.0.0.1:"));
	p.ops->ctl_close(p.a.ctl, false);
	pair_close(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ctl_messages_of_all_lengths_arrive_in_order),
		cmocka_unit_test(ctl_buffer_full_says_again_and_loses_nothing),
		cmocka_unit_test(ctl_closed_with_flush_delivers_what_was_sent),
		cmocka_unit_test(ctl_to_a_port_where_nobody_listens_goes_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
