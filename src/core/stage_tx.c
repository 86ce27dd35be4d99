/* SPDX-License-Identifier: Apache-2.0 */
#include "core/stage.h"

#include "base/alloc.h"
#include "base/bytes.h"
#include "core/engine.h"
#include "core/marks.h"
#include "core/same_host.h"
#include "core/session.h"

#include <string.h>

enum { TRIES = 8 }; /* of a slot whose paths are lost one after the other */

enum slot_state {
	SLOT_FREE = 0,
	SLOT_FILLING, /* the card copies, or it waits for room on the path */
	SLOT_SKIPPED, /* given up before it was posted */
	SLOT_POSTED,
};

struct tx_slot {
	enum slot_state state;
	bool acked;  /* its write has come back */
	bool landed; /* the receiver has said what became of it */
	uint8_t path;
	uint8_t tries;
	struct op *op; /* NULL: nobody waits for it */
	struct cuda_queue *queue;
	uint64_t ticket; /* 0: filled */
	uint32_t bytes;
};

struct piece {
	uint64_t src;
	uint64_t dst; /* offset in the region */
	uint64_t len;
};

struct load {
	uint64_t page; /* behind the last piece */
	uint64_t off;
	uint32_t pieces;
	uint32_t imms;
	uint64_t bytes;
	bool whole; /* pages, none of them cut */
	struct piece piece[STAGE_PIECES];
};

struct stage_tx {
	struct stage_mem mem;
	struct list legs;
	bool area_known;
	bool refused; /* there was none: the next leg asks again */
	bool spoilt;  /* a slot was lost with its path: the numbers have a gap */
	struct wire_land area;
	uint32_t filled; /* slots in turn; both run freely */
	uint32_t posted;
	uint32_t number; /* of the next slot posted into this area */
	uint32_t turn;   /* the path that is looked at first */
	uint32_t *identity; /* 0, 1, ...: where the kernel packs pages */
	struct tx_slot slot[STAGE_SLOTS];
	struct load load; /* what is being packed */
};

static void ask(struct worker *w, struct peer *p) ON_WORKER
{
	struct wire_msg m = { .type = WIRE_LAND_ASK };

	p->stage_tx->area_known = false;
	p->stage_tx->refused = false;
	p->stage_tx->spoilt = false;
	session_say(w, p, &m); /* may take the peer down */
}

static struct stage_tx *tx_get(struct worker *w, struct peer *p) ON_WORKER
{
	struct stage_tx *tx = p->stage_tx;

	if (tx != NULL && tx->refused)
		ask(w, p);
	if (tx != NULL)
		return p->stage_tx;
	tx = mem_calloc(1, sizeof(*tx));
	if (tx == NULL)
		return NULL;
	list_init(&tx->legs);
	if (!stage_mem_open(w, &tx->mem, NULL)) {
		mem_free(tx);
		return NULL;
	}
	tx->identity = tx->mem.pinned ? cuda_host_alloc(STAGE_PIECES * sizeof(uint32_t)) : NULL;
	for (uint32_t i = 0; tx->identity != NULL && i < STAGE_PIECES; i++)
		tx->identity[i] = i;
	p->stage_tx = tx;
	ask(w, p);
	return p->stage_tx;
}

bool stage_leg(struct worker *w, struct leg *leg)
{
	struct peer *p = leg->dst->peer;
	struct stage_tx *tx;

	if ((leg->op->flags & WIMM_PIN_NIC) != 0) {
		post_fail_leg(w, leg, WIMM_E_UNSUPPORTED,
		              "memory of a GPU through slots cannot be pinned to a NIC");
		return true;
	}
	tx = p->minor >= WIRE_MINOR_LAND ? tx_get(w, p) : NULL;
	if (p->state != PEER_UP) {
		post_fail_leg(w, leg, p->cause, p->text);
		return true;
	}
	if (tx == NULL)
		return false;
	leg->state = LEG_STAGED;
	list_push_back(&tx->legs, &leg->link);
	stage_busy(w, p);
	return true;
}

/* --- filling --- */

