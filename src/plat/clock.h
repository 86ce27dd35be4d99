/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PLAT_CLOCK_H
#define PLAT_CLOCK_H

#include <stdint.h>

/* Deadlines are points of clock_now_ns(); this one never comes. */
#define CLOCK_NEVER_NS UINT64_MAX

#define CLOCK_NS_PER_US UINT64_C(1000)
#define CLOCK_NS_PER_MS UINT64_C(1000000)
#define CLOCK_NS_PER_S  UINT64_C(1000000000)

/* Monotonic, from an arbitrary start. Thread: any. Blocks: no. */
uint64_t clock_now_ns(void);

/* The same for one thread that asks again and again: what was read last, as long as the CPU's own
 * counter says that this was within CLOCK_STALE_TICKS, about a microsecond. Where there is no
 * such counter the clock is read every time. */
#define CLOCK_STALE_TICKS 2000u
struct clock_cache {
	uint64_t now_ns;
	uint64_t ticks;
};
uint64_t clock_cached_ns(struct clock_cache *cache);

/* now + after, CLOCK_NEVER_NS where it would overflow. */
uint64_t clock_deadline_ns(uint64_t now_ns, uint64_t after_ns);

#endif
