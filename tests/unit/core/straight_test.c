/* SPDX-License-Identifier: Apache-2.0 */
#include "unit/core/duo.h"

enum { ENTRIES = 6, EACH = 1000 };

static struct duo d;

static int64_t scatter_short(uint64_t *total)
{
	struct wimm_scatter_entry entries[ENTRIES];

	for (uint32_t i = 0; i < ENTRIES; i++)
		entries[i] = (struct wimm_scatter_entry){ d.to, i * EACH, i * 2 * EACH, EACH };
	*total += ENTRIES;
	memset(d.dst, 0, BYTES);
	return duo_scatter(&d, entries, ENTRIES);
}

static void short_arrives(uint64_t *total)
{
	assert_int_equal(scatter_short(total), 1);
	duo_reaches(&d, *total);
	for (uint32_t i = 0; i < ENTRIES; i++)
		assert_memory_equal(d.dst + i * 2 * EACH, d.src + i * EACH, EACH);
}

static struct peer *peer_b(void)
{
	return peer_real(peer_by_id(&d.a->worker, wimm_remote_mr_peer(d.to)));
}

static bool second_path_is_lost(void *arg)
{
	duo_step(&d);
	return ((struct peer *)arg)->path[1].state != PATH_UP;
}

static bool peer_is_held(void *arg)
{
	duo_step(&d);
	return ((struct peer *)arg)->hold;
}

static bool flag_is_set(void *flag)
{
	duo_step(&d);
	return wimm_flag_load(flag) != 0;
}

static void straight_writes_take_turns_on_all_nics_and_leave_a_lost_one_out(void **state)
{
	/* Goal: every NIC has as many, and none the one that is gone. */
	static const struct sim_cfg cfg = { .seed = 3 };
	struct peer *p;
	uint64_t total = 0;
	uint64_t before[2];

	(void)state;
	duo_open(&d, &cfg, "1,2", "3,4");
	short_arrives(&total); /* the session comes up */
	p = peer_b();
	assert_int_equal(p->path_count, 2);
	short_arrives(&total);
	assert_non_null(p->straight);
	for (int k = 0; k < 2; k++)
		before[k] = p->path[k].posted_marks;
	short_arrives(&total);
	for (int k = 0; k < 2; k++)
		assert_int_equal(p->path[k].posted_marks - before[k], ENTRIES / 2);
	sim_kill_nic(d.world, 2, false);
	assert_true(test_wait_until(second_path_is_lost, p, TEST_DEADLINE_MS));
	assert_true(p->straight != &p->path[1]);
	before[0] = p->path[0].posted_marks;
	short_arrives(&total);
	assert_int_equal(p->path[0].posted_marks - before[0], ENTRIES);
	duo_close(&d);
}

static void straight_write_waits_where_its_peer_is_held(void **state)
{
	/* Goal: while a CONFIRM is under way nothing is posted on paths without order, and what
	 * waits is posted then. */
	static const struct sim_cfg cfg = { .seed = 5 };
	struct wimm_write w = WIMM_WRITE_INIT;
	uint64_t total = 0, flag = 0;
	struct wimm_on_done done = { .flag = &flag };
	struct peer *p;

	(void)state;
	duo_open(&d, &cfg, "1", "2");
	short_arrives(&total);
	short_arrives(&total);
	p = peer_b();
	assert_non_null(p->straight);
	w.flags = WIMM_IMM | WIMM_CONFIRMED;
	w.imm = IMM;
	w.src = d.from;
	w.dst = d.to;
	w.len_bytes = 8;
	assert_ok(wimm_submit_single_write(d.a, &w, &done, NULL));
	total++;
	assert_true(test_wait_until(peer_is_held, p, TEST_DEADLINE_MS));
	assert_null(p->straight);
	short_arrives(&total);
	assert_true(test_wait_until(flag_is_set, &flag, TEST_DEADLINE_MS));
	assert_int_equal(wimm_flag_load(&flag), 1);
	duo_close(&d);
}

static void straight_path_that_is_full_is_back_pressure(void **state)
{
	/* Goal: more targets than the path takes wait for room; none is lost or doubled. */
	static const struct sim_cfg cfg = { .seed = 9, .post_depth = 2, .max_delay_ns = 100000 };
	uint64_t total = 0;

	(void)state;
	duo_open(&d, &cfg, "1", "2");
	for (int i = 0; i < 20; i++)
		short_arrives(&total);
	duo_close(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(straight_writes_take_turns_on_all_nics_and_leave_a_lost_one_out),
		cmocka_unit_test(straight_write_waits_where_its_peer_is_held),
		cmocka_unit_test(straight_path_that_is_full_is_back_pressure),
	};

	return cmocka_run_group_tests_name("core/straight", tests, NULL, NULL);
}
