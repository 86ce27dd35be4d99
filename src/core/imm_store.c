/* SPDX-License-Identifier: Apache-2.0 */
#include "core/imm_store.h"

#include "base/alloc.h"
#include "base/assert.h"

/* Unused entries kept for later: the steady state allocates nothing, a burst is given back. */
enum { SPARE_MAX = 4096, PEERS_MIN = 16 };

static uint64_t extra_key(uint32_t imm, uint32_t slot)
{
	return (uint64_t)imm << 32 | slot;
}

/* --- peers --- */

struct imm_peer *imm_peer_get(struct imm_table *t, uint32_t slot)
{
	struct imm_peer *p = imm_peer_find(t, slot);

	if (p)
		return p;
	if (slot >= t->peer_slots) {
		uint64_t slots = t->peer_slots ? t->peer_slots : PEERS_MIN;
		struct imm_peer **grown;

		while (slots <= slot)
			slots *= 2;
		if (slots > UINT32_MAX)
			return NULL;
		grown = mem_realloc(t->peers, slots * sizeof(struct imm_peer *));
		if (!grown)
			return NULL;
		for (uint64_t i = t->peer_slots; i < slots; i++)
			grown[i] = NULL;
		t->peers = grown;
		t->peer_slots = (uint32_t)slots;
	}
	p = mem_calloc(1, sizeof(*p));
	if (!p)
		return NULL;
	list_init(&p->shares);
	list_init(&p->owes);
	p->slot = slot;
	t->peers[slot] = p;
	return p;
}

/* --- shares --- */

struct imm_share *imm_share_find_far(const struct imm_table *t, struct imm_value *v, uint32_t slot)
{
	if (v->first.count != 0 && v->first.slot == slot)
		return &v->first;
	if (v->extra_count == 0)
		return NULL;
	return hash_find_ptr(&t->extra, extra_key(v->imm, slot));
}

static void share_put(struct imm_table *t, struct imm_share *s)
{
	if (t->spare_share_count >= SPARE_MAX) {
		mem_free(s);
		return;
	}
	t->spare_share_count++;
	list_push_front(&t->spare_shares, &s->by_value);
}

/* Memory for a further share of a value; NULL when out of it. */
static struct imm_share *share_get(struct imm_table *t, struct imm_value *v, uint32_t slot)
{
	struct list *link;
	struct imm_share *s;

	if (v->first.count == 0)
		return &v->first;
	link = list_pop_front(&t->spare_shares);
	if (link) {
		t->spare_share_count--;
		s = LIST_ENTRY(link, struct imm_share, by_value);
	} else {
		s = mem_alloc(sizeof(*s));
		if (!s)
			return NULL;
	}
	if (hash_insert_ptr(&t->extra, extra_key(v->imm, slot), s) != WIMM_OK) {
		share_put(t, s);
		return NULL;
	}
	v->extra_count++;
	return s;
}

wimm_status imm_share_add(struct imm_table *t, struct imm_value *v, struct imm_peer *p,
                          uint64_t count)
{
	struct imm_share *s = share_get(t, v, p->slot);

	if (!s)
		return WIMM_E_NOMEM;
	s->value = v;
	s->peer = p;
	s->slot = p->slot;
	s->count = count;
	list_push_back(&v->shares, &s->by_value);
	list_push_back(&p->shares, &s->by_peer);
	v->total += count;
	v->last = s;
	if (!v->expected)
		p->unexpected++;
	return WIMM_OK;
}

void imm_share_take(struct imm_table *t, struct imm_share *s, uint64_t count)
{
	struct imm_value *v = s->value;

	DASSERT(count <= s->count);
	s->count -= count;
	v->total -= count;
	if (s->count != 0)
		return;
	list_remove(&s->by_value);
	list_remove(&s->by_peer);
	if (v->last == s)
		v->last = NULL;
	if (!v->expected)
		s->peer->unexpected--;
	if (s == &v->first)
		return;
	(void)hash_remove(&t->extra, extra_key(v->imm, s->slot));
	v->extra_count--;
	share_put(t, s);
}

void imm_share_rename(struct imm_table *t, struct imm_share *s, struct imm_peer *to)
{
	struct imm_value *v = s->value;

	if (s != &v->first) {
		/* As many keys as before, so the map does not grow and cannot fail. */
		(void)hash_remove(&t->extra, extra_key(v->imm, s->slot));
		ASSERT(hash_insert_ptr(&t->extra, extra_key(v->imm, to->slot), s) == WIMM_OK);
	}
	if (!v->expected) {
		s->peer->unexpected--;
		to->unexpected++;
	}
	list_remove(&s->by_peer);
	list_push_back(&to->shares, &s->by_peer);
	s->slot = to->slot;
	s->peer = to;
}

/* --- values --- */

static void value_put(struct imm_table *t, struct imm_value *v)
{
	if (t->spare_value_count >= SPARE_MAX) {
		mem_free(v);
		return;
	}
	t->spare_value_count++;
	list_push_front(&t->spare_values, &v->link);
}

struct imm_value *imm_value_get(struct imm_table *t, uint32_t imm)
{
	struct imm_value *v = imm_value_find(t, imm);
	struct list *link;

	if (v)
		return v;
	link = list_pop_front(&t->spare_values);
	if (link) {
		t->spare_value_count--;
		v = LIST_ENTRY(link, struct imm_value, link);
	} else {
		v = mem_alloc(sizeof(*v));
		if (!v)
			return NULL;
	}
	*v = (struct imm_value){ .imm = imm, .need = NOBODY_WAITS };
	list_init(&v->shares);
	list_init(&v->waiting);
	list_init(&v->link);
	if (hash_insert_ptr(&t->values, imm, v) != WIMM_OK) {
		value_put(t, v);
		return NULL;
	}
	return v;
}

void imm_value_release(struct imm_table *t, struct imm_value *v)
{
	if (v->total != 0 || v->expected)
		return;
	(void)hash_remove(&t->values, v->imm);
	if (t->recent == v)
		t->recent = NULL;
	value_put(t, v);
}

void imm_value_set_expected(struct imm_table *t, struct imm_value *v, bool expected)
{
	if (v->expected == expected)
		return;
	v->expected = expected;
	if (expected)
		list_push_back(&t->expected, &v->link);
	else
		list_remove(&v->link);
	LIST_FOR_EACH(it, &v->shares) {
		struct imm_peer *p = LIST_ENTRY(it, struct imm_share, by_value)->peer;

		if (expected)
			p->unexpected--;
		else
			p->unexpected++;
	}
}

void imm_value_take_all(struct imm_table *t, struct imm_value *v)
{
	while (!list_empty(&v->shares)) {
		struct imm_share *s = imm_share_oldest(v);

		imm_share_take(t, s, s->count);
	}
}

void imm_store_fini(struct imm_table *t)
{
	struct list *link;
	uint64_t key, value;
	uint32_t cursor = 0;

	while (hash_next(&t->values, &cursor, &key, &value)) {
		struct imm_value *v = (struct imm_value *)(uintptr_t)value;

		imm_value_take_all(t, v);
		value_put(t, v);
	}
	while ((link = list_pop_front(&t->spare_values)) != NULL)
		mem_free(LIST_ENTRY(link, struct imm_value, link));
	while ((link = list_pop_front(&t->spare_shares)) != NULL)
		mem_free(LIST_ENTRY(link, struct imm_share, by_value));
	for (uint32_t i = 0; i < t->peer_slots; i++)
		mem_free(t->peers[i]);
	mem_free(t->peers);
	hash_fini(&t->extra);
	hash_fini(&t->values);
}
