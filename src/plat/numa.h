/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PLAT_NUMA_H
#define PLAT_NUMA_H

#include <sched.h>

#include "wimm/status.h"

enum { NUMA_NODE_NONE = -1 };

/* NUMA node of a network interface; NUMA_NODE_NONE when it has none (loopback, virtual), the
 * machine has no NUMA, or there is no such interface. Blocks: reads sysfs. */
int numa_node_of_netdev(const char *ifname);

/* CPUs of a node that this process may use; of NUMA_NODE_NONE, or of a node it may not use at
 * all: every CPU it may use. Returns OK, E_SYSTEM (no CPU set readable). */
WIMM_MUST_CHECK wimm_status numa_cpus_of_node(int node, cpu_set_t *out);

/* Reads a CPU list such as "0-3,8,10-11". Returns OK, E_PARSE, E_RANGE (CPU 1024 or above). */
WIMM_MUST_CHECK wimm_status numa_parse_cpulist(const char *text, cpu_set_t *out);

#endif
