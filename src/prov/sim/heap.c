/* SPDX-License-Identifier: Apache-2.0 */
/* What is due, in the order of time. Equal times go by `tie`, then in the order of pushing, never
 * by an address, so that a run repeats exactly. */

#include "prov/sim/sim_int.h"

void sim_event_init(struct sim_event *ev, enum ev_kind kind, void *obj, uint32_t arg)
{
	*ev = (struct sim_event){ .kind = kind, .obj = obj, .arg = arg };
	list_init(&ev->held);
}

bool sim_heap_reserve(struct sim_heap *h, uint32_t count)
{
	if (h->events + count >= h->room) {
		uint32_t room = (h->events + count) * 2 + 64;
		struct sim_event **at = mem_realloc(h->at, room * sizeof(*at));

		if (!at)
			return false;
		h->at = at;
		h->room = room;
	}
	h->events += count;
	return true;
}

void sim_heap_unreserve(struct sim_heap *h, uint32_t count)
{
	ASSERT(h->events >= count);
	h->events -= count;
}

void sim_heap_fini(struct sim_heap *h)
{
	mem_free(h->at);
	*h = (struct sim_heap){ 0 };
}

static bool event_before(const struct sim_event *a, const struct sim_event *b)
{
	if (a->at_ns != b->at_ns)
		return a->at_ns < b->at_ns;
	if (a->tie != b->tie)
		return a->tie < b->tie;
	return a->seq < b->seq;
}

static void heap_place(struct sim_heap *h, uint32_t pos, struct sim_event *ev)
{
	h->at[pos] = ev;
	ev->heap_pos = pos;
}

static void heap_up(struct sim_heap *h, uint32_t pos, struct sim_event *ev)
{
	for (; pos > 1 && event_before(ev, h->at[pos / 2]); pos /= 2)
		heap_place(h, pos, h->at[pos / 2]);
	heap_place(h, pos, ev);
}

static void heap_down(struct sim_heap *h, uint32_t pos, struct sim_event *ev)
{
	for (;;) {
		uint32_t child = pos * 2;

		if (child < h->count && event_before(h->at[child + 1], h->at[child]))
			child++;
		if (child > h->count || !event_before(h->at[child], ev))
			break;
		heap_place(h, pos, h->at[child]);
		pos = child;
	}
	heap_place(h, pos, ev);
}

struct sim_event *sim_heap_top(const struct sim_heap *h)
{
	return h->count ? h->at[1] : NULL;
}

void sim_heap_push(struct sim_heap *h, struct sim_event *ev)
{
	ASSERT(ev->heap_pos == 0 && h->count + 1 < h->room);
	heap_up(h, ++h->count, ev);
}

void sim_heap_remove(struct sim_heap *h, struct sim_event *ev)
{
	uint32_t pos = ev->heap_pos;
	struct sim_event *last = h->at[h->count--];

	ev->heap_pos = 0;
	if (last == ev)
		return;
	if (event_before(last, ev))
		heap_up(h, pos, last);
	else
		heap_down(h, pos, last);
}

void sim_event_push(struct sim_world *w, struct sim_event *ev, uint64_t at_ns, bool shuffle)
{
	ev->at_ns = at_ns;
	ev->tie = shuffle ? rng_u64(&w->rng) | 1 : 0;
	ev->seq = ++w->seq;
	sim_heap_push(&w->heap, ev);
	if (!w->cfg.virtual_time && ev->to != SIM_NIC_NONE) {
		struct sim_dev *d = sim_world_dev(w, ev->to);

		if (d)
			sim_dev_wake(d); /* it runs its own events, should the other side sleep */
	}
}

bool sim_event_remove(struct sim_world *w, struct sim_event *ev)
{
	if (ev->heap_pos != 0)
		sim_heap_remove(&w->heap, ev);
	else if (list_linked(&ev->held))
		list_remove(&ev->held);
	else
		return false;
	return true;
}
