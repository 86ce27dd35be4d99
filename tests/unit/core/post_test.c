/* SPDX-License-Identifier: Apache-2.0 */
#include "unit/core/duo.h"

#include "plat/clock.h"
#include "prov/providers.h"

enum { ENTRY = 10000 }; /* three requests of 4 KiB at most */

static const struct sim_cfg cfg = { .seed = 7, .max_write_bytes = 4096 };

static int64_t scatter_two(struct duo *d)
{
	const struct wimm_scatter_entry entries[] = {
		{ d->to, 0, 0, ENTRY },
		{ d->to, 20000, 30000, ENTRY },
	};

	return duo_scatter(d, entries, 2);
}

/* Split writes of which the receiver waits for more parts. */
static bool nothing_waits(void *arg)
{
	const struct duo *d = arg;
	uint32_t count = 0;

	duo_step(arg);
	LIST_FOR_EACH(it, &d->b->worker.peers)
		count += LIST_ENTRY(it, struct peer, link)->parts.count;
	return count == 0;
}

static void post_scatter_of_long_entries_counts_one_each(void **state)
{
	/* Goal: an entry longer than a request counts once, when all of it is there. */
	static struct duo d;

	(void)state;
	duo_open(&d, &cfg, "1", "2");
	assert_int_equal(scatter_two(&d), 1);
	duo_reaches(&d, 2);
	assert_memory_equal(d.dst, d.src, ENTRY);
	assert_memory_equal(d.dst + 30000, d.src + 20000, ENTRY);
	assert_true(nothing_waits(&d));
	duo_close(&d);
}

static void post_failing_scatter_entry_gives_up_its_own_parts(void **state)
{
	/* Goal: the receiver hears of each entry how many parts it will ever see; else it waits for
	 * the rest as long as the session lasts. The entries' first requests go first, so that one
	 * loss is of the first entry, and two are of both. */
	static struct duo d;

	(void)state;
	for (uint32_t lost = 1; lost <= 2; lost++) {
		duo_open(&d, &cfg, "1", "2");
		assert_int_equal(scatter_two(&d), 1); /* sets the session up */
		duo_reaches(&d, 2);
		sim_lose_next(d.world, 1, SIM_LOSS_UNSENT, lost);
		assert_true(scatter_two(&d) < 0);
		duo_reaches(&d, 2 + (2 - lost));
		assert_true(test_wait_until(nothing_waits, &d, TEST_DEADLINE_MS));
		duo_close(&d);
	}
}

/* A device that takes nothing back; 64 KiB in 16 requests take a second and a third. */
static const struct sim_cfg slow_cfg = { .seed = 7,
	                                 .max_write_bytes = 4096,
	                                 .virtual_time = true,
	                                 .no_cancel = true,
	                                 .profile = "rc",
	                                 .link_bytes_per_s = 50000 };

static bool path_is_up(const struct duo *d)
{
	LIST_FOR_EACH(it, &d->a->worker.peers) {
		const struct peer *p = LIST_ENTRY(it, struct peer, link);

		if (p->state == PEER_UP && p->path[0].state == PATH_UP)
			return true;
	}
	return false;
}

static uint64_t ms_until_settled(struct duo *d)
{
	uint64_t start = sim_world_now_ns(d->world);

	while (!duo_settled(d))
		assert_true(sim_world_now_ns(d->world) < start + 10 * CLOCK_NS_PER_S);
	return (sim_world_now_ns(d->world) - start) / CLOCK_NS_PER_MS;
}

static void submit_all(struct duo *d, wimm_op *op)
{
	struct wimm_write w = WIMM_WRITE_INIT;
	struct wimm_on_done done = { .flag = &d->flag };

	w.src = d->from;
	w.dst = d->to;
	w.len_bytes = BYTES;
	d->flag = 0;
	assert_ok(wimm_submit_single_write(d->a, &w, &done, op));
	for (int i = 0; i < 100; i++)
		duo_step(d);
}

