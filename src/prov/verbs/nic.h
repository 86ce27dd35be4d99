/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROV_VERBS_NIC_H
#define PROV_VERBS_NIC_H

/* A device's port: found by name, with its GID, MTU and what the system knows about it. */

#include "prov/prov.h"
#include "prov/verbs/lib.h"

#include <stdbool.h>

struct verbs_nic {
	const struct verbs_lib *lib;
	struct ibv_context *ctx;
	struct ibv_device_attr attr;
	struct ibv_port_attr port_attr;
	struct ibv_gid_entry gid;
	uint8_t port;
	uint8_t mtu; /* enum ibv_mtu: what this end can take */
	bool ethernet;
	int numa_node;             /* -1: unknown */
	uint64_t link_bytes_per_s; /* 0: unknown */
	char device[64];
	char name[80]; /* "mlx5_0 port 1", for texts */
};

/* spec: "DEVICE", "DEVICE:PORT" or "DEVICE:PORT/GID_INDEX"; "" takes the first that works.
 * Returns OK, E_NOT_FOUND, E_UNSUPPORTED (no library), E_NIC_LOST (port down), E_LIMIT (MTU),
 * E_SYSTEM. Blocks: asks the kernel. */
WIMM_MUST_CHECK wimm_status verbs_nic_open(const char *spec, struct verbs_nic *out,
                                           struct prov_error *error);
void verbs_nic_close(struct verbs_nic *nic);
/* Whether the GID that was chosen still stands at its index. */
bool verbs_nic_gid_stands(const struct verbs_nic *nic);

/* The ops' entry: every active port as "DEVICE:PORT". */
uint32_t verbs_op_list_nics(char (*out)[PROV_TEXT_BYTES], uint32_t max);

#endif
