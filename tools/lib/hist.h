/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TOOLS_LIB_HIST_H
#define TOOLS_LIB_HIST_H

#include <stdint.h>

/* Durations in buckets whose width is 1/64 of their value, so that percentiles of any number of
 * samples take constant memory and are off by 1.6 % at most. */
#define HIST_SUB     64
#define HIST_BUCKETS (64 * HIST_SUB)

struct hist {
	uint64_t count;
	uint64_t sum_ns;
	uint64_t min_ns;
	uint64_t max_ns;
	uint64_t bucket[HIST_BUCKETS];
};

void hist_clear(struct hist *h);
void hist_add(struct hist *h, uint64_t ns);
/* The value that a share q (0..1) of the samples does not exceed, in us; 0 without samples. */
double hist_us(const struct hist *h, double q);
double hist_mean_us(const struct hist *h);

#endif
