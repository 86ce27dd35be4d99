/* SPDX-License-Identifier: Apache-2.0 */
#include "plat/numa.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"

enum { SYSFS_TEXT_BYTES = 4096, SYSFS_PATH_BYTES = 256 };

/* The whole of a small sysfs file as text; false when there is none. */
static bool read_text(const char *path, char *out, size_t cap_bytes)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t len;

	if (fd < 0)
		return false;
	len = read(fd, out, cap_bytes - 1);
	close(fd);
	if (len < 0)
		return false;
	out[len] = '\0';
	return true;
}

int numa_node_of_netdev(const char *ifname)
{
	char path[SYSFS_PATH_BYTES];
	char text[32];
	long node;
	char *end;
	int len;

	/* A name is a path component here, and may come from a user. */
	if (strchr(ifname, '/') || ifname[0] == '.')
		return NUMA_NODE_NONE;
	len = snprintf(path, sizeof(path), "/sys/class/net/%s/device/numa_node", ifname);
	if (len < 0 || (size_t)len >= sizeof(path) || !read_text(path, text, sizeof(text)))
		return NUMA_NODE_NONE;
	node = strtol(text, &end, 10);
	return end == text || node < 0 || node > 65535 ? NUMA_NODE_NONE : (int)node;
}

/* One decimal number at *at, which moves behind it. */
static wimm_status parse_cpu(const char **at, size_t *out)
{
	size_t cpu = 0;

	if (!isdigit((unsigned char)**at))
		return WIMM_E_PARSE;
	for (; isdigit((unsigned char)**at); (*at)++) {
		cpu = cpu * 10 + (size_t)(**at - '0');
		if (cpu >= CPU_SETSIZE)
			return WIMM_E_RANGE;
	}
	*out = cpu;
	return WIMM_OK;
}

wimm_status numa_parse_cpulist(const char *text, cpu_set_t *out)
{
	wimm_status st;
	cpu_set_t cpus;

	CPU_ZERO(&cpus);
	while (*text != '\0' && *text != '\n') {
		size_t first;
		size_t last;

		st = parse_cpu(&text, &first);
		if (st != WIMM_OK)
			return st;
		last = first;
		if (*text == '-') {
			text++;
			st = parse_cpu(&text, &last);
			if (st != WIMM_OK)
				return st;
		}
		if (last < first || (*text != ',' && *text != '\0' && *text != '\n'))
			return WIMM_E_PARSE;
		if (*text == ',')
			text++;
		for (size_t cpu = first; cpu <= last; cpu++)
			CPU_SET(cpu, &cpus);
	}
	*out = cpus;
	return WIMM_OK;
}

wimm_status numa_cpus_of_node(int node, cpu_set_t *out)
{
	char path[SYSFS_PATH_BYTES];
	char text[SYSFS_TEXT_BYTES];
	cpu_set_t allowed;
	cpu_set_t cpus;

	if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) {
		LOG_ERROR("sched_getaffinity: %s", strerror(errno));
		return WIMM_E_SYSTEM;
	}
	*out = allowed;
	if (node < 0)
		return WIMM_OK;
	snprintf(path, sizeof(path), "/sys/devices/system/node/node%d/cpulist", node);
	if (!read_text(path, text, sizeof(text)) || numa_parse_cpulist(text, &cpus) != WIMM_OK)
		return WIMM_OK;
	CPU_AND(&cpus, &cpus, &allowed);
	if (CPU_COUNT(&cpus) > 0)
		*out = cpus;
	return WIMM_OK;
}
