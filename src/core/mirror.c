/* SPDX-License-Identifier: Apache-2.0 */
#include "core/mirror.h"

#include "base/alloc.h"
#include "core/engine.h"
#include "core/error_text.h"
#include "core/imm.h"
#include "mem/word.h"

#include <inttypes.h>
#include <stdatomic.h>

/* worker.mirrors: value -> this. */
struct mirror {
	uint32_t imm;
	uint64_t total;
	uint64_t *word;
};

/* Compilers' own atomics: the word is a plain one of the caller's. Release, with the acquire in
 * wimm_mirror_load(), or in whatever polls: the bytes of what is counted are there before it. */
static void show(const struct mirror *m)
{
	mem_word_store(m->word, m->total);
}

void mirror_arrived(struct worker *w, uint32_t imm, uint64_t count)
{
	struct mirror *m = w->last_mirror;

	if (w->mirrors.count == 0)
		return;
	if (m == NULL || m->imm != imm) {
		m = hash_find_ptr(&w->mirrors, imm);
		if (m == NULL)
			return;
		w->last_mirror = m;
	}
	m->total += count;
	show(m);
}

void mirror_close_all(struct worker *w)
{
	uint32_t cursor = 0;
	uint64_t key, value;

	while (hash_next(&w->mirrors, &cursor, &key, &value))
		mem_free((void *)(uintptr_t)value);
	hash_fini(&w->mirrors);
	w->last_mirror = NULL;
}

/* --- the calls --- */

struct mirror_call {
	struct mirror *mirror; /* the new one */
	uint32_t imm;
	uint64_t total;
	wimm_status status;
};

static void enable_on_worker(struct worker *w, void *arg) ON_WORKER
{
	struct mirror_call *c = arg;

	if (hash_find_ptr(&w->mirrors, c->imm) != NULL) {
		c->status = WIMM_E_BUSY;
		return;
	}
	c->status = hash_insert_ptr(&w->mirrors, c->imm, c->mirror);
	if (c->status != WIMM_OK)
		return;
	c->mirror->total = imm_count(w->imms, c->imm);
	show(c->mirror);
}

wimm_status wimm_mirror_enable(struct wimm_engine *engine, uint32_t imm, uint64_t *word)
{
	wimm_status st = engine_check(engine);
	struct mirror_call c = { .imm = imm };

	if (st != WIMM_OK)
		return st;
	if (word == NULL || (uintptr_t)word % sizeof(*word) != 0) {
		error_text_set("a mirror is a word of 8 bytes at a multiple of 8; got %p",
		               (void *)word);
		return WIMM_E_INVAL;
	}
	if (engine_closing(engine))
		return WIMM_E_CLOSED;
	c.mirror = mem_alloc(sizeof(*c.mirror));
	if (c.mirror == NULL)
		return WIMM_E_NOMEM;
	*c.mirror = (struct mirror){ .imm = imm, .word = word };
	worker_call(&engine->worker, enable_on_worker, &c);
	if (c.status == WIMM_E_BUSY)
		error_text_set("value %#" PRIx32 " has a mirror: disable that first", imm);
	if (c.status != WIMM_OK)
		mem_free(c.mirror);
	return c.status;
}

static void disable_on_worker(struct worker *w, void *arg) ON_WORKER
{
	struct mirror_call *c = arg;
	struct mirror *m = hash_find_ptr(&w->mirrors, c->imm);

	c->status = m != NULL ? WIMM_OK : WIMM_E_NOT_FOUND;
	if (m == NULL)
		return;
	c->total = m->total;
	(void)hash_remove(&w->mirrors, c->imm);
	w->last_mirror = NULL;
	mem_free(m);
}

wimm_status wimm_mirror_disable(struct wimm_engine *engine, uint32_t imm, uint64_t *out_total)
{
	wimm_status st = engine_check(engine);
	struct mirror_call c = { .imm = imm };

	if (st != WIMM_OK)
		return st;
	worker_call(&engine->worker, disable_on_worker, &c);
	if (c.status == WIMM_OK && out_total != NULL)
		*out_total = c.total;
	return c.status;
}

uint64_t wimm_mirror_load(const uint64_t *word)
{
	return __atomic_load_n(word, __ATOMIC_ACQUIRE); /* with show() */
}
