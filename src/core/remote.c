/* SPDX-License-Identifier: Apache-2.0 */
/* Peers' regions: handles, the first-use check, revocation. */
#include "core/args.h"
#include "core/engine.h"
#include "core/error_text.h"
#include "core/fence.h"

#include "base/alloc.h"
#include "base/assert.h"

#include <inttypes.h>
#include <string.h>

static void set_state(struct wimm_remote_mr *r, enum remote_state state)
{
	/* Release, with the acquire in remote_usable(). */
	atomic_store_explicit(&r->public_state, state, memory_order_release);
}

static enum remote_state state_of(const struct wimm_remote_mr *r)
{
	/* Relaxed: the worker is the only writer and asks here. */
	return (enum remote_state)atomic_load_explicit(&r->public_state, memory_order_relaxed);
}

wimm_status remote_usable(const struct wimm_engine *engine, const struct wimm_remote_mr *r)
{
	if (r == NULL || r->worker != &engine->worker ||
	    atomic_load_explicit(&r->closed, memory_order_relaxed) != 0)
		return WIMM_E_INVAL;
	switch ((enum remote_state)atomic_load_explicit(&r->public_state, memory_order_acquire)) {
	case REMOTE_NEW:
	case REMOTE_VALID:
		return WIMM_OK;
	case REMOTE_REVOKED:
		error_text_set("the peer has deregistered region %" PRIu32 " (generation %08" PRIx32
		               "): get a new descriptor",
		               r->region_slot, r->region_generation);
		return WIMM_E_REVOKED;
	case REMOTE_LOST:
		/* The peer stays while this handle is open, and its last words do not change. */
		error_text_set("peer %" PRIx64 ", which owns the region, is lost: %s", r->peer_id,
		               r->peer->text);
		return r->peer->cause == WIMM_E_PEER_RESTARTED ? WIMM_E_PEER_RESTARTED
		                                               : WIMM_E_PEER_LOST;
	case REMOTE_FREE:
		break;
	}
	return WIMM_E_INVAL;
}

static void send_check(struct worker *w, struct wimm_remote_mr *r) ON_WORKER
{
	struct wire_msg m = { .type = WIRE_MR_CHECK };

	if (r->check_sent || r->peer->state != PEER_UP)
		return;
	r->check_sent = true;
	m.u.mr.region_slot = r->region_slot;
	m.u.mr.generation = r->region_generation;
	session_say(w, r->peer, &m);
}

static void leg_wait(struct leg *leg)
{
	leg->state = LEG_WAITING;
	list_push_back(&leg->dst->waiting, &leg->link);
}

void remote_leg(struct worker *w, struct leg *leg)
{
	struct wimm_remote_mr *r = leg->dst;
	enum remote_state state = state_of(r);

	if (atomic_load_explicit(&r->generation, memory_order_relaxed) != leg->dst_generation)
		state = REMOTE_FREE; /* closed by another thread while this was being submitted */
	if (state == REMOTE_VALID && !r->peer->stopped) {
		leg->held = true;
		r->refs++;
		if (leg->op->mark == NULL)
			post_leg_ready(w, leg, true);
		else
			leg_wait(leg);
		return;
	}
	if ((state == REMOTE_NEW || state == REMOTE_VALID) && r->peer->stopped) {
		post_fail_leg(w, leg, WIMM_E_PEER_LOST, "the peer has fenced this side off");
		return;
	}
	switch (state) {
	case REMOTE_FREE:
		post_fail_leg(w, leg, WIMM_E_INVAL, "the remote region was closed");
		return;
	case REMOTE_REVOKED:
		post_fail_leg(w, leg, WIMM_E_REVOKED, "the peer has deregistered the region");
		return;
	case REMOTE_LOST:
		post_fail_leg(w, leg, r->peer->cause, r->peer->text);
		return;
	case REMOTE_NEW:
		leg->held = true;
		r->refs++;
		leg_wait(leg);
		send_check(w, r);
		return;
	case REMOTE_VALID:
		return; /* above */
	}
}

void remote_leg_go(struct worker *w, struct leg *leg)
{
	if (leg->state != LEG_WAITING || state_of(leg->dst) != REMOTE_VALID)
		return; /* failed, or the owner has not answered */
	list_remove(&leg->link);
	post_leg_ready(w, leg, true);
}

/* --- the handles of one region: a ring, of which peer.by_region has one --- */

