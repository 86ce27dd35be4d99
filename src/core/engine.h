/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CORE_ENGINE_H
#define CORE_ENGINE_H

/* The engine: what a handle of the public API points to. */

#include "core/auth.h"
#include "core/region.h"
#include "core/watch.h"
#include "core/worker.h"
#include "mem/cuda.h"
#include "plat/mutex.h"

struct cuda_lanes;

/* What the outside gives to an engine; the simulator has its own. */
struct engine_env {
	uint64_t (*now_ns)(void *ctx); /* NULL: the monotonic clock */
	void *clock_ctx;
	void *world;       /* sim's; NULL: the process's own */
	uint64_t rng_seed; /* 0: from the kernel */
};

struct wimm_engine {
	/* Fixed after open. */
	uint32_t fork_epoch;
	struct engine_env env;
	struct wimm_engine_opts opts;
	struct wire_addr self;
	struct wimm_net_addr main_address;
	_Atomic uint32_t closing; /* set once, by close */
	struct auth_key job_key;
	struct worker worker;

	/* Callback thread. */
	struct mpsc deliveries; /* shared: worker and watcher push */
	struct wake delivery_wake;
	struct plat_thread callback_thread;
	_Atomic uint32_t callback_stop;
	_Atomic uint64_t soon_ns; /* until then neither it nor the worker sleeps: deliver_soon() */
	_Atomic uint64_t post_soon_ns; /* until then a callback may post: a watched word is due */
	_Atomic uint32_t may_spin; /* there are CPUs enough */

	/* Guarded by `lock`: registration, watchers, groups, streams. */
	struct mutex lock;
	struct region_table regions;
	struct list groups; /* peer_group.link */
	struct {
		struct list list; /* peer_group.link, the first removed first */
		uint32_t count;
	} groups_removed[17]; /* of room for 1, 2, 4.. 65536 peers */
	struct watch_set watch;
	struct cuda_lanes *lanes[MEM_CUDA_MAX_DEVICES]; /* by device; NULL: none asked for */
};

wimm_status engine_open_in(const struct wimm_engine_opts *opts, const struct engine_env *env,
                           struct wimm_engine **out);
void engine_close_nics(struct worker *w);
/* OK, or why the calling thread may not use the engine (E_INVAL, E_FORKED). */
wimm_status engine_check(const struct wimm_engine *engine);
uint32_t engine_fork_epoch(void); /* another one in each forked child */
/* Whether this process is a child of the one that opened the engine. */
bool engine_forked(const struct wimm_engine *engine);
uint64_t engine_now_ns(const struct wimm_engine *engine);
/* The same, cheap, and less than a microsecond behind. Thread: the worker's, or the one that
 * drives. */
uint64_t engine_turn_ns(struct wimm_engine *engine);
/* Whether close has begun: nothing new is accepted, but for the end of what there is. */
bool engine_closing(const struct wimm_engine *engine);
/* Whether the calling thread is inside a callback of this engine. */
bool engine_in_callback(const struct wimm_engine *engine);

/* deliver.c */
wimm_status deliver_start(struct wimm_engine *engine);
void deliver_stop(struct wimm_engine *engine); /* runs what is queued first */
void deliver_push(struct wimm_engine *engine, struct delivery *d);
/* Run what is due on the calling thread; returns how many. */
uint32_t deliver_run(struct wimm_engine *engine, uint32_t max);
/* A callback is to be expected before until_ns: worker and callback thread wake up and spin, so
 * that what comes need not wait for them. Where there are few CPUs it does nothing. Thread: any. */
void deliver_soon(struct wimm_engine *engine, uint64_t until_ns);
/* It came: stay awake for what follows from it, but no longer. Thread: any. */
void deliver_came(struct wimm_engine *engine, uint64_t now_ns);
static inline uint64_t deliver_soon_ns(const struct wimm_engine *engine)
{
	return atomic_load_explicit(&engine->soon_ns, memory_order_relaxed); /* a hint */
}
/* Whether an operation is open, which may call back any time; a hint. Thread: any. */
bool deliver_any_open(const struct wimm_engine *engine);

/* group.c */
void groups_init(struct wimm_engine *engine);
void groups_close(struct wimm_engine *engine);

#endif
