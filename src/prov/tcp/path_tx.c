/* SPDX-License-Identifier: Apache-2.0 */
#include "prov/tcp/path.h"

#include "base/alloc.h"
#include "base/assert.h"

#include <string.h>

_Static_assert((TCP_POST_DEPTH & (TCP_POST_DEPTH - 1)) == 0, "the ring is masked");
_Static_assert(TCP_DESC_IMM == PROV_WR_IMM && TCP_DESC_PART == PROV_WR_PART,
               "flags travel as they are posted");

static struct tcp_req *req_at(struct tcp_tx *tx, uint32_t pos)
{
	return &tx->ring[pos & (TCP_POST_DEPTH - 1)];
}

uint32_t tcp_op_post(struct prov_path *path_, const struct prov_wr *wr, uint32_t n)
{
	struct tcp_path *path = (struct tcp_path *)path_;
	struct tcp_tx *tx = &path->tx;
	uint32_t room = TCP_POST_DEPTH - (tx->tail - tx->head);

	if (!path->up || path->failed)
		return 0;
	if (n > room)
		n = room;
	for (uint32_t i = 0; i < n; i++) {
		struct tcp_req *req = req_at(tx, tx->tail + i);

		req->wr = wr[i];
		req->state = TCP_REQ_QUEUED;
		req->cancel = TCP_CANCEL_NONE;
	}
	tx->tail += n;
	if (n > 0)
		prov_obj_ready(&path->obj);
	return n;
}

/* Step over what was cancelled, so that its room comes back. */
static void skip_dropped(struct tcp_tx *tx)
{
	while (tx->send != tx->tail && req_at(tx, tx->send)->state == TCP_REQ_DROPPED) {
		tx->send++;
		tx->send_off = 0;
	}
	while (tx->ack != tx->send && req_at(tx, tx->ack)->state == TCP_REQ_DROPPED)
		tx->ack++;
}

/* One piece of a work request into the frame. Returns whether it ends the request. */
static bool add_piece(struct tcp_tx_frame *f, uint8_t *desc_at, const struct tcp_req *req,
                      uint32_t pos, uint64_t off, uint64_t len)
{
	bool last = off + len == req->wr.len_bytes;
	struct tcp_desc desc = {
		.addr = req->wr.remote_addr + off,
		.key = req->wr.remote_key,
		.len_bytes = (uint32_t)len,
	};

	if (last) {
		desc.flags = TCP_DESC_LAST | (req->wr.flags & (TCP_DESC_IMM | TCP_DESC_PART));
		desc.imm = req->wr.imm;
		desc.op_seq = req->wr.op_seq;
		desc.parts = req->wr.parts;
	}
	tcp_desc_encode(&desc, desc_at);
	if (len > 0) {
		f->iov[f->iov_count] =
			(struct iovec){ (void *)(uintptr_t)((const uint8_t *)req->wr.src + off),
			                len };
		f->req[f->iov_count++] = pos;
	}
	return last;
}

/* Gather queued requests behind what the block holds already. Bytes added to the block. */
static size_t build_data(struct tcp_path *path, uint8_t *at)
{
	uint64_t chunk = tcp_dev_of(&path->obj)->limits.chunk_bytes;
	struct tcp_tx *tx = &path->tx;
	struct tcp_tx_frame *f = &tx->frame;
	struct tcp_hdr hdr = { .type = TCP_FRAME_DATA };
	uint32_t pos = tx->send;
	uint64_t off = tx->send_off;
	uint8_t *desc_at = at + TCP_HDR_BYTES;

	for (; hdr.count < TCP_BATCH_MAX && pos != tx->tail; pos++, off = 0) {
		struct tcp_req *req = req_at(tx, pos);
		uint64_t len = req->wr.len_bytes - off;

		if (req->state == TCP_REQ_DROPPED)
			continue;
		if (len > chunk - hdr.value) {
			if (hdr.value > 0)
				break; /* begins a frame of its own rather than be cut */
			len = chunk;
		}
		hdr.value += len;
		hdr.count++;
		if (!add_piece(f, desc_at, req, pos, off, len)) {
			off += len;
			break;
		}
		desc_at += TCP_DESC_BYTES;
	}
	if (hdr.count == 0)
		return 0;
	f->end_pos = pos;
	f->end_off = off;
	tcp_hdr_encode(&hdr, at);
	return TCP_HDR_BYTES + (size_t)hdr.count * TCP_DESC_BYTES;
}