static uint64_t region_key(uint32_t slot, uint32_t generation)
{
	return (uint64_t)slot << 32 | generation;
}

static struct wimm_remote_mr *ring_find(const struct peer *p, uint32_t slot, uint32_t generation)
{
	return hash_find_ptr(&p->by_region, region_key(slot, generation));
}

static struct wimm_remote_mr *ring_next(const struct wimm_remote_mr *r)
{
	return LIST_ENTRY(r->same.next, struct wimm_remote_mr, same);
}

static wimm_status ring_join(struct peer *p, struct wimm_remote_mr *r)
{
	struct wimm_remote_mr *first = ring_find(p, r->region_slot, r->region_generation);

	list_init(&r->same);
	if (first == NULL)
		return hash_insert_ptr(&p->by_region,
		                       region_key(r->region_slot, r->region_generation), r);
	list_push_back(&first->same, &r->same);
	return WIMM_OK;
}

static void ring_leave(struct peer *p, struct wimm_remote_mr *r)
{
	uint64_t key = region_key(r->region_slot, r->region_generation);

	if (list_empty(&r->same))
		(void)hash_remove(&p->by_region, key);
	else /* in its place, so that nothing is allocated */
		ASSERT(hash_insert_ptr(&p->by_region, key, ring_next(r)) == WIMM_OK);
	list_remove(&r->same);
}

static void remote_free(struct worker *w, struct wimm_remote_mr *r) ON_WORKER
{
	struct region_table *t = &w->engine->regions;
	struct peer *p = r->peer;

	ring_leave(p, r);
	list_remove(&r->link);
	r->peer = NULL;
	set_state(r, REMOTE_FREE);
	t->remote_free[t->remote_free_count++] = r->slot;
	p->refs--;
	peer_maybe_free(w, p);
}

static void revoke_ack(struct worker *w, struct wimm_remote_mr *r) ON_WORKER
{
	r->revoke_owed = false;
	for (struct wimm_remote_mr *q = ring_next(r); q != r; q = ring_next(q))
		if (q->revoke_owed)
			return;
	drain_ack(w, r->peer, r->region_slot, r->region_generation);
}

/* One reference less. */
static void let_go(struct worker *w, struct wimm_remote_mr *r) ON_WORKER
{
	DASSERT(r->refs != 0);
	if (--r->refs != 0)
		return;
	if (r->revoke_owed)
		revoke_ack(w, r);
	/* Unless the peer was lost over it, and with it the handle. */
	if (r->closing && r->refs == 0 && state_of(r) != REMOTE_FREE)
		remote_free(w, r);
}

void remote_leg_done(struct worker *w, struct leg *leg)
{
	if (!leg->held)
		return;
	leg->held = false;
	let_go(w, leg->dst);
}

void remote_peer_up(struct worker *w, struct peer *p)
{
	LIST_FOR_EACH(it, &p->remotes) {
		struct wimm_remote_mr *r = LIST_ENTRY(it, struct wimm_remote_mr, link);

		if (!list_empty(&r->waiting))
			send_check(w, r);
		if (p->state != PEER_UP)
			return;
	}
}

static void fail_waiting(struct worker *w, struct wimm_remote_mr *r, wimm_status status,
                         const char *text) ON_WORKER
{
	while (!list_empty(&r->waiting))
		post_fail_leg(w, LIST_ENTRY(r->waiting.next, struct leg, link), status, text);
}

/* Failing one leg may settle an operation, and so let go of other handles: they stay while a list
 * of them is walked. */
static void hold_all(struct peer *p)
{
	LIST_FOR_EACH(it, &p->remotes)
		LIST_ENTRY(it, struct wimm_remote_mr, link)->refs++;
}

static void release_all(struct worker *w, struct peer *p) ON_WORKER
{
	LIST_FOR_EACH(it, &p->remotes)
		let_go(w, LIST_ENTRY(it, struct wimm_remote_mr, link)); /* frees itself only */
}

void remote_stop(struct worker *w, struct peer *p, wimm_status status, const char *text)
{
	hold_all(p);
	LIST_FOR_EACH(it, &p->remotes)
		fail_waiting(w, LIST_ENTRY(it, struct wimm_remote_mr, link), status, text);
	release_all(w, p);
}

