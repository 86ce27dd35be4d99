/* SPDX-License-Identifier: Apache-2.0 */
#include "prov/host/path.h"

#include "base/assert.h"
#include "prov/host/gpu.h"

#include <string.h>

_Static_assert((HOST_POST_DEPTH & (HOST_POST_DEPTH - 1)) == 0, "the queue is masked");
_Static_assert((HOST_RING_ENTRIES & (HOST_RING_ENTRIES - 1)) == 0, "the ring is masked");
_Static_assert((HOST_RING_BYTES & (HOST_RING_BYTES - 1)) == 0, "the bytes are masked");
_Static_assert(HOST_ENTRY_IMM == PROV_WR_IMM && HOST_ENTRY_PART == PROV_WR_PART,
               "flags travel as they are posted");

enum {
	OFFER_MIN_BYTES = 8192, /* below, copying twice is faster than a system call */
	PIECE_MIN_BYTES = 4096, /* do not cut finer because the byte ring is nearly full */
	COPY_BYTES = 256 << 10, /* at a time: how long an owner may have to wait */
	TURN_BYTES = 2 << 20,   /* a turn copies about this much */
	LEAVE_MS = 500,         /* a cancel waits for a peer that is reading, no longer */
};

static void next_req(struct host_tx *tx)
{
	tx->send++;
	tx->send_off = 0;
	tx->piece_off = 0;
}

/* A short write that has to wait for nothing: what host_tx_step() would do, without its choices. */
static bool post_short(struct host_path *path, const struct prov_wr *wr)
{
	struct host_tx *tx = &path->tx;
	struct host_req *req = host_tx_req(tx, tx->tail);
	struct host_entry e;

	if (wr->len_bytes > HOST_INLINE_BYTES || wr->reserved != 0 || tx->send != tx->tail ||
	    tx->published - tx->acked == HOST_RING_ENTRIES || host_gpu_any(host_dev_of(&path->obj)))
		return false;
	req->wr = *wr;
	req->cancel = HOST_CANCEL_NONE;
	req->by = HOST_BY_ENTRY;
	req->begun = true;
	req->reading = false;
	req->state = HOST_REQ_SENT;
	req->first_pos = tx->published;
	req->next_pos = tx->published + 1;
	e.kind = HOST_ENTRY_INLINE;
	e.flags = HOST_ENTRY_LAST | (wr->flags & (HOST_ENTRY_IMM | HOST_ENTRY_PART));
	e.len_bytes = (uint32_t)wr->len_bytes;
	e.imm = wr->imm;
	e.addr = wr->remote_addr;
	e.key = wr->remote_key;
	e.op_seq = wr->op_seq;
	e.parts = wr->parts;
	e.inlined[0] = 0;
	e.inlined[1] = 0;
	if (e.len_bytes > 0)
		memcpy(e.inlined, wr->src, e.len_bytes);
	host_slot_put(host_slot_at(tx->lane, tx->published), tx->published, &e);
	tx->bytes_end[tx->published & (HOST_RING_ENTRIES - 1)] = tx->bytes_tail;
	tx->published++;
	tx->tail++;
	next_req(tx);
	return true;
}

uint32_t host_op_post(struct prov_path *path_, const struct prov_wr *wr, uint32_t n)
{
	struct host_path *path = (struct host_path *)path_;
	struct host_tx *tx = &path->tx;
	uint32_t room = HOST_POST_DEPTH - (tx->tail - tx->head);

	if (!path->up || path->failed || path->ended)
		return 0;
	if (n == 1 && room != 0 && post_short(path, wr)) {
		host_path_ring(path);
		return 1;
	}
	if (n > room)
		n = room;
	for (uint32_t i = 0; i < n; i++) {
		struct host_req *req = host_tx_req(tx, tx->tail + i);

		req->wr = wr[i];
		req->state = HOST_REQ_QUEUED;
		req->cancel = HOST_CANCEL_NONE;
		req->by = HOST_BY_NONE;
		req->begun = false;
		req->reading = false;
	}
	tx->tail += n;
	host_tx_step(path);
	if (path->bell_due)
		host_path_ring(path);
	return n;
}

