/* SPDX-License-Identifier: Apache-2.0 */
#include "prov/verbs/rx.h"

#include "base/alloc.h"
#include "base/bytes.h"
#include "prov/verbs/gpu.h"
#include "prov/verbs/path.h"
#include "prov/verbs/region.h"

#include <endian.h>
#include <errno.h>
#include <string.h>

enum {
	FILL_BATCH = 64,
	POST_BATCH = 32,
	CQ_SPARE = 64,
	NOBODY = 0, /* no queue pair has this number */
};

static wimm_status no_room(const struct verbs_dev *dev, const char *what, struct verbs_fail *fail)
{
	int code = errno;
	char why[VERBS_LOCK_TEXT_BYTES];
	bool lock = verbs_lock_limit(code, why);

	verbs_fail_set(fail, lock ? WIMM_E_LOCK_LIMIT : WIMM_E_LIMIT, (uint32_t)code,
	               "%s: %s of %u requests: %s; the device allows %d and %d (setting "
	               "verbs_recv_depth)",
	               dev->nic.name, what, dev->rx.slot_count, why, dev->nic.attr.max_srq_wr,
	               dev->nic.attr.max_cqe);
	return fail->status;
}

static bool alloc_memory(struct verbs_rx *rx)
{
	uint32_t ring = 1;

	while (ring < rx->slot_count + CQ_SPARE)
		ring *= 2;
	rx->stash_mask = ring - 1;
	rx->slots = mem_alloc_aligned(4096, (size_t)rx->slot_count * VERBS_SLOT_BYTES);
	rx->stash = mem_calloc(ring, sizeof(*rx->stash));
	rx->spent = mem_calloc(rx->slot_count, sizeof(*rx->spent));
	return rx->slots && rx->stash && rx->spent;
}

wimm_status verbs_rx_open(struct verbs_dev *dev, struct verbs_fail *fail)
{
	struct verbs_rx *rx = &dev->rx;
	struct ibv_srq_init_attr srq = { .attr.max_sge = 1 };
	const struct verbs_lib *lib = dev->nic.lib;

	rx->slot_count = dev->limits.recv_depth;
	if (rx->slot_count > (uint32_t)dev->nic.attr.max_srq_wr)
		rx->slot_count = (uint32_t)dev->nic.attr.max_srq_wr;
	if (dev->nic.attr.max_cqe > CQ_SPARE && /* one entry each, and none is ever lost */
	    rx->slot_count > (uint32_t)dev->nic.attr.max_cqe - CQ_SPARE)
		rx->slot_count = (uint32_t)dev->nic.attr.max_cqe - CQ_SPARE;
	srq.attr.max_wr = rx->slot_count;
	if (!alloc_memory(rx)) {
		verbs_fail_set(fail, WIMM_E_NOMEM, 0, "out of memory");
		return WIMM_E_NOMEM;
	}
	rx->mr = lib->reg_mr(dev->pd, rx->slots, (size_t)rx->slot_count * VERBS_SLOT_BYTES,
	                     IBV_ACCESS_LOCAL_WRITE);
	if (!rx->mr)
		return no_room(dev, "no registered buffers", fail);
	rx->cq = lib->create_cq(dev->nic.ctx, (int)(rx->slot_count + CQ_SPARE), NULL, dev->channel,
	                        0);
	if (!rx->cq)
		return no_room(dev, "no completion queue", fail);
	rx->srq = lib->create_srq(dev->pd, &srq);
	if (!rx->srq)
		return no_room(dev, "no shared receive queue", fail);
	for (uint32_t i = 0; i < rx->slot_count; i++)
		rx->spent[rx->spent_count++] = i;
	verbs_rx_repost(dev);
	return dev->dead ? no_room(dev, "no shared receive queue", fail) : WIMM_OK;
}

void verbs_rx_close(struct verbs_dev *dev)
{
	struct verbs_rx *rx = &dev->rx;

	if (rx->srq)
		(void)dev->nic.lib->destroy_srq(rx->srq);
	if (rx->cq)
		(void)dev->nic.lib->destroy_cq(rx->cq);
	if (rx->mr)
		(void)dev->nic.lib->dereg_mr(rx->mr);
	mem_free(rx->slots);
	mem_free(rx->stash);
	mem_free(rx->spent);
}

void verbs_rx_repost(struct verbs_dev *dev)
{
	struct verbs_rx *rx = &dev->rx;
	struct ibv_recv_wr wr[POST_BATCH];
	struct ibv_sge sge[POST_BATCH];
	struct ibv_recv_wr *bad;

	while (rx->spent_count > 0) {
		uint32_t n = rx->spent_count < POST_BATCH ? rx->spent_count : POST_BATCH;
		int code;

		for (uint32_t i = 0; i < n; i++) {
			uint32_t slot = rx->spent[--rx->spent_count];

			sge[i] = (struct ibv_sge){ (uint64_t)(uintptr_t)(rx->slots +
				                                         slot * VERBS_SLOT_BYTES),
				                   VERBS_SLOT_BYTES, rx->mr->lkey };
			wr[i] = (struct ibv_recv_wr){ .wr_id = slot,
				                      .next = i + 1 < n ? &wr[i + 1] : NULL,
				                      .sg_list = &sge[i],
				                      .num_sge = 1 };
		}
		code = ibv_post_srq_recv(rx->srq, wr, &bad);
		if (code != 0) {
			verbs_dev_die(dev, "%s: receive requests cannot be posted: %s",
			              dev->nic.name, strerror(code));
			return;
		}
	}
}

