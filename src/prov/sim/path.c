/* SPDX-License-Identifier: Apache-2.0 */
/* Paths: where writes go. An end that has failed is hidden at once, so nothing lands through it. */

#include "prov/sim/sim_int.h"

#include <stdio.h>
#include <string.h>

#define OFFER_BYTES 12

static void offer_make(const struct sim_path *p, struct prov_offer *out)
{
	*out = (struct prov_offer){ .len_bytes = OFFER_BYTES };
	for (int i = 0; i < 4; i++)
		out->bytes[i] = (uint8_t)(p->dev->number >> (8 * i));
	for (int i = 0; i < 8; i++)
		out->bytes[4 + i] = (uint8_t)(p->id >> (8 * i));
}

static bool offer_parse(const struct prov_offer *offer, uint32_t *out_nic, uint64_t *out_id)
{
	uint32_t nic = 0;
	uint64_t id = 0;

	if (offer->len_bytes != OFFER_BYTES)
		return false;
	for (int i = 0; i < 4; i++)
		nic |= (uint32_t)offer->bytes[i] << (8 * i);
	for (int i = 0; i < 8; i++)
		id |= (uint64_t)offer->bytes[4 + i] << (8 * i);
	*out_nic = nic;
	*out_id = id;
	return nic != SIM_NIC_NONE;
}

struct sim_path *sim_path_find(struct sim_world *w, uint64_t id)
{
	return hash_find_ptr(&w->paths, id);
}

struct prov_path *sim_path_open(struct prov_dev *dev, const struct prov_addr *remote, bool active,
                                void *context, struct prov_offer *out, struct prov_error *error)
{
	struct sim_dev *d = (struct sim_dev *)dev;
	struct sim_world *w = d->world;
	struct sim_path *p = mem_calloc(1, sizeof(*p));

	(void)remote; /* the offer says where the other end is, whoever dials */
	(void)active;
	(void)error; /* memory alone */
	if (!p)
		return NULL;
	p->dev = d;
	p->context = context;
	list_init(&p->link);
	list_init(&p->wrs);
	sim_event_init(&p->up_event, EV_PATH_UP, p, 0);
	sim_event_init(&p->fail_event, EV_PATH_FAIL, p, 0);
	sim_node_init(&p->up_node, PROV_PATH_UP, p);
	sim_node_init(&p->down_node, PROV_PATH_DOWN, p);
	sim_node_init(&p->closed_node, PROV_PATH_CLOSED, p);
	mutex_lock(&w->lock);
	p->id = ++w->next_id;
	if (!sim_heap_reserve(&w->heap, 2))
		goto undo_alloc;
	if (hash_insert_ptr(&w->paths, p->id, p) != WIMM_OK)
		goto undo_reserve;
	list_push_back(&d->paths, &p->link);
	offer_make(p, out);
	mutex_unlock(&w->lock);
	return (struct prov_path *)p;
undo_reserve:
	sim_heap_unreserve(&w->heap, 2);
undo_alloc:
	mutex_unlock(&w->lock);
	mem_free(p);
	return NULL;
}

static void fail_at(struct sim_path *p, wimm_status status, uint64_t at_ns)
{
	if (p->failed || p->fail_event.heap_pos != 0 || list_linked(&p->fail_event.held))
		return;
	p->fail_status = status;
	p->fail_event.from = p->peer_nic;
	p->fail_event.to = p->dev->number;
	sim_event_push(p->dev->world, &p->fail_event, at_ns, false);
}

static void fail_soon(struct sim_path *p, wimm_status status, uint64_t max_ns)
{
	struct sim_world *w = p->dev->world;

	fail_at(p, status, w->now_ns + sim_world_delay(w) + rng_below(&w->rng, max_ns + 1));
}

static void up_later(struct sim_path *p)
{
	struct sim_world *w = p->dev->world;

	p->up_event.from = p->peer_nic;
	p->up_event.to = p->dev->number;
	sim_event_push(w, &p->up_event, w->now_ns + sim_world_delay(w), false);
}

static bool refused(struct sim_dev *d)
{
	bool yes = sim_world_chance(d->world, d->world->cfg.refuse_ppm);

	if (d->refuse_next > 0) {
		d->refuse_next--;
		yes = true;
	}
	if (yes)
		sim_world_fault(d->world, SIM_PATH_REFUSED, d->number);
	return yes;
}

