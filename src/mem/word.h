/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MEM_WORD_H
#define MEM_WORD_H

/* 64-bit words that the host and kernels of a GPU may read and write, each on a cache line of its
 * own. They lie in host memory, in chunks that are pinned once the process uses CUDA; until then
 * they are ordinary memory, and nothing of CUDA is touched. Those for one card lie in its own
 * memory where GDRCopy is there (gdr.h), and have two addresses then. Thread: any. */

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct mem_word {
	uint64_t *host;
	uint64_t card; /* for kernels of the card; the same address, unless: */
	bool in_card;
};

/* Zero. NULL: out of memory. */
uint64_t *mem_word_alloc(void);
void mem_word_free(uint64_t *word); /* NULL is fine */
/* Make it reachable for the process's GPUs if it uses any. Returns whether it is. */
bool mem_word_pin(const uint64_t *word);
/* Zero, for kernels of a device that this process uses. False: out of memory. */
bool mem_word_alloc_on(int device, struct mem_word *out);
/* A live word's other address. */
struct mem_word mem_word_find(uint64_t *host);

/* Chunks of words in memory of cards. Zero: there is nothing to look after. */
extern _Atomic uint32_t mem_word_card_chunks;
void mem_word_store_in_card(uint64_t *word, uint64_t value);

/* Any word, of the application's too: release, with an acquire of whoever reads it. */
static inline void mem_word_store(uint64_t *word, uint64_t value)
{
	/* Relaxed: who knows a word in a card has allocated it before. */
	if (__builtin_expect(atomic_load_explicit(&mem_word_card_chunks, memory_order_relaxed) != 0,
	                     0))
		mem_word_store_in_card(word, value);
	else
		__atomic_store_n(word, value, __ATOMIC_RELEASE);
}

#endif
