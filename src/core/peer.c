/* SPDX-License-Identifier: Apache-2.0 */
/* The table of peers: slots, ids, events, and how a peer is lost. */
#include "core/engine.h"
#include "core/fence.h"
#include "core/session.h"
#include "core/stage.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/log.h"
#include "plat/clock.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Lost peers whose last error can still be asked for. */
#define BURIED_MAX 256
/* The end of a path and the goodbye travel on different connections. */
#define GOODBYE_GRACE_NS (20 * CLOCK_NS_PER_MS)

wimm_peer peer_id(const struct peer *p)
{
	return (uint64_t)p->generation << 32 | (p->slot + 1);
}

struct peer *peer_real(struct peer *p)
{
	while (p != NULL && p->alias != NULL)
		p = p->alias;
	return p;
}

static struct peer *slot_load(struct worker *w, wimm_peer id)
{
	uint32_t slot = (uint32_t)id - 1;

	if (slot >= w->max_peers)
		return NULL;
	/* [A] with [B] in peer_new(): the peer is initialised before it is published. */
	return atomic_load_explicit(&w->peer_slot[slot], memory_order_acquire);
}

struct peer *peer_by_id(struct worker *w, wimm_peer id)
{
	struct peer *p = slot_load(w, id);

	if (p == NULL || p->state == PEER_FREE || p->generation != id >> 32)
		return NULL;
	return peer_real(p);
}

bool peer_was_there(struct worker *w, wimm_peer id)
{
	struct peer *p = slot_load(w, id);

	/* Relaxed: an id that the caller has was given out before. */
	return p != NULL &&
	       atomic_load_explicit(&p->public_state, memory_order_relaxed) >> 8 >= id >> 32;
}

enum peer_state peer_public_state(struct worker *w, wimm_peer id)
{
	struct peer *p = slot_load(w, id);
	uint64_t state;

	if (p == NULL)
		return PEER_FREE;
	/* Acquire, with the release in peer_set_state(). */
	state = atomic_load_explicit(&p->public_state, memory_order_acquire);
	return state >> 8 == id >> 32 ? (enum peer_state)(state & 0xff) : PEER_FREE;
}

void peer_set_state(struct peer *p, enum peer_state state)
{
	p->state = state;
	p->straight = NULL;
	/* Release, with the acquire in peer_public_state(). */
	atomic_store_explicit(&p->public_state, PEER_PUBLIC(p->generation, state),
	                      memory_order_release);
}

/* Of all bytes: instances come from outside, and one that is another but for its last byte must not
 * take the other's place. Seeded, so that nobody can make two that do. */
static uint64_t instance_hash(const struct worker *w, const uint8_t *instance) ON_WORKER
{
	uint64_t half[2], x;

	_Static_assert(sizeof(half) == WIMM_INSTANCE_BYTES, "two halves");
	memcpy(half, instance, sizeof(half));
	x = half[1] ^ w->by_instance.seed;
	x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
	return half[0] ^ x ^ (x >> 31);
}

struct peer *peer_by_instance(struct worker *w, const uint8_t *instance)
{
	struct peer *p = hash_find_ptr(&w->by_instance, instance_hash(w, instance));

	if (p == NULL || memcmp(p->addr.instance, instance, WIMM_INSTANCE_BYTES) != 0)
		return NULL;
	return p;
}

wimm_status peer_index(struct worker *w, struct peer *p)
{
	uint64_t key = instance_hash(w, p->addr.instance);

	if (hash_find(&w->by_instance, key, NULL))
		return WIMM_E_BUSY; /* two of 2^64 that are alike: the first stays */
	return hash_insert_ptr(&w->by_instance, key, p);
}

static void peer_unindex(struct worker *w, struct peer *p) ON_WORKER
{
	uint64_t key = instance_hash(w, p->addr.instance);

	if (hash_find_ptr(&w->by_instance, key) == p)
		(void)hash_remove(&w->by_instance, key);
}

static void peer_reset(struct peer *p) ON_WORKER
{
	uint32_t generation = p->generation + 1;
	uint32_t slot = p->slot;
	struct worker *w = p->worker;

	memset((char *)p + offsetof(struct peer, done), 0,
	       sizeof(*p) - offsetof(struct peer, done));
	p->worker = w;
	p->slot = slot;
	p->host_path = NO_HOST_PATH;
	p->ordered = true;
	p->generation = generation != 0 ? generation : 1;
	p->done.kind = REQUEST_PEER_DONE;
	list_init(&p->link);
	list_init(&p->pending);
	list_init(&p->ready_link);
	list_init(&p->remotes);
	list_init(&p->owed_acks);
	list_init(&p->sends);
	list_init(&p->confirms);
	list_init(&p->stage_link);
	p->stage_tx = NULL;
	p->stage_rx = NULL;
	p->land_wanted = false;
	list_init(&p->confirming);
	list_init(&p->outbox);
	list_init(&p->talk_link);
	list_init(&p->parts_done);
	list_init(&p->retires_asked);
	list_init(&p->retires_heard);
	list_init(&p->retires);
	list_init(&p->retires_wait);
	list_init(&p->retires_confirming);
	list_init(&p->retires_told);
	list_init(&p->doubts);
	hash_init(&p->parts, worker_random(w));
	hash_init(&p->by_region, w->by_instance.seed);
	for (uint32_t i = 0; i < WIRE_MAX_PATHS; i++) {
		p->path[i].context.kind = CONTEXT_PATH;
		p->path[i].peer = p;
		p->path[i].index = i;
		p->path[i].bit = UINT32_C(1) << i;
	}
}

