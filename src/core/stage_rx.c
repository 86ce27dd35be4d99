/* SPDX-License-Identifier: Apache-2.0 */
#include "core/stage.h"

#include "base/alloc.h"
#include "base/bytes.h"
#include "core/engine.h"
#include "core/marks.h"
#include "core/session.h"

#include <string.h>

struct rx_slot {
	bool busy;
	struct wimm_mr *mr; /* held; NULL: nothing is copied */
	struct cuda_queue *queue;
	uint64_t ticket; /* 0: nothing to wait for */
	wimm_status status;
	uint32_t imm;
	uint32_t imms;
	uint32_t path;
	uint32_t path_seq;
};

#define NONE UINT8_MAX

struct stage_rx {
	struct stage_mem mem;
	uint32_t *index; /* for the kernel that spreads pages: both lists of each slot */
	uint32_t next;               /* number of the one that is counted next */
	uint8_t order[STAGE_SLOTS];  /* slots by number, those from `next` on; NONE: not here */
	struct rx_slot slot[STAGE_SLOTS];
	uint64_t piece[2 * STAGE_PIECES]; /* offset, length: out of the peer's reach */
};

static bool take_back(struct worker *w, struct peer *p) ON_WORKER;

void stage_asked(struct worker *w, struct peer *p)
{
	struct wire_msg m = { .type = WIRE_LAND_AREA };
	struct stage_rx *rx;

	if (p->stage_rx != NULL && !take_back(w, p))
		return;
	rx = p->stage_rx;
	/* A peer that acknowledges nothing gets no more memory; it is looked at now and then. */
	p->land_wanted = rx == NULL && atomic_load_explicit(&p->land_areas, memory_order_acquire) >=
	                                       STAGE_AREAS_MAX;
	if (p->land_wanted)
		return;
	if (rx == NULL) {
		rx = mem_calloc(1, sizeof(*rx));
		if (rx == NULL || !stage_mem_open(w, &rx->mem, &p->land_areas)) {
			mem_free(rx);
			session_say(w, p, &m); /* none */
			return;
		}
		if (rx->mem.pinned)
			rx->index = cuda_host_alloc((uint64_t)STAGE_SLOTS * STAGE_PIECES * 2 *
			                            sizeof(*rx->index));
		memset(rx->order, NONE, sizeof(rx->order));
		p->stage_rx = rx;
	}
	m.u.land.base = (uint64_t)(uintptr_t)rx->mem.base;
	m.u.land.region_slot = rx->mem.mr->slot;
	m.u.land.generation =
		atomic_load_explicit(&rx->mem.mr->generation, memory_order_relaxed);
	m.u.land.key_count = w->nic_count;
	memcpy(m.u.land.key, rx->mem.mr->key, w->nic_count * sizeof(uint64_t));
	session_say(w, p, &m);
}

/* --- what lies in a slot --- */

struct head {
	uint32_t number, region_slot, generation, pieces, imm, imms;
	uint64_t bytes;
};

/* Copied out before it is checked. False: no sender of ours writes such. */
static bool read_head(struct stage_rx *rx, const uint8_t *at, struct head *h)
{
	uint8_t copy[STAGE_HEAD_BYTES];
	uint64_t sum = 0;
	struct br r;

	memcpy(copy, at, sizeof(copy));
	br_init(&r, copy, sizeof(copy));
	if (br_u32(&r) != STAGE_MAGIC)
		return false;
	h->number = br_u32(&r);
	h->region_slot = br_u32(&r);
	h->generation = br_u32(&r);
	h->pieces = br_u32(&r);
	h->imm = br_u32(&r);
	h->imms = br_u32(&r);
	(void)br_u32(&r);
	h->bytes = br_u64(&r);
	if (h->pieces == 0 || h->pieces > STAGE_PIECES || h->bytes > STAGE_BYTES ||
	    h->imms > h->pieces || h->number - rx->next >= STAGE_SLOTS ||
	    rx->order[h->number % STAGE_SLOTS] != NONE)
		return false;
	br_init(&r, at + STAGE_HEAD_BYTES, (size_t)h->pieces * STAGE_PIECE_BYTES);
	for (uint32_t i = 0; i < h->pieces; i++) {
		rx->piece[2 * i] = br_u64(&r);
		rx->piece[2 * i + 1] = br_u64(&r);
		if (rx->piece[2 * i + 1] > STAGE_BYTES)
			return false;
		sum += rx->piece[2 * i + 1];
	}
	return sum == h->bytes;
}

static bool inside(const struct stage_rx *rx, const struct head *h, uint64_t total)
{
	for (uint32_t i = 0; i < h->pieces; i++)
		if (rx->piece[2 * i] > total || rx->piece[2 * i + 1] > total - rx->piece[2 * i])
			return false;
	return true;
}

