/* SPDX-License-Identifier: Apache-2.0 */
#include "core/watch.h"

#include "base/alloc.h"
#include "base/config.h"
#include "base/ignore.h"
#include "core/args.h"
#include "core/engine.h"
#include "core/error_text.h"
#include "core/gpu_word.h"
#include "core/rhythm.h"
#include "mem/word.h"
#include "plat/clock.h"

#include <string.h>

#include <wimm/watcher.h>

/* Between two looks at words that have not changed for watch_spin_us. */
#define PAUSE_NS 50000
/* Changes that a callback makes to its own word while the engine closes are reported so often. */
#define LAST_REPORTS_MAX 64

struct wimm_uvm_watcher {
	uint64_t *word; /* the application's, and its kernels': of mem/word.h */
	struct mem_word place;
	struct delivery delivery;
	_Atomic uint32_t queued; /* delivery is in the callback queue or running */
	_Atomic uint32_t armed;
	_Atomic uint32_t dead; /* freed inside a callback: report nothing more */
	_Atomic uint32_t refs; /* the application's, and one while queued */
	struct wimm_engine *engine;
	wimm_watch_fn fn;
	void *context;
	uint32_t slot;
	uint64_t seen; /* the looker's: last value handed over, */
	struct rhythm rhythm; /* and when it was found */
	uint64_t told; /* the callback thread's: last value reported */
};

/* Asked after the word was read: whoever disarms and then changes the word sees to it that this
 * change is not taken for one before. */
static bool is_armed(const struct wimm_uvm_watcher *wa)
{
	return atomic_load_explicit(&wa->armed, memory_order_acquire) != 0;
}

static uint64_t word_load(const struct wimm_uvm_watcher *wa)
{
	/* Acquire, with the writer's release: what it did before is visible to the callback. */
	return __atomic_load_n(wa->word, __ATOMIC_ACQUIRE);
}

static void watcher_free(struct wimm_uvm_watcher *wa)
{
	if (wa == NULL)
		return;
	mem_word_free(wa->word);
	mem_free(wa);
}

static void unref(struct wimm_uvm_watcher *wa)
{
	/* Acquire and release: whoever is last sees all that the others did. */
	if (atomic_fetch_sub_explicit(&wa->refs, 1, memory_order_acq_rel) == 1)
		watcher_free(wa);
}

/* Whether the engine is being closed, so that the watcher thread may have looked for the last time.
 * Sequentially consistent, like `queued` and the store in watch_stop(): either this sees the stop
 * or the last look sees that the delivery is over. */
static bool stopped(const struct wimm_uvm_watcher *wa)
{
	return atomic_load_explicit(&wa->engine->watch.stop, memory_order_seq_cst) != 0;
}

static void watch_deliver(struct delivery *d)
{
	struct wimm_uvm_watcher *wa = LIST_ENTRY(d, struct wimm_uvm_watcher, delivery);

	for (uint32_t i = 0; i < LAST_REPORTS_MAX; i++) {
		uint64_t old = wa->told;
		uint64_t now = word_load(wa);

		if (!is_armed(wa))
			now = wa->seen; /* what was handed over; the rest waits for arming */
		wa->told = now;
		if (now != old && atomic_load_explicit(&wa->dead, memory_order_acquire) == 0)
			wa->fn(wa->context, old, now);
		/* Also release: with look() and with the wait in wimm_free_uvm_watcher(). */
		atomic_store_explicit(&wa->queued, 0, memory_order_seq_cst);
		if (!stopped(wa) || word_load(wa) == wa->told || !is_armed(wa) ||
		    atomic_exchange_explicit(&wa->queued, 1, memory_order_seq_cst) != 0)
			break;
	}
	unref(wa);
}

/* `queued` is set already. */
static void queue_up(struct wimm_uvm_watcher *wa)
{
	atomic_fetch_add_explicit(&wa->refs, 1, memory_order_relaxed); /* the queue publishes it */
	wa->delivery.run = watch_deliver;
	deliver_push(wa->engine, &wa->delivery);
}