void peer_set_timeout(struct worker *w, struct peer *p, uint64_t own_ns)
{
	uint64_t wanted_ns = own_ns != 0 ? own_ns : w->peer_timeout_ns;

	p->own_timeout_ns = own_ns;
	p->timeout_ns = wanted_ns > p->min_timeout_ns ? wanted_ns : p->min_timeout_ns;
	if (p->progress_mode == WIMM_PROGRESS_CALLER)
		p->timeout_ns *= 4; /* it answers only when its program calls */
}

static void peer_exhume(struct worker *w) ON_WORKER;

struct peer *peer_new(struct worker *w, const struct wire_addr *addr)
{
	uint32_t slot;
	struct peer *p;

	if (w->peer_free_count == 0)
		peer_exhume(w);
	if (w->peer_free_count == 0)
		return NULL;
	slot = w->peer_free[w->peer_free_count - 1];
	p = atomic_load_explicit(&w->peer_slot[slot], memory_order_relaxed); /* only we store */
	if (p == NULL) {
		p = mem_alloc_aligned(64, sizeof(*p));
		if (p == NULL)
			return NULL;
		p->slot = slot;
		p->worker = w;
		/* [B] with [A] in slot_load(). */
		atomic_store_explicit(&w->peer_slot[slot], p, memory_order_release);
	}
	w->peer_free_count--;
	peer_reset(p);
	p->addr = *addr;
	for (size_t i = 0; i < WIMM_INSTANCE_BYTES; i++)
		p->instance_known = p->instance_known || addr->instance[i] != 0;
	p->timeout_ns = w->peer_timeout_ns;
	p->last_rx_ns = w->now_ns;
	p->max_msg_bytes = w->max_msg_bytes;
	list_push_back(&w->peers, &p->link);
	peer_set_state(p, PEER_CONNECTING);
	return p;
}

static void event_run(struct delivery *d)
{
	struct peer_event *e = LIST_ENTRY(d, struct peer_event, delivery);
	struct wimm_engine *engine = e->worker->engine;
	struct peer *owner = e->owner;

	if (engine->opts.on_peer_event != NULL)
		engine->opts.on_peer_event(engine->opts.context, &e->event);
	if (owner != NULL)
		worker_push(e->worker, &owner->done);
	else if (e->heap)
		mem_free(e);
}

void peer_event(struct worker *w, struct peer *p, wimm_peer_event_kind kind, wimm_status cause,
                uint32_t nic_index, const char *text)
{
	struct peer_event *e = kind == WIMM_PEER_UP ? &p->up_event : &p->down_event;
	bool own = kind == WIMM_PEER_UP || kind == WIMM_PEER_DOWN;

	if (!own) {
		if (w->engine->opts.on_peer_event == NULL)
			return;
		e = mem_calloc(1, sizeof(*e));
		if (e == NULL) {
			LOG_WARN("peer %" PRIu64 ": event lost for want of memory: %s", peer_id(p),
			         text);
			return;
		}
		e->heap = true;
	}
	e->worker = w;
	e->delivery.run = event_run;
	e->owner = kind == WIMM_PEER_DOWN ? p : NULL;
	e->event.kind = kind;
	e->event.cause = cause;
	e->event.peer = peer_id(p);
	e->event.nic_index = nic_index;
	memcpy(e->event.instance, p->addr.instance, WIMM_INSTANCE_BYTES);
	(void)snprintf(e->text, sizeof(e->text), "%s", text);
	e->event.text = e->text;
	deliver_push(w->engine, &e->delivery);
}

static void paths_close(struct worker *w, struct peer *p)
{
	for (uint32_t i = 0; i < p->path_count; i++) {
		struct path *path = &p->path[i];

		if (path->state != PATH_UP && path->state != PATH_OPENING)
			continue;
		path_set_state(path, PATH_CLOSING);
		path_ops(w, path)->path_close(path->prov);
	}
	p->paths_up = 0;
}

void peer_alias_up(struct worker *w, struct peer *p)
{
	peer_set_state(p, PEER_UP);
	peer_event(w, p, WIMM_PEER_UP, WIMM_OK, 0, "");
}

static void aliases_down(struct worker *w, struct peer *p)
{
	LIST_FOR_EACH(it, &w->peers) {
		struct peer *q = LIST_ENTRY(it, struct peer, link);

		if (q->alias != p || q->state == PEER_DOWN)
			continue;
		q->cause = p->cause;
		q->vendor_code = p->vendor_code;
		memcpy(q->text, p->text, sizeof(q->text));
		peer_set_state(q, PEER_DOWN);
		peer_event(w, q, WIMM_PEER_DOWN, p->cause, 0, p->text);
	}
}