static void connect_locked(struct sim_path *p, const struct prov_offer *remote)
{
	struct sim_world *w = p->dev->world;
	struct sim_path *peer;

	p->connected = true;
	if (p->dev->killed)
		return;
	if (!offer_parse(remote, &p->peer_nic, &p->peer_id)) {
		sim_path_fail(p, WIMM_E_PROTOCOL, SIM_TELL_NONE,
		              "the peer's offer of a path is malformed");
		return;
	}
	peer = sim_path_find(w, p->peer_id);
	if (p->dev->nic_dead) {
		sim_path_fail(p, WIMM_E_NIC_LOST, SIM_TELL_NONE, "the NIC died");
	} else if (refused(p->dev)) {
		sim_path_fail(p, WIMM_E_PEER_REFUSED, SIM_TELL_SOON, "path refused");
	} else if (!peer) {
		if (!hash_find(&w->gone, p->peer_nic, NULL))
			fail_soon(p, WIMM_E_PEER_LOST, 0);
	} else if (peer->connected && peer->peer_id != p->id) {
		fail_soon(p, WIMM_E_PROTOCOL, 0);
	} else if (peer->connected) {
		up_later(p);
		up_later(peer);
	}
}

void sim_path_connect(struct prov_path *path, const struct prov_offer *remote)
{
	struct sim_path *p = (struct sim_path *)path;
	struct sim_world *w = p->dev->world;

	mutex_lock(&w->lock);
	connect_locked(p, remote);
	mutex_unlock(&w->lock);
}

void sim_path_is_up(struct sim_path *p)
{
	if (p->up || p->failed)
		return;
	p->up = true;
	sim_event_remove(p->dev->world, &p->up_event);
	sim_world_trace(p->dev->world, "nic %u: path %u up", p->dev->number, (uint32_t)p->id);
	sim_cq_push(p->dev, &p->up_node, WIMM_OK, 0);
}

/* Out of the world: what flies towards this end finds nobody. */
static void path_hide(struct sim_path *p, enum sim_tell tell)
{
	struct sim_world *w = p->dev->world;
	struct sim_path *peer = p->connected ? sim_path_find(w, p->peer_id) : NULL;

	hash_remove(&w->paths, p->id);
	sim_event_remove(w, &p->up_event);
	sim_event_remove(w, &p->fail_event);
	if (tell == SIM_TELL_NONE || !peer || !peer->connected || peer->peer_id != p->id)
		return;
	if (tell == SIM_TELL_TIMEOUT)
		fail_at(peer, WIMM_E_PATH_LOST, w->now_ns + peer->dev->timeout_ns);
	else
		fail_soon(peer, WIMM_E_PATH_LOST, tell == SIM_TELL_NOTICE ? w->cfg.notice_ns : 0);
}

void sim_path_fail(struct sim_path *p, wimm_status status, enum sim_tell tell, const char *text)
{
	struct sim_world *w = p->dev->world;

	if (p->failed)
		return;
	if (text)
		snprintf(p->text, sizeof(p->text), "%s", text);
	p->failed = true;
	sim_world_trace(w, "nic %u: path %u down, %s", p->dev->number, (uint32_t)p->id,
	                wimm_status_name(status));
	path_hide(p, tell);
	sim_cq_push(p->dev, &p->down_node, status, 0);
	sim_wr_flush(p, true);
}

void sim_path_sever(struct sim_path *p, enum sim_tell tell)
{
	path_hide(p, tell);
	sim_wr_halt(p);
}

void sim_path_close(struct prov_path *path)
{
	struct sim_path *p = (struct sim_path *)path;
	struct sim_world *w = p->dev->world;

	mutex_lock(&w->lock);
	if (p->closed) {
		sim_world_violation(w, "NIC %u: path closed twice", p->dev->number);
	} else {
		p->closed = true;
		if (!p->failed) {
			p->failed = true;
			path_hide(p, p->dev->killed ? SIM_TELL_NONE : SIM_TELL_SOON);
			sim_wr_flush(p, true);
		}
		list_remove(&p->up_node.link);
		list_remove(&p->down_node.link);
		sim_cq_push(p->dev, &p->closed_node, WIMM_OK, 0);
	}
	mutex_unlock(&w->lock);
}

void sim_path_drop(struct sim_path *p)
{
	if (!p->failed)
		path_hide(p, p->dev->killed ? SIM_TELL_NONE : SIM_TELL_SOON);
	p->failed = true;
	sim_wr_flush(p, false);
	list_remove(&p->up_node.link);
	list_remove(&p->down_node.link);
	list_remove(&p->closed_node.link);
	sim_path_free(p);
}

void sim_path_free(struct sim_path *p)
{
	ASSERT(list_empty(&p->wrs));
	list_remove(&p->link);
	sim_heap_unreserve(&p->dev->world->heap, 2);
	mem_free(p);
}
