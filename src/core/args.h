/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CORE_ARGS_H
#define CORE_ARGS_H

/* Argument structs of the API: each begins with its size and its flags and ends in, or holds,
 * `reserved` fields that must be zero. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <wimm/status.h>

static inline bool args_zero(const uint64_t *reserved, size_t count)
{
	uint64_t all = 0;

	for (size_t i = 0; i < count; i++)
		all |= reserved[i];
	return all == 0;
}

/* Whether a struct that is there has the right size, no unknown flag and nothing in reserve. */
#define ARGS_GOOD(arg, allowed)                                                                    \
	((arg)->size == sizeof(*(arg)) && ((arg)->flags & ~(uint32_t)(allowed)) == 0 &&            \
	 args_zero((arg)->reserved, sizeof((arg)->reserved) / sizeof((arg)->reserved[0])))

/* E_INVAL for a struct that is NULL or not good, and in words why. `name` as the headers have it,
 * without "struct". Off the hot path. */
#define ARGS_REFUSED(arg, name, allowed)                                                           \
	args_refused(name, arg, sizeof(*(arg)),                                                    \
	             (arg) != NULL ? (arg)->flags & ~(uint32_t)(allowed) : 0)

wimm_status args_refused(const char *name, const void *arg, size_t size, uint32_t unknown_flags);
/* E_INVAL for a pointer that may not be NULL, named as in the header. */
wimm_status args_null(const char *name);

#endif