/* What of the leg comes next; leg->op_seq is how much of page leg->next is away already. */
static void choose(const struct leg *leg, struct load *l)
{
	const struct op *op = leg->op;
	const struct op_paged *pages = &op->paged;
	bool paged = op->kind == OP_PAGED;
	bool each = paged && (op->flags & WIMM_IMM) != 0 && (op->flags & WIMM_IMM_ONCE) == 0;
	uint64_t len = paged ? pages->page_len_bytes : leg->len_bytes;

	l->page = leg->next;
	l->off = leg->op_seq;
	l->pieces = 0;
	l->imms = 0;
	l->bytes = 0;
	l->whole = paged && l->off == 0 && len <= STAGE_BYTES;
	while (l->page < leg->end && l->pieces < STAGE_PIECES) {
		uint64_t n = len - l->off;
		struct piece *piece = &l->piece[l->pieces];

		if (n > STAGE_BYTES - l->bytes && l->whole)
			break;
		n = n < STAGE_BYTES - l->bytes ? n : STAGE_BYTES - l->bytes;
		piece->src = leg->src_offset + l->off;
		piece->dst = leg->dst_offset + l->off;
		if (paged) {
			piece->src += pages->indices[l->page] * pages->src_stride;
			piece->dst += pages->dst_indices[l->page] * pages->dst_stride;
		}
		piece->len = n;
		l->pieces++;
		l->bytes += n;
		l->off += n;
		if (l->off < len)
			break;
		l->off = 0;
		l->page++;
		l->imms += each;
	}
	if (!each && (op->flags & WIMM_IMM) != 0 && l->page == leg->end)
		l->imms = 1;
}

static uint32_t put_head(const struct leg *leg, const struct load *l, uint8_t *at)
{
	struct bw w;

	bw_init(&w, at, STAGE_HEAD_BYTES + l->pieces * STAGE_PIECE_BYTES);
	bw_u32(&w, STAGE_MAGIC);
	bw_u32(&w, 0); /* its number, when it is posted */
	bw_u32(&w, leg->dst->region_slot);
	bw_u32(&w, leg->dst->region_generation);
	bw_u32(&w, l->pieces);
	bw_u32(&w, leg->op->imm);
	bw_u32(&w, l->imms);
	bw_u32(&w, 0);
	bw_u64(&w, l->bytes);
	for (uint32_t i = 0; i < l->pieces; i++) {
		bw_u64(&w, l->piece[i].dst);
		bw_u64(&w, l->piece[i].len);
	}
	return (uint32_t)bw_len(&w);
}

/* Pages packed by one kernel, or pieces by the copy engine. */
static wimm_status copy_out(struct stage_tx *tx, struct tx_slot *slot, const struct leg *leg,
                            const struct load *l, uint64_t to)
{
	const struct op_paged *pages = &leg->op->paged;
	uint64_t base = (uint64_t)(uintptr_t)leg->op->src->addr;
	wimm_status st = WIMM_OK;
	uint64_t ignored;

	if (l->whole && l->pieces > 1 && tx->identity != NULL) {
		struct cuda_pages p = { .src = base + leg->src_offset,
			                .dst = to,
			                .src_index = pages->indices + leg->next,
			                .dst_index = tx->identity,
			                .count = l->pieces,
			                .src_stride = pages->src_stride,
			                .dst_stride = pages->page_len_bytes,
			                .page_bytes = pages->page_len_bytes };

		return cuda_queue_pages(slot->queue, &p, &slot->ticket);
	}
	cuda_queue_begin(slot->queue);
	for (uint32_t i = 0; st == WIMM_OK && i < l->pieces; i++) {
		if (l->piece[i].len != 0)
			st = cuda_queue_copy(slot->queue, to, base + l->piece[i].src,
			                     l->piece[i].len, &ignored);
		to += l->piece[i].len;
	}
	if (st != WIMM_OK)
		return st;
	return cuda_queue_end(slot->queue, &slot->ticket);
}

static void copy_host(const struct leg *leg, const struct load *l, uint8_t *to)
{
	for (uint32_t i = 0; i < l->pieces; i++) {
		memcpy(to, (const uint8_t *)leg->op->src->addr + l->piece[i].src, l->piece[i].len);
		to += l->piece[i].len;
	}
}

static void leg_done(struct leg *leg)
{
	list_remove(&leg->link);
	leg->state = LEG_POSTED;
	leg->op_seq = 0;
	leg->op->legs_open--; /* its slots keep the operation */
}

