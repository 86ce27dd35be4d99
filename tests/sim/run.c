/* SPDX-License-Identifier: Apache-2.0 */
/* The loop: who has its turn when, and how time goes on. */
#include "run.h"

#include "base/config.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Turns at one moment after which an engine is spinning for nothing. */
#define TURNS_AT_ONCE_MAX 50000u

void say(struct run *run, const char *format, ...)
{
	va_list args;

	if (!run->verbose)
		return;
	printf("[%10.3f us] ", (double)run_now(run) / 1000.0);
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
}

_Noreturn void broken(struct run *run, const char *format, ...)
{
	va_list args;

	fflush(stdout);
	fprintf(stderr, "seed %llu at %.3f us: ", (unsigned long long)run->seed,
	        (double)run_now(run) / 1000.0);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fprintf(stderr, "\nFAIL sim/seeds:%llu\nreplay: WIMM_SEED=%llu, with the same program\n",
	        (unsigned long long)run->seed, (unsigned long long)run->seed);
	fflush(stderr);
	_Exit(1);
}

uint64_t draw(struct run *run, uint64_t low, uint64_t high)
{
	return rng_between(&run->rng, low, high);
}

bool chance(struct run *run, uint32_t percent)
{
	return rng_chance(&run->rng, percent, 100) != 0;
}

uint64_t run_now(const struct run *run)
{
	return sim_world_now_ns(run->world);
}

/* --- actions: a heap by time, then by age --- */

static bool before(const struct action *a, const struct action *b)
{
	return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->seq < b->seq;
}

void run_at(struct run *run, uint64_t at_ns, action_fn fn, uint32_t a, uint32_t b)
{
	struct action one = { at_ns, ++run->action_seq, fn, a, b };
	uint32_t i = run->actions;

	if (run->actions == ACTIONS_MAX)
		return;
	run->actions++;
	for (; i > 0 && before(&one, &run->action[(i - 1) / 2]); i = (i - 1) / 2)
		run->action[i] = run->action[(i - 1) / 2];
	run->action[i] = one;
}

static struct action action_pop(struct run *run)
{
	struct action top = run->action[0];
	struct action last = run->action[--run->actions];
	uint32_t i = 0;

	for (;;) {
		uint32_t child = 2 * i + 1;

		if (child + 1 < run->actions &&
		    before(&run->action[child + 1], &run->action[child]))
			child++;
		if (child >= run->actions || !before(&run->action[child], &last))
			break;
		run->action[i] = run->action[child];
		i = child;
	}
	if (run->actions > 0)
		run->action[i] = last;
	return top;
}

/* --- turns --- */

/* What keeps a worker from sleeping, as worker_wait() sees it. A NIC's next_ns() in virtual time
 * covers only what is queued on it, so an engine that forgets something sleeps over it, too. */
static bool awake(struct run *run, struct node *n) LOOKS_INSIDE
{
	struct worker *w = &n->engine->worker;

	return n->busy || !worker_may_sleep(w) || !mpsc_empty_hint(&n->engine->deliveries) ||
	       worker_next_ns(w) <= run_now(run);
}

/* Its program does something else. */
static bool rests(const struct run *run, const struct node *n)
{
	return n->lazy_ns != 0 && !run->ending && run_now(run) < n->turn_ns;
}

static bool node_turn(struct run *run, struct node *n)
{
	int busy = 0;

	if (!n->engine || n->frozen || n->closing)
		return false;
	if (rests(run, n) || !patterns_turn(run, n->index) || !awake(run, n))
		return false;
	n->turn_ns = run_now(run) + n->lazy_ns;
	if (wimm_progress(n->engine, &busy) != WIMM_OK)
		broken(run, "node %u: progress refused", n->index);
	n->busy = busy != 0;
	return true;
}

static void turns(struct run *run)
{
	uint32_t order[NODES_MAX];
	uint32_t count = 0;
	bool any = true;

	for (uint32_t i = 0; i < run->nodes; i++)
		order[i] = i;
	while (any) {
		any = false;
		rng_shuffle_u32(&run->rng, order, run->nodes);
		for (uint32_t i = 0; i < run->nodes; i++)
			any = node_turn(run, &run->node[order[i]]) || any;
		if (++count > TURNS_AT_ONCE_MAX)
			broken(run, "engines are busy without end at one moment");
	}
	if (run->bad_keys != 0)
		broken(run, "a write went to a region that was released");
	if (sim_violation(run->world))
		broken(run, "against prov.h: %s", sim_violation(run->world));
}

static uint64_t next_ns(struct run *run) LOOKS_INSIDE
{
	uint64_t next = sim_world_next_ns(run->world);

	if (!run->nested && run->actions > 0 && run->action[0].at_ns < next)
		next = run->action[0].at_ns;
	for (uint32_t i = 0; i < run->nodes; i++) {
		struct node *n = &run->node[i];
		uint64_t own;

		if (!n->engine || n->frozen || n->closing)
			continue;
		own = worker_next_ns(&n->engine->worker);
		if (patterns_rest(run, i))
			own = patterns_rest_end_ns();
		else if (rests(run, n) && (own < n->turn_ns || awake(run, n)))
			own = n->turn_ns;
		if (own < next)
			next = own;
	}
	return next;
}

