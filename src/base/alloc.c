/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"

#include <malloc.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Statistics and a countdown: no memory is handed over through these, so all is relaxed. */
static _Atomic uint64_t live_blocks;
static _Atomic uint64_t live_bytes;
static _Atomic uint64_t fail_countdown;
static _Atomic int fail_fired;

static bool must_fail(void)
{
	uint64_t left = atomic_load_explicit(&fail_countdown, memory_order_relaxed);

	while (left != 0) {
		if (!atomic_compare_exchange_weak_explicit(&fail_countdown, &left, left - 1,
		                                           memory_order_relaxed,
		                                           memory_order_relaxed))
			continue;
		if (left != 1)
			return false;
		atomic_store_explicit(&fail_fired, 1, memory_order_relaxed);
		return true;
	}
	return false;
}

static void *counted(void *ptr)
{
	if (!ptr)
		return NULL;
	atomic_fetch_add_explicit(&live_blocks, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&live_bytes, malloc_usable_size(ptr), memory_order_relaxed);
	return ptr;
}

static void uncount(void *ptr)
{
	atomic_fetch_sub_explicit(&live_blocks, 1, memory_order_relaxed);
	atomic_fetch_sub_explicit(&live_bytes, malloc_usable_size(ptr), memory_order_relaxed);
}

void *mem_alloc(size_t size_bytes)
{
	if (must_fail())
		return NULL;
	return counted(malloc(size_bytes ? size_bytes : 1));
}

void *mem_calloc(size_t count, size_t size_bytes)
{
	size_t product_bytes;

	/* Asked here, since sanitizers end the process instead of returning NULL. */
	if (must_fail() || __builtin_mul_overflow(count, size_bytes, &product_bytes))
		return NULL;
	if (product_bytes == 0)
		count = size_bytes = 1;
	return counted(calloc(count, size_bytes));
}

void *mem_alloc_aligned(size_t align_bytes, size_t size_bytes)
{
	void *ptr = NULL;

	if (must_fail())
		return NULL;
	if (align_bytes < sizeof(void *))
		align_bytes = sizeof(void *);
	if (posix_memalign(&ptr, align_bytes, size_bytes ? size_bytes : 1) != 0)
		return NULL;
	memset(ptr, 0, size_bytes);
	return counted(ptr);
}

void *mem_realloc(void *ptr, size_t size_bytes)
{
	size_t old_bytes = ptr ? malloc_usable_size(ptr) : 0;
	void *moved;

	if (!ptr)
		return mem_alloc(size_bytes);
	if (must_fail())
		return NULL;
	moved = realloc(ptr, size_bytes ? size_bytes : 1);
	if (!moved)
		return NULL;
	atomic_fetch_add_explicit(&live_bytes, malloc_usable_size(moved) - old_bytes,
	                          memory_order_relaxed);
	return moved;
}

void mem_free(void *ptr)
{
	if (!ptr)
		return;
	uncount(ptr);
	free(ptr);
}

uint64_t mem_live_blocks(void)
{
	return atomic_load_explicit(&live_blocks, memory_order_relaxed);
}

uint64_t mem_live_bytes(void)
{
	return atomic_load_explicit(&live_bytes, memory_order_relaxed);
}

void mem_fail_nth(uint64_t n)
{
	atomic_store_explicit(&fail_fired, 0, memory_order_relaxed);
	atomic_store_explicit(&fail_countdown, n, memory_order_relaxed);
}

int mem_fail_fired(void)
{
	return atomic_load_explicit(&fail_fired, memory_order_relaxed);
}
