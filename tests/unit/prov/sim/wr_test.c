/* SPDX-License-Identifier: Apache-2.0 */
#include "pair.h"

#include "base/alloc.h"

#include <string.h>

static const char *const profiles[] = { "rc", "efa", "late" };

/* Step to the next event until side has `count` events of this kind. */
static void step_until(struct pair *p, int side, enum prov_cqe_kind kind, uint32_t count)
{
	while (pair_count(p, side, kind) < count) {
		assert_int_not_equal(sim_world_next_ns(p->world), UINT64_MAX);
		pair_run_until(p, sim_world_next_ns(p->world));
	}
}

static void wr_bytes_are_in_place_before_the_immediate(void **state)
{
	/* Goal: P1 in every profile: at the moment of PROV_IMM its own bytes are readable. */
	static struct pair p;
	struct sim_cfg cfg = { .max_delay_ns = 50 * PAIR_US,
		               .late_ns = 200 * PAIR_US,
		               .resend_ppm = 300000 };

	(void)state;
	for (uint64_t seed = 0; seed < 90; seed++) {
		uint32_t early = 0;

		cfg.seed = seed;
		cfg.profile = profiles[seed % 3];
		pair_open_path(&p, &cfg);
		pair_write(&p, 1, 0, sizeof(p.src), PROV_WR_IMM, 9);
		while (pair_count(&p, 1, PROV_IMM) == 0) {
			pair_run_until(&p, sim_world_next_ns(p.world));
			if (pair_count(&p, 0, PROV_DONE) && !pair_count(&p, 1, PROV_IMM))
				early++;
		}
		assert_memory_equal(p.dst, p.src, sizeof(p.src));
		pair_run(&p);
		assert_int_equal(pair_count(&p, 1, PROV_IMM), 1);
		assert_int_equal(pair_done(&p, 1)->status, WIMM_OK);
		assert_true(early == 0 || strcmp(cfg.profile, "late") == 0);
		pair_close(&p);
	}
}

static void wr_acked_early_may_not_be_visible_yet(void **state)
{
	/* Goal: profile "late": DONE comes while the target still has its old bytes, which a
	 * source changed after DONE does not reach. */
	static struct pair p;
	static uint8_t pattern[sizeof(p.src)];
	struct sim_cfg cfg = { .profile = "late",
		               .max_delay_ns = 5 * PAIR_US,
		               .late_ns = 500 * PAIR_US };
	uint32_t invisible = 0;

	(void)state;
	for (uint64_t seed = 0; seed < 30; seed++) {
		cfg.seed = seed;
		pair_open_path(&p, &cfg);
		memcpy(pattern, p.src, sizeof(pattern));
		pair_write(&p, 1, 0, sizeof(p.src), PROV_WR_IMM, 9);
		step_until(&p, 0, PROV_DONE, 1);
		invisible += memcmp(p.dst, pattern, sizeof(pattern)) != 0;
		memset(p.src, 0, sizeof(p.src));
		pair_run(&p);
		assert_memory_equal(p.dst, pattern, sizeof(pattern));
		pair_close(&p);
	}
	assert_in_range(invisible, 15, 30);
}

static void wr_source_changed_before_done_shows_at_the_receiver(void **state)
{
	/* Goal: bytes are read when they land, so a source that is changed too early is torn. */
	static struct pair p;
	static uint8_t pattern[sizeof(p.src)];
	struct sim_cfg cfg = { .max_delay_ns = 50 * PAIR_US };
	uint32_t torn = 0;

	(void)state;
	for (uint64_t seed = 0; seed < 40; seed++) {
		cfg.seed = seed;
		pair_open_path(&p, &cfg);
		memcpy(pattern, p.src, sizeof(pattern));
		pair_write(&p, 1, 0, sizeof(p.src), PROV_WR_IMM, 9);
		pair_run_until(&p, sim_world_now_ns(p.world) + 25 * PAIR_US);
		memset(p.src, 0, sizeof(p.src));
		pair_run(&p);
		torn += memcmp(p.dst, pattern, sizeof(pattern)) != 0;
		pair_close(&p);
	}
	assert_in_range(torn, 10, 40);
}

