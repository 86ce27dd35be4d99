/* SPDX-License-Identifier: Apache-2.0 */
#include "prov/tcp/nics.h"

#include "plat/numa.h"

#include <ifaddrs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Up, with a carrier, and an address of a family we speak. */
static bool usable(const struct ifaddrs *ifa)
{
	const unsigned int want = IFF_UP | IFF_RUNNING;

	return ifa->ifa_addr && (ifa->ifa_flags & want) == want &&
	       (ifa->ifa_addr->sa_family == AF_INET || ifa->ifa_addr->sa_family == AF_INET6);
}

static void copy_addr(const struct sockaddr *from, union tcp_sockaddr *out)
{
	memset(out, 0, sizeof(*out));
	if (from->sa_family == AF_INET)
		memcpy(&out->v4, from, sizeof(out->v4));
	else
		memcpy(&out->v6, from, sizeof(out->v6));
}

static bool link_local(const union tcp_sockaddr *sa)
{
	return sa->any.sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&sa->v6.sin6_addr);
}

static bool has_v4(const struct ifaddrs *list, const char *name)
{
	for (const struct ifaddrs *ifa = list; ifa; ifa = ifa->ifa_next) {
		if (usable(ifa) && ifa->ifa_addr->sa_family == AF_INET &&
		    strcmp(ifa->ifa_name, name) == 0)
			return true;
	}
	return false;
}

/* Whether an earlier entry of the list has already given an IPv6 address of this interface. */
static bool v6_taken(const struct ifaddrs *list, const struct ifaddrs *until)
{
	for (const struct ifaddrs *ifa = list; ifa != until; ifa = ifa->ifa_next) {
		union tcp_sockaddr sa;

		if (!usable(ifa) || ifa->ifa_addr->sa_family != AF_INET6 ||
		    strcmp(ifa->ifa_name, until->ifa_name) != 0)
			continue;
		copy_addr(ifa->ifa_addr, &sa);
		if (!link_local(&sa))
			return true;
	}
	return false;
}

static uint32_t list_kind(const struct ifaddrs *list, bool loopback, char (*out)[PROV_TEXT_BYTES],
                          uint32_t max)
{
	uint32_t count = 0;

	for (const struct ifaddrs *ifa = list; ifa && count < max; ifa = ifa->ifa_next) {
		union tcp_sockaddr sa;

		if (!usable(ifa) || !!(ifa->ifa_flags & IFF_LOOPBACK) != loopback)
			continue;
		copy_addr(ifa->ifa_addr, &sa);
		if (link_local(&sa))
			continue;
		if (sa.any.sa_family == AF_INET6 &&
		    (has_v4(list, ifa->ifa_name) || v6_taken(list, ifa)))
			continue;
		if (tcp_sockaddr_format(&sa, out[count], PROV_TEXT_BYTES) == WIMM_OK)
			count++;
	}
	return count;
}

uint32_t tcp_op_list_nics(char (*out)[PROV_TEXT_BYTES], uint32_t max)
{
	struct ifaddrs *list;
	uint32_t count;

	if (getifaddrs(&list) != 0)
		return 0;
	count = list_kind(list, false, out, max);
	if (count == 0)
		count = list_kind(list, true, out, max);
	freeifaddrs(list);
	return count;
}

bool tcp_nic_by_name(const char *name, union tcp_sockaddr *out)
{
	const struct ifaddrs *best = NULL;
	struct ifaddrs *list;

	if (getifaddrs(&list) != 0)
		return false;
	for (const struct ifaddrs *ifa = list; ifa; ifa = ifa->ifa_next) {
		if (!usable(ifa) || strcmp(ifa->ifa_name, name) != 0)
			continue;
		if (!best ||
		    (best->ifa_addr->sa_family == AF_INET6 && ifa->ifa_addr->sa_family == AF_INET))
			best = ifa;
	}
	if (best)
		copy_addr(best->ifa_addr, out);
	freeifaddrs(list);
	return best != NULL;
}

static uint64_t link_speed(const char *name)
{
	char path[64 + IF_NAMESIZE];
	char line[32];
	long mbit = 0;
	FILE *file;

	(void)snprintf(path, sizeof(path), "/sys/class/net/%s/speed", name);
	file = fopen(path, "re");
	if (!file)
		return 0;
	if (fgets(line, sizeof(line), file))
		mbit = strtol(line, NULL, 10);
	(void)fclose(file);
	return mbit > 0 ? (uint64_t)mbit * 125000 : 0; /* virtual interfaces say -1, or nothing */
}

static bool same_host(const struct sockaddr *a, const union tcp_sockaddr *b)
{
	union tcp_sockaddr sa;

	if (a->sa_family != b->any.sa_family)
		return false;
	copy_addr(a, &sa);
	if (a->sa_family == AF_INET)
		return sa.v4.sin_addr.s_addr == b->v4.sin_addr.s_addr;
	return memcmp(&sa.v6.sin6_addr, &b->v6.sin6_addr, sizeof(sa.v6.sin6_addr)) == 0 &&
	       (b->v6.sin6_scope_id == 0 || sa.v6.sin6_scope_id == b->v6.sin6_scope_id);
}

void tcp_nic_describe(const union tcp_sockaddr *sa, struct tcp_nic_info *out)
{
	struct ifaddrs *list;

	*out = (struct tcp_nic_info){ .numa_node = NUMA_NODE_NONE };
	if (getifaddrs(&list) != 0)
		return;
	for (const struct ifaddrs *ifa = list; ifa; ifa = ifa->ifa_next) {
		if (!usable(ifa) || !same_host(ifa->ifa_addr, sa))
			continue;
		(void)snprintf(out->name, sizeof(out->name), "%s", ifa->ifa_name);
		out->link_bytes_per_s = link_speed(ifa->ifa_name);
		out->numa_node = numa_node_of_netdev(ifa->ifa_name);
		break;
	}
	freeifaddrs(list);
}
