/* SPDX-License-Identifier: Apache-2.0 */
#include "prov/verbs/qp.h"

#include "base/alloc.h"
#include "base/log.h"
#include "plat/rand.h"
#include "prov/verbs/ctl.h"
#include "prov/verbs/gid.h"
#include "prov/verbs/path.h"
#include "prov/verbs/region.h"
#include "prov/verbs/ud.h"

#include <errno.h>
#include <string.h>

enum {
	HOP_LIMIT = 64,
	CQ_ENTRIES = 8192, /* of one completion queue, if the device has as many */
	POLL_BATCH = 64,
	POLL_BATCHES = 64,  /* a turn, so that a turn ends */
	MIN_RNR_TIMER = 12, /* 0.64 ms */
};

/* --- queue pairs --- */

static struct ibv_qp *create(struct verbs_dev *dev, const struct verbs_qp_args *args,
                             uint32_t inline_bytes)
{
	struct ibv_qp_init_attr attr = {
		.qp_context = args->context,
		.send_cq = args->cq->cq,
		.recv_cq = args->srq ? args->recv_cq : args->cq->cq,
		.srq = args->srq,
		.qp_type = IBV_QPT_RC,
		.cap = {
			.max_send_wr = args->send_depth,
			.max_recv_wr = args->recv_depth,
			.max_send_sge = 1,
			.max_recv_sge = args->srq ? 0 : 1,
			.max_inline_data = inline_bytes,
		},
	};

	return dev->nic.lib->create_qp(dev->pd, &attr);
}

static bool to_init(struct verbs_dev *dev, struct ibv_qp *qp, unsigned access)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = dev->nic.port,
		.pkey_index = dev->limits.pkey_index,
		.qp_access_flags = access,
	};
	int code = dev->nic.lib->modify_qp(
		qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);

	errno = code;
	return code == 0;
}

struct ibv_qp *verbs_qp_create(struct verbs_dev *dev, const struct verbs_qp_args *args,
                               uint32_t *out_inline, struct verbs_fail *fail)
{
	struct ibv_qp *qp = create(dev, args, args->inline_bytes);

	*out_inline = args->inline_bytes;
	if (!qp && args->inline_bytes > 0) {
		/* Devices differ in what they take, and say so only by refusing. */
		qp = create(dev, args, 0);
		*out_inline = 0;
	}
	if (!qp) {
		int code = errno;
		char why[VERBS_LOCK_TEXT_BYTES];

		(void)verbs_lock_limit(code, why);
		verbs_fail_set(fail, code == ENOMEM ? WIMM_E_LIMIT : WIMM_E_SYSTEM, (uint32_t)code,
		               "%s: no queue pair of %u requests: fewer peers, or a lower "
		               "verbs_depth: the device has %d of %d (all processes); or: %s",
		               dev->nic.name, args->send_depth, dev->nic.attr.max_qp,
		               dev->nic.attr.max_qp_wr, why);
		return NULL;
	}
	if (!to_init(dev, qp, args->access)) {
		verbs_fail_set(
			fail, WIMM_E_SYSTEM, (uint32_t)errno,
			"%s: queue pair cannot be initialised: %s; check verbs_pkey_index %u",
			dev->nic.name, strerror(errno), dev->limits.pkey_index);
		verbs_qp_destroy(dev, qp);
		return NULL;
	}
	return qp;
}

bool verbs_qp_describe(const struct verbs_dev *dev, const struct ibv_qp *qp, struct verbs_end *out)
{
	struct verbs_end e = {
		.ethernet = dev->self.ethernet,
		.mtu = dev->self.mtu,
		.lid = dev->self.lid,
		.qpn = qp->qp_num,
		.ud_qpn = dev->self.ud_qpn,
		.ud_qkey = dev->self.ud_qkey,
	};

	memcpy(e.gid, dev->self.gid, sizeof(e.gid));
	if (rand_bytes(&e.psn, sizeof(e.psn)) != WIMM_OK ||
	    rand_bytes(&e.token, sizeof(e.token)) != WIMM_OK)
		return false;
	e.psn &= VERBS_QPN_MASK;
	*out = e;
	return true;
}

static struct ibv_ah_attr route_to(const struct verbs_dev *dev, bool ethernet, const uint8_t *gid,
                                   uint16_t lid)
{
	struct ibv_ah_attr attr = {
		.dlid = lid,
		.sl = dev->limits.service_level,
		.port_num = dev->nic.port,
		/* Within an InfiniBand subnet the LID alone will do, a router needs the GID. */
		.is_global = ethernet || memcmp(gid, dev->self.gid, 8) != 0,
		.grh = {
			.sgid_index = (uint8_t)dev->nic.gid.gid_index,
			.hop_limit = HOP_LIMIT,
			.traffic_class = dev->limits.traffic_class,
		},
	};

	memcpy(attr.grh.dgid.raw, gid, sizeof(attr.grh.dgid.raw));
	return attr;
}

