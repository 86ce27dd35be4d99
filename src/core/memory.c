/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the library's own making. */
#include "core/error_text.h"
#include "mem/shared.h"

#include <inttypes.h>
#include <string.h>

#include <wimm/region.h>

#define ALLOC_MAX_BYTES (UINT64_C(1) << 61)

wimm_status wimm_alloc(uint64_t len_bytes, const struct wimm_alloc_opts *opts, void **out)
{
	wimm_status st;
	int code = 0;

	error_text_clear();
	if (opts != NULL) {
		if (opts->size != sizeof(*opts) || opts->flags != 0)
			return WIMM_E_INVAL;
		for (size_t i = 0; i < sizeof(opts->reserved) / sizeof(opts->reserved[0]); i++)
			if (opts->reserved[i] != 0)
				return WIMM_E_INVAL;
	}
	if (out == NULL || len_bytes == 0 || len_bytes > ALLOC_MAX_BYTES) {
		error_text_set("%" PRIu64 " bytes were asked for; 1 to %" PRIu64 " are possible",
		               len_bytes, ALLOC_MAX_BYTES);
		return WIMM_E_INVAL;
	}
	st = mem_shared_alloc((size_t)len_bytes, out, &code);
	if (st != WIMM_OK)
		error_text_set("no shared memory of %" PRIu64 " bytes: %s", len_bytes,
		               strerror(code));
	return st;
}

wimm_status wimm_free(void *addr)
{
	return addr == NULL ? WIMM_OK : mem_shared_free(addr);
}
