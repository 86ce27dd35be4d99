/* SPDX-License-Identifier: Apache-2.0 */
#include "core/imm.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "core/imm_store.h"
#include "plat/rand.h"

static uint64_t min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* --- expectations --- */

static void waiting_remove(struct imm_expect *e)
{
	for (uint32_t i = 0; i < e->owes_count; i++)
		list_remove(&e->owes[i].by_peer);
	list_remove(&e->link);
	e->waiting = false;
}

/* Take what a fired expectation is entitled to (rule 2). */
static void consume(struct imm_table *t, struct imm_value *v, const struct imm_expect *e)
{
	uint64_t left = e->count - e->kept;

	DASSERT(left <= v->total);
	if (left == v->total) {
		imm_value_take_all(t, v);
		return;
	}
	for (uint32_t i = 0; i < e->owes_count && left != 0; i++) {
		const struct imm_owes *o = &e->owes[i];
		struct imm_share *s = o->count ? imm_share_find(t, v, o->peer_slot) : NULL;

		if (s) {
			uint64_t count = min_u64(min_u64(o->count, s->count), left);

			imm_share_take(t, s, count);
			left -= count;
		}
	}
	while (left != 0) {
		struct imm_share *s = imm_share_oldest(v);
		uint64_t count = min_u64(s->count, left);

		imm_share_take(t, s, count);
		left -= count;
	}
}

/* Bring a value whose shares or expectations have changed back in order: fire what is satisfied,
 * then drop the entry if it is empty. */
static void settle(struct imm_table *t, struct imm_value *v, struct list *fired)
{
	v->need = NOBODY_WAITS;
	while (!list_empty(&v->waiting)) {
		struct imm_expect *e = LIST_ENTRY(v->waiting.next, struct imm_expect, link);

		v->need = e->count - e->kept;
		if (v->total < v->need)
			return;
		waiting_remove(e);
		consume(t, v, e);
		list_push_back(fired, &e->link);
		v->need = NOBODY_WAITS;
	}
	imm_value_set_expected(t, v, false);
	imm_value_release(t, v);
}

/* --- the table --- */

wimm_status imm_open(uint32_t unexpected_limit, struct imm_table **out)
{
	struct imm_table *t = mem_calloc(1, sizeof(*t));
	uint64_t seed = 0;

	if (!t)
		return WIMM_E_NOMEM;
	/* Peers choose the values: they must not be able to choose ones that collide. No result
	 * depends on the seed, so a replayed run stays the same; without entropy it is 0. */
	if (rand_bytes(&seed, sizeof(seed)) != WIMM_OK)
		seed = 0;
	hash_init(&t->values, seed);
	hash_init(&t->extra, seed);
	list_init(&t->expected);
	list_init(&t->departed.shares);
	list_init(&t->departed.owes);
	t->departed.slot = IMM_DEPARTED_SLOT;
	list_init(&t->spare_values);
	list_init(&t->spare_shares);
	t->unexpected_limit = unexpected_limit;
	*out = t;
	return WIMM_OK;
}

void imm_close(struct imm_table *t)
{
	if (!t)
		return;
	ASSERT(list_empty(&t->expected));
	imm_store_fini(t);
	mem_free(t);
}

/* The first of a value from this peer, or of any peer. */
static wimm_status arrived_first(struct imm_table *t, uint32_t slot, uint32_t imm, uint64_t count,
                                 struct list *fired)
{
	struct imm_value *v = imm_value_find(t, imm);
	struct imm_peer *p = imm_peer_get(t, slot);
	wimm_status st;

	if (!p)
		return WIMM_E_NOMEM;
	if ((!v || !v->expected) && p->unexpected >= t->unexpected_limit)
		return WIMM_E_LIMIT;
	if (!v)
		v = imm_value_get(t, imm);
	if (!v)
		return WIMM_E_NOMEM;
	st = imm_share_add(t, v, p, count); /* fails on entries with other shares only */
	if (st != WIMM_OK)
		return st;
	if (v->total >= v->need)
		settle(t, v, fired);
	return WIMM_OK;
}

wimm_status imm_arrived(struct imm_table *t, uint32_t peer_slot, uint32_t imm, uint64_t count,
                        struct list *fired)
{
	struct imm_value *v = t->recent;
	struct imm_share *s;

