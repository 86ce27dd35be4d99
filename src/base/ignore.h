/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_IGNORE_H
#define BASE_IGNORE_H

#include <wimm/status.h>

/* For the few calls whose failure changes nothing for the caller; say why beside it. */
static inline void status_ignore(wimm_status st)
{
	(void)st;
}

#endif
