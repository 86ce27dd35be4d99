/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes and what they hold: engines, regions, handles on each other's regions. */
#include "run.h"

#include <stdio.h>
#include <string.h>

#define LEAVE_US 4000u

uint32_t nic_number(uint32_t n, uint32_t nic)
{
	return (n + 1) * 10 + nic;
}

uint32_t nic_node(uint32_t number)
{
	return number / 10 - 1;
}

bool node_alive(const struct run *run, uint32_t n)
{
	return run->node[n].engine && !run->node[n].closing;
}

bool node_acts(const struct run *run, uint32_t n)
{
	return node_alive(run, n) && !run->node[n].frozen;
}

void pair_spoil(struct run *run, uint32_t a, uint32_t b)
{
	run->spoils++;
	run->dirty[a][b] = run->lossy[a][b] = true;
	run->dirty[b][a] = run->lossy[b][a] = true;
}

void node_spoil(struct run *run, uint32_t n)
{
	for (uint32_t i = 0; i < run->nodes; i++)
		pair_spoil(run, n, i);
}

void node_leaves(struct run *run, uint32_t n)
{
	run->spoils++;
	for (uint32_t i = 0; i < run->nodes; i++)
		run->dirty[n][i] = run->dirty[i][n] = true;
}

bool pair_lossless(const struct run *run, uint32_t a, uint32_t b)
{
	return !run->lossy[a][b];
}

bool pair_clean(const struct run *run, uint32_t a, uint32_t b)
{
	return !run->dirty[a][b];
}

/* What a NIC over there has acknowledged may not be in place yet, and never is when its path ends
 * before. A leaver waits for its peers to count it; one that does not wait loses it. */
static void node_hurries(struct run *run, uint32_t n)
{
	if (run->cfg.profile[0] != 'l')
		return;
	say(run, "node %u has not waited for its peers", n);
	for (uint32_t i = 0; i < run->nodes; i++)
		run->lossy[n][i] = true;
}

/* --- peers --- */

uint32_t node_of(const struct run *run, const uint8_t *instance)
{
	for (uint32_t n = 0; n < run->nodes; n++)
		if (memcmp(run->node[n].instance, instance, sizeof(run->node[n].instance)) == 0)
			return n;
	return NONE; /* of a former life */
}

/* Lost without a goodbye: what nobody has consumed yet goes with it. */
static void peer_dropped(struct run *run, const struct node *n, const uint8_t *instance)
{
	for (uint32_t i = 0; i < run->nodes; i++)
		if (memcmp(run->node[i].instance, instance, sizeof(run->node[i].instance)) == 0)
			run->lossy[i][n->index] = true;
}

static void on_peer_event(void *context, const struct wimm_peer_event *event)
{
	static const char *const names[] = {
		"", "up", "down", "restarted", "NIC lost", "NIC back"
	};
	struct node *n = context;
	struct run *run = n->run;
	uint32_t other = node_of(run, event->instance);

	say(run, "node %u: peer %d %s, %s: %s", n->index, (int)other, names[event->kind],
	    wimm_status_name(event->cause), event->text);
	if (event->kind == WIMM_PEER_UP && other != NONE)
		n->peer_seen[other] = event->peer;
	run->stats.pattern[PATTERN_PATH_BACK] += event->kind == WIMM_PEER_NIC_BACK;
	if (event->kind == WIMM_PEER_NIC_BACK)
		return;
	if (event->kind == WIMM_PEER_DOWN && strcmp(event->text, "it said goodbye") != 0)
		peer_dropped(run, n, event->instance);
	if (event->kind == WIMM_PEER_UP || event->kind == WIMM_PEER_RESTARTED || other == NONE)
		return;
	if (!n->closing && node_alive(run, other) && pair_clean(run, n->index, other))
		broken(run, "node %u: peer %u is %s though nothing came between: %s: %s", n->index,
		       other, names[event->kind], wimm_status_name(event->cause), event->text);
}

/* --- remote regions --- */

static void remote_drop(struct node *n, struct remote *r)
{
	if (r->handle)
		patterns_handle_closed(n->index);
	if (r->handle && wimm_close_remote_mr(n->engine, r->handle) != WIMM_OK)
		broken(n->run, "node %u: a remote region cannot be closed", n->index);
	r->handle = NULL;
}

struct wimm_remote_mr *remote_get(struct run *run, uint32_t from, uint32_t to, uint32_t mr)
{
	struct node *n = &run->node[from];
	struct node *t = &run->node[to];
	struct remote *r = &n->remote[to][mr];
	wimm_status st;

