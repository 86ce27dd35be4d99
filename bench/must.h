/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BENCH_MUST_H
#define BENCH_MUST_H

/* For programs that drive engines; apart from util.h, since the floors know no library. */

#include <stdio.h>
#include <stdlib.h>

#include <wimm/engine.h>

/* Ends the program with the library's words unless a call has worked. */
static inline void must(wimm_status status, const char *what)
{
	if (status == WIMM_OK)
		return;
	(void)fprintf(stderr, "%s: %s: %s\n", what, wimm_status_name(status),
	              wimm_last_error_text());
	exit(1);
}

#endif
