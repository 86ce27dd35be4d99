/* SPDX-License-Identifier: Apache-2.0 */
/* Opening an engine, and what can be asked of it. close.c ends it. */
#include "core/args.h"
#include "core/engine.h"
#include "core/error_text.h"
#include "core/same_host.h"

#include "base/alloc.h"
#include "base/config.h"
#include "base/log.h"
#include "plat/clock.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* Grows in every forked child: an engine belongs to the process that opened it. */
static _Atomic uint32_t fork_epoch;

static void count_fork(void)
{
	atomic_fetch_add_explicit(&fork_epoch, 1, memory_order_relaxed);
}

static void watch_forks(void)
{
	(void)pthread_atfork(NULL, NULL, count_fork);
}

uint32_t engine_fork_epoch(void)
{
	/* Relaxed: changes only in a child, before any of its code runs. */
	return atomic_load_explicit(&fork_epoch, memory_order_relaxed);
}

bool engine_forked(const struct wimm_engine *engine)
{
	return engine->fork_epoch != engine_fork_epoch();
}

wimm_status engine_check(const struct wimm_engine *engine)
{
	/* A call that is refused without a word of its own must not show an earlier call's. */
	error_text_clear();
	if (engine == NULL)
		return args_null("engine");
	return engine_forked(engine) ? WIMM_E_FORKED : WIMM_OK;
}

bool engine_closing(const struct wimm_engine *engine)
{
	/* With the store in wimm_engine_close(), and behind submit_enter(). */
	return atomic_load_explicit(&engine->closing, memory_order_seq_cst) != 0;
}

uint64_t engine_now_ns(const struct wimm_engine *engine)
{
	return engine->env.now_ns != NULL ? engine->env.now_ns(engine->env.clock_ctx)
	                                  : clock_now_ns();
}

uint64_t engine_turn_ns(struct wimm_engine *engine)
{
	if (__builtin_expect(engine->env.now_ns != NULL, 0))
		return engine->env.now_ns(engine->env.clock_ctx);
	return clock_cached_ns(&engine->worker.clock);
}

/* --- NICs --- */

/* The items of a comma list. */
static wimm_status split_nics(const char *list, char (*out)[PROV_TEXT_BYTES], uint32_t *out_count)
{
	uint32_t n = 0;

	for (const char *at = list;;) {
		size_t len;

		at += strspn(at, " ");
		len = strcspn(at, ", ");
		if (n == WIMM_MAX_NICS || len == 0 || len >= PROV_TEXT_BYTES ||
		    strcspn(at + len, ",") != strspn(at + len, " ")) {
			error_text_set("NIC list \"%s\": 1 to %d items with commas between", list,
			               WIMM_MAX_NICS);
			return WIMM_E_PARSE;
		}
		memcpy(out[n], at, len);
		out[n++][len] = '\0';
		at += len;
		at += strspn(at, " ");
		if (*at == '\0')
			break;
		at++;
	}
	*out_count = n;
	return WIMM_OK;
}

void engine_close_nics(struct worker *w)
{
	while (w->dev_count != 0) {
		struct nic *nic = &w->nic[--w->dev_count];

		nic->ops->close(nic->dev);
	}
	w->nic_count = 0;
}

static wimm_status open_nic(struct wimm_engine *engine, const char *text, uint32_t index)
{
	struct worker *w = &engine->worker;
	struct nic *nic = &w->nic[index];
	struct prov_error error = { 0 };
	struct prov_args args = {
		.nic = text,
		.nic_index = index,
		.instance = engine->self.instance,
		.world = engine->env.world,
		.peer_timeout_ms = (uint32_t)(w->peer_timeout_ns / CLOCK_NS_PER_MS),
		.max_regions = engine->regions.max,
	};
	wimm_status st = w->prov->open(&args, &nic->caps, &nic->dev, &error);

	if (st != WIMM_OK) {
		error_text_set("NIC %" PRIu32 " (\"%s\") of provider %s: %s", index, text,
		               w->prov->name, error.text);
		return st;
	}
	nic->ops = w->prov;
	w->nic_count = index + 1;
	w->dev_count = w->nic_count;
	w->prov->addr(nic->dev, &nic->addr);
	engine->self.nic[index] = nic->addr;
	engine->self.nic_count = w->nic_count;
	if (nic->caps.max_ctl_bytes < w->max_msg_bytes + WIRE_MAX_OVERHEAD_BYTES)
		w->max_msg_bytes = nic->caps.max_ctl_bytes - WIRE_MAX_OVERHEAD_BYTES;
	return WIMM_OK;
}