	if (!t->engine || !t->region[mr].mr)
		return NULL;
	if (r->handle && (r->node_life != t->life || r->mr_life != t->region[mr].life ||
	                  remote_usable(n->engine, r->handle) != WIMM_OK))
		remote_drop(n, r);
	if (r->handle)
		return r->handle;
	st = wimm_open_remote_mr(n->engine, &t->region[mr].desc, &r->handle);
	if (st != WIMM_OK) {
		r->handle = NULL;
		if (pair_clean(run, from, to))
			broken(run, "node %u: region of node %u cannot be opened: %s", from, to,
			       wimm_status_name(st));
		return NULL;
	}
	r->node_life = t->life;
	r->mr_life = t->region[mr].life;
	return r->handle;
}

/* --- regions --- */

static void region_renew(struct run *run, uint32_t n, uint32_t life);

static void region_open(struct run *run, uint32_t n, uint32_t mr)
{
	struct node *node = &run->node[n];
	struct region *region = &node->region[mr];
	wimm_status st;

	st = wimm_reg_mr(node->engine, mr_memory(n, mr), MR_BYTES, NULL, &region->mr);
	if (st == WIMM_E_LIMIT && run->cfg.max_regions != 0) {
		region->mr = NULL; /* others are being released */
		run_at(run, run_now(run) + 200 * US, region_renew, n, node->life);
		return;
	}
	if (st != WIMM_OK || wimm_mr_get_desc(region->mr, &region->desc) != WIMM_OK)
		broken(run, "node %u: region %u refused: %s", n, mr, wimm_last_error_text());
	region->ending = false;
}

static void region_renew(struct run *run, uint32_t n, uint32_t life)
{
	if (node_alive(run, n) && run->node[n].life == life && !run->node[n].region[MR_CHURN].mr) {
		run->stats.pattern[PATTERN_REREGISTER]++;
		region_open(run, n, MR_CHURN);
	}
}

static void on_dereg(void *context, const struct wimm_done *done)
{
	struct rec *rec = context;
	struct run *run = rec->run;
	struct node *n = &run->node[rec->node];

	rec_settled(run, rec, done);
	region_dead(run, rec->node, MR_CHURN);
	n->region[MR_CHURN].life++;
	n->region[MR_CHURN].old_desc = n->region[MR_CHURN].desc;
	n->region[MR_CHURN].has_old = true;
	if (node_alive(run, rec->node))
		run_at(run, run_now(run) + draw(run, 0, 300) * US, region_renew, rec->node,
		       n->life);
}

/* Whatever still goes there may be refused from now on. */
static void excuse_writers(struct run *run, uint32_t n, uint32_t mr)
{
	uint32_t i = run->node[n].region[mr].slot_first;

	for (; i != NONE; i = run->slot[i].next_in_mr)
		run->rec[run->slot[i].rec].excused = true;
}

void region_end(struct run *run, uint32_t n)
{
	struct node *node = &run->node[n];
	struct region *region = &node->region[MR_CHURN];
	struct wimm_on_done on_done = { .fn = on_dereg };
	struct rec *rec;

	if (!node_acts(run, n) || !region->mr || region->ending)
		return;
	rec = rec_new(run, REC_DEREG, n);
	if (!rec)
		return;
	on_done.context = rec;
	excuse_writers(run, n, MR_CHURN);
	if (wimm_dereg_mr(node->engine, region->mr, &on_done) != WIMM_OK)
		broken(run, "node %u: a live region cannot be deregistered", n);
	say(run, "node %u: rec %u deregisters region 1", n, rec->index);
	rec_accepted(run, rec);
	region->mr = NULL;
	region->ending = true;
}

/* --- life and death --- */

/* The clock of an engine. While it closes it waits inside the call, so time has to go on there. */
static uint64_t node_now(void *context)
{
	struct node *n = context;

	if (n->closing && !n->run->nested && run_now(n->run) < n->closing_until_ns)
		run_slice(n->run, n->closing_until_ns);
	return run_now(n->run);
}

static void open_engine(struct run *run, struct node *n)
{
	static const char job_key[] = "all engines of one world have it";
	struct engine_env env = { .now_ns = node_now,
		                  .clock_ctx = n,
		                  .world = run->world,
		                  .rng_seed = rng_u64(&run->rng) | 1 };
	struct wimm_engine_opts opts = WIMM_ENGINE_OPTS_INIT;
	char nics[64] = "";
	wimm_status st;

	for (uint32_t i = 0; i < n->nics; i++) {
		size_t len = strlen(nics);

		snprintf(nics + len, sizeof(nics) - len, "%s%u", i ? "," : "",
		         nic_number(n->index, i));
	}
	opts.provider = "sim";
	opts.nics = nics;
	opts.progress = WIMM_PROGRESS_CALLER;
	opts.max_ops = chance(run, 30) ? 24 : 96;
	opts.heartbeat_ms = 1;
	opts.peer_timeout_ms = (uint32_t)(run->peer_timeout_ns / MS);
	if (run->keyed) {
		opts.job_key = job_key;
		opts.job_key_bytes = sizeof(job_key) - 1;
	}
	opts.on_peer_event = on_peer_event;
	opts.context = n;
	st = engine_open_in(&opts, &env, &n->engine);
	if (st != WIMM_OK)
		broken(run, "node %u does not open: %s: %s", n->index, wimm_status_name(st),
		       wimm_last_error_text());
}

