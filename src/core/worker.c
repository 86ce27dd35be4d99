/* SPDX-License-Identifier: Apache-2.0 */
/* The worker's loop: requests, pending writes, completions, time; sleep when there is nothing. */
#include "core/after.h"
#include "core/stage.h"
#include "core/mirror.h"
#include "core/marks.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/config.h"
#include "base/log.h"
#include "plat/clock.h"
#include "plat/numa.h"
#include "plat/rand.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

struct thread_role on_worker;

/* A request that somebody waits for: runs on the worker, then wakes the caller. */
struct call {
	struct request request;
	void (*fn)(struct worker *w, void *arg);
	void *arg;
	struct sema *done;
};

/* Requests taken from the inbox before what waits has its turn. */
#define INBOX_BATCH 64
/* A NIC that opens ctls is asked again until so many entries are dealt with. */
#define NEW_CTLS_MAX 64
/* What has woken a worker may lead to a callback: so long its thread spins, rather than to be woken
 * after it. */
#define WOKEN_NS 300000u
/* Between two times that devices are warmed while something is to be posted soon. */
#define WARM_NS 250000u
/* Pause of a worker whose provider has no descriptor to sleep on: doubled from MIN to MAX. */
#define PAUSE_MIN_NS 20000u
#define PAUSE_MAX_NS 1000000u

uint64_t worker_random(struct worker *w)
{
	return rng_u64(&w->rng);
}

static wimm_status init_tables(struct worker *w) ON_WORKER
{
	wimm_status st;

	w->ops = mem_alloc_aligned(64, (size_t)w->max_ops * sizeof(*w->ops));
	w->peer_slot = mem_calloc(w->max_peers, sizeof(*w->peer_slot));
	w->peer_free = mem_calloc(w->max_peers, sizeof(*w->peer_free));
	w->scratch_bytes = w->max_msg_bytes + WIRE_MAX_OVERHEAD_BYTES + 8192;
	w->scratch = mem_alloc(w->scratch_bytes);
	if (w->ops == NULL || w->peer_slot == NULL || w->peer_free == NULL || w->scratch == NULL)
		return WIMM_E_NOMEM;
	for (uint32_t i = 0; i < w->max_ops; i++)
		w->ops[i].worker = w;
	for (uint32_t i = 0; i < w->max_peers; i++)
		w->peer_free[i] = w->max_peers - 1 - i;
	w->peer_free_count = w->max_peers;
	st = timers_init(&w->timers, w->max_ops);
	if (st == WIMM_OK)
		st = idpool_init(&w->op_pool, w->max_ops);
	if (st == WIMM_OK)
		st = imm_open((uint32_t)config_get_u64(CFG_UNEXPECTED_IMMS), &w->imms);
	return st;
}

static void fini_tables(struct worker *w) ON_WORKER
{
	mirror_close_all(w);
	imm_close(w->imms);
	idpool_fini(&w->op_pool);
	timers_fini(&w->timers);
	for (uint32_t i = 0; w->peer_slot != NULL && i < w->max_peers; i++) {
		struct peer *p = atomic_load_explicit(&w->peer_slot[i], memory_order_relaxed);

		if (p != NULL)
			hash_fini(&p->by_region); /* handles may stay open until the end */
		mem_free(p);
	}
	mem_free((void *)w->peer_slot);
	mem_free(w->peer_free);
	mem_free(w->scratch);
	mem_free(w->ops);
	hash_fini(&w->by_instance);
}

static void init_lists(struct worker *w)
{
	list_init(&w->peers);
	list_init(&w->ready);
	list_init(&w->buried);
	list_init(&w->talkers);
	list_init(&w->strangers);
	list_init(&w->dead_ctls);
	list_init(&w->ops_started);
	list_init(&w->retires);
	list_init(&w->retires_new);
	list_init(&w->retires_behind);
	list_init(&w->fences);
	list_init(&w->afters);
	list_init(&w->stage_peers);
	list_init(&w->recv_free);
	list_init(&w->recv_pools);
	list_init(&w->deregs);
	mpsc_init(&w->inbox);
}

