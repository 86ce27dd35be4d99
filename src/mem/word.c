/* SPDX-License-Identifier: Apache-2.0 */
#include "mem/word.h"

#include "base/alloc.h"
#include "base/list.h"
#include "base/log.h"
#include "base/tsa.h"
#include "mem/gdr.h"
#include "plat/mutex.h"
#include "plat/thread.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
	CHUNK_BYTES = 64 << 10,
	CELL_BYTES = 64,
	CELLS = CHUNK_BYTES / CELL_BYTES,
};

struct chunk {
	struct list link;
	uint8_t *base;
	bool in_card; /* of area.device; else the host's */
	struct gdr_area area;
	pid_t pid; /* whose it is: a forked child has the list but not the memory */
	bool pinned;
	uint32_t used;
	uint64_t taken[CELLS / 64]; /* a bit a cell */
};

_Atomic uint32_t mem_word_card_chunks;

static struct mutex lock = MUTEX_INIT_FOR_CHILDREN;
static struct list chunks TSA(guarded_by(lock)) = { &chunks, &chunks };

static struct chunk *chunk_new(void)
{
	struct chunk *c = mem_calloc(1, sizeof(*c));
	void *base;

	if (!c)
		return NULL;
	base = mmap(NULL, CHUNK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	/* Pinned memory and copy-on-write do not go together: a forked child does without. */
	if (base == MAP_FAILED || madvise(base, CHUNK_BYTES, MADV_DONTFORK) != 0) {
		if (base != MAP_FAILED)
			(void)munmap(base, CHUNK_BYTES);
		mem_free(c);
		return NULL;
	}
	c->base = base;
	c->pid = getpid();
	list_init(&c->link);
	return c;
}

/* One in a card's memory. NULL: there is none to be had. */
static struct chunk *chunk_new_on(int device)
{
	struct chunk *c = mem_calloc(1, sizeof(*c));
	char text[MEM_CUDA_TEXT_BYTES];

	if (!c)
		return NULL;
	if (gdr_area_open(device, CHUNK_BYTES, &c->area, text, sizeof(text)) != WIMM_OK) {
		mem_free(c);
		return NULL;
	}
	c->base = c->area.host;
	c->pid = getpid();
	c->in_card = true;
	c->pinned = true;
	list_init(&c->link);
	atomic_fetch_add_explicit(&mem_word_card_chunks, 1, memory_order_relaxed);
	return c;
}

static void pin(struct chunk *c)
{
	const struct cuda_lib *lib;
	int device = c->pinned ? -1 : mem_cuda_active_device();
	cu_result code;

	if (device < 0 || mem_cuda_enter(device, &lib) != WIMM_OK)
		return;
	code = lib->host_register(c->base, CHUNK_BYTES, CU_HOST_REG_FLAGS);
	c->pinned = code == CU_OK;
	if (!c->pinned)
		LOG_WARN("cuda: %d bytes of words for kernels cannot be pinned: %s", CHUNK_BYTES,
		         cuda_lib_error(lib, code));
	mem_cuda_leave(lib);
}

static void chunk_free(struct chunk *c)
{
	const struct cuda_lib *lib;
	int device = c->pinned ? mem_cuda_active_device() : -1;

	if (c->in_card) {
		atomic_fetch_sub_explicit(&mem_word_card_chunks, 1, memory_order_relaxed);
		gdr_area_close(&c->area);
		mem_free(c);
		return;
	}
	if (device >= 0 && mem_cuda_enter(device, &lib) == WIMM_OK) {
		(void)lib->host_unregister(c->base);
		mem_cuda_leave(lib);
	}
	(void)munmap(c->base, CHUNK_BYTES);
	mem_free(c);
}

static uint64_t *take(struct chunk *c)
{
	for (uint32_t i = 0; i < CELLS; i++) {
		uint64_t *cell;

		if ((c->taken[i / 64] >> i % 64 & 1) != 0)
			continue;
		c->taken[i / 64] |= UINT64_C(1) << i % 64;
		c->used++;
		cell = (uint64_t *)(void *)(c->base + (size_t)i * CELL_BYTES);
		memset(cell, 0, CELL_BYTES);
		return cell;
	}
	return NULL;
}

/* device -1: of the host's. */
static uint64_t *get(int device)
{
	uint64_t *word = NULL;
	struct chunk *fresh;

	mutex_lock(&lock);
	LIST_FOR_EACH(it, &chunks) {
		struct chunk *c = LIST_ENTRY(it, struct chunk, link);
		int of = c->in_card ? c->area.device : -1;

		word = c->pid == getpid() && of == device ? take(c) : NULL;
		if (word)
			break;
	}
	if (!word) {
		fresh = device < 0 ? chunk_new() : chunk_new_on(device);
		if (fresh) {
			list_push_back(&chunks, &fresh->link);
			word = take(fresh);
		}
	}
	mutex_unlock(&lock);
	return word;
}

uint64_t *mem_word_alloc(void)
{
	uint64_t *word = get(-1);

	if (word)
		(void)mem_word_pin(word);
	return word;
}

static struct chunk *chunk_of(const uint64_t *word) TSA(requires_capability(lock))
{
	LIST_FOR_EACH(it, &chunks) {
		struct chunk *c = LIST_ENTRY(it, struct chunk, link);

		if (c->pid == getpid() && (uintptr_t)word - (uintptr_t)c->base < CHUNK_BYTES)
			return c;
	}
	return NULL;
}

bool mem_word_alloc_on(int device, struct mem_word *out)
{
	uint64_t *word = get(device);

	if (!word)
		word = mem_word_alloc();
	if (!word)
		return false;
	*out = mem_word_find(word);
	return true;
}

struct mem_word mem_word_find(uint64_t *host)
{
	struct mem_word word = { .host = host, .card = (uint64_t)(uintptr_t)host };
	struct chunk *c;

	mutex_lock(&lock);
	c = chunk_of(host);
	if (c && c->in_card) {
		word.in_card = true;
		word.card = c->area.card + (uint64_t)((uintptr_t)host - (uintptr_t)c->base);
	}
	mutex_unlock(&lock);
	return word;
}

/* Memory of a card is mapped so that the CPU gathers what it writes there: it leaves with the
 * second fence, and nothing from before comes after it because of the first. */
void mem_word_store_in_card(uint64_t *word, uint64_t value)
{
	plat_store_fence();
	__atomic_store_n(word, value, __ATOMIC_RELEASE);
	plat_store_fence();
}

bool mem_word_pin(const uint64_t *word)
{
	struct chunk *c;
	bool pinned = false;

	mutex_lock(&lock);
	c = chunk_of(word);
	if (c) {
		pin(c);
		pinned = c->pinned;
	}
	mutex_unlock(&lock);
	return pinned;
}

void mem_word_free(uint64_t *word)
{
	struct chunk *c;

	mutex_lock(&lock);
	c = word ? chunk_of(word) : NULL;
	if (c) {
		uint32_t i = (uint32_t)(((uintptr_t)word - (uintptr_t)c->base) / CELL_BYTES);

		c->taken[i / 64] &= ~(UINT64_C(1) << i % 64);
		if (--c->used == 0) {
			list_remove(&c->link);
			chunk_free(c);
		}
	}
	mutex_unlock(&lock);
}