void remote_peer_down(struct worker *w, struct peer *p)
{
	hold_all(p);
	LIST_FOR_EACH(it, &p->remotes) {
		struct wimm_remote_mr *r = LIST_ENTRY(it, struct wimm_remote_mr, link);

		set_state(r, REMOTE_LOST);
		r->revoke_owed = false;
		fail_waiting(w, r, p->cause, p->text);
	}
	release_all(w, p);
}

/* --- what the owner says --- */

/* Do something to all handles of the region that a message names. Returns whether it says yes for
 * any of them. */
static bool each_handle(struct worker *w, struct peer *p, const struct wire_msg *m,
                        bool (*act)(struct worker *w, struct wimm_remote_mr *r,
                                    const struct wire_msg *m)) ON_WORKER
{
	struct wimm_remote_mr *first = ring_find(p, m->u.mr.region_slot, m->u.mr.generation);
	struct wimm_remote_mr *r = first, *next;
	bool any = false;

	if (first == NULL)
		return false;
	do {
		r->refs++;
		r = ring_next(r);
	} while (r != first);
	do {
		any = act(w, r, m) || any;
		r = ring_next(r);
	} while (r != first);
	for (r = ring_next(first); r != first; r = next) {
		next = ring_next(r);
		let_go(w, r);
	}
	let_go(w, first);
	return any;
}

/* The region ends: nothing new is posted. Returns whether something is under way. */
static bool revoke(struct worker *w, struct wimm_remote_mr *r, const struct wire_msg *m) ON_WORKER
{
	(void)m;
	set_state(r, REMOTE_REVOKED);
	fail_waiting(w, r, WIMM_E_REVOKED, "the peer has deregistered the region");
	if (r->refs > 1)
		post_fail_region(w, r);
	r->revoke_owed = r->refs > 1; /* its owner hears when the last of it has drained */
	return r->revoke_owed;
}

/* Waiting for the owner's answer alone. */
static struct leg *first_ready(struct wimm_remote_mr *r)
{
	LIST_FOR_EACH(it, &r->waiting)
		if (LIST_ENTRY(it, struct leg, link)->op->mark == NULL)
			return LIST_ENTRY(it, struct leg, link);
	return NULL;
}

/* The owner has said whether the region stands. */
static bool checked(struct worker *w, struct wimm_remote_mr *r, const struct wire_msg *m) ON_WORKER
{
	struct leg *leg;

	if (state_of(r) != REMOTE_NEW)
		return false;
	if (m->u.mr.status != WIMM_OK) {
		set_state(r, REMOTE_REVOKED);
		fail_waiting(w, r, WIMM_E_REVOKED,
		             "the peer does not know the region: it was deregistered");
		return false;
	}
	set_state(r, REMOTE_VALID);
	while (state_of(r) == REMOTE_VALID && (leg = first_ready(r)) != NULL)
		remote_leg_go(w, leg);
	return false;
}

void remote_message(struct worker *w, struct peer *p, const struct wire_msg *m)
{
	if (m->type != WIRE_REVOKE)
		(void)each_handle(w, p, m, checked);
	else if (!each_handle(w, p, m, revoke))
		drain_ack(w, p, m->u.mr.region_slot, m->u.mr.generation);
}

void remote_close(struct worker *w, struct request *request)
{
	struct wimm_remote_mr *r = LIST_ENTRY(request, struct wimm_remote_mr, request);

	r->closing = true;
	if (r->refs == 0)
		remote_free(w, r);
}

void remotes_fini(struct region_table *t)
{
	for (uint32_t i = 0; i < t->remote_used; i++)
		mem_free(t->remote[i]);
	mem_free(t->remote);
	mem_free(t->remote_free);
	t->remote = NULL;
	t->remote_free = NULL;
	t->remote_used = 0;
}

/* --- opening --- */

struct open_args {
	const struct wire_desc *desc;
	struct wimm_remote_mr *out;
	wimm_status status;
};

static struct wimm_remote_mr *remote_slot(struct worker *w)
{
	struct region_table *t = &w->engine->regions;
	struct wimm_remote_mr *r;

