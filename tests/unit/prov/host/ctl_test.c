/* SPDX-License-Identifier: Apache-2.0 */
#include "pair.h"

#include "prov/host/ctl.h"

#include <stdlib.h>
#include <string.h>

static const struct prov_ops *const ops = &prov_host_ops;

static bool heard_all(const struct pair *p)
{
	return p->b.ctl_msgs >= 200;
}

static bool b_has_ctl(const struct pair *p)
{
	return p->b.ctl_new > 0;
}

static bool a_ctl_down(const struct pair *p)
{
	return p->a.ctl_down;
}

static bool b_ctl_down(const struct pair *p)
{
	return p->b.ctl_down;
}

static bool a_heard(const struct pair *p)
{
	return p->a.ctl_msgs > 0;
}

static void ctl_messages_of_every_length_arrive_in_order(void **state)
{
	/* Goal: short, empty and the longest messages come whole and in order, sent before and
	 * after the channel stands. */
	struct pair p;
	uint8_t *msg = malloc(HOST_CTL_MAX_BYTES);
	uint64_t bytes = 0;

	(void)state;
	pair_open_devs(&p, "auto");
	p.a.ctl = ops->ctl_open(p.a.dev, &p.b.addr, &p.a);
	assert_non_null(p.a.ctl);
	for (uint32_t i = 0; i < 200; i++) {
		uint32_t len = i % 20 == 7 ? p.a.caps.max_ctl_bytes : i * 333 % 40000;
		wimm_status st;

		memset(msg, (int)i, len);
		while ((st = ops->ctl_send(p.a.ctl, msg, len)) == WIMM_AGAIN)
			(void)(side_poll(&p.a) + side_poll(&p.b));
		assert_ok(st);
		bytes += len;
	}
	assert_true(pair_until(&p, heard_all));
	assert_int_equal(p.b.ctl_new, 1);
	assert_int_equal(p.b.ctl_msgs, 200);
	assert_int_equal(p.b.ctl_msg_bytes, bytes);
	assert_int_equal(p.b.ctl_last[0], 199);
	assert_int_equal(ops->ctl_send(p.a.ctl, msg, p.a.caps.max_ctl_bytes + 1), WIMM_E_TOO_LONG);
	assert_ok(ops->ctl_send(p.b.ctl, "back", 4));
	assert_true(pair_until(&p, a_heard));
	assert_memory_equal(p.a.ctl_last, "back", 4);
	pair_close(&p);
	free(msg);
}

static void ctl_flushed_close_delivers_then_tells(void **state)
{
	/* Goal: what was sent before a flushing close arrives, then the peer learns of the end. */
	struct pair p;
	uint8_t msg[1000] = { 5 };

	(void)state;
	pair_open_devs(&p, "auto");
	p.a.ctl = ops->ctl_open(p.a.dev, &p.b.addr, &p.a);
	assert_ok(ops->ctl_send(p.a.ctl, msg, sizeof(msg)));
	ops->ctl_close(p.a.ctl, true);
	assert_true(pair_until(&p, b_ctl_down));
	assert_int_equal(p.b.ctl_msgs, 1);
	assert_int_equal(p.b.ctl_msg_bytes, sizeof(msg));
	assert_int_equal(p.b.ctl_down_status, WIMM_E_PEER_LOST);
	assert_false(p.a.ctl_down); /* no event after ctl_close() */
	assert_int_equal(ops->ctl_send(p.b.ctl, msg, 1), WIMM_E_PEER_LOST);
	pair_close(&p);
}

static void ctl_what_the_peer_sent_before_it_went_is_read(void **state)
{
	/* Goal: a close with messages of ours unread does not swallow those it had sent. */
	struct pair p;

	(void)state;
	pair_open_devs(&p, "auto");
	p.a.ctl = ops->ctl_open(p.a.dev, &p.b.addr, &p.a);
	assert_ok(ops->ctl_send(p.a.ctl, "one", 3));
	assert_true(pair_until(&p, b_has_ctl));
	assert_ok(ops->ctl_send(p.a.ctl, "two", 3));
	side_turns(&p.a, 3);
	assert_ok(ops->ctl_send(p.b.ctl, "answer", 6));
	ops->ctl_close(p.b.ctl, true);
	assert_true(pair_until(&p, a_ctl_down));
	assert_int_equal(p.a.ctl_msgs, 1);
	assert_memory_equal(p.a.ctl_last, "answer", 6);
	pair_close(&p);
}

static void ctl_to_nobody_goes_down(void **state)
{
	/* Goal: an address where nobody listens, or none at all, fails with its reason. */
	struct pair p;
	struct prov_addr addr;

	(void)state;
	pair_open_devs(&p, "auto");
	assert_ok(ops->addr_parse("nobody-at-all", &addr));
	p.a.ctl = ops->ctl_open(p.a.dev, &addr, &p.a);
	assert_true(pair_until(&p, a_ctl_down));
	assert_int_equal(p.a.ctl_down_status, WIMM_E_PEER_LOST);
	assert_non_null(strstr(p.a.ctl_down_text, "nobody-at-all"));
	ops->ctl_close(p.a.ctl, true);
	p.a.ctl_down = false;
	addr.len_bytes = 1;
	p.a.ctl = ops->ctl_open(p.a.dev, &addr, &p.a);
	assert_true(pair_until(&p, a_ctl_down));
	assert_int_equal(p.a.ctl_down_status, WIMM_E_PEER_LOST);
	pair_close(&p);
}

static void ctl_name_in_use_is_said(void **state)
{
	/* Goal: a second device of the same name is refused; after the first is gone it is not. */
	struct side first = { 0 };
	struct side second = { 0 };
	struct prov_args args = { .nic = "host-ctl-test", .max_regions = 4 };
	struct prov_error error;

	(void)state;
	side_open(&first, args.nic);
	assert_int_equal(ops->open(&args, &second.caps, &second.dev, &error), WIMM_E_ADDR_IN_USE);
	assert_non_null(strstr(error.text, args.nic));
	side_close(&first);
	side_open(&second, args.nic);
	side_close(&second);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ctl_messages_of_every_length_arrive_in_order),
		cmocka_unit_test(ctl_flushed_close_delivers_then_tells),
		cmocka_unit_test(ctl_what_the_peer_sent_before_it_went_is_read),
		cmocka_unit_test(ctl_to_nobody_goes_down),
		cmocka_unit_test(ctl_name_in_use_is_said),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
