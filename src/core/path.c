/* SPDX-License-Identifier: Apache-2.0 */
/* The paths of a session: opened with it, up together, lost one by one. */
#include "core/engine.h"
#include "core/fence.h"
#include "core/marks.h"
#include "core/same_host.h"
#include "core/session.h"
#include "core/stage.h"

#include "base/assert.h"
#include "base/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static bool same_place(const struct peer *a, const struct peer *b)
{
	const struct prov_addr *x = &a->addr.nic[0], *y = &b->addr.nic[0];

	return a != b && a->alias == NULL && b->alias == NULL && a->instance_known &&
	       b->instance_known && x->len_bytes == y->len_bytes &&
	       memcmp(x->bytes, y->bytes, x->len_bytes) == 0 &&
	       memcmp(a->addr.instance, b->addr.instance, WIMM_INSTANCE_BYTES) != 0;
}

static void restarted_text(const struct peer *old, const struct peer *heir, char *out, size_t bytes)
{
	char was[17], is[17];

	(void)snprintf(out, bytes, "instance %s is gone: instance %s answers at its address",
	               session_instance_text(old->addr.instance, was),
	               session_instance_text(heir->addr.instance, is));
}

/* A new instance at an address where another one was. Whoever answered there, or has the job key,
 * belongs there, so that one is gone. Who only says so is believed once the session with that one
 * has ended by itself. */
static void supersede(struct worker *w, struct peer *p) ON_WORKER
{
	char text[WIMM_ERROR_TEXT_BYTES];

	LIST_FOR_EACH(it, &w->peers) {
		struct peer *q = LIST_ENTRY(it, struct peer, link);

		if (q->state == PEER_DOWN || !same_place(p, q))
			continue;
		if (!p->at_home && !w->engine->job_key.set) {
			q->contested = true;
			session_knock(w, q);
			continue;
		}
		restarted_text(q, p, text, sizeof(text));
		peer_down(w, q, WIMM_E_PEER_RESTARTED, 0, "%s", text);
		path_restarted(w, p);
	}
}

struct peer *path_heir(struct worker *w, struct peer *old)
{
	LIST_FOR_EACH(it, &w->peers) {
		struct peer *p = LIST_ENTRY(it, struct peer, link);

		if (p->state != PEER_UP || !same_place(p, old))
			continue;
		restarted_text(old, p, old->text, sizeof(old->text));
		return p;
	}
	return NULL;
}

void path_restarted(struct worker *w, struct peer *p)
{
	peer_event(w, p, WIMM_PEER_RESTARTED, WIMM_OK, 0, "a new instance of a lost peer");
}

static void peer_up(struct worker *w, struct peer *p) ON_WORKER
{
	char text[256];

	peer_set_state(p, PEER_UP);
	STAT_ADD(w, peers_up, 1);
	p->last_rx_ns = w->now_ns;
	LOG_INFO("peer %" PRIx64 " up: %s, %" PRIu32 " paths", peer_id(p),
	         session_addr_text(&p->addr, text, sizeof(text)), p->paths_up);
	supersede(w, p);
	peer_event(w, p, WIMM_PEER_UP, WIMM_OK, 0, "");
	LIST_FOR_EACH(it, &w->peers) {
		struct peer *q = LIST_ENTRY(it, struct peer, link);

		if (q->alias == p && q->state == PEER_CONNECTING)
			peer_alias_up(w, q);
	}
	for (uint32_t k = 0; k < p->path_count; k++)
		path_again(w, &p->path[k]);
	remote_peer_up(w, p);
	message_pump(w, p);
}

/* All paths have come up or failed: the session stands, or does not. */
void path_maybe_up(struct worker *w, struct peer *p, bool at_deadline)
{
	uint32_t opening = 0;

	if (p->state != PEER_CONNECTING || p->path_count == 0)
		return;
	for (uint32_t i = 0; i < p->path_count; i++)
		opening += p->path[i].state == PATH_OPENING;
	if (opening != 0 && !(at_deadline && p->paths_up != 0))
		return;
	if (p->paths_up != 0 && !same_host_suffices(w, p))
		peer_down(w, p, WIMM_E_PEER_REFUSED, 0, "setting same_host is require: %s", p->way);
	else if (p->paths_up != 0)
		peer_up(w, p);
}

bool path_stood(const struct path *path, const struct leg *leg)
{
	return path->state == PATH_UP && (int32_t)(path->lost_at - leg->losses) <= 0;
}

bool path_prepare(struct worker *w, struct peer *p, uint32_t k, uint32_t seq,
                  struct prov_offer *out, struct prov_error *error)
{
	struct path *path = &p->path[k];
	const struct prov_addr *theirs = &p->addr.nic[k % p->addr.nic_count];
	struct nic *own;

	path->nic = k % w->nic_count;
	path->remote_nic = k % p->addr.nic_count;
	if (same_host_is(p, path)) {
		path->nic = w->nic_count;
		path->remote_nic = WIMM_MAX_NICS;
		theirs = &p->host_addr;
	}
	own = &w->nic[path->nic];
	path->post = own->ops->post;
	if (path->seq == 0)
		path->seq = seq; /* of the first life, whether this side has an end of it or not */
	p->ordered = p->ordered && own->caps.ordered;
	p->can_cancel = p->can_cancel && own->caps.can_cancel;
	if (!own->dead)
		path->prov =
			own->ops->path_open(own->dev, theirs, p->initiator, &path->context, out,
		                            error);
	if (path->prov == NULL) {
		if (same_host_is(p, path) && !path->stood)
			same_host_way(p, "NICs: no process of its is reached on this machine");
		return false;
	}
	path_set_state(path, PATH_OPENING);
	path->seq = seq;
	path->connected = false;
	path->dirty = false;
	path->flushing = false;
	path->full = false;
	path->posted_marks = 0;
	path->seen_marks = 0;
	p->paths_open++;
	return true;
}