static bool same_kind(const struct verbs_dev *dev, bool ethernet, const uint8_t *gid,
                      struct verbs_fail *fail)
{
	char own[VERBS_GID_TEXT_BYTES];
	char theirs[VERBS_GID_TEXT_BYTES];

	if (ethernet != dev->self.ethernet) {
		verbs_fail_set(fail, WIMM_E_UNSUPPORTED, 0, "%s is %s, the peer's NIC is %s",
		               dev->nic.name, dev->self.ethernet ? "Ethernet" : "InfiniBand",
		               ethernet ? "Ethernet" : "InfiniBand");
		return false;
	}
	if (!ethernet || verbs_gid_is_ipv4(gid) == verbs_gid_is_ipv4(dev->self.gid))
		return true;
	verbs_gid_text(dev->self.gid, own);
	verbs_gid_text(gid, theirs);
	verbs_fail_set(fail, WIMM_E_UNSUPPORTED, 0,
	               "%s speaks from %s, the peer from %s: set verbs_gid_index on one side to an "
	               "entry of the other's family",
	               dev->nic.name, own, theirs);
	return false;
}

static void no_route(const struct verbs_dev *dev, const uint8_t *gid, int code,
                     struct verbs_fail *fail)
{
	char own[VERBS_GID_TEXT_BYTES];
	char theirs[VERBS_GID_TEXT_BYTES];

	verbs_gid_text(dev->self.gid, own);
	verbs_gid_text(gid, theirs);
	verbs_fail_set(fail, WIMM_E_PEER_LOST, (uint32_t)code,
	               "%s: no way from %s (GID %u) to %s: %s; check that ping passes between the "
	               "two, or choose another verbs_gid_index",
	               dev->nic.name, own, dev->nic.gid.gid_index, theirs, strerror(code));
}

bool verbs_qp_join(struct verbs_dev *dev, struct ibv_qp *qp, const struct verbs_end *own,
                   const struct verbs_end *peer, struct verbs_fail *fail)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = peer->mtu < own->mtu ? peer->mtu : own->mtu,
		.dest_qp_num = peer->qpn,
		.rq_psn = peer->psn,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = MIN_RNR_TIMER,
	};
	int code;

	if (!same_kind(dev, peer->ethernet, peer->gid, fail))
		return false;
	attr.ah_attr = route_to(dev, peer->ethernet, peer->gid, peer->lid);
	code = dev->nic.lib->modify_qp(qp, &attr,
	                               IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
	                                       IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
	                                       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	if (code == EINVAL) { /* the route is found out by another code */
		verbs_fail_set(fail, WIMM_E_UNSUPPORTED, (uint32_t)code,
		               "%s refuses the peer's queue pair: %s; MTU %u here, %u there: set "
		               "verbs_mtu on both sides to what every switch between them takes; "
		               "GID %u (setting verbs_gid_index)",
		               dev->nic.name, strerror(code), verbs_mtu_bytes(own->mtu),
		               verbs_mtu_bytes(peer->mtu), dev->nic.gid.gid_index);
		return false;
	}
	if (code != 0) {
		no_route(dev, peer->gid, code, fail);
		return false;
	}
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS,
		.sq_psn = own->psn,
		.timeout = dev->limits.rc_timeout,
		.retry_cnt = dev->limits.rc_retries,
		.rnr_retry =
			7, /* for ever: a receiver that is short of requests is back-pressure */
		.max_rd_atomic = 1,
	};
	code = dev->nic.lib->modify_qp(qp, &attr,
	                               IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT |
	                                       IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
	                                       IBV_QP_MAX_QP_RD_ATOMIC);
	if (code == 0)
		return true;
	verbs_fail_set(
		fail, WIMM_E_SYSTEM, (uint32_t)code,
		"%s: queue pair cannot be started: %s; check verbs_timeout and verbs_retries",
		dev->nic.name, strerror(code));
	return false;
}

void verbs_qp_stop(struct verbs_dev *dev, struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	int code = dev->nic.lib->modify_qp(qp, &attr, IBV_QP_STATE);

	if (code != 0 && !dev->dead)
		LOG_ERROR("verbs: %s: queue pair %u cannot be stopped: %s", dev->nic.name,
		          qp->qp_num, strerror(code));
}

void verbs_qp_destroy(struct verbs_dev *dev, struct ibv_qp *qp)
{
	int code = dev->nic.lib->destroy_qp(qp);

	if (code != 0 && !dev->dead)
		LOG_ERROR("verbs: %s: queue pair cannot be destroyed: %s", dev->nic.name,
		          strerror(code));
}

