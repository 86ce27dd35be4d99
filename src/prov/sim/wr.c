/* SPDX-License-Identifier: Apache-2.0 */
/* Work requests: a write flies as several pieces, each copied when it lands, so that a source that
 * changes too early, or is read too late, shows. */

#include "prov/sim/sim_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define CHUNK_REQUESTS 32u
#define EVENTS_EACH    (2u * SIM_PIECES_MAX + 1u)

struct wr_chunk {
	struct list link; /* world->chunks */
	struct sim_wr request[CHUNK_REQUESTS];
};

static bool pool_grow(struct sim_world *w)
{
	struct wr_chunk *chunk = mem_calloc(1, sizeof(*chunk));

	if (!chunk)
		return false;
	if (!sim_heap_reserve(&w->heap, CHUNK_REQUESTS * EVENTS_EACH)) {
		mem_free(chunk);
		return false;
	}
	list_push_back(&w->chunks, &chunk->link);
	for (uint32_t i = 0; i < CHUNK_REQUESTS; i++)
		list_push_back(&w->wr_free, &chunk->request[i].link);
	return true;
}

void sim_wr_pool_fini(struct sim_world *w)
{
	struct list *it;

	while ((it = list_pop_front(&w->chunks)) != NULL) {
		struct wr_chunk *chunk = LIST_ENTRY(it, struct wr_chunk, link);

		for (uint32_t i = 0; i < CHUNK_REQUESTS; i++)
			mem_free(chunk->request[i].copy);
		sim_heap_unreserve(&w->heap, CHUNK_REQUESTS * EVENTS_EACH);
		mem_free(chunk);
	}
}

static struct sim_wr *wr_get(struct sim_path *p, const struct prov_wr *wr)
{
	struct sim_world *w = p->dev->world;
	struct sim_wr *r;
	uint8_t *copy = NULL;

	if (list_empty(&w->wr_free) && !pool_grow(w))
		return NULL;
	if (w->late && wr->len_bytes > 0) {
		copy = mem_alloc(wr->len_bytes);
		if (!copy)
			return NULL;
	}
	r = LIST_ENTRY(list_pop_front(&w->wr_free), struct sim_wr, link);
	*r = (struct sim_wr){ .wr = *wr,
		              .path = p,
		              .path_id = p->id,
		              .target_id = p->peer_id,
		              .copy = copy,
		              .refs = 1 };
	list_init(&r->accepted_link);
	for (uint32_t i = 0; i < 2 * SIM_PIECES_MAX; i++) {
		sim_event_init(&r->piece[i], EV_PIECE, r, i);
		r->piece[i].from = p->dev->number;
		r->piece[i].to = p->peer_nic;
	}
	sim_event_init(&r->ack, EV_ACK, r, 0);
	sim_node_init(&r->done_node, PROV_DONE, r);
	sim_node_init(&r->imm_node, PROV_IMM, r);
	list_push_back(&p->wrs, &r->link);
	p->in_flight++;
	return r;
}

void sim_wr_unref(struct sim_world *w, struct sim_wr *r)
{
	ASSERT(r->refs > 0);
	if (--r->refs > 0)
		return;
	mem_free(r->copy);
	r->copy = NULL;
	list_remove(&r->accepted_link);
	list_push_back(&w->wr_free, &r->link);
}

static void event_drop(struct sim_world *w, struct sim_wr *r, struct sim_event *ev)
{
	if (sim_event_remove(w, ev))
		sim_wr_unref(w, r);
}

static void pieces_drop(struct sim_world *w, struct sim_wr *r)
{
	for (uint32_t i = 0; i < r->pieces; i++)
		event_drop(w, r, &r->piece[i]);
}

static void wr_finish(struct sim_wr *r, wimm_status status, uint32_t flags)
{
	r->done = true;
	list_remove(&r->link); /* its reference goes to the entry */
	sim_cq_push(r->path->dev, &r->done_node, status, flags);
}

/* The bytes are somewhere else than in the source. */
static bool taken_over(const struct sim_wr *r)
{
	return r->accepted || r->done;
}

/* --- flying --- */

