/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include "base/alloc.h"
#include "plat/clock.h"
#include "plat/thread.h"
#include "queue/mpsc.h"

enum { PRODUCERS = 3 };

struct item {
	struct mpsc_node node; /* first: a node is its item */
	uint32_t producer;
	uint32_t number;
};

static void mpsc_pops_in_order_of_pushes(void **state)
{
	/* Goal: first in first out through empty and full phases; nodes can be pushed again. */
	struct item items[3] = { { .number = 0 }, { .number = 1 }, { .number = 2 } };
	struct mpsc q;

	(void)state;
	mpsc_init(&q);
	assert_true(mpsc_empty_hint(&q));
	assert_null(mpsc_pop(&q));
	for (uint32_t round = 0; round < 5; round++) {
		uint32_t count = round % 3 + 1;

		for (uint32_t i = 0; i < count; i++)
			mpsc_push(&q, &items[i].node);
		assert_false(mpsc_empty_hint(&q));
		for (uint32_t i = 0; i < count; i++)
			assert_ptr_equal(mpsc_pop(&q), &items[i].node);
		assert_null(mpsc_pop(&q));
		assert_true(mpsc_empty_hint(&q));
	}
}

static void mpsc_pop_during_a_push_gives_nothing_and_is_not_empty(void **state)
{
	/* Goal: between a producer's two steps the owner gets NULL, does not take the queue for
	 * empty, and finds the node afterwards. */
	struct item first = { .number = 1 };
	struct item second = { .number = 2 };
	struct mpsc_node *prev;
	struct mpsc q;

	(void)state;
	mpsc_init(&q);
	mpsc_push(&q, &first.node);
	atomic_store_explicit(&second.node.next, NULL, memory_order_relaxed);
	prev = atomic_exchange_explicit(&q.tail, &second.node, memory_order_acq_rel);
	assert_null(mpsc_pop(&q)); /* `first` may not leave: its successor is unknown */
	assert_false(mpsc_empty_hint(&q));
	atomic_store_explicit(&prev->next, &second.node, memory_order_release);
	assert_ptr_equal(mpsc_pop(&q), &first.node);
	assert_ptr_equal(mpsc_pop(&q), &second.node);
	assert_null(mpsc_pop(&q));
}

struct producer {
	struct plat_thread thread;
	struct mpsc *queue;
	struct item *items;
	uint32_t index;
	uint32_t count;
};

static void push_all(void *arg)
{
	struct producer *p = arg;

	for (uint32_t i = 0; i < p->count; i++) {
		/* Plain writes of this thread: only the queue makes them visible to the owner. */
		p->items[i].producer = p->index;
		p->items[i].number = i;
		mpsc_push(p->queue, &p->items[i].node);
	}
}

static void mpsc_with_several_producers_loses_and_reorders_nothing(void **state)
{
	/* Goal: each item once, and each producer's items in its order. */
	struct producer producers[PRODUCERS];
	uint32_t next[PRODUCERS] = { 0 };
	uint32_t count = 20000 * test_scale();
	uint64_t end_ns = clock_deadline_ns(clock_now_ns(),
	                                    TEST_DEADLINE_MS * CLOCK_NS_PER_MS * test_scale());
	static struct mpsc q;
	uint32_t got = 0;

	(void)state;
	mpsc_init(&q);
	for (uint32_t p = 0; p < PRODUCERS; p++) {
		producers[p].queue = &q;
		producers[p].index = p;
		producers[p].count = count;
		producers[p].items = mem_calloc(count, sizeof(struct item));
		assert_non_null(producers[p].items);
	}
	for (uint32_t p = 0; p < PRODUCERS; p++)
		assert_ok(plat_thread_start(&producers[p].thread, push_all, &producers[p], "push",
		                            PLAT_CPU_ANY));
	while (got < PRODUCERS * count) {
		struct item *item = (struct item *)mpsc_pop(&q);

		if (!item) {
			assert_true(clock_now_ns() < end_ns);
			plat_thread_yield();
			continue;
		}
		assert_true(item->producer < PRODUCERS);
		assert_int_equal(item->number, next[item->producer]++);
		got++;
	}
	for (uint32_t p = 0; p < PRODUCERS; p++) {
		plat_thread_join(&producers[p].thread);
		mem_free(producers[p].items);
	}
	assert_null(mpsc_pop(&q));
	assert_true(mpsc_empty_hint(&q));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(mpsc_pops_in_order_of_pushes),
		cmocka_unit_test(mpsc_pop_during_a_push_gives_nothing_and_is_not_empty),
		cmocka_unit_test(mpsc_with_several_producers_loses_and_reorders_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
