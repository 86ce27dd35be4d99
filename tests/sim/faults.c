/* SPDX-License-Identifier: Apache-2.0 */
/* What goes wrong, and whom it excuses. */
#include "run.h"

#include <string.h>

/* Called inside the world: only notes whose losses are excused. */
void faults_listen(void *context, enum sim_fault kind, uint32_t nic)
{
	struct run *run = context;

	switch (kind) {
	case SIM_BAD_KEY:
		run->bad_keys += !run->corrupts; /* nobody made it so */
		node_spoil(run, nic_node(nic));
		return;
	case SIM_LOSS_UNSENT:
	case SIM_LOSS_UNKNOWN:
	case SIM_LOSS_LANDED:
	case SIM_PATH_REFUSED:
	case SIM_NIC_DEATH:
		node_spoil(run, nic_node(nic));
		return;
	default:
		return; /* delays and limits excuse nothing */
	}
}

static uint32_t any_nic(struct run *run, uint32_t n)
{
	return nic_number(n, (uint32_t)draw(run, 0, run->node[n].nics - 1));
}

static void kill_engine(struct run *run, uint32_t n, uint32_t silent)
{
	if (!run->ending && node_alive(run, n))
		node_kill(run, n, silent != 0);
}

static void close_engine(struct run *run, uint32_t n, uint32_t unused)
{
	(void)unused;
	if (!run->ending && node_alive(run, n))
		node_close(run, n);
}

static void revive_nic(struct run *run, uint32_t number, uint32_t life)
{
	struct node *node = &run->node[nic_node(number)];

	if (!node->engine || node->closing || node->life != life || node->nics_dead == 0)
		return;
	say(run, "NIC %u works again", number);
	node->nics_dead--;
	sim_revive_nic(run->world, number);
}

/* The last NIC stays: an engine without any has nothing left to check. */
static void kill_nic(struct run *run, uint32_t n, uint32_t silent)
{
	struct node *node = &run->node[n];
	uint32_t number;

	if (run->ending || !node_acts(run, n) || node->nics_dead + 1 >= node->nics)
		return;
	if (node->nics_dead != 0)
		return; /* whichever it is, it comes back first */
	number = any_nic(run, n);
	node->nics_dead++;
	node_spoil(run, n);
	sim_kill_nic(run->world, number, silent != 0);
	if (chance(run, 70))
		run_at(run, run_now(run) + draw(run, 20, 5000) * US, revive_nic, number,
		       node->life);
}

static void block_until(struct run *run, uint64_t at_ns)
{
	if (at_ns > run->blocked_until_ns)
		run->blocked_until_ns = at_ns;
}

static void thaw(struct run *run, uint32_t n, uint32_t life)
{
	struct node *node = &run->node[n];

	if (!node->engine || !node->frozen || node->life != life)
		return;
	say(run, "node %u thaws", n);
	sim_thaw(run->world, node->instance);
	node->frozen = false;
	node->busy = true;
}

void freeze(struct run *run, uint32_t n, uint32_t us)
{
	struct node *node = &run->node[n];

	if (run->ending || !node_alive(run, n) || node->frozen)
		return;
	say(run, "node %u freezes for %u us", n, us);
	if (us * US * 2 > run->peer_timeout_ns)
		node_spoil(run, n);
	for (uint32_t i = 0; i < run->recs; i++)
		if (run->rec[i].node == n && run->rec[i].state != REC_SETTLED)
			run->rec[i].no_slack = true;
	sim_freeze(run->world, node->instance);
	node->frozen = true;
	node->frozen_ns = run_now(run);
	block_until(run, run_now(run) + us * US);
	run_at(run, run_now(run) + us * US, thaw, n, node->life);
}

static void heal(struct run *run, uint32_t nic_a, uint32_t nic_b)
{
	sim_heal(run->world, nic_a, nic_b);
}

/* All NICs of two nodes, or one pair of them. */
static void partition(struct run *run, uint32_t a, uint32_t us)
{
	uint32_t b = (a + 1 + (uint32_t)draw(run, 0, run->nodes - 2)) % run->nodes;
	bool one = chance(run, 40);

	if (run->ending)
		return;
	say(run, "nodes %u and %u cannot talk%s for %u us", a, b, one ? " on one NIC pair" : "",
	    us);
	if (us * US * 2 > run->peer_timeout_ns)
		pair_spoil(run, a, b);
	for (uint32_t i = 0; i < run->node[a].nics; i++) {
		for (uint32_t k = 0; k < run->node[b].nics; k++) {
			if (one && (i != 0 || k != 0))
				continue;
			sim_partition(run->world, nic_number(a, i), nic_number(b, k));
			run_at(run, run_now(run) + us * US, heal, nic_number(a, i),
			       nic_number(b, k));
		}
	}
	block_until(run, run_now(run) + us * US);
	run->node[a].frozen_ns = run->node[b].frozen_ns = run_now(run);
}

static void lose(struct run *run, uint32_t n, uint32_t kind)
{
	if (!run->ending)
		sim_lose_next(run->world, any_nic(run, n), (enum sim_fault)kind,
		              (uint32_t)draw(run, 1, 2));
}

static void corrupt(struct run *run, uint32_t n, uint32_t unused)
{
	(void)unused;
	if (run->ending)
		return;
	run->corrupts = true;
	sim_corrupt_next(run->world, any_nic(run, n), 1);
}

static void remove_peer(struct run *run, uint32_t n, uint32_t other)
{
	wimm_peer peer;

	if (run->ending || !node_acts(run, n) || !node_alive(run, other) || n == other)
		return;
	pair_spoil(run, n, other);
	if (wimm_add_peer(run->node[n].engine, &run->node[other].addr, NULL, &peer) == WIMM_OK)
		(void)!wimm_remove_peer(run->node[n].engine, peer);
}