void host_tx_queue(struct host_path *path, struct host_req *req)
{
	req->state = HOST_REQ_QUEUED;
	req->cancel = HOST_CANCEL_NONE;
	req->by = HOST_BY_NONE;
	req->begun = false;
	req->reading = false;
	path->tx.tail++;
	host_tx_step(path);
	if (path->bell_due && !path->failed)
		host_path_ring(path);
}

/* The source of a cancelled request is not read any more, or is not waited for. */
static void cancel_due(struct host_tx *tx, struct host_req *req)
{
	if (req->cancel != HOST_CANCEL_WAITS)
		return;
	req->cancel = HOST_CANCEL_DUE;
	tx->cancels_waiting--;
	tx->cancels_due++;
}

static void left_alone(struct host_tx *tx, struct host_req *req)
{
	req->reading = false;
	cancel_due(tx, req);
}

/* Step over what was cancelled, and what has been placed. */
static void advance(struct host_tx *tx)
{
	while (tx->send != tx->tail && host_tx_req(tx, tx->send)->state == HOST_REQ_DROPPED)
		next_req(tx);
	for (; tx->ack != tx->send; tx->ack++) {
		struct host_req *req = host_tx_req(tx, tx->ack);

		if (req->state == HOST_REQ_DROPPED && !req->reading)
			continue;
		if ((int32_t)(tx->acked - req->next_pos) < 0)
			return;
		if (req->state == HOST_REQ_DROPPED) {
			left_alone(tx, req);
			continue;
		}
		DASSERT(req->state == HOST_REQ_SENT);
		req->state = HOST_REQ_ACKED;
	}
}

bool host_tx_acks(struct host_path *path)
{
	struct host_tx *tx = &path->tx;
	/* [F] with [G] in path_rx.c: what the peer read of the byte ring it has read. */
	uint32_t acked = (uint32_t)atomic_load_explicit(&tx->lane->acked, memory_order_acquire);

	if (acked == tx->acked)
		return true;
	if (acked - tx->acked > tx->published - tx->acked)
		return false;
	tx->acked = acked;
	tx->bytes_head = tx->bytes_end[(acked - 1) & (HOST_RING_ENTRIES - 1)];
	advance(tx);
	return true;
}

void host_tx_put(struct host_path *path, struct host_req *req, struct host_entry *e, bool last)
{
	struct host_tx *tx = &path->tx;

	e->key = req->wr.remote_key;
	if (last) {
		e->flags = HOST_ENTRY_LAST | (req->wr.flags & (HOST_ENTRY_IMM | HOST_ENTRY_PART));
		e->imm = req->wr.imm;
		e->op_seq = req->wr.op_seq;
		e->parts = req->wr.parts;
	}
	if (!req->begun) {
		req->begun = true;
		req->first_pos = tx->published;
	}
	host_slot_put(host_slot_at(tx->lane, tx->published), tx->published, e);
	tx->bytes_end[tx->published & (HOST_RING_ENTRIES - 1)] = tx->bytes_tail;
	tx->published++;
	req->next_pos = tx->published;
	path->bell_due = true;
	if (last) {
		req->state = HOST_REQ_SENT;
		next_req(tx);
	}
}

void host_tx_publish(struct host_path *path, struct host_req *req, struct host_entry *e)
{
	struct host_tx *tx = &path->tx;
	uint64_t end = tx->send_off + e->len_bytes;
	bool last = end == req->wr.len_bytes;

	e->addr = req->wr.remote_addr + tx->send_off;
	host_tx_put(path, req, e, last);
	if (last)
		return;
	tx->send_off = end;
	tx->piece_off = 0;
}

/* The bytes into the byte ring. False: no room now. */
static bool put_slot(struct host_path *path, struct host_req *req)
{
	struct host_tx *tx = &path->tx;
	uint64_t at = tx->bytes_tail & (HOST_RING_BYTES - 1);
	uint64_t room = HOST_RING_BYTES - (tx->bytes_tail - tx->bytes_head);
	uint64_t len = req->wr.len_bytes - tx->send_off;
	struct host_entry e = { .kind = HOST_ENTRY_SLOT, .src = tx->bytes_tail };

	if (len > HOST_PIECE_BYTES)
		len = HOST_PIECE_BYTES;
	if (len > HOST_RING_BYTES - at)
		len = HOST_RING_BYTES - at;
	if (len > room) {
		if (room < PIECE_MIN_BYTES)
			return false;
		len = room;
	}
	memcpy(tx->lane->bytes + at, (const uint8_t *)req->wr.src + tx->send_off, len);
	e.len_bytes = (uint32_t)len;
	tx->bytes_tail += len;
	host_tx_publish(path, req, &e);
	return true;
}

