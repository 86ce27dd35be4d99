/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROV_VERBS_TCP_HELLO_H
#define PROV_VERBS_TCP_HELLO_H

/* The hello of a ctl over TCP, for NICs without UD queue pairs and networks that lose their
 * datagrams: one connection, one DIAL, one answer. Notices do not travel this way. */

#include "prov/verbs/dev.h"
#include "prov/verbs/hello.h"

/* Listen at dev->self.tcp_ip and fill in self.tcp_port. Not possible is an error only where nothing
 * else is. */
wimm_status verbs_tcp_open(struct verbs_dev *dev, struct verbs_fail *fail);
void verbs_tcp_close(struct verbs_dev *dev);
/* Call; ends in verbs_ctl_answered() or verbs_dial_tcp_failed(). */
void verbs_tcp_dial(struct verbs_dev *dev, const struct verbs_addr *to,
                    const struct verbs_hello *dial);
/* One of its descriptors is ready. */
void verbs_tcp_event(struct verbs_dev *dev, int fd);
void verbs_tcp_step(struct verbs_obj *obj);
void verbs_tcp_free(struct verbs_obj *obj);

#endif
