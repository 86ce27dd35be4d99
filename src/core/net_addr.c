/* SPDX-License-Identifier: Apache-2.0 */
#include "core/error_text.h"
#include "core/wire.h"

wimm_status wimm_net_addr_to_string(const struct wimm_net_addr *addr, char *text, size_t text_bytes)
{
	struct wire_addr a;
	wimm_status st;

	if (!addr || !text || text_bytes == 0) {
		error_text_set("wimm_net_addr_to_string: no address or no room for its text");
		return WIMM_E_INVAL;
	}
	st = wire_addr_decode(addr, &a);
	if (st == WIMM_E_VERSION)
		error_text_set("address of format version %u, this library reads %d: update it",
		               wire_major(addr->bytes, addr->len_bytes), WIRE_MAJOR);
	else if (st != WIMM_OK)
		error_text_set("malformed address of %u bytes", addr->len_bytes);
	return st != WIMM_OK ? st : wire_addr_format(&a, text, text_bytes);
}

wimm_status wimm_net_addr_from_string(const char *text, struct wimm_net_addr *out)
{
	struct wire_addr a;
	wimm_status st;

	if (!text || !out) {
		error_text_set("wimm_net_addr_from_string: no text or nowhere to put the address");
		return WIMM_E_INVAL;
	}
	st = wire_addr_parse(text, &a);
	return st != WIMM_OK ? st : wire_addr_encode(&a, out);
}
