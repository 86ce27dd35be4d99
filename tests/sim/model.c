/* SPDX-License-Identifier: Apache-2.0 */
/* What must hold: each operation settles once and in time, each immediate is counted once and not
 * before its bytes, no byte lands anywhere else. */
#include "run.h"

#include <inttypes.h>
#include <string.h>

/* A cancel or a deadline ends an operation at once: the same moment, but for rounding. Where writes
 * cannot be taken back they may come back by themselves first. */
#define PROMPT_NS     (5 * US)
#define PATTERN_BYTES (512u << 10)
#define PATTERN_SPAN  (PATTERN_BYTES - (64u << 10)) /* no slot is longer than the difference */

static uint8_t targets[NODES_MAX][MR_COUNT][MR_BYTES];
static uint8_t sources[NODES_MAX][SOURCE_BYTES];
static uint8_t pattern[PATTERN_BYTES];

uint8_t *mr_memory(uint32_t n, uint32_t mr)
{
	return targets[n][mr];
}

uint8_t *source_memory(uint32_t n)
{
	return sources[n];
}

void memory_reset(struct run *run)
{
	struct rng rng;

	if (pattern[0] == 0) {
		rng_init(&rng, 1);
		for (size_t i = 0; i < sizeof(pattern); i++)
			pattern[i] = (uint8_t)rng_between(&rng, 1, 255);
	}
	for (uint32_t n = 0; n < run->nodes; n++)
		memset(targets[n], BYTE_POISON, sizeof(targets[n]));
}

const uint8_t *payload(uint32_t slot)
{
	return pattern + (slot * UINT32_C(2654435761)) % PATTERN_SPAN;
}

/* --- making --- */

struct rec *rec_new(struct run *run, enum rec_kind kind, uint32_t node)
{
	struct rec *x;

	if (run->recs == RECS_MAX)
		return NULL;
	x = &run->rec[run->recs];
	*x = (struct rec){ .run = run,
		           .index = run->recs,
		           .kind = kind,
		           .node = node,
		           .life = run->node[node].life,
		           .chain = NONE,
		           .slot = NONE,
		           .group = NONE };
	run->recs++;
	return x;
}

uint32_t slots_new(struct run *run, struct rec *rec, uint32_t node, uint32_t mr, uint32_t len,
                   uint32_t stride, uint32_t count)
{
	struct region *region = &run->node[node].region[mr];
	uint32_t first = run->slots;
	uint32_t guard = (uint32_t)draw(run, 1, 48);
	uint64_t need = (uint64_t)stride * count + guard;

	if (run->slots + count > SLOTS_MAX || region->used + need > MR_BYTES)
		return NONE;
	for (uint32_t i = 0; i < count; i++) {
		uint32_t index = run->slots++;

		run->slot[index] = (struct slot){
			.rec = rec->index,
			.node = node,
			.mr = mr,
			.mr_life = region->life,
			.off = region->used + i * stride,
			.len = len,
			.group = NONE,
			.next_in_mr = NONE,
			.next_in_group = NONE,
			.fence = NONE,
			.state = SLOT_OPEN,
		};
		if (region->slot_first == NONE)
			region->slot_first = index;
		else
			run->slot[region->slot_last].next_in_mr = index;
		region->slot_last = index;
	}
	region->used += (uint32_t)need;
	if (rec->slot == NONE)
		rec->slot = first;
	rec->slot_count += count; /* a rec's slots are drawn one behind the other */
	return first;
}

uint32_t slot_new(struct run *run, struct rec *rec, uint32_t node, uint32_t mr, uint32_t len)
{
	return slots_new(run, rec, node, mr, len, len, 1);
}

void slot_join(struct run *run, uint32_t slot, uint32_t group, uint32_t imms)
{
	struct slot *s = &run->slot[slot];
	struct group *g = &run->group[group];

	s->group = group;
	s->imms = imms;
	s->next_in_group = g->slot;
	g->slot = slot;
	g->planned += imms;
}

