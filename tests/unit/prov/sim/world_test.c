/* SPDX-License-Identifier: Apache-2.0 */
#include "pair.h"

#include "base/alloc.h"

#include <string.h>

struct story {
	char text[65536];
	size_t len;
};

static void story_line(void *context, uint64_t now_ns, const char *line)
{
	struct story *s = context;
	int n = snprintf(s->text + s->len, sizeof(s->text) - s->len, "%llu %s\n",
	                 (unsigned long long)now_ns, line);

	assert_true(n > 0 && s->len + (size_t)n < sizeof(s->text));
	s->len += (size_t)n;
}

/* A run with every random fault on; the story is what happened, then what both sides were told. */
static void story_run(uint64_t seed, struct story *s)
{
	static struct pair p;
	struct sim_cfg cfg = { .seed = seed,
		               .max_delay_ns = 90 * PAIR_US,
		               .loss_ppm = 50000,
		               .resend_ppm = 50000,
		               .trace = story_line,
		               .trace_context = s };

	s->len = 0;
	pair_open_path(&p, &cfg);
	for (uint64_t i = 0; i < 100; i++)
		assert_int_equal(pair_write(&p, i, i * 40, 40, PROV_WR_IMM, (uint32_t)i), 1);
	pair_run(&p);
	for (int side = 0; side < 2; side++) {
		for (uint32_t i = 0; i < p.side[side].events; i++) {
			const struct prov_cqe *cqe = &p.side[side].event[i];
			char line[128];

			snprintf(line, sizeof(line), "side %d: %d %d %llu %u %u", side,
			         (int)cqe->kind, (int)cqe->status, (unsigned long long)cqe->token,
			         cqe->imm, cqe->flags);
			story_line(s, 0, line);
		}
	}
	pair_close(&p);
}

static void world_with_one_seed_repeats_exactly(void **state)
{
	/* Goal: the same seed gives the same events to the letter, another seed gives others. */
	static struct story first, second, other;

	(void)state;
	story_run(5, &first);
	story_run(5, &second);
	story_run(6, &other);
	assert_string_equal(first.text, second.text);
	assert_string_not_equal(first.text, other.text);
}

static void world_of_unknown_profile_is_refused(void **state)
{
	/* Goal: a misspelt profile is an error, never a default. */
	struct sim_cfg cfg = { .profile = "eva" };
	struct sim_world *w = NULL;

	(void)state;
	assert_int_equal(sim_world_open(&cfg, &w), WIMM_E_INVAL);
	assert_null(w);
}

static void world_time_goes_only_where_it_is_sent(void **state)
{
	/* Goal: virtual time stands still without advance, and an event waits for its time. */
	static struct pair p;
	struct sim_cfg cfg = { .min_delay_ns = 10 * PAIR_US, .max_delay_ns = 10 * PAIR_US };
	uint64_t start_ns;

	(void)state;
	pair_open_path(&p, &cfg);
	start_ns = sim_world_now_ns(p.world);
	assert_int_equal(sim_world_next_ns(p.world), UINT64_MAX);
	pair_write(&p, 1, 0, 8, 0, 0);
	pair_run_until(&p, start_ns + 19 * PAIR_US);
	assert_int_equal(pair_count(&p, 0, PROV_DONE), 0);
	assert_int_equal(sim_world_now_ns(p.world), start_ns + 19 * PAIR_US);
	assert_int_equal(sim_world_next_ns(p.world), start_ns + 20 * PAIR_US);
	assert_int_equal(p.ops->next_ns(p.side[0].dev), UINT64_MAX);
	sim_world_advance(p.world, start_ns + 20 * PAIR_US);
	assert_int_equal(p.ops->next_ns(p.side[0].dev), start_ns + 20 * PAIR_US);
	pair_run_until(&p, start_ns + 20 * PAIR_US);
	assert_int_equal(pair_count(&p, 0, PROV_DONE), 1);
	assert_true(sim_events(p.world) > 0);
	pair_close(&p);
}

static void world_of_the_process_lives_from_first_to_last_nic(void **state)
{
	/* Goal: NICs without a world meet in one, and it is freed with the last of them. */
	const struct prov_ops *ops = &prov_sim_ops;
	struct prov_args args = { .nic = "any" };
	struct prov_caps caps;
	struct prov_dev *a, *b;
	struct prov_error error;
	struct prov_addr to;
	struct prov_cqe cqe;
	uint32_t n = 0;

	(void)state;
	assert_ok(ops->open(&args, &caps, &a, &error));
	assert_ok(ops->open(&args, &caps, &b, &error));
	assert_true(caps.wait_fd);
	ops->addr(b, &to);
	assert_non_null(ops->ctl_open(a, &to, NULL));
	while (n == 0)
		n = ops->poll(b, sim_world_now_ns(NULL), &cqe, 1);
	assert_int_equal(cqe.kind, PROV_CTL_NEW);
	ops->close(a);
	ops->close(b);
	assert_int_equal(mem_live_blocks(), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(world_with_one_seed_repeats_exactly),
		cmocka_unit_test(world_of_unknown_profile_is_refused),
		cmocka_unit_test(world_time_goes_only_where_it_is_sent),
		cmocka_unit_test(world_of_the_process_lives_from_first_to_last_nic),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
