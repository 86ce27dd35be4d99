/* SPDX-License-Identifier: Apache-2.0 */
#include "pair.h"

#include <string.h>

static struct prov_ctl *ctl_between(struct pair *p)
{
	struct prov_ctl *ctl = p->ops->ctl_open(p->side[0].dev, &p->side[1].addr, p);

	assert_non_null(ctl);
	pair_run(p);
	return ctl;
}

static void write_some(struct pair *p)
{
	for (uint32_t i = 0; i < 10; i++)
		pair_write(p, i, i * 100, 100, PROV_WR_IMM, i);
}

static void kill_loud_takes_path_and_ctl_down_within_the_notice(void **state)
{
	/* Goal: a dead process's peers learn it, late but surely; their requests come back. */
	static struct pair p;
	struct sim_cfg cfg = { .max_delay_ns = 50 * PAIR_US, .notice_ns = 1000 * PAIR_US };
	uint64_t start_ns;

	(void)state;
	pair_open_path(&p, &cfg);
	ctl_between(&p);
	write_some(&p);
	start_ns = sim_world_now_ns(p.world);
	sim_kill_engine(p.world, p.side[1].instance, false);
	pair_run(&p);
	assert_true(sim_world_now_ns(p.world) <= start_ns + 1100 * PAIR_US);
	assert_int_equal(pair_count(&p, 0, PROV_PATH_DOWN), 1);
	assert_int_equal(pair_count(&p, 0, PROV_CTL_DOWN), 1);
	assert_int_equal(pair_count(&p, 0, PROV_DONE), 10);
	assert_int_equal(pair_count(&p, 1, PROV_IMM), 0);
	assert_int_equal(sim_faults(p.world, SIM_KILL), 1);
	pair_close(&p);
}

static void kill_silent_is_never_told(void **state)
{
	/* Goal: a vanished host: no event, no DONE until the path is closed; nobody answers. */
	static struct pair p;
	struct prov_ctl *ctl;

	(void)state;
	pair_open_path(&p, &(struct sim_cfg){ .max_delay_ns = 50 * PAIR_US });
	ctl = ctl_between(&p);
	write_some(&p);
	sim_kill_engine(p.world, p.side[1].instance, true);
	assert_ok(p.ops->ctl_send(ctl, "x", 1));
	assert_non_null(p.ops->ctl_open(p.side[0].dev, &p.side[1].addr, NULL));
	pair_run(&p);
	assert_int_equal(pair_count(&p, 0, PROV_PATH_DOWN), 0);
	assert_int_equal(pair_count(&p, 0, PROV_CTL_DOWN), 0);
	assert_int_equal(pair_count(&p, 0, PROV_DONE), 0);
	p.ops->path_close(p.path[0]);
	pair_run(&p);
	assert_int_equal(pair_count(&p, 0, PROV_DONE), 10);
	assert_int_equal(sim_faults(p.world, SIM_KILL_SILENT), 1);
	pair_close(&p);
}

static void killed_sender_stops_writing_at_once(void **state)
{
	/* Goal: its memory is gone with it: nothing is read from there after the kill. */
	static struct pair p;
	static uint8_t before[sizeof(p.dst)];
	struct sim_cfg cfg = { .max_delay_ns = 50 * PAIR_US };

	(void)state;
	for (uint64_t seed = 0; seed < 20; seed++) {
		cfg.seed = seed;
		pair_open_path(&p, &cfg);
		write_some(&p);
		pair_run_until(&p, sim_world_now_ns(p.world) + seed * 2 * PAIR_US);
		sim_kill_engine(p.world, p.side[0].instance, seed % 2);
		memcpy(before, p.dst, sizeof(before));
		pair_run(&p);
		assert_memory_equal(p.dst, before, sizeof(before));
		p.ops->path_close(p.path[0]); /* its own calls still work, for cleaning up */
		pair_run(&p);
		assert_int_equal(pair_count(&p, 0, PROV_DONE), 10);
		assert_int_equal(pair_count(&p, 0, PROV_PATH_CLOSED), 1);
		pair_close(&p);
	}
}

static void nic_death_is_told_at_once_here_and_later_over_there(void **state)
{
	/* Goal: NIC_DOWN, PATH_DOWN and CTL_DOWN at the owner, PATH_DOWN and CTL_DOWN at the peer,
	 * at the time that was set. */
	static struct pair p;
	uint64_t at_ns;

	(void)state;
	pair_open_path(&p, &(struct sim_cfg){ .max_delay_ns = 50 * PAIR_US });
	ctl_between(&p);
	at_ns = sim_world_now_ns(p.world) + 20 * PAIR_US;
	sim_kill_nic_at(p.world, 1, at_ns);
	write_some(&p);
	pair_run_until(&p, at_ns - 1);
	assert_int_equal(pair_count(&p, 0, PROV_NIC_DOWN), 0);
	pair_run_until(&p, at_ns);
	pair_poll(&p, 0);
	assert_int_equal(pair_count(&p, 0, PROV_NIC_DOWN), 1);
	assert_int_equal(pair_find(&p, 0, PROV_PATH_DOWN)->status, WIMM_E_NIC_LOST);
	assert_int_equal(pair_find(&p, 0, PROV_CTL_DOWN)->status, WIMM_E_NIC_LOST);
	assert_int_equal(pair_count(&p, 0, PROV_DONE), 10);
	pair_run(&p);
	assert_int_equal(pair_count(&p, 1, PROV_PATH_DOWN), 1);
	assert_int_equal(pair_count(&p, 1, PROV_CTL_DOWN), 1);
	assert_int_equal(sim_faults(p.world, SIM_NIC_DEATH), 1);
	sim_kill_nic(p.world, 1, false); /* dead already */
	assert_int_equal(sim_faults(p.world, SIM_NIC_DEATH), 1);
	pair_close(&p);
}

