/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CORE_WIRE_PARTS_H
#define CORE_WIRE_PARTS_H

/* Pieces of the wire format that addresses, descriptors and messages share. The put functions
 * return false when the value is not one that may be sent, or when there is no room; the get
 * functions when the bytes are not one. */

#include "base/bytes.h"
#include "core/wire.h"

bool wire_instance_is_zero(const uint8_t *instance);
bool wire_put_addr(struct bw *w, const struct wire_addr *a);
bool wire_get_addr(struct br *r, struct wire_addr *out);
bool wire_put_sized_addr(struct bw *w, const struct wire_addr *a);
bool wire_get_sized_addr(struct br *r, struct wire_addr *out);

#endif
