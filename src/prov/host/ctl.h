/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROV_HOST_CTL_H
#define PROV_HOST_CTL_H

/* Sessions' messages over one connection: u32 length and that many bytes, as a stream that is cut
 * into packets wherever they are full. */

#include "prov/host/conn.h"

#define HOST_CTL_MAX_BYTES (1u << 20)

/* A connection whose preface said ctl becomes one. False when out of memory. */
bool host_ctl_accepted(struct host_conn *conn);
bool host_ctl_step(struct prov_obj *obj, struct prov_emit *emit);
/* Whether it still has to deliver something after ctl_close(flush). */
bool host_ctl_draining(const struct prov_obj *obj);
/* Let go without a word: the device closes. */
void host_ctl_drop(struct prov_obj *obj);
void host_ctl_free(struct prov_obj *obj);

/* The ops' entries. */
struct prov_ctl *host_op_ctl_open(struct prov_dev *dev, const struct prov_addr *to, void *context);
void host_op_ctl_set_context(struct prov_ctl *ctl, void *context);
wimm_status host_op_ctl_send(struct prov_ctl *ctl, const void *data, uint32_t len_bytes);
void host_op_ctl_close(struct prov_ctl *ctl, bool flush);

#endif
