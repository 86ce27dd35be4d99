/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include "base/alloc.h"
#include "prov/sim/sim_int.h"

#define EVENTS 300

static void heap_gives_events_in_the_order_of_time_then_tie_then_pushing(void **state)
{
	/* Goal: whatever order they are pushed and removed in, what remains comes out sorted. */
	static struct sim_event event[EVENTS];
	struct sim_heap heap = { 0 };
	struct sim_event *last = NULL, *top;
	struct rng rng;
	uint32_t left = 0;

	(void)state;
	rng_init(&rng, test_seed(7));
	assert_true(sim_heap_reserve(&heap, EVENTS));
	for (uint32_t i = 0; i < EVENTS; i++) {
		sim_event_init(&event[i], EV_ACK, NULL, i);
		event[i].at_ns = rng_below(&rng, 40);
		event[i].tie = rng_below(&rng, 3);
		event[i].seq = i;
		sim_heap_push(&heap, &event[i]);
	}
	for (uint32_t i = 0; i < EVENTS; i += 3)
		sim_heap_remove(&heap, &event[i]);
	while ((top = sim_heap_top(&heap)) != NULL) {
		sim_heap_remove(&heap, top);
		assert_int_not_equal(top->arg % 3, 0);
		if (last) {
			assert_true(last->at_ns <= top->at_ns);
			if (last->at_ns == top->at_ns)
				assert_true(last->tie < top->tie ||
				            (last->tie == top->tie && last->seq < top->seq));
		}
		last = top;
		left++;
	}
	assert_int_equal(left, EVENTS - EVENTS / 3);
	sim_heap_unreserve(&heap, EVENTS);
	sim_heap_fini(&heap);
	assert_int_equal(mem_live_blocks(), 0);
}

static void heap_without_memory_refuses_room_and_keeps_what_it_has(void **state)
{
	/* Goal: a reservation that fails changes nothing; pushing within an old one still works. */
	struct sim_heap heap = { 0 };
	struct sim_event event;

	(void)state;
	assert_true(sim_heap_reserve(&heap, 1));
	mem_fail_nth(1);
	assert_false(sim_heap_reserve(&heap, 1000));
	mem_fail_nth(0);
	assert_int_equal(heap.events, 1);
	sim_event_init(&event, EV_ACK, NULL, 0);
	sim_heap_push(&heap, &event);
	assert_ptr_equal(sim_heap_top(&heap), &event);
	sim_heap_fini(&heap);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(heap_gives_events_in_the_order_of_time_then_tie_then_pushing),
		cmocka_unit_test(heap_without_memory_refuses_room_and_keeps_what_it_has),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
