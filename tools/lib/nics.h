/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TOOLS_LIB_NICS_H
#define TOOLS_LIB_NICS_H

#include <cjson/cJSON.h>
#include <stdint.h>
#include <wimm/engine.h>

/* What the system says of a NIC; unknown: "", 0, -1. */
struct nic {
	char name[256]; /* as an engine takes it */
	char device[64];
	uint64_t link_mbit_s;
	uint64_t mtu_bytes;
	int numa_node;
};

struct nic_list {
	uint32_t count;
	struct nic nic[WIMM_MAX_NICS];
};

/* The NICs of a run: of `list`, else of the setting, else all that the provider finds. Dies when
 * there are none. */
void nics_find(const char *provider, const char *list, struct nic_list *out);
cJSON *nics_to_json(const struct nic_list *nics);
void nics_from_json(const cJSON *array, struct nic_list *out); /* dies of faults */

#endif
