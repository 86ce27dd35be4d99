/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include "base/alloc.h"
#include "core/imm.h"
#include "plat/rand.h"

#include <inttypes.h>
#include <string.h>

/* imm.c against a model that keeps plain arrays, searches them from end to end, and follows the
 * rules of imm.h literally. Random calls go to both; every answer is compared. */

enum { VALUES = 5, PEERS = 4, SLOTS = 48, LIMIT = 3 };

struct model_expect {
	bool used;
	uint32_t value;
	uint64_t seq; /* order of expecting */
	uint64_t count, kept;
	uint64_t owes[PEERS]; /* still named; 0 once kept */
	uint32_t lost_peer;
};

struct model {
	uint64_t share[VALUES][PEERS];
	uint64_t since[VALUES][PEERS]; /* when the share began */
	struct model_expect expect[SLOTS];
	uint64_t clock;
	uint32_t fired[SLOTS], failed[SLOTS];
	uint32_t fired_count, failed_count;
};

struct world {
	struct model m;
	struct imm_table *t;
	struct imm_expect expect[SLOTS];
	struct imm_owes owes[SLOTS][PEERS];
	struct list fired, failed;
	struct rng r;
	uint64_t seen_fired, seen_failed, seen_kept, seen_limit, seen_nomem;
};

static const uint32_t imm_of[VALUES] = { 0, UINT32_MAX, 0x80000000, 7, 0x00070000 };

