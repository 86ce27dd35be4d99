/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_ALLOC_H
#define BASE_ALLOC_H

#include <stddef.h>
#include <stdint.h>

/* All memory of the library comes from here, so that tests can count it and make any allocation
 * fail. Thread: any. NULL means out of memory; size 0 gives a unique pointer. */
void *mem_alloc(size_t size_bytes);
/* Zeroed; count * size_bytes is checked for overflow. */
void *mem_calloc(size_t count, size_t size_bytes);
/* align_bytes: a power of two. Zeroed. */
void *mem_alloc_aligned(size_t align_bytes, size_t size_bytes);
/* Keeps the old block when it returns NULL. */
void *mem_realloc(void *ptr, size_t size_bytes);
void mem_free(void *ptr);

/* Live memory of the whole process; a test compares before and after. */
uint64_t mem_live_blocks(void);
uint64_t mem_live_bytes(void);

/* Test hook: the n-th allocation from now on fails, once (1 = the next); 0 switches it off. */
void mem_fail_nth(uint64_t n);
/* Whether the failure asked for has been delivered: a sweep ends when it has not. */
int mem_fail_fired(void);

#endif
