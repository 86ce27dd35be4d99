/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROV_VERBS_HELLO_H
#define PROV_VERBS_HELLO_H

/* The datagrams: how two NICs come to a pair of RC queue pairs for a ctl, and how one end says that
 * it has closed. Any of them may be lost, doubled or late.
 *
 *  DIAL    one end of a ctl, sent again until an answer comes; the token names the ctl
 *  ACCEPT  the other end; sent again for each DIAL of the same token
 *  REFUSE  no, with a status
 *  NOTICE  the queue pair that you know by this token is closed; sent again until NOTED
 *  NOTED   so it is */

#include "prov/verbs/addr.h"

#define VERBS_HELLO_BYTES 96u

enum verbs_hello_type {
	VERBS_HELLO_DIAL = 1,
	VERBS_HELLO_ACCEPT,
	VERBS_HELLO_REFUSE,
	VERBS_HELLO_NOTICE,
	VERBS_HELLO_NOTED,
};

struct verbs_hello {
	enum verbs_hello_type type;
	uint64_t token;
	uint32_t qpn; /* of DIAL, ACCEPT: the sender's; of NOTICE: the receiver's */
	uint32_t psn;
	wimm_status status;    /* of REFUSE */
	struct prov_addr from; /* the sender's NIC: where answers go */
};

/* out: VERBS_HELLO_BYTES. */
void verbs_hello_encode(const struct verbs_hello *h, uint8_t *out);
/* Returns OK, or E_PARSE for what is none, E_VERSION for one of another version. */
WIMM_MUST_CHECK wimm_status verbs_hello_decode(const uint8_t *in, size_t len_bytes,
                                               struct verbs_hello *out);

#endif