static void partition_holds_everything_until_healed(void **state)
{
	/* Goal: nothing passes, nothing is lost, order of an ordered path is kept. */
	static struct pair p;
	struct prov_ctl *ctl;
	uint32_t last = 0;

	(void)state;
	pair_open_path(&p, &(struct sim_cfg){ .profile = "rc", .max_delay_ns = 50 * PAIR_US });
	ctl = ctl_between(&p);
	write_some(&p);
	sim_partition(p.world, 2, 1);
	assert_ok(p.ops->ctl_send(ctl, "x", 1));
	pair_run(&p);
	assert_int_equal(pair_count(&p, 0, PROV_DONE), 0);
	assert_int_equal(pair_count(&p, 1, PROV_IMM), 0);
	assert_int_equal(pair_count(&p, 1, PROV_CTL_MSG), 0);
	pair_write(&p, 10, 0, 8, PROV_WR_IMM, 10);
	sim_heal(p.world, 1, 2);
	pair_run(&p);
	assert_int_equal(pair_count(&p, 0, PROV_DONE), 11);
	assert_int_equal(pair_count(&p, 1, PROV_CTL_MSG), 1);
	for (uint32_t i = 0; i < p.side[1].events; i++) {
		if (p.side[1].event[i].kind != PROV_IMM)
			continue;
		assert_true(p.side[1].event[i].imm >= last);
		last = p.side[1].event[i].imm;
	}
	assert_int_equal(last, 10);
	pair_close(&p);
}

static void frozen_engine_neither_sends_nor_receives_until_thawed(void **state)
{
	/* Goal: freezing holds both directions; thawing lets all go on. */
	static struct pair p;

	(void)state;
	pair_open_path(&p, &(struct sim_cfg){ .max_delay_ns = 50 * PAIR_US });
	for (int side = 0; side < 2; side++) {
		uint32_t before = pair_count(&p, 1, PROV_IMM);

		write_some(&p);
		sim_freeze(p.world, p.side[side].instance);
		pair_run(&p);
		assert_int_equal(pair_count(&p, 1, PROV_IMM), before);
		sim_thaw(p.world, p.side[side].instance);
		pair_run(&p);
		assert_int_equal(pair_count(&p, 1, PROV_IMM), before + 10);
	}
	assert_int_equal(sim_faults(p.world, SIM_FREEZE), 2);
	assert_int_equal(sim_faults_all(p.world), 2);
	sim_freeze(p.world, p.side[0].instance); /* closed while frozen */
	pair_close(&p);
}

static void corrupted_write_costs_its_path(void **state)
{
	/* Goal: a write whose key is changed on the way lands nowhere and takes its path along. */
	static struct pair p;

	(void)state;
	pair_open_path(&p, &(struct sim_cfg){ 0 });
	sim_corrupt_next(p.world, 1, 1);
	pair_write(&p, 1, 0, 100, PROV_WR_IMM, 1);
	pair_run(&p);
	assert_int_equal(pair_done(&p, 1)->status, WIMM_E_PATH_LOST);
	assert_int_equal(pair_find(&p, 1, PROV_PATH_DOWN)->status, WIMM_E_PROTOCOL);
	assert_int_equal(sim_faults(p.world, SIM_BAD_KEY), 1);
	assert_int_equal(p.dst[0], 0xee);
	pair_close(&p);
}

static void settings_change_while_it_runs(void **state)
{
	/* Goal: each sim_set_ call has its effect on what comes after it. */
	static struct pair p;

	(void)state;
	pair_open_path(&p, &(struct sim_cfg){ 0 });
	sim_set_loss(p.world, 1000000);
	write_some(&p);
	pair_run(&p);
	assert_int_equal(sim_faults(p.world, SIM_LOSS_UNSENT) +
	                         sim_faults(p.world, SIM_LOSS_UNKNOWN) +
	                         sim_faults(p.world, SIM_LOSS_LANDED),
	                 10);
	sim_set_loss(p.world, 0);
	sim_set_resend(p.world, 1000000);
	sim_set_delay(p.world, 7 * PAIR_US, 3);
	write_some(&p);
	pair_run(&p);
	assert_int_equal(sim_faults(p.world, SIM_RESEND), 10);
	assert_int_equal(sim_world_now_ns(p.world), 14 * PAIR_US);
	sim_set_ctl_delay(p.world, 1000000, 5);
	ctl_between(&p);
	assert_int_equal(sim_faults(p.world, SIM_CTL_DELAY), 1);
	sim_set_refuse(p.world, 1000000);
	pair_connect(&p);
	assert_true(sim_faults(p.world, SIM_PATH_REFUSED) > 0);
	assert_string_equal(sim_fault_name(SIM_RESEND), "payload applied twice");
	assert_string_equal(sim_fault_name(SIM_FAULT_COUNT), "unknown fault");
	pair_close(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(kill_loud_takes_path_and_ctl_down_within_the_notice),
		cmocka_unit_test(kill_silent_is_never_told),
		cmocka_unit_test(killed_sender_stops_writing_at_once),
		cmocka_unit_test(nic_death_is_told_at_once_here_and_later_over_there),
		cmocka_unit_test(partition_holds_everything_until_healed),
		cmocka_unit_test(frozen_engine_neither_sends_nor_receives_until_thawed),
		cmocka_unit_test(corrupted_write_costs_its_path),
		cmocka_unit_test(settings_change_while_it_runs),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
