/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MEM_WORD_H
#define MEM_WORD_H

/* 64-bit words of host memory that kernels of a GPU may read and write too, each on a cache line of
 * its own. They come from chunks that are pinned once the process uses CUDA; until then they are
 * ordinary memory, and nothing of CUDA is touched. Thread: any. */

#include <stdbool.h>
#include <stdint.h>

/* Zero. NULL: out of memory. */
uint64_t *mem_word_alloc(void);
void mem_word_free(uint64_t *word); /* NULL is fine */
/* Make it reachable for the process's GPUs if it uses any. Returns whether it is. */
bool mem_word_pin(const uint64_t *word);

#endif
