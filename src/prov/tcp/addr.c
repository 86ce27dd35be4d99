/* SPDX-License-Identifier: Apache-2.0 */
#include "prov/tcp/addr.h"

#include "base/bytes.h"
#include "prov/tcp/nics.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <wimm/engine.h>

enum { FAMILY_V4 = 4, FAMILY_V6 = 6 };

socklen_t tcp_sockaddr_len(const union tcp_sockaddr *sa)
{
	return sa->any.sa_family == AF_INET ? sizeof(sa->v4) : sizeof(sa->v6);
}

uint16_t tcp_sockaddr_port(const union tcp_sockaddr *sa)
{
	return ntohs(sa->any.sa_family == AF_INET ? sa->v4.sin_port : sa->v6.sin6_port);
}

void tcp_addr_encode(const union tcp_sockaddr *sa, struct prov_addr *out)
{
	struct bw w;

	memset(out, 0, sizeof(*out));
	bw_init(&w, out->bytes, sizeof(out->bytes));
	bw_u8(&w, sa->any.sa_family == AF_INET ? FAMILY_V4 : FAMILY_V6);
	bw_u8(&w, 0);
	bw_u16(&w, tcp_sockaddr_port(sa));
	if (sa->any.sa_family == AF_INET) {
		bw_bytes(&w, &sa->v4.sin_addr, sizeof(sa->v4.sin_addr));
	} else {
		bw_bytes(&w, &sa->v6.sin6_addr, sizeof(sa->v6.sin6_addr));
		bw_u32(&w, sa->v6.sin6_scope_id);
	}
	out->len_bytes = (uint32_t)bw_len(&w);
}

wimm_status tcp_addr_decode(const struct prov_addr *addr, union tcp_sockaddr *out)
{
	union tcp_sockaddr sa;
	struct br r;
	uint8_t family;
	uint8_t zero;
	uint16_t port;

	memset(&sa, 0, sizeof(sa));
	if (addr->len_bytes > sizeof(addr->bytes))
		return WIMM_E_PARSE;
	br_init(&r, addr->bytes, addr->len_bytes);
	family = br_u8(&r);
	zero = br_u8(&r);
	port = br_u16(&r);
	if (family == FAMILY_V4) {
		sa.v4.sin_family = AF_INET;
		sa.v4.sin_port = htons(port);
		br_bytes(&r, &sa.v4.sin_addr, sizeof(sa.v4.sin_addr));
	} else {
		sa.v6.sin6_family = AF_INET6;
		sa.v6.sin6_port = htons(port);
		br_bytes(&r, &sa.v6.sin6_addr, sizeof(sa.v6.sin6_addr));
		sa.v6.sin6_scope_id = br_u32(&r);
	}
	if (!br_done(&r) || zero != 0 || port == 0 || (family != FAMILY_V4 && family != FAMILY_V6))
		return WIMM_E_PARSE;
	/* These travel as IPv4; two forms of one address would compare as different. */
	if (family == FAMILY_V6 && IN6_IS_ADDR_V4MAPPED(&sa.v6.sin6_addr))
		return WIMM_E_PARSE;
	*out = sa;
	return WIMM_OK;
}

static int format_v6(const struct sockaddr_in6 *v6, char *text, size_t text_bytes)
{
	char host[INET6_ADDRSTRLEN];
	char name[IF_NAMESIZE];

	if (!inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof(host)))
		return -1;
	if (v6->sin6_scope_id == 0)
		return snprintf(text, text_bytes, "[%s]:%u", host, ntohs(v6->sin6_port));
	/* A zone's name resolves for link-local addresses only, its number for all. */
	if (IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr) && if_indextoname(v6->sin6_scope_id, name))
		return snprintf(text, text_bytes, "[%s%%%s]:%u", host, name, ntohs(v6->sin6_port));
	return snprintf(text, text_bytes, "[%s%%%u]:%u", host, v6->sin6_scope_id,
	                ntohs(v6->sin6_port));
}

wimm_status tcp_sockaddr_format(const union tcp_sockaddr *sa, char *text, size_t text_bytes)
{
	char host[INET_ADDRSTRLEN];
	int len;

	if (sa->any.sa_family == AF_INET6)
		len = format_v6(&sa->v6, text, text_bytes);
	else if (inet_ntop(AF_INET, &sa->v4.sin_addr, host, sizeof(host)))
		len = snprintf(text, text_bytes, "%s:%u", host, ntohs(sa->v4.sin_port));
	else
		len = -1;
	if (len < 0)
		return WIMM_E_PARSE;
	return (size_t)len < text_bytes ? WIMM_OK : WIMM_E_LIMIT;
}

/* ::ffff:a.b.c.d names an IPv4 host: a socket of that family needs no dual-stack rules. */
static void unmap_v4(union tcp_sockaddr *sa)
{
	struct sockaddr_in v4 = { .sin_family = AF_INET };

	if (sa->any.sa_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&sa->v6.sin6_addr))
		return;
	v4.sin_port = sa->v6.sin6_port;
	memcpy(&v4.sin_addr, sa->v6.sin6_addr.s6_addr + 12, sizeof(v4.sin_addr));
	memset(sa, 0, sizeof(*sa));
	sa->v4 = v4;
}

static bool look_up(const char *host, int family, union tcp_sockaddr *out)
{
	struct addrinfo hints = { .ai_family = family, .ai_socktype = SOCK_STREAM };
	struct addrinfo *list;

	if (getaddrinfo(host, NULL, &hints, &list) != 0)
		return false;
	memset(out, 0, sizeof(*out));
	memcpy(out, list->ai_addr,
	       list->ai_addrlen < sizeof(*out) ? list->ai_addrlen : sizeof(*out));
	freeaddrinfo(list);
	return out->any.sa_family == family;
}

wimm_status tcp_hostport_resolve(const struct tcp_hostport *hp, union tcp_sockaddr *out)
{
	uint16_t port = htons(hp->has_port ? hp->port : WIMM_DEFAULT_PORT);
	union tcp_sockaddr sa;

	if (!(hp->is_ipv6 ? false : tcp_nic_by_name(hp->host, &sa)) &&
	    !(hp->is_ipv6 ? false : look_up(hp->host, AF_INET, &sa)) &&
	    !look_up(hp->host, AF_INET6, &sa))
		return WIMM_E_NOT_FOUND;
	if (sa.any.sa_family == AF_INET)
		sa.v4.sin_port = port;
	else
		sa.v6.sin6_port = port;
	unmap_v4(&sa);
	*out = sa;
	return WIMM_OK;
}

wimm_status tcp_op_addr_format(const struct prov_addr *addr, char *text, size_t text_bytes)
{
	union tcp_sockaddr sa;
	wimm_status st = tcp_addr_decode(addr, &sa);

	return st != WIMM_OK ? st : tcp_sockaddr_format(&sa, text, text_bytes);
}

wimm_status tcp_op_addr_parse(const char *text, struct prov_addr *out)
{
	struct tcp_hostport hp;
	union tcp_sockaddr sa;
	wimm_status st = tcp_hostport_parse(text, &hp, NULL);

	if (st != WIMM_OK)
		return st;
	if (hp.has_port && hp.port == 0)
		return WIMM_E_PARSE; /* right for listening only */
	st = tcp_hostport_resolve(&hp, &sa);
	if (st != WIMM_OK)
		return st;
	tcp_addr_encode(&sa, out);
	return WIMM_OK;
}
