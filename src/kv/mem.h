/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KV_MEM_H
#define KV_MEM_H

#include <stddef.h>
#include <stdint.h>

/* All memory of this folder, so that tests can count it and make any allocation fail.
 * Thread: any. */
void *kv_calloc(size_t count, size_t size_bytes); /* zeroed; NULL: no memory, or overflow */
void kv_free(void *ptr);

/* Live blocks of the whole process. */
uint64_t kv_live_blocks(void);
/* Test hook: the n-th allocation from now on fails, once (1 = the next); 0 switches it off. */
void kv_fail_nth(uint64_t n);
/* Whether the failure asked for has been delivered. */
int kv_fail_fired(void);

#endif