/* One descriptor for all: every device's and the inbox's. */
static wimm_status init_epoll(struct worker *w)
{
	struct epoll_event ev = { .events = EPOLLIN };

	w->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (w->epoll_fd < 0)
		return WIMM_E_SYSTEM;
	if (epoll_ctl(w->epoll_fd, EPOLL_CTL_ADD, wake_fd(&w->wake), &ev) != 0)
		return WIMM_E_SYSTEM;
	w->all_have_fd = true;
	for (uint32_t i = 0; i < w->dev_count; i++) {
		if (!w->nic[i].caps.wait_fd) {
			w->all_have_fd = false;
			continue;
		}
		if (epoll_ctl(w->epoll_fd, EPOLL_CTL_ADD, w->nic[i].ops->fd(w->nic[i].dev), &ev) !=
		    0)
			return WIMM_E_SYSTEM;
	}
	return WIMM_OK;
}

wimm_status worker_init(struct worker *w, struct wimm_engine *engine)
{
	wimm_status st;

	role_enter(&on_worker); /* there is none yet */
	w->engine = engine;
	w->epoll_fd = -1;
	w->chores_ns = CLOCK_NEVER_NS;
	w->wake.fd = -1;
	w->room.fd = -1;
	init_lists(w);
	hash_init(&w->by_instance, rng_u64(&w->rng));
	hash_init(&w->mirrors, w->by_instance.seed);
	st = init_tables(w);
	if (st == WIMM_OK)
		st = wake_init(&w->wake);
	if (st == WIMM_OK)
		st = wake_init(&w->room);
	if (st == WIMM_OK)
		st = init_epoll(w);
	role_leave(&on_worker);
	if (st != WIMM_OK)
		worker_fini(w);
	return st;
}

void worker_fini(struct worker *w)
{
	if (w->epoll_fd >= 0)
		(void)close(w->epoll_fd);
	if (w->room.fd >= 0)
		wake_fini(&w->room);
	if (w->wake.fd >= 0)
		wake_fini(&w->wake);
	role_enter(&on_worker); /* there is none any more */
	session_bury(w);
	stage_fini(w);
	fini_tables(w);
	role_leave(&on_worker);
}

/* --- the inbox --- */

void worker_push(struct worker *w, struct request *r)
{
	mpsc_push(&w->inbox, &r->node);
	wake_signal(&w->wake);
}

/* After a long pause of this worker (a stopped process, a debugger) silence is its own. */
static void forgive_silence(struct worker *w, uint64_t now_ns) ON_WORKER
{
	uint64_t gap = now_ns - w->now_ns;

	if (w->now_ns == 0)
		return;
	LIST_FOR_EACH(it, &w->peers) {
		struct peer *p = LIST_ENTRY(it, struct peer, link);

		p->last_rx_ns += gap;
		if (p->last_rx_ns > now_ns)
			p->last_rx_ns = now_ns;
	}
}

static void set_now(struct worker *w, uint64_t now_ns) ON_WORKER
{
	if (now_ns <= w->now_ns)
		return;
	if (now_ns - w->now_ns > w->heartbeat_ns)
		forgive_silence(w, now_ns);
	w->now_ns = now_ns;
}

void worker_submit(struct worker *w, struct op *op)
{
	/* Writes alone: only they are in a hurry. What was submitted before comes first. */
	if (w->own_threads || op->kind > OP_SCATTER || !mpsc_empty_hint(&w->inbox)) {
		STAT_ADD_SHARED(w, ops_submitted, 1);
		worker_push(w, &op->request);
		return;
	}
	role_enter(&on_worker); /* the caller drives it */
	STAT_ADD(w, ops_submitted, 1);
	set_now(w, op->submit_ns);
	op_start(w, op);
	role_leave(&on_worker);
	wake_signal_own(&w->wake); /* there may be more to do for it in the next turn */
}

