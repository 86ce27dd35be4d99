/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PLAT_WAKE_H
#define PLAT_WAKE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "wimm/status.h"

/* Wakes one sleeping consumer; free of system calls while the consumer is awake.
 *
 * Consumer:                                   Producer:
 *   wake_announce(w);                           publish the work;
 *   if (there is work) wake_cancel(w);          wake_signal(w);
 *   else wake_wait(w, deadline), or poll wake_fd(w) among others, then wake_drain(w);
 *
 * Either the producer sees the announcement and writes to the descriptor, or the consumer's look
 * after announcing sees the work. A wake-up may come without work; none is lost. */
struct wake {
	int fd;                                 /* fixed after init */
	_Alignas(64) _Atomic uint32_t sleeping; /* shared by the consumer and all producers */
};

/* Returns OK or E_SYSTEM (descriptor limit). */
WIMM_MUST_CHECK wimm_status wake_init(struct wake *w);
void wake_fini(struct wake *w);

/* Any thread, after its work is published. Blocks: no. */
void wake_signal(struct wake *w);
/* The consumer itself, to find its work again though it has announced sleep. */
static inline void wake_signal_own(struct wake *w)
{
	/* Relaxed: it wrote the 1; a producer that took it since has signalled. */
	if (atomic_load_explicit(&w->sleeping, memory_order_relaxed) != 0)
		wake_signal(w);
}
/* Also when the consumer has not announced: for descriptors that somebody else polls. */
void wake_signal_always(struct wake *w);

/* Consumer only. */
void wake_announce(struct wake *w);
void wake_cancel(struct wake *w);
/* Sleeps until signalled or until deadline_ns (of clock_now_ns), then drains and cancels.
 * Returns whether it was signalled. Call wake_announce and look for work first. */
bool wake_wait(struct wake *w, uint64_t deadline_ns);
/* Makes the descriptor unreadable again. */
void wake_drain(struct wake *w);
/* Readable once signalled; for poll and epoll. */
int wake_fd(const struct wake *w);

#endif
