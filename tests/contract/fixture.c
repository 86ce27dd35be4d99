/* SPDX-License-Identifier: Apache-2.0 */
#include "contract/fixture_int.h"

#include "base/alloc.h"
#include "base/config.h"
#include "core/engine.h"
#include "prov/sim/sim.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#define GUARD_BYTES 256
#define GUARD_BYTE  0xa5

struct contract_cfg cfg = { "tcp", "", 1, false };

static struct sim_world *world;
static struct case_block {
	struct case_block *next;
	max_align_t bytes[];
} * case_blocks;
static uint64_t blocks_before;
static unsigned fds_before, threads_before;

/* --- nodes --- */

/* The i-th device of a node: nodes that share one talk inside its driver, past whatever disturbs
 * the links, so each begins behind the one before, round the devices of the guest. */
static uint32_t rxe_of(uint32_t node_first, uint32_t i)
{
	const char *devices = getenv("RXE_NICS");
	uint32_t total = devices != NULL ? (uint32_t)strtoul(devices, NULL, 10) : 0;

	return total != 0 ? (node_first + i) % total : i;
}

struct wimm_engine_opts node_opts_nics(uint32_t count)
{
	static char text[16 * 32];
	static uint32_t rxe_first;
	struct wimm_engine_opts o = WIMM_ENGINE_OPTS_INIT;
	size_t len = 0;

	/* A busy machine under a sanitizer is silent for long. Tests of silence say their own; and
	 * verbs derives the retries of its queue pairs from it. */
	if (strcmp(cfg.provider, "verbs") != 0)
		o.peer_timeout_ms = 20000;
	for (uint32_t i = 0; i < count; i++) {
		if (strcmp(cfg.provider, "verbs") == 0)
			len += (size_t)snprintf(text + len, sizeof(text) - len, "rxe%u,",
			                        rxe_of(rxe_first, i));
		else if (strcmp(cfg.provider, "tcp") != 0)
			len += (size_t)snprintf(text + len, sizeof(text) - len, "any,");
		else
			len += (size_t)snprintf(text + len, sizeof(text) - len, "127.0.0.%u:0,",
			                        i + 1);
	}
	rxe_first += count;
	text[len - 1] = '\0';
	o.provider = cfg.provider;
	o.nics = text;
	o.progress = cfg.driven ? WIMM_PROGRESS_CALLER : WIMM_PROGRESS_THREADS;
	o.max_ops = 1024;
	return o;
}

struct wimm_engine_opts node_opts(void)
{
	return node_opts_nics(cfg.nics);
}

static void on_event(void *context, const struct wimm_peer_event *event)
{
	struct node *n = context;

	gate_lock();
	if (n->event_count < EVENTS_MAX) {
		n->event[n->event_count] = *event;
		n->event[n->event_count++].text = NULL;
		snprintf(n->event_text, sizeof(n->event_text), "%s", event->text);
	}
	gate_unlock();
}

uint32_t node_events(struct node *n, wimm_peer_event_kind kind)
{
	uint32_t count = 0;

	gate_lock();
	for (uint32_t i = 0; i < n->event_count; i++)
		count += n->event[i].kind == kind;
	gate_unlock();
	return count;
}

struct event_goal {
	struct node *node;
	wimm_peer_event_kind kind;
	uint32_t count;
};

static bool events_are(void *arg)
{
	struct event_goal *g = arg;

	return node_events(g->node, g->kind) >= g->count;
}

void node_wait_events(struct node *n, wimm_peer_event_kind kind, uint32_t count)
{
	struct event_goal g = { n, kind, count };

	assert_wait(events_are, &g);
}

void *case_memory(size_t bytes)
{
	struct case_block *b = calloc(1, sizeof(*b) + bytes);

	assert_non_null(b);
	b->next = case_blocks;
	case_blocks = b;
	return b->bytes;
}

