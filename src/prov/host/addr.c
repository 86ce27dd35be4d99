/* SPDX-License-Identifier: Apache-2.0 */
#include "prov/host/addr.h"

#include "plat/rand.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum {
	ADDR_VERSION = 1,
	ADDR_HEAD_BYTES = 2,
	RANDOM_BYTES = 16, /* as two digits each they fill the name */
	NUMBER_DIGITS = 4,
};

#define SOCKET_PREFIX "wimm-"

_Static_assert(ADDR_HEAD_BYTES + HOST_NAME_MAX_CHARS <= PROV_ADDR_MAX_BYTES,
               "a name is an address");
_Static_assert(2 * RANDOM_BYTES == HOST_NAME_MAX_CHARS, "a random name is a full one");

static bool name_char(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
	       c == '_' || c == '-' || c == '.';
}

static wimm_status name_set(const char *text, size_t len, struct host_name *out)
{
	if (len == 0 || len > HOST_NAME_MAX_CHARS)
		return WIMM_E_PARSE;
	for (size_t i = 0; i < len; i++) {
		if (!name_char(text[i]))
			return WIMM_E_PARSE;
	}
	memset(out, 0, sizeof(*out));
	memcpy(out->text, text, len);
	return WIMM_OK;
}

static bool is_number(const char *nic)
{
	size_t digits = strspn(nic, "0123456789");

	return nic[digits] == '\0' && digits <= NUMBER_DIGITS; /* "" too */
}

wimm_status host_name_of_nic(const char *nic, struct host_name *out)
{
	uint8_t random[RANDOM_BYTES];
	wimm_status st;

	if (!is_number(nic) && strcmp(nic, "any") != 0)
		return name_set(nic, strlen(nic), out);
	st = rand_bytes(random, sizeof(random));
	if (st != WIMM_OK)
		return st;
	for (size_t i = 0; i < sizeof(random); i++)
		(void)snprintf(out->text + 2 * i, 3, "%02x", random[i]);
	return WIMM_OK;
}

/* u8 version, u8 length, name. */
void host_name_encode(const struct host_name *name, struct prov_addr *out)
{
	size_t len = strlen(name->text);

	memset(out, 0, sizeof(*out));
	out->bytes[0] = ADDR_VERSION;
	out->bytes[1] = (uint8_t)len;
	memcpy(out->bytes + ADDR_HEAD_BYTES, name->text, len);
	out->len_bytes = (uint32_t)(ADDR_HEAD_BYTES + len);
}

wimm_status host_name_decode(const struct prov_addr *addr, struct host_name *out)
{
	if (addr->len_bytes < ADDR_HEAD_BYTES || addr->len_bytes > sizeof(addr->bytes) ||
	    addr->bytes[0] != ADDR_VERSION || addr->bytes[1] != addr->len_bytes - ADDR_HEAD_BYTES)
		return WIMM_E_PARSE;
	return name_set((const char *)addr->bytes + ADDR_HEAD_BYTES, addr->bytes[1], out);
}

socklen_t host_name_sockaddr(const struct host_name *name, struct sockaddr_un *out)
{
	int len;

	memset(out, 0, sizeof(*out));
	out->sun_family = AF_UNIX;
	/* A zero in front: the abstract namespace, which needs no file and leaves none behind. */
	len = snprintf(out->sun_path + 1, sizeof(out->sun_path) - 1, SOCKET_PREFIX "%s",
	               name->text);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)len);
}

uint32_t host_op_list_nics(char (*out)[PROV_TEXT_BYTES], uint32_t max)
{
	if (max == 0)
		return 0;
	(void)snprintf(out[0], PROV_TEXT_BYTES, "any");
	return 1;
}

wimm_status host_op_addr_format(const struct prov_addr *addr, char *text, size_t text_bytes)
{
	struct host_name name;
	wimm_status st = host_name_decode(addr, &name);

	if (st != WIMM_OK)
		return st;
	if (strlen(name.text) >= text_bytes)
		return WIMM_E_LIMIT;
	(void)snprintf(text, text_bytes, "%s", name.text);
	return WIMM_OK;
}

wimm_status host_op_addr_parse(const char *text, struct prov_addr *out)
{
	struct host_name name;
	wimm_status st = name_set(text, strlen(text), &name);

	if (st == WIMM_OK)
		host_name_encode(&name, out);
	return st;
}
