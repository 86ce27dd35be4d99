/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROV_VERBS_GPU_H
#define PROV_VERBS_GPU_H

/* Memory of a GPU that the NIC reads and writes by itself. Two ways lead there, tried in this
 * order: a dma-buf of the range, which the GPU's driver exports and the NIC's takes; and peermem, a
 * kernel module that lets ibv_reg_mr() take the device's pointer. Where both are refused the core
 * sends such bytes through slots of the host. */

#include "prov/verbs/dev.h"

/* access: IBV_ACCESS_*. NULL: the error's text says what stands in the way of each.
 * Thread: any. Blocks: asks both drivers. */
struct ibv_mr *verbs_gpu_reg(struct verbs_dev *dev, void *addr, uint64_t len_bytes,
                             unsigned access, struct prov_error *error);
/* Worker: before completions are told: what they stand for is visible to the GPUs whose memory
 * peers write into. False: a GPU has failed, and the device with it. */
bool verbs_gpu_flush(struct verbs_dev *dev);
/* For people: which of the ways this machine has. */
void verbs_gpu_note(const struct verbs_lib *lib, char *out, size_t out_bytes);

#endif
