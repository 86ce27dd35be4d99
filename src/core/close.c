/* SPDX-License-Identifier: Apache-2.0 */
/* Closing an engine: settle everything, say goodbye, stop, free. */
#include "core/after.h"

#include "base/alloc.h"
#include "core/args.h"
#include "plat/clock.h"

/* For what is open to settle, and for peers to hear the goodbye. */
#define CLOSE_WAIT_NS   (2 * CLOCK_NS_PER_S)
#define CLOSE_LINGER_NS (50 * CLOCK_NS_PER_MS)
/* Turns for what callbacks asked for when the threads had ended. */
#define REST_TURNS_MAX 1000
/* Looks without a pause in between. */
#define LOOKS_AT_ONCE 16
/* Turns without anything to do after which a caller-driven engine has no more for now. */
#define IDLE_TURNS 4

static void cancel_all(struct worker *w, void *arg) ON_WORKER
{
	(void)arg;
	w->closing = true;
	for (;;) {
		struct list *link = list_pop_front(&w->ops_started);
		struct op *op;

		if (link == NULL)
			return;
		op = LIST_ENTRY(link, struct op, link);
		list_push_back(&w->ops_started, &op->link);
		if (op->close_asked)
			return; /* round: all have been asked */
		op->close_asked = true;
		op_cancel(w, op, WIMM_E_CLOSED, "the engine is being closed");
	}
}

static void look_idle(struct worker *w, void *arg)
{
	*(bool *)arg = list_empty(&w->ops_started);
}

static void say_goodbye(struct worker *w, void *arg) ON_WORKER
{
	(void)arg;
	LIST_FOR_EACH(it, &w->peers)
		session_goodbye(w, LIST_ENTRY(it, struct peer, link), WIMM_E_CLOSED,
		                "the engine was closed");
}

/* Peers close their ends when they hear the goodbye. */
static void look_left(struct worker *w, void *arg)
{
	*(bool *)arg = true;
	LIST_FOR_EACH(it, &w->peers)
		if (LIST_ENTRY(it, struct peer, link)->state == PEER_UP)
			*(bool *)arg = false;
}

static void drop_strangers(struct worker *w) ON_WORKER
{
	while (!list_empty(&w->strangers))
		session_drop_stranger(w, w->strangers.next);
}

static void drop_peers(struct worker *w, void *arg) ON_WORKER
{
	(void)arg;
	LIST_FOR_EACH(it, &w->peers)
		peer_down(w, LIST_ENTRY(it, struct peer, link), WIMM_E_CLOSED, 0,
		          "this engine was closed");
	drop_strangers(w);
}

static void look_fenced(struct worker *w, void *arg)
{
	*(bool *)arg = true;
	LIST_FOR_EACH(it, &w->peers)
		if (LIST_ENTRY(it, struct peer, link)->paths_open != 0)
			*(bool *)arg = false;
}

/* Between two looks: nothing at first, then a quarter of a millisecond, so that a goodbye that
 * nobody answers does not cost a core. */
static void pause_for(struct wimm_engine *engine, uint64_t now_ns, uint32_t looks, bool busy)
{
	struct worker *w = &engine->worker;
	uint64_t until_ns = clock_deadline_ns(now_ns, CLOCK_NS_PER_MS / 4);

	if (looks < LOOKS_AT_ONCE || busy || engine->env.now_ns != NULL) {
		plat_thread_yield();
	} else if (w->own_threads) {
		(void)wake_wait(&w->room, until_ns); /* nobody else waits there any more */
	} else {
		role_enter(&on_worker);
		worker_wait(w, until_ns);
		role_leave(&on_worker);
	}
}