static void wr_order_is_kept_by_rc_and_by_nobody_else(void **state)
{
	/* Goal: "rc" reports and lands in post order; the others shuffle within a few writes. */
	static struct pair p;
	struct sim_cfg cfg = { .seed = 4, .max_delay_ns = 50 * PAIR_US };

	(void)state;
	for (int i = 0; i < 3; i++) {
		uint32_t swaps[2] = { 0, 0 };
		uint32_t last[2] = { 0, 0 };

		cfg.profile = profiles[i];
		pair_open_path(&p, &cfg);
		assert_int_equal(p.side[0].caps.ordered, i == 0);
		for (uint32_t k = 1; k <= 60; k++)
			pair_write(&p, k, 0, 64, PROV_WR_IMM, k);
		pair_run(&p);
		for (int side = 0; side < 2; side++) {
			for (uint32_t e = 0; e < p.side[side].events; e++) {
				const struct prov_cqe *cqe = &p.side[side].event[e];
				uint32_t k = side ? cqe->imm : (uint32_t)cqe->token;

				if (k == 0)
					continue;
				swaps[side] += k < last[side];
				last[side] = k;
			}
		}
		assert_int_equal(swaps[0] > 0, i != 0);
		assert_int_equal(swaps[1] > 0, i != 0);
		assert_int_equal(pair_count(&p, 1, PROV_IMM), 60);
		pair_close(&p);
	}
}

static void wr_empty_counts_its_immediate_and_efa_wants_a_target(void **state)
{
	/* Goal: zero bytes with a wrong key: fine for rc and late, costs the path on efa. */
	static struct pair p;
	struct prov_wr wr = { .token = 5, .flags = PROV_WR_IMM, .imm = 6, .remote_key = 99 };

	(void)state;
	for (int i = 0; i < 3; i++) {
		pair_open_path(&p, &(struct sim_cfg){ .profile = profiles[i] });
		assert_int_equal(p.side[0].caps.needs_empty_target, i == 1);
		pair_write(&p, 1, 4096, 0, PROV_WR_IMM, 1); /* at the region's end */
		pair_run(&p);
		assert_int_equal(pair_done(&p, 1)->status, WIMM_OK);
		assert_int_equal(p.ops->post(p.path[0], &wr, 1), 1);
		pair_run(&p);
		assert_int_equal(pair_done(&p, 5)->status, i == 1 ? WIMM_E_PATH_LOST : WIMM_OK);
		assert_int_equal(pair_count(&p, 1, PROV_IMM), i == 1 ? 1 : 2);
		pair_close(&p);
	}
}

static void wr_to_a_wrong_key_or_range_costs_the_path_and_no_memory(void **state)
{
	/* Goal: P4: path down on both sides with figures in the text, no byte outside touched. */
	static struct pair p;
	static const struct {
		uint64_t key, offset, len;
	} bad[] = { { 0x200000003, 0, 8 }, { 0x200000002, 4090, 8 }, { 0x200000002, 0, 4097 } };

	(void)state;
	for (size_t i = 0; i < 9; i++) {
		struct prov_wr wr = {
			.token = 5, .src = p.src, .local_key = 0x100000001, .flags = PROV_WR_IMM
		};

		pair_open_path(&p, &(struct sim_cfg){ .profile = profiles[i % 3] });
		wr.len_bytes = bad[i / 3].len < 4096 ? bad[i / 3].len : 4096;
		wr.remote_key = bad[i / 3].key;
		wr.remote_addr = (uint64_t)(uintptr_t)p.dst + bad[i / 3].offset + bad[i / 3].len -
		                 wr.len_bytes;
		assert_int_equal(p.ops->post(p.path[0], &wr, 1), 1);
		pair_run(&p);
		assert_int_equal(pair_done(&p, 5)->status, WIMM_E_PATH_LOST);
		assert_int_equal(pair_find(&p, 1, PROV_PATH_DOWN)->status, WIMM_E_PROTOCOL);
		assert_int_equal(pair_count(&p, 0, PROV_PATH_DOWN), 1);
		assert_non_null(strstr(p.side[1].text, i < 3 ? "200000003" : "4096"));
		for (size_t k = 0; k < sizeof(p.dst); k++)
			assert_int_equal(p.dst[k], 0xee);
		assert_int_equal(sim_faults(p.world, SIM_BAD_KEY), 1);
		pair_close(&p);
	}
}