static void post_cancelled_write_that_comes_back_slowly_keeps_its_path(void **state)
{
	/* Goal: a write that its NIC cannot give back is waited for while the path goes on, for
	 * more than the 200 ms after which one that stands still is closed; asking again closes
	 * nothing. */
	static struct duo d;
	uint64_t ms;
	wimm_op op;

	(void)state;
	duo_open(&d, &slow_cfg, "1", "2");
	assert_int_equal(scatter_two(&d), 1); /* sets the session up */
	submit_all(&d, &op);
	for (int i = 0; i < 3; i++)
		assert_ok(wimm_cancel(d.a, op));
	ms = ms_until_settled(&d);
	assert_int_equal((int64_t)d.flag, WIMM_E_CANCELLED);
	assert_in_range(ms, 1000, 1999);
	assert_true(path_is_up(&d));
	duo_close(&d);
}

static void post_cancelled_write_that_stands_still_costs_its_path(void **state)
{
	/* Goal: what does not move for 200 ms is ended by closing the path. */
	static struct duo d;
	wimm_op op;

	(void)state;
	duo_open(&d, &slow_cfg, "1", "2");
	assert_int_equal(scatter_two(&d), 1);
	sim_set_delay(d.world, UINT64_C(60000000000), UINT64_C(60000000000));
	submit_all(&d, &op);
	assert_ok(wimm_cancel(d.a, op));
	assert_in_range(ms_until_settled(&d), 150, 450);
	assert_int_equal((int64_t)d.flag, WIMM_E_CANCELLED);
	assert_false(path_is_up(&d));
	duo_close(&d);
}

static void post_turn_reads_what_comes_behind_many_new_connections(void **state)
{
	/* Goal: strangers who connect in crowds do not keep a write waiting, a turn for each. */
	static const struct sim_cfg virtual = { .seed = 3, .virtual_time = true };
	static struct duo d;
	struct prov_args args = { .nic = "3", .instance = (const uint8_t *)"sixteen octets.." };
	struct wimm_write w = WIMM_WRITE_INIT;
	struct prov_caps caps;
	struct prov_error error;
	struct prov_addr at_b;
	struct prov_dev *c;
	struct prov_ctl *ctl[40];
	uint64_t count;

	(void)state;
	duo_open(&d, &virtual, "1", "2");
	w.src = d.from;
	w.dst = d.to;
	w.len_bytes = 64;
	w.imm = IMM;
	w.flags = WIMM_IMM;
	assert_ok(wimm_submit_single_write(d.a, &w, NULL, NULL));
	duo_reaches(&d, 1);
	args.world = d.world;
	assert_ok(prov_sim_ops.open(&args, &caps, &c, &error));
	prov_sim_ops.addr(d.b->worker.nic[0].dev, &at_b);
	for (int i = 0; i < 40; i++) {
		ctl[i] = prov_sim_ops.ctl_open(c, &at_b, NULL);
		assert_non_null(ctl[i]);
	}
	sim_world_advance(d.world, sim_world_now_ns(d.world) + CLOCK_NS_PER_MS);
	assert_ok(wimm_submit_single_write(d.a, &w, NULL, NULL));
	assert_ok(wimm_progress(d.a, NULL));
	sim_world_advance(d.world, sim_world_now_ns(d.world) + CLOCK_NS_PER_MS);
	assert_ok(wimm_progress(d.b, NULL));
	assert_ok(wimm_poll_imm(d.b, IMM, &count));
	assert_int_equal(count, 2);
	for (int i = 0; i < 40; i++)
		prov_sim_ops.ctl_close(ctl[i], false);
	prov_sim_ops.close(c);
	duo_close(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(post_scatter_of_long_entries_counts_one_each),
		cmocka_unit_test(post_failing_scatter_entry_gives_up_its_own_parts),
		cmocka_unit_test(post_cancelled_write_that_comes_back_slowly_keeps_its_path),
		cmocka_unit_test(post_cancelled_write_that_stands_still_costs_its_path),
		cmocka_unit_test(post_turn_reads_what_comes_behind_many_new_connections),
	};

	return cmocka_run_group_tests_name("core/post", tests, NULL, NULL);
}
