/* SPDX-License-Identifier: Apache-2.0 */
/* Watchers on host words. */
#include "contract/fixture.h"

#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct watch {
	struct node *a;
	struct wimm_remote_mr *to;
	struct wimm_uvm_watcher *watcher, *other;
	uint64_t last, calls, wrong; /* wrong: reports that do not follow each other */
	uint64_t steps;              /* to make */
	bool free_inside, freed;
};

static void on_change(void *context, uint64_t old_value, uint64_t new_value)
{
	struct watch *w = context;

	gate_lock();
	w->wrong += old_value != w->last || new_value == old_value;
	w->last = new_value;
	w->calls++;
	gate_unlock();
}

static bool last_is_steps(void *arg)
{
	struct watch *w = arg;
	bool yes;

	gate_lock();
	yes = w->last == w->steps;
	gate_unlock();
	return yes;
}

static void *count_up(void *arg)
{
	struct watch *w = arg;

	for (uint64_t i = 0; i < w->steps; i++)
		(void)wimm_uvm_watcher_add(w->watcher, 1);
	return NULL;
}

/* Goal: a writer counts as fast as it can: steps may be skipped, reports join up, and the last
 * value always comes. */
static void watcher_of_a_fast_writer_reports_the_last_value(void **state)
{
	struct watch *w = case_memory(sizeof(*w));
	pthread_t thread;

	(void)state;
	w->a = node_open(64);
	w->steps = 100000;
	assert_ok(wimm_alloc_uvm_watcher(w->a->engine, on_change, w, &w->watcher));
	assert_int_equal(*wimm_uvm_watcher_word(w->watcher), 0);
	assert_ok(pthread_create(&thread, NULL, count_up, w));
	assert_wait(last_is_steps, w);
	pthread_join(thread, NULL);
	assert_int_equal(w->wrong, 0);
	assert_true(w->calls <= w->steps);
	assert_ok(wimm_free_uvm_watcher(w->watcher));
}

static void send_layers(void *context, uint64_t old_value, uint64_t new_value)
{
	struct watch *w = context;

	for (uint64_t layer = old_value + 1; layer <= new_value; layer++) {
		struct wimm_write write = single(w->a, w->to, 0, 0, 8);

		write.flags = WIMM_IMM;
		write.imm = (uint32_t)layer;
		if (wimm_submit_single_write(w->a->engine, &write, NULL, NULL) != WIMM_OK) {
			gate_lock();
			w->wrong++;
			gate_unlock();
		}
	}
	on_change(context, old_value, new_value);
}

/* Goal: skipped values are no loss: whoever sends layer l when the value passes l sends each
 * once, in order. */
static void watcher_values_case_77_may_be_skipped(void **state)
{
	struct node *b = node_open(64);
	struct watch *w = case_memory(sizeof(*w));
	pthread_t thread;

	(void)state;
	w->a = node_open(64);
	w->to = remote_of(w->a, b);
	result_ok(write_imm(w->a, w->to, 0, 0, 8, 1000));
	w->steps = 61;
	assert_ok(wimm_alloc_uvm_watcher(w->a->engine, send_layers, w, &w->watcher));
	assert_ok(pthread_create(&thread, NULL, count_up, w));
	assert_wait(last_is_steps, w);
	pthread_join(thread, NULL);
	for (uint32_t layer = 1; layer <= 61; layer++)
		imm_reaches(b, layer, 1);
	assert_int_equal(w->wrong, 0);
	/* Then one at a time. */
	for (w->steps = 62; w->steps <= 80; w->steps++) {
		assert_int_equal(wimm_uvm_watcher_add(w->watcher, 1), w->steps);
		assert_wait(last_is_steps, w);
		imm_reaches(b, (uint32_t)w->steps, 1);
	}
	assert_int_equal(w->wrong, 0);
	assert_int_equal(imm_now(b, 81), 0);
}

/* Goal: what changes while a watcher is disarmed is reported after arming, as one change. */
static void watcher_disarmed_reports_after_arming(void **state)
{
	struct watch *w = case_memory(sizeof(*w));
	struct watch *other = case_memory(sizeof(*other));
	uint64_t rounds = 100 * test_scale();

	(void)state;
	w->a = node_open(64);
	assert_ok(wimm_alloc_uvm_watcher(w->a->engine, on_change, w, &w->watcher));
	assert_ok(wimm_alloc_uvm_watcher(w->a->engine, on_change, other, &other->watcher));
	for (uint64_t i = 1; i <= rounds; i++) {
		assert_ok(wimm_uvm_watcher_arm(w->watcher, 0));
		assert_ok(wimm_uvm_watcher_arm(w->watcher, 0));
		(void)wimm_uvm_watcher_add(w->watcher, 3);
		/* The other one is looked at meanwhile. */
		(void)wimm_uvm_watcher_add(other->watcher, 1);
		other->steps = i;
		assert_wait(last_is_steps, other);
		assert_int_equal(w->calls, i - 1);
		assert_ok(wimm_uvm_watcher_arm(w->watcher, 1));
		w->steps = 3 * i;
		assert_wait(last_is_steps, w);
		assert_int_equal(w->calls, i);
	}
	assert_int_equal(w->wrong + other->wrong, 0);
}