static bool imm_taken(const struct run *run, uint32_t node, uint32_t imm)
{
	for (uint32_t i = 0; i < run->groups; i++) {
		const struct group *g = &run->group[i];

		if (g->live && g->node == node && g->life == run->node[node].life && g->imm == imm)
			return true;
	}
	return false;
}

/* From the last user of the value on that node, if it had one. */
static void mirror_start(struct run *run, uint32_t group)
{
	const struct group *g = &run->group[group];
	struct wimm_engine *engine = run->node[g->node].engine;
	wimm_status st;

	if (engine == NULL)
		return;
	st = wimm_mirror_disable(engine, g->imm, NULL);
	if (st == WIMM_OK || st == WIMM_E_NOT_FOUND)
		st = wimm_mirror_enable(engine, g->imm, &run->mirror[group]);
	if (st != WIMM_OK)
		broken(run, "node %u: no mirror of %#x: %s", g->node, g->imm, wimm_status_name(st));
}

static uint32_t group_add(struct run *run, uint32_t node, uint32_t imm)
{
	uint32_t index = run->groups;

	if (index == GROUPS_MAX)
		return NONE;
	run->groups++;
	run->group[index] = (struct group){
		.node = node, .life = run->node[node].life, .imm = imm, .slot = NONE, .live = true
	};
	mirror_start(run, index);
	return index;
}

uint32_t group_with(struct run *run, uint32_t node, uint32_t imm)
{
	return imm_taken(run, node, imm) ? NONE : group_add(run, node, imm);
}

/* Few values, so that they are used again and again, and the two at the ends of the range. */
uint32_t group_new(struct run *run, uint32_t node)
{
	uint32_t imm = chance(run, 20) ? UINT32_MAX : (uint32_t)draw(run, 0, 20);

	while (imm_taken(run, node, imm))
		imm = (uint32_t)rng_u64(&run->rng);
	return group_add(run, node, imm);
}

/* --- counting --- */

bool group_current(const struct run *run, const struct group *g)
{
	return run->node[g->node].engine && run->node[g->node].life == g->life;
}

uint64_t group_count(struct run *run, const struct group *g) LOOKS_INSIDE
{
	return imm_count(run->node[g->node].engine->worker.imms, g->imm);
}

/* The engine has taken immediates away and not told yet. */
static bool telling(const struct run *run, uint32_t node)
{
	return !mpsc_empty_hint(&run->node[node].engine->deliveries);
}

void group_maybe_free(struct run *run, uint32_t group)
{
	struct group *g = &run->group[group];

	if (!g->live || g->writes_open != 0 || g->expects_open != 0 || g->tainted || g->retiring ||
	    g->consumed != g->planned || g->accepted != g->planned)
		return;
	g->live = false;
	if (group_current(run, g) && group_count(run, g) != 0)
		broken(run, "node %u: %" PRIu64 " immediates %#x more than were sent", g->node,
		       group_count(run, g), g->imm);
}

static void writes_count(struct run *run, struct rec *rec, int step)
{
	for (uint32_t i = 0; i < rec->slot_count; i++) {
		struct slot *s = &run->slot[rec->slot + i];

		if (s->group != NONE)
			run->group[s->group].writes_open += (uint32_t)step;
	}
}

static void writes_taint(struct run *run, struct rec *rec)
{
	for (uint32_t i = 0; i < rec->slot_count; i++) {
		struct slot *s = &run->slot[rec->slot + i];

		if (s->group != NONE)
			run->group[s->group].tainted = true;
	}
}

void rec_accepted(struct run *run, struct rec *rec)
{
	rec->state = REC_ACCEPTED;
	rec->submit_ns = run_now(run);
	rec->order = ++run->accepted;
	run->stats.ops++;
	for (uint32_t i = 0; i < rec->slot_count; i++) {
		struct slot *s = &run->slot[rec->slot + i];

		if (s->group != NONE)
			run->group[s->group].accepted += s->imms;
	}
	writes_count(run, rec, 1);
	if (rec->kind == REC_EXPECT)
		run->group[rec->group].expects_open++;
}

