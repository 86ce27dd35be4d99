/* SPDX-License-Identifier: Apache-2.0 */
#include "prov/verbs/ud.h"

#include "base/alloc.h"
#include "base/log.h"
#include "plat/clock.h"
#include "plat/rand.h"
#include "prov/verbs/ctl.h"
#include "prov/verbs/path.h"
#include "prov/verbs/region.h"

#include <errno.h>
#include <string.h>

enum {
	RECVS = 128,
	SENDS = VERBS_UD_SENDS,
	GRH_BYTES = 40,
	SLOT_BYTES = 192, /* a header and a hello, in whole cache lines */
	NOTICE_TRIES = 6,
	NOTICE_DELAY_MS = 20,
};

/* wr_id of this queue pair: the upper half is 0, no object's id. */
#define RECV_BIT 0x80000000u

static uint8_t *recv_slot(const struct verbs_ud *ud, uint32_t i)
{
	return ud->slots + (size_t)i * SLOT_BYTES;
}

static uint8_t *send_slot(const struct verbs_ud *ud, uint32_t i)
{
	return ud->slots + (size_t)(RECVS + i) * SLOT_BYTES;
}

static bool post_recv(struct verbs_dev *dev, uint32_t i)
{
	struct verbs_ud *ud = &dev->ud;
	struct ibv_sge sge = { (uint64_t)(uintptr_t)recv_slot(ud, i), SLOT_BYTES, ud->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = RECV_BIT | i, .sg_list = &sge, .num_sge = 1 };
	struct ibv_recv_wr *bad;

	return ibv_post_recv(ud->qp, &wr, &bad) == 0;
}

static bool to_rts(struct verbs_dev *dev)
{
	const struct verbs_lib *lib = dev->nic.lib;
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = dev->nic.port,
		.pkey_index = dev->limits.pkey_index,
		.qkey = dev->ud.qkey,
	};
	int code = lib->modify_qp(dev->ud.qp, &attr,
	                          IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_QKEY);

	attr.qp_state = IBV_QPS_RTR;
	if (code == 0)
		code = lib->modify_qp(dev->ud.qp, &attr, IBV_QP_STATE);
	attr.qp_state = IBV_QPS_RTS;
	attr.sq_psn = 0;
	if (code == 0)
		code = lib->modify_qp(dev->ud.qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN);
	errno = code;
	return code == 0;
}

static bool make(struct verbs_dev *dev, struct verbs_fail *fail)
{
	struct verbs_ud *ud = &dev->ud;
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_UD,
		.cap = { .max_send_wr = SENDS,
		         .max_recv_wr = RECVS,
		         .max_send_sge = 1,
		         .max_recv_sge = 1 },
	};

	ud->slots = mem_alloc_aligned(4096, (size_t)(RECVS + SENDS) * SLOT_BYTES);
	if (!ud->slots || rand_bytes(&ud->qkey, sizeof(ud->qkey)) != WIMM_OK)
		return false;
	ud->qkey &= 0x7fffffffu;
	ud->mr = dev->nic.lib->reg_mr(dev->pd, ud->slots, (size_t)(RECVS + SENDS) * SLOT_BYTES,
	                              IBV_ACCESS_LOCAL_WRITE);
	if (!ud->mr)
		return false;
	ud->cq = verbs_cq_take(dev, RECVS + SENDS, fail);
	if (!ud->cq)
		return false;
	attr.send_cq = attr.recv_cq = ud->cq->cq;
	ud->qp = dev->nic.lib->create_qp(dev->pd, &attr);
	if (!ud->qp || !to_rts(dev))
		return false;
	for (uint32_t i = 0; i < RECVS; i++) {
		if (!post_recv(dev, i))
			return false;
	}
	return true;
}

