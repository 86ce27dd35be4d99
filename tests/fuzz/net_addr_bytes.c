/* SPDX-License-Identifier: Apache-2.0 */
#include "fuzz.h"

#include "core/wire.h"

#include <string.h>

/* Bytes of an address: decoded and encoded again, printed and read again. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct wimm_net_addr bytes = { 0 }, once, twice, read;
	char text[WIMM_NET_ADDR_MAX_TEXT];
	struct wire_addr a;

	/* A length beyond the array is an input too. */
	bytes.len_bytes = (uint32_t)size;
	memcpy(bytes.bytes, data, size < sizeof(bytes.bytes) ? size : sizeof(bytes.bytes));
	if (wire_addr_decode(&bytes, &a) != WIMM_OK)
		return 0;
	FUZZ_CHECK(a.nic_count >= 1 && a.nic_count <= WIMM_MAX_NICS);
	FUZZ_CHECK(wire_addr_encode(&a, &once) == WIMM_OK);
	FUZZ_CHECK(once.len_bytes <= bytes.len_bytes);
	FUZZ_CHECK(wire_addr_decode(&once, &a) == WIMM_OK);
	FUZZ_CHECK(wire_addr_encode(&a, &twice) == WIMM_OK);
	FUZZ_CHECK(memcmp(&once, &twice, sizeof(once)) == 0);
	if (wimm_net_addr_to_string(&bytes, text, sizeof(text)) != WIMM_OK)
		return 0;
	FUZZ_CHECK(strlen(text) < sizeof(text));
	FUZZ_CHECK(wimm_net_addr_from_string(text, &read) == WIMM_OK);
	FUZZ_CHECK(memcmp(&once, &read, sizeof(once)) == 0);
	return 0;
}