/* False: nothing to send. */
static bool build(struct tcp_path *path)
{
	struct tcp_tx_frame *f = &path->tx.frame;
	size_t block_bytes = 0;

	f->iov_pos = 0;
	f->iov_count = 1;
	f->start_pos = path->tx.send;
	f->end_pos = path->tx.send;
	f->end_off = path->tx.send_off;
	f->ack = path->rx.acked_total;
	if (tcp_rx_ack_due(path)) {
		struct tcp_hdr hdr = { .type = TCP_FRAME_ACK, .value = path->rx.placed_total };

		tcp_hdr_encode(&hdr, f->block);
		block_bytes = TCP_HDR_BYTES;
		f->ack = path->rx.placed_total;
	}
	block_bytes += build_data(path, f->block + block_bytes);
	f->iov[0] = (struct iovec){ f->block, block_bytes };
	return block_bytes > 0;
}

/* The kernel has taken a first byte: the frame will be sent to its end. */
static void start(struct tcp_path *path)
{
	struct tcp_tx *tx = &path->tx;
	struct tcp_tx_frame *f = &tx->frame;

	f->started = true;
	for (uint32_t pos = tx->send; pos != f->end_pos; pos++) {
		if (req_at(tx, pos)->state == TCP_REQ_QUEUED)
			req_at(tx, pos)->state = TCP_REQ_SENT;
	}
	tx->send = f->end_pos;
	tx->send_off = f->end_off;
	if (f->ack != path->rx.acked_total) {
		path->rx.acked_total = f->ack;
		path->rx.unacked_bytes = 0;
	}
}

static void free_copies(struct tcp_tx_frame *f)
{
	while (f->copies) {
		struct tcp_private *copy = f->copies;

		f->copies = copy->next;
		mem_free(copy);
	}
}

static void advance(struct tcp_tx *tx, size_t sent)
{
	struct tcp_tx_frame *f = &tx->frame;

	while (f->iov_pos < f->iov_count && sent >= f->iov[f->iov_pos].iov_len)
		sent -= f->iov[f->iov_pos++].iov_len;
	if (f->iov_pos < f->iov_count) {
		f->iov[f->iov_pos].iov_base = (uint8_t *)f->iov[f->iov_pos].iov_base + sent;
		f->iov[f->iov_pos].iov_len -= sent;
		return;
	}
	f->started = false;
	free_copies(f);
}

void tcp_tx_step(struct tcp_path *path)
{
	/* A turn sends about this much, then others have theirs. */
	const size_t budget = 2u << 20;
	struct tcp_tx_frame *f = &path->tx.frame;
	size_t total = 0;

	while (path->conn->can_write && total < budget) {
		size_t sent;

		if (!f->started && !build(path))
			return;
		sent = tcp_conn_send(path->conn, &f->iov[f->iov_pos], f->iov_count - f->iov_pos);
		if (sent == 0)
			return;
		if (!f->started)
			start(path);
		advance(&path->tx, sent);
		total += sent;
	}
}

/* Work requests before this position have been handed to the kernel whole. */
static uint32_t sent_pos(const struct tcp_tx *tx)
{
	const struct tcp_tx_frame *f = &tx->frame;

	if (!f->started)
		return tx->send;
	return f->iov_pos == 0 ? f->start_pos : f->req[f->iov_pos];
}

bool tcp_tx_acked(struct tcp_path *path, uint64_t total)
{
	struct tcp_tx *tx = &path->tx;
	uint32_t limit = sent_pos(tx);
	uint64_t fresh = total - tx->acked_total;

	if (total < tx->acked_total)
		return false;
	tx->acked_total = total;
	while (fresh > 0) {
		struct tcp_req *req = req_at(tx, tx->ack);

		/* Believing it would free a source that is still being read. */
		if ((int32_t)(limit - tx->ack) <= 0)
			return false;
		tx->ack++;
		if (req->state == TCP_REQ_DROPPED)
			continue;
		DASSERT(req->state == TCP_REQ_SENT);
		req->state = TCP_REQ_ACKED;
		fresh--;
	}
	skip_dropped(tx);
	return true;
}

static bool report(struct tcp_path *path, struct prov_emit *emit, const struct tcp_req *req,
                   wimm_status status, uint32_t flags)
{
	struct prov_cqe *cqe = prov_emit_last(emit, PROV_DONE, path->context);

	if (cqe && cqe->token == req->wr.token && cqe->status == status && cqe->flags == flags) {
		cqe->count++;
		return true;
	}
	if (prov_emit_full(emit))
		return false;
	cqe = prov_emit_next(emit, PROV_DONE, path->context);
	cqe->status = status;
	cqe->token = req->wr.token;
	cqe->flags = flags;
	cqe->count = 1;
	return true;
}