void node_open(struct run *run, uint32_t index)
{
	struct node *n = &run->node[index];
	struct wimm_mr_opts local = WIMM_MR_OPTS_INIT;

	n->run = run;
	n->index = index;
	n->busy = true;
	n->frozen = n->killed = n->closing = false;
	n->nics_dead = 0;
	n->pools = 0;
	memset(n->remote, 0, sizeof(n->remote));
	memset(n->peer_seen, 0, sizeof(n->peer_seen));
	open_engine(run, n);
	if (n->life == 0)
		for (uint32_t mr = 0; mr < MR_COUNT; mr++)
			n->region[mr].slot_first = n->region[mr].slot_last = NONE;
	if (wimm_main_address(n->engine, &n->addr) != WIMM_OK ||
	    !sim_nic_instance(run->world, nic_number(index, 0), n->instance))
		broken(run, "node %u has no address", index);
	local.flags = WIMM_MR_LOCAL_ONLY;
	if (wimm_reg_mr(n->engine, source_memory(index), SOURCE_BYTES, &local, &n->source) !=
	    WIMM_OK)
		broken(run, "node %u: source region refused: %s", index, wimm_last_error_text());
	for (uint32_t mr = 0; mr < MR_COUNT; mr++)
		region_open(run, index, mr);
	say(run, "node %u opens, life %u, %u NICs", index, n->life, n->nics);
	recvs_submit(run, index, 0);
}

static void groups_end(struct run *run, uint32_t n)
{
	for (uint32_t i = 0; i < run->groups; i++)
		if (run->group[i].node == n)
			run->group[i].live = false;
}

/* Long enough for peers that listen, or so short that it may leave before they have heard. While it
 * closes nothing thaws and no partition heals. */
static uint64_t draw_leave_us(struct run *run)
{
	bool patient = run_now(run) >= run->blocked_until_ns && chance(run, 60);

	return patient ? LEAVE_US : draw(run, 0, 600);
}

/* What is asked of it from now on is refused, and its callbacks ask for nothing more. */
void node_close(struct run *run, uint32_t index)
{
	struct node *n = &run->node[index];

	say(run, "node %u closes", index);
	n->closing = true;
	n->closing_until_ns = n->killed ? 0 : run_now(run) + draw_leave_us(run) * US;
	if (!run->ending) {
		node_leaves(run, index);
		if (n->frozen)
			sim_thaw(run->world, n->instance);
		n->frozen = false;
	}
	patterns_node_down(run, index);
	if (wimm_engine_close(&n->engine) != WIMM_OK || n->engine)
		broken(run, "node %u cannot be closed", index);
	if (!n->killed && !run->ending && run_now(run) >= n->closing_until_ns)
		node_hurries(run, index);
	for (uint32_t i = 0; i < n->pools; i++)
		if (n->pool[i].back != n->pool[i].count)
			broken(run, "node %u: %u of %u receive buffers came back", index,
			       n->pool[i].back, n->pool[i].count);
	groups_end(run, index);
	if (run->ending)
		return; /* the memory is compared as it is */
	for (uint32_t mr = 0; mr < MR_COUNT; mr++) {
		n->region[mr].mr = NULL;
		n->region[mr].has_old = false;
		n->region[mr].life++;
		region_dead(run, index, mr);
	}
	n->life++;
}

static void node_reopen(struct run *run, uint32_t n, uint32_t unused)
{
	(void)unused;
	if (run->ending || run->node[n].engine)
		return;
	run->stats.pattern[PATTERN_RESTART]++;
	node_open(run, n);
}

void node_kill(struct run *run, uint32_t index, bool silent)
{
	struct node *n = &run->node[index];

	if (!n->engine)
		return;
	say(run, "node %u is killed%s", index, silent ? " silently" : "");
	node_spoil(run, index);
	n->killed = true;
	n->killed_ns = run_now(run);
	sim_kill_engine(run->world, n->instance, silent);
	node_close(run, index);
	if (chance(run, 60))
		run_at(run, run_now(run) + draw(run, 100, 6000) * US, node_reopen, index, 0);
}