void rec_abandoned(struct run *run, struct rec *rec)
{
	rec->state = REC_ABANDONED;
	writes_taint(run, rec);
	if (rec->kind == REC_RETIRE)
		run->group[rec->group].retiring = false;
	say(run, "node %u: rec %u given up before it was accepted", rec->node, rec->index);
}

/* --- settling --- */

static bool targets_clean(const struct run *run, const struct rec *rec)
{
	for (uint32_t i = 0; i < rec->slot_count; i++) {
		const struct slot *s = &run->slot[rec->slot + i];

		if (!pair_clean(run, rec->node, s->node) || run->node[s->node].life != 0)
			return false;
	}
	if (rec->kind == REC_SEND)
		return pair_clean(run, rec->node, rec->to);
	return true;
}

static bool cluster_clean(const struct run *run)
{
	for (uint32_t a = 0; a < run->nodes; a++)
		for (uint32_t b = 0; b < run->nodes; b++)
			if (!pair_clean(run, a, b))
				return false;
	return true;
}

static bool status_allowed(struct run *run, const struct rec *rec)
{
	const struct node *n = &run->node[rec->node];

	switch (rec->status) {
	case WIMM_OK:
		return true;
	case WIMM_E_CANCELLED:
		return rec->cancel_ns != 0 || rec->kind == REC_BARRIER;
	case WIMM_E_TIMEOUT:
		return rec->deadline_us != 0 &&
		       run_now(run) >= rec->submit_ns + rec->deadline_us * US;
	case WIMM_E_TOO_LONG:
		return rec->kind == REC_SEND;
	default:
		break;
	}
	if (rec->excused || n->closing)
		return true;
	if (rec->kind == REC_EXPECT || rec->kind == REC_RETIRE || rec->kind == REC_BARRIER)
		return !cluster_clean(run);
	return !targets_clean(run, rec);
}

static void check_prompt(struct run *run, const struct rec *rec)
{
	uint64_t due = UINT64_MAX;

	if (rec->deadline_us != 0)
		due = rec->submit_ns + rec->deadline_us * US;
	if (rec->cancel_ns != 0 && rec->cancel_ns < due)
		due = rec->cancel_ns;
	if (due == UINT64_MAX || rec->no_slack || run->node[rec->node].lazy_ns != 0 ||
	    run->node[rec->node].closing)
		return;
	if (run->cfg.no_cancel && rec->kind <= REC_SCATTER)
		due += LINGER_NS;
	if (run_now(run) > due + PROMPT_NS)
		broken(run, "node %u: rec %u settled %.3f us after its cancel or deadline",
		       rec->node, rec->index, (double)(run_now(run) - due) / 1000.0);
}

/* Of a peer that has died no operation says that a path alone was lost: whether it lives was asked
 * first. An answer from before its death may still be on the way for a while, or wait for a node
 * that is driven rarely; and who cancels does not wait for it. E_NIC_LOST is another matter: the
 * path of a write that waits may have been lost long before. */
static void check_blame(struct run *run, const struct rec *rec)
{
	const struct run *r = run;
	uint64_t slack_ns = 2 * r->cfg.max_delay_ns + r->cfg.ctl_delay_ns +
	                    r->node[rec->node].lazy_ns + 50 * US;
	uint64_t last_ns = 0;

	if (rec->status != WIMM_E_PATH_LOST || r->node[rec->node].closing ||
	    r->node[rec->node].nics_dead != 0 || r->node[rec->node].frozen_ns != 0 ||
	    rec->slot_count == 0 || rec->cancel_ns != 0)
		return;
	for (uint32_t i = 0; i < rec->slot_count; i++) {
		const struct node *to = &r->node[r->slot[rec->slot + i].node];

		if (to->killed_ns <= rec->submit_ns || to->frozen_ns != 0)
			return;
		last_ns = to->killed_ns > last_ns ? to->killed_ns : last_ns;
	}
	if (run_now(run) > last_ns + slack_ns)
		broken(run, "node %u: rec %u says %s, but its peer had died", rec->node, rec->index,
		       wimm_status_name(rec->status));
}