/* Goal: free reports the last change first; also of a disarmed watcher. */
static void watcher_freed_reports_its_last_change_first(void **state)
{
	struct watch *w = case_memory(sizeof(*w));

	(void)state;
	w->a = node_open(64);
	for (int i = 0; i < 20; i++) {
		w->last = 0;
		assert_ok(wimm_alloc_uvm_watcher(w->a->engine, on_change, w, &w->watcher));
		if (i % 2 == 1)
			assert_ok(wimm_uvm_watcher_arm(w->watcher, 0));
		(void)wimm_uvm_watcher_add(w->watcher, 7);
		assert_ok(wimm_free_uvm_watcher(w->watcher));
		assert_int_equal(w->last, 7);
	}
	assert_int_equal(w->wrong, 0);
}

static void free_inside(void *context, uint64_t old_value, uint64_t new_value)
{
	struct watch *w = context;
	bool ok = wimm_free_uvm_watcher(w->watcher) == WIMM_OK;

	if (w->other != NULL)
		ok = wimm_free_uvm_watcher(w->other) == WIMM_OK && ok;
	(void)old_value;
	(void)new_value;
	gate_lock();
	w->wrong += !ok;
	w->freed = true;
	gate_unlock();
}

static bool watch_freed(void *arg)
{
	bool yes;

	gate_lock();
	yes = ((struct watch *)arg)->freed;
	gate_unlock();
	return yes;
}

/* Goal: a callback frees its own watcher and another one with a change of its own, which is not
 * reported then. */
static void watcher_freed_inside_its_callback_is_dropped(void **state)
{
	(void)state;
	for (int i = 0; i < 20; i++) {
		struct watch *w = case_memory(sizeof(*w));
		struct watch *other = case_memory(sizeof(*other));

		w->a = node_open(64);
		assert_ok(wimm_alloc_uvm_watcher(w->a->engine, free_inside, w, &w->watcher));
		assert_ok(wimm_alloc_uvm_watcher(w->a->engine, on_change, other, &w->other));
		assert_ok(wimm_uvm_watcher_arm(w->other, 0));
		(void)wimm_uvm_watcher_add(w->other, 1);
		(void)wimm_uvm_watcher_add(w->watcher, 1);
		assert_wait(watch_freed, w);
		assert_int_equal(w->wrong, 0);
		assert_int_equal(other->calls, 0);
		node_close(w->a);
	}
}

/* Goal: as many as an engine has; one more is refused in words; a freed one makes room. */
static void watchers_beyond_the_limit_are_refused(void **state)
{
	enum { MOST = 1024 };
	struct node *a = node_open(64);
	struct watch *w = case_memory(sizeof(*w));
	struct wimm_uvm_watcher **all = case_memory(MOST * sizeof(struct wimm_uvm_watcher *)),
				*more;

	(void)state;
	for (int i = 0; i < MOST; i++)
		assert_ok(wimm_alloc_uvm_watcher(a->engine, on_change, w, &all[i]));
	assert_refused(wimm_alloc_uvm_watcher(a->engine, on_change, w, &more), WIMM_E_LIMIT,
	               "1024");
	assert_ok(wimm_free_uvm_watcher(all[500]));
	assert_ok(wimm_alloc_uvm_watcher(a->engine, on_change, w, &all[500]));
	w->steps = 1;
	(void)wimm_uvm_watcher_add(all[500], 1);
	assert_wait(last_is_steps, w);
	assert_int_equal(w->calls, 1);
}

/* Goal: the child of a fork has no part in the word, and touching it is no crash there. */
static void watcher_in_the_child_of_a_fork_is_left_alone(void **state)
{
	struct node *a = node_open(0);
	struct watch *w = case_memory(sizeof(*w));
	pid_t child;
	int status;

	(void)state;
	assert_ok(wimm_alloc_uvm_watcher(a->engine, on_change, w, &w->watcher));
	child = fork();
	if (child == 0)
		_exit(wimm_uvm_watcher_add(w->watcher, 7) == 0 ? 0 : 1);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	w->steps = 1;
	assert_int_equal(wimm_uvm_watcher_add(w->watcher, 1), 1);
	assert_wait(last_is_steps, w);
}

static const struct contract_case cases[] = {
	CASE(watcher_of_a_fast_writer_reports_the_last_value),
	CASE(watcher_values_case_77_may_be_skipped),
	CASE(watcher_disarmed_reports_after_arming),
	CASE(watcher_freed_reports_its_last_change_first),
	CASE(watcher_freed_inside_its_callback_is_dropped),
	CASE(watchers_beyond_the_limit_are_refused),
	CASE(watcher_in_the_child_of_a_fork_is_left_alone),
};
GROUP(watcher, cases);
