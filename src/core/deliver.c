/* SPDX-License-Identifier: Apache-2.0 */
/* The callback thread: runs what the worker and the watcher thread hand over, under no lock. */
#include "core/engine.h"

#include "base/config.h"
#include "plat/clock.h"
#include "plat/code.h"

/* For two processes with a worker and a callback thread each. */
#define SPIN_CPUS_MIN 4

/* What follows from a change or an arrival: a callback, what it posts, the end of that. */
#define FOLLOWS_NS 500000

/* The engines whose callbacks this thread is in, the innermost first: a callback of one may drive
 * another, whose callback may call the first again. */
struct nesting {
	const struct wimm_engine *engine;
	const struct nesting *outer;
};
static _Thread_local const struct nesting *in_callbacks_of PLAT_TLS_SMALL;

bool engine_in_callback(const struct wimm_engine *engine)
{
	for (const struct nesting *n = in_callbacks_of; n != NULL; n = n->outer)
		if (n->engine == engine)
			return true;
	return false;
}

void deliver_push(struct wimm_engine *engine, struct delivery *d)
{
	mpsc_push(&engine->deliveries, &d->node);
	if (engine->worker.own_threads)
		wake_signal(&engine->delivery_wake);
}

uint32_t deliver_run(struct wimm_engine *engine, uint32_t max)
{
	struct nesting here = { .engine = engine };
	uint32_t n = 0;

	if (mpsc_empty_hint(&engine->deliveries))
		return 0;
	here.outer = in_callbacks_of;
	in_callbacks_of = &here;
	while (n < max) {
		struct mpsc_node *node = mpsc_pop(&engine->deliveries);
		struct delivery *d;

		if (node == NULL)
			break;
		d = LIST_ENTRY(node, struct delivery, node);
		d->run(d);
		n++;
	}
	in_callbacks_of = here.outer;
	return n;
}

void deliver_soon(struct wimm_engine *engine, uint64_t until_ns)
{
	uint64_t old = atomic_load_explicit(&engine->soon_ns, memory_order_relaxed);

	if (atomic_load_explicit(&engine->may_spin, memory_order_relaxed) == 0)
		return;
	/* Relaxed: a hint, which hands nothing over. */
	while (old < until_ns)
		if (atomic_compare_exchange_weak_explicit(&engine->soon_ns, &old, until_ns,
		                                          memory_order_relaxed,
		                                          memory_order_relaxed))
			break;
	wake_signal(&engine->delivery_wake);
	if (!plat_thread_is_self(&engine->worker.thread))
		wake_signal(&engine->worker.wake);
}

void deliver_came(struct wimm_engine *engine, uint64_t now_ns)
{
	uint64_t old = atomic_load_explicit(&engine->soon_ns, memory_order_relaxed);

	/* A later hint may be lost with this one: it is told again, or costs a wake-up. */
	if (old > now_ns + FOLLOWS_NS)
		(void)atomic_compare_exchange_strong_explicit(
			&engine->soon_ns, &old, now_ns + FOLLOWS_NS, memory_order_relaxed,
			memory_order_relaxed);
}

static bool armed(const struct wimm_engine *engine)
{
	return atomic_load_explicit(&engine->watch.armed, memory_order_relaxed) != 0;
}

bool deliver_any_open(const struct wimm_engine *engine)
{
	const struct worker_stats *s = &engine->worker.stats;

	/* Relaxed: a hint. */
	return atomic_load_explicit(&s->ops_submitted, memory_order_relaxed) !=
	       atomic_load_explicit(&s->ops_done, memory_order_relaxed) +
	               atomic_load_explicit(&s->ops_failed, memory_order_relaxed);
}

/* Waking a thread takes longer than all the rest of a short message, so this one spins a while
 * after the last callback: as long as a worker if an operation is open, longer for an armed
 * watcher, and where one is to be expected soon. Where there are few CPUs spinning would take one
 * from those who bring the next one. */
static void spin(struct wimm_engine *engine, uint64_t watch_ns, uint64_t open_ns,
                 struct plat_code *code)
{
	uint64_t from_ns = clock_now_ns();
	uint64_t now_ns = from_ns;

	while (mpsc_empty_hint(&engine->deliveries) &&
	       atomic_load_explicit(&engine->callback_stop, memory_order_relaxed) == 0) {
		uint64_t most_ns = armed(engine) ? watch_ns : 0;

		if (most_ns == 0 && open_ns != 0 && deliver_any_open(engine))
			most_ns = open_ns;
		if (now_ns - from_ns >= most_ns && now_ns >= deliver_soon_ns(engine))
			return;
		if (now_ns < deliver_soon_ns(engine))
			plat_code_touch(code);
		plat_cpu_relax();
		now_ns = clock_now_ns();
	}
}

static void callback_main(void *arg)
{
	struct wimm_engine *engine = arg;
	uint64_t watch_ns = config_get_u64(CFG_WATCH_SPIN_US) * CLOCK_NS_PER_US;
	uint64_t open_ns = plat_cpu_count() >= SPIN_CPUS_MIN ? engine->worker.spin_ns : 0;
	struct plat_code code;

	plat_code_find(&code);
	for (;;) {
		if (deliver_run(engine, UINT32_MAX) != 0)
			continue;
		/* Acquire, with the release in deliver_stop(): what was pushed before is seen. */
		if (atomic_load_explicit(&engine->callback_stop, memory_order_acquire) != 0 &&
		    mpsc_empty_hint(&engine->deliveries))
			return;
		spin(engine, watch_ns, open_ns, &code);
		wake_announce(&engine->delivery_wake);
		if (mpsc_empty_hint(&engine->deliveries) &&
		    atomic_load_explicit(&engine->callback_stop, memory_order_acquire) == 0)
			(void)wake_wait(&engine->delivery_wake, CLOCK_NEVER_NS);
		else
			wake_cancel(&engine->delivery_wake);
	}
}

wimm_status deliver_start(struct wimm_engine *engine)
{
	atomic_store_explicit(&engine->may_spin, plat_cpu_count() >= SPIN_CPUS_MIN,
	                      memory_order_relaxed);
	return plat_thread_start(&engine->callback_thread, callback_main, engine, "wimm-callback",
	                         PLAT_CPU_ANY);
}

void deliver_stop(struct wimm_engine *engine)
{
	atomic_store_explicit(&engine->callback_stop, 1, memory_order_release);
	wake_signal_always(&engine->delivery_wake);
	plat_thread_join(&engine->callback_thread);
}