/* Hand a change over that is found at now_ns; true if there was one. */
static bool look(struct wimm_uvm_watcher *wa, uint64_t now_ns)
{
	uint64_t now;

	if (!is_armed(wa) || atomic_load_explicit(&wa->queued, memory_order_seq_cst) != 0)
		return false;
	now = word_load(wa);
	if (now == wa->seen || !is_armed(wa) ||
	    atomic_exchange_explicit(&wa->queued, 1, memory_order_seq_cst) != 0)
		return false;
	wa->seen = now;
	rhythm_note(&wa->rhythm, now_ns);
	queue_up(wa);
	return true;
}

/* *out_due: until when a change of any word is to be expected. */
static uint32_t look_all(struct watch_set *s, uint64_t now_ns, uint64_t *out_due)
{
	uint32_t changed = 0;
	uint32_t used = atomic_load_explicit(&s->used, memory_order_acquire);

	for (uint32_t i = 0; i < used; i++) {
		/* Acquire, with the release in publish(). */
		struct wimm_uvm_watcher *wa =
			atomic_load_explicit(&s->slot[i], memory_order_acquire);
		uint64_t due;

		if (wa == NULL)
			continue;
		changed += look(wa, now_ns);
		due = rhythm_until(&wa->rhythm, now_ns);
		due = due != 0 && is_armed(wa) ? due : 0;
		*out_due = due > *out_due ? due : *out_due;
	}
	/* Release, with the acquire in wait_passed(): this round is over. */
	atomic_fetch_add_explicit(&s->rounds, 1, memory_order_release);
	return changed;
}

static void watch_main(void *arg)
{
	struct wimm_engine *engine = arg;
	struct watch_set *s = &engine->watch;
	uint64_t spin_ns = config_get_u64(CFG_WATCH_SPIN_US) * CLOCK_NS_PER_US;
	uint64_t now_ns = clock_now_ns();
	uint64_t changed_ns = now_ns;
	uint64_t told_ns = 0;

	while (atomic_load_explicit(&s->stop, memory_order_acquire) == 0) {
		uint64_t due_ns = 0;

		now_ns = clock_now_ns();
		if (look_all(s, now_ns, &due_ns) != 0) {
			changed_ns = now_ns;
			told_ns = 0;
			atomic_store_explicit(&engine->post_soon_ns, 0, memory_order_relaxed);
			deliver_came(engine, now_ns);
			continue;
		}
		if (due_ns > told_ns) { /* those who will have to do with it are awake then */
			atomic_store_explicit(&engine->post_soon_ns, due_ns, memory_order_relaxed);
			deliver_soon(engine, due_ns);
			told_ns = due_ns;
		}
		if (atomic_load_explicit(&s->armed, memory_order_acquire) == 0) {
			wake_announce(&s->wake);
			if (atomic_load_explicit(&s->armed, memory_order_acquire) == 0 &&
			    atomic_load_explicit(&s->stop, memory_order_acquire) == 0)
				(void)wake_wait(&s->wake, CLOCK_NEVER_NS);
			else
				wake_cancel(&s->wake);
			changed_ns = clock_now_ns();
			continue;
		}
		if (due_ns != 0 || now_ns - changed_ns < spin_ns) {
			plat_cpu_relax();
			continue;
		}
		wake_announce(&s->wake);
		(void)wake_wait(&s->wake, clock_deadline_ns(clock_now_ns(), PAUSE_NS));
	}
	(void)look_all(s, now_ns, &told_ns);
	/* Release, with the acquire in wait_passed(). */
	atomic_store_explicit(&s->ended, 1, memory_order_release);
}

wimm_status watch_init(struct watch_set *s)
{
	memset(s, 0, sizeof(*s));
	return wake_init(&s->wake);
}

void watch_fini(struct watch_set *s)
{
	for (uint32_t i = 0; i < WATCH_MAX; i++)
		watcher_free(atomic_load_explicit(&s->slot[i], memory_order_relaxed));
	wake_fini(&s->wake);
}

