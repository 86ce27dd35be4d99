/* SPDX-License-Identifier: Apache-2.0 */
#include "prov/verbs/addr.h"

#include "base/bytes.h"
#include "prov/verbs/gid.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	FLAG_ETHERNET = 1,
	MTU_MAX = 5, /* IBV_MTU_4096 */
	QPN_MAX = 0xffffff,
	TEXT_PARTS = 8,
};

uint32_t verbs_mtu_bytes(uint8_t mtu)
{
	return mtu >= 1 && mtu <= MTU_MAX ? 128u << mtu : 0;
}

uint8_t verbs_mtu_of_bytes(uint64_t bytes)
{
	for (unsigned int mtu = 1; mtu <= MTU_MAX; mtu++) {
		if (verbs_mtu_bytes((uint8_t)mtu) == bytes)
			return (uint8_t)mtu;
	}
	return 0;
}

/* A queue key with the top bit set belongs to the kernel. */
static bool ud_valid(uint32_t qpn, uint32_t qkey)
{
	return qpn <= QPN_MAX && (qkey & 0x80000000u) == 0;
}

static bool addr_valid(const struct verbs_addr *a)
{
	return verbs_mtu_bytes(a->mtu) != 0 && ud_valid(a->ud_qpn, a->ud_qkey) &&
	       (a->ud_qpn != 0 || a->tcp_port != 0) &&
	       (a->ethernet ? !verbs_gid_is_zero(a->gid) : a->lid != 0);
}

void verbs_addr_encode(const struct verbs_addr *a, struct prov_addr *out)
{
	struct bw w;

	memset(out, 0, sizeof(*out));
	bw_init(&w, out->bytes, sizeof(out->bytes));
	bw_u8(&w, VERBS_ADDR_VERSION);
	bw_u8(&w, a->ethernet ? FLAG_ETHERNET : 0);
	bw_u8(&w, a->mtu);
	bw_bytes(&w, a->gid, sizeof(a->gid));
	bw_u16(&w, a->lid);
	bw_u32(&w, a->ud_qpn);
	bw_u32(&w, a->ud_qkey);
	bw_u16(&w, a->tcp_port);
	bw_bytes(&w, a->tcp_ip, sizeof(a->tcp_ip));
	out->len_bytes = (uint32_t)bw_len(&w);
}

wimm_status verbs_addr_decode(const struct prov_addr *in, struct verbs_addr *out)
{
	struct verbs_addr a = { 0 };
	uint8_t version;
	uint8_t flags;
	struct br r;

	if (in->len_bytes > sizeof(in->bytes))
		return WIMM_E_PARSE;
	br_init(&r, in->bytes, in->len_bytes);
	version = br_u8(&r);
	flags = br_u8(&r);
	a.ethernet = (flags & FLAG_ETHERNET) != 0;
	a.mtu = br_u8(&r);
	br_bytes(&r, a.gid, sizeof(a.gid));
	a.lid = br_u16(&r);
	a.ud_qpn = br_u32(&r);
	a.ud_qkey = br_u32(&r);
	a.tcp_port = br_u16(&r);
	br_bytes(&r, a.tcp_ip, sizeof(a.tcp_ip));
	if (!br_done(&r) || version != VERBS_ADDR_VERSION || (flags & ~FLAG_ETHERNET) != 0 ||
	    !addr_valid(&a))
		return WIMM_E_PARSE;
	*out = a;
	return WIMM_OK;
}

void verbs_end_encode(const struct verbs_end *e, struct prov_offer *out)
{
	struct bw w;

	memset(out, 0, sizeof(*out));
	bw_init(&w, out->bytes, sizeof(out->bytes));
	bw_u8(&w, VERBS_ADDR_VERSION);
	bw_u8(&w, e->ethernet ? FLAG_ETHERNET : 0);
	bw_u8(&w, e->mtu);
	bw_bytes(&w, e->gid, sizeof(e->gid));
	bw_u16(&w, e->lid);
	bw_u32(&w, e->qpn);
	bw_u32(&w, e->psn);
	bw_u64(&w, e->token);
	bw_u32(&w, e->ud_qpn);
	bw_u32(&w, e->ud_qkey);
	out->len_bytes = (uint32_t)bw_len(&w);
}

wimm_status verbs_end_decode(const struct prov_offer *in, struct verbs_end *out)
{
	struct verbs_end e = { 0 };
	uint8_t version;
	uint8_t flags;
	struct br r;

	if (in->len_bytes > sizeof(in->bytes))
		return WIMM_E_PARSE;
	br_init(&r, in->bytes, in->len_bytes);
	version = br_u8(&r);
	flags = br_u8(&r);
	e.ethernet = (flags & FLAG_ETHERNET) != 0;
	e.mtu = br_u8(&r);
	br_bytes(&r, e.gid, sizeof(e.gid));
	e.lid = br_u16(&r);
	e.qpn = br_u32(&r);
	e.psn = br_u32(&r);
	e.token = br_u64(&r);
	e.ud_qpn = br_u32(&r);
	e.ud_qkey = br_u32(&r);
	if (!br_done(&r) || version != VERBS_ADDR_VERSION || (flags & ~FLAG_ETHERNET) != 0 ||
	    verbs_mtu_bytes(e.mtu) == 0 || e.qpn == 0 || e.qpn > QPN_MAX || e.psn > QPN_MAX ||
	    !ud_valid(e.ud_qpn, e.ud_qkey))
		return WIMM_E_PARSE;
	*out = e;
	return WIMM_OK;
}

