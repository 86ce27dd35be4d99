/* SPDX-License-Identifier: Apache-2.0 */
#include "plat/clock.h"

#include <stdbool.h>
#include <time.h>

#include "base/assert.h"

uint64_t clock_now_ns(void)
{
	struct timespec ts;

	/* This clock exists on every Linux, so a failure is a mistake of ours. */
	ASSERT(clock_gettime(CLOCK_MONOTONIC, &ts) == 0);
	return (uint64_t)ts.tv_sec * CLOCK_NS_PER_S + (uint64_t)ts.tv_nsec;
}

#if defined(__x86_64__)
/* It may differ between CPUs or jump: then it is far off, and the clock is read. */
static bool fresh(struct clock_cache *cache)
{
	uint64_t ticks = __builtin_ia32_rdtsc();

	if (cache->now_ns != 0 && ticks - cache->ticks < CLOCK_STALE_TICKS)
		return true;
	cache->ticks = ticks;
	return false;
}
#else
static bool fresh(struct clock_cache *cache)
{
	(void)cache;
	return false;
}
#endif

uint64_t clock_cached_ns(struct clock_cache *cache)
{
	if (!fresh(cache))
		cache->now_ns = clock_now_ns();
	return cache->now_ns;
}

uint64_t clock_deadline_ns(uint64_t now_ns, uint64_t after_ns)
{
	return after_ns > CLOCK_NEVER_NS - now_ns ? CLOCK_NEVER_NS : now_ns + after_ns;
}
