/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROV_VERBS_ADDR_H
#define PROV_VERBS_ADDR_H

/* What goes into a prov_addr and a prov_offer. Everything read here may come from a peer. */

#include "prov/prov.h"

#define VERBS_ADDR_VERSION 1

/* One NIC: where it is, and where it takes hellos. */
struct verbs_addr {
	bool ethernet;
	uint8_t mtu; /* enum ibv_mtu */
	uint8_t gid[16];
	uint16_t lid;
	uint32_t ud_qpn; /* 0: no UD queue pair */
	uint32_t ud_qkey;
	uint16_t tcp_port;  /* 0: no TCP hello */
	uint8_t tcp_ip[16]; /* IPv6, or IPv4-mapped */
};

/* One end of an RC queue pair. */
struct verbs_end {
	bool ethernet;
	uint8_t mtu;
	uint8_t gid[16];
	uint16_t lid;
	uint32_t qpn;
	uint32_t psn;
	uint64_t token; /* random: shows that a notice is meant for this very queue pair */
	uint32_t ud_qpn;
	uint32_t ud_qkey;
};

void verbs_addr_encode(const struct verbs_addr *a, struct prov_addr *out);
/* Returns OK or E_PARSE. */
WIMM_MUST_CHECK wimm_status verbs_addr_decode(const struct prov_addr *in, struct verbs_addr *out);
void verbs_end_encode(const struct verbs_end *e, struct prov_offer *out);
WIMM_MUST_CHECK wimm_status verbs_end_decode(const struct prov_offer *in, struct verbs_end *out);

/* The ops' entries. "10.77.0.1/roce/mtu=4096/lid=0/ud=17:1a2b3c4d/tcp=10.77.0.1:18515"; ud= and
 * tcp= are there if the NIC has them, and one of them must be. */
wimm_status verbs_op_addr_format(const struct prov_addr *addr, char *text, size_t text_bytes);
wimm_status verbs_op_addr_parse(const char *text, struct prov_addr *out);

/* 256 << (mtu - 1) and back; 0 for what is none. */
uint32_t verbs_mtu_bytes(uint8_t mtu);
uint8_t verbs_mtu_of_bytes(uint64_t bytes);

#endif
