/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include "base/list.h"

struct item {
	int value;
	struct list link;
};

static void expect_values(struct list *head, const int *want, size_t count)
{
	size_t i = 0;

	LIST_FOR_EACH(it, head) {
		assert_true(i < count);
		assert_int_equal(LIST_ENTRY(it, struct item, link)->value, want[i++]);
	}
	assert_int_equal(i, count);
}

static void list_keeps_the_order_of_pushes(void **state)
{
	/* Goal: front and back pushes, pops and removal from the middle keep the order. */
	struct item items[4] = { { .value = 0 }, { .value = 1 }, { .value = 2 }, { .value = 3 } };
	struct list head;

	(void)state;
	list_init(&head);
	assert_true(list_empty(&head));
	assert_null(list_pop_front(&head));
	for (size_t i = 0; i < 4; i++)
		list_init(&items[i].link);
	assert_false(list_linked(&items[1].link));
	list_push_back(&head, &items[1].link);
	list_push_back(&head, &items[2].link);
	list_push_front(&head, &items[0].link);
	list_push_back(&head, &items[3].link);
	expect_values(&head, (const int[]){ 0, 1, 2, 3 }, 4);
	assert_true(list_linked(&items[2].link));
	list_remove(&items[2].link);
	list_remove(&items[2].link); /* twice is harmless */
	assert_false(list_linked(&items[2].link));
	expect_values(&head, (const int[]){ 0, 1, 3 }, 3);
	assert_ptr_equal(list_pop_front(&head), &items[0].link);
	expect_values(&head, (const int[]){ 1, 3 }, 2);
}

static void list_walk_may_remove_the_present_element(void **state)
{
	/* Goal: emptying a list while walking it visits every element. */
	struct item items[3] = { { .value = 0 }, { .value = 1 }, { .value = 2 } };
	struct list head;
	int seen = 0;

	(void)state;
	list_init(&head);
	for (size_t i = 0; i < 3; i++)
		list_push_back(&head, &items[i].link);
	LIST_FOR_EACH(it, &head) {
		list_remove(it);
		seen++;
	}
	assert_int_equal(seen, 3);
	assert_true(list_empty(&head));
}

static void list_splice_moves_all_behind_the_last(void **state)
{
	/* Goal: order kept, the source empty, and an empty source harmless. */
	struct item items[4] = { { .value = 0 }, { .value = 1 }, { .value = 2 }, { .value = 3 } };
	struct list from;
	struct list to;

	(void)state;
	list_init(&from);
	list_init(&to);
	list_splice_back(&to, &from);
	assert_true(list_empty(&to));
	list_push_back(&to, &items[0].link);
	list_push_back(&to, &items[1].link);
	list_push_back(&from, &items[2].link);
	list_push_back(&from, &items[3].link);
	list_splice_back(&to, &from);
	assert_true(list_empty(&from));
	expect_values(&to, (const int[]){ 0, 1, 2, 3 }, 4);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(list_keeps_the_order_of_pushes),
		cmocka_unit_test(list_walk_may_remove_the_present_element),
		cmocka_unit_test(list_splice_moves_all_behind_the_last),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