	if (t->remote_free_count != 0)
		return t->remote[t->remote_free[--t->remote_free_count]];
	if (t->remote_used == t->remote_max) {
		uint32_t max = t->remote_max == 0 ? 64 : t->remote_max * 2;
		struct wimm_remote_mr **slots = mem_realloc(t->remote, max * sizeof(*slots));
		uint32_t *frees;

		if (slots == NULL)
			return NULL;
		t->remote = slots;
		frees = mem_realloc(t->remote_free, max * sizeof(*frees));
		if (frees == NULL)
			return NULL;
		t->remote_free = frees;
		t->remote_max = max;
	}
	r = mem_calloc(1, sizeof(*r));
	if (r == NULL)
		return NULL;
	r->slot = t->remote_used;
	t->remote[t->remote_used++] = r;
	return r;
}

static void open_on_worker(struct worker *w, void *arg) ON_WORKER
{
	struct open_args *a = arg;
	struct peer *p = peer_get(w, &a->desc->owner, &a->status);
	struct wimm_remote_mr *r = p != NULL ? remote_slot(w) : NULL;

	if (p == NULL)
		return;
	if (r == NULL) {
		a->status = WIMM_E_NOMEM;
		return;
	}
	r->worker = w;
	r->request.kind = REQUEST_REMOTE_CLOSE;
	r->base = a->desc->base;
	r->len_bytes = a->desc->len_bytes;
	r->region_slot = a->desc->region_slot;
	r->region_generation = a->desc->generation;
	r->key_count = a->desc->owner.nic_count;
	r->gpu = a->desc->kind == WIRE_MEMORY_CUDA;
	r->card = a->desc->card;
	memcpy(r->key, a->desc->key, sizeof(a->desc->key));
	r->key[WIMM_MAX_NICS] = (uint64_t)r->region_generation << 32 | r->region_slot;
	if (ring_join(p, r) != WIMM_OK) {
		w->engine->regions.remote_free[w->engine->regions.remote_free_count++] = r->slot;
		a->status = WIMM_E_NOMEM;
		return;
	}
	r->peer = p;
	r->peer_id = peer_id(p);
	r->refs = 0;
	r->check_sent = false;
	r->closing = false;
	atomic_store_explicit(&r->closed, 0, memory_order_relaxed); /* published with the state */
	r->revoke_owed = false;
	list_init(&r->waiting);
	list_push_back(&p->remotes, &r->link);
	p->refs++;
	atomic_fetch_add_explicit(&r->generation, 1, memory_order_relaxed);
	set_state(r, p->state == PEER_DOWN ? REMOTE_LOST : REMOTE_NEW);
	a->out = r;
	a->status = WIMM_OK;
}

wimm_status wimm_open_remote_mr(struct wimm_engine *engine, const struct wimm_mr_desc *desc,
                                struct wimm_remote_mr **out)
{
	wimm_status st = engine_check(engine);
	struct wire_desc d;
	struct open_args a = { .desc = &d };

	if (st == WIMM_OK && (desc == NULL || out == NULL))
		st = args_null(desc == NULL ? "desc" : "out");
	if (st == WIMM_OK)
		st = wire_desc_decode(desc, &d);
	if (st != WIMM_OK)
		return st;
	if (strcmp(d.owner.provider, engine->worker.prov->name) != 0) {
		error_text_set("the descriptor's owner uses provider %s, this engine %s",
		               d.owner.provider, engine->worker.prov->name);
		return WIMM_E_UNSUPPORTED;
	}
	worker_call(&engine->worker, open_on_worker, &a);
	if (a.status == WIMM_E_LIMIT)
		peer_no_room_text(&engine->worker);
	if (a.status == WIMM_OK)
		*out = a.out;
	return a.status;
}

wimm_status wimm_close_remote_mr(struct wimm_engine *engine, struct wimm_remote_mr *r)
{
	wimm_status st = engine_check(engine);

	if (st != WIMM_OK)
		return st;
	if (r == NULL || r->worker != &engine->worker ||
	    atomic_load_explicit(&r->public_state, memory_order_acquire) == REMOTE_FREE ||
	    atomic_exchange_explicit(&r->closed, 1, memory_order_relaxed) != 0) { /* one wins */
		error_text_set("the remote region is none of this engine's, or is closed");
		return WIMM_E_INVAL;
	}
	worker_push(&engine->worker, &r->request);
	return WIMM_OK;
}

uint64_t wimm_remote_mr_len_bytes(const struct wimm_remote_mr *r)
{
	return r != NULL ? r->len_bytes : 0;
}

wimm_peer wimm_remote_mr_peer(const struct wimm_remote_mr *r)
{
	return r != NULL ? r->peer_id : 0;
}