/* The next slot with the first leg. False: the leg has failed. */
static bool fill(struct worker *w, struct stage_tx *tx, struct leg *leg) ON_WORKER
{
	struct load *l = &tx->load;
	uint32_t index = tx->filled % STAGE_SLOTS;
	struct tx_slot *slot = &tx->slot[index];
	uint8_t *at = tx->mem.base + (size_t)index * STAGE_STRIDE;
	struct op *op = leg->op;
	int device = op->src->device;
	const char *why = "";
	uint32_t head;

	choose(leg, l);
	head = put_head(leg, l, at);
	*slot = (struct tx_slot){ .state = SLOT_FILLING, .op = op,
		                  .bytes = head + (uint32_t)l->bytes };
	if (device < 0) {
		copy_host(leg, l, at + head);
	} else {
		slot->queue = stage_queue(w, false, device, &why);
		if (slot->queue == NULL ||
		    copy_out(tx, slot, leg, l, (uint64_t)(uintptr_t)at + head) != WIMM_OK) {
			why = slot->queue != NULL ? cuda_queue_error(slot->queue) : why;
			if (slot->queue != NULL)
				cuda_queue_drain(slot->queue); /* of those asked for */
			slot->state = SLOT_FREE;
			post_fail_leg(w, leg, WIMM_E_SYSTEM, why);
			return false;
		}
	}
	tx->filled++;
	op->outstanding++;
	op->descriptors++;
	if (op->post_ns == 0)
		op->post_ns = w->now_ns;
	leg->next = l->page;
	leg->op_seq = l->off;
	if (leg->next == leg->end)
		leg_done(leg);
	return true;
}

/* --- posting --- */

static void slot_over(struct worker *w, struct peer *p, struct tx_slot *slot, wimm_status status,
                      const char *text) ON_WORKER;

/* Slots that are on their way over a path. */
static uint32_t load_of(const struct stage_tx *tx, uint32_t path)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < STAGE_SLOTS; i++)
		n += tx->slot[i].state == SLOT_POSTED && !tx->slot[i].acked &&
		     tx->slot[i].path == path;
	return n;
}

/* The path with the least on its way, of those not tried yet: a slow one takes fewer. */
static struct path *choose_path(struct peer *p, uint32_t tried)
{
	struct stage_tx *tx = p->stage_tx;
	struct path *best = NULL;
	uint32_t least = UINT32_MAX;

	if (same_host_up(p))
		return (tried >> p->host_path & 1) == 0 ? &p->path[p->host_path] : NULL;
	for (uint32_t i = 0; i < p->path_count; i++) {
		struct path *path = &p->path[(tx->turn + i) % p->path_count];
		uint32_t load;

		if (path->state != PATH_UP || (tried >> path->index & 1) != 0)
			continue;
		load = load_of(tx, path->index);
		if (load < least) {
			least = load;
			best = path;
		}
	}
	return best;
}

static bool post_slot(struct worker *w, struct peer *p, struct path *path, uint32_t index)
{
	struct stage_tx *tx = p->stage_tx;
	struct tx_slot *slot = &tx->slot[index];
	uint64_t core_key = (uint64_t)tx->area.generation << 32 | tx->area.region_slot;
	struct bw number;
	struct prov_wr wr = {
		.token = STAGE_TOKEN + index,
		.src = tx->mem.base + (size_t)index * STAGE_STRIDE,
		.len_bytes = slot->bytes,
		.local_key = tx->mem.mr->key[path->nic],
		.remote_addr = tx->area.base + (uint64_t)index * STAGE_STRIDE,
		.remote_key = same_host_is(p, path) ? core_key : tx->area.key[path->remote_nic],
		.op_seq = stage_seq(tx->area.region_slot, tx->area.generation, index),
		.parts = 2,
		.flags = PROV_WR_PART,
	};

	bw_init(&number, tx->mem.base + (size_t)index * STAGE_STRIDE + STAGE_NUMBER_AT, 4);
	bw_u32(&number, tx->number);
	if (path_ops(w, path)->post(path->prov, &wr, 1) == 0)
		return false;
	slot->state = SLOT_POSTED;
	slot->path = (uint8_t)path->index;
	slot->tries++;
	tx->number++;
	tx->turn = path->index + 1;
	path->outstanding++;
	path->posted_marks++;
	STAT_ADD(w, writes_posted, 1);
	return true;
}

/* Over whichever path has room. */
static bool post_somewhere(struct worker *w, struct peer *p, uint32_t index)
{
	uint32_t tried = 0;
	struct path *path;

	for (path = choose_path(p, tried); path != NULL; path = choose_path(p, tried)) {
		if (post_slot(w, p, path, index))
			return true;
		tried |= 1u << path->index;
	}
	return false;
}

/* The card has failed: so have the slots it was to fill. */
static bool fault(struct worker *w, struct peer *p, struct tx_slot *slot) ON_WORKER
{
	if (!stage_fault(w, slot->queue))
		return false;
	slot->state = SLOT_SKIPPED;
	slot->acked = true;
	slot_over(w, p, slot, WIMM_E_SYSTEM, cuda_queue_error(slot->queue));
	return true;
}

