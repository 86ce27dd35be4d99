/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include "plat/clock.h"
#include "prov/loop.h"

#include <string.h>

enum { OBJS = 4, EVENTS = 8 };

struct thing {
	struct prov_obj obj;
	uint32_t steps;
	uint32_t events;          /* still to be told */
	struct thing *wakes;      /* made ready by each step */
	uint32_t freed;
};

struct world {
	struct prov_loop loop;
	struct list all;
	struct thing thing[OBJS];
};

static void world_init(struct world *w)
{
	memset(w, 0, sizeof(*w));
	prov_loop_init(&w->loop);
	list_init(&w->all);
	for (int i = 0; i < OBJS; i++)
		prov_obj_init(&w->thing[i].obj, &w->loop, i, &w->all);
}

/* Tells one event at a time. */
static bool step(struct prov_obj *obj, struct prov_emit *emit)
{
	struct thing *t = LIST_ENTRY(obj, struct thing, obj);

	t->steps++;
	if (t->wakes)
		prov_obj_ready(&t->wakes->obj);
	if (t->events == 0 || prov_emit_full(emit))
		return t->events != 0;
	(void)prov_emit_next(emit, PROV_DONE, t);
	return --t->events != 0;
}

static void free_thing(struct prov_obj *obj)
{
	LIST_ENTRY(obj, struct thing, obj)->freed++;
}

static uint32_t turn(struct world *w, struct prov_cqe *out, uint32_t max)
{
	struct prov_emit emit = { .out = out, .max = max };

	prov_loop_turn(&w->loop, &emit, step);
	return emit.count;
}

static void loop_steps_each_ready_object_once_a_turn(void **state)
{
	/* Goal: what becomes ready meanwhile waits for the next turn, also when it is itself. */
	struct prov_cqe out[EVENTS];
	struct world w;

	(void)state;
	world_init(&w);
	w.thing[0].events = 2;
	w.thing[0].wakes = &w.thing[1];
	prov_obj_ready(&w.thing[0].obj);
	prov_obj_ready(&w.thing[0].obj); /* twice is once */
	assert_int_equal(turn(&w, out, EVENTS), 1);
	assert_int_equal(w.thing[0].steps, 1);
	assert_int_equal(w.thing[1].steps, 0);
	assert_int_equal(turn(&w, out, EVENTS), 1);
	assert_int_equal(w.thing[0].steps, 2);
	assert_int_equal(w.thing[1].steps, 1);
	w.thing[0].wakes = NULL;
	assert_int_equal(turn(&w, out, EVENTS), 0);
	assert_int_equal(turn(&w, out, EVENTS), 0);
	assert_int_equal(w.thing[0].steps, 2);
	assert_int_equal(w.thing[1].steps, 2);
}

static void loop_a_full_array_loses_no_event_and_starves_nobody(void **state)
{
	/* Goal: with room for one event a turn, busy objects take turns until all is told. */
	struct prov_cqe out[1];
	struct world w;
	uint32_t told[OBJS] = { 0 }, turns = 0;

	(void)state;
	world_init(&w);
	for (int i = 0; i < OBJS; i++) {
		w.thing[i].events = 3;
		prov_obj_ready(&w.thing[i].obj);
	}
	while (turn(&w, out, 1) == 1) {
		const struct thing *t = out[0].context;

		told[t->obj.kind]++;
		turns++;
		if (turns % OBJS == 0)
			for (int i = 0; i < OBJS; i++)
				assert_int_equal(told[i], turns / OBJS);
	}
	assert_int_equal(turns, 3 * OBJS);
}

static void loop_fires_a_timer_once_and_knows_the_next(void **state)
{
	/* Goal: due timers make their objects ready; the earliest other one is the next turn. */
	struct prov_cqe out[EVENTS];
	struct world w;
	uint64_t now;

	(void)state;
	world_init(&w);
	assert_int_equal(prov_loop_next_ns(&w.loop), CLOCK_NEVER_NS);
	prov_obj_timer(&w.thing[0].obj, 10);
	prov_obj_timer(&w.thing[1].obj, 5000);
	prov_obj_timer(&w.thing[2].obj, 20000);
	now = w.thing[0].obj.deadline_ns;
	assert_int_equal(prov_loop_next_ns(&w.loop), now);
	w.loop.now_ns = now - 1;
	prov_loop_timers(&w.loop);
	assert_false(w.thing[0].obj.expired);
	w.loop.now_ns = now;
	prov_loop_timers(&w.loop);
	assert_true(w.thing[0].obj.expired);
	assert_int_equal(prov_loop_next_ns(&w.loop), now); /* it is ready */
	(void)turn(&w, out, EVENTS);
	assert_int_equal(w.thing[0].steps, 1);
	assert_int_equal(prov_loop_next_ns(&w.loop), w.thing[1].obj.deadline_ns);
	prov_obj_timer_off(&w.thing[1].obj);
	prov_obj_timer_off(&w.thing[2].obj);
	assert_int_equal(prov_loop_next_ns(&w.loop), CLOCK_NEVER_NS);
}

static void loop_frees_a_killed_object_at_the_next_turn(void **state)
{
	/* Goal: killed while ready and timed, it is stepped no more and given away once. */
	struct prov_cqe out[EVENTS];
	struct world w;

	(void)state;
	world_init(&w);
	prov_obj_ready(&w.thing[0].obj);
	prov_obj_timer(&w.thing[0].obj, 1);
	prov_obj_kill(&w.thing[0].obj);
	assert_int_equal(w.thing[0].freed, 0);
	prov_loop_reap(&w.loop, free_thing);
	prov_loop_reap(&w.loop, free_thing);
	assert_int_equal(w.thing[0].freed, 1);
	w.loop.now_ns = UINT64_MAX - 1;
	prov_loop_timers(&w.loop);
	assert_int_equal(turn(&w, out, EVENTS), 0);
	assert_int_equal(w.thing[0].steps, 0);
}

static void loop_counts_only_equal_neighbours_together(void **state)
{
	/* Goal: the last event is found again only for the same kind and object. */
	struct prov_cqe out[2];
	struct prov_emit emit = { .out = out, .max = 2 };
	int a, b;

	(void)state;
	assert_null(prov_emit_last(&emit, PROV_DONE, &a));
	(void)prov_emit_next(&emit, PROV_DONE, &a);
	assert_ptr_equal(prov_emit_last(&emit, PROV_DONE, &a), &out[0]);
	assert_null(prov_emit_last(&emit, PROV_DONE, &b));
	assert_null(prov_emit_last(&emit, PROV_IMM, &a));
	assert_false(prov_emit_full(&emit));
	(void)prov_emit_next(&emit, PROV_IMM, &b);
	assert_true(prov_emit_full(&emit));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(loop_steps_each_ready_object_once_a_turn),
		cmocka_unit_test(loop_a_full_array_loses_no_event_and_starves_nobody),
		cmocka_unit_test(loop_fires_a_timer_once_and_knows_the_next),
		cmocka_unit_test(loop_frees_a_killed_object_at_the_next_turn),
		cmocka_unit_test(loop_counts_only_equal_neighbours_together),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