struct verbs_way *verbs_way_open(struct verbs_dev *dev, bool ethernet, const uint8_t *gid,
                                 uint16_t lid, struct verbs_fail *fail)
{
	struct ibv_ah_attr attr = route_to(dev, ethernet, gid, lid);
	struct verbs_way *way;

	if (!same_kind(dev, ethernet, gid, fail))
		return NULL;
	way = mem_calloc(1, sizeof(*way));
	if (!way) {
		verbs_fail_set(fail, WIMM_E_NOMEM, 0, "out of memory");
		return NULL;
	}
	way->refs = 1;
	way->ah = dev->nic.lib->create_ah(dev->pd, &attr);
	if (way->ah)
		return way;
	no_route(dev, gid, errno, fail);
	mem_free(way);
	return NULL;
}

void verbs_way_put(struct verbs_dev *dev, struct verbs_way *way)
{
	if (!way || --way->refs > 0)
		return;
	(void)dev->nic.lib->destroy_ah(way->ah);
	mem_free(way);
}

/* --- completion queues --- */

static struct verbs_cq *cq_open(struct verbs_dev *dev, uint32_t least, struct verbs_fail *fail)
{
	struct verbs_cq *cq = mem_calloc(1, sizeof(*cq));
	uint32_t entries = CQ_ENTRIES;

	if (!cq) {
		verbs_fail_set(fail, WIMM_E_NOMEM, 0, "out of memory");
		return NULL;
	}
	if (entries < least)
		entries = least;
	if (entries > (uint32_t)dev->nic.attr.max_cqe)
		entries = (uint32_t)dev->nic.attr.max_cqe;
	cq->cq = entries < least ? NULL
	                         : dev->nic.lib->create_cq(dev->nic.ctx, (int)entries, NULL,
	                                                   dev->channel, 0);
	if (!cq->cq) {
		char why[VERBS_LOCK_TEXT_BYTES];
		int code = entries < least ? EINVAL : errno;

		(void)verbs_lock_limit(code, why);
		verbs_fail_set(fail, WIMM_E_LIMIT, (uint32_t)code,
		               "%s: no completion queue of %u entries (the device allows %d; "
		               "setting verbs_depth): %s",
		               dev->nic.name, least, dev->nic.attr.max_cqe, why);
		mem_free(cq);
		return NULL;
	}
	cq->capacity = entries;
	list_push_back(&dev->cqs, &cq->link);
	return cq;
}

struct verbs_cq *verbs_cq_take(struct verbs_dev *dev, uint32_t count, struct verbs_fail *fail)
{
	struct verbs_cq *found = NULL;

	LIST_FOR_EACH(it, &dev->cqs) {
		struct verbs_cq *cq = LIST_ENTRY(it, struct verbs_cq, link);

		if (cq->capacity - cq->used >= count)
			found = cq;
	}
	if (!found)
		found = cq_open(dev, count, fail);
	if (found)
		found->used += count;
	return found;
}

void verbs_cq_give(struct verbs_cq *cq, uint32_t count)
{
	cq->used -= count;
}

void verbs_cqs_close(struct verbs_dev *dev)
{
	struct list *link;

	while ((link = list_pop_front(&dev->cqs)) != NULL) {
		struct verbs_cq *cq = LIST_ENTRY(link, struct verbs_cq, link);

		if (dev->nic.lib->destroy_cq(cq->cq) != 0 && !dev->dead)
			LOG_ERROR("verbs: %s: a completion queue cannot be destroyed",
			          dev->nic.name);
		mem_free(cq);
	}
}

static void completed(struct verbs_dev *dev, const struct ibv_wc *wc)
{
	struct verbs_obj *obj;

	if (wc->wr_id >> 32 == 0) {
		verbs_ud_completed(dev, wc);
		return;
	}
	/* A queue pair that is gone may still have completions here: its id finds nobody. */
	obj = hash_find_ptr(&dev->by_id, wc->wr_id >> 32);
	if (!obj)
		return;
	if (obj->kind == VERBS_OBJ_PATH)
		verbs_path_completed(LIST_ENTRY(obj, struct verbs_path, obj), wc);
	else
		verbs_ctl_completed(obj, wc);
}

void verbs_cq_poll(struct verbs_dev *dev, struct verbs_cq *cq)
{
	struct ibv_wc wc[POLL_BATCH];

	for (uint32_t k = 0; k < POLL_BATCHES; k++) {
		int n = ibv_poll_cq(cq->cq, POLL_BATCH, wc);

		if (n < 0) {
			verbs_dev_die(dev, "%s: a completion queue cannot be read", dev->nic.name);
			return;
		}
		for (int i = 0; i < n; i++)
			completed(dev, &wc[i]);
		if (n < POLL_BATCH)
			return;
	}
}