/* No write into the area is under way. */
static bool all_back(const struct stage_tx *tx)
{
	for (uint32_t i = 0; i < STAGE_SLOTS; i++)
		if (tx->slot[i].state == SLOT_POSTED && !tx->slot[i].acked)
			return false;
	return true;
}

uint32_t stage_tx_step(struct worker *w, struct peer *p)
{
	struct stage_tx *tx = p->stage_tx;
	uint32_t done = 0;

	if (tx == NULL || !tx->area_known || p->state != PEER_UP || p->ending_step != 0 ||
	    p->hold || p->stopped)
		return 0;
	if (tx->spoilt) {
		if (all_back(tx))
			ask(w, p);
		return 0;
	}
	while (!list_empty(&tx->legs) && tx->slot[tx->filled % STAGE_SLOTS].state == SLOT_FREE)
		done += fill(w, tx, LIST_ENTRY(tx->legs.next, struct leg, link));
	for (; tx->posted != tx->filled; tx->posted++, done++) {
		struct tx_slot *slot = &tx->slot[tx->posted % STAGE_SLOTS];

		if (slot->state == SLOT_SKIPPED)
			slot->state = SLOT_FREE;
		if (slot->state == SLOT_FREE)
			continue;
		if (slot->ticket != 0 && !cuda_queue_done(slot->queue, slot->ticket)) {
			done++; /* keep looking */
			(void)fault(w, p, slot);
			break;
		}
		if (!post_somewhere(w, p, tx->posted % STAGE_SLOTS))
			break;
	}
	return done;
}

/* --- what comes back --- */

static struct tx_slot *skipped(struct tx_slot *slot)
{
	if (slot->ticket != 0 && !cuda_queue_done(slot->queue, slot->ticket))
		cuda_queue_drain(slot->queue);
	slot->state = SLOT_SKIPPED;
	return slot;
}

/* Nobody waits for it any more; nothing of its source is read after this. */
static void slot_let_go(struct tx_slot *slot)
{
	if (slot->state == SLOT_FILLING)
		(void)skipped(slot);
	slot->op->outstanding--;
	slot->op = NULL;
}

/* A slot of it has failed: what follows it must not go out, else it were counted without it. */
static void give_up(struct worker *w, struct peer *p, struct op *op, wimm_status status,
                    const char *text) ON_WORKER
{
	op_fail(op, status, peer_id(p), "%s", text);
	for (uint32_t i = 0; i < STAGE_SLOTS; i++) {
		struct tx_slot *slot = &p->stage_tx->slot[i];

		if (slot->op == op && slot->state == SLOT_FILLING)
			slot_let_go(slot);
	}
	op->legs_open++; /* keeps it */
	for (uint32_t i = 0; i < op->leg_count; i++) {
		struct leg *leg = &op->legs[i];

		if (leg->state == LEG_STAGED && leg->dst->peer == p)
			post_fail_leg(w, leg, status, text);
	}
	op->legs_open--;
}

static void slot_over(struct worker *w, struct peer *p, struct tx_slot *slot, wimm_status status,
                      const char *text) ON_WORKER
{
	struct op *op = slot->op;

	slot->op = NULL;
	if (slot->acked && slot->landed)
		slot->state = SLOT_FREE;
	stage_busy(w, p);
	if (op == NULL)
		return;
	op->outstanding--;
	if (status == WIMM_OK)
		op->descriptors_done++;
	else if (!op->aborted)
		give_up(w, p, op, status, text);
	post_progress(w, op);
}

void stage_done(struct worker *w, struct path *path, const struct prov_cqe *c)
{
	struct peer *p = path->peer;
	struct stage_tx *tx = p->stage_tx;
	uint64_t index = c->token - STAGE_TOKEN;
	struct tx_slot *slot;

	path->outstanding -= c->count;
	if (tx == NULL || index >= STAGE_SLOTS)
		return;
	slot = &tx->slot[index];
	slot->acked = true;
	if (slot->landed)
		slot->state = SLOT_FREE;
	else if (c->status != WIMM_OK)
		tx->spoilt = true; /* it goes out again, with those behind it */
	stage_busy(w, p);
	if (c->status == WIMM_OK || (c->flags & PROV_CQE_SENT) != 0)
		return;
	path->posted_marks--; /* it will never land */
	marks_lowered(w, p);
}

/* What the receiver has not spoken of before it lent new slots it has not counted, and will not:
 * once more, into those. */