uint32_t watch_poll(struct wimm_engine *engine)
{
	uint64_t due_ns = 0; /* the caller sees to it that it is there */

	if (atomic_load_explicit(&engine->watch.armed, memory_order_relaxed) == 0)
		return 0;
	return look_all(&engine->watch, 0, &due_ns);
}

void watch_stop(struct wimm_engine *engine)
{
	struct watch_set *s = &engine->watch;
	uint64_t due_ns = 0;

	mutex_lock(&engine->lock);
	atomic_store_explicit(&s->stop, 1, memory_order_seq_cst);
	wake_signal_always(&s->wake);
	if (s->started)
		plat_thread_join(&s->thread);
	else
		(void)look_all(s, 0, &due_ns);
	s->started = false;
	mutex_unlock(&engine->lock);
}

/* --- the API --- */

/* Put it into a slot and see that the thread runs; the engine's lock is held. */
static wimm_status publish(struct wimm_engine *engine, struct wimm_uvm_watcher *wa)
{
	struct watch_set *s = &engine->watch;
	uint32_t i = 0;
	wimm_status st;

	if (atomic_load_explicit(&s->stop, memory_order_relaxed) != 0)
		return WIMM_E_CLOSED;
	while (i < WATCH_MAX && atomic_load_explicit(&s->slot[i], memory_order_relaxed) != NULL)
		i++;
	if (i == WATCH_MAX) {
		error_text_set("an engine has at most %d watchers", WATCH_MAX);
		return WIMM_E_LIMIT;
	}
	if (!s->started && engine->worker.own_threads) {
		st = plat_thread_start(&s->thread, watch_main, engine, "wimm-watcher",
		                       PLAT_CPU_ANY);
		if (st != WIMM_OK)
			return st;
		s->started = true;
	}
	wa->slot = i;
	/* Release, with the acquire in look_all(). */
	atomic_store_explicit(&s->slot[i], wa, memory_order_release);
	if (i >= atomic_load_explicit(&s->used, memory_order_relaxed))
		atomic_store_explicit(&s->used, i + 1, memory_order_release);
	atomic_fetch_add_explicit(&s->armed, 1, memory_order_release);
	wake_signal(&s->wake);
	return WIMM_OK;
}

/* device -1: for kernels of any. */
static wimm_status alloc(struct wimm_engine *engine, int device, wimm_watch_fn fn, void *context,
                         struct wimm_uvm_watcher **out)
{
	wimm_status st = engine_check(engine);
	struct wimm_uvm_watcher *wa;

	if (st != WIMM_OK)
		return st;
	if (fn == NULL || out == NULL)
		return args_null(fn == NULL ? "fn" : "out");
	wa = mem_alloc_aligned(64, sizeof(*wa));
	if (wa == NULL)
		return WIMM_E_NOMEM;
	if (device >= 0 && !mem_word_alloc_on(device, &wa->place))
		wa->place.host = NULL;
	if (device < 0)
		wa->place = mem_word_find(mem_word_alloc());
	wa->word = wa->place.host;
	if (wa->word == NULL) {
		mem_free(wa);
		return WIMM_E_NOMEM;
	}
	wa->engine = engine;
	wa->fn = fn;
	wa->context = context;
	atomic_init(&wa->armed, 1);
	atomic_init(&wa->refs, 1);
	mutex_lock(&engine->lock);
	st = publish(engine, wa);
	mutex_unlock(&engine->lock);
	if (st != WIMM_OK) {
		watcher_free(wa);
		return st;
	}
	*out = wa;
	return WIMM_OK;
}

wimm_status wimm_alloc_uvm_watcher(struct wimm_engine *engine, wimm_watch_fn fn, void *context,
                                   struct wimm_uvm_watcher **out)
{
	return alloc(engine, -1, fn, context, out);
}

wimm_status wimm_alloc_gpu_watcher(struct wimm_engine *engine, int device, wimm_watch_fn fn,
                                   void *context, struct wimm_uvm_watcher **out)
{
	wimm_status st = engine_check(engine);

	if (st == WIMM_OK)
		st = gpu_device_check(device);
	return st == WIMM_OK ? alloc(engine, device, fn, context, out) : st;
}