static void case_memory_free(void)
{
	while (case_blocks != NULL) {
		struct case_block *b = case_blocks;

		case_blocks = b->next;
		free(b);
	}
}

void *case_world(void)
{
	return world;
}

wimm_status engine_open_here(const struct wimm_engine_opts *opts, struct wimm_engine **out)
{
	struct engine_env env = { .world = world };

	return world != NULL ? engine_open_in(opts, &env, out) : wimm_engine_open(opts, out);
}

/* Whether regions lie in memory of wimm's own. */
static bool own_memory(void)
{
	return strcmp(cfg.profile, "own") == 0;
}

static uint8_t *block_new(uint64_t bytes)
{
	void *block = NULL;

	if (own_memory())
		assert_ok(wimm_alloc(bytes, NULL, &block));
	else
		block = calloc(1, bytes);
	assert_non_null(block);
	return block;
}

static bool block_free(uint8_t *block)
{
	if (own_memory())
		return wimm_free(block) == WIMM_OK;
	free(block);
	return true;
}

struct node *node_open_with(const struct wimm_engine_opts *opts, uint64_t bytes)
{
	struct node *n = calloc(1, sizeof(*n));
	struct wimm_engine_opts o = *opts;
	unsigned i = 0;

	assert_non_null(n);
	while (case_nodes[i] != NULL)
		assert_true(++i < NODES_MAX);
	case_nodes[i] = n;
	if (o.on_peer_event == NULL) {
		o.on_peer_event = on_event;
		o.context = n;
	}
	if (engine_open_here(&o, &n->engine) != WIMM_OK)
		fail_msg("open: %s", wimm_last_error_text());
	assert_ok(wimm_main_address(n->engine, &n->addr));
	if (bytes == 0)
		return n;
	n->bytes = bytes;
	n->block = block_new(bytes + 2 * GUARD_BYTES);
	memset(n->block, GUARD_BYTE, GUARD_BYTES);
	memset(n->block + GUARD_BYTES + bytes, GUARD_BYTE, GUARD_BYTES);
	n->mem = n->block + GUARD_BYTES;
	assert_ok(wimm_reg_mr(n->engine, n->mem, bytes, NULL, &n->mr));
	assert_ok(wimm_mr_get_desc(n->mr, &n->desc));
	return n;
}

struct node *node_open_apart(const struct wimm_engine_opts *opts, uint64_t bytes)
{
	struct node *n;

	/* The case drives it when it comes to that, which on a busy machine may be late. */
	assert_ok(config_set("hello_timeout_ms", "30000"));
	n = node_open_with(opts, bytes);
	config_reload();
	n->apart = true;
	return n;
}

struct node *node_open(uint64_t bytes)
{
	struct wimm_engine_opts o = node_opts();

	return node_open_with(&o, bytes);
}

void node_close(struct node *n)
{
	assert_ok(wimm_engine_close(&n->engine));
	assert_null(n->engine);
	n->mr = NULL;
}

void node_forget(struct node *n)
{
	n->engine = NULL;
}

struct wimm_remote_mr *remote_of(struct node *from, const struct node *to)
{
	struct wimm_remote_mr *r = NULL;

	if (wimm_open_remote_mr(from->engine, &to->desc, &r) != WIMM_OK)
		fail_msg("open_remote_mr: %s", wimm_last_error_text());
	assert_int_equal(wimm_remote_mr_len_bytes(r), to->bytes);
	return r;
}

wimm_peer peer_of(struct node *from, const struct node *to)
{
	wimm_peer p = 0;

	if (wimm_add_peer(from->engine, &to->addr, NULL, &p) != WIMM_OK)
		fail_msg("add_peer: %s", wimm_last_error_text());
	assert_true(p != 0);
	return p;
}

struct wimm_engine_stats stats_of(struct node *n)
{
	struct wimm_engine_stats s = WIMM_ENGINE_STATS_INIT;

	assert_ok(wimm_engine_get_stats(n->engine, &s));
	return s;
}

