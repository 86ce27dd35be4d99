/* SPDX-License-Identifier: Apache-2.0 */
#include "fuzz.h"

#include "core/wire.h"

#include <stdlib.h>
#include <string.h>

static void check_ranges(const struct wire_msg *m)
{
	switch (m->type) {
	case WIRE_HELLO:
	case WIRE_HELLO_ACK:
		FUZZ_CHECK(m->u.hello.path_count <= WIRE_MAX_PATHS);
		FUZZ_CHECK(m->u.hello.self.nic_count <= WIMM_MAX_NICS);
		break;
	case WIRE_PATHS:
		FUZZ_CHECK(m->u.paths.path_count <= WIRE_MAX_PATHS);
		break;
	case WIRE_HEARTBEAT:
	case WIRE_RETIRE_ACK:
		FUZZ_CHECK(m->u.marks.path_count <= WIRE_MAX_PATHS);
		break;
	default:
		break;
	}
}

/* A session message. The length in the header is set right in every second input, which the
 * fuzzer would seldom manage on its own. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t *in, *once, *twice;
	uint32_t len = (uint32_t)size, once_len;
	struct wire_msg m;

	if (size > 65536)
		return 0;
	in = malloc(size ? size : 1);
	once = malloc(size ? size : 1);
	twice = malloc(size ? size : 1);
	FUZZ_CHECK(in && once && twice);
	memcpy(in, data, size);
	if (len >= WIRE_HEADER_BYTES && in[len - 1] % 2) {
		for (uint32_t i = 0; i < 4; i++)
			in[4 + i] = (uint8_t)((len - WIRE_HEADER_BYTES) >> (8 * i));
	}
	if (wire_decode(in, len, &m) == WIMM_OK) {
		check_ranges(&m);
		once_len = wire_encode(&m, once, len);
		FUZZ_CHECK(once_len != 0);
		FUZZ_CHECK(wire_decode(once, once_len, &m) == WIMM_OK);
		FUZZ_CHECK(wire_encode(&m, twice, len) == once_len);
		FUZZ_CHECK(memcmp(once, twice, once_len) == 0);
	}
	free(in);
	free(once);
	free(twice);
	return 0;
}