static void run_call(struct worker *w, struct call *c)
{
	struct sema *done = c->done;

	c->fn(w, c->arg);
	sema_post(done); /* the call's memory is the waiter's again */
}

static void take_request(struct worker *w, struct request *r) ON_WORKER
{
	switch (r->kind) {
	case REQUEST_OP:
		op_start(w, LIST_ENTRY(r, struct op, request));
		return;
	case REQUEST_CANCEL:
		op_cancel_request(w, r);
		return;
	case REQUEST_CALL:
		run_call(w, LIST_ENTRY(r, struct call, request));
		return;
	case REQUEST_RECV_BACK:
		recvs_back(w, r);
		return;
	case REQUEST_DEREG:
		mr_dereg_start(w, r);
		return;
	case REQUEST_REMOTE_CLOSE:
		remote_close(w, r);
		return;
	case REQUEST_PEER_DONE:
		peer_done(w, r);
		return;
	}
	ASSERT(false && "a request of ours");
}

static uint32_t take_inbox(struct worker *w, uint32_t max) ON_WORKER
{
	uint32_t n = 0;

	while (n < max) {
		struct mpsc_node *node = mpsc_pop(&w->inbox);

		if (node == NULL)
			break;
		take_request(w, LIST_ENTRY(node, struct request, node));
		n++;
	}
	return n;
}

void worker_call(struct worker *w, void (*fn)(struct worker *w, void *arg), void *arg)
{
	struct sema done;
	struct call c = { .request.kind = REQUEST_CALL, .fn = fn, .arg = arg, .done = &done };

	if (!w->own_threads || plat_thread_is_self(&w->thread)) {
		role_enter(&on_worker); /* this thread is it, or drives it */
		/* A caller that drives may come after any pause: what fn times starts now. */
		if (!w->own_threads)
			set_now(w, engine_now_ns(w->engine));
		/* What this thread submitted before comes first. */
		(void)take_inbox(w, UINT32_MAX);
		fn(w, arg);
		session_bury(w);
		role_leave(&on_worker);
		return;
	}
	sema_init(&done);
	worker_push(w, &c.request);
	sema_wait(&done);
	sema_fini(&done);
}

void worker_ask(struct worker *w, void (*fn)(struct worker *w, void *arg), void *arg)
{
	if (!w->own_threads && mpsc_empty_hint(&w->inbox))
		fn(w, arg);
	else
		worker_call(w, fn, arg);
}

/* --- one turn --- */

/* A batch of a NIC's entries. True: there may be more. */
static bool poll_nic(struct worker *w, uint32_t nic, uint32_t *count) ON_WORKER
{
	uint32_t max = sizeof(w->cqe) / sizeof(w->cqe[0]);
	uint32_t n = w->nic[nic].ops->poll(w->nic[nic].dev, w->now_ns, w->cqe, max);

	ASSERT(n <= max);
	for (uint32_t k = 0; k < n; k++)
		session_cqe(w, nic, &w->cqe[k]);
	*count += n;
	return n == max || (n != 0 && w->cqe[n - 1].kind == PROV_CTL_NEW);
}

static uint32_t poll_nics(struct worker *w) ON_WORKER
{
	uint32_t total = 0;

	w->polled_out = true;
	for (uint32_t i = 0; i < w->dev_count; i++) {
		uint32_t count = 0;
		bool more = poll_nic(w, i, &count);

		/* A new ctl ends a batch: many of them may not keep others' completions back. */
		for (uint32_t k = 0; more && k < NEW_CTLS_MAX && count < NEW_CTLS_MAX; k++)
			more = poll_nic(w, i, &count);
		total += count;
		if (more)
			w->polled_out = false;
	}
	return total;
}

bool worker_polled_out(const struct worker *w)
{
	if (!w->polled_out)
		return false;
	for (uint32_t i = 0; i < w->dev_count; i++)
		if (w->nic[i].ops->next_ns(w->nic[i].dev) <= w->now_ns)
			return false;
	return true;
}