static void put_inline(struct host_path *path, struct host_req *req)
{
	struct host_entry e = { .kind = HOST_ENTRY_INLINE,
		                .len_bytes = (uint32_t)req->wr.len_bytes };

	if (e.len_bytes > 0)
		memcpy(e.inlined, req->wr.src, e.len_bytes);
	host_tx_publish(path, req, &e);
}

static void put_offer(struct host_path *path, struct host_req *req)
{
	struct host_entry e = {
		.kind = HOST_ENTRY_OFFER,
		.len_bytes = host_tx_piece_bytes(&path->tx, req),
		.src = (uint64_t)(uintptr_t)req->wr.src + path->tx.send_off,
	};

	host_tx_publish(path, req, &e);
}

/* What the peer gave is void, in the middle of it perhaps: begin the piece again by another way. */
static void start_over(struct host_path *path, struct host_req *req)
{
	host_maps_flush(&path->maps);
	path->tx.piece_off = 0;
	req->by = HOST_BY_NONE;
}

/* Straight to where it belongs. False: the turn is over. */
static bool put_copy(struct host_path *path, struct host_req *req)
{
	struct host_tx *tx = &path->tx;
	struct host_entry e = { .kind = HOST_ENTRY_PLACED,
		                .len_bytes = host_tx_piece_bytes(tx, req) };

	while (tx->piece_off < e.len_bytes) {
		uint64_t off = tx->send_off + tx->piece_off;
		uint64_t len = e.len_bytes - tx->piece_off;
		const struct host_map *map =
			host_maps_find(path, req->wr.remote_key, req->wr.remote_addr + off, len);

		if (tx->budget == 0) {
			prov_obj_ready(&path->obj);
			return false;
		}
		if (len > COPY_BYTES)
			len = COPY_BYTES;
		if (map && map->kind == HOST_GIVE_MEMFD && host_maps_enter(&path->maps, tx->lane)) {
			memcpy(map->base + (req->wr.remote_addr + off - map->addr),
			       (const uint8_t *)req->wr.src + off, len);
		} else {
			map = NULL;
		}
		if (!host_maps_leave(&path->maps, tx->lane) || !map) {
			start_over(path, req);
			return true;
		}
		tx->piece_off += len;
		tx->budget -= len < tx->budget ? len : tx->budget;
	}
	host_tx_publish(path, req, &e);
	return true;
}

static uint8_t choose(struct host_path *path, const struct prov_wr *wr)
{
	uint8_t way = host_dev_of(&path->obj)->way;
	uint8_t gpu = path->pull_cards ? HOST_BY_CARD : HOST_BY_GPU;

	if (wr->reserved != 0)
		return gpu; /* a list of pages, empty ones too: only so are they counted */
	if (host_gpu_any(host_dev_of(&path->obj)) && wr->len_bytes > 0 &&
	    host_gpu_device(host_dev_of(&path->obj), wr->local_key) >= 0)
		return gpu;
	if (wr->len_bytes <= HOST_INLINE_BYTES)
		return HOST_BY_ENTRY;
	if (way == HOST_WAY_AUTO) {
		const struct host_map *map = host_maps_find(path, wr->remote_key, wr->remote_addr,
		                                            wr->len_bytes);

		if (map && map->kind == HOST_GIVE_MEMFD)
			return HOST_BY_COPY;
	}
	if (wr->len_bytes < OFFER_MIN_BYTES)
		return HOST_BY_RING;
	if (path->ways.tx_store &&
	    host_maps_find(path, wr->remote_key, wr->remote_addr, wr->len_bytes))
		return HOST_BY_STORE;
	return path->ways.tx_offer ? HOST_BY_OFFER : HOST_BY_RING;
}

bool host_tx_by(struct host_path *path, struct host_req *req, enum host_req_by by)
{
	if (req->by == HOST_BY_NONE)
		req->by = choose(path, &req->wr);
	return req->by == by;
}

