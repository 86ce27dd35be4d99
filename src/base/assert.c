/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

void assert_failed(const char *cond, const char *file, int line)
{
	char text[256];
	int len = snprintf(text, sizeof(text), "wimm: %s:%d: broken invariant: %s\n", file, line,
	                   cond);

	/* Straight to the descriptor: the log's own state may be what is broken. */
	if (len > 0 && write(STDERR_FILENO, text,
	                     (size_t)len < sizeof(text) ? (size_t)len : sizeof(text) - 1) < 0)
		_exit(134);
	abort();
}
