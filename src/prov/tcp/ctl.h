/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROV_TCP_CTL_H
#define PROV_TCP_CTL_H

/* Sessions' messages over one connection: u32 length and that many bytes. */

#include "prov/tcp/conn.h"

#define TCP_CTL_MAX_BYTES (1u << 20)

/* A connection whose preface said ctl becomes one. False when out of memory. */
bool tcp_ctl_accepted(struct tcp_conn *conn);
bool tcp_ctl_step(struct prov_obj *obj, struct prov_emit *emit);
/* Whether it still has to deliver something after ctl_close(flush). */
bool tcp_ctl_draining(const struct prov_obj *obj);
/* Let go without a word: the device closes. */
void tcp_ctl_drop(struct prov_obj *obj);
void tcp_ctl_free(struct prov_obj *obj);

/* The ops' entries. */
struct prov_ctl *tcp_op_ctl_open(struct prov_dev *dev, const struct prov_addr *to, void *context);
void tcp_op_ctl_set_context(struct prov_ctl *ctl, void *context);
wimm_status tcp_op_ctl_send(struct prov_ctl *ctl, const void *data, uint32_t len_bytes);
void tcp_op_ctl_close(struct prov_ctl *ctl, bool flush);

#endif
