/* SPDX-License-Identifier: Apache-2.0 */
/* Writes and the values they carry: planned whole, then asked for piece by piece. */
#include "run.h"

#include <string.h>

/* --- writes --- */

static uint32_t draw_len(struct run *run)
{
	uint64_t kind = draw(run, 0, 99);

	if (kind < 8)
		return 0;
	if (kind < 45)
		return (uint32_t)draw(run, 1, 300);
	if (kind < 88)
		return (uint32_t)draw(run, 300, 5000);
	return (uint32_t)draw(run, 5000, 48000);
}

/* Source bytes for all slots of a rec; false: no room. */
bool sources_fill(struct run *run, struct rec *rec, uint32_t stride)
{
	struct node *n = &run->node[rec->node];
	uint64_t total = 0;
	uint32_t at;

	for (uint32_t i = 0; i < rec->slot_count; i++)
		total += stride ? stride : run->slot[rec->slot + i].len;
	if (n->source_used + total > SOURCE_BYTES)
		return false;
	rec->src_off = at = n->source_used;
	rec->src_len = (uint32_t)total;
	rec->src_stride = stride ? stride : 1;
	n->source_used += (uint32_t)total;
	for (uint32_t i = 0; i < rec->slot_count; i++) {
		struct slot *s = &run->slot[rec->slot + i];

		s->src_off = at;
		memcpy(source_memory(rec->node) + at, payload(rec->slot + i), s->len);
		at += stride ? stride : s->len;
	}
	return true;
}

static uint32_t draw_write_flags(struct run *run, bool counted)
{
	uint32_t flags = counted ? WIMM_IMM : 0;

	if (counted && chance(run, 15))
		flags |= WIMM_CONFIRMED;
	if (chance(run, 8))
		flags |= WIMM_PIN_NIC;
	return flags;
}

static bool plan_single(struct run *run, struct rec *rec, uint32_t group, uint32_t to, uint32_t mr)
{
	if (slot_new(run, rec, to, mr, draw_len(run)) == NONE || !sources_fill(run, rec, 0))
		return false;
	if (group != NONE)
		slot_join(run, rec->slot, group, 1);
	return true;
}

static bool plan_paged(struct run *run, struct rec *rec, uint32_t group, uint32_t to, uint32_t mr)
{
	uint32_t count = (uint32_t)draw(run, 1, chance(run, 20) ? 60 : 12);
	uint32_t len = (uint32_t)draw(run, 1, count > 12 ? 200 : 1500);
	uint32_t stride = len + (uint32_t)draw(run, 0, 40);

	if (slots_new(run, rec, to, mr, len, stride, count) == NONE ||
	    !sources_fill(run, rec, len + (uint32_t)draw(run, 0, 40)))
		return false;
	if (group == NONE)
		return true;
	if (chance(run, 40))
		rec->flags |= WIMM_IMM_ONCE;
	for (uint32_t i = 0; i < count; i++)
		slot_join(run, rec->slot + i, group, rec->flags & WIMM_IMM_ONCE ? i == 0 : 1);
	return true;
}

static void plan_expects(struct run *run, uint32_t group);

/* An entry for another node: a group of its own there, where nobody uses the value. */
static bool plan_entry_aside(struct run *run, struct rec *rec, uint32_t group)
{
	uint32_t to = any_node(run), there = NONE, slot;

	if (!node_alive(run, to))
		return true;
	if (group != NONE) {
		there = group_with(run, to, run->group[group].imm);
		if (there == NONE)
			return true;
	}
	slot = slot_new(run, rec, to, MR_KEEP, (uint32_t)draw(run, 0, 2000));
	if (slot == NONE)
		return false;
	if (there != NONE) {
		slot_join(run, slot, there, 1);
		plan_expects(run, there);
	}
	return true;
}

/* Some entries to one node, and often one or two to others: they carry the same immediate. */
static bool plan_scatter(struct run *run, struct rec *rec, uint32_t group, uint32_t to, uint32_t mr)
{
	uint32_t count = (uint32_t)draw(run, 1, 3);

	for (uint32_t i = 0; i < count; i++) {
		uint32_t slot = slot_new(run, rec, to, mr, (uint32_t)draw(run, 0, 3000));

		if (slot == NONE)
			return false;
		if (group != NONE)
			slot_join(run, slot, group, 1);
	}
	for (uint64_t i = draw(run, 0, 2); i > 0; i--)
		if (!plan_entry_aside(run, rec, group))
			return false;
	return sources_fill(run, rec, 0);
}

/* A planned write, not yet asked for; NULL: no room. */
static struct rec *plan_write(struct run *run, uint32_t from, uint32_t to, uint32_t group)
{
	static const enum rec_kind kinds[] = { REC_SINGLE, REC_SINGLE, REC_PAGED, REC_SCATTER };
	enum rec_kind kind = kinds[draw(run, 0, 3)];
	uint32_t mr = chance(run, 30) ? MR_CHURN : MR_KEEP;
	struct rec *rec;
	bool fits;

	rec = rec_new(run, kind, from);
	if (!rec)
		return NULL;
	rec->flags = draw_write_flags(run, group != NONE);
	rec->imm = group != NONE ? run->group[group].imm : 0;
	if (chance(run, 8))
		rec->deadline_us = draw(run, 5, 3000);
	if (run->node[to].region[mr].ending)
		rec->excused = true;
	fits = kind == REC_SINGLE  ? plan_single(run, rec, group, to, mr)
	       : kind == REC_PAGED ? plan_paged(run, rec, group, to, mr)
	                           : plan_scatter(run, rec, group, to, mr);
	if (!fits) {
		rec_abandoned(run, rec);
		return NULL;
	}
	return rec;
}