static uint64_t smaller(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* --- the model --- */

static uint64_t model_total(const struct model *m, uint32_t value)
{
	uint64_t total = 0;

	for (uint32_t p = 0; p < PEERS; p++)
		total += m->share[value][p];
	return total;
}

/* The earliest expectation of a value that came after `seq`; NULL if none. */
static struct model_expect *model_next(struct model *m, uint32_t value, uint64_t seq)
{
	struct model_expect *found = NULL;

	for (uint32_t i = 0; i < SLOTS; i++) {
		struct model_expect *e = &m->expect[i];

		if (e->used && e->value == value && e->seq > seq && (!found || e->seq < found->seq))
			found = e;
	}
	return found;
}

static void model_take(struct model *m, uint32_t value, uint32_t peer, uint64_t most,
                       uint64_t *left)
{
	uint64_t count = smaller(smaller(most, m->share[value][peer]), *left);

	m->share[value][peer] -= count;
	*left -= count;
}

static void model_fire(struct model *m, uint32_t value)
{
	struct model_expect *e;

	while ((e = model_next(m, value, 0)) && model_total(m, value) + e->kept >= e->count) {
		uint64_t left = e->count - e->kept;

		for (uint32_t p = 0; p < PEERS; p++)
			model_take(m, value, p, e->owes[p], &left);
		while (left != 0) {
			uint32_t oldest = PEERS;

			for (uint32_t p = 0; p < PEERS; p++) {
				if (m->share[value][p] != 0 &&
				    (oldest == PEERS ||
				     m->since[value][p] < m->since[value][oldest]))
					oldest = p;
			}
			model_take(m, value, oldest, UINT64_MAX, &left);
		}
		e->used = false;
		m->fired[m->fired_count++] = (uint32_t)(e - m->expect);
	}
}

static bool model_over_limit(struct model *m, uint32_t value, uint32_t peer)
{
	uint32_t unexpected = 0;

	for (uint32_t v = 0; v < VALUES; v++)
		unexpected += m->share[v][peer] != 0 && !model_next(m, v, 0);
	return m->share[value][peer] == 0 && !model_next(m, value, 0) && unexpected >= LIMIT;
}

static void model_arrived(struct model *m, uint32_t value, uint32_t peer, uint64_t count)
{
	if (m->share[value][peer] == 0)
		m->since[value][peer] = ++m->clock;
	m->share[value][peer] += count;
	model_fire(m, value);
}

static void model_lost_value(struct model *m, uint32_t value, uint32_t peer)
{
	uint64_t left = m->share[value][peer];
	struct model_expect *e;

	for (uint64_t seq = 0; (e = model_next(m, value, seq)); seq = e->seq) {
		uint64_t named = e->owes[peer], open = e->count - e->kept;

		for (uint32_t p = 0; p < PEERS; p++)
			open -= e->owes[p];
		if (named > left) {
			e->used = false;
			e->lost_peer = peer;
			m->failed[m->failed_count++] = (uint32_t)(e - m->expect);
		} else {
			e->kept += named;
			e->owes[peer] = 0;
		}
		left -= smaller(left, named + open);
	}
	m->share[value][peer] = 0;
	model_fire(m, value);
}

static void model_lost(struct model *m, uint32_t peer)
{
	for (;;) {
		const struct model_expect *first = NULL;

		for (uint32_t i = 0; i < SLOTS; i++) {
			const struct model_expect *e = &m->expect[i];

			if (e->used && e->owes[peer] != 0 && (!first || e->seq < first->seq))
				first = e;
		}
		if (!first)
			break;
		model_lost_value(m, first->value, peer);
	}
	for (uint32_t v = 0; v < VALUES; v++)
		m->share[v][peer] = 0;
}

/* --- comparing --- */

static void compare_list(struct world *w, struct list *l, const uint32_t *want, uint32_t count,
                         bool lost)
{
	struct list *link;

	for (uint32_t i = 0; i < count; i++) {
		const struct imm_expect *e;

		link = list_pop_front(l);
		assert_non_null(link);
		e = LIST_ENTRY(link, struct imm_expect, link);
		assert_int_equal(e - w->expect, want[i]);
		assert_false(e->waiting);
		if (lost)
			assert_int_equal(e->lost_peer_slot, w->m.expect[want[i]].lost_peer);
	}
	assert_null(list_pop_front(l));
}

static void compare(struct world *w)
{
	uint64_t entries = 0;

	w->seen_fired += w->m.fired_count;
	w->seen_failed += w->m.failed_count;
	compare_list(w, &w->failed, w->m.failed, w->m.failed_count, true);
	compare_list(w, &w->fired, w->m.fired, w->m.fired_count, false);
	w->m.failed_count = w->m.fired_count = 0;
	for (uint32_t v = 0; v < VALUES; v++) {
		uint64_t total = model_total(&w->m, v);

		assert_true(imm_count(w->t, imm_of[v]) == total);
		entries += total != 0 || model_next(&w->m, v, 0);
	}
	assert_true(imm_values(w->t) == entries);
	for (uint32_t i = 0; i < SLOTS; i++) {
		assert_int_equal(w->expect[i].waiting, w->m.expect[i].used);
		if (w->m.expect[i].used)
			assert_true(w->expect[i].kept == w->m.expect[i].kept);
		w->seen_kept += w->m.expect[i].used && w->m.expect[i].kept != 0;
	}
}

/* --- the calls --- */

/* Whether a call failed for the memory that was denied to it; nothing may have changed then. */
static bool out_of_memory(struct world *w, wimm_status st)
{
	bool denied = mem_fail_fired();

	mem_fail_nth(0);
	if (!denied)
		return false;
	assert_int_equal(st, WIMM_E_NOMEM);
	w->seen_nomem++;
	return true;
}

static void do_arrive(struct world *w)
{
	uint32_t v = (uint32_t)rng_below(&w->r, VALUES), p = (uint32_t)rng_below(&w->r, PEERS);
	uint64_t count = rng_between(&w->r, 1, 4);
	wimm_status st = imm_arrived(w->t, p, imm_of[v], count, &w->fired);

	if (out_of_memory(w, st))
		return;
	if (model_over_limit(&w->m, v, p)) {
		assert_int_equal(st, WIMM_E_LIMIT);
		w->seen_limit++;
		return;
	}
	assert_ok(st);
	model_arrived(&w->m, v, p, count);
}

static void do_expect(struct world *w)
{
	uint32_t i = (uint32_t)rng_below(&w->r, SLOTS), v = (uint32_t)rng_below(&w->r, VALUES);
	struct model_expect *me = &w->m.expect[i];
	struct imm_expect *e = &w->expect[i];
	struct model_expect made = { .used = true, .value = v, .seq = ++w->m.clock };
	wimm_status st;

	if (me->used)
		return;
	*e = (struct imm_expect){ .imm = imm_of[v], .owes = w->owes[i] };
	for (uint32_t p = 0; p < PEERS && rng_chance(&w->r, 2, 3); p++) {
		uint32_t peer = (uint32_t)rng_below(&w->r, PEERS); /* one may be named twice */

		w->owes[i][e->owes_count] =
			(struct imm_owes){ .peer_slot = peer, .count = rng_below(&w->r, 4) };
		made.owes[peer] += w->owes[i][e->owes_count].count;
		made.count += w->owes[i][e->owes_count++].count;
	}
	made.count += rng_below(&w->r, 4);
	made.count += made.count == 0;
	e->count = made.count;
	st = imm_expect(w->t, e, &w->fired);
	if (out_of_memory(w, st)) {
		assert_false(e->waiting);
		return;
	}
	assert_ok(st);
	*me = made;
	model_fire(&w->m, v);
}

static void do_cancel(struct world *w)
{
	uint32_t i = (uint32_t)rng_below(&w->r, SLOTS);

	if (!w->m.expect[i].used)
		return;
	imm_cancel(w->t, &w->expect[i], &w->fired);
	w->m.expect[i].used = false;
	model_fire(&w->m, w->m.expect[i].value);
}

static void do_forget(struct world *w)
{
	uint32_t v = (uint32_t)rng_below(&w->r, VALUES);

	assert_true(imm_forget(w->t, imm_of[v]) == model_total(&w->m, v));
	memset(w->m.share[v], 0, sizeof(w->m.share[v]));
}

static void do_lose(struct world *w)
{
	uint32_t p = (uint32_t)rng_below(&w->r, PEERS);

	imm_peer_lost(w->t, p, &w->failed, &w->fired);
	model_lost(&w->m, p);
}

static void run(struct world *w, uint64_t seed, uint32_t steps)
{
	struct list rest;

	memset(&w->m, 0, sizeof(w->m));
	memset(w->expect, 0, sizeof(w->expect));
	rng_init(&w->r, seed);
	list_init(&w->fired);
	list_init(&w->failed);
	assert_ok(imm_open(LIMIT, &w->t));
	for (uint32_t step = 0; step < steps; step++) {
		uint64_t dice = rng_below(&w->r, 100);

		if (rng_chance(&w->r, 1, 8))
			mem_fail_nth(rng_between(&w->r, 1, 3));
		if (dice < 45)
			do_arrive(w);
		else if (dice < 75)
			do_expect(w);
		else if (dice < 90)
			do_cancel(w);
		else if (dice < 94)
			do_forget(w);
		else
			do_lose(w);
		mem_fail_nth(0);
		compare(w);
	}
	list_init(&rest);
	imm_take_all(w->t, &rest);
	imm_close(w->t);
}

static void imm_random_calls_agree_with_the_model(void **state)
{
	/* Goal: no sequence of calls, failed allocations included, departs from the rules. */
	uint64_t seed = test_seed(2), before = mem_live_blocks();
	uint32_t rounds = 4000 * test_scale();
	struct world w = { .t = NULL };

	(void)state;
	for (uint32_t i = 0; i < rounds; i++)
		run(&w, seed + i, 250);
	assert_true(mem_live_blocks() == before);
	print_message("%" PRIu64 " fired, %" PRIu64 " failed, %" PRIu64 " kept, %" PRIu64
	              " over the limit, %" PRIu64 " out of memory\n",
	              w.seen_fired, w.seen_failed, w.seen_kept, w.seen_limit, w.seen_nomem);
	/* Each kind of event must have been met, or the comparison says little. */
	assert_true(w.seen_fired > rounds && w.seen_failed > rounds && w.seen_kept > rounds);
	assert_true(w.seen_limit > rounds && w.seen_nomem > rounds / 4);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(imm_random_calls_agree_with_the_model),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
