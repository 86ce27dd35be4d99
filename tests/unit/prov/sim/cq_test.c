/* SPDX-License-Identifier: Apache-2.0 */
#include "pair.h"

#include <poll.h>

static bool readable(int fd)
{
	struct pollfd pfd = { .fd = fd, .events = POLLIN };

	return poll(&pfd, 1, 0) == 1;
}

static void cq_merges_neighbours_that_differ_in_nothing(void **state)
{
	/* Goal: equal immediates and equal tokens come as one entry with a count. */
	static struct pair p;
	struct prov_cqe cqe[8];

	(void)state;
	pair_open_path(&p, &(struct sim_cfg){ .profile = "rc" });
	for (int i = 0; i < 5; i++)
		pair_write(&p, 7, 0, 8, PROV_WR_IMM, 3);
	assert_int_equal(p.ops->poll(p.side[1].dev, 0, cqe, 8), 1);
	assert_int_equal(cqe[0].kind, PROV_IMM);
	assert_int_equal(cqe[0].count, 5);
	assert_ptr_equal(cqe[0].context, &p.context[1]);
	assert_int_equal(p.ops->poll(p.side[0].dev, 0, cqe, 8), 1);
	assert_int_equal(cqe[0].kind, PROV_DONE);
	assert_int_equal(cqe[0].count, 5);
	assert_int_equal(cqe[0].token, 7);
	pair_close(&p);
}

static void cq_returns_no_more_than_asked_for(void **state)
{
	/* Goal: what does not fit stays for the next poll, in order. */
	static struct pair p;
	struct prov_cqe cqe[2];

	(void)state;
	pair_open_path(&p, &(struct sim_cfg){ .profile = "rc" });
	for (uint32_t i = 0; i < 5; i++)
		pair_write(&p, i, 0, 8, PROV_WR_IMM, i);
	for (uint32_t i = 0; i < 5; i += 2) {
		assert_int_equal(p.ops->poll(p.side[1].dev, 0, cqe, 2), i < 4 ? 2 : 1);
		assert_int_equal(cqe[0].imm, i);
	}
	assert_int_equal(p.ops->poll(p.side[1].dev, 0, cqe, 2), 0);
	pair_close(&p);
}

static void cq_descriptor_wakes_a_sleeper_for_its_event(void **state)
{
	/* Goal: in real time an armed NIC's descriptor becomes readable when a peer sends to it. */
	struct sim_cfg cfg = { .seed = 1 };
	struct prov_args args = { .nic = "any" };
	struct prov_caps caps;
	struct prov_error error;
	struct prov_dev *a, *b;
	struct prov_addr to;
	struct prov_cqe cqe;
	struct sim_world *w;
	const struct prov_ops *ops = &prov_sim_ops;

	(void)state;
	assert_ok(sim_world_open(&cfg, &w));
	args.world = w;
	assert_ok(ops->open(&args, &caps, &a, &error));
	assert_ok(ops->open(&args, &caps, &b, &error));
	ops->addr(b, &to);
	assert_int_equal(ops->poll(b, 1, &cqe, 1), 0);
	assert_true(ops->arm(b));
	assert_false(readable(ops->fd(b)));
	assert_non_null(ops->ctl_open(a, &to, NULL));
	assert_true(readable(ops->fd(b)));
	assert_false(ops->arm(b)); /* something is due already */
	assert_int_equal(ops->poll(b, 1, &cqe, 1), 1);
	assert_false(readable(ops->fd(b)));
	ops->close(a);
	ops->close(b);
	sim_world_close(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(cq_merges_neighbours_that_differ_in_nothing),
		cmocka_unit_test(cq_returns_no_more_than_asked_for),
		cmocka_unit_test(cq_descriptor_wakes_a_sleeper_for_its_event),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
