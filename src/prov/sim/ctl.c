/* SPDX-License-Identifier: Apache-2.0 */
/* Small-message channels: in order and reliable while both ends live. Ids of both ends are drawn by
 * the one who opens it, so that messages may follow the opening at once. */

#include "prov/sim/sim_int.h"

#include <string.h>

static struct sim_msg *msg_new(struct sim_world *w, enum msg_kind kind, uint32_t len_bytes)
{
	struct sim_msg *m = mem_alloc(sizeof(*m) + len_bytes);

	if (!m)
		return NULL;
	if (!sim_heap_reserve(&w->heap, 1)) {
		mem_free(m);
		return NULL;
	}
	memset(m, 0, sizeof(*m));
	m->kind = kind;
	m->len_bytes = len_bytes;
	sim_event_init(&m->event, EV_MSG, m, 0);
	sim_node_init(&m->node, PROV_CTL_MSG, m);
	list_init(&m->returned);
	return m;
}

static void end_free(struct sim_world *w, struct sim_ctl *c)
{
	if (c && c->close_msg)
		sim_msg_free(w, c->close_msg);
	mem_free(c);
}

void sim_msg_free(struct sim_world *w, struct sim_msg *m)
{
	if (m->kind == MSG_CONNECT)
		end_free(w, m->end);
	sim_heap_unreserve(&w->heap, 1);
	mem_free(m);
}

/* An end with the message that will announce its close, so that closing cannot fail. */
static struct sim_ctl *end_new(struct sim_world *w)
{
	struct sim_ctl *c = mem_calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	c->close_msg = msg_new(w, MSG_CLOSE, 0);
	if (!c->close_msg) {
		mem_free(c);
		return NULL;
	}
	list_init(&c->link);
	sim_node_init(&c->new_node, PROV_CTL_NEW, c);
	sim_node_init(&c->down_node, PROV_CTL_DOWN, c);
	return c;
}

static void msg_send(struct sim_ctl *c, struct sim_msg *m, bool in_order)
{
	struct sim_world *w = c->dev->world;
	uint64_t at_ns = w->now_ns + sim_world_delay(w);

	m->from_id = c->id;
	m->to_id = c->peer_id;
	m->from_nic = c->dev->number;
	m->event.from = c->dev->number;
	m->event.to = c->peer_nic;
	if (sim_world_chance(w, w->cfg.ctl_delay_ppm)) {
		at_ns += rng_below(&w->rng, w->cfg.ctl_delay_ns + 1);
		sim_world_fault(w, SIM_CTL_DELAY, c->dev->number);
	}
	if (at_ns < c->open_ns)
		at_ns = c->open_ns; /* nothing of a channel comes before its opening */
	if (in_order && at_ns < c->last_ns)
		at_ns = c->last_ns;
	if (at_ns > c->last_ns)
		c->last_ns = at_ns;
	if (m->kind == MSG_CONNECT)
		c->open_ns = at_ns;
	sim_event_push(w, &m->event, at_ns, false);
}

/* An end leaves the world: nothing finds it any more. */
static void end_hide(struct sim_ctl *c)
{
	struct sim_world *w = c->dev->world;

	hash_remove(&w->ctls, c->id);
}

static void end_tell_close(struct sim_ctl *c, wimm_status status, bool in_order)
{
	struct sim_msg *m = c->close_msg;

	if (!m)
		return;
	c->close_msg = NULL;
	m->status = status;
	msg_send(c, m, in_order);
}

static bool ctl_start(struct sim_ctl *c, struct sim_msg *m)
{
	struct sim_world *w = c->dev->world;

	c->id = ++w->next_id;
	c->peer_id = ++w->next_id;
	if (hash_insert_ptr(&w->ctls, c->id, c) != WIMM_OK)
		return false;
	m->end->id = c->peer_id;
	m->end->peer_id = c->id;
	m->end->peer_nic = c->dev->number;
	list_push_back(&c->dev->ctls, &c->link);
	if (!c->dev->killed && !c->dev->nic_dead) {
		msg_send(c, m, true);
		return true;
	}
	sim_msg_free(w, m);
	sim_ctl_fail(c, WIMM_E_NIC_LOST, true, false);
	return true;
}

struct prov_ctl *sim_ctl_open(struct prov_dev *dev, const struct prov_addr *to, void *context)
{
	struct sim_dev *d = (struct sim_dev *)dev;
	struct sim_world *w = d->world;
	struct sim_ctl *c;
	struct sim_msg *m = NULL;

	mutex_lock(&w->lock);
	c = end_new(w);
	if (c)
		m = msg_new(w, MSG_CONNECT, 0);
	if (m)
		m->end = end_new(w);
	if (m && m->end) {
		c->dev = d;
		c->context = context;
		c->peer_nic = sim_addr_number(to);
		if (ctl_start(c, m))
			goto out;
	}
	if (m)
		sim_msg_free(w, m);
	end_free(w, c);
	c = NULL;
out:
	mutex_unlock(&w->lock);
	return (struct prov_ctl *)c;
}

void sim_ctl_set_context(struct prov_ctl *ctl, void *context)
{
	struct sim_ctl *c = (struct sim_ctl *)ctl;

	mutex_lock(&c->dev->world->lock);
	c->context = context;
	mutex_unlock(&c->dev->world->lock);
}