bool run_until(struct run *run, uint64_t end_ns, bool (*done)(struct run *run))
{
	for (;;) {
		uint64_t next;

		turns(run);
		if (done && done(run))
			return true;
		next = next_ns(run);
		if (next > end_ns)
			break;
		if (next > run_now(run))
			sim_world_advance(run->world, next);
		else
			sim_world_advance(run->world, run_now(run));
		while (run->actions > 0 && run->action[0].at_ns <= run_now(run)) {
			struct action a = action_pop(run);

			a.fn(run, a.a, a.b);
		}
	}
	sim_world_advance(run->world, end_ns);
	return false;
}

void run_slice(struct run *run, uint64_t limit_ns)
{
	uint64_t next;

	run->nested = true;
	turns(run);
	next = next_ns(run);
	sim_world_advance(run->world, next < limit_ns ? next : limit_ns);
	deadlines_look(run);
	turns(run);
	run->nested = false;
}

/* --- a run's frame --- */

static void trace(void *context, uint64_t now_ns, const char *line)
{
	(void)context;
	printf("[%10.3f us]     %s\n", (double)now_ns / 1000.0, line);
}

static void set(const char *name, uint64_t value)
{
	char text[32];

	snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
	if (config_set(name, text) != WIMM_OK) {
		fprintf(stderr, "setting %s=%s refused\n", name, text);
		_Exit(2);
	}
}

static void draw_settings(struct run *run)
{
	static const uint64_t batches[] = { 2, 8, 64 };

	set("log_level", run->verbose ? 2 : 0);
	set("max_peers", 128);
	set("max_regions", 64);
	set("max_msg_bytes", MSG_BYTES);
	set("hello_timeout_ms", 10);
	set("split_bytes", draw(run, 4096, 16384));
	set("post_batch", batches[draw(run, 0, 2)]);
	run->peer_timeout_ns = draw(run, 4, 8) * MS;
	run->keyed = auth_available() && chance(run, 20);
	/* A build without keys has none to miss. */
	run->stats.pattern[PATTERN_KEYED] += run->keyed || !auth_available();
}

static void draw_world(struct run *run)
{
	static const char *const profiles[] = { "rc", "efa", "late" };
	struct sim_cfg *cfg = &run->cfg;

	*cfg = (struct sim_cfg){ .seed = rng_u64(&run->rng), .virtual_time = true };
	cfg->profile = profiles[draw(run, 0, 2)];
	cfg->min_delay_ns = draw(run, 0, 3) * US;
	cfg->max_delay_ns = cfg->min_delay_ns + draw(run, 0, 60) * US;
	cfg->late_ns = draw(run, 10, 300) * US;
	cfg->notice_ns = draw(run, 0, 2000) * US;
	cfg->recycle_keys = chance(run, 40);
	cfg->no_cancel = chance(run, 25);
	cfg->post_depth = chance(run, 40) ? (uint32_t)draw(run, 2, 12) : 64;
	cfg->ctl_depth = chance(run, 25) ? 4 : 16;
	cfg->max_ctl_bytes = 16384;
	cfg->max_write_bytes = chance(run, 30) ? draw(run, 2048, 8192) : 1u << 20;
	cfg->link_bytes_per_s = chance(run, 20) ? UINT64_C(500000000) : 0;
	cfg->on_fault = faults_listen;
	cfg->fault_context = run;
	if (run->verbose)
		cfg->trace = trace;
}

void run_open(struct run *run, uint64_t seed, bool verbose)
{
	memset(run, 0, sizeof(*run));
	run->seed = seed;
	run->verbose = verbose;
	rng_init(&run->rng, seed);
	draw_settings(run);
	draw_world(run);
	run->nodes = (uint32_t)draw(run, 2, NODES_MAX);
	if (verbose)
		printf("profile %s, %u nodes, queues of %u, delay %u..%u ns, cancel %s, cut at "
		       "%u\n",
		       run->cfg.profile, run->nodes, run->cfg.post_depth,
		       (unsigned)run->cfg.min_delay_ns, (unsigned)run->cfg.max_delay_ns,
		       run->cfg.no_cancel ? "no" : "yes", (unsigned)run->cfg.max_write_bytes);
	faults_plan(run); /* probabilities become part of the world */
	fences_plan(run);
	run->stats.pattern[PATTERN_SLOW_LINK] = run->cfg.link_bytes_per_s != 0;
	if (sim_world_open(&run->cfg, &run->world) != WIMM_OK)
		_Exit(2);
	memory_reset(run);
	for (uint32_t n = 0; n < run->nodes; n++) {
		run->node[n].nics = (uint32_t)draw(run, 1, NICS_MAX);
		run->node[n].lazy_ns = chance(run, 8) ? draw(run, 20, 400) * US : 0;
		run->stats.pattern[PATTERN_LAZY] += run->node[n].lazy_ns != 0;
		node_open(run, n);
	}
}

void run_close(struct run *run)
{
	for (uint32_t n = 0; n < run->nodes; n++)
		if (run->node[n].engine)
			node_close(run, n);
	check_all_settled(run);
	check_memory(run);
	for (int kind = 0; kind < SIM_FAULT_COUNT; kind++) {
		run->stats.fault[kind] = sim_faults(run->world, (enum sim_fault)kind);
		run->stats.faults += run->stats.fault[kind];
	}
	run->stats.events = sim_events(run->world);
	run->stats.virtual_ns = run_now(run);
	if (sim_violation(run->world))
		broken(run, "against prov.h: %s", sim_violation(run->world));
	sim_world_close(run->world);
}