static void wr_lost_is_told_honestly(void **state)
{
	/* Goal: each kind of loss ends with an error; without PROV_CQE_SENT nothing was counted,
	 * "landed" was counted once. */
	static struct pair p;
	static const enum sim_fault kind[] = { SIM_LOSS_UNSENT, SIM_LOSS_UNKNOWN, SIM_LOSS_LANDED };
	struct sim_cfg cfg = { .max_delay_ns = 50 * PAIR_US };

	(void)state;
	for (uint64_t seed = 0; seed < 90; seed++) {
		const struct prov_cqe *done;

		cfg.seed = seed;
		cfg.profile = profiles[seed % 3];
		pair_open_path(&p, &cfg);
		sim_lose_next(p.world, 1, kind[seed / 30], 1);
		pair_write(&p, 1, 0, 1000, PROV_WR_IMM, 9);
		pair_write(&p, 2, 1000, 1000, PROV_WR_IMM, 8);
		pair_run(&p);
		done = pair_done(&p, 1);
		assert_int_equal(done->status, WIMM_E_PATH_LOST);
		assert_int_equal(!!(done->flags & PROV_CQE_SENT), seed >= 30);
		assert_int_equal(sim_faults(p.world, kind[seed / 30]), 1);
		if (seed % 3 != 0)
			assert_int_equal(pair_done(&p, 2)->status, WIMM_OK);
		else
			assert_int_equal(pair_count(&p, 0, PROV_PATH_DOWN), 1);
		for (uint32_t i = 0; i < p.side[1].events; i++) {
			if (p.side[1].event[i].kind == PROV_IMM && p.side[1].event[i].imm == 9)
				assert_in_range(seed, 60, 89);
		}
		if (seed < 30)
			assert_int_equal(p.dst[0], 0xee);
		pair_close(&p);
	}
}

static void wr_resent_is_applied_twice_and_counted_once(void **state)
{
	/* Goal: resending changes nothing that a receiver may rely on. */
	static struct pair p;

	(void)state;
	for (int i = 0; i < 3; i++) {
		pair_open_path(&p, &(struct sim_cfg){ .profile = profiles[i],
		                                      .max_delay_ns = 50 * PAIR_US,
		                                      .resend_ppm = 1000000 });
		for (uint32_t k = 0; k < 40; k++)
			pair_write(&p, k, k * 100, 100, PROV_WR_IMM, k);
		pair_run(&p);
		assert_int_equal(sim_faults(p.world, SIM_RESEND), 40);
		assert_int_equal(pair_count(&p, 1, PROV_IMM), 40);
		assert_memory_equal(p.dst, p.src, 4000);
		pair_close(&p);
	}
}

static void wr_part_is_reported_with_its_operation(void **state)
{
	/* Goal: PROV_PART carries op_seq, parts and imm; it is no immediate. */
	static struct pair p;
	struct prov_wr wr = {
		.token = 5, .flags = PROV_WR_PART, .imm = 6, .parts = 3, .op_seq = 0x123456789a
	};
	const struct prov_cqe *part;

	(void)state;
	pair_open_path(&p, &(struct sim_cfg){ .profile = "rc" });
	assert_int_equal(p.ops->post(p.path[0], &wr, 1), 1);
	pair_run(&p);
	part = pair_find(&p, 1, PROV_PART);
	assert_non_null(part);
	assert_true(part->op_seq == 0x123456789a && part->parts == 3 && part->imm == 6);
	assert_int_equal(pair_count(&p, 1, PROV_IMM), 0);
	pair_close(&p);
}

static void wr_queue_full_takes_fewer_and_loses_none(void **state)
{
	/* Goal: P5: post takes what fits; the rest fits after DONE was polled. */
	static struct pair p;
	struct sim_cfg cfg = { .post_depth = 5, .max_delay_ns = 10 * PAIR_US };
	struct prov_wr wr[8];

	(void)state;
	pair_open_path(&p, &cfg);
	for (uint32_t i = 0; i < 8; i++)
		wr[i] = (struct prov_wr){ .token = i,
			                  .src = p.src,
			                  .len_bytes = 16,
			                  .local_key = p.src_key,
			                  .remote_key = p.dst_key,
			                  .remote_addr = (uint64_t)(uintptr_t)p.dst };
	assert_int_equal(p.ops->post(p.path[0], wr, 8), 5);
	assert_int_equal(p.ops->post(p.path[0], wr + 5, 3), 0);
	assert_true(sim_faults(p.world, SIM_QUEUE_FULL) > 0);
	pair_run(&p);
	assert_int_equal(p.ops->post(p.path[0], wr + 5, 3), 3);
	pair_run(&p);
	for (uint32_t i = 0; i < 8; i++)
		assert_int_equal(pair_done(&p, i)->status, WIMM_OK);
	pair_close(&p);
}

