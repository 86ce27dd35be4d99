/* SPDX-License-Identifier: Apache-2.0 */
#include "fuzz.h"

#include "core/wire.h"

#include <string.h>

/* Text of an address: what is read prints as a text that reads back the same. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char text[2 * WIMM_NET_ADDR_MAX_TEXT], printed[WIMM_NET_ADDR_MAX_TEXT];
	struct wimm_net_addr first, second;

	if (size >= sizeof(text))
		return 0;
	memcpy(text, data, size);
	text[size] = '\0';
	if (wimm_net_addr_from_string(text, &first) != WIMM_OK) {
		FUZZ_CHECK(wimm_last_error_text()[0] != '\0');
		return 0;
	}
	FUZZ_CHECK(wimm_net_addr_to_string(&first, printed, sizeof(printed)) == WIMM_OK);
	FUZZ_CHECK(wimm_net_addr_from_string(printed, &second) == WIMM_OK);
	FUZZ_CHECK(memcmp(&first, &second, sizeof(first)) == 0);
	return 0;
}
