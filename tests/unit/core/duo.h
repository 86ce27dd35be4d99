/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_CORE_DUO_H
#define TESTS_UNIT_CORE_DUO_H

/* Two engines driven by hand over NICs of sim, whose internals a test looks into. */

#include "lib/test.h"

#include "core/engine.h"
#include "prov/sim/sim.h"

#include <wimm/imm.h>
#include <wimm/region.h>
#include <wimm/transfer.h>

#include <string.h>

enum { BYTES = 1 << 16, IMM = 5 };

struct duo {
	struct sim_world *world;
	uint64_t step_ns; /* of virtual time, with sim_cfg.virtual_time; else 0 */
	struct wimm_engine *a, *b;
	struct wimm_mr *from, *into;
	struct wimm_remote_mr *to;
	uint8_t src[BYTES], dst[BYTES];
	uint64_t flag;
};

static struct wimm_engine *duo_engine(struct sim_world *world, const char *nics, bool virtual_time)
{
	struct wimm_engine_opts opts = WIMM_ENGINE_OPTS_INIT;
	struct engine_env env = { .now_ns = virtual_time ? sim_world_now_ns : NULL,
		                  .clock_ctx = world,
		                  .world = world };
	struct wimm_engine *engine;

	opts.provider = "sim";
	opts.nics = nics;
	opts.progress = WIMM_PROGRESS_CALLER;
	assert_ok(engine_open_in(&opts, &env, &engine));
	return engine;
}

/* a writes to b. */
static void duo_open(struct duo *d, const struct sim_cfg *cfg, const char *nics_a,
                     const char *nics_b)
{
	struct wimm_mr_desc desc;

	memset(d, 0, sizeof(*d));
	for (uint32_t i = 0; i < BYTES; i++)
		d->src[i] = (uint8_t)(i * 3 + i / 256);
	assert_ok(sim_world_open(cfg, &d->world));
	d->step_ns = cfg->virtual_time ? 100000 : 0;
	d->a = duo_engine(d->world, nics_a, cfg->virtual_time);
	d->b = duo_engine(d->world, nics_b, cfg->virtual_time);
	assert_ok(wimm_reg_mr(d->a, d->src, BYTES, NULL, &d->from));
	assert_ok(wimm_reg_mr(d->b, d->dst, BYTES, NULL, &d->into));
	assert_ok(wimm_mr_get_desc(d->into, &desc));
	assert_ok(wimm_open_remote_mr(d->a, &desc, &d->to));
}

static void duo_close(struct duo *d)
{
	assert_ok(wimm_engine_close(&d->a));
	assert_ok(wimm_engine_close(&d->b));
	assert_null(sim_violation(d->world));
	sim_world_close(d->world);
}

static void duo_step(struct duo *d)
{
	assert_ok(wimm_progress(d->a, NULL));
	assert_ok(wimm_progress(d->b, NULL));
	if (d->step_ns != 0)
		sim_world_advance(d->world, sim_world_now_ns(d->world) + d->step_ns);
}

static bool duo_settled(void *arg)
{
	duo_step(arg);
	return wimm_flag_load(&((struct duo *)arg)->flag) != 0;
}

/* How a scatter ends. */
static int64_t duo_scatter(struct duo *d, const struct wimm_scatter_entry *entries, uint64_t count)
{
	struct wimm_on_done done = { .flag = &d->flag };
	struct wimm_scatter s = WIMM_SCATTER_INIT;

	d->flag = 0;
	s.flags = WIMM_IMM;
	s.imm = IMM;
	s.src = d->from;
	s.entries = entries;
	s.count = count;
	assert_ok(wimm_submit_scatter(d->a, &s, &done, NULL));
	assert_true(test_wait_until(duo_settled, d, TEST_DEADLINE_MS));
	return wimm_flag_load(&d->flag);
}

struct duo_count {
	struct duo *duo;
	uint64_t wanted;
};

static bool duo_counted(void *arg)
{
	struct duo_count *c = arg;
	uint64_t count;

	duo_step(c->duo);
	assert_ok(wimm_poll_imm(c->duo->b, IMM, &count));
	return count == c->wanted;
}

/* So many immediates have come to b. */
static void duo_reaches(struct duo *d, uint64_t wanted)
{
	struct duo_count c = { d, wanted };

	assert_true(test_wait_until(duo_counted, &c, TEST_DEADLINE_MS));
}

#endif