uint32_t host_tx_piece_bytes(const struct host_tx *tx, const struct host_req *req)
{
	uint64_t left = req->wr.len_bytes - tx->send_off;

	return left < HOST_OFFER_BYTES ? (uint32_t)left : HOST_OFFER_BYTES;
}

/* One entry. False: no room now. */
static bool put_next(struct host_path *path)
{
	struct host_tx *tx = &path->tx;
	struct host_req *req = host_tx_req(tx, tx->send);

	if (tx->published - tx->acked == HOST_RING_ENTRIES)
		return false;
	(void)host_tx_by(path, req, HOST_BY_NONE);
	switch (req->by) {
	case HOST_BY_ENTRY:
		put_inline(path, req);
		return true;
	case HOST_BY_COPY:
		return put_copy(path, req);
	case HOST_BY_STORE:
		return host_push_step(path);
	case HOST_BY_GPU:
		return host_gpu_step(path);
	case HOST_BY_CARD:
		return host_gpu_offer(path, req);
	case HOST_BY_OFFER:
		put_offer(path, req);
		return true;
	default:
		return put_slot(path, req);
	}
}

void host_tx_step(struct host_path *path)
{
	struct host_tx *tx = &path->tx;

	tx->budget = TURN_BYTES;
	while (tx->send != tx->tail) {
		if (host_tx_req(tx, tx->send)->state == HOST_REQ_DROPPED)
			next_req(tx);
		else if (!put_next(path))
			return;
	}
}

static bool report(struct host_path *path, struct prov_emit *emit, const struct host_req *req,
                   wimm_status status, uint32_t flags)
{
	struct prov_cqe *cqe = prov_emit_last(emit, PROV_DONE, path->context);
	uint32_t units = req->wr.reserved != 0 ? req->wr.reserved : 1; /* of a list of pages */
	uint64_t op_seq = (req->wr.flags & PROV_WR_PART) != 0 ? req->wr.op_seq : 0;

	if (cqe && cqe->token == req->wr.token && cqe->status == status && cqe->flags == flags &&
	    cqe->op_seq == op_seq && cqe->count <= UINT32_MAX - units) {
		cqe->count += units;
		return true;
	}
	if (prov_emit_full(emit))
		return false;
	cqe = prov_emit_next(emit, PROV_DONE, path->context);
	cqe->status = status;
	cqe->token = req->wr.token;
	cqe->op_seq = op_seq;
	cqe->flags = flags;
	cqe->count = units;
	return true;
}

static uint32_t sent_flag(const struct host_req *req)
{
	return req->state == HOST_REQ_SENT ? PROV_CQE_SENT : 0;
}

static uint32_t reading_flag(const struct host_req *req)
{
	return req->reading ? PROV_CQE_READING : 0;
}

static bool report_cancels(struct host_path *path, struct prov_emit *emit)
{
	struct host_tx *tx = &path->tx;

	for (uint32_t pos = tx->head; tx->cancels_due > 0 && pos != tx->tail; pos++) {
		struct host_req *req = host_tx_req(tx, pos);

		if (req->cancel != HOST_CANCEL_DUE)
			continue;
		/* It may have been placed since: then it is counted over there. */
		if (!report(path, emit, req, WIMM_E_CANCELLED,
		            (req->state == HOST_REQ_DROPPED ? 0 : PROV_CQE_SENT) |
		                    reading_flag(req)))
			return false;
		req->cancel = HOST_CANCEL_TOLD;
		tx->cancels_due--;
	}
	return true;
}

bool host_tx_report(struct host_path *path, struct prov_emit *emit)
{
	struct host_tx *tx = &path->tx;

	if (tx->cancels_due > 0 && !report_cancels(path, emit))
		return false;
	for (; tx->head != tx->ack; tx->head++) {
		struct host_req *req = host_tx_req(tx, tx->head);
		/* The peer passes over what was taken back, and acknowledges it with the rest. */
		bool dropped = req->state == HOST_REQ_DROPPED;

		if (req->cancel == HOST_CANCEL_NONE &&
		    !report(path, emit, req, dropped ? WIMM_E_PATH_LOST : WIMM_OK,
		            dropped ? reading_flag(req) : 0))
			return false;
	}
	return true;
}