/* A registration that no NIC has room for is refused whole; one that fits then works. */
static void hit_lock_limit(struct run *run, uint32_t n, uint32_t unused)
{
	struct node *node = &run->node[n];
	struct wimm_mr *mr = NULL;
	uint64_t locked;
	static uint8_t memory[4096];

	(void)unused;
	if (run->ending || !node_acts(run, n) || run->cfg.max_regions != 0)
		return;
	locked = sim_locked_bytes(run->world, node->instance);
	if (locked == 0)
		return; /* its last NIC died */
	sim_set_lock_limit(run->world, locked + 2048 * (uint64_t)node->nics);
	if (wimm_reg_mr(node->engine, memory, 4096, NULL, &mr) != WIMM_E_LOCK_LIMIT ||
	    !strstr(wimm_last_error_text(), "NICs"))
		broken(run, "node %u: lock limit not told: %s", n, wimm_last_error_text());
	if (sim_locked_bytes(run->world, node->instance) != locked)
		broken(run, "node %u: a refused registration stays charged", n);
	if (wimm_reg_mr(node->engine, memory, 2048, NULL, &mr) != WIMM_OK ||
	    wimm_dereg_mr(node->engine, mr, NULL) != WIMM_OK)
		broken(run, "node %u: no room below the lock limit: %s", n, wimm_last_error_text());
	sim_set_lock_limit(run->world, 0);
}

static void hit_region_limit(struct run *run, uint32_t n, uint32_t unused)
{
	struct node *node = &run->node[n];
	struct wimm_mr *mr[32];
	uint32_t count = 0;
	static uint8_t memory[64];
	wimm_status st = WIMM_OK;

	(void)unused;
	if (run->ending || !node_acts(run, n) || run->cfg.max_regions == 0)
		return;
	while (count < 32 && st == WIMM_OK) {
		st = wimm_reg_mr(node->engine, memory, sizeof(memory), NULL, &mr[count]);
		count += st == WIMM_OK;
	}
	if (st != WIMM_E_LIMIT)
		broken(run, "node %u: region limit not told", n);
	while (count > 0)
		if (wimm_dereg_mr(node->engine, mr[--count], NULL) != WIMM_OK)
			broken(run, "node %u: a region cannot be deregistered", n);
}

static void settle_world(struct run *run, uint32_t unused, uint32_t unused2)
{
	(void)unused;
	(void)unused2;
	sim_set_loss(run->world, 0);
	sim_set_refuse(run->world, 0);
}

/* --- the plan --- */

static void plan(struct run *run, action_fn fn, uint32_t b)
{
	run_at(run, draw(run, run->end_ns / 10, run->end_ns - 1), fn,
	       (uint32_t)draw(run, 0, run->nodes - 1), b);
}

/* Short enough for peers to bear it, or long enough for them to give up. */
static uint32_t draw_pause_us(struct run *run)
{
	uint64_t timeout_us = run->peer_timeout_ns / US;

	return (uint32_t)(chance(run, 60) ? draw(run, 20, timeout_us / 2 - 100)
	                                  : draw(run, timeout_us, timeout_us * 6));
}

static void plan_hard(struct run *run)
{
	static const uint32_t losses[] = { SIM_LOSS_UNSENT, SIM_LOSS_UNKNOWN, SIM_LOSS_LANDED };

	if (chance(run, 18))
		plan(run, kill_engine, 0);
	if (chance(run, 18))
		plan(run, kill_engine, 1);
	if (chance(run, 10))
		plan(run, close_engine, 0);
	if (chance(run, 30))
		for (uint64_t i = draw(run, 1, 3); i > 0; i--)
			plan(run, kill_nic, chance(run, 30));
	if (chance(run, 10))
		run_at(run, draw(run, 0, run->end_ns - 1), remove_peer, 0, 1);
	for (uint32_t i = 0; i < 3; i++)
		if (chance(run, 14))
			plan(run, lose, losses[i]);
	if (chance(run, 14))
		plan(run, corrupt, 0);
	if (chance(run, 20)) {
		run->cfg.loss_ppm = (uint32_t)draw(run, 200, 20000);
		plan(run, settle_world, 0);
	}
	if (chance(run, 14)) {
		run->cfg.refuse_ppm = (uint32_t)draw(run, 20000, 200000);
		plan(run, settle_world, 0);
	}
}

void faults_plan(struct run *run)
{
	run->end_ns = draw(run, 4, 16) * MS;
	if (chance(run, 60))
		run->cfg.resend_ppm = (uint32_t)draw(run, 1000, 100000);
	if (chance(run, 60)) {
		run->cfg.ctl_delay_ppm = (uint32_t)draw(run, 1000, 100000);
		run->cfg.ctl_delay_ns = draw(run, 10, 800) * US;
	}
	if (chance(run, 12)) {
		run->cfg.max_regions = 12;
		plan(run, hit_region_limit, 0);
	}
	if (chance(run, 12))
		plan(run, hit_lock_limit, 0);
	if (chance(run, 30))
		plan(run, freeze, draw_pause_us(run));
	if (chance(run, 30))
		plan(run, partition, draw_pause_us(run));
	if (chance(run, 65))
		plan_hard(run);
}

void faults_heal(struct run *run)
{
	settle_world(run, 0, 0);
	for (uint32_t n = 0; n < run->nodes; n++)
		thaw(run, n, run->node[n].life);
	for (uint32_t a = 0; a < run->nodes; a++)
		for (uint32_t b = 0; b < run->nodes; b++)
			for (uint32_t i = 0; i < NICS_MAX; i++)
				for (uint32_t k = 0; k < NICS_MAX; k++)
					sim_heal(run->world, nic_number(a, i), nic_number(b, k));
}