static void ack_push(struct sim_world *w, struct sim_wr *r, uint32_t from)
{
	uint64_t at_ns = w->now_ns + sim_world_delay(w);

	if (w->ordered) {
		if (at_ns < r->path->ack_ns)
			at_ns = r->path->ack_ns;
		r->path->ack_ns = at_ns;
	}
	r->ack.kind = EV_ACK;
	r->ack.from = from;
	r->ack.to = r->path->dev->number;
	r->refs++;
	sim_event_push(w, &r->ack, at_ns, !w->ordered);
}

static void pieces_push(struct sim_world *w, struct sim_wr *r, uint64_t base_ns, uint64_t spread_ns)
{
	uint64_t count = r->wr.len_bytes < SIM_PIECES_MAX ? r->wr.len_bytes : SIM_PIECES_MAX;
	uint32_t planned;

	r->distinct = count > 1 ? 1 + (uint32_t)rng_below(&w->rng, count) : 1;
	r->pieces = r->distinct;
	planned = r->distinct;
	if (r->fate == FATE_UNKNOWN) {
		planned--; /* the last one never comes */
	} else if (sim_world_chance(w, w->cfg.resend_ppm)) {
		sim_world_fault(w, SIM_RESEND, r->path->dev->number);
		r->pieces = 2 * r->distinct;
		planned = r->pieces;
	}
	for (uint32_t i = 0; i < planned; i++) {
		uint64_t at_ns = base_ns + sim_world_delay(w) + rng_below(&w->rng, spread_ns + 1);

		if (w->ordered) {
			if (at_ns < r->path->land_ns)
				at_ns = r->path->land_ns;
			r->path->land_ns = at_ns;
		}
		r->refs++;
		sim_event_push(w, &r->piece[i], at_ns, !w->ordered);
	}
}

static enum sim_fate fate_draw(struct sim_world *w, struct sim_dev *d)
{
	static const enum sim_fault fault[] = { SIM_FAULT_COUNT, SIM_LOSS_UNSENT, SIM_LOSS_UNKNOWN,
		                                SIM_LOSS_LANDED };
	enum sim_fate fate = FATE_OK;

	if (d->lose_next > 0) {
		d->lose_next--;
		fate = d->lose_kind == SIM_LOSS_UNSENT   ? FATE_UNSENT
		       : d->lose_kind == SIM_LOSS_LANDED ? FATE_LANDED
		                                         : FATE_UNKNOWN;
	} else if (sim_world_chance(w, w->cfg.loss_ppm)) {
		fate = FATE_UNSENT + (enum sim_fate)rng_below(&w->rng, 3);
	}
	if (fate != FATE_OK)
		sim_world_fault(w, fault[fate], d->number);
	return fate;
}

/* The key that arrives at the receiver. */
static uint64_t key_draw(struct sim_world *w, struct sim_dev *d, uint64_t key)
{
	bool corrupt = sim_world_chance(w, w->cfg.corrupt_ppm);

	if (d->corrupt_next > 0) {
		d->corrupt_next--;
		corrupt = true;
	}
	return corrupt ? ~key : key;
}

/* When the wire has carried the request's bytes. */
static uint64_t wire_ns(struct sim_world *w, struct sim_dev *d, uint64_t len_bytes)
{
	if (w->cfg.link_bytes_per_s == 0)
		return w->now_ns;
	if (d->tx_free_ns < w->now_ns)
		d->tx_free_ns = w->now_ns;
	d->tx_free_ns += (uint64_t)((double)len_bytes * 1e9 / (double)w->cfg.link_bytes_per_s);
	return d->tx_free_ns;
}