static wimm_status send_locked(struct sim_ctl *c, const void *data, uint32_t len_bytes)
{
	struct sim_world *w = c->dev->world;
	struct sim_msg *m;

	if (c->dev->killed)
		return WIMM_OK; /* a process that is gone frees its memory */
	if (c->down || c->dev->nic_dead)
		return WIMM_E_PEER_LOST;
	if (len_bytes > w->cfg.max_ctl_bytes) {
		sim_world_violation(w, "NIC %u: message of %u bytes, at most %u", c->dev->number,
		                    len_bytes, w->cfg.max_ctl_bytes);
		return WIMM_E_PEER_LOST;
	}
	if (c->unread >= w->cfg.ctl_depth) {
		c->refused = true;
		sim_world_fault(w, SIM_CTL_FULL, c->dev->number);
		return WIMM_AGAIN;
	}
	m = msg_new(w, MSG_DATA, len_bytes);
	if (!m)
		return WIMM_AGAIN;
	if (len_bytes > 0)
		memcpy(m->data, data, len_bytes);
	c->unread++;
	msg_send(c, m, true);
	return WIMM_OK;
}

wimm_status sim_ctl_send(struct prov_ctl *ctl, const void *data, uint32_t len_bytes)
{
	struct sim_ctl *c = (struct sim_ctl *)ctl;
	struct sim_world *w = c->dev->world;
	wimm_status st;

	mutex_lock(&w->lock);
	st = send_locked(c, data, len_bytes);
	mutex_unlock(&w->lock);
	return st;
}

/* No event of it comes after its close. */
static void end_silence(struct sim_ctl *c)
{
	LIST_FOR_EACH(it, &c->dev->cq) {
		struct sim_node *n = LIST_ENTRY(it, struct sim_node, link);

		if (n->kind == PROV_CTL_MSG && ((struct sim_msg *)n->obj)->end == c) {
			list_remove(&n->link);
			sim_msg_free(c->dev->world, n->obj);
		}
	}
	list_remove(&c->new_node.link);
	list_remove(&c->down_node.link);
}

void sim_ctl_close(struct prov_ctl *ctl, bool flush)
{
	struct sim_ctl *c = (struct sim_ctl *)ctl;
	struct sim_world *w = c->dev->world;

	mutex_lock(&w->lock);
	end_silence(c);
	end_hide(c);
	if (!c->down && !c->dev->killed && !c->dev->nic_dead)
		end_tell_close(c, WIMM_E_CLOSED, flush);
	list_remove(&c->link);
	end_free(w, c);
	mutex_unlock(&w->lock);
}

void sim_ctl_drop(struct sim_ctl *c)
{
	struct sim_world *w = c->dev->world;

	sim_ctl_fail(c, WIMM_E_PEER_LOST, false, !c->dev->killed && !c->dev->nic_dead);
	list_remove(&c->link);
	end_free(w, c);
}

void sim_ctl_fail(struct sim_ctl *c, wimm_status status, bool tell_local, bool tell_peer)
{
	end_hide(c);
	if (tell_peer && !c->down)
		end_tell_close(c, WIMM_E_PEER_LOST, false);
	if (tell_local && !c->down) {
		c->down = true;
		sim_cq_push(c->dev, &c->down_node, status, 0);
	}
}

/* Nobody lives there: the opener is told, unless the whole machine is gone. */
static void connect_bounce(struct sim_world *w, struct sim_msg *m)
{
	struct sim_ctl *opener = hash_find_ptr(&w->ctls, m->from_id);

	if (opener && !hash_find(&w->gone, m->event.to, NULL)) {
		sim_world_trace(w, "nic %u: nobody answers at %u", m->from_nic, m->event.to);
		sim_ctl_fail(opener, WIMM_E_PEER_LOST, true, false);
	}
	sim_msg_free(w, m);
}

static void connect_arrive(struct sim_world *w, struct sim_msg *m)
{
	struct sim_dev *d = sim_world_dev(w, m->event.to);
	struct sim_ctl *c = m->end;

	if (!d || hash_insert_ptr(&w->ctls, c->id, c) != WIMM_OK) {
		connect_bounce(w, m);
		return;
	}
	m->end = NULL;
	c->dev = d;
	list_push_back(&d->ctls, &c->link);
	sim_cq_push(d, &c->new_node, WIMM_OK, 0);
	sim_msg_free(w, m);
}

void sim_msg_arrive(struct sim_world *w, struct sim_msg *m)
{
	struct sim_ctl *c;

	if (m->kind == MSG_CONNECT) {
		connect_arrive(w, m);
		return;
	}
	c = hash_find_ptr(&w->ctls, m->to_id);
	if (!c || c->down) {
		sim_msg_free(w, m);
	} else if (m->kind == MSG_CLOSE) {
		sim_ctl_fail(c, m->status, true, false);
		sim_msg_free(w, m);
	} else {
		m->end = c;
		sim_cq_push(c->dev, &m->node, WIMM_OK, 0);
	}
}

void sim_msg_polled(struct sim_world *w, struct sim_msg *m)
{
	struct sim_ctl *sender = hash_find_ptr(&w->ctls, m->from_id);

	if (!sender)
		return;
	sender->unread--;
	if (sender->refused) {
		sender->refused = false;
		sim_dev_wake(sender->dev);
	}
}
