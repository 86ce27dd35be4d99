/* SPDX-License-Identifier: Apache-2.0 */
#include "fuzz.h"

#include "core/wire.h"

#include <string.h>

/* Bytes of a region descriptor. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct wimm_mr_desc bytes = { 0 }, once, twice;
	struct wire_desc d;

	bytes.len_bytes = (uint32_t)size;
	memcpy(bytes.bytes, data, size < sizeof(bytes.bytes) ? size : sizeof(bytes.bytes));
	if (wire_desc_decode(&bytes, &d) != WIMM_OK)
		return 0;
	FUZZ_CHECK(d.len_bytes != 0 && d.base + d.len_bytes > d.base && d.generation != 0);
	FUZZ_CHECK(d.owner.nic_count >= 1 && d.owner.nic_count <= WIMM_MAX_NICS);
	FUZZ_CHECK(wire_desc_encode(&d, &once) == WIMM_OK);
	/* The card may be left out; it is written always. */
	FUZZ_CHECK(once.len_bytes <=
	           bytes.len_bytes + (d.kind == WIRE_MEMORY_CUDA ? sizeof(d.card) : 0));
	FUZZ_CHECK(wire_desc_decode(&once, &d) == WIMM_OK);
	FUZZ_CHECK(wire_desc_encode(&d, &twice) == WIMM_OK);
	FUZZ_CHECK(memcmp(&once, &twice, sizeof(once)) == 0);
	return 0;
}
