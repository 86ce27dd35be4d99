/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROV_TCP_HOSTPORT_H
#define PROV_TCP_HOSTPORT_H

#include <wimm/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TCP_HOST_BYTES 256

/* "HOST", "HOST:PORT", "[IPV6]:PORT", "[IPV6]" or a bare IPv6 address, taken apart. */
struct tcp_hostport {
	char host[TCP_HOST_BYTES]; /* name, IPv4 or IPv6 address; a zone stays behind its '%' */
	uint16_t port;             /* only with has_port; 0 is legal here */
	bool has_port;
	bool is_ipv6; /* host is an IPv6 address */
};

/* Takes the text apart and nothing else: no look-up, no system call. why (may be NULL) receives a
 * static text on failure. Returns OK or E_PARSE; *out only on OK. Thread: any. Blocks: no. */
WIMM_MUST_CHECK wimm_status tcp_hostport_parse(const char *text, struct tcp_hostport *out,
                                               const char **why);

#endif
