/* SPDX-License-Identifier: Apache-2.0 */
#include "prov/verbs/ctl.h"

#include "base/alloc.h"
#include "base/bytes.h"
#include "prov/verbs/region.h"

#include <errno.h>
#include <string.h>

#define RECV_BIT        0x80000000u
#define WR_ID(ctl, low) ((uint64_t)(ctl)->obj.id << 32 | (low))

enum {
	COMPLETIONS = VERBS_CTL_BUFFERS + VERBS_CTL_SENDS,
	DATA_SENDS = VERBS_CTL_SENDS - 2, /* the others are for credits and the last word */
};

#define BUFFERS_BYTES ((size_t)COMPLETIONS * VERBS_FRAME_BYTES)

static uint8_t *recv_buffer(const struct verbs_ctl *ctl, uint32_t i)
{
	return ctl->frames + (size_t)i * VERBS_FRAME_BYTES;
}

static uint8_t *send_buffer(const struct verbs_ctl *ctl, uint32_t i)
{
	return recv_buffer(ctl, VERBS_CTL_BUFFERS + i);
}

static int post_recv(struct verbs_ctl *ctl, uint32_t i)
{
	struct ibv_sge sge = { (uint64_t)(uintptr_t)recv_buffer(ctl, i), VERBS_FRAME_BYTES,
		               ctl->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = WR_ID(ctl, RECV_BIT | i),
		                  .sg_list = &sge,
		                  .num_sge = 1 };
	struct ibv_recv_wr *bad;

	return ibv_post_recv(ctl->qp, &wr, &bad);
}

bool verbs_wire_open(struct verbs_ctl *ctl, struct verbs_fail *fail)
{
	struct verbs_dev *dev = ctl->obj.dev;
	struct verbs_qp_args args = { .send_depth = VERBS_CTL_SENDS,
		                      .recv_depth = VERBS_CTL_BUFFERS,
		                      .context = &ctl->obj };
	uint32_t inline_bytes;

	ctl->frames = mem_alloc_aligned(4096, BUFFERS_BYTES);
	if (!ctl->frames) {
		verbs_fail_set(fail, WIMM_E_NOMEM, 0, "out of memory");
		return false;
	}
	ctl->mr = dev->nic.lib->reg_mr(dev->pd, ctl->frames, BUFFERS_BYTES, IBV_ACCESS_LOCAL_WRITE);
	if (!ctl->mr) {
		char why[VERBS_LOCK_TEXT_BYTES];
		int code = errno;
		bool lock = verbs_lock_limit(code, why);

		verbs_fail_set(fail, lock ? WIMM_E_LOCK_LIMIT : WIMM_E_LIMIT, (uint32_t)code,
		               "%s: %zu bytes for a peer's messages cannot be pinned: %s",
		               dev->nic.name, BUFFERS_BYTES, why);
		return false;
	}
	ctl->cq = verbs_cq_take(dev, COMPLETIONS, fail);
	if (!ctl->cq)
		return false;
	args.cq = ctl->cq;
	ctl->qp = verbs_qp_create(dev, &args, &inline_bytes, fail);
	if (!ctl->qp)
		return false;
	if (!verbs_qp_describe(dev, ctl->qp, &ctl->own)) {
		verbs_fail_set(fail, WIMM_E_SYSTEM, 0, "no random bytes");
		return false;
	}
	for (uint32_t i = 0; i < VERBS_CTL_BUFFERS; i++) {
		int code = post_recv(ctl, i);

		if (code == 0)
			continue;
		verbs_fail_set(fail, WIMM_E_SYSTEM, (uint32_t)code,
		               "%s: receive requests cannot be posted: %s", dev->nic.name,
		               strerror(code));
		return false;
	}
	return true;
}

void verbs_wire_close(struct verbs_ctl *ctl)
{
	struct verbs_dev *dev = ctl->obj.dev;

	if (ctl->qp)
		verbs_qp_destroy(dev, ctl->qp);
	if (ctl->cq)
		verbs_cq_give(ctl->cq, COMPLETIONS);
	if (ctl->mr)
		(void)dev->nic.lib->dereg_mr(ctl->mr);
	mem_free(ctl->frames);
	ctl->qp = NULL;
	ctl->cq = NULL;
	ctl->mr = NULL;
	ctl->frames = NULL;
}

bool verbs_wire_join(struct verbs_ctl *ctl, const struct verbs_end *peer, struct verbs_fail *fail)
{
	return verbs_qp_join(ctl->obj.dev, ctl->qp, &ctl->own, peer, fail);
}

/* --- sending --- */

static bool post_frame(struct verbs_ctl *ctl, enum verbs_frame_type type, uint32_t len_bytes)
{
	uint32_t i = ctl->send_tail % VERBS_CTL_SENDS;
	uint8_t *buffer = send_buffer(ctl, i);
	struct ibv_sge sge = { (uint64_t)(uintptr_t)buffer, VERBS_FRAME_HEAD + len_bytes,
		               ctl->mr->lkey };
	struct ibv_send_wr wr = { .wr_id = WR_ID(ctl, i),
		                  .sg_list = &sge,
		                  .num_sge = 1,
		                  .opcode = IBV_WR_SEND,
		                  .send_flags = IBV_SEND_SIGNALED };
	struct ibv_send_wr *bad;
	struct bw w;
	int code;

	bw_init(&w, buffer, VERBS_FRAME_HEAD);
	bw_u8(&w, (uint8_t)type);
	bw_u8(&w, 0);
	bw_u16(&w, (uint16_t)ctl->owed);
	bw_u32(&w, len_bytes);
	code = ibv_post_send(ctl->qp, &wr, &bad);
	if (code != 0) {
		verbs_ctl_fail(ctl, WIMM_E_PEER_LOST, (uint32_t)code,
		               "%s: the device refuses messages: %s", ctl->obj.dev->nic.name,
		               strerror(code));
		return false;
	}
	ctl->owed = 0;
	ctl->send_tail++;
	return true;
}