static void wr_launch(struct sim_world *w, struct sim_wr *r)
{
	struct sim_path *p = r->path;
	uint64_t base_ns = wire_ns(w, p->dev, r->wr.len_bytes);

	r->fate = fate_draw(w, p->dev);
	r->wr.remote_key = key_draw(w, p->dev, r->wr.remote_key);
	if (w->late || r->fate == FATE_UNSENT || r->fate == FATE_UNKNOWN) {
		uint64_t at_ns = base_ns + sim_world_delay(w);
		bool accept = r->fate == FATE_OK || r->fate == FATE_LANDED;

		if (r->fate == FATE_UNKNOWN && !w->late) {
			pieces_push(w, r, base_ns, 0);
			at_ns += w->cfg.max_delay_ns;
		}
		if (w->ordered && at_ns < p->land_ns)
			at_ns = p->land_ns;
		r->ack.kind = accept ? EV_ACCEPT : EV_ACK;
		r->ack.from = p->dev->number;
		r->ack.to = accept ? p->peer_nic : p->dev->number;
		r->refs++;
		sim_event_push(w, &r->ack, at_ns, !w->ordered);
		if (w->ordered)
			p->land_ns = at_ns;
		return;
	}
	pieces_push(w, r, base_ns, 0);
}

/* --- arriving --- */

static struct sim_path *target_of(struct sim_world *w, const struct sim_wr *r)
{
	struct sim_path *t = sim_path_find(w, r->target_id);

	if (!t || !t->connected || t->peer_id != r->path_id)
		return NULL;
	sim_path_is_up(t); /* bytes never come before it is told */
	return t;
}

/* The range of the write at the receiver; false when it costs the path (P4). */
static bool target_valid(struct sim_world *w, struct sim_path *t, const struct sim_wr *r)
{
	const struct sim_region *region = sim_region_find(t->dev, r->wr.remote_key);
	char text[PROV_TEXT_BYTES];

	if (r->wr.len_bytes == 0 && (w->ordered || w->late))
		return true;
	if (region && region->remote &&
	    sim_region_covers(region, r->wr.remote_addr, r->wr.len_bytes))
		return true;
	if (!region || !region->remote)
		snprintf(text, sizeof(text), "NIC %u: no region for peers has key %" PRIx64,
		         t->dev->number, r->wr.remote_key);
	else
		snprintf(text, sizeof(text),
		         "NIC %u: write of %" PRIu64 " bytes at %" PRIx64
		         " leaves the region of %" PRIu64 " bytes at %" PRIx64,
		         t->dev->number, r->wr.len_bytes, r->wr.remote_addr, region->len_bytes,
		         (uint64_t)(uintptr_t)region->addr);
	sim_world_fault(w, SIM_BAD_KEY, t->dev->number);
	sim_path_fail(t, WIMM_E_PROTOCOL, SIM_TELL_NOTICE, text);
	return false;
}

static void wr_land(struct sim_world *w, struct sim_wr *r, struct sim_path *t)
{
	r->landed = true;
	list_remove(&r->accepted_link);
	sim_world_trace(w, "nic %u: %u bytes from nic %u in place, %s%#x", t->dev->number,
	                (uint32_t)r->wr.len_bytes, t->peer_nic,
	                r->wr.flags & PROV_WR_IMM    ? "imm "
	                : r->wr.flags & PROV_WR_PART ? "part of imm "
	                                             : "not told, ",
	                r->wr.imm);
	if (r->wr.flags & (PROV_WR_IMM | PROV_WR_PART)) {
		r->target = t;
		r->refs++;
		r->imm_node.kind = r->wr.flags & PROV_WR_IMM ? PROV_IMM : PROV_PART;
		sim_cq_push(t->dev, &r->imm_node, WIMM_OK, 0);
	}
	if (!taken_over(r))
		ack_push(w, r, t->dev->number);
}

static void piece_copy(const struct sim_wr *r, uint32_t index)
{
	uint64_t part = r->wr.len_bytes / r->distinct;
	uint64_t from = part * index;
	uint64_t to = index + 1 == r->distinct ? r->wr.len_bytes : from + part;
	const uint8_t *src = taken_over(r) ? r->copy : r->wr.src;

	if (to > from)
		memcpy((uint8_t *)(uintptr_t)r->wr.remote_addr + from, src + from, to - from);
}

static void piece_run(struct sim_world *w, struct sim_wr *r, uint32_t index)
{
	struct sim_path *t = target_of(w, r);

	if (!t || !target_valid(w, t, r)) {
		pieces_drop(w, r);
		list_remove(&r->accepted_link);
		return;
	}
	piece_copy(r, index % r->distinct);
	if (++r->pieces_done == r->pieces)
		wr_land(w, r, t);
}

