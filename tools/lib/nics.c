/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/nics.h"

#include "lib/about.h"
#include "lib/channel.h"
#include "lib/util.h"

#include <arpa/inet.h>
#include <glob.h>
#include <ifaddrs.h>
#include <inttypes.h>
#include <net/if.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* --- what /sys says --- */

/* The number at the start of the first file that the pattern matches; fallback: none. */
static int64_t sys_number(const char *pattern, const char *device, int64_t fallback)
{
	char path[256];
	int64_t value = fallback;
	glob_t found;

	(void)snprintf(path, sizeof(path), pattern, device);
	if (glob(path, 0, NULL, &found) != 0)
		return fallback;
	if (found.gl_pathc != 0) {
		FILE *file = fopen(found.gl_pathv[0], "re");
		char line[64], *end = line;

		if (file != NULL) {
			if (fgets(line, sizeof(line), file) != NULL)
				value = strtoll(line, &end, 10);
			if (end == line)
				value = fallback;
			(void)fclose(file);
		}
	}
	globfree(&found);
	return value;
}

static uint64_t or_unknown(int64_t value)
{
	return value > 0 ? (uint64_t)value : 0;
}

static void look_up_interface(struct nic *n)
{
	n->mtu_bytes = or_unknown(sys_number("/sys/class/net/%s/mtu", n->device, 0));
	n->link_mbit_s = or_unknown(sys_number("/sys/class/net/%s/speed", n->device, 0));
	n->numa_node = (int)sys_number("/sys/class/net/%s/device/numa_node", n->device, -1);
}

static void look_up_rdma(struct nic *n)
{
	n->mtu_bytes = or_unknown(
		sys_number("/sys/class/infiniband/%s/device/net/*/mtu", n->device, 0));
	n->link_mbit_s = 1000 * or_unknown(sys_number("/sys/class/infiniband/%s/ports/1/rate",
	                                              n->device, 0));
	n->numa_node = (int)sys_number("/sys/class/infiniband/%s/device/numa_node", n->device, -1);
}

/* "HOST:PORT", "[HOST]:PORT" or "HOST" without the port and the brackets. */
static void host_of(const char *name, char *out, size_t out_bytes)
{
	const char *from = name[0] == '[' ? name + 1 : name;
	const char *colon = strchr(name, ':');
	size_t len = strlen(from);

	if (name[0] == '[')
		len = strcspn(from, "]");
	else if (colon != NULL && strchr(colon + 1, ':') == NULL)
		len = (size_t)(colon - name);
	(void)snprintf(out, out_bytes, "%.*s", (int)len, from);
}

/* The interface that has this address. */
static void find_interface(struct nic *n)
{
	char want[128], have[128];
	struct ifaddrs *all = NULL;

	host_of(n->name, want, sizeof(want));
	if (if_nametoindex(want) != 0) {
		(void)snprintf(n->device, sizeof(n->device), "%.60s", want);
	} else if (getifaddrs(&all) == 0) {
		for (struct ifaddrs *at = all; at != NULL; at = at->ifa_next) {
			socklen_t len = sizeof(struct sockaddr_in);

			if (at->ifa_addr == NULL)
				continue;
			if (at->ifa_addr->sa_family == AF_INET6)
				len = sizeof(struct sockaddr_in6);
			else if (at->ifa_addr->sa_family != AF_INET)
				continue;
			if (getnameinfo(at->ifa_addr, len, have, sizeof(have), NULL, 0,
			                NI_NUMERICHOST) == 0 &&
			    strcmp(have, want) == 0)
				(void)snprintf(n->device, sizeof(n->device), "%s", at->ifa_name);
		}
		freeifaddrs(all);
	}
	/* All of 127.0.0.0/8 is lo, whichever addresses it has. */
	if (n->device[0] == '\0' && strncmp(want, "127.", 4) == 0)
		(void)snprintf(n->device, sizeof(n->device), "lo");
}

static void add(struct nic_list *out, const char *provider, const char *name, size_t len)
{
	struct nic *n = &out->nic[out->count];

	if (out->count == WIMM_MAX_NICS || len == 0 || len >= sizeof(n->name))
		die("NIC list: 1 to %d names with commas between", WIMM_MAX_NICS);
	*n = (struct nic){ .numa_node = -1 };
	memcpy(n->name, name, len);
	out->count++;
	if (strcmp(provider, "tcp") == 0) {
		find_interface(n);
		if (n->device[0] != '\0')
			look_up_interface(n);
	} else if (strcmp(provider, "verbs") == 0) {
		len = strcspn(n->name, ":/");
		if (len >= sizeof(n->device))
			len = sizeof(n->device) - 1;
		memcpy(n->device, n->name, len); /* the rest is zero */
		look_up_rdma(n);
	}
}

void nics_find(const char *provider, const char *list, struct nic_list *out)
{
	char setting[600];
	cJSON *about = NULL;
	const cJSON *p, *nic;

	*out = (struct nic_list){ 0 };
	if (list == NULL) {
		about_setting("nics", setting, sizeof(setting));
		list = setting[0] != '\0' ? setting : NULL;
	}
	for (const char *at = list; at != NULL && *at != '\0';) {
		size_t len = strcspn(at, ",");

		add(out, provider, at, len);
		at += len + (at[len] == ',');
	}
	if (out->count == 0) {
		about = about_load();
		cJSON_ArrayForEach(p, cJSON_GetObjectItemCaseSensitive(about, "providers"))
		{
			if (strcmp(member_text(p, "name"), provider) != 0)
				continue;
			cJSON_ArrayForEach(nic, cJSON_GetObjectItemCaseSensitive(p, "nics"))
				add(out, provider, member_text(nic, "nic"),
			            strlen(member_text(nic, "nic")));
		}
		cJSON_Delete(about);
	}
	if (out->count == 0)
		die("provider %s finds no NIC on this machine", provider);
}

cJSON *nics_to_json(const struct nic_list *nics)
{
	cJSON *array = cJSON_CreateArray();

	for (uint32_t i = 0; i < nics->count; i++) {
		const struct nic *n = &nics->nic[i];
		cJSON *o = cJSON_CreateObject();

		if (array == NULL || o == NULL || !cJSON_AddItemToArray(array, o) ||
		    cJSON_AddStringToObject(o, "nic", n->name) == NULL ||
		    cJSON_AddStringToObject(o, "device", n->device) == NULL ||
		    cJSON_AddNumberToObject(o, "link_mbit_s", (double)n->link_mbit_s) == NULL ||
		    cJSON_AddNumberToObject(o, "mtu_bytes", (double)n->mtu_bytes) == NULL ||
		    cJSON_AddNumberToObject(o, "numa_node", n->numa_node) == NULL)
			die("out of memory");
	}
	return array;
}

void nics_from_json(const cJSON *array, struct nic_list *out)
{
	const cJSON *o;

	*out = (struct nic_list){ 0 };
	cJSON_ArrayForEach(o, array)
	{
		struct nic *n = &out->nic[out->count];

		if (out->count++ == WIMM_MAX_NICS)
			die("the other side has more than %d NICs", WIMM_MAX_NICS);
		(void)snprintf(n->name, sizeof(n->name), "%s", member_text(o, "nic"));
		(void)snprintf(n->device, sizeof(n->device), "%s", member_text(o, "device"));
		n->link_mbit_s = member_u64(o, "link_mbit_s", 0, UINT32_MAX);
		n->mtu_bytes = member_u64(o, "mtu_bytes", 0, UINT32_MAX);
		n->numa_node = (int)member_number(o, "numa_node");
	}
	if (out->count == 0)
		die("the other side names no NIC");
}