static void run_timers(struct worker *w) ON_WORKER
{
	struct op *op;

	while ((op = timers_pop_due(&w->timers, w->now_ns)) != NULL)
		op_cancel(w, op, WIMM_E_TIMEOUT, "its deadline has passed");
	if (w->now_ns < w->scan_ns)
		return;
	session_scan(w);
	w->scan_ns = clock_deadline_ns(w->now_ns, w->scan_every_ns);
}

bool worker_step(struct worker *w, uint64_t now_ns)
{
	uint32_t done = 0;

	set_now(w, now_ns);
	w->step++;
	STAT_ADD(w, steps, 1);
	done += take_inbox(w, INBOX_BATCH);
	if (!list_empty(&w->talkers))
		session_talk(w);
	if (!list_empty(&w->ready))
		done += post_pending(w);
	done += poll_nics(w);
	if (!list_empty(&w->stage_peers))
		done += stage_step(w);
	if (!list_empty(&w->afters))
		done += after_step(w);
	run_timers(w);
	if (w->chores_ns <= w->now_ns)
		session_chores(w);
	if (w->sends_stuck != 0)
		message_unstick(w);
	if (w->endings != 0 && w->polled_out)
		session_endings(w);
	/* Last: only what happens in a turn can make an answer due, so the worker may sleep. */
	if (!list_empty(&w->retires_new) && mpsc_empty_hint(&w->inbox))
		retire_answer(w);
	session_bury(w);
	return done != 0;
}

uint64_t worker_next_ns(const struct worker *w)
{
	uint64_t next = timers_next_ns(&w->timers);

	if (w->endings != 0 && w->endings_ns < next)
		next = w->endings_ns;
	if (w->chores_ns < next)
		next = w->chores_ns;
	if (w->after_ns < next && !list_empty(&w->afters))
		next = w->after_ns;
	if (w->scan_ns < next && (!list_empty(&w->peers) || !list_empty(&w->strangers)))
		next = w->scan_ns;
	for (uint32_t i = 0; i < w->dev_count; i++) {
		uint64_t dev_ns = w->nic[i].ops->next_ns(w->nic[i].dev);

		if (dev_ns < next)
			next = dev_ns;
	}
	return next;
}

/* --- sleeping --- */

bool worker_may_sleep(const struct worker *w)
{
	return mpsc_empty_hint(&w->inbox) && list_empty(&w->ready) && w->polled_out &&
	       list_empty(&w->stage_peers) && list_empty(&w->retires_new);
}

/* Announce sleep and look once more; false: there is something to do. */
static bool arm(struct worker *w) ON_WORKER
{
	wake_announce(&w->wake);
	if (worker_may_sleep(w)) {
		bool quiet = true;

		for (uint32_t i = 0; i < w->dev_count && quiet; i++)
			quiet = !w->nic[i].caps.wait_fd ||
			        w->nic[i].ops->arm(w->nic[i].dev);
		if (quiet)
			return true;
	}
	wake_cancel(&w->wake);
	return false;
}

void worker_arm(struct worker *w, bool may_sleep)
{
	/* What an earlier call has left armed or signalled is over: the turns since saw it. */
	wake_cancel(&w->wake);
	wake_drain(&w->wake);
	/* No descriptor tells that a stream has come so far. */
	if (!may_sleep || !list_empty(&w->afters) || !arm(w))
		wake_signal_always(&w->wake);
}

/* Whether immediates come in a rhythm, and the worker may be awake for the next. */
static bool expects(const struct worker *w) ON_WORKER
{
	return w->own_threads && rhythm_is_steady(&w->arrivals) &&
	       atomic_load_explicit(&w->engine->may_spin, memory_order_relaxed) != 0;
}