/* Profile "late": the NIC over there has the bytes and says so; they are not in place yet. */
static void accept_run(struct sim_world *w, struct sim_wr *r)
{
	struct sim_path *t = target_of(w, r);

	if (!t || !target_valid(w, t, r))
		return;
	if (r->wr.len_bytes > 0)
		memcpy(r->copy, r->wr.src, r->wr.len_bytes);
	r->accepted = true;
	list_push_back(&w->accepted, &r->accepted_link);
	ack_push(w, r, t->dev->number);
	pieces_push(w, r, w->now_ns, w->cfg.late_ns);
}

static bool may_have_landed(struct sim_world *w, const struct sim_wr *r)
{
	if (r->landed || r->accepted || r->pieces_done > 0 || r->fate == FATE_UNKNOWN)
		return true;
	/* Of the rest a NIC may or may not know; users have to take either answer. */
	return r->fate != FATE_UNSENT && rng_chance(&w->rng, 1, 2);
}

static void ack_run(struct sim_world *w, struct sim_wr *r)
{
	if (r->path->dev->killed)
		return;
	if (r->fate == FATE_OK) {
		wr_finish(r, WIMM_OK, 0);
	} else if (w->ordered) {
		sim_path_fail(r->path, WIMM_E_PATH_LOST, SIM_TELL_NOTICE,
		              "a write was not acknowledged");
	} else {
		pieces_drop(w, r);
		wr_finish(r, WIMM_E_PATH_LOST, may_have_landed(w, r) ? PROV_CQE_SENT : 0);
	}
}

void sim_wr_event(struct sim_world *w, struct sim_event *ev)
{
	struct sim_wr *r = ev->obj;

	if (ev->kind == EV_PIECE)
		piece_run(w, r, ev->arg);
	else if (ev->kind == EV_ACCEPT)
		accept_run(w, r);
	else
		ack_run(w, r);
	sim_wr_unref(w, r); /* the event's */
}

/* --- ending early --- */

void sim_wr_halt(struct sim_path *p)
{
	LIST_FOR_EACH(it, &p->wrs) {
		struct sim_wr *r = LIST_ENTRY(it, struct sim_wr, link);

		event_drop(p->dev->world, r, &r->ack);
		if (!taken_over(r))
			pieces_drop(p->dev->world, r);
	}
}

void sim_wr_flush(struct sim_path *p, bool report)
{
	struct sim_world *w = p->dev->world;

	sim_wr_halt(p);
	LIST_FOR_EACH(it, &p->wrs) {
		struct sim_wr *r = LIST_ENTRY(it, struct sim_wr, link);

		if (report) {
			wr_finish(r, WIMM_E_PATH_LOST, may_have_landed(w, r) ? PROV_CQE_SENT : 0);
		} else {
			list_remove(&r->link);
			sim_wr_unref(w, r);
		}
	}
}

/* Half of it is over there: the rest follows from a private copy, or at once for want of memory. */
static void cancel_half_sent(struct sim_world *w, struct sim_wr *r)
{
	r->copy = mem_alloc(r->wr.len_bytes);
	if (r->copy) {
		memcpy(r->copy, r->wr.src, r->wr.len_bytes);
		if (!w->ordered) /* the release of its region does not let it come later */
			list_push_back(&w->accepted, &r->accepted_link);
		wr_finish(r, WIMM_E_CANCELLED, PROV_CQE_SENT);
		return;
	}
	for (uint32_t i = 0; i < r->pieces; i++) {
		if (sim_event_remove(w, &r->piece[i])) {
			piece_run(w, r, i);
			sim_wr_unref(w, r);
		}
	}
	event_drop(w, r, &r->ack);
	wr_finish(r, WIMM_E_CANCELLED, PROV_CQE_SENT);
}