wimm_status verbs_ud_open(struct verbs_dev *dev, struct verbs_fail *fail)
{
	char why[VERBS_LOCK_TEXT_BYTES];
	wimm_status st = WIMM_E_UNSUPPORTED;
	int code;

	errno = 0;
	if (make(dev, fail))
		return WIMM_OK;
	code = errno;
	if (verbs_lock_limit(code, why))
		st = WIMM_E_LOCK_LIMIT;
	verbs_fail_set(fail, st, (uint32_t)code,
	               "%s: no UD queue pair: %s; check verbs_pkey_index %u, or set verbs_hello "
	               "to tcp",
	               dev->nic.name, why, dev->limits.pkey_index);
	verbs_ud_close(dev);
	return st;
}

void verbs_ud_close(struct verbs_dev *dev)
{
	struct verbs_ud *ud = &dev->ud;

	if (ud->qp)
		verbs_qp_destroy(dev, ud->qp);
	for (uint32_t i = 0; i < SENDS; i++)
		verbs_way_put(dev, ud->sending[i]);
	if (ud->cq)
		verbs_cq_give(ud->cq, RECVS + SENDS);
	if (ud->mr)
		(void)dev->nic.lib->dereg_mr(ud->mr);
	mem_free(ud->slots);
	*ud = (struct verbs_ud){ 0 };
}

void verbs_ud_send(struct verbs_dev *dev, struct verbs_way *way, uint32_t qpn, uint32_t qkey,
                   struct verbs_hello *h)
{
	struct verbs_ud *ud = &dev->ud;
	struct ibv_sge sge = { .length = VERBS_HELLO_BYTES };
	struct ibv_send_wr wr = { .sg_list = &sge,
		                  .num_sge = 1,
		                  .opcode = IBV_WR_SEND,
		                  .send_flags = IBV_SEND_SIGNALED };
	struct ibv_send_wr *bad;
	uint32_t i = 0;

	while (i < SENDS && ud->sending[i])
		i++;
	if (!ud->qp || i == SENDS)
		return;
	verbs_addr_encode(&dev->self, &h->from);
	verbs_hello_encode(h, send_slot(ud, i));
	sge.addr = (uint64_t)(uintptr_t)send_slot(ud, i);
	sge.lkey = ud->mr->lkey;
	wr.wr_id = i;
	wr.wr.ud.ah = way->ah;
	wr.wr.ud.remote_qpn = qpn;
	wr.wr.ud.remote_qkey = qkey;
	if (ibv_post_send(ud->qp, &wr, &bad) != 0)
		return;
	ud->sending[i] = way;
	way->refs++;
}

/* --- notices --- */

struct verbs_notice {
	struct verbs_obj obj;
	struct verbs_way *way;
	struct verbs_end peer;
	uint32_t tries;
};

void verbs_notice_free(struct verbs_obj *obj)
{
	struct verbs_notice *n = LIST_ENTRY(obj, struct verbs_notice, obj);

	verbs_way_put(obj->dev, n->way);
	mem_free(n);
}

static void notice_send(struct verbs_notice *n)
{
	struct verbs_hello h = { .type = VERBS_HELLO_NOTICE,
		                 .token = n->peer.token,
		                 .qpn = n->peer.qpn };

	verbs_ud_send(n->obj.dev, n->way, n->peer.ud_qpn, n->peer.ud_qkey, &h);
	verbs_obj_timer(&n->obj, (UINT64_C(10) << n->tries) * CLOCK_NS_PER_MS);
	n->tries++;
}

void verbs_ud_notify(struct verbs_dev *dev, struct verbs_way *way, const struct verbs_end *peer)
{
	struct verbs_notice *n = mem_calloc(1, sizeof(*n));

	if (!n || !verbs_obj_init(&n->obj, dev, VERBS_OBJ_NOTICE, &dev->notices)) {
		verbs_way_put(dev, way);
		mem_free(n);
		return;
	}
	n->way = way;
	n->peer = *peer;
	/* Not before the peer has read the messages sent up to now: it might take a path that ends
	 * for a peer that is lost, with its goodbye on the way. */
	verbs_obj_timer(&n->obj, NOTICE_DELAY_MS * CLOCK_NS_PER_MS);
}

