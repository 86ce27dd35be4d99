/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROV_VERBS_REGION_H
#define PROV_VERBS_REGION_H

/* Registered memory. A key has the device's local key in its upper and its remote key in its lower
 * half, so that a write needs no look-up on either side. */

#include "prov/verbs/dev.h"

wimm_status verbs_op_reg(struct prov_dev *dev, void *addr, uint64_t len_bytes, uint32_t flags,
                         uint64_t core_key, uint64_t *out_key, struct prov_error *error);
void verbs_op_dereg(struct prov_dev *dev, uint64_t key);
/* Release what is left. */
void verbs_regions_close(struct verbs_dev *dev);

#endif
