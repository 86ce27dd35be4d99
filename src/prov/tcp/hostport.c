/* SPDX-License-Identifier: Apache-2.0 */
#include "prov/tcp/hostport.h"

#include <arpa/inet.h>
#include <string.h>

enum { PORT_DIGITS_MAX = 5, PORT_MAX = 65535 };

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

/* Digits only: no sign, no space, nothing behind. */
static bool parse_port(const char *text, uint16_t *out)
{
	uint32_t port = 0;
	size_t len = strlen(text);

	if (len == 0 || len > PORT_DIGITS_MAX)
		return false;
	for (size_t i = 0; i < len; i++) {
		if (!is_digit(text[i]))
			return false;
		port = port * 10 + (uint32_t)(text[i] - '0');
	}
	if (port > PORT_MAX)
		return false;
	*out = (uint16_t)port;
	return true;
}

/* Letters, digits, '-', '_' and '.': a name or an IPv4 address; never an empty one. */
static bool plain_host(const char *host)
{
	if (host[0] == '\0')
		return false;
	for (const char *c = host; *c; c++) {
		bool letter = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z');

		if (!letter && !is_digit(*c) && *c != '-' && *c != '_' && *c != '.')
			return false;
	}
	return true;
}

/* An IPv6 address, its zone (not empty) behind a '%'. */
static bool ipv6_host(const char *host)
{
	char address[INET6_ADDRSTRLEN];
	const char *zone = strchr(host, '%');
	size_t len = zone ? (size_t)(zone - host) : strlen(host);
	struct in6_addr ignored;

	if (len >= sizeof(address) || (zone && !plain_host(zone + 1)))
		return false;
	memcpy(address, host, len);
	address[len] = '\0';
	return inet_pton(AF_INET6, address, &ignored) == 1;
}

static wimm_status refuse(const char **why, const char *reason)
{
	if (why)
		*why = reason;
	return WIMM_E_PARSE;
}

wimm_status tcp_hostport_parse(const char *text, struct tcp_hostport *out, const char **why)
{
	struct tcp_hostport hp = { .has_port = false };
	const char *first = strchr(text, ':');
	const char *host = text;
	const char *port = NULL;
	size_t len = strlen(text);

	if (text[0] == '[') {
		const char *end = strchr(text, ']');

		if (!end)
			return refuse(why, "'[' without ']'");
		if (end[1] != '\0' && end[1] != ':')
			return refuse(why, "only a port may follow ']'");
		hp.is_ipv6 = true;
		host = text + 1;
		len = (size_t)(end - host);
		port = end[1] == ':' ? end + 2 : NULL;
	} else if (first && strchr(first + 1, ':')) {
		hp.is_ipv6 = true;
	} else if (first) {
		len = (size_t)(first - text);
		port = first + 1;
	}
	if (len >= sizeof(hp.host))
		return refuse(why, "host longer than 255 characters");
	memcpy(hp.host, host, len);
	hp.host[len] = '\0';
	if (hp.is_ipv6 && !ipv6_host(hp.host))
		return refuse(why, "not an IPv6 address");
	if (!hp.is_ipv6 && !plain_host(hp.host))
		return refuse(why, len == 0 ? "no host" : "character not allowed in a host");
	hp.has_port = port != NULL;
	if (port && !parse_port(port, &hp.port))
		return refuse(why, "port must be a number from 0 to 65535");
	*out = hp;
	return WIMM_OK;
}
