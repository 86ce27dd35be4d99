/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CORE_STATS_H
#define CORE_STATS_H

#include <stdatomic.h>
#include <stdint.h>

/* Counters that any thread reads, all relaxed. */
struct worker_stats {
	_Atomic uint64_t ops_submitted, again, index_bytes; /* any thread writes */
	/* The worker writes, or where said the callback thread. */
	_Atomic uint64_t ops_done, ops_failed, bytes_written, writes_posted, imms_sent,
		imms_received;
	_Atomic uint64_t msgs_sent, msgs_received, retries, steps, sleeps, pending_legs,
		expectations;
	_Atomic uint64_t peers_up;
	_Atomic uint64_t callbacks; /* callback thread */
};
/* By a counter's one writer: a load and a store, since a locked addition costs as much as twenty
 * plain instructions and there are several a write. */
#define STAT_ADD(w, field, n)                                                                      \
	atomic_store_explicit(                                                                     \
		&(w)->stats.field,                                                                 \
		atomic_load_explicit(&(w)->stats.field, memory_order_relaxed) + (uint64_t)(n),     \
		memory_order_relaxed)
#define STAT_SUB(w, field, n) STAT_ADD(w, field, -(uint64_t)(n))
/* By one of several; the value before. */
#define STAT_ADD_SHARED(w, field, n)                                                               \
	atomic_fetch_add_explicit(&(w)->stats.field, (uint64_t)(n), memory_order_relaxed)
#define STAT_SUB_SHARED(w, field, n)                                                               \
	atomic_fetch_sub_explicit(&(w)->stats.field, (uint64_t)(n), memory_order_relaxed)

#endif