/* Be ready for what is due. */
static void look_ahead(struct worker *w, uint64_t now_ns) ON_WORKER
{
	uint64_t until_ns = rhythm_until(&w->arrivals, now_ns);

	if (until_ns > w->told_ns && expects(w)) {
		deliver_soon(w->engine, until_ns);
		w->told_ns = until_ns;
	}
	if (now_ns < deliver_soon_ns(w->engine)) {
		plat_code_touch(&w->code);
		if (now_ns >= w->touch_ns) {
			w->touch_ns = now_ns + WARM_NS;
			count_touch(w);
		}
	}
	if (now_ns < w->warm_ns ||
	    now_ns >= atomic_load_explicit(&w->engine->post_soon_ns, memory_order_relaxed))
		return;
	w->warm_ns = now_ns + WARM_NS;
	for (uint32_t i = 0; i < w->dev_count; i++)
		w->nic[i].ops->warm(w->nic[i].dev);
}

void worker_wait(struct worker *w, uint64_t deadline_ns)
{
	uint64_t next = worker_next_ns(w);
	uint64_t now = engine_now_ns(w->engine);
	struct pollfd pfd = { .fd = w->epoll_fd, .events = POLLIN };
	struct timespec ts;
	uint64_t wait_ns;

	if (deadline_ns < next)
		next = deadline_ns;
	if (expects(w) && rhythm_from(&w->arrivals) > now && rhythm_from(&w->arrivals) < next)
		next = rhythm_from(&w->arrivals);
	if (!w->all_have_fd) {
		w->pause_ns = w->pause_ns * 2 < PAUSE_MAX_NS ? w->pause_ns * 2 : PAUSE_MAX_NS;
		if (clock_deadline_ns(now, w->pause_ns) < next)
			next = clock_deadline_ns(now, w->pause_ns);
	}
	if (next <= now || !arm(w))
		return;
	wait_ns = next - now;
	ts.tv_sec = (time_t)(wait_ns / CLOCK_NS_PER_S);
	ts.tv_nsec = (long)(wait_ns % CLOCK_NS_PER_S);
	STAT_ADD(w, sleeps, 1);
	if (ppoll(&pfd, 1, next == CLOCK_NEVER_NS ? NULL : &ts, NULL) > 0 && w->own_threads &&
	    mpsc_empty_hint(&w->inbox) && deliver_any_open(w->engine))
		deliver_soon(w->engine, engine_now_ns(w->engine) + WOKEN_NS);
	wake_cancel(&w->wake);
	wake_drain(&w->wake);
}

/* The NUMA node of all NICs; none where they differ or have none. */
static int nics_node(const struct worker *w)
{
	int node = w->nic_count != 0 ? w->nic[0].caps.numa_node : NUMA_NODE_NONE;

	for (uint32_t i = 1; i < w->nic_count; i++)
		if (w->nic[i].caps.numa_node != node)
			return NUMA_NODE_NONE;
	return node;
}

static void worker_main(void *arg)
{
	struct worker *w = arg;
	uint64_t idle_since = 0;

	role_enter(&on_worker);
	plat_code_find(&w->code);
	if (w->thread.cpu_index == PLAT_CPU_ANY)
		plat_thread_stay_on_node(nics_node(w));
	/* Acquire, with the release in worker_stop(). */
	while (atomic_load_explicit(&w->stop, memory_order_acquire) == 0) {
		uint64_t now = engine_turn_ns(w->engine);

		if (worker_step(w, now)) {
			idle_since = 0;
			w->pause_ns = PAUSE_MIN_NS / 2;
			continue;
		}
		look_ahead(w, now);
		if (w->busy_poll)
			continue;
		if (idle_since == 0)
			idle_since = now;
		if (now - idle_since < w->spin_ns || now < deliver_soon_ns(w->engine)) {
			plat_cpu_relax();
			continue;
		}
		worker_wait(w, CLOCK_NEVER_NS);
	}
	role_leave(&on_worker);
}

wimm_status worker_start(struct worker *w)
{
	int cpu = (int)config_get_i64(CFG_PROGRESS_CPU);

	w->own_threads = true;
	return plat_thread_start(&w->thread, worker_main, w, "wimm-worker", cpu);
}

void worker_stop(struct worker *w)
{
	atomic_store_explicit(&w->stop, 1, memory_order_release);
	wake_signal_always(&w->wake);
	plat_thread_join(&w->thread);
	w->own_threads = false;
}
