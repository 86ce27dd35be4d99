/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROV_VERBS_UD_H
#define PROV_VERBS_UD_H

/* The device's UD queue pair: hellos and notices out and in. */

#include "prov/verbs/hello.h"
#include "prov/verbs/qp.h"

/* E_UNSUPPORTED: the device has no UD queue pairs; dev->ud.qp stays NULL. */
wimm_status verbs_ud_open(struct verbs_dev *dev, struct verbs_fail *fail);
void verbs_ud_close(struct verbs_dev *dev);
/* Fills in `from`. A datagram that finds no room is as good as lost. */
void verbs_ud_send(struct verbs_dev *dev, struct verbs_way *way, uint32_t qpn, uint32_t qkey,
                   struct verbs_hello *h);
/* A send or a receive of the UD queue pair has completed. */
void verbs_ud_completed(struct verbs_dev *dev, const struct ibv_wc *wc);

/* Tell the peer that its end of a path is closed; again and again, a few times. Owns the
 * way. */
void verbs_ud_notify(struct verbs_dev *dev, struct verbs_way *way, const struct verbs_end *peer);
/* Whether one has not been sent at all. */
bool verbs_notices_due(const struct verbs_dev *dev);
void verbs_notice_step(struct verbs_obj *obj);
void verbs_notice_free(struct verbs_obj *obj);

#endif