bool verbs_wire_say(struct verbs_ctl *ctl, enum verbs_frame_type type)
{
	return ctl->send_tail - ctl->send_head < VERBS_CTL_SENDS && post_frame(ctl, type, 0);
}

void verbs_wire_send(struct verbs_ctl *ctl)
{
	while (ctl->tx_head != ctl->tx_tail && ctl->credits > 0 &&
	       ctl->send_tail - ctl->send_head < DATA_SENDS) {
		uint8_t *buffer = send_buffer(ctl, ctl->send_tail % VERBS_CTL_SENDS);
		uint32_t len = verbs_ctl_take(ctl, buffer + VERBS_FRAME_HEAD,
		                              VERBS_FRAME_BYTES - VERBS_FRAME_HEAD);

		if (!post_frame(ctl, VERBS_FRAME_DATA, len))
			return;
		ctl->credits--;
	}
	if (ctl->owed >= VERBS_CTL_RECVS / 2)
		(void)verbs_wire_say(ctl, VERBS_FRAME_CREDIT);
}

/* --- receiving --- */

static bool broken(struct verbs_ctl *ctl, uint32_t type, uint32_t len, uint32_t credits)
{
	verbs_ctl_fail(ctl, WIMM_E_PROTOCOL, 0, "malformed frame: type %u, %u bytes, %u credits",
	               type, len, credits);
	return false;
}

/* False: failed. *out_room: false when the frame has to wait. */
static bool take_frame(struct verbs_ctl *ctl, uint32_t buffer, uint32_t frame_bytes, bool *out_room)
{
	struct br r;
	uint8_t type;
	uint16_t credits;
	uint32_t len;
	const uint8_t *data;

	br_init(&r, recv_buffer(ctl, buffer), frame_bytes);
	type = br_u8(&r);
	br_skip(&r, 1);
	credits = br_u16(&r);
	len = br_u32(&r);
	data = br_view(&r, len);
	*out_room = true;
	if (!br_done(&r) || ctl->bye || credits > VERBS_CTL_RECVS ||
	    ctl->credits + credits > VERBS_CTL_RECVS ||
	    (type != VERBS_FRAME_DATA && (type > VERBS_FRAME_BYE || type == 0 || len != 0)))
		return broken(ctl, type, len, credits);
	if (type == VERBS_FRAME_DATA) {
		if (!verbs_ctl_put(ctl, data, len)) {
			*out_room = false;
			return true;
		}
		ctl->owed++;
	}
	ctl->credits += credits;
	ctl->bye = type == VERBS_FRAME_BYE;
	return true;
}

bool verbs_wire_receive(struct verbs_ctl *ctl)
{
	while (ctl->in_head != ctl->in_tail) {
		uint32_t at = ctl->in_head % VERBS_CTL_BUFFERS;
		uint32_t buffer = ctl->in[at].buffer;
		bool room;
		int code;

		if (!take_frame(ctl, buffer, ctl->in[at].len_bytes, &room))
			return false;
		if (!room)
			return true;
		ctl->in_head++;
		code = post_recv(ctl, buffer);
		if (code != 0) {
			verbs_ctl_fail(ctl, WIMM_E_PEER_LOST, (uint32_t)code,
			               "%s: receive requests cannot be posted: %s",
			               ctl->obj.dev->nic.name, strerror(code));
			return false;
		}
	}
	return true;
}

static void failed(struct verbs_ctl *ctl, const struct ibv_wc *wc)
{
	struct verbs_dev *dev = ctl->obj.dev;
	uint32_t code = wc->vendor_err != 0 ? wc->vendor_err : (uint32_t)wc->status;

	if (ctl->bye) /* the peer was told to be through with it, and is */
		return;
	if (wc->status == IBV_WC_RETRY_EXC_ERR)
		verbs_ctl_fail(ctl, WIMM_E_PEER_LOST, code,
		               "%s: the peer's NIC does not answer (%s): peer or network gone",
		               dev->nic.name, dev->nic.lib->wc_status_str(wc->status));
	else
		verbs_ctl_fail(ctl, WIMM_E_PEER_LOST, code, "%s: message channel failed: %s",
		               dev->nic.name, dev->nic.lib->wc_status_str(wc->status));
}

void verbs_ctl_completed(struct verbs_obj *obj, const struct ibv_wc *wc)
{
	struct verbs_ctl *ctl = LIST_ENTRY(obj, struct verbs_ctl, obj);
	uint32_t low = (uint32_t)wc->wr_id;
	uint32_t buffer = low & ~RECV_BIT;

	verbs_obj_ready(obj);
	if (wc->status != IBV_WC_SUCCESS) {
		failed(ctl, wc);
		return;
	}
	if ((low & RECV_BIT) == 0) {
		ctl->send_head++;
		if (ctl->draining) /* the peer reads: it may go on */
			verbs_ctl_extend(ctl);
		return;
	}
	if (buffer >= VERBS_CTL_BUFFERS || wc->byte_len > VERBS_FRAME_BYTES ||
	    ctl->in_tail - ctl->in_head == VERBS_CTL_BUFFERS)
		return;
	ctl->in[ctl->in_tail % VERBS_CTL_BUFFERS].buffer = (uint16_t)buffer;
	ctl->in[ctl->in_tail % VERBS_CTL_BUFFERS].len_bytes = (uint16_t)wc->byte_len;
	ctl->in_tail++;
}