static bool report_cancels(struct tcp_path *path, struct prov_emit *emit)
{
	struct tcp_tx *tx = &path->tx;

	for (uint32_t pos = tx->head; tx->cancels_due > 0 && pos != tx->tail; pos++) {
		struct tcp_req *req = req_at(tx, pos);

		if (req->cancel != TCP_CANCEL_DUE)
			continue;
		if (!report(path, emit, req, WIMM_E_CANCELLED,
		            req->state == TCP_REQ_DROPPED ? 0 : PROV_CQE_SENT))
			return false;
		req->cancel = TCP_CANCEL_TOLD;
		tx->cancels_due--;
	}
	return true;
}

bool tcp_tx_report(struct tcp_path *path, struct prov_emit *emit)
{
	struct tcp_tx *tx = &path->tx;

	if (tx->cancels_due > 0 && !report_cancels(path, emit))
		return false;
	for (; tx->head != tx->ack; tx->head++) {
		struct tcp_req *req = req_at(tx, tx->head);

		if (req->cancel == TCP_CANCEL_NONE && !report(path, emit, req, WIMM_OK, 0))
			return false;
	}
	return true;
}

bool tcp_tx_report_lost(struct tcp_path *path, struct prov_emit *emit)
{
	struct tcp_tx *tx = &path->tx;

	/* tcp_tx_report() has taken head to ack; ack goes along, as that may be called again. */
	for (; tx->head != tx->tail; tx->ack = ++tx->head) {
		struct tcp_req *req = req_at(tx, tx->head);
		uint32_t flags = req->state == TCP_REQ_SENT ? PROV_CQE_SENT : 0;

		if (req->cancel == TCP_CANCEL_NONE &&
		    !report(path, emit, req, WIMM_E_PATH_LOST, flags))
			return false;
	}
	return true;
}

/* Copy what the started frame still has to send of this token. False: out of memory. */
static bool make_private(struct tcp_tx *tx, uint64_t token)
{
	struct tcp_tx_frame *f = &tx->frame;
	uint32_t first = f->iov_pos > 0 ? f->iov_pos : 1; /* iov[0] is no payload */
	struct tcp_private *copy;
	size_t bytes = 0;
	uint8_t *at;

	for (uint32_t i = first; f->started && i < f->iov_count; i++) {
		if (req_at(tx, f->req[i])->wr.token == token)
			bytes += f->iov[i].iov_len;
	}
	if (bytes == 0)
		return true;
	copy = mem_alloc(sizeof(*copy) + bytes);
	if (!copy)
		return false;
	copy->next = f->copies;
	f->copies = copy;
	at = copy->bytes;
	for (uint32_t i = first; i < f->iov_count; i++) {
		if (req_at(tx, f->req[i])->wr.token != token)
			continue;
		memcpy(at, f->iov[i].iov_base, f->iov[i].iov_len);
		f->iov[i].iov_base = at;
		at += f->iov[i].iov_len;
	}
	return true;
}

void tcp_op_cancel(struct prov_path *path_, uint64_t token)
{
	struct tcp_path *path = (struct tcp_path *)path_;
	struct tcp_tx *tx = &path->tx;
	bool found = false;

	/* Before the queue moves: the frame's pieces are known by their queue positions. */
	if (!make_private(tx, token)) {
		prov_fail_set(&path->fail, WIMM_E_NOMEM, 0,
		             "no memory to finish a cancelled write from a copy");
		tcp_path_lost(path);
	}
	for (uint32_t pos = tx->head; pos != tx->tail; pos++) {
		struct tcp_req *req = req_at(tx, pos);

		if (req->wr.token != token || req->cancel != TCP_CANCEL_NONE ||
		    req->state == TCP_REQ_ACKED)
			continue;
		if (req->state == TCP_REQ_QUEUED)
			req->state = TCP_REQ_DROPPED;
		req->cancel = TCP_CANCEL_DUE;
		tx->cancels_due++;
		found = true;
	}
	skip_dropped(tx);
	if (found)
		prov_obj_ready(&path->obj);
}

uint8_t *tcp_tx_take_rest(struct tcp_path *path, const uint8_t *extra, size_t extra_bytes,
                          size_t *out_bytes)
{
	const struct tcp_tx_frame *f = &path->tx.frame;
	size_t bytes = extra_bytes;
	uint8_t *rest;
	uint8_t *at;

	for (uint32_t i = f->iov_pos; f->started && i < f->iov_count; i++)
		bytes += f->iov[i].iov_len;
	rest = mem_alloc(bytes);
	if (!rest)
		return NULL;
	at = rest;
	for (uint32_t i = f->iov_pos; f->started && i < f->iov_count; i++) {
		memcpy(at, f->iov[i].iov_base, f->iov[i].iov_len);
		at += f->iov[i].iov_len;
	}
	memcpy(at, extra, extra_bytes);
	*out_bytes = bytes;
	return rest;
}

void tcp_tx_abandon(struct tcp_path *path)
{
	free_copies(&path->tx.frame);
	path->tx.frame.started = false;
}
