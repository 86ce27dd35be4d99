/* SPDX-License-Identifier: Apache-2.0 */
#include "prov/verbs/gid.h"

#include <arpa/inet.h>
#include <string.h>

enum reach {
	REACH_LINK, /* this Ethernet segment only */
	REACH_IPV6,
	REACH_IPV4,
};

bool verbs_gid_is_ipv4(const uint8_t *raw)
{
	static const uint8_t mapped[12] = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff };

	return memcmp(raw, mapped, sizeof(mapped)) == 0;
}

bool verbs_gid_is_zero(const uint8_t *raw)
{
	static const uint8_t zero[16];

	return memcmp(raw, zero, sizeof(zero)) == 0;
}

static enum reach reach_of(const uint8_t *raw)
{
	if (verbs_gid_is_ipv4(raw))
		return raw[12] == 169 && raw[13] == 254 ? REACH_LINK : REACH_IPV4;
	return raw[0] == 0xfe && (raw[1] & 0xc0) == 0x80 ? REACH_LINK : REACH_IPV6;
}

/* Greater is better; RoCE v1 does not pass a router whatever its address says. */
static int score(const struct ibv_gid_entry *e, bool ethernet)
{
	if (!ethernet)
		return 0;
	return (e->gid_type == IBV_GID_TYPE_ROCE_V2 ? 10 : 0) + (int)reach_of(e->gid.raw);
}

const struct ibv_gid_entry *verbs_gid_choose(const struct ibv_gid_entry *entries, size_t count,
                                             uint32_t port, bool ethernet, int wanted)
{
	const struct ibv_gid_entry *best = NULL;

	for (size_t i = 0; i < count; i++) {
		const struct ibv_gid_entry *e = &entries[i];

		if (e->port_num != port || verbs_gid_is_zero(e->gid.raw))
			continue;
		if (wanted >= 0 && e->gid_index != (uint32_t)wanted)
			continue;
		if (!best || score(e, ethernet) > score(best, ethernet) ||
		    (score(e, ethernet) == score(best, ethernet) && e->gid_index < best->gid_index))
			best = e;
	}
	return best;
}

void verbs_gid_text(const uint8_t *raw, char out[VERBS_GID_TEXT_BYTES])
{
	const char *text;

	if (verbs_gid_is_ipv4(raw))
		text = inet_ntop(AF_INET, raw + 12, out, VERBS_GID_TEXT_BYTES);
	else
		text = inet_ntop(AF_INET6, raw, out, VERBS_GID_TEXT_BYTES);
	if (!text)
		out[0] = '\0';
}

const char *verbs_gid_kind(const struct ibv_gid_entry *entry, bool ethernet)
{
	static const char *const v2[] = { "RoCE v2, link-local", "RoCE v2, IPv6", "RoCE v2, IPv4" };

	if (!ethernet)
		return "InfiniBand";
	if (entry->gid_type != IBV_GID_TYPE_ROCE_V2)
		return "RoCE v1";
	return v2[reach_of(entry->gid.raw)];
}