void peer_down(struct worker *w, struct peer *p, wimm_status cause, uint32_t vendor_code,
               const char *fmt, ...)
{
	bool was_up = p->state == PEER_UP;
	struct peer *heir;
	va_list args;

	if (p->state == PEER_DOWN || p->state == PEER_FREE)
		return;
	if (p->ending_step != 0)
		w->endings--;
	if (p->leaving)
		cause = WIMM_E_CLOSED; /* it closes its end since this side said goodbye */
	va_start(args, fmt);
	(void)vsnprintf(p->text, sizeof(p->text), fmt, args);
	va_end(args);
	heir = p->contested && cause == WIMM_E_PEER_LOST && !p->goodbye ? path_heir(w, p) : NULL;
	if (heir != NULL)
		cause = WIMM_E_PEER_RESTARTED;
	p->cause = cause;
	p->vendor_code = vendor_code;
	if (cause == WIMM_E_CLOSED || p->goodbye) /* nothing went wrong */
		LOG_INFO("peer %" PRIx64 " closed: %s", peer_id(p), p->text);
	else
		LOG_WARN("peer %" PRIx64 " down: %s: %s", peer_id(p), wimm_status_name(cause),
		         p->text);
	if (was_up)
		STAT_SUB(w, peers_up, 1);
	peer_set_state(p, PEER_DOWN);
	peer_unindex(w, p);
	if (list_linked(&p->ready_link))
		list_remove(&p->ready_link);
	paths_close(w, p);
	session_drop_ctl(w, p);
	drain_peer_down(p);
	remote_peer_down(w, p);
	post_peer_down(w, p);
	stage_peer_down(w, p);
	doubt_peer_down(w, p);
	message_peer_down(w, p);
	if (p->paths_open == 0) {
		stage_peer_closed(w, p);
		mr_peer_down(w, p);
	}
	count_peer_down(w, p, p->goodbye);
	aliases_down(w, p);
	peer_event(w, p, WIMM_PEER_DOWN, cause, 0, p->text);
	if (heir != NULL)
		path_restarted(w, heir);
	fence_peer_down(w, p);
}

void peer_ending(struct worker *w, struct peer *p, bool may_speak, wimm_status cause,
                 uint32_t vendor_code, const char *fmt, ...)
{
	va_list args;

	bool silent = !may_speak || p->ctl == NULL || p->goodbye;

	if (p->state == PEER_DOWN || p->state == PEER_FREE || (p->ending_step != 0 && !silent))
		return;
	p->ending_ns = silent ? w->now_ns : clock_deadline_ns(w->now_ns, GOODBYE_GRACE_NS);
	if (w->endings == 0 || p->ending_ns < w->endings_ns)
		w->endings_ns = p->ending_ns;
	if (p->ending_step != 0)
		return; /* the first cause counts */
	p->ending_step = w->step;
	p->straight = NULL;
	p->ending_cause = cause;
	p->ending_code = vendor_code;
	w->endings++;
	va_start(args, fmt);
	(void)vsnprintf(p->ending_text, sizeof(p->ending_text), fmt, args);
	va_end(args);
}

/* Give back the slot of the peer that was lost longest ago. */
static void peer_exhume(struct worker *w) ON_WORKER
{
	struct list *link = list_pop_front(&w->buried);

	if (link == NULL)
		return;
	w->buried_count--;
	peer_free(w, LIST_ENTRY(link, struct peer, ready_link));
}

void peer_free(struct worker *w, struct peer *p)
{
	if (w->self_peer == p)
		w->self_peer = NULL;
	ASSERT(list_empty(&p->remotes) && list_empty(&p->sends) && list_empty(&p->pending));
	peer_unindex(w, p);
	hash_fini(&p->by_region);
	list_remove(&p->link);
	LIST_FOR_EACH(it, &w->peers) {
		struct peer *q = LIST_ENTRY(it, struct peer, link);

		if (q->alias == p) {
			q->alias = NULL;
			peer_maybe_free(w, q);
			it_next = w->peers.next; /* the list changed: start again */
		}
	}
	peer_set_state(p, PEER_FREE);
	w->peer_free[w->peer_free_count++] = p->slot;
}

/* Nothing refers to it any more. It stays for a while, so that its last error can be asked for. */
void peer_maybe_free(struct worker *w, struct peer *p)
{
	if (p->state != PEER_DOWN || !p->down_delivered || p->refs != 0 || p->paths_open != 0 ||
	    p->alias != NULL || !list_empty(&p->remotes) || list_linked(&p->ready_link))
		return;
	list_push_back(&w->buried, &p->ready_link);
	if (++w->buried_count > BURIED_MAX || w->peer_free_count == 0)
		peer_exhume(w);
}

void peer_done(struct worker *w, struct request *r)
{
	struct peer *p = LIST_ENTRY(r, struct peer, done);

	p->down_delivered = true;
	peer_maybe_free(w, p);
}