static uint64_t confirmed_count(const struct run *run, const struct group *g)
{
	uint64_t count = 0;

	for (uint32_t i = g->slot; i != NONE; i = run->slot[i].next_in_group) {
		const struct slot *s = &run->slot[i];
		const struct rec *rec = &run->rec[s->rec];

		if (rec->state == REC_SETTLED && rec->status == WIMM_OK &&
		    (rec->flags & WIMM_CONFIRMED) && pair_clean(run, rec->node, s->node))
			count += s->imms;
	}
	return count;
}

/* Confirmed means counted, at this very moment. */
static void check_confirmed(struct run *run, const struct rec *rec)
{
	uint64_t want;

	for (uint32_t i = 0; i < rec->slot_count; i++) {
		const struct slot *s = &run->slot[rec->slot + i];
		struct group *g = s->group != NONE ? &run->group[s->group] : NULL;

		if (!g || !group_current(run, g) || !g->live || telling(run, s->node) ||
		    !pair_clean(run, rec->node, s->node))
			continue;
		want = confirmed_count(run, g);
		if (g->consumed + group_count(run, g) < want)
			broken(run,
			       "node %u: rec %u confirmed, but node %u has counted %" PRIu64
			       " of %" PRIu64 " immediates %#x",
			       rec->node, rec->index, s->node, g->consumed + group_count(run, g),
			       want, g->imm);
	}
}

static void write_settled(struct run *run, struct rec *rec)
{
	if (rec->status == WIMM_OK) {
		for (uint32_t i = 0; i < rec->slot_count; i++) {
			struct slot *s = &run->slot[rec->slot + i];

			run->stats.bytes += s->len;
		}
		if (rec->flags & WIMM_CONFIRMED)
			check_confirmed(run, rec);
	} else {
		writes_taint(run, rec);
	}
	writes_count(run, rec, -1);
	/* Nothing may read the source from here on: what does shows as bytes of neither kind. */
	memset(sources[rec->node] + rec->src_off, BYTE_SETTLED, rec->src_len);
	for (uint32_t i = 0; i < rec->slot_count; i++) {
		struct slot *s = &run->slot[rec->slot + i];

		if (s->group != NONE)
			group_maybe_free(run, s->group);
	}
}

static void retire_settled(struct run *run, struct rec *rec)
{
	struct group *g = &run->group[rec->group];

	g->retiring = false;
	if (rec->status != WIMM_OK)
		return;
	run->stats.pattern[PATTERN_RETIRE]++;
	if (group_current(run, g) && group_count(run, g) != 0)
		broken(run, "node %u: %#x is retired with %" PRIu64 " left", g->node, g->imm,
		       group_count(run, g));
	g->live = false; /* anything that still comes spoils the next user of the value */
}

static void check_settled(struct run *run, struct rec *rec, const struct wimm_done *done)
{
	if (rec->state != REC_ACCEPTED)
		broken(run, "node %u: rec %u settled twice, first %s, now %s", rec->node,
		       rec->index, wimm_status_name(rec->status), wimm_status_name(done->status));
	if (rec->kind != REC_DEREG && rec->kind != REC_BARRIER && done->op != rec->op)
		broken(run, "node %u: rec %u settled with the id of another", rec->node,
		       rec->index);
	if (done->status != WIMM_OK && (!done->text || done->text[0] == '\0'))
		broken(run, "node %u: rec %u failed with %s and no text", rec->node, rec->index,
		       wimm_status_name(done->status));
}

