/* SPDX-License-Identifier: Apache-2.0 */
#include "plan.h"

#include "plat/rand.h"

#include <string.h>

#define GAP_MAX 96u

struct maker {
	struct plan *p;
	struct rng rng;
	uint32_t used[PROCS_MAX]; /* of each region */
};

static uint32_t draw(struct maker *m, uint32_t low, uint32_t high)
{
	return (uint32_t)rng_between(&m->rng, low, high);
}

/* Mostly small, sometimes long enough to be split or fetched. */
static uint32_t draw_len(struct maker *m)
{
	switch (rng_below(&m->rng, 8)) {
	case 0:
		return 0;
	case 1:
		return draw(m, 260u << 10, 300u << 10);
	case 2:
		return draw(m, 8000, 70000);
	default:
		return draw(m, 1, 5000);
	}
}

/* Room for `count` slots side by side. False: the region or the table is full. */
static bool add_slots(struct maker *m, uint32_t to, uint32_t count, uint32_t len)
{
	struct plan *p = m->p;
	uint32_t stride = len + draw(m, 1, GAP_MAX);

	if (p->slots + count > SLOTS_MAX ||
	    (uint64_t)count * stride + GAP_MAX > REGION_BYTES - m->used[to])
		return false;
	for (uint32_t i = 0; i < count; i++) {
		p->slot[p->slots++] = (struct slot){ to, m->used[to], len };
		m->used[to] += stride;
	}
	return true;
}

static void add_count(struct maker *m, uint32_t to, uint32_t imm, uint64_t count)
{
	struct plan *p = m->p;

	for (uint32_t i = 0; i < p->groups; i++) {
		if (p->group[i].to == to && p->group[i].imm == imm) {
			p->group[i].count += count;
			return;
		}
	}
	p->group[p->groups++] = (struct group){ to, imm, count };
}

static void add_scatter(struct maker *m, struct write *w)
{
	uint32_t len = draw(m, 1, 4000);

	for (uint32_t to = 0; to < m->p->procs; to++) {
		if (!add_slots(m, to, 1, len))
			return; /* to fewer, then */
		w->count++;
		add_count(m, to, w->imm, 1);
	}
}

static void add_write(struct maker *m)
{
	struct plan *p = m->p;
	struct write w = { .kind = (enum write_kind)draw(m, WRITE_SINGLE, WRITE_PLAIN),
		           .from = draw(m, 0, p->procs - 1),
		           .slot = p->slots,
		           /* Few values, and the ends of the range. */
		           .imm = rng_chance(&m->rng, 1, 5) ? UINT32_MAX : draw(m, 0, 3),
		           .confirmed = rng_chance(&m->rng, 1, 4) != 0 };
	uint32_t to = draw(m, 0, p->procs - 1);
	uint32_t count = w.kind == WRITE_PAGED || w.kind == WRITE_ONCE ? draw(m, 1, 24) : 1;

	if (w.kind == WRITE_PLAIN)
		w.confirmed = false; /* what is confirmed is a count */
	if (w.kind == WRITE_SCATTER) {
		add_scatter(m, &w);
	} else {
		uint32_t len = count > 1 ? draw(m, 1, 3000) : draw_len(m);

		if (!add_slots(m, to, count, len))
			return;
		w.count = count;
		if (w.kind != WRITE_PLAIN)
			add_count(m, to, w.imm, w.kind == WRITE_PAGED ? count : 1);
	}
	if (w.count != 0)
		p->write[p->writes++] = w;
}

void plan_make(struct plan *p, uint64_t seed, uint32_t round, uint32_t procs, bool kills)
{
	struct maker m = { .p = p };
	uint32_t writes;

	memset(p, 0, sizeof(*p));
	p->procs = procs;
	rng_init(&m.rng, seed * 1000003 + round);
	for (uint32_t i = 0; i < procs; i++)
		m.used[i] = draw(&m, 1, GAP_MAX);
	writes = draw(&m, 4, 40);
	for (uint32_t i = 0; i < writes; i++)
		add_write(&m);
	for (uint32_t i = 0; i < procs; i++)
		p->message_to[i] = draw(&m, 0, procs - 1);
	p->victim = draw(&m, 0, procs - 1);
	if (rng_chance(&m.rng, 1, 4))
		p->end = kills && rng_chance(&m.rng, 1, 2) ? END_KILL : END_CLOSE;
}

void plan_fill(uint8_t *at, uint64_t seed, uint32_t round, uint32_t slot, uint32_t len)
{
	struct rng r;
	uint64_t word;

	rng_init(&r, seed * 7919 + (uint64_t)round * 524287 + slot);
	for (uint32_t i = 0; i < len; i += (uint32_t)sizeof(word)) {
		uint32_t n = len - i < sizeof(word) ? len - i : (uint32_t)sizeof(word);

		word = rng_u64(&r);
		memcpy(at + i, &word, n);
	}
}
