/* SPDX-License-Identifier: Apache-2.0 */
/* The last look at a run: all has settled, every count is exact, every byte has its place. */
#include "run.h"

#include <inttypes.h>
#include <string.h>

static bool all_are(const uint8_t *at, uint32_t len, uint8_t value)
{
	return len == 0 || (at[0] == value && memcmp(at, at + 1, len - 1) == 0);
}

void check_all_settled(struct run *run)
{
	for (uint32_t i = 0; i < run->recs; i++) {
		const struct rec *rec = &run->rec[i];

		if (rec->state == REC_ACCEPTED)
			broken(run, "node %u: rec %u (kind %d) never settled", rec->node, i,
			       (int)rec->kind);
		if (rec->kind != REC_SEND)
			continue;
		if (rec->delivered > 1)
			broken(run, "message rec %u arrived %u times", i, rec->delivered);
		if (rec->state == REC_SETTLED && rec->status == WIMM_OK && rec->delivered != 1)
			broken(run, "message rec %u is done and did not arrive", i);
		if (rec->state == REC_ABANDONED && rec->delivered != 0)
			broken(run, "message rec %u was refused and arrived", i);
	}
}

static uint64_t surely_counted(const struct run *run, const struct group *g)
{
	uint64_t count = 0;

	for (uint32_t i = g->slot; i != NONE; i = run->slot[i].next_in_group) {
		const struct slot *s = &run->slot[i];
		const struct rec *rec = &run->rec[s->rec];

		if (rec->state == REC_SETTLED && rec->status == WIMM_OK &&
		    pair_lossless(run, rec->node, g->node))
			count += s->imms;
	}
	return count;
}

void check_counts(struct run *run)
{
	for (uint32_t i = 0; i < run->groups; i++) {
		const struct group *g = &run->group[i];
		uint64_t total, least;

		if (!g->live || !group_current(run, g))
			continue;
		total = g->consumed + group_count(run, g);
		least = surely_counted(run, g);
		if (total > g->accepted || total < least)
			broken(run,
			       "node %u: %" PRIu64 " immediates %#x counted; at least %" PRIu64
			       " arrived, at most %" PRIu64 " were sent",
			       g->node, total, g->imm, least, g->accepted);
		/* What a lost peer delivered is dropped from the count, not from the word. */
		if (run->mirror[i] < total || run->mirror[i] > g->accepted)
			broken(run,
			       "node %u: the mirror of %#x says %" PRIu64 ", counted are %" PRIu64
			       ", sent %" PRIu64,
			       g->node, g->imm, run->mirror[i], total, g->accepted);
	}
}

/* A path of a session that stands, between two NICs that work, has come back by now. */
static bool path_back(const struct run *run, const struct node *n, const struct peer *p, uint32_t k)
	LOOKS_INSIDE
{
	uint32_t other = node_of(run, p->addr.instance);
	const struct path *path = &p->path[k];
	const struct node *o = other != NONE ? &run->node[other] : NULL;
	const struct peer *back;

	if (path->state == PATH_UP || path->barred || !o || !o->engine)
		return true;
	back = peer_by_instance(&o->engine->worker, n->instance);
	return !back || back->state != PEER_UP || back->path[k].barred ||
	       n->engine->worker.nic[path->nic].dead ||
	       o->engine->worker.nic[back->path[k].nic].dead;
}

bool paths_back(struct run *run) LOOKS_INSIDE
{
	for (uint32_t i = 0; i < run->nodes; i++) {
		struct node *n = &run->node[i];

		if (!n->engine)
			continue;
		LIST_FOR_EACH(it, &n->engine->worker.peers) {
			const struct peer *p = LIST_ENTRY(it, struct peer, link);

			for (uint32_t k = 0; k < p->path_count; k++)
				if (p->state == PEER_UP && p->initiator && !p->alias &&
				    !path_back(run, n, p, k)) {
					run->missing[0] = i;
					run->missing[1] = k;
					run->missing[2] = node_of(run, p->addr.instance);
					return false;
				}
		}
	}
	return true;
}

static void check_slot(struct run *run, uint32_t index)
{
	const struct slot *s = &run->slot[index];
	const struct rec *rec = &run->rec[s->rec];
	const uint8_t *at = mr_memory(s->node, s->mr) + s->off;
	const uint8_t *want = payload(index);

	if (s->state != SLOT_OPEN) {
		static const struct {
			uint8_t byte;
			const char *text;
		} end[] = { [SLOT_GIVEN] = { BYTE_GIVEN, "given away" },
			    [SLOT_DEAD] = { BYTE_DEAD, "released" },
			    [SLOT_RECLAIMED] = { BYTE_RECLAIMED, "taken back by a fence" } };

		if (!all_are(at, s->len, end[s->state].byte))
			broken(run, "node %u: rec %u wrote after its target was %s", s->node,
			       s->rec, end[s->state].text);
		return;
	}
	if (memcmp(at, want, s->len) == 0 && rec->state != REC_ABANDONED)
		return;
	if (rec->state == REC_SETTLED && rec->status == WIMM_OK &&
	    (pair_clean(run, rec->node, s->node) ||
	     (s->group != NONE && pair_lossless(run, rec->node, s->node))))
		broken(run, "node %u: rec %u is done and its bytes are not there", s->node, s->rec);
	for (uint32_t i = 0; i < s->len; i++) {
		if (at[i] != BYTE_POISON && (at[i] != want[i] || rec->state == REC_ABANDONED))
			broken(run, "node %u: byte %u of rec %u is %#x, neither old nor new",
			       s->node, i, s->rec, at[i]);
	}
}

static void check_gap(struct run *run, uint32_t n, uint32_t mr, uint32_t from, uint32_t to)
{
	uint32_t dead = run->node[n].region[mr].dead;
	uint32_t mid = from < dead ? (to < dead ? to : dead) : from;
	const uint8_t *at = mr_memory(n, mr);

	if (!all_are(at + from, mid - from, BYTE_DEAD) || !all_are(at + mid, to - mid, BYTE_POISON))
		broken(run, "node %u region %u: bytes %u..%u, nobody's target, were written", n, mr,
		       from, to);
}

void check_memory(struct run *run)
{
	for (uint32_t n = 0; n < run->nodes; n++) {
		for (uint32_t mr = 0; mr < MR_COUNT; mr++) {
			uint32_t at = 0;
			uint32_t i = run->node[n].region[mr].slot_first;

			for (; i != NONE; i = run->slot[i].next_in_mr) {
				check_gap(run, n, mr, at, run->slot[i].off);
				check_slot(run, i);
				at = run->slot[i].off + run->slot[i].len;
			}
			check_gap(run, n, mr, at, MR_BYTES);
		}
	}
}
