/* SPDX-License-Identifier: Apache-2.0 */
/* What a benchmark's caches hold: each place of the model its own bytes, so that one that lands
 * elsewhere, or not at all, is seen. */
#include "lib/kvrank.h"
#include "lib/util.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define POISON     0xee
#define WORD_STEP  UINT64_C(0x9e3779b97f4a7c15)
#define PLACE_STEP UINT64_C(0xbf58476d1ce4e5b9)

struct place {
	uint32_t layer, part, head; /* head: of the model */
	uint64_t token;
};

static uint64_t seed_of(const struct place *p)
{
	uint64_t x = (p->token * 4096 + p->layer) * PLACE_STEP ^
	             ((uint64_t)p->part << 32 | p->head) * WORD_STEP;

	x ^= x >> 31;
	return x * PLACE_STEP;
}

/* One head of one token; every word of it follows from the place. */
static void make_row(const struct place *p, uint64_t *row, uint64_t bytes)
{
	uint64_t word = seed_of(p);

	for (uint64_t i = 0; i < (bytes + 7) / 8; i++, word += WORD_STEP)
		row[i] = word;
}

static uint32_t first_head(const struct wimm_kv_layout *l)
{
	if (l->kind == WIMM_KV_MLA)
		return 0;
	return l->tp <= l->kv_heads ? l->tp_rank * (l->kv_heads / l->tp)
	                            : l->tp_rank / (l->tp / l->kv_heads);
}

static uint32_t head_count(const struct wimm_kv_layout *l)
{
	return l->tp < l->kv_heads ? l->kv_heads / l->tp : 1;
}

struct walk {
	const struct kvrank *r;
	uint64_t tokens;
	uint64_t bytes;
	void (*row)(struct walk *w, uint8_t *at, const uint64_t *want, uint64_t bytes,
	            const struct place *p);
};

static void walk(struct walk *w)
{
	const struct wimm_kv_layout *l = &w->r->layout[w->r->side];
	uint64_t bytes = (uint64_t)l->head_dim * l->elem_bytes;
	uint64_t *want = must_alloc((bytes + 7) / 8, 8);
	struct place p;

	for (p.layer = 0; p.layer < l->layers; p.layer++)
		for (p.token = 0; p.token < w->tokens; p.token++)
			for (p.part = 0; p.part < w->r->spec->model->segments; p.part++)
				for (uint32_t h = 0; h < head_count(l); h++) {
					p.head = first_head(l) + h;
					make_row(&p, want, bytes);
					w->row(w,
					       w->r->memory + p.layer * l->layer_stride_bytes +
					               w->r->pages[p.token / l->page_tokens] *
					                       l->page_stride_bytes +
					               p.part * l->part_stride_bytes +
					               h * l->head_stride_bytes +
					               p.token % l->page_tokens *
					                       l->token_stride_bytes,
					       want, bytes, &p);
					w->bytes += bytes;
				}
	free(want);
}

static void write_row(struct walk *w, uint8_t *at, const uint64_t *want, uint64_t bytes,
                      const struct place *p)
{
	(void)w;
	(void)p;
	memcpy(at, want, bytes);
}

static void compare_row(struct walk *w, uint8_t *at, const uint64_t *want, uint64_t bytes,
                        const struct place *p)
{
	if (memcmp(at, want, bytes) != 0)
		die("decode rank %" PRIu32 ": layer %" PRIu32 ", %s, head %" PRIu32
		    ", token %" PRIu64 ": wrong bytes",
		    w->r->rank, p->layer, p->part == 0 ? "K" : "V", p->head, p->token);
	memset(at, POISON, bytes); /* what is left is all poison then */
}

void kvbytes_fill(const struct kvrank *r)
{
	struct walk w = { r, r->spec->tokens, 0, write_row };

	walk(&w);
}

uint64_t kvbytes_check(const struct kvrank *r, uint64_t tokens)
{
	struct walk w = { r, tokens, 0, compare_row };

	walk(&w);
	for (uint64_t i = 0; i < r->memory_bytes; i++)
		if (r->memory[i] != POISON)
			die("decode rank %" PRIu32 ": byte %" PRIu64
			    " of the cache was written, and is no token's",
			    r->rank, i);
	return w.bytes;
}

void kvbytes_poison(const struct kvrank *r)
{
	memset(r->memory, POISON, r->memory_bytes);
}