/* What every device can, the one for neighbours included. */
static void learn_caps(struct worker *w)
{
	w->identifies_source = true;
	for (uint32_t i = 0; i < w->dev_count; i++) {
		const struct prov_caps *caps = &w->nic[i].caps;

		w->identifies_source = w->identifies_source && caps->identifies_source;
		if (caps->max_write_bytes < w->max_write_bytes)
			w->max_write_bytes = caps->max_write_bytes;
	}
}

static wimm_status open_nics(struct wimm_engine *engine, const char *list)
{
	char nics[WIMM_MAX_NICS][PROV_TEXT_BYTES];
	char setting[CONFIG_TEXT_BYTES];
	uint32_t count = 0;
	wimm_status st = WIMM_OK;

	if (list == NULL) {
		config_get_text(CFG_NICS, setting);
		list = setting[0] != '\0' ? setting : NULL;
	}
	if (list != NULL)
		st = split_nics(list, nics, &count);
	else
		count = engine->worker.prov->list_nics(nics, WIMM_MAX_NICS);
	if (st == WIMM_OK && count == 0) {
		error_text_set("provider %s finds no NIC on this machine",
		               engine->worker.prov->name);
		st = WIMM_E_NOT_FOUND;
	}
	for (uint32_t i = 0; st == WIMM_OK && i < count; i++)
		st = open_nic(engine, nics[i], i);
	if (st == WIMM_OK)
		st = same_host_open(engine);
	if (st != WIMM_OK)
		engine_close_nics(&engine->worker);
	else
		learn_caps(&engine->worker);
	return st;
}

/* --- open --- */

static wimm_status check_opts(const struct wimm_engine_opts *opts)
{
	if (!ARGS_GOOD(opts, 0))
		return ARGS_REFUSED(opts, "wimm_engine_opts", 0);
	if ((uint32_t)opts->progress > WIMM_PROGRESS_CALLER) {
		error_text_set("wimm_engine_opts.progress is %d, a mode is 0 or 1",
		               (int)opts->progress);
		return WIMM_E_INVAL;
	}
	if (opts->max_ops > 1u << 24) {
		error_text_set("max_ops %" PRIu32 ", the most are %u", opts->max_ops, 1u << 24);
		return WIMM_E_INVAL;
	}
	return WIMM_OK;
}