static void post_again(struct worker *w, struct peer *p) ON_WORKER
{
	struct stage_tx *tx = p->stage_tx;

	tx->number = 0;
	for (uint32_t i = 0; i < STAGE_SLOTS; i++) {
		struct tx_slot *slot = &tx->slot[i];

		if (slot->state != SLOT_POSTED)
			continue;
		slot->state = slot->op != NULL ? SLOT_FILLING : SLOT_FREE;
		slot->ticket = 0;
		slot->acked = false;
	}
	tx->posted = tx->filled - STAGE_SLOTS; /* the oldest that is in use */
	while (tx->posted != tx->filled && tx->slot[tx->posted % STAGE_SLOTS].state == SLOT_FREE)
		tx->posted++;
	for (uint32_t i = 0; i < STAGE_SLOTS; i++) {
		struct tx_slot *slot = &tx->slot[i];

		if (slot->state != SLOT_FILLING || slot->tries < TRIES)
			continue;
		slot->state = SLOT_SKIPPED;
		slot_over(w, p, slot, WIMM_E_PATH_LOST, "its paths were lost one after the other");
	}
}

void stage_area(struct worker *w, struct peer *p, const struct wire_msg *m)
{
	struct stage_tx *tx = p->stage_tx;

	if (tx == NULL || tx->area_known || tx->refused)
		return;
	post_again(w, p);
	if (m->u.land.key_count != p->addr.nic_count) {
		tx->refused = true;
		stage_stop(w, p, WIMM_E_NOMEM, "the peer has no slots for memory of GPUs");
		return;
	}
	tx->area = m->u.land;
	tx->area_known = true;
	stage_busy(w, p);
}

void stage_landed(struct worker *w, struct peer *p, const struct wire_msg *m)
{
	struct stage_tx *tx = p->stage_tx;
	struct tx_slot *slot;

	if (tx == NULL || m->u.landed.slot >= STAGE_SLOTS)
		return;
	slot = &tx->slot[m->u.landed.slot];
	if (slot->state != SLOT_POSTED || slot->landed)
		return;
	slot->landed = true;
	slot_over(w, p, slot, m->u.landed.status,
	          "the receiver did not take it: its region has ended, or its GPU failed");
}

/* --- ends --- */

void stage_abort(struct worker *w, struct op *op)
{
	for (uint32_t i = 0; i < op->leg_count; i++) {
		struct peer *p = op->legs[i].held ? op->legs[i].dst->peer : NULL;
		struct stage_tx *tx = p != NULL ? p->stage_tx : NULL;

		for (uint32_t k = 0; tx != NULL && k < STAGE_SLOTS; k++) {
			struct tx_slot *slot = &tx->slot[k];

			if (slot->op != op)
				continue;
			slot_let_go(slot);
			stage_busy(w, p);
		}
	}
}

void stage_fail(struct worker *w, struct peer *p, const struct wimm_remote_mr *region,
                wimm_status status, const char *text)
{
	if (p->stage_tx == NULL)
		return;
	LIST_FOR_EACH(it, &p->stage_tx->legs) {
		struct leg *leg = LIST_ENTRY(it, struct leg, link);

		if (region == NULL || leg->dst == region)
			post_fail_leg(w, leg, status, text);
	}
}

void stage_stop(struct worker *w, struct peer *p, wimm_status status, const char *text)
{
	struct stage_tx *tx = p->stage_tx;

	stage_fail(w, p, NULL, status, text);
	for (uint32_t i = 0; tx != NULL && i < STAGE_SLOTS; i++)
		if (tx->slot[i].state == SLOT_FILLING)
			slot_over(w, p, skipped(&tx->slot[i]), status, text);
}

void stage_tx_down(struct worker *w, struct peer *p)
{
	struct stage_tx *tx = p->stage_tx;

	if (tx == NULL)
		return;
	stage_fail(w, p, NULL, p->cause, p->text);
	for (uint32_t i = 0; i < STAGE_SLOTS; i++) {
		struct tx_slot *slot = &tx->slot[i];
		struct op *op = slot->op;

		if (slot->ticket != 0 && !cuda_queue_done(slot->queue, slot->ticket))
			cuda_queue_drain(slot->queue);
		slot->op = NULL;
		if (op == NULL)
			continue;
		op->outstanding--;
		if (!op->aborted)
			op_fail(op, p->cause, peer_id(p), "%s", p->text);
		post_progress(w, op);
	}
}

void stage_tx_closed(struct worker *w, struct peer *p)
{
	struct stage_tx *tx = p->stage_tx;

	if (tx == NULL)
		return;
	stage_mem_close(w, &tx->mem);
	cuda_host_free(tx->identity);
	p->stage_tx = NULL;
	mem_free(tx);
}
