/* SPDX-License-Identifier: Apache-2.0 */
#include "kv/mem.h"

#include <stdatomic.h>
#include <stdlib.h>

/* Relaxed everywhere: they are counters, nothing is published through them. */
static _Atomic uint64_t live_blocks;
static _Atomic uint64_t fail_at; /* allocations until the one that fails; 0 = none asked for */
static _Atomic int fail_fired;

static int must_fail(void)
{
	uint64_t left = atomic_load_explicit(&fail_at, memory_order_relaxed);

	while (left != 0) {
		if (!atomic_compare_exchange_weak_explicit(
			    &fail_at, &left, left - 1, memory_order_relaxed, memory_order_relaxed))
			continue;
		if (left != 1)
			return 0;
		atomic_store_explicit(&fail_fired, 1, memory_order_relaxed);
		return 1;
	}
	return 0;
}

void *kv_calloc(size_t count, size_t size_bytes)
{
	void *ptr = NULL;

	/* Asked first: a sanitizer's calloc does not return from an overflow. */
	if (must_fail() || (size_bytes != 0 && count > SIZE_MAX / size_bytes))
		return NULL;
	ptr = calloc(count != 0 ? count : 1, size_bytes != 0 ? size_bytes : 1);
	if (ptr != NULL)
		atomic_fetch_add_explicit(&live_blocks, 1, memory_order_relaxed);
	return ptr;
}

void kv_free(void *ptr)
{
	if (ptr != NULL)
		atomic_fetch_sub_explicit(&live_blocks, 1, memory_order_relaxed);
	free(ptr);
}

uint64_t kv_live_blocks(void)
{
	return atomic_load_explicit(&live_blocks, memory_order_relaxed);
}

void kv_fail_nth(uint64_t n)
{
	atomic_store_explicit(&fail_fired, 0, memory_order_relaxed);
	atomic_store_explicit(&fail_at, n, memory_order_relaxed);
}

int kv_fail_fired(void)
{
	return atomic_load_explicit(&fail_fired, memory_order_relaxed);
}