void rec_settled(struct run *run, struct rec *rec, const struct wimm_done *done)
{
	check_settled(run, rec, done);
	rec->state = REC_SETTLED;
	rec->status = done->status;
	rec->settle_ns = run_now(run);
	say(run, "node %u: rec %u %s%s%s", rec->node, rec->index, wimm_status_name(done->status),
	    done->status != WIMM_OK ? ": " : "", done->status != WIMM_OK ? done->text : "");
	run->stats.settled_ok += done->status == WIMM_OK;
	if (!status_allowed(run, rec))
		broken(run, "node %u: rec %u failed with %s though nothing was wrong: %s",
		       rec->node, rec->index, wimm_status_name(rec->status), done->text);
	check_prompt(run, rec);
	check_blame(run, rec);
	if (rec->flag != 0 &&
	    rec->flag != (done->status == WIMM_OK ? 1 : (uint64_t)(int64_t)done->status))
		broken(run, "node %u: flag and callback of rec %u disagree", rec->node, rec->index);
	if (rec->stale && rec->status == WIMM_OK)
		broken(run, "node %u: rec %u went through an old descriptor", rec->node,
		       rec->index);
	if (rec->kind <= REC_SCATTER)
		write_settled(run, rec);
	else if (rec->kind == REC_EXPECT)
		expect_fired(run, rec);
	else if (rec->kind == REC_RETIRE)
		retire_settled(run, rec);
	else if (rec->kind == REC_FENCE)
		fence_settled(run, rec, done->fence);
}

/* --- expectations --- */

static void check_slot_whole(struct run *run, uint32_t index)
{
	const struct slot *s = &run->slot[index];
	const uint8_t *at = targets[s->node][s->mr] + s->off;
	const uint8_t *want = payload(index);
	uint32_t i = 0;

	if (s->state == SLOT_DEAD || s->state == SLOT_RECLAIMED || memcmp(at, want, s->len) == 0)
		return;
	while (at[i] == want[i])
		i++;
	broken(run,
	       "node %u: an immediate was counted before its bytes: byte %u of %u of rec %u is "
	       "%#x, not %#x",
	       s->node, i, s->len, s->rec, at[i], want[i]);
}

/* All immediates of the group are there, so all its bytes are; now they are the reader's. */
static void group_complete(struct run *run, struct group *g)
{
	for (uint32_t i = g->slot; i != NONE; i = run->slot[i].next_in_group)
		check_slot_whole(run, i);
	for (uint32_t i = g->slot; i != NONE; i = run->slot[i].next_in_group) {
		struct slot *s = &run->slot[i];

		if (s->state != SLOT_OPEN)
			continue;
		memset(targets[s->node][s->mr] + s->off, BYTE_GIVEN, s->len);
		s->state = SLOT_GIVEN;
	}
}

/* Expectations on one value are served in the order in which they were accepted. */
static void check_order(struct run *run, const struct rec *rec)
{
	for (uint32_t i = 0; i < run->recs; i++) {
		const struct rec *other = &run->rec[i];

		if (other->kind == REC_EXPECT && other->group == rec->group &&
		    other->state == REC_ACCEPTED && other->order < rec->order &&
		    other->cancel_ns == 0 && other->deadline_us == 0)
			broken(run, "node %u: expectation rec %u was served before rec %u",
			       rec->node, rec->index, other->index);
	}
}

void expect_fired(struct run *run, struct rec *rec)
{
	struct group *g = &run->group[rec->group];

	g->expects_open--;
	if (rec->status != WIMM_OK) {
		g->tainted = true;
		return;
	}
	check_order(run, rec);
	g->consumed += rec->count;
	if (g->consumed > g->accepted)
		broken(run, "node %u: %" PRIu64 " immediates %#x counted, %" PRIu64 " were sent",
		       g->node, g->consumed, g->imm, g->accepted);
	if (g->slot != NONE && g->consumed == g->planned)
		group_complete(run, g);
	group_maybe_free(run, rec->group);
}

/* --- regions --- */

void region_dead(struct run *run, uint32_t n, uint32_t mr)
{
	struct region *region = &run->node[n].region[mr];

	for (uint32_t i = region->slot_first; i != NONE; i = run->slot[i].next_in_mr)
		run->slot[i].state = SLOT_DEAD;
	region->dead = region->used;
	memset(targets[n][mr], BYTE_DEAD, region->used);
}
