/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/hist.h"

#include <string.h>

void hist_clear(struct hist *h)
{
	memset(h, 0, sizeof(*h));
	h->min_ns = UINT64_MAX;
}

static uint32_t bucket_of(uint64_t ns)
{
	uint32_t top = ns != 0 ? 63u - (uint32_t)__builtin_clzll(ns) : 0;

	if (top < 6)
		return (uint32_t)ns;
	return (top - 5) * HIST_SUB + (uint32_t)((ns >> (top - 6)) & (HIST_SUB - 1));
}

/* Middle of a bucket. */
static double value_of(uint32_t bucket)
{
	uint32_t shift = bucket / HIST_SUB;
	uint64_t low = bucket % HIST_SUB;

	if (shift == 0)
		return (double)low;
	return ((double)(low + HIST_SUB) + 0.5) * (double)(UINT64_C(1) << (shift - 1));
}

void hist_add(struct hist *h, uint64_t ns)
{
	h->count++;
	h->sum_ns += ns;
	h->min_ns = ns < h->min_ns ? ns : h->min_ns;
	h->max_ns = ns > h->max_ns ? ns : h->max_ns;
	h->bucket[bucket_of(ns)]++;
}

double hist_us(const struct hist *h, double q)
{
	uint64_t seen = 0;
	double value;

	if (h->count == 0)
		return 0;
	for (uint32_t i = 0; i < HIST_BUCKETS; i++) {
		seen += h->bucket[i];
		if ((double)seen < q * (double)h->count || seen == 0)
			continue;
		value = value_of(i);
		if (value < (double)h->min_ns)
			value = (double)h->min_ns;
		if (value > (double)h->max_ns)
			value = (double)h->max_ns;
		return value * 1e-3;
	}
	return (double)h->max_ns * 1e-3;
}

double hist_mean_us(const struct hist *h)
{
	return h->count != 0 ? (double)h->sum_ns / (double)h->count * 1e-3 : 0;
}