static void read_settings(struct wimm_engine *engine)
{
	const struct wimm_engine_opts *o = &engine->opts;
	struct worker *w = &engine->worker;
	uint64_t heartbeat_ms =
		o->heartbeat_ms != 0 ? o->heartbeat_ms : config_get_u64(CFG_HEARTBEAT_MS);
	uint64_t timeout_ms =
		o->peer_timeout_ms != 0 ? o->peer_timeout_ms : config_get_u64(CFG_PEER_TIMEOUT_MS);
	uint64_t shortest;

	w->max_ops = o->max_ops != 0 ? o->max_ops : (uint32_t)config_get_u64(CFG_MAX_OPS);
	w->heartbeat_ns = heartbeat_ms * CLOCK_NS_PER_MS;
	w->peer_timeout_ns = timeout_ms * CLOCK_NS_PER_MS;
	w->hello_timeout_ns = config_get_u64(CFG_HELLO_TIMEOUT_MS) * CLOCK_NS_PER_MS;
	w->post_batch = (uint32_t)config_get_u64(CFG_POST_BATCH);
	if (w->post_batch > sizeof(w->wr) / sizeof(w->wr[0]))
		w->post_batch = sizeof(w->wr) / sizeof(w->wr[0]);
	w->split_bytes = config_get_u64(CFG_SPLIT_BYTES);
	w->max_msg_bytes = (uint32_t)config_get_u64(CFG_MAX_MSG_BYTES);
	w->max_peers = (uint32_t)config_get_u64(CFG_MAX_PEERS);
	w->index_bytes_limit = config_get_u64(CFG_INDEX_BYTES_LIMIT);
	w->spin_ns = config_get_u64(CFG_SPIN_US) * CLOCK_NS_PER_US;
	w->busy_poll = config_get_bool(CFG_BUSY_POLL);
	w->max_write_bytes = UINT64_MAX;
	shortest = w->heartbeat_ns < w->peer_timeout_ns ? w->heartbeat_ns : w->peer_timeout_ns;
	shortest = shortest < w->hello_timeout_ns ? shortest : w->hello_timeout_ns;
	w->scan_every_ns = shortest / 2 != 0 ? shortest / 2 : 1;
}

static wimm_status make_identity(struct wimm_engine *engine)
{
	struct worker *w = &engine->worker;
	uint64_t seed = engine->env.rng_seed;
	wimm_status st = WIMM_OK;

	if (seed == 0) {
		st = rand_bytes(&seed, sizeof(seed));
		if (st == WIMM_OK)
			st = rand_bytes(engine->self.instance, sizeof(engine->self.instance));
		rng_init(&w->rng, seed);
		return st;
	}
	rng_init(&w->rng, seed);
	for (size_t i = 0; i < sizeof(engine->self.instance); i++)
		engine->self.instance[i] = (uint8_t)rng_below(&w->rng, 256);
	return WIMM_OK;
}

static wimm_status start_threads(struct wimm_engine *engine)
{
	wimm_status st;

	if (engine->opts.progress == WIMM_PROGRESS_CALLER)
		return WIMM_OK;
	engine->worker.own_threads = true;
	st = deliver_start(engine);
	if (st != WIMM_OK)
		goto undo_mode;
	st = worker_start(&engine->worker);
	if (st == WIMM_OK)
		return WIMM_OK;
	deliver_stop(engine);
undo_mode:
	engine->worker.own_threads = false;
	return st;
}

static wimm_status open_parts(struct wimm_engine *engine)
{
	const char *provider = engine->opts.provider;
	char setting[CONFIG_TEXT_BYTES];
	wimm_status st;

	if (provider == NULL) {
		config_get_text(CFG_PROVIDER, setting);
		provider = setting;
	}
	engine->worker.prov = prov_find(provider);
	if (engine->worker.prov == NULL) {
		error_text_set("no provider \"%s\" in this build: wimm info lists them", provider);
		return WIMM_E_NOT_FOUND;
	}
	(void)snprintf(engine->self.provider, sizeof(engine->self.provider), "%s",
	               engine->worker.prov->name);
	read_settings(engine);
	st = auth_key_load(&engine->opts, &engine->job_key);
	if (st == WIMM_OK)
		st = make_identity(engine);
	if (st == WIMM_OK)
		st = region_table_init(&engine->regions, (uint32_t)config_get_u64(CFG_MAX_REGIONS));
	if (st != WIMM_OK)
		return st;
	st = open_nics(engine, engine->opts.nics);
	if (st != WIMM_OK)
		goto undo_regions;
	st = wire_addr_encode(&engine->self, &engine->main_address);
	if (st == WIMM_OK)
		st = worker_init(&engine->worker, engine);
	if (st != WIMM_OK)
		goto undo_nics;
	st = wake_init(&engine->delivery_wake);
	if (st != WIMM_OK)
		goto undo_worker;
	st = watch_init(&engine->watch);
	if (st != WIMM_OK)
		goto undo_wake;
	st = start_threads(engine);
	if (st == WIMM_OK)
		return WIMM_OK;
	watch_fini(&engine->watch);
undo_wake:
	wake_fini(&engine->delivery_wake);
undo_worker:
	worker_fini(&engine->worker);
undo_nics:
	engine_close_nics(&engine->worker);
undo_regions:
	region_table_fini(&engine->regions);
	return st;
}