uint64_t refused_submissions(struct node *n)
{
	/* Acquire, with op_get(): they had looked at their arguments. */
	return atomic_load_explicit(&n->engine->worker.stats.again, memory_order_acquire);
}

uint32_t blocked_submitters(struct node *n)
{
	return atomic_load(&n->engine->worker.room_waiters);
}

struct pair {
	struct node *a, *b;
	uint32_t before_a, before_b;
};

static bool both_up(void *arg)
{
	struct pair *p = arg;

	return stats_of(p->a).peers_up != 0 && stats_of(p->b).peers_up != 0;
}

void connect_nodes(struct node *a, struct node *b)
{
	struct pair p = { .a = a, .b = b };

	(void)peer_of(a, b);
	assert_wait(both_up, &p);
}

/* --- before and after a case --- */

static unsigned count_entries(const char *path)
{
	DIR *dir = opendir(path);
	unsigned n = 0;

	if (dir == NULL)
		return 0;
	while (readdir(dir) != NULL)
		n++;
	closedir(dir);
	return n;
}

static bool threads_are_back(void *arg)
{
	(void)arg;
	return count_entries("/proc/self/task") <= threads_before;
}

static void open_world(void)
{
	struct sim_cfg c = { .seed = 1, .max_delay_ns = 30000, .late_ns = 200000 };

	if (strcmp(cfg.provider, "sim") != 0)
		return;
	c.profile = cfg.profile;
	assert_ok(sim_world_open(&c, &world));
}

int case_setup(void **state)
{
	(void)state;
	if (!gate_init())
		return -1;
	results_reset();
	blocks_before = mem_live_blocks();
	fds_before = count_entries("/proc/self/fd");
	threads_before = count_entries("/proc/self/task");
	open_world();
	return 0;
}

/* Close what the case has left open; says what is wrong with a node's guards. */
static bool node_end(struct node *n)
{
	bool ok = true;

	if (n->engine != NULL && wimm_engine_close(&n->engine) != WIMM_OK) {
		print_error("a node cannot be closed\n");
		return false;
	}
	if (n->block != NULL)
		ok = all_are(n->block, GUARD_BYTES, GUARD_BYTE) &&
		     all_are(n->mem + n->bytes, GUARD_BYTES, GUARD_BYTE);
	if (!ok)
		print_error("guard bytes of a region were overwritten\n");
	if (!block_free(n->block)) {
		print_error("the memory of a closed node is not free\n");
		ok = false;
	}
	free(n);
	return ok;
}

void node_done(struct node *n)
{
	for (unsigned i = 0; i < NODES_MAX; i++)
		if (case_nodes[i] == n)
			case_nodes[i] = NULL;
	assert_true(node_end(n));
}

int case_teardown(void **state)
{
	bool ok = true;
	const char *violation = NULL;

	(void)state;
	mem_fail_nth(0);
	for (unsigned i = 0; i < NODES_MAX; i++) {
		if (case_nodes[i] == NULL)
			continue;
		ok = node_end(case_nodes[i]) && ok;
		case_nodes[i] = NULL;
	}
	if (world != NULL) {
		violation = sim_violation(world);
		if (violation != NULL)
			print_error("the provider was misused: %s\n", violation);
		ok = ok && violation == NULL;
		sim_world_close(world);
		world = NULL;
	}
	case_memory_free();
	ok = results_are_right() && ok;
	if (mem_live_blocks() != blocks_before) {
		print_error("%lld blocks of memory leaked\n",
		            (long long)(mem_live_blocks() - blocks_before));
		ok = false;
	}
	if (count_entries("/proc/self/fd") != fds_before) {
		print_error("%u descriptors open, %u before\n", count_entries("/proc/self/fd"),
		            fds_before);
		ok = false;
	}
	if (!test_wait_until(threads_are_back, NULL, TEST_DEADLINE_MS)) {
		print_error("threads left over\n");
		ok = false;
	}
	return ok ? 0 : -1;
}
