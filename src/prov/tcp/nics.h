/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROV_TCP_NICS_H
#define PROV_TCP_NICS_H

#include "prov/tcp/addr.h"

#include <net/if.h>

/* First usable address of the interface of that name, port 0. Blocks: asks the kernel. */
bool tcp_nic_by_name(const char *name, union tcp_sockaddr *out);

/* What the kernel knows about the interface that holds this address. */
struct tcp_nic_info {
	uint64_t link_bytes_per_s; /* 0: unknown */
	int numa_node;             /* -1: unknown */
	char name[IF_NAMESIZE];    /* "": none has this address */
};
void tcp_nic_describe(const union tcp_sockaddr *sa, struct tcp_nic_info *out);

/* The ops' entry. One item an interface that is up: its IPv4 addresses, or its first IPv6 address
 * when it has none, each with port 0; link-local addresses have to be asked for by name. */
uint32_t tcp_op_list_nics(char (*out)[PROV_TEXT_BYTES], uint32_t max);

#endif