wimm_status engine_open_in(const struct wimm_engine_opts *opts, const struct engine_env *env,
                           struct wimm_engine **out)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	const struct wimm_engine_opts defaults = WIMM_ENGINE_OPTS_INIT;
	struct wimm_engine *engine;
	wimm_status st;

	error_text_clear();
	if (out == NULL)
		return args_null("out");
	if (opts == NULL)
		opts = &defaults;
	st = check_opts(opts);
	if (st != WIMM_OK)
		return st;
	(void)pthread_once(&once, watch_forks);
	engine = mem_alloc_aligned(64, sizeof(*engine));
	if (engine == NULL)
		return WIMM_E_NOMEM;
	engine->fork_epoch = atomic_load_explicit(&fork_epoch, memory_order_relaxed);
	engine->opts = *opts;
	if (env != NULL)
		engine->env = *env;
	mutex_init(&engine->lock);
	groups_init(engine);
	mpsc_init(&engine->deliveries);
	st = open_parts(engine);
	if (st != WIMM_OK) {
		mutex_fini(&engine->lock);
		auth_wipe(&engine->job_key, sizeof(engine->job_key));
		mem_free(engine);
		return st;
	}
	engine->opts.nics = NULL; /* the caller's strings end with the call */
	engine->opts.job_key = NULL;
	engine->opts.job_key_bytes = 0;
	engine->opts.provider = engine->worker.prov->name;
	*out = engine;
	return WIMM_OK;
}

wimm_status wimm_engine_open(const struct wimm_engine_opts *opts, struct wimm_engine **out)
{
	return engine_open_in(opts, NULL, out);
}

/* --- small things --- */

wimm_status wimm_main_address(struct wimm_engine *engine, struct wimm_net_addr *out)
{
	wimm_status st = engine_check(engine);

	if (st == WIMM_OK && out == NULL)
		st = args_null("out");
	if (st == WIMM_OK)
		*out = engine->main_address;
	return st;
}

wimm_status wimm_engine_get_stats(struct wimm_engine *engine, struct wimm_engine_stats *out)
{
	wimm_status st = engine_check(engine);
	struct worker *w;
	uint64_t settled;

	if (st != WIMM_OK)
		return st;
	if (out == NULL || out->size != sizeof(*out))
		return args_refused("wimm_engine_stats", out, sizeof(*out), 0);
	w = &engine->worker;
#define LOAD(field) atomic_load_explicit(&w->stats.field, memory_order_relaxed)
	out->nics = w->nic_count;
	out->peers_up = (uint32_t)LOAD(peers_up);
	out->ops_done = LOAD(ops_done);
	out->ops_failed = LOAD(ops_failed);
	settled = out->ops_done + out->ops_failed;
	out->ops_submitted = LOAD(ops_submitted);
	out->ops_open = out->ops_submitted > settled ? (uint32_t)(out->ops_submitted - settled) : 0;
	out->again = LOAD(again);
	out->bytes_written = LOAD(bytes_written);
	out->writes_posted = LOAD(writes_posted);
	out->imms_sent = LOAD(imms_sent);
	out->imms_received = LOAD(imms_received);
	out->msgs_sent = LOAD(msgs_sent);
	out->msgs_received = LOAD(msgs_received);
	out->retries = LOAD(retries);
	out->callbacks = LOAD(callbacks);
	out->worker_steps = LOAD(steps);
	out->worker_sleeps = LOAD(sleeps);
	out->index_bytes = LOAD(index_bytes);
	out->pending_ops = LOAD(pending_legs);
	out->expectations = LOAD(expectations);
#undef LOAD
	out->regions = atomic_load_explicit(&engine->regions.live, memory_order_relaxed);
	return WIMM_OK;
}