void verbs_notice_step(struct verbs_obj *obj)
{
	struct verbs_notice *n = LIST_ENTRY(obj, struct verbs_notice, obj);

	if (!obj->expired)
		return;
	if (n->tries < NOTICE_TRIES)
		notice_send(n);
	else
		verbs_obj_kill(obj);
}

bool verbs_notices_due(const struct verbs_dev *dev)
{
	LIST_FOR_EACH(it, &dev->notices) {
		struct verbs_obj *obj = LIST_ENTRY(it, struct verbs_obj, all);

		if (LIST_ENTRY(obj, struct verbs_notice, obj)->tries == 0)
			return true;
	}
	return false;
}

static void noted(struct verbs_dev *dev, uint64_t token)
{
	LIST_FOR_EACH(it, &dev->notices) {
		struct verbs_obj *obj = LIST_ENTRY(it, struct verbs_obj, all);

		if (LIST_ENTRY(obj, struct verbs_notice, obj)->peer.token == token)
			verbs_obj_kill(obj);
	}
}

/* --- arrivals --- */

static void answer_notice(struct verbs_dev *dev, const struct verbs_hello *h,
                          const struct verbs_addr *from)
{
	struct verbs_hello answer = { .type = VERBS_HELLO_NOTED, .token = h->token, .qpn = h->qpn };
	struct verbs_fail ignored;
	struct verbs_way *way;

	verbs_path_noticed(dev, h->qpn, h->token);
	if (from->ud_qpn == 0)
		return;
	way = verbs_way_open(dev, from->ethernet, from->gid, from->lid, &ignored);
	if (!way)
		return;
	verbs_ud_send(dev, way, from->ud_qpn, from->ud_qkey, &answer);
	verbs_way_put(dev, way);
}

static void arrived(struct verbs_dev *dev, const struct verbs_hello *h)
{
	struct verbs_addr from;

	if (verbs_addr_decode(&h->from, &from) != WIMM_OK)
		return;
	switch (h->type) {
	case VERBS_HELLO_DIAL:
		verbs_ctl_dialled(dev, h, &from);
		return;
	case VERBS_HELLO_ACCEPT:
	case VERBS_HELLO_REFUSE:
		verbs_ctl_answered(dev, h, &from);
		return;
	case VERBS_HELLO_NOTICE:
		answer_notice(dev, h, &from);
		return;
	case VERBS_HELLO_NOTED:
		noted(dev, h->token);
		return;
	}
}

/* An error of one datagram stops the sending half until it is started again. */
static void send_failed(struct verbs_dev *dev, const struct ibv_wc *wc)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS };

	if (wc->status == IBV_WC_WR_FLUSH_ERR)
		return;
	LOG_WARN("verbs: %s: a hello could not be sent: %s", dev->nic.name,
	         dev->nic.lib->wc_status_str(wc->status));
	(void)dev->nic.lib->modify_qp(dev->ud.qp, &attr, IBV_QP_STATE);
}

void verbs_ud_completed(struct verbs_dev *dev, const struct ibv_wc *wc)
{
	struct verbs_ud *ud = &dev->ud;
	uint32_t i = (uint32_t)wc->wr_id;
	struct verbs_hello h;

	if (!ud->qp)
		return;
	if ((i & RECV_BIT) == 0) {
		if (i < SENDS && ud->sending[i]) {
			verbs_way_put(dev, ud->sending[i]);
			ud->sending[i] = NULL;
		}
		if (wc->status != IBV_WC_SUCCESS)
			send_failed(dev, wc);
		return;
	}
	i &= ~RECV_BIT;
	if (i >= RECVS || wc->status == IBV_WC_WR_FLUSH_ERR)
		return;
	if (wc->status == IBV_WC_SUCCESS && wc->byte_len >= GRH_BYTES &&
	    wc->byte_len <= SLOT_BYTES &&
	    verbs_hello_decode(recv_slot(ud, i) + GRH_BYTES, wc->byte_len - GRH_BYTES, &h) ==
	            WIMM_OK)
		arrived(dev, &h);
	if (ud->qp && !post_recv(dev, i))
		LOG_ERROR("verbs: %s: a hello's buffer cannot be posted again", dev->nic.name);
}
