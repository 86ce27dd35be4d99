/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PLAT_CODE_H
#define PLAT_CODE_H

#include <stdint.h>

/* This library's own code. A thread that has slept for milliseconds finds it gone from its core's
 * cache, and what comes then waits for it function by function. One that spins for what is due
 * asks for it beforehand, a little at each look. */
struct plat_code {
	uintptr_t first, end; /* both 0: not found */
	uintptr_t at;         /* what is asked for next */
};

#define PLAT_CODE_LINE_BYTES 64
#define PLAT_CODE_LINES      8 /* at a time */

void plat_code_find(struct plat_code *out);

/* Ask for the next few lines. */
static inline void plat_code_touch(struct plat_code *c)
{
	for (int i = 0; i < PLAT_CODE_LINES && c->at < c->end; i++) {
		__builtin_prefetch((const void *)c->at, 0, 2);
		c->at += PLAT_CODE_LINE_BYTES;
	}
	if (c->at >= c->end)
		c->at = c->first;
}

#endif
