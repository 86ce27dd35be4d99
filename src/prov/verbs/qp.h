/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROV_VERBS_QP_H
#define PROV_VERBS_QP_H

/* Reliable queue pairs, addresses of datagrams, and the completion queues of both. */

#include "prov/verbs/dev.h"

struct verbs_qp_args {
	struct verbs_cq *cq;    /* sends; receives too without srq */
	struct ibv_cq *recv_cq; /* with srq */
	struct ibv_srq *srq;    /* NULL: receive requests of its own */
	uint32_t send_depth;
	uint32_t recv_depth;
	uint32_t inline_bytes; /* wanted */
	unsigned access;       /* what the peer may do: IBV_ACCESS_* */
	void *context;         /* struct verbs_obj, for asynchronous events */
};

/* A queue pair in state INIT. *out_inline: what was granted. NULL: `fail` says why. */
struct ibv_qp *verbs_qp_create(struct verbs_dev *dev, const struct verbs_qp_args *args,
                               uint32_t *out_inline, struct verbs_fail *fail);
/* This end, as the peer has to know it. psn and token are drawn here. False: no random bytes. */
bool verbs_qp_describe(const struct verbs_dev *dev, const struct ibv_qp *qp, struct verbs_end *out);
/* To RTS. False: `fail` says why. Blocks while the kernel looks for the peer's Ethernet address. */
bool verbs_qp_join(struct verbs_dev *dev, struct ibv_qp *qp, const struct verbs_end *own,
                   const struct verbs_end *peer, struct verbs_fail *fail);
/* To ERR: nothing of the peer's lands any more, everything posted comes back. */
void verbs_qp_stop(struct verbs_dev *dev, struct ibv_qp *qp);
void verbs_qp_destroy(struct verbs_dev *dev, struct ibv_qp *qp);

/* Where datagrams to a NIC go. The device looks at it until they are sent, so it is counted. */
struct verbs_way {
	struct ibv_ah *ah;
	uint32_t refs;
};

/* NULL: `fail` says why. Blocks as above. */
struct verbs_way *verbs_way_open(struct verbs_dev *dev, bool ethernet, const uint8_t *gid,
                                 uint16_t lid, struct verbs_fail *fail);
void verbs_way_put(struct verbs_dev *dev, struct verbs_way *way);

/* Room for `count` completions. NULL: `fail` says why. */
struct verbs_cq *verbs_cq_take(struct verbs_dev *dev, uint32_t count, struct verbs_fail *fail);
void verbs_cq_give(struct verbs_cq *cq, uint32_t count);
/* Polls it and lets the objects know. */
void verbs_cq_poll(struct verbs_dev *dev, struct verbs_cq *cq);
void verbs_cqs_close(struct verbs_dev *dev);

#endif