/* Run until `look` says yes, at most so long. */
static void run_until(struct wimm_engine *engine, void (*look)(struct worker *w, void *arg),
                      uint64_t max_ns)
{
	uint64_t now = engine_now_ns(engine);
	uint64_t end = clock_deadline_ns(now, max_ns);
	struct worker *w = &engine->worker;
	uint64_t last;
	uint32_t idle = 0;

	for (uint32_t looks = 0;; looks++) {
		bool yes = false, busy = false;

		if (!w->own_threads) {
			role_enter(&on_worker); /* driven by its caller, who closes */
			busy = worker_step(w, now);
			role_leave(&on_worker);
			busy = deliver_run(engine, UINT32_MAX) != 0 || busy;
			idle = busy ? 0 : idle + 1;
		}
		worker_call(w, look, &yes);
		if (yes || now >= end)
			return;
		last = now;
		now = engine_now_ns(engine);
		if (now != last)
			idle = 0;
		/* A clock from outside that stands still: nothing comes by waiting. */
		if (engine->env.now_ns != NULL && idle >= IDLE_TURNS)
			return;
		pause_for(engine, now, looks, busy);
	}
}

/* Deregistrations are accepted until the end: those that callbacks asked for last, and those that a
 * silent peer held up, report here. The paths are given up, so nothing is placed any more. */
static void finish_rest(struct wimm_engine *engine)
{
	struct worker *w = &engine->worker;
	bool busy = true;

	role_enter(&on_worker); /* it has ended */
	for (uint32_t i = 0; busy && i < REST_TURNS_MAX; i++) {
		busy = worker_step(w, engine_now_ns(engine));
		busy = deliver_run(engine, UINT32_MAX) != 0 || busy;
	}
	mr_finish_all(w);
	drop_strangers(w); /* who dialled while the peers' paths were closing */
	role_leave(&on_worker);
	(void)deliver_run(engine, UINT32_MAX);
}

static void dereg_all(struct wimm_engine *engine)
{
	struct worker *w = &engine->worker;

	for (uint32_t i = 0; i < engine->regions.used; i++) {
		struct wimm_mr *mr =
			atomic_load_explicit(&engine->regions.slot[i], memory_order_acquire);

		if (atomic_load_explicit(&mr->public_state, memory_order_acquire) == MR_FREE)
			continue;
		for (uint32_t k = 0; k < w->dev_count; k++)
			w->nic[k].ops->dereg(w->nic[k].dev, mr->key[k]);
	}
}

/* Those that wait for room see that there will be none, and are out before anything is freed. */
static void submitters_leave(struct worker *w)
{
	/* Sequentially consistent, with the same in submit_enter(): either that call is seen here,
	 * or it sees `closing`. */
	while (atomic_load_explicit(&w->room_waiters, memory_order_seq_cst) != 0) {
		wake_signal_always(&w->room);
		plat_thread_yield();
	}
}

wimm_status wimm_engine_close(struct wimm_engine **handle)
{
	struct wimm_engine *engine;
	struct worker *w;
	wimm_status st;

	if (handle == NULL)
		return args_null("engine");
	engine = *handle;
	if (engine == NULL)
		return WIMM_OK;
	st = engine_check(engine);
	if (st != WIMM_OK)
		return st;
	if (engine_in_callback(engine))
		return WIMM_E_IN_CALLBACK;
	w = &engine->worker;
	/* With the load in engine_closing(), and before the look in submitters_leave(). */
	atomic_store_explicit(&engine->closing, 1, memory_order_seq_cst);
	submitters_leave(w);
	watch_stop(engine);
	worker_call(w, cancel_all, NULL);
	run_until(engine, look_idle, CLOSE_WAIT_NS);
	worker_call(w, say_goodbye, NULL);
	run_until(engine, look_left, CLOSE_LINGER_NS);
	worker_call(w, drop_peers, NULL);
	run_until(engine, look_fenced, CLOSE_LINGER_NS);
	if (w->own_threads) {
		/* The worker last: callbacks may wait for a turn of it. What it hands over after
		 * the callback thread has ended runs here. */
		deliver_stop(engine);
		worker_stop(w);
	}
	finish_rest(engine);
	dereg_all(engine);
	watch_fini(&engine->watch);
	groups_close(engine);
	after_lanes_fini(engine);
	wake_fini(&engine->delivery_wake);
	worker_fini(w);
	engine_close_nics(w);
	remotes_fini(&engine->regions);
	region_table_fini(&engine->regions);
	mutex_fini(&engine->lock);
	auth_wipe(&engine->job_key, sizeof(engine->job_key));
	mem_free(engine);
	*handle = NULL;
	return WIMM_OK;
}