void path_plan(const struct worker *w, struct peer *p, bool neighbour)
{
	uint32_t n = w->nic_count > p->addr.nic_count ? w->nic_count : p->addr.nic_count;
	uint32_t max = neighbour ? WIRE_MAX_PATHS - 1 : WIRE_MAX_PATHS;

	n = n < max ? n : max;
	p->path_count = n;
	p->host_path = NO_HOST_PATH;
	p->ordered = true;
	p->can_cancel = true;
	if (neighbour)
		p->host_path = p->path_count++;
	same_host_plan(w, p);
}

/* What it is to people. */
static const char *path_text(const struct path *path, char out[32])
{
	if (same_host_is(path->peer, path))
		return "this machine's memory";
	(void)snprintf(out, 32, "local NIC %" PRIu32, path->nic);
	return out;
}

/* One of several: others carry on. */
static void path_missing(struct worker *w, struct path *path, wimm_status cause, const char *text)
	ON_WORKER
{
	struct peer *p = path->peer;

	path->lost_at = ++p->losses;
	path->barred = cause == WIMM_E_PROTOCOL || cause == WIMM_E_REVOKED || cause == WIMM_E_RANGE;
	peer_event(w, p, WIMM_PEER_NIC_LOST, cause,
	           same_host_is(p, path) ? WIMM_NIC_SAME_HOST : path->nic, text);
	doubt_begin(w, p);
	confirm_path_lost(w, p);
	drain_step(w, p);     /* it waits for this path no more */
	retire_arrived(w, p); /* nothing more comes there */
	fence_arrived(w, p);
	post_peer_room(w, p); /* its legs look for another path */
}

/* told: the other end has ended it, which may be all that is known yet of a peer that leaves. */
static void path_end(struct worker *w, struct path *path, wimm_status cause, uint32_t vendor_code,
                     const char *text, bool told) ON_WORKER
{
	struct peer *p = path->peer;
	bool was_up = path->state == PATH_UP;
	char name[32];

	if (path->state != PATH_UP && path->state != PATH_OPENING)
		return;
	path_set_state(path, PATH_CLOSING);
	path_ops(w, path)->path_close(path->prov);
	if (was_up)
		p->paths_up--;
	if (text == NULL)
		text = wimm_status_text(cause);
	if (p->paths_up == 0 && (p->state == PEER_UP || was_up)) {
		peer_ending(w, p, told, cause == WIMM_E_PATH_LOST ? WIMM_E_PEER_LOST : cause,
		            vendor_code, "its last path (%s) failed: %s", path_text(path, name),
		            text);
		return;
	}
	if (p->leaving || p->ending_step != 0)
		return;
	if (p->state == PEER_UP && !was_up && path->seq > 1)
		return; /* it has not come back this time */
	if (same_host_is(p, path))
		same_host_path_lost(p, text);
	else
		LOG_WARN("peer %" PRIx64 ": path %" PRIu32 " (%s) lost: %s", peer_id(p),
		         path->index, path_text(path, name), text);
	if (p->state == PEER_UP && !same_host_suffices(w, p)) {
		peer_ending(w, p, told, WIMM_E_PEER_LOST, vendor_code, "%s", p->way);
		return;
	}
	if (p->state == PEER_UP)
		path_missing(w, path, cause, text);
	path_maybe_up(w, p, false);
	if (p->state == PEER_CONNECTING && p->paths_up == 0) {
		for (uint32_t k = 0; k < p->path_count; k++)
			if (p->path[k].state == PATH_OPENING)
				return;
		peer_down(w, p, WIMM_E_PEER_LOST, vendor_code, "no path came up: %s", text);
	}
}

void path_lost(struct worker *w, struct path *path, wimm_status cause, uint32_t vendor_code,
               const char *text)
{
	path_end(w, path, cause, vendor_code, text, false);
}

void path_event(struct worker *w, struct path *path, const struct prov_cqe *c)
{
	struct peer *p = path->peer;

	switch (c->kind) {
	case PROV_DONE:
		p->last_rx_ns = w->now_ns;
		post_done(w, path, c);
		return;
	case PROV_IMM:
	case PROV_PART:
		p->last_rx_ns = w->now_ns;
		if (path->state != PATH_CLOSING && p->state != PEER_DOWN)
			count_arrived(w, path, c);
		return;
	case PROV_PATH_UP:
		if (path->state != PATH_OPENING)
			return;
		path_set_state(path, PATH_UP);
		path->stood = true;
		p->paths_up++;
		if (same_host_is(p, path))
			same_host_path_up(w, p, c->text);
		path_maybe_up(w, p, false);
		if (p->state == PEER_UP && path->seq > 1)
			path_back(w, path);
		return;
	case PROV_PATH_DOWN:
		path_end(w, path, c->status, c->vendor_code, c->text,
		         c->status == WIMM_E_PATH_LOST);
		return;
	case PROV_PATH_CLOSED:
		path_set_state(path, PATH_NONE);
		path->prov = NULL;
		p->paths_open--;
		path->due_ns = 0;
		path_again(w, path);
		if (p->state == PEER_DOWN && p->paths_open == 0) {
			stage_peer_closed(w, p);
			mr_peer_down(w, p); /* nothing of it lands any more */
			p->refs++;
			fence_peer_down(w, p);
			p->refs--;
		}
		peer_maybe_free(w, p);
		return;
	default:
		ASSERT(false && "a path event of the provider's");
	}
}