/* --- groups --- */

static void plan_expect(struct run *run, uint32_t group, uint64_t count, uint64_t at_ns)
{
	struct rec *rec;

	if (count == 0)
		return;
	rec = rec_new(run, REC_EXPECT, run->group[group].node);
	if (!rec)
		return;
	rec->group = group;
	rec->count = count;
	if (chance(run, 20))
		rec->deadline_us = draw(run, 20, 5000);
	run_at(run, at_ns, rec_submit, rec->index, 0);
}

static void plan_expects(struct run *run, uint32_t group)
{
	struct group *g = &run->group[group];
	uint64_t at_ns = run_now(run) + draw(run, 0, 700) * US;
	uint64_t kind = draw(run, 0, 99);
	uint64_t first;

	if (kind < 10)
		return; /* found by forget, retire or the final look */
	if (kind < 65 || g->planned < 2) {
		uint32_t rec = run->recs;

		plan_expect(run, group, g->planned, at_ns);
		if (rec < run->recs && chance(run, 40))
			run->rec[rec].flags = 1;
		return;
	}
	first = draw(run, 1, g->planned - 1);
	plan_expect(run, group, first, at_ns);
	plan_expect(run, group, g->planned - first, at_ns + draw(run, 0, 300) * US);
}

void start_group(struct run *run, uint32_t unused, uint32_t unused2)
{
	uint32_t to = any_node(run), from = any_node(run);
	uint32_t group, writes = (uint32_t)draw(run, 1, 6);
	struct rec *last = NULL;

	(void)unused;
	(void)unused2;
	if (run->ending || !node_alive(run, to))
		return;
	group = group_new(run, to);
	if (group == NONE)
		return;
	for (uint32_t i = 0; i < writes; i++) {
		struct rec *rec;

		if (chance(run, 50))
			from = any_node(run);
		if (!node_alive(run, from) || (from == to && !chance(run, 10)))
			continue;
		rec = plan_write(run, from, to, chance(run, 90) ? group : NONE);
		if (!rec)
			continue;
		if (last && last->node == from && chance(run, 30))
			last->chain = rec->index; /* asked for by the callback of the one before */
		else
			run_at(run, run_now(run) + draw(run, 0, 400) * US, rec_submit, rec->index,
			       0);
		last = rec;
	}
	plan_expects(run, group);
}

/* --- housekeeping of values --- */

static bool group_idle(const struct run *run, const struct group *g, bool writes)
{
	return g->live && (writes || g->writes_open == 0) && g->expects_open == 0 && !g->retiring &&
	       node_acts(run, g->node) && run->node[g->node].life == g->life;
}

/* Retiring waits for writes under way, of those who have a session by now. */
static bool writers_connected(const struct run *run, const struct group *g) LOOKS_INSIDE
{
	struct worker *w = &run->node[g->node].engine->worker;

	for (uint32_t i = g->slot; i != NONE; i = run->slot[i].next_in_group) {
		const struct rec *rec = &run->rec[run->slot[i].rec];
		const struct peer *p = peer_by_instance(w, run->node[rec->node].instance);

		if (rec->state == REC_ACCEPTED &&
		    (rec->node == g->node || !p || p->state != PEER_UP || p->ending_step != 0 ||
		     !pair_clean(run, rec->node, g->node)))
			return false;
	}
	return true;
}

static bool group_planned_out(const struct run *run, uint32_t group)
{
	for (uint32_t i = run->group[group].slot; i != NONE; i = run->slot[i].next_in_group)
		if (run->rec[run->slot[i].rec].state == REC_PLANNED)
			return false;
	for (uint32_t i = 0; i < run->recs; i++)
		if (run->rec[i].kind == REC_EXPECT && run->rec[i].group == group &&
		    run->rec[i].state == REC_PLANNED)
			return false;
	return true;
}

static void group_retire(struct run *run, uint32_t group)
{
	struct rec *rec = rec_new(run, REC_RETIRE, run->group[group].node);

	if (!rec)
		return;
	rec->group = group;
	run->group[group].retiring = true;
	rec_submit(run, rec->index, 0);
}

static void group_forget(struct run *run, uint32_t group)
{
	struct group *g = &run->group[group];
	uint64_t there = 0, dropped = 0;

	/* Asked, not looked up: a fence that was submitted just now comes first. */
	if (wimm_poll_imm(run->node[g->node].engine, g->imm, &there) != WIMM_OK ||
	    wimm_forget_imm(run->node[g->node].engine, g->imm, &dropped) != WIMM_OK ||
	    dropped != there)
		broken(run, "node %u: forgot %u immediates of %u", g->node, (unsigned)dropped,
		       (unsigned)there);
	g->consumed += dropped;
	group_maybe_free(run, group);
}

void keep_house(struct run *run, uint32_t unused, uint32_t unused2)
{
	uint32_t start = (uint32_t)draw(run, 0, run->groups ? run->groups - 1 : 0);
	uint32_t work = 0;

	(void)unused;
	(void)unused2;
	for (uint32_t i = 0; i < run->groups && work < 3 && !run->ending; i++) {
		uint32_t group = (start + i) % run->groups;

		bool under_way = chance(run, 30);

		if (!group_idle(run, &run->group[group], under_way) ||
		    (under_way && !writers_connected(run, &run->group[group])) ||
		    !group_planned_out(run, group))
			continue;
		work++;
		if (run->group[group].tainted || under_way || chance(run, 50))
			group_retire(run, group);
		else
			group_forget(run, group);
	}
}