bool verbs_rx_fill(struct verbs_dev *dev)
{
	struct verbs_rx *rx = &dev->rx;
	uint32_t at = rx->tail & rx->stash_mask;
	uint32_t room = rx->stash_mask + 1 - (rx->tail - rx->head);
	uint32_t row = rx->stash_mask + 1 - at; /* up to the ring's end */
	int n;

	if (row > room)
		row = room;
	if (row > FILL_BATCH)
		row = FILL_BATCH;
	if (row == 0 || dev->dead)
		return false;
	n = ibv_poll_cq(rx->cq, (int)row, &rx->stash[at]);
	if (n < 0) {
		verbs_dev_die(dev, "%s: the completion queue of received writes cannot be read",
		              dev->nic.name);
		return false;
	}
	rx->tail += (uint32_t)n;
	return (uint32_t)n == row;
}

void verbs_rx_fill_all(struct verbs_dev *dev)
{
	while (verbs_rx_fill(dev))
		continue;
}

/* A SEND on a path. The slot is the device's work, the bytes are the peer's. */
static void marker(struct verbs_path *path, const struct ibv_wc *wc, const uint8_t *slot,
                   struct verbs_emit *emit)
{
	struct prov_cqe *cqe;
	uint8_t type;
	uint32_t parts;
	uint32_t imm;
	uint64_t op_seq;
	struct br r;

	br_init(&r, slot, wc->byte_len < VERBS_SLOT_BYTES ? wc->byte_len : VERBS_SLOT_BYTES);
	type = br_u8(&r);
	br_skip(&r, 3);
	parts = br_u32(&r);
	imm = br_u32(&r);
	br_skip(&r, 4);
	op_seq = br_u64(&r);
	if (!br_done(&r) || (type != VERBS_MARK_READY && type != VERBS_MARK_PART) ||
	    (type == VERBS_MARK_PART && parts < 2)) {
		verbs_path_fail(path, WIMM_E_PROTOCOL, 0,
		                "the peer sent a malformed marker of %u bytes", wc->byte_len);
		return;
	}
	if (type == VERBS_MARK_READY || !path->up)
		return;
	cqe = verbs_emit_next(emit, PROV_PART, path->context);
	cqe->count = 1;
	cqe->parts = parts;
	cqe->imm = imm;
	cqe->op_seq = op_seq;
}

static void immediate(struct verbs_path *path, uint32_t imm, struct verbs_emit *emit)
{
	struct prov_cqe *last = emit->count > 0 ? &emit->out[emit->count - 1] : NULL;

	if (last && last->kind == PROV_IMM && last->context == path->context && last->imm == imm) {
		last->count++;
		return;
	}
	last = verbs_emit_next(emit, PROV_IMM, path->context);
	last->count = 1;
	last->imm = imm;
}

/* Also of a path that has failed: what had landed before is told before its end is. */
static void received(struct verbs_path *path, const struct ibv_wc *wc, const uint8_t *slot,
                     struct verbs_emit *emit)
{
	if (wc->opcode != IBV_WC_RECV_RDMA_WITH_IMM) {
		marker(path, wc, slot, emit);
		return;
	}
	if (path->up)
		immediate(path, be32toh(wc->imm_data), emit);
}

/* One event at most. False: look at the same completion again. */
static bool tell_one(struct verbs_dev *dev, const struct ibv_wc *wc, struct verbs_emit *emit)
{
	uint32_t slot = (uint32_t)wc->wr_id;
	struct verbs_path *path =
		wc->qp_num == NOBODY ? NULL : hash_find_ptr(&dev->path_by_qpn, wc->qp_num);

	if (slot >= dev->rx.slot_count || dev->rx.spent_count == dev->rx.slot_count) {
		verbs_dev_die(dev, "%s: it completed receive request %u of %u", dev->nic.name, slot,
		              dev->rx.slot_count);
		return true;
	}
	/* Whatever comes first shows that the peer's end is joined. */
	if (path && wc->status == IBV_WC_SUCCESS && verbs_path_heard(path, emit))
		return false;
	if (path && wc->status != IBV_WC_SUCCESS)
		verbs_path_recv_failed(path, wc);
	else if (path && !path->down_reported)
		received(path, wc, dev->rx.slots + slot * VERBS_SLOT_BYTES, emit);
	dev->rx.spent[dev->rx.spent_count++] = slot;
	return true;
}

void verbs_rx_tell(struct verbs_dev *dev, struct verbs_emit *emit, uint32_t limit)
{
	struct verbs_rx *rx = &dev->rx;
	uint32_t flushed = rx->head;

	while (rx->head != rx->tail && emit->count < limit && !dev->dead) {
		if (rx->head == flushed) {
			if (!verbs_gpu_flush(dev))
				return;
			flushed = rx->tail;
		}
		if (tell_one(dev, &rx->stash[rx->head & rx->stash_mask], emit))
			rx->head++;
	}
}

void verbs_rx_forget(struct verbs_dev *dev, uint32_t qpn)
{
	struct verbs_rx *rx = &dev->rx;

	for (uint32_t i = rx->head; i != rx->tail; i++) {
		struct ibv_wc *wc = &rx->stash[i & rx->stash_mask];

		if (wc->qp_num == qpn)
			wc->qp_num = NOBODY;
	}
}