static void wr_cancelled_comes_back_and_its_source_is_not_read_again(void **state)
{
	/* Goal: cancel at any moment: one DONE at once; what had begun goes on from a copy, also
	 * without memory for one; without PROV_CQE_SENT nothing lands. */
	static struct pair p;
	static uint8_t pattern[sizeof(p.src)];
	struct sim_cfg cfg = { .max_delay_ns = 50 * PAIR_US, .late_ns = 100 * PAIR_US };
	uint32_t sent = 0, unsent = 0;

	(void)state;
	for (uint64_t seed = 0; seed < 150; seed++) {
		const struct prov_cqe *done;

		cfg.seed = seed;
		cfg.profile = profiles[seed % 3];
		pair_open_path(&p, &cfg);
		memcpy(pattern, p.src, sizeof(pattern));
		pair_write(&p, 1, 0, sizeof(p.src), PROV_WR_IMM, 9);
		pair_run_until(&p, sim_world_now_ns(p.world) + (seed % 70) * PAIR_US);
		if (pair_count(&p, 0, PROV_DONE) > 0) {
			pair_close(&p);
			continue;
		}
		mem_fail_nth(seed % 2);
		p.ops->cancel(p.path[0], 1);
		mem_fail_nth(0);
		pair_poll(&p, 0);
		done = pair_done(&p, 1);
		assert_int_equal(done->status, WIMM_E_CANCELLED);
		memset(p.src, 0, sizeof(p.src));
		pair_run(&p);
		pair_done(&p, 1);
		if (done->flags & PROV_CQE_SENT) {
			sent++;
			assert_int_equal(pair_count(&p, 1, PROV_IMM), 1);
			assert_memory_equal(p.dst, pattern, sizeof(pattern));
		} else {
			unsent++;
			assert_int_equal(pair_count(&p, 1, PROV_IMM), 0);
			for (size_t k = 0; k < sizeof(p.dst); k++)
				assert_int_equal(p.dst[k], 0xee);
		}
		pair_close(&p);
	}
	assert_true(sent > 15 && unsent > 15);
}

static void wr_cancelled_half_way_is_in_place_when_its_region_is_released(void **state)
{
	/* Goal: without order there is no request to wait for behind a cancelled one; what is left
	 * of it is there before its region goes, never later, and costs no path. */
	static struct pair p;
	static uint8_t before[sizeof(p.dst)];
	struct sim_cfg cfg = { .profile = "efa", .max_delay_ns = 50 * PAIR_US };
	uint32_t sent = 0;

	(void)state;
	for (uint64_t seed = 0; seed < 50; seed++) {
		cfg.seed = seed;
		pair_open_path(&p, &cfg);
		pair_write(&p, 1, 0, sizeof(p.src), PROV_WR_IMM, 9);
		pair_run_until(&p, sim_world_now_ns(p.world) + seed * PAIR_US);
		if (pair_count(&p, 0, PROV_DONE) == 0)
			p.ops->cancel(p.path[0], 1);
		pair_poll(&p, 0);
		if (pair_count(&p, 0, PROV_DONE) != 0)
			sent += (pair_done(&p, 1)->flags & PROV_CQE_SENT) != 0;
		p.ops->dereg(p.side[1].dev, p.dst_key);
		memcpy(before, p.dst, sizeof(before));
		pair_run(&p);
		assert_memory_equal(p.dst, before, sizeof(before));
		assert_int_equal(pair_count(&p, 0, PROV_PATH_DOWN), 0);
		assert_int_equal(pair_count(&p, 1, PROV_PATH_DOWN), 0);
		pair_close(&p);
	}
	assert_true(sent > 5);
}

