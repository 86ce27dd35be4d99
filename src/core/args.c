/* SPDX-License-Identifier: Apache-2.0 */
#include "core/args.h"

#include "core/error_text.h"

#include <inttypes.h>
#include <string.h>

wimm_status args_refused(const char *name, const void *arg, size_t size, uint32_t unknown_flags)
{
	uint32_t given;

	if (arg == NULL)
		return args_null(name);
	memcpy(&given, arg, sizeof(given)); /* each of them begins with it */
	if (given != size)
		error_text_set("%s: size is %" PRIu32 ", this library's is %zu: begin with its "
		               "_INIT",
		               name, given, size);
	else if (unknown_flags != 0)
		error_text_set("%s: unknown flags %#" PRIx32, name, unknown_flags);
	else
		error_text_set("%s: a reserved field is not 0", name);
	return WIMM_E_INVAL;
}

wimm_status args_null(const char *name)
{
	error_text_set("%s is NULL", name);
	return WIMM_E_INVAL;
}
