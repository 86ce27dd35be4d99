/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_LIB_WIRE_SAMPLES_H
#define TESTS_LIB_WIRE_SAMPLES_H

#include "core/wire.h"

/* Values that the wire format can carry, for its tests and as seeds for fuzzing. The same arguments
 * give the same value; `variant` 0 is the smallest one, higher ones are longer. */

#define WIRE_SAMPLE_VARIANTS  4u
#define WIRE_SAMPLE_MAX_BYTES 4096u

void wire_sample_addr(uint32_t variant, struct wire_addr *out);
void wire_sample_desc(uint32_t variant, struct wire_desc *out);
void wire_sample_msg(enum wire_type type, uint32_t variant, struct wire_msg *out);

#endif