bool host_tx_report_lost(struct host_path *path, struct prov_emit *emit)
{
	struct host_tx *tx = &path->tx;

	for (; tx->head != tx->tail; tx->ack = ++tx->head) {
		struct host_req *req = host_tx_req(tx, tx->head);

		if (req->cancel == HOST_CANCEL_NONE &&
		    !report(path, emit, req, WIMM_E_PATH_LOST,
		            sent_flag(req) | reading_flag(req)))
			return false;
	}
	return true;
}

/* Take back its offers. TAKEN: the last of them was not, so that it is counted. */
static enum host_slot_end withdraw(struct host_tx *tx, const struct host_req *req)
{
	enum host_slot_end last = HOST_SLOT_TAKEN;
	bool reading = false;

	for (uint32_t pos = req->first_pos; pos != req->next_pos; pos++) {
		/* Entries acked already may have been used again, by our own later ones. */
		last = (int32_t)(pos - tx->acked) < 0
		               ? HOST_SLOT_TAKEN
		               : host_slot_withdraw(host_slot_at(tx->lane, pos), pos);
		reading = reading || last == HOST_SLOT_READING;
	}
	return reading ? HOST_SLOT_READING : last;
}

/* Its source is not read any more after this, unless it says `reading`. */
static void take_back(struct host_tx *tx, struct host_req *req)
{
	enum host_slot_end end = HOST_SLOT_TAKEN;

	if (req->begun && (req->by == HOST_BY_OFFER || req->by == HOST_BY_CARD))
		end = withdraw(tx, req);
	if (req->state == HOST_REQ_QUEUED || end != HOST_SLOT_TAKEN)
		req->state = HOST_REQ_DROPPED;
	req->reading = end == HOST_SLOT_READING;
}

void host_op_cancel(struct prov_path *path_, uint64_t token)
{
	struct host_path *path = (struct host_path *)path_;
	struct host_tx *tx = &path->tx;

	if (path->failed)
		return; /* all comes back anyway */
	host_gpu_drain(path); /* a card may be reading what is taken back */
	for (uint32_t pos = tx->head; pos != tx->tail; pos++) {
		struct host_req *req = host_tx_req(tx, pos);

		if (req->wr.token != token || req->cancel != HOST_CANCEL_NONE ||
		    req->state == HOST_REQ_ACKED)
			continue;
		take_back(tx, req);
		if (req->reading) {
			req->cancel = HOST_CANCEL_WAITS;
			if (tx->cancels_waiting++ == 0)
				prov_obj_timer(&path->obj, LEAVE_MS);
			continue;
		}
		req->cancel = HOST_CANCEL_DUE;
		tx->cancels_due++;
		prov_obj_ready(&path->obj);
	}
	advance(tx);
}

void host_tx_give_up(struct host_path *path)
{
	struct host_tx *tx = &path->tx;

	for (uint32_t pos = tx->head; tx->cancels_waiting > 0 && pos != tx->tail; pos++)
		cancel_due(tx, host_tx_req(tx, pos));
}

void host_tx_abandon(struct host_path *path)
{
	struct host_tx *tx = &path->tx;

	if (!path->area || tx->head == tx->tail)
		return;
	host_gpu_drain(path);
	/* What has been placed until now is done; a peer that lies about it is over anyway. */
	(void)host_tx_acks(path);
	for (uint32_t pos = tx->ack; pos != tx->tail; pos++) {
		struct host_req *req = host_tx_req(tx, pos);

		if (req->state == HOST_REQ_QUEUED || req->state == HOST_REQ_SENT)
			take_back(tx, req);
	}
}

bool host_tx_reading(struct host_path *path)
{
	struct host_tx *tx = &path->tx;

	if (!path->area)
		return false;
	(void)host_tx_acks(path); /* it goes through the ring to the end, if it is alive */
	for (uint32_t pos = tx->head; pos != tx->tail; pos++) {
		if (host_tx_req(tx, pos)->reading)
			return true;
	}
	return false;
}

void host_tx_peer_gone(struct host_path *path)
{
	struct host_tx *tx = &path->tx;

	for (uint32_t pos = tx->head; pos != tx->tail; pos++)
		left_alone(tx, host_tx_req(tx, pos));
}
