/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROV_VERBS_REGION_H
#define PROV_VERBS_REGION_H

/* Registered memory. A key has the device's local key in its upper and its remote key in its lower
 * half, so that a write needs no look-up on either side. */

#include "prov/verbs/dev.h"

wimm_status verbs_op_reg(struct prov_dev *dev, void *addr, uint64_t len_bytes, uint32_t flags,
                         uint64_t core_key, uint64_t *out_key, struct prov_error *error);
void verbs_op_dereg(struct prov_dev *dev, uint64_t key);
#define VERBS_LOCK_TEXT_BYTES 128

/* Why memory could not be pinned: the limit that is too low and how to lift it, or else (false) the
 * code in words. Queues of the device count against that limit as well. */
bool verbs_lock_limit(int code, char out[VERBS_LOCK_TEXT_BYTES]);
/* Pages of the host, or whatever else the device's driver takes. access: IBV_ACCESS_*. NULL: errno
 * says why. */
struct ibv_mr *verbs_region_pin(struct verbs_dev *dev, void *addr, uint64_t len_bytes,
                                unsigned access);
/* Release what is left. */
void verbs_regions_close(struct verbs_dev *dev);

#endif
