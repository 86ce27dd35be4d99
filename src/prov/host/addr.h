/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROV_HOST_ADDR_H
#define PROV_HOST_ADDR_H

#include "prov/prov.h"

#include <sys/socket.h>
#include <sys/un.h>

#define HOST_NAME_MAX_CHARS 32u

/* A device's name: letters, digits, '_', '-', '.'. It listens on the abstract socket "wimm-NAME" of
 * its network namespace. */
struct host_name {
	char text[HOST_NAME_MAX_CHARS + 1];
};

/* "", "any" and numbers make a random name, which no other device has; anything else is the name,
 * so that a successor can be found under it. Returns OK, E_PARSE, E_SYSTEM (no random bytes). */
WIMM_MUST_CHECK wimm_status host_name_of_nic(const char *nic, struct host_name *out);
void host_name_encode(const struct host_name *name, struct prov_addr *out);
/* Returns OK, E_PARSE. */
WIMM_MUST_CHECK wimm_status host_name_decode(const struct prov_addr *addr, struct host_name *out);
socklen_t host_name_sockaddr(const struct host_name *name, struct sockaddr_un *out);

/* The ops' entries. */
uint32_t host_op_list_nics(char (*out)[PROV_TEXT_BYTES], uint32_t max);
wimm_status host_op_addr_format(const struct prov_addr *addr, char *text, size_t text_bytes);
wimm_status host_op_addr_parse(const char *text, struct prov_addr *out);

#endif