uint64_t wimm_uvm_watcher_gpu_word(struct wimm_uvm_watcher *wa)
{
	if (wa == NULL)
		return 0;
	(void)mem_word_pin(wa->word);
	return wa->place.card;
}

uint64_t *wimm_uvm_watcher_word(struct wimm_uvm_watcher *wa)
{
	if (wa == NULL)
		return NULL;
	/* Whoever asks may hand it to a kernel: the process may use a GPU by now. */
	(void)mem_word_pin(wa->word);
	return wa->word;
}

uint64_t wimm_uvm_watcher_add(struct wimm_uvm_watcher *wa, uint64_t amount)
{
	if (engine_forked(wa->engine))
		return 0; /* a child does not inherit the word */
	if (wa->place.in_card) { /* a locked instruction does not reach as far */
		uint64_t value = word_load(wa) + amount;

		if (amount != 0)
			mem_word_store(wa->word, value);
		return value;
	}
	/* Release, with the acquire in word_load(). */
	return __atomic_add_fetch(wa->word, amount, __ATOMIC_RELEASE);
}

wimm_status wimm_uvm_watcher_arm(struct wimm_uvm_watcher *wa, int armed)
{
	uint32_t want = armed != 0;
	struct watch_set *s;
	wimm_status st;

	if (wa == NULL)
		return args_null("watcher");
	st = engine_check(wa->engine);
	if (st != WIMM_OK)
		return st;
	s = &wa->engine->watch;
	if (atomic_exchange_explicit(&wa->armed, want, memory_order_acq_rel) == want)
		return WIMM_OK;
	if (want == 0) {
		atomic_fetch_sub_explicit(&s->armed, 1, memory_order_release);
		return WIMM_OK;
	}
	atomic_fetch_add_explicit(&s->armed, 1, memory_order_release);
	wake_signal(&s->wake);
	return WIMM_OK;
}

/* Wait until the watcher thread cannot be looking at a slot that was emptied. */
static void wait_passed(struct wimm_engine *engine)
{
	struct watch_set *s = &engine->watch;
	uint64_t from = atomic_load_explicit(&s->rounds, memory_order_acquire);

	if (!engine->worker.own_threads)
		return;
	/* The round under way may have seen it; the one after cannot. A sleeping thread is
	 * woken. */
	while (atomic_load_explicit(&s->rounds, memory_order_acquire) < from + 2 &&
	       atomic_load_explicit(&s->ended, memory_order_acquire) == 0) {
		wake_signal(&s->wake);
		plat_thread_yield();
	}
}

static void wait_delivered(struct wimm_uvm_watcher *wa)
{
	/* Acquire, with the release in watch_deliver(). */
	while (atomic_load_explicit(&wa->queued, memory_order_acquire) != 0) {
		if (!wa->engine->worker.own_threads)
			(void)deliver_run(wa->engine, UINT32_MAX);
		else
			plat_thread_yield();
	}
}

wimm_status wimm_free_uvm_watcher(struct wimm_uvm_watcher *wa)
{
	struct wimm_engine *engine;
	wimm_status st;
	bool inside;

	if (wa == NULL)
		return args_null("watcher");
	engine = wa->engine;
	st = engine_check(engine);
	if (st != WIMM_OK)
		return st;
	inside = engine_in_callback(engine);
	if (inside)
		atomic_store_explicit(&wa->dead, 1, memory_order_release);
	status_ignore(wimm_uvm_watcher_arm(wa, 0)); /* the engine was checked above */
	mutex_lock(&engine->lock);
	atomic_store_explicit(&engine->watch.slot[wa->slot], NULL, memory_order_release);
	mutex_unlock(&engine->lock);
	wait_passed(engine);
	if (!inside) {
		wait_delivered(wa);
		if (word_load(wa) != wa->told) {
			wa->seen = word_load(wa); /* nobody looks any more */
			atomic_store_explicit(&wa->queued, 1, memory_order_relaxed);
			queue_up(wa);
			wait_delivered(wa);
		}
	}
	unref(wa);
	return WIMM_OK;
}
