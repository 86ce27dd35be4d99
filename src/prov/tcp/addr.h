/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROV_TCP_ADDR_H
#define PROV_TCP_ADDR_H

#include "prov/prov.h"
#include "prov/tcp/hostport.h"

#include <netinet/in.h>
#include <sys/socket.h>

#define TCP_ADDR_TEXT_BYTES 80 /* "[IPV6%ZONE]:PORT" and its zero */

/* A socket address of either family; `any` for the system calls. */
union tcp_sockaddr {
	struct sockaddr any;
	struct sockaddr_in v4;
	struct sockaddr_in6 v6;
};

socklen_t tcp_sockaddr_len(const union tcp_sockaddr *sa);
uint16_t tcp_sockaddr_port(const union tcp_sockaddr *sa);

/* The bytes that travel: u8 family (4 or 6), u8 zero, u16 port, address, and for IPv6 u32 zone
 * (which means something on the machine that wrote it only). */
void tcp_addr_encode(const union tcp_sockaddr *sa, struct prov_addr *out);
/* Returns OK or E_PARSE. */
WIMM_MUST_CHECK wimm_status tcp_addr_decode(const struct prov_addr *addr, union tcp_sockaddr *out);

/* "1.2.3.4:5" or "[::1%lo]:5". text_bytes: TCP_ADDR_TEXT_BYTES always suffice. */
WIMM_MUST_CHECK wimm_status tcp_sockaddr_format(const union tcp_sockaddr *sa, char *text,
                                                size_t text_bytes);

/* Look the host up, IPv4 first; an interface's name stands for its first address. The port is
 * hp->port, or WIMM_DEFAULT_PORT without has_port. Returns OK, E_NOT_FOUND.
 * Blocks: name service. */
WIMM_MUST_CHECK wimm_status tcp_hostport_resolve(const struct tcp_hostport *hp,
                                                 union tcp_sockaddr *out);

/* The ops' entries. */
wimm_status tcp_op_addr_format(const struct prov_addr *addr, char *text, size_t text_bytes);
wimm_status tcp_op_addr_parse(const char *text, struct prov_addr *out);

#endif