static void cancel_one(struct sim_world *w, struct sim_wr *r)
{
	if (r->landed || r->accepted) {
		event_drop(w, r, &r->ack);
		wr_finish(r, WIMM_E_CANCELLED, PROV_CQE_SENT);
	} else if (r->pieces_done > 0 && r->fate != FATE_UNKNOWN) {
		cancel_half_sent(w, r);
	} else if (r->pieces_done > 0) {
		/* Its rest is lost on the way; with nobody left to tell, that costs the path. */
		sim_path_fail(r->path, WIMM_E_PATH_LOST, SIM_TELL_NOTICE,
		              "a cancelled write was lost on the way");
	} else {
		event_drop(w, r, &r->ack);
		pieces_drop(w, r);
		wr_finish(r, WIMM_E_CANCELLED, 0);
	}
}

void sim_wr_cancel(struct prov_path *path, uint64_t token)
{
	struct sim_path *p = (struct sim_path *)path;
	struct sim_world *w = p->dev->world;

	mutex_lock(&w->lock);
	if (w->cfg.no_cancel)
		sim_world_violation(w, "NIC %u: cancel without the capability", p->dev->number);
	LIST_FOR_EACH(it, &p->wrs) {
		struct sim_wr *r = LIST_ENTRY(it, struct sim_wr, link);

		if (w->cfg.no_cancel || r->wr.token != token)
			continue;
		cancel_one(w, r);
		if (p->failed)
			break; /* and everything came back */
	}
	mutex_unlock(&w->lock);
}

void sim_wr_settle_key(struct sim_dev *d, uint64_t key)
{
	struct sim_world *w = d->world;

	LIST_FOR_EACH(it, &w->accepted) {
		struct sim_wr *r = LIST_ENTRY(it, struct sim_wr, accepted_link);
		struct sim_path *t = sim_path_find(w, r->target_id);

		if (!t || t->dev != d || r->wr.remote_key != key)
			continue;
		r->refs++;
		for (uint32_t i = 0; i < r->pieces; i++) {
			if (sim_event_remove(w, &r->piece[i])) {
				piece_run(w, r, i);
				sim_wr_unref(w, r);
			}
		}
		sim_wr_unref(w, r);
	}
}

/* --- posting --- */

/* What the core may never ask for; the request is not taken further. */
static bool wr_lawful(struct sim_path *p, const struct prov_wr *wr)
{
	struct sim_world *w = p->dev->world;
	const struct sim_region *src = sim_region_find(p->dev, wr->local_key);
	const char *fault = NULL;

	if (wr->len_bytes > w->cfg.max_write_bytes)
		fault = "longer than max_write_bytes";
	else if ((wr->flags & PROV_WR_IMM) && (wr->flags & PROV_WR_PART))
		fault = "both an immediate and a part";
	else if ((wr->flags & PROV_WR_PART) && wr->parts < 2)
		fault = "a part of fewer than 2";
	else if (wr->len_bytes > 0 && !src)
		fault = "source key not registered";
	else if (wr->len_bytes > 0 &&
	         !sim_region_covers(src, (uint64_t)(uintptr_t)wr->src, wr->len_bytes))
		fault = "source outside its region";
	if (!fault)
		return true;
	sim_world_violation(w, "NIC %u: write of %" PRIu64 " bytes, token %" PRIx64 ": %s",
	                    p->dev->number, wr->len_bytes, wr->token, fault);
	return false;
}

uint32_t sim_wr_post(struct prov_path *path, const struct prov_wr *wr, uint32_t n)
{
	struct sim_path *p = (struct sim_path *)path;
	struct sim_world *w = p->dev->world;
	uint32_t taken = 0;

	mutex_lock(&w->lock);
	while (taken < n && p->up && !p->failed && !p->dev->killed) {
		struct sim_wr *r;

		if (p->in_flight >= p->dev->post_depth) {
			w->faults[SIM_QUEUE_FULL]++;
			break;
		}
		r = wr_get(p, &wr[taken]);
		if (!r)
			break;
		if (wr_lawful(p, &wr[taken]))
			wr_launch(w, r);
		else
			wr_finish(r, WIMM_E_INTERNAL, 0);
		taken++;
	}
	mutex_unlock(&w->lock);
	return taken;
}