/* --- as text --- */

wimm_status verbs_op_addr_format(const struct prov_addr *addr, char *text, size_t text_bytes)
{
	char gid[VERBS_GID_TEXT_BYTES];
	char ip[VERBS_GID_TEXT_BYTES];
	char ud[32] = "";
	char tcp[VERBS_GID_TEXT_BYTES + 16] = "";
	struct verbs_addr a;
	int len;

	if (verbs_addr_decode(addr, &a) != WIMM_OK)
		return WIMM_E_PARSE;
	verbs_gid_text(a.gid, gid);
	verbs_gid_text(a.tcp_ip, ip);
	if (a.ud_qpn != 0)
		(void)snprintf(ud, sizeof(ud), "/ud=%u:%08x", a.ud_qpn, a.ud_qkey);
	if (a.tcp_port != 0)
		(void)snprintf(tcp, sizeof(tcp), "/tcp=%s:%u", ip, a.tcp_port);
	len = snprintf(text, text_bytes, "%s/%s/mtu=%u/lid=%u%s%s", gid, a.ethernet ? "roce" : "ib",
	               verbs_mtu_bytes(a.mtu), a.lid, ud, tcp);
	return len < 0 || (size_t)len >= text_bytes ? WIMM_E_LIMIT : WIMM_OK;
}

static bool read_ip(const char *text, uint8_t *out)
{
	memset(out, 0, 16);
	if (strchr(text, ':'))
		return inet_pton(AF_INET6, text, out) == 1;
	out[10] = out[11] = 0xff;
	return inet_pton(AF_INET, text, out + 12) == 1;
}

static bool read_number(const char *text, int base, uint64_t max, uint64_t *out)
{
	char *end;

	if (*text == '\0' || *text == '-' || *text == '+' || *text == ' ')
		return false;
	errno = 0;
	*out = strtoull(text, &end, base);
	return *end == '\0' && errno == 0 && *out <= max;
}

static bool read_ud(char *text, struct verbs_addr *a)
{
	char *colon = strchr(text, ':');
	uint64_t qpn;
	uint64_t qkey;

	if (!colon)
		return false;
	*colon = '\0';
	if (!read_number(text, 10, QPN_MAX, &qpn) || !read_number(colon + 1, 16, INT32_MAX, &qkey))
		return false;
	a->ud_qpn = (uint32_t)qpn;
	a->ud_qkey = (uint32_t)qkey;
	return qpn != 0;
}

static bool read_tcp(char *text, struct verbs_addr *a)
{
	char *colon = strrchr(text, ':');
	uint64_t port;

	if (!colon)
		return false;
	*colon = '\0';
	if (!read_number(colon + 1, 10, UINT16_MAX, &port) || !read_ip(text, a->tcp_ip))
		return false;
	a->tcp_port = (uint16_t)port;
	return port != 0;
}

static bool read_part(char *part, struct verbs_addr *a)
{
	uint64_t number;

	if (strcmp(part, "roce") == 0 || strcmp(part, "ib") == 0) {
		a->ethernet = part[0] == 'r';
		return true;
	}
	if (strncmp(part, "mtu=", 4) == 0) {
		if (!read_number(part + 4, 10, 4096, &number))
			return false;
		a->mtu = verbs_mtu_of_bytes(number);
		return a->mtu != 0;
	}
	if (strncmp(part, "lid=", 4) == 0) {
		if (!read_number(part + 4, 10, UINT16_MAX, &number))
			return false;
		a->lid = (uint16_t)number;
		return true;
	}
	if (strncmp(part, "ud=", 3) == 0)
		return read_ud(part + 3, a);
	if (strncmp(part, "tcp=", 4) == 0)
		return read_tcp(part + 4, a);
	return false;
}

wimm_status verbs_op_addr_parse(const char *text, struct prov_addr *out)
{
	struct verbs_addr a = { .ethernet = true, .mtu = MTU_MAX };
	char copy[PROV_TEXT_BYTES];
	size_t len_bytes = strnlen(text, sizeof(copy));
	char *next;

	if (len_bytes == sizeof(copy))
		return WIMM_E_PARSE;
	memcpy(copy, text, len_bytes + 1);
	next = strchr(copy, '/');
	if (next)
		*next++ = '\0';
	if (!read_ip(copy, a.gid))
		return WIMM_E_PARSE;
	for (uint32_t i = 0; next; i++) {
		char *part = next;

		next = strchr(part, '/');
		if (next)
			*next++ = '\0';
		if (i == TEXT_PARTS || !read_part(part, &a))
			return WIMM_E_PARSE;
	}
	if (!addr_valid(&a))
		return WIMM_E_PARSE;
	verbs_addr_encode(&a, out);
	return WIMM_OK;
}
