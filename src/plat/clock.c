/* SPDX-License-Identifier: Apache-2.0 */
#include "plat/clock.h"

#include <time.h>

#include "base/assert.h"

uint64_t clock_now_ns(void)
{
	struct timespec ts;

	/* This clock exists on every Linux, so a failure is a mistake of ours. */
	ASSERT(clock_gettime(CLOCK_MONOTONIC, &ts) == 0);
	return (uint64_t)ts.tv_sec * CLOCK_NS_PER_S + (uint64_t)ts.tv_nsec;
}

uint64_t clock_deadline_ns(uint64_t now_ns, uint64_t after_ns)
{
	return after_ns > CLOCK_NEVER_NS - now_ns ? CLOCK_NEVER_NS : now_ns + after_ns;
}