	if (!v || v->imm != imm)
		v = t->recent = imm_value_find(t, imm);
	s = v ? imm_share_find(t, v, peer_slot) : NULL;
	if (count == 0)
		return WIMM_OK;
	/* NOBODY_WAITS must stay out of reach of every total. */
	if (count >= UINT64_MAX - (v ? v->total : 0))
		return WIMM_E_LIMIT;
	if (!s)
		return arrived_first(t, peer_slot, imm, count, fired);
	s->count += count;
	v->total += count;
	v->last = s;
	if (v->total >= v->need)
		settle(t, v, fired);
	return WIMM_OK;
}

wimm_status imm_expect(struct imm_table *t, struct imm_expect *e, struct list *fired)
{
	struct imm_value *v = imm_value_find(t, e->imm);

	ASSERT(e->count != 0 && e->count <= UINT64_C(1) << 63);
	if (v && !v->expected && v->total >= e->count) {
		e->kept = 0;
		e->waiting = false;
		consume(t, v, e);
		imm_value_release(t, v);
		list_push_back(fired, &e->link);
		return WIMM_OK;
	}
	for (uint32_t i = 0; i < e->owes_count; i++) {
		if (!imm_peer_get(t, e->owes[i].peer_slot))
			return WIMM_E_NOMEM;
	}
	v = imm_value_get(t, e->imm);
	if (!v)
		return WIMM_E_NOMEM;
	for (uint32_t i = 0; i < e->owes_count; i++) {
		struct imm_owes *o = &e->owes[i];

		o->owner = e;
		list_init(&o->by_peer);
		if (o->count != 0)
			list_push_back(&imm_peer_find(t, o->peer_slot)->owes, &o->by_peer);
	}
	e->kept = 0;
	e->waiting = true;
	if (list_empty(&v->waiting))
		v->need = e->count;
	list_push_back(&v->waiting, &e->link);
	imm_value_set_expected(t, v, true);
	return WIMM_OK;
}

void imm_cancel(struct imm_table *t, struct imm_expect *e, struct list *fired)
{
	struct imm_value *v = imm_value_find(t, e->imm);

	ASSERT(e->waiting && v);
	waiting_remove(e);
	settle(t, v, fired);
}

wimm_status imm_peer_renamed(struct imm_table *t, uint32_t from_slot, uint32_t to_slot)
{
	struct imm_peer *from = imm_peer_find(t, from_slot), *to;

	if (!from || list_empty(&from->owes))
		return WIMM_OK;
	to = imm_peer_get(t, to_slot);
	if (!to)
		return WIMM_E_NOMEM;
	LIST_FOR_EACH(it, &from->owes)
		LIST_ENTRY(it, struct imm_owes, by_peer)->peer_slot = to_slot;
	list_splice_back(&to->owes, &from->owes);
	return WIMM_OK;
}

uint64_t imm_count(const struct imm_table *t, uint32_t imm)
{
	const struct imm_value *v = t->recent;

	if (!v || v->imm != imm)
		v = imm_value_find(t, imm);
	return v ? v->total : 0;
}

uint64_t imm_forget(struct imm_table *t, uint32_t imm)
{
	struct imm_value *v = imm_value_find(t, imm);
	uint64_t count = v ? v->total : 0;

	if (v) {
		imm_value_take_all(t, v);
		imm_value_release(t, v);
	}
	return count;
}

/* What a waiting expectation names of a peer; *out_open: what it names of nobody. */
static uint64_t named_of(const struct imm_expect *e, uint32_t slot, uint64_t *out_open)
{
	uint64_t open = e->count - e->kept, named = 0;

	for (uint32_t i = 0; i < e->owes_count; i++) {
		open -= min_u64(open, e->owes[i].count);
		if (e->owes[i].peer_slot == slot)
			named += e->owes[i].count;
	}
	*out_open = open;
	return named;
}

/* An expectation's peer has delivered what is named of it: owed no more. kept: turn it into the
 * expectation's own, since the share goes. */
static void keep(struct imm_expect *e, uint32_t slot, bool kept)
{
	for (uint32_t i = 0; i < e->owes_count; i++) {
		struct imm_owes *o = &e->owes[i];

		if (o->peer_slot == slot) {
			e->kept += kept ? o->count : 0;
			o->count = 0;
			list_remove(&o->by_peer);
		}
	}
}