/* Pages of one length at places that fit the kernel's indices. */
static bool regular(const struct stage_rx *rx, const struct head *h)
{
	if (h->pieces < 2 || rx->index == NULL)
		return false;
	for (uint32_t i = 0; i < h->pieces; i++)
		if (rx->piece[2 * i + 1] != rx->piece[1] || rx->piece[2 * i] % 16 != 0 ||
		    rx->piece[2 * i] / 16 > UINT32_MAX)
			return false;
	return rx->piece[1] != 0;
}

static wimm_status copy_in(struct stage_rx *rx, struct rx_slot *slot, const struct head *h,
                           uint32_t number, uint64_t from)
{
	uint64_t base = (uint64_t)(uintptr_t)slot->mr->addr;
	wimm_status st = WIMM_OK;
	uint64_t ignored;

	if (regular(rx, h)) {
		uint32_t *index = rx->index + (size_t)number * STAGE_PIECES * 2;
		struct cuda_pages p = { .src = from,
			                .dst = base,
			                .src_index = index,
			                .dst_index = index + STAGE_PIECES,
			                .count = h->pieces,
			                .src_stride = rx->piece[1],
			                .dst_stride = 16,
			                .page_bytes = rx->piece[1] };

		for (uint32_t i = 0; i < h->pieces; i++) {
			index[i] = i;
			index[STAGE_PIECES + i] = (uint32_t)(rx->piece[2 * i] / 16);
		}
		return cuda_queue_pages(slot->queue, &p, &slot->ticket);
	}
	cuda_queue_begin(slot->queue);
	for (uint32_t i = 0; st == WIMM_OK && i < h->pieces; i++) {
		if (rx->piece[2 * i + 1] != 0)
			st = cuda_queue_copy(slot->queue, base + rx->piece[2 * i], from,
			                     rx->piece[2 * i + 1], &ignored);
		from += rx->piece[2 * i + 1];
	}
	return st == WIMM_OK ? cuda_queue_end(slot->queue, &slot->ticket) : st;
}

static void copy_host(const struct stage_rx *rx, const struct rx_slot *slot, const struct head *h,
                      const uint8_t *from)
{
	for (uint32_t i = 0; i < h->pieces; i++) {
		memcpy((uint8_t *)slot->mr->addr + rx->piece[2 * i], from, rx->piece[2 * i + 1]);
		from += rx->piece[2 * i + 1];
	}
}

/* Start bringing a slot's bytes to where they belong. */
static wimm_status place(struct worker *w, struct stage_rx *rx, struct rx_slot *slot,
                         const struct head *h, uint32_t number)
{
	const uint8_t *from = rx->mem.base + (size_t)number * STAGE_STRIDE + STAGE_HEAD_BYTES +
	                      (size_t)h->pieces * STAGE_PIECE_BYTES;
	const char *why;
	wimm_status st;

	slot->mr = mr_hold(w, h->region_slot, h->generation);
	if (slot->mr == NULL)
		return WIMM_E_REVOKED;
	if (!inside(rx, h, slot->mr->len_bytes))
		return WIMM_E_RANGE;
	if (slot->mr->device < 0) {
		copy_host(rx, slot, h, from);
		return WIMM_OK;
	}
	slot->queue = stage_queue(w, true, slot->mr->device, &why);
	if (slot->queue == NULL)
		return WIMM_E_SYSTEM;
	st = copy_in(rx, slot, h, number, (uint64_t)(uintptr_t)from);
	if (st != WIMM_OK)
		cuda_queue_drain(slot->queue); /* of those that were asked for */
	return st;
}

/* It names a slot of the area that is lent now. */
static bool is_current(const struct stage_rx *rx, uint64_t op_seq)
{
	uint32_t generation =
		atomic_load_explicit(&rx->mem.mr->generation, memory_order_relaxed);

	return op_seq == stage_seq(rx->mem.mr->slot, generation,
	                           (uint32_t)(op_seq & (STAGE_SLOTS - 1)));
}

void stage_arrived(struct worker *w, struct path *path, const struct prov_cqe *c)
{
	struct peer *p = path->peer;
	struct stage_rx *rx = p->stage_rx;
	uint64_t number = c->op_seq & (STAGE_SLOTS - 1);
	struct rx_slot *slot;
	struct head h;

	if (rx != NULL && !is_current(rx, c->op_seq)) {
		path->seen_marks += c->count; /* into slots that were taken back */
		return;
	}
	if (rx == NULL || number >= STAGE_SLOTS || rx->slot[number].busy ||
	    !read_head(rx, rx->mem.base + number * STAGE_STRIDE, &h)) {
		peer_down(w, p, WIMM_E_PROTOCOL, 0, "what it wrote into a slot makes no sense");
		return;
	}
	slot = &rx->slot[number];
	*slot = (struct rx_slot){ .busy = true, .imm = h.imm, .imms = h.imms,
		                  .path = path->index, .path_seq = path->seq };
	slot->status = place(w, rx, slot, &h, (uint32_t)number);
	rx->order[h.number % STAGE_SLOTS] = (uint8_t)number;
	stage_busy(w, p);
}