static void wr_accepted_is_in_place_when_its_region_is_released(void **state)
{
	/* Goal: profile "late": releasing a key first places what was acked by it. */
	static struct pair p;
	static uint8_t before[sizeof(p.dst)];
	struct sim_cfg cfg = { .profile = "late", .late_ns = 500 * PAIR_US };

	(void)state;
	pair_open_path(&p, &cfg);
	pair_write(&p, 1, 0, sizeof(p.src), PROV_WR_IMM, 9);
	pair_poll(&p, 1);
	pair_poll(&p, 0);
	assert_int_equal(pair_done(&p, 1)->status, WIMM_OK);
	assert_int_equal(pair_count(&p, 1, PROV_IMM), 0);
	p.ops->dereg(p.side[1].dev, p.dst_key);
	assert_memory_equal(p.dst, p.src, sizeof(p.src));
	memcpy(before, p.dst, sizeof(before));
	pair_run(&p);
	assert_int_equal(pair_count(&p, 1, PROV_IMM), 1);
	assert_memory_equal(p.dst, before, sizeof(before));
	pair_close(&p);
}

static void wr_on_a_slow_link_takes_its_time(void **state)
{
	/* Goal: 10 writes of 1000 bytes over 1 MB/s end after 10 ms, one behind the other. */
	static struct pair p;
	uint64_t start_ns;

	(void)state;
	pair_open_path(&p, &(struct sim_cfg){ .link_bytes_per_s = 1000000 });
	start_ns = sim_world_now_ns(p.world);
	for (uint32_t i = 0; i < 10; i++)
		pair_write(&p, i, 0, 1000, 0, 0);
	pair_run_until(&p, start_ns + 5500 * PAIR_US);
	assert_int_equal(pair_count(&p, 0, PROV_DONE), 5);
	pair_run(&p);
	assert_int_equal(sim_world_now_ns(p.world), start_ns + 10000 * PAIR_US);
	pair_close(&p);
}

static void wr_against_the_rules_is_found_out(void **state)
{
	/* Goal: what prov.h forbids its user is recorded and does not land. */
	static struct pair p;

	(void)state;
	for (int i = 0; i < 4; i++) {
		struct prov_wr wr = { .token = 5,
			              .src = p.src,
			              .len_bytes = 8,
			              .remote_addr = (uint64_t)(uintptr_t)p.dst };

		pair_open_path(&p, &(struct sim_cfg){ .max_write_bytes = 16 });
		wr.local_key = i == 0 ? 42 : p.src_key;
		wr.remote_key = p.dst_key;
		wr.len_bytes = i == 1 ? 17 : 8;
		wr.src = i == 2 ? p.dst : p.src;
		wr.flags = i == 3 ? PROV_WR_IMM | PROV_WR_PART : 0;
		assert_int_equal(p.ops->post(p.path[0], &wr, 1), 1);
		pair_run(&p);
		assert_int_equal(pair_done(&p, 5)->status, WIMM_E_INTERNAL);
		assert_non_null(sim_violation(p.world));
		assert_int_equal(p.dst[0], 0xee);
		p.ops->close(p.side[0].dev);
		p.ops->close(p.side[1].dev);
		sim_world_close(p.world);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(wr_bytes_are_in_place_before_the_immediate),
		cmocka_unit_test(wr_acked_early_may_not_be_visible_yet),
		cmocka_unit_test(wr_source_changed_before_done_shows_at_the_receiver),
		cmocka_unit_test(wr_order_is_kept_by_rc_and_by_nobody_else),
		cmocka_unit_test(wr_empty_counts_its_immediate_and_efa_wants_a_target),
		cmocka_unit_test(wr_to_a_wrong_key_or_range_costs_the_path_and_no_memory),
		cmocka_unit_test(wr_lost_is_told_honestly),
		cmocka_unit_test(wr_resent_is_applied_twice_and_counted_once),
		cmocka_unit_test(wr_part_is_reported_with_its_operation),
		cmocka_unit_test(wr_queue_full_takes_fewer_and_loses_none),
		cmocka_unit_test(wr_cancelled_comes_back_and_its_source_is_not_read_again),
		cmocka_unit_test(wr_cancelled_half_way_is_in_place_when_its_region_is_released),
		cmocka_unit_test(wr_accepted_is_in_place_when_its_region_is_released),
		cmocka_unit_test(wr_on_a_slow_link_takes_its_time),
		cmocka_unit_test(wr_against_the_rules_is_found_out),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
