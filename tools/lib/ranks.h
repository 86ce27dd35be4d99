/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TOOLS_LIB_RANKS_H
#define TOOLS_LIB_RANKS_H

#include <stdbool.h>
#include <stdint.h>

/* What a launcher tells its processes: torchrun (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), Open
 * MPI's mpirun (OMPI_COMM_WORLD_*), srun (SLURM_*). */
struct ranks {
	const char *launcher;
	uint32_t rank;
	uint32_t count;
	char host[256]; /* of rank 0; "": unknown */
	uint16_t port;  /* 0: not told */
};

/* False: no launcher, or one process alone. */
bool ranks_find(struct ranks *out);
/* First host of a SLURM node list such as "n[08-11],m1": "n08". */
void ranks_first_node(const char *list, char *out, uint32_t out_bytes);

#endif