/* Decide over the expectations of one value that name a lost peer (rule 3). stays: its share
 * does. */
static void lose_named(struct imm_table *t, struct imm_value *v, uint32_t slot, bool stays,
                       struct list *failed)
{
	const struct imm_share *s = imm_share_find(t, v, slot);
	uint64_t left = s ? s->count : 0;

	LIST_FOR_EACH(it, &v->waiting) {
		struct imm_expect *e = LIST_ENTRY(it, struct imm_expect, link);
		uint64_t open, named = named_of(e, slot, &open);

		if (named > left) {
			waiting_remove(e);
			e->lost_peer_slot = slot;
			list_push_back(failed, &e->link);
		} else if (named != 0) {
			keep(e, slot, !stays);
		}
		left -= min_u64(left, named);
		left -= min_u64(left, open);
	}
}

/* Give what is left of a share to nobody in particular, within the limit of a peer. */
static void share_depart(struct imm_table *t, struct imm_share *s)
{
	struct imm_value *v = s->value;
	struct imm_share *d = imm_share_find(t, v, IMM_DEPARTED_SLOT);
	uint64_t count = s->count;

	if (d) {
		imm_share_take(t, s, count);
		d->count += count;
		v->total += count;
	} else if (v->expected || t->departed.unexpected < t->unexpected_limit) {
		imm_share_rename(t, s, &t->departed);
	} else {
		imm_share_take(t, s, count);
		imm_value_release(t, v);
	}
}

static void share_drop(struct imm_table *t, struct imm_share *s)
{
	struct imm_value *v = s->value;

	imm_share_take(t, s, s->count);
	imm_value_release(t, v);
}

static void peer_gone(struct imm_table *t, uint32_t peer_slot, struct list *failed,
                      struct list *fired, bool stays)
{
	void (*dispose)(struct imm_table *, struct imm_share *) = stays ? share_depart : share_drop;
	struct imm_peer *p = imm_peer_find(t, peer_slot);

	if (!p)
		return;
	while (!list_empty(&p->owes)) {
		const struct imm_owes *o = LIST_ENTRY(p->owes.next, struct imm_owes, by_peer);
		struct imm_value *v = imm_value_find(t, o->owner->imm);
		struct imm_share *s;

		lose_named(t, v, peer_slot, stays, failed);
		s = imm_share_find(t, v, peer_slot);
		if (s)
			dispose(t, s); /* somebody waits or waited: settle() looks at the value */
		settle(t, v, fired);
	}
	while (!list_empty(&p->shares))
		dispose(t, LIST_ENTRY(p->shares.next, struct imm_share, by_peer));
	DASSERT(p->unexpected == 0);
}

void imm_peer_lost(struct imm_table *t, uint32_t peer_slot, struct list *failed, struct list *fired)
{
	peer_gone(t, peer_slot, failed, fired, false);
}

void imm_peer_left(struct imm_table *t, uint32_t peer_slot, struct list *failed, struct list *fired)
{
	peer_gone(t, peer_slot, failed, fired, true);
}

void imm_take_all(struct imm_table *t, struct list *out)
{
	struct list *link;

	while ((link = t->expected.next) != &t->expected) {
		struct imm_value *v = LIST_ENTRY(link, struct imm_value, link);

		while (!list_empty(&v->waiting)) {
			struct imm_expect *e = LIST_ENTRY(v->waiting.next, struct imm_expect, link);

			waiting_remove(e);
			list_push_back(out, &e->link);
		}
		v->need = NOBODY_WAITS;
		imm_value_set_expected(t, v, false);
		imm_value_release(t, v);
	}
}

uint32_t imm_first_expected(const struct imm_table *t, struct imm_expect **out, uint32_t room)
{
	uint32_t n = 0;

	LIST_FOR_EACH(it, &t->expected) {
		const struct imm_value *v = LIST_ENTRY(it, struct imm_value, link);

		if (n == room)
			break;
		if (!list_empty(&v->waiting))
			out[n++] = LIST_ENTRY(v->waiting.next, struct imm_expect, link);
	}
	return n;
}

uint64_t imm_values(const struct imm_table *t)
{
	return t->values.count;
}
