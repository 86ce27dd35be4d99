/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the library's own making. */
#include "core/args.h"
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
	if (opts != NULL && !ARGS_GOOD(opts, 0))
		return ARGS_REFUSED(opts, "wimm_alloc_opts", 0);
	if (out == NULL)
		return args_null("out");
	if (len_bytes == 0 || len_bytes > ALLOC_MAX_BYTES) {
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
	wimm_status st = addr == NULL ? WIMM_OK : mem_shared_free(addr);

	error_text_clear();
	if (st == WIMM_E_INVAL)
		error_text_set("%p is no allocation of wimm_alloc()", addr);
	else if (st == WIMM_E_BUSY)
		error_text_set("a region lies in the memory at %p: deregister it first", addr);
	return st;
}
