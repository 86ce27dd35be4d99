/* SPDX-License-Identifier: Apache-2.0 */
#include "pair.h"

#include <string.h>

static struct prov_ctl *remote_end(const struct pair *p)
{
	const struct prov_cqe *cqe = pair_find(p, 1, PROV_CTL_NEW);

	assert_non_null(cqe);
	return cqe->ctl;
}

static void ctl_messages_arrive_in_order_though_some_are_held_up(void **state)
{
	/* Goal: whatever the delays, a channel keeps order and loses nothing from its opening. */
	static struct pair p;
	struct sim_cfg cfg = { .seed = 2,
		               .max_delay_ns = 40 * PAIR_US,
		               .ctl_delay_ppm = 300000,
		               .ctl_delay_ns = 500 * PAIR_US,
		               .ctl_depth = 200 };
	struct prov_ctl *ctl;
	uint32_t seen = 0;

	(void)state;
	pair_open(&p, &cfg);
	ctl = p.ops->ctl_open(p.side[0].dev, &p.side[1].addr, &p);
	for (uint32_t i = 1; i <= 100; i++)
		assert_ok(p.ops->ctl_send(ctl, p.src, i));
	pair_run(&p);
	for (uint32_t i = 0; i < p.side[1].events; i++) {
		if (p.side[1].event[i].kind == PROV_CTL_MSG)
			assert_int_equal(p.side[1].event[i].len_bytes, ++seen);
	}
	assert_int_equal(seen, 100);
	assert_memory_equal(p.side[1].message, p.src, 100);
	assert_int_equal(p.side[1].event[0].kind, PROV_CTL_NEW);
	assert_true(sim_faults(p.world, SIM_CTL_DELAY) > 10);
	pair_close(&p);
}

static void ctl_new_ends_its_batch_so_that_a_context_can_be_set(void **state)
{
	/* Goal: a message that came with the opening carries the context set after the opening. */
	static struct pair p;
	struct prov_cqe cqe[8];
	struct prov_ctl *ctl;
	int context;

	(void)state;
	pair_open(&p, &(struct sim_cfg){ 0 });
	ctl = p.ops->ctl_open(p.side[0].dev, &p.side[1].addr, NULL);
	assert_ok(p.ops->ctl_send(ctl, "hello", 5));
	assert_int_equal(p.ops->poll(p.side[1].dev, 0, cqe, 8), 1);
	assert_int_equal(cqe[0].kind, PROV_CTL_NEW);
	p.ops->ctl_set_context(cqe[0].ctl, &context);
	assert_int_equal(p.ops->poll(p.side[1].dev, 0, cqe, 8), 1);
	assert_ptr_equal(cqe[0].context, &context);
	assert_memory_equal(cqe[0].data, "hello", 5);
	pair_close(&p);
}

static void ctl_full_says_again_and_has_room_once_read(void **state)
{
	/* Goal: back-pressure counts what the peer has not read, at least 4 messages. */
	static struct pair p;
	struct prov_ctl *ctl;

	(void)state;
	pair_open(&p, &(struct sim_cfg){ .ctl_depth = 1 });
	ctl = p.ops->ctl_open(p.side[0].dev, &p.side[1].addr, NULL);
	for (int i = 0; i < 4; i++)
		assert_ok(p.ops->ctl_send(ctl, "x", 1));
	assert_int_equal(p.ops->ctl_send(ctl, "x", 1), WIMM_AGAIN);
	assert_int_equal(sim_faults(p.world, SIM_CTL_FULL), 1);
	pair_run(&p);
	assert_ok(p.ops->ctl_send(ctl, "x", 1));
	pair_close(&p);
}

static void ctl_closed_after_sending_still_delivers_when_flushed(void **state)
{
	/* Goal: goodbye: the last message comes, then the end; the closer hears nothing more. */
	static struct pair p;
	struct sim_cfg cfg = { .seed = 8, .max_delay_ns = 40 * PAIR_US };
	struct prov_ctl *ctl, *remote;
	uint32_t heard;

	(void)state;
	pair_open(&p, &cfg);
	ctl = p.ops->ctl_open(p.side[0].dev, &p.side[1].addr, NULL);
	pair_run(&p);
	remote = remote_end(&p);
	assert_ok(p.ops->ctl_send(remote, "late", 4));
	heard = p.side[0].events;
	assert_ok(p.ops->ctl_send(ctl, "bye", 3));
	p.ops->ctl_close(ctl, true);
	pair_run(&p);
	assert_int_equal(p.side[0].events, heard);
	assert_int_equal(pair_count(&p, 1, PROV_CTL_MSG), 1);
	assert_int_equal(p.side[1].event[p.side[1].events - 1].kind, PROV_CTL_DOWN);
	assert_int_equal(p.side[1].event[p.side[1].events - 1].status, WIMM_E_CLOSED);
	assert_int_equal(p.ops->ctl_send(remote, "x", 1), WIMM_E_PEER_LOST);
	p.ops->ctl_close(remote, true);
	pair_close(&p);
}

static void ctl_closed_before_its_opening_arrived_goes_down_over_there(void **state)
{
	/* Goal: a close never overtakes the opening, which would leave an orphan. */
	static struct pair p;
	struct sim_cfg cfg = { .min_delay_ns = 1, .max_delay_ns = 90 * PAIR_US };

	(void)state;
	for (uint64_t seed = 0; seed < 20; seed++) {
		cfg.seed = seed;
		pair_open(&p, &cfg);
		p.ops->ctl_close(p.ops->ctl_open(p.side[0].dev, &p.side[1].addr, NULL), false);
		pair_run(&p);
		assert_int_equal(pair_count(&p, 1, PROV_CTL_NEW), 1);
		assert_int_equal(pair_count(&p, 1, PROV_CTL_DOWN), 1);
		pair_close(&p);
	}
}

static void ctl_to_nobody_goes_down(void **state)
{
	/* Goal: an address without a NIC answers like a refused connection. */
	static struct pair p;
	struct prov_addr to;
	struct prov_ctl *ctl;

	(void)state;
	pair_open(&p, &(struct sim_cfg){ .max_delay_ns = 40 * PAIR_US });
	assert_ok(p.ops->addr_parse("sim:3", &to));
	ctl = p.ops->ctl_open(p.side[0].dev, &to, &p);
	pair_run(&p);
	assert_int_equal(pair_count(&p, 0, PROV_CTL_DOWN), 1);
	assert_ptr_equal(pair_find(&p, 0, PROV_CTL_DOWN)->ctl, ctl);
	assert_ptr_equal(pair_find(&p, 0, PROV_CTL_DOWN)->context, &p);
	pair_close(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ctl_messages_arrive_in_order_though_some_are_held_up),
		cmocka_unit_test(ctl_new_ends_its_batch_so_that_a_context_can_be_set),
		cmocka_unit_test(ctl_full_says_again_and_has_room_once_read),
		cmocka_unit_test(ctl_closed_after_sending_still_delivers_when_flushed),
		cmocka_unit_test(ctl_closed_before_its_opening_arrived_goes_down_over_there),
		cmocka_unit_test(ctl_to_nobody_goes_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
