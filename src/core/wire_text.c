/* SPDX-License-Identifier: Apache-2.0 */
#include "core/error_text.h"
#include "core/wire.h"
#include "core/wire_parts.h"

#include <string.h>

/* What a text that names no provider is taken for. */
#define PLAIN_PROVIDER "tcp"

/* Longest part of a text that an error quotes. */
enum { QUOTE_CHARS = 100 };

static const char hex[] = "0123456789abcdef";

/* --- printing --- */

struct line {
	char text[WIMM_NET_ADDR_MAX_TEXT];
	size_t len_bytes;
	bool full;
};

static void add(struct line *l, const char *part, size_t len_bytes)
{
	if (l->full || len_bytes >= sizeof(l->text) - l->len_bytes) {
		l->full = true;
		return;
	}
	memcpy(l->text + l->len_bytes, part, len_bytes);
	l->len_bytes += len_bytes;
	l->text[l->len_bytes] = '\0';
}

static wimm_status add_nic(struct line *l, const struct prov_ops *ops, const struct wire_addr *a,
                           uint32_t index)
{
	char text[PROV_TEXT_BYTES];
	wimm_status st = ops->addr_format(&a->nic[index], text, sizeof(text));

	/* A text with a separator in it would not read back. */
	if (st == WIMM_OK && (text[0] == '\0' || strpbrk(text, ",#")))
		st = WIMM_E_PARSE;
	if (st != WIMM_OK) {
		error_text_set("NIC %u of %u: not an address of provider %s", index, a->nic_count,
		               ops->name);
		return st;
	}
	if (index != 0)
		add(l, ",", 1);
	add(l, text, strlen(text));
	return WIMM_OK;
}

wimm_status wire_addr_format(const struct wire_addr *a, char *text, size_t text_bytes)
{
	const struct prov_ops *ops = prov_find(a->provider);
	struct line l = { .len_bytes = 0 };

	if (!ops) {
		error_text_set("address of provider %s, which this build does not have",
		               a->provider);
		return WIMM_E_NOT_FOUND;
	}
	add(&l, ops->name, strlen(ops->name));
	add(&l, ":", 1);
	for (uint32_t i = 0; i < a->nic_count; i++) {
		wimm_status st = add_nic(&l, ops, a, i);

		if (st != WIMM_OK)
			return st;
	}
	if (!wire_instance_is_zero(a->instance)) {
		add(&l, "#", 1);
		for (size_t i = 0; i < sizeof(a->instance); i++) {
			add(&l, &hex[a->instance[i] >> 4], 1);
			add(&l, &hex[a->instance[i] & 15], 1);
		}
	}
	if (l.full || l.len_bytes >= text_bytes) {
		error_text_set("address text needs %zu bytes, there are %zu",
		               l.full ? sizeof(l.text) : l.len_bytes + 1, text_bytes);
		return WIMM_E_LIMIT;
	}
	memcpy(text, l.text, l.len_bytes + 1);
	return WIMM_OK;
}

/* --- reading --- */

static int hex_value(char c)
{
	const char *at = c != '\0' ? strchr(hex, c >= 'A' && c <= 'F' ? c - 'A' + 'a' : c) : NULL;

	return at ? (int)(at - hex) : -1;
}

static wimm_status parse_instance(const char *text, uint8_t *out)
{
	if (strlen(text) != 2 * WIMM_INSTANCE_BYTES)
		goto malformed;
	for (size_t i = 0; i < WIMM_INSTANCE_BYTES; i++) {
		int high = hex_value(text[2 * i]), low = hex_value(text[2 * i + 1]);

		if (high < 0 || low < 0)
			goto malformed;
		out[i] = (uint8_t)(high << 4 | low);
	}
	return WIMM_OK;
malformed:
	error_text_set("instance \"%.*s\": want %u hexadecimal digits behind '#'", QUOTE_CHARS,
	               text, 2 * WIMM_INSTANCE_BYTES);
	return WIMM_E_PARSE;
}

/* The provider that the text names, *text then behind it; else the one of plain addresses. */
static const struct prov_ops *parse_provider(char **text)
{
	char *colon = strchr(*text, ':');
	const struct prov_ops *ops = NULL;

	if (colon) {
		*colon = '\0';
		ops = prov_find(*text);
		*colon = ':';
	}
	if (!ops)
		return prov_find(PLAIN_PROVIDER);
	*text = colon + 1;
	return ops;
}

static wimm_status parse_nics(char *text, const struct prov_ops *ops, struct wire_addr *a)
{
	for (char *item = text, *comma; item; item = comma ? comma + 1 : NULL) {
		wimm_status st;

		comma = strchr(item, ',');
		if (comma)
			*comma = '\0';
		if (a->nic_count == WIMM_MAX_NICS) {
			error_text_set("more than %d NICs in one address", WIMM_MAX_NICS);
			return WIMM_E_PARSE;
		}
		st = ops->addr_parse(item, &a->nic[a->nic_count]);
		if (st == WIMM_E_NOT_FOUND)
			error_text_set("\"%.*s\": the name does not resolve", QUOTE_CHARS, item);
		else if (st != WIMM_OK)
			error_text_set("\"%.*s\": not a peer address of provider %s", QUOTE_CHARS,
			               item, ops->name);
		if (st != WIMM_OK)
			return st;
		a->nic_count++;
	}
	return WIMM_OK;
}

wimm_status wire_addr_parse(const char *text, struct wire_addr *out)
{
	char copy[WIMM_NET_ADDR_MAX_TEXT], *nics = copy, *hash;
	struct wire_addr a = { .nic_count = 0 };
	size_t len_bytes = strnlen(text, sizeof(copy));
	const struct prov_ops *ops;
	wimm_status st;

	if (len_bytes == sizeof(copy)) {
		error_text_set("address text of %d bytes or more", WIMM_NET_ADDR_MAX_TEXT);
		return WIMM_E_PARSE;
	}
	memcpy(copy, text, len_bytes + 1);
	hash = strchr(copy, '#');
	if (hash) {
		*hash = '\0';
		st = parse_instance(hash + 1, a.instance);
		if (st != WIMM_OK)
			return st;
	}
	ops = parse_provider(&nics);
	if (!ops) {
		error_text_set("plain addresses need provider " PLAIN_PROVIDER
		               ", which this build does not have");
		return WIMM_E_NOT_FOUND;
	}
	memcpy(a.provider, ops->name, strnlen(ops->name, sizeof(a.provider) - 1));
	st = parse_nics(nics, ops, &a);
	if (st != WIMM_OK)
		return st;
	*out = a;
	return WIMM_OK;
}
