/* SPDX-License-Identifier: Apache-2.0 */
/* What was cancelled may still be under way: of a request half sent the rest follows. Before this
 * side says of a region, or of a whole peer, that nothing of its comes any more, an empty write
 * goes out behind the cancelled ones on each path that has some, and its completion is waited for.
 * On a provider that keeps no order it would show nothing; there prov.h asks more of a cancel. */
#include "core/engine.h"
#include "core/fence.h"
#include "core/gpu.h"

#include "base/alloc.h"

#include <inttypes.h>

/* Acknowledgements that wait for one peer's paths. */
#define OWED_MAX 65536

/* A revocation that is acknowledged once the paths are drained. */
struct owed_ack {
	struct list link; /* peer.owed_acks */
	uint32_t region_slot;
	uint32_t generation;
};

void drain_cancelled(struct worker *w, struct path *path)
{
	path->dirty = path->dirty || w->nic[path->nic].caps.ordered;
}

bool drain_needed(const struct peer *p)
{
	for (uint32_t k = 0; k < p->path_count; k++)
		if (p->path[k].state == PATH_UP && (p->path[k].dirty || p->path[k].flushing))
			return true;
	return false;
}

static void send_ack(struct worker *w, struct peer *p, uint32_t slot, uint32_t generation) ON_WORKER
{
	struct wire_msg m = { .type = WIRE_REVOKE_ACK };

	gpu_forget(w, p, slot, generation);
	m.u.mr.region_slot = slot;
	m.u.mr.generation = generation;
	session_say(w, p, &m);
}

static void drained(struct worker *w, struct peer *p) ON_WORKER
{
	p->draining = false;
	while (!list_empty(&p->owed_acks)) {
		struct owed_ack *o =
			LIST_ENTRY(list_pop_front(&p->owed_acks), struct owed_ack, link);

		p->owed_count--;
		send_ack(w, p, o->region_slot, o->generation);
		mem_free(o);
	}
	fence_answer(w, p);
}

void drain_step(struct worker *w, struct peer *p)
{
	if (!p->draining || p->state != PEER_UP)
		return;
	for (uint32_t k = 0; k < p->path_count; k++) {
		struct path *path = &p->path[k];
		struct prov_wr flush = { .token = FLUSH_TOKEN };

		if (path->state != PATH_UP || !path->dirty || path->flushing ||
		    path_ops(w, path)->post(path->prov, &flush, 1) == 0)
			continue; /* full: tried again when something has come back */
		path->dirty = false;
		path->flushing = true;
	}
	if (!drain_needed(p))
		drained(w, p);
}

void drain_done(struct worker *w, struct path *path)
{
	path->flushing = false;
	drain_step(w, path->peer);
}

void drain_ack(struct worker *w, struct peer *p, uint32_t slot, uint32_t generation)
{
	struct owed_ack *o;

	if (!drain_needed(p)) {
		send_ack(w, p, slot, generation);
		return;
	}
	o = p->owed_count < OWED_MAX ? mem_alloc(sizeof(*o)) : NULL;
	if (o == NULL) {
		peer_down(w, p, WIMM_E_NOMEM, 0,
		          "no room to remember that it revoked region %" PRIu32, slot);
		return;
	}
	o->region_slot = slot;
	o->generation = generation;
	list_push_back(&p->owed_acks, &o->link);
	p->owed_count++;
	p->draining = true;
	drain_step(w, p);
}

void drain_peer_down(struct peer *p)
{
	p->draining = false;
	while (!list_empty(&p->owed_acks))
		mem_free(LIST_ENTRY(list_pop_front(&p->owed_acks), struct owed_ack, link));
	p->owed_count = 0;
}