/* Nothing is copied from or to a slot any more. */
static void leave(struct worker *w, struct peer *p, struct rx_slot *slot) ON_WORKER
{
	struct path *path = &p->path[slot->path];

	slot->busy = false;
	mr_release(w, slot->mr);
	if (path->seq == slot->path_seq)
		path->seen_marks++;
}

/* The next slot's bytes are there, or will not be. False: the peer is gone. */
static bool finish(struct worker *w, struct peer *p) ON_WORKER
{
	uint8_t *at = &p->stage_rx->order[p->stage_rx->next++ % STAGE_SLOTS];
	uint32_t number = *at;
	struct rx_slot slot = p->stage_rx->slot[number];
	struct wire_msg m = { .type = WIRE_LANDED };

	*at = NONE;
	/* One before it, of the same write, may have found the region ended. */
	if (slot.status == WIMM_OK && !mr_usable(w->engine, slot.mr))
		slot.status = WIMM_E_REVOKED;
	leave(w, p, &p->stage_rx->slot[number]);
	m.u.landed.slot = number;
	m.u.landed.status = slot.status;
	session_say(w, p, &m);
	if (p->state == PEER_UP && slot.status == WIMM_OK && slot.imms != 0)
		count_add(w, p, slot.imm, slot.imms);
	if (p->state == PEER_UP)
		count_looked_for(w, p);
	return p->state == PEER_UP;
}

/* The one that is counted next. NULL: it has not come. */
static struct rx_slot *next_slot(struct stage_rx *rx)
{
	uint8_t number = rx != NULL ? rx->order[rx->next % STAGE_SLOTS] : NONE;

	return number != NONE ? &rx->slot[number] : NULL;
}

uint32_t stage_rx_step(struct worker *w, struct peer *p)
{
	uint32_t done = 0;

	while (next_slot(p->stage_rx) != NULL) {
		struct rx_slot *slot = next_slot(p->stage_rx);

		if (slot->status == WIMM_OK && slot->ticket != 0 &&
		    !cuda_queue_done(slot->queue, slot->ticket)) {
			if (!stage_fault(w, slot->queue))
				return done + 1; /* keep looking */
			slot->status = WIMM_E_SYSTEM;
		}
		done++;
		if (!finish(w, p))
			return done;
	}
	return done;
}

void stage_rx_down(struct worker *w, struct peer *p)
{
	struct stage_rx *rx = p->stage_rx;

	if (rx == NULL)
		return;
	for (uint32_t i = 0; i < STAGE_SLOTS; i++) {
		struct rx_slot *slot = &rx->slot[i];

		if (!slot->busy)
			continue;
		if (slot->ticket != 0 && !cuda_queue_done(slot->queue, slot->ticket))
			cuda_queue_drain(slot->queue);
		mr_release(w, slot->mr);
	}
	stage_mem_close(w, &rx->mem);
	cuda_host_free(rx->index);
	p->stage_rx = NULL;
	mem_free(rx);
}

/* The card is done with it, one way or the other. */
static void wait_for_card(struct rx_slot *slot)
{
	if (slot->ticket == 0 || cuda_queue_done(slot->queue, slot->ticket))
		return;
	cuda_queue_drain(slot->queue);
	if (slot->status == WIMM_OK && !cuda_queue_done(slot->queue, slot->ticket))
		slot->status = WIMM_E_SYSTEM;
}

/* A slot was lost with its path, and the peer asks for others. What came before that one is brought
 * to where it belongs first; what came behind it comes again. False: the peer is gone. */
static bool take_back(struct worker *w, struct peer *p) ON_WORKER
{
	struct stage_rx *rx = p->stage_rx;

	for (uint32_t i = 0; i < STAGE_SLOTS; i++)
		if (rx->slot[i].busy)
			wait_for_card(&rx->slot[i]);
	while (next_slot(rx) != NULL)
		if (!finish(w, p))
			return false;
	for (uint32_t i = 0; i < STAGE_SLOTS && p->stage_rx == rx; i++)
		if (rx->slot[i].busy)
			leave(w, p, &rx->slot[i]);
	count_looked_for(w, p);
	if (p->state != PEER_UP)
		return false;
	stage_rx_down(w, p);
	return true;
}
