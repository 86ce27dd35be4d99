/* SPDX-License-Identifier: Apache-2.0 */
/* Peer groups, scatter, barriers. */
#include "contract/fixture.h"

#include <stdlib.h>
#include <string.h>

#define MEMBERS 3

/* One node that writes to the others. */
struct star {
	struct node *a, *b[MEMBERS];
	struct wimm_remote_mr *to[MEMBERS];
	wimm_peer peer[MEMBERS];
};

static struct star *star_open(uint64_t bytes)
{
	struct star *s = case_memory(sizeof(*s));

	s->a = node_open(bytes);
	for (int i = 0; i < MEMBERS; i++) {
		s->b[i] = node_open(bytes);
		s->to[i] = remote_of(s->a, s->b[i]);
		s->peer[i] = wimm_remote_mr_peer(s->to[i]);
	}
	return s;
}

static struct wimm_scatter scatter_of(struct star *s, const struct wimm_scatter_entry *entries,
                                      uint64_t count)
{
	struct wimm_scatter w = WIMM_SCATTER_INIT;

	w.flags = WIMM_IMM;
	w.src = s->a->mr;
	w.entries = entries;
	w.count = count;
	return w;
}

static struct result *submit_scatter(struct node *from, const struct wimm_scatter *w)
{
	struct result *r = result_new();
	struct wimm_on_done done = to_result(r);
	wimm_status st;

	while ((st = wimm_submit_scatter(from->engine, w, &done, &r->id)) == WIMM_AGAIN)
		drive();
	if (st != WIMM_OK)
		fail_msg("scatter: %s: %s", wimm_status_name(st), wimm_last_error_text());
	r->accepted = true;
	return r;
}

/* Goal: a scatter delivers each slice to its peer and counts one immediate an entry. */
static void scatter_counts_one_immediate_an_entry(void **state)
{
	struct star *s = star_open(1 << 20);
	struct wimm_scatter_entry entries[MEMBERS + 1];
	struct wimm_scatter w = scatter_of(s, entries, MEMBERS + 1);
	struct wimm_peer_group *group;
	struct result *r;

	(void)state;
	fill(s->a->mem, s->a->bytes, 1);
	for (uint64_t i = 0; i < MEMBERS; i++)
		entries[i] =
			(struct wimm_scatter_entry){ s->to[i], i * 1000, 50, 1000 + i * 300000 };
	entries[MEMBERS] = (struct wimm_scatter_entry){ s->to[0], 7, 900000, 0 };
	w.imm = 5;
	r = submit_scatter(s->a, &w);
	result_ok(r);
	assert_int_equal(r->bytes, 1000 + 301000 + 601000);
	for (uint64_t i = 0; i < MEMBERS; i++) {
		imm_reaches(s->b[i], 5, i == 0 ? 2 : 1);
		assert_memory_equal(s->b[i]->mem + 50, s->a->mem + i * 1000, 1000 + i * 300000);
		assert_true(all_are(s->b[i]->mem, 50, 0));
		assert_true(all_are(s->b[i]->mem + 50 + 1000 + i * 300000, 100, 0));
	}
	/* The same through a group. */
	assert_ok(wimm_add_peer_group(s->a->engine, s->peer, MEMBERS, &group));
	w.group = group;
	w.count = MEMBERS;
	result_ok(submit_scatter(s->a, &w));
	for (uint64_t i = 0; i < MEMBERS; i++)
		imm_reaches(s->b[i], 5, i == 0 ? 3 : 2);
	/* Nothing to do is done at once, without an immediate. */
	w.group = NULL;
	w.count = 0;
	w.entries = NULL;
	result_ok(submit_scatter(s->a, &w));
	imm_reaches(s->b[0], 5, 3);
	assert_ok(wimm_remove_peer_group(s->a->engine, group));
}

static void refuse_scatter(struct star *s, const struct wimm_scatter *w, wimm_status want,
                           const char *words)
{
	struct result *r = result_new();
	struct wimm_on_done done = to_result(r);

	assert_refused(wimm_submit_scatter(s->a->engine, w, &done, &r->id), want, words);
}

/* Goal: groups that cannot be, and uses of a group that do not fit it, are refused by the call with
 * both numbers; a peer named twice counts twice. */
static void group_misuse_case_111_is_refused(void **state)
{
	struct star *s = star_open(4096);
	struct wimm_scatter_entry entries[4];
	struct wimm_scatter w = scatter_of(s, entries, 3);
	wimm_peer four[4] = { s->peer[0], s->peer[1], s->peer[2], s->peer[0] };
	struct wimm_peer_group *group, *twice, *mark = (struct wimm_peer_group *)state;
	struct wimm_engine *e = s->a->engine;
	uint64_t posted;

	for (int i = 0; i < 4; i++)
		entries[i] = (struct wimm_scatter_entry){ s->to[i % MEMBERS], 0, 0, 8 };
	for (int i = 0; i < MEMBERS; i++)
		result_ok(write_imm(s->a, s->to[i], 0, 0, 0, 1));
	posted = stats_of(s->a).writes_posted;
	assert_ok(wimm_add_peer_group(e, four, 4, &twice));
	w.group = twice;
	refuse_scatter(s, &w, WIMM_E_INVAL, "3 entries for a group of 4");
	assert_ok(wimm_add_peer_group(e, s->peer, MEMBERS, &group));
	w.group = group;
	entries[1].dst = s->to[2];
	refuse_scatter(s, &w, WIMM_E_INVAL, "entry 1");
	entries[1].dst = s->to[1];
	entries[2].len_bytes = 4097;
	refuse_scatter(s, &w, WIMM_E_RANGE, "4097");
	entries[2].len_bytes = 8;
	assert_invalid(wimm_remove_peer_group(s->b[0]->engine, group));
	assert_ok(wimm_remove_peer_group(e, group));
	refuse_scatter(s, &w, WIMM_E_INVAL, "removed");
	assert_invalid(wimm_remove_peer_group(e, group));
	assert_invalid(wimm_remove_peer_group(e, NULL));
	group = mark;
	assert_refused(wimm_add_peer_group(e, four, 0, &group), WIMM_E_INVAL, "not 0");
	assert_refused(wimm_add_peer_group(e, four, 65537, &group), WIMM_E_LIMIT, "65537");
	assert_invalid(wimm_add_peer_group(e, NULL, 1, &group));
	four[2] = 99;
	assert_refused(wimm_add_peer_group(e, four, 4, &group), WIMM_E_NOT_FOUND, "entry 2");
	assert_ptr_equal(group, mark);
	assert_int_equal(stats_of(s->a).writes_posted, posted);
	/* Doubled peers are fine. */
	w.group = twice;
	w.count = 4;
	w.imm = 7;
	result_ok(submit_scatter(s->a, &w));
	imm_reaches(s->b[0], 7, 2);
	imm_reaches(s->b[1], 7, 1);
	assert_ok(wimm_remove_peer_group(e, twice));
}

/* Goal: a scatter whose peer is gone fails naming it; the others have got their slices. */
static void scatter_to_a_lost_peer_names_it(void **state)
{
	struct star *s = star_open(4096);
	struct wimm_scatter_entry entries[MEMBERS];
	struct wimm_scatter w = scatter_of(s, entries, MEMBERS);
	struct result *r = result_new();
	struct wimm_on_done done = to_result(r);
	wimm_status st;

	(void)state;
	for (int i = 0; i < MEMBERS; i++) {
		entries[i] = (struct wimm_scatter_entry){ s->to[i], 0, 0, 8 };
		result_ok(write_imm(s->a, s->to[i], 0, 0, 0, 1));
	}
	node_close(s->b[1]);
	w.imm = 2;
	st = wimm_submit_scatter(s->a->engine, &w, &done, &r->id);
	if (st == WIMM_OK) { /* not known yet: the operation fails instead of the call */
		r->accepted = true;
		result_wait(r);
		assert_true(r->status == WIMM_E_PEER_LOST);
		assert_true(r->peer == s->peer[1]);
		imm_reaches(s->b[0], 2, 1);
		imm_reaches(s->b[2], 2, 1);
	} else {
		assert_status(st, WIMM_E_PEER_LOST);
		assert_int_equal(imm_now(s->b[0], 2), 0);
	}
}

/* Goal: one immediate to each region of a barrier, without payload. */
static void barrier_submission_counts_once_at_each_target(void **state)
{
	struct star *s = star_open(64);
	struct wimm_barrier_args b = WIMM_BARRIER_ARGS_INIT;
	const struct wimm_remote_mr *to[MEMBERS] = { s->to[0], s->to[1], s->to[2] };
	struct result *r = result_new();
	struct wimm_on_done done = to_result(r);

	(void)state;
	b.imm = 0xffffffff;
	b.dst = to;
	b.count = MEMBERS;
	assert_ok(wimm_submit_barrier(s->a->engine, &b, &done, &r->id));
	r->accepted = true;
	result_ok(r);
	assert_int_equal(r->bytes, 0);
	for (int i = 0; i < MEMBERS; i++) {
		imm_reaches(s->b[i], 0xffffffff, 1);
		assert_true(all_are(s->b[i]->mem, 64, 0));
	}
	b.flags = WIMM_CONFIRMED;
	r = result_new();
	done = to_result(r);
	assert_ok(wimm_submit_barrier(s->a->engine, &b, &done, &r->id));
	r->accepted = true;
	result_ok(r);
	for (int i = 0; i < MEMBERS; i++)
		assert_int_equal(imm_now(s->b[i], 0xffffffff), 2);
	/* None: done at once. */
	b.count = 0;
	b.flags = 0;
	r = result_new();
	done = to_result(r);
	assert_ok(wimm_submit_barrier(s->a->engine, &b, &done, &r->id));
	r->accepted = true;
	result_ok(r);
	b.flags = 1u << 30;
	assert_refused(wimm_submit_barrier(s->a->engine, &b, NULL, NULL), WIMM_E_INVAL, "flags");
}

/* Members of a barrier object. */
struct ring {
	uint32_t count;
	struct node *n[4];
	struct wimm_barrier *barrier[4];
	struct wimm_remote_mr *to[4][4];
};

static struct ring *ring_open(uint32_t count)
{
	static const uint32_t values[2] = { 100, 200 };
	struct ring *r = case_memory(sizeof(*r));

	r->count = count;
	for (uint32_t i = 0; i < count; i++)
		r->n[i] = node_open(64);
	for (uint32_t i = 0; i < count; i++) {
		struct wimm_barrier_args args = WIMM_BARRIER_ARGS_INIT;
		const struct wimm_remote_mr *dst[4];
		uint32_t k = 0;

		for (uint32_t j = 0; j < count; j++)
			if (j != i)
				dst[k++] = r->to[i][j] = remote_of(r->n[i], r->n[j]);
		args.dst = dst;
		args.count = k;
		assert_ok(wimm_barrier_open(r->n[i]->engine, &args, values, &r->barrier[i]));
	}
	return r;
}

static struct result *enter(struct ring *r, uint32_t i)
{
	struct result *one = result_new();
	struct wimm_on_done done = to_result(one);

	assert_ok(wimm_barrier_enter(r->barrier[i], 0, &done));
	one->accepted = true;
	return one;
}

/* Goal: no member leaves a round before all have entered it, also when one is slow, over many
 * rounds; entering the next round early is refused. */
static void barrier_round_ends_when_the_slowest_has_entered(void **state)
{
	(void)state;
	for (uint32_t count = 2; count <= 4; count++) {
		struct ring *r = ring_open(count);

		for (uint32_t round = 0; round < 30; round++) {
			uint32_t slow = round % count;
			struct result *one[4];

			for (uint32_t i = 0; i < count; i++)
				if (i != slow)
					one[i] = enter(r, i);
			/* The others have told the slow one; none of them may be out. */
			imm_reaches(r->n[slow], round % 2 == 0 ? 100 : 200, count - 1);
			drive_rounds(5);
			for (uint32_t i = 0; i < count; i++)
				if (i != slow) {
					assert_false(result_there(one[i]));
					assert_int_equal(wimm_barrier_enter(r->barrier[i], 0, NULL),
					                 WIMM_E_BUSY);
				}
			one[slow] = enter(r, slow);
			for (uint32_t i = 0; i < count; i++)
				result_ok(one[i]);
		}
		for (uint32_t i = 0; i < count; i++)
			assert_ok(wimm_barrier_close(r->barrier[i]));
		for (uint32_t i = 0; i < count; i++)
			node_close(r->n[i]);
	}
}

/* Goal: a fast member that runs ahead by a round does not release it early. */
static void barrier_with_one_member_a_round_ahead_keeps_rounds_apart(void **state)
{
	struct ring *r = ring_open(2);

	(void)state;
	for (uint32_t round = 0; round < 50; round++) {
		struct result *fast = enter(r, 0), *slow = enter(r, 1);
		struct result *next;

		result_ok(fast);
		next = enter(r, 0); /* the other may still be in the last one */
		result_ok(slow);
		drive_rounds(3);
		assert_false(result_there(next));
		result_ok(enter(r, 1));
		result_ok(next);
	}
	assert_ok(wimm_barrier_close(r->barrier[0]));
	assert_ok(wimm_barrier_close(r->barrier[1]));
}

/* Goal: AGAIN leaves no trace: the round can be entered once there is room, also when all others
 * are in it already. */
static void barrier_without_room_can_be_entered_later(void **state)
{
	static const uint32_t values[2] = { 1, 2 };
	struct wimm_engine_opts opts = node_opts();
	struct wimm_barrier_args args = WIMM_BARRIER_ARGS_INIT;
	struct wimm_barrier *at_a, *at_b;
	const struct wimm_remote_mr *to_b, *to_a;
	struct result *ra, *rb, *held[16];
	struct wimm_on_done done;
	struct node *a, *b;

	(void)state;
	opts.max_ops = 16;
	a = node_open_with(&opts, 64);
	b = node_open(64);
	to_b = remote_of(a, b);
	to_a = remote_of(b, a);
	args.count = 1;
	args.dst = &to_b;
	assert_ok(wimm_barrier_open(a->engine, &args, values, &at_a));
	args.dst = &to_a;
	assert_ok(wimm_barrier_open(b->engine, &args, values, &at_b));
	for (uint32_t room = 0; room <= 1; room++) {
		rb = result_new();
		done = to_result(rb);
		assert_ok(wimm_barrier_enter(at_b, 0, &done));
		rb->accepted = true;
		imm_reaches(a, values[room], 1);
		for (uint32_t i = 0; i < 16 - room; i++)
			held[i] = expect(a, 77, 1);
		ra = result_new();
		done = to_result(ra);
		assert_int_equal(wimm_barrier_enter(at_a, 0, &done), WIMM_AGAIN);
		assert_int_equal(wimm_barrier_enter(at_a, 0, &done), WIMM_AGAIN);
		drive_rounds(5);
		assert_false(result_there(rb));
		for (uint32_t i = 0; i < 16 - room; i++) {
			assert_ok(wimm_cancel(a->engine, held[i]->id));
			result_is(held[i], WIMM_E_CANCELLED);
		}
		drive_until(stats_of(a).ops_open == 0);
		{
			wimm_status st;

			/* The slots come back behind the callbacks. */
			while ((st = wimm_barrier_enter(at_a, 0, &done)) == WIMM_AGAIN)
				drive();
			assert_ok(st);
		}
		ra->accepted = true;
		result_ok(ra);
		result_ok(rb);
	}
	assert_ok(wimm_barrier_close(at_a));
	assert_ok(wimm_barrier_close(at_b));
}

/* Goal: a round ends for good when a member is lost, when its deadline passes, when it is
 * closed. */
static void barrier_round_that_fails_ends_the_barrier(void **state)
{
	struct ring *r = ring_open(3);
	struct result *one = result_new();
	struct wimm_on_done done = to_result(one);
	struct result *first[3];

	(void)state;
	for (uint32_t i = 0; i < 3; i++)
		first[i] = enter(r, i);
	for (uint32_t i = 0; i < 3; i++)
		result_ok(first[i]);
	/* A deadline. */
	assert_ok(wimm_barrier_enter(r->barrier[0], 3000, &done));
	one->accepted = true;
	result_is(one, WIMM_E_TIMEOUT);
	assert_status(wimm_barrier_enter(r->barrier[0], 0, NULL), WIMM_E_TIMEOUT);
	/* A lost member, named. */
	one = enter(r, 1);
	assert_ok(wimm_barrier_close(r->barrier[2]));
	node_close(r->n[2]);
	result_is(one, WIMM_E_PEER_LOST);
	assert_true(one->peer == wimm_remote_mr_peer(r->to[1][2]));
	assert_status(wimm_barrier_enter(r->barrier[1], 0, NULL), WIMM_E_PEER_LOST);
	assert_ok(wimm_barrier_close(r->barrier[0]));
	assert_ok(wimm_barrier_close(r->barrier[1]));
	assert_invalid(wimm_barrier_close(NULL));
	assert_invalid(wimm_barrier_enter(NULL, 0, NULL));
}

/* Goal: closing a barrier cancels the round under way; its callback comes once. */
static void barrier_closed_in_a_round_cancels_it(void **state)
{
	struct ring *r = ring_open(2);
	struct result *one = enter(r, 0);

	(void)state;
	imm_reaches(r->n[1], 100, 1);
	assert_ok(wimm_barrier_close(r->barrier[0]));
	result_is(one, WIMM_E_CANCELLED);
	assert_ok(wimm_barrier_close(r->barrier[1]));
}

/* Goal: a barrier that cannot be is refused by open. */
static void barrier_open_refuses_bad_arguments(void **state)
{
	static const uint32_t good[2] = { 1, 2 }, equal[2] = { 3, 3 };
	struct star *s = star_open(64);
	struct node *other = node_open(64);
	const struct wimm_remote_mr *to[] = { s->to[0], s->to[1] };
	const struct wimm_remote_mr *foreign[] = { remote_of(other, s->b[0]) };
	struct wimm_barrier_args args = WIMM_BARRIER_ARGS_INIT;
	struct wimm_barrier *b = (struct wimm_barrier *)state;
	struct wimm_peer_group *group;
	struct wimm_engine *e = s->a->engine;

	args.dst = to;
	args.count = 2;
	assert_refused(wimm_barrier_open(e, &args, equal, &b), WIMM_E_INVAL, "0x3");
	assert_invalid(wimm_barrier_open(e, &args, NULL, &b));
	assert_invalid(wimm_barrier_open(e, NULL, good, &b));
	assert_invalid(wimm_barrier_open(e, &args, good, NULL));
	args.flags = WIMM_BLOCK;
	assert_invalid(wimm_barrier_open(e, &args, good, &b));
	args.flags = 0;
	args.reserved[0] = 1;
	assert_invalid(wimm_barrier_open(e, &args, good, &b));
	args.reserved[0] = 0;
	args.count = 0;
	assert_invalid(wimm_barrier_open(e, &args, good, &b));
	args.count = 65537;
	assert_int_equal(wimm_barrier_open(e, &args, good, &b), WIMM_E_LIMIT);
	args.count = 1;
	args.dst = foreign;
	assert_invalid(wimm_barrier_open(e, &args, good, &b));
	assert_ok(wimm_add_peer_group(e, s->peer, MEMBERS, &group));
	args.dst = to;
	args.count = 2;
	args.group = group;
	assert_refused(wimm_barrier_open(e, &args, good, &b), WIMM_E_INVAL, "2 regions");
	assert_ptr_equal(b, state);
}

/* Goal: a program that adds and removes groups all the time does not need more memory each time,
 * and the last ones that it removed are still found out. */
static void groups_that_come_and_go_use_their_memory_again(void **state)
{
	enum { ROUNDS = 1000, SIZES = 3 };
	struct star *s = star_open(64);
	struct wimm_engine *e = s->a->engine;
	struct wimm_peer_group **seen = case_memory(ROUNDS * sizeof(struct wimm_peer_group *));
	struct wimm_peer_group *kept, *last, *group;
	uint32_t places = 0;

	(void)state;
	assert_ok(wimm_add_peer_group(e, s->peer, MEMBERS, &kept));
	assert_ok(wimm_add_peer_group(e, s->peer, MEMBERS, &last));
	assert_ok(wimm_remove_peer_group(e, last));
	for (uint32_t i = 0; i < ROUNDS; i++) {
		uint32_t k = 0;

		assert_ok(wimm_add_peer_group(e, s->peer, i % SIZES + 1, &group));
		assert_ptr_not_equal(group, kept);
		assert_true(i >= 60 || group != last);
		assert_ok(wimm_remove_peer_group(e, group));
		assert_invalid(wimm_remove_peer_group(e, group));
		while (k < places && seen[k] != group)
			k++;
		seen[k] = group;
		places += k == places;
	}
	assert_in_range(places, 1, SIZES * 70);
	assert_ok(wimm_remove_peer_group(e, kept));
}

static const struct contract_case cases[] = {
	CASE(scatter_counts_one_immediate_an_entry),
	CASE(group_misuse_case_111_is_refused),
	CASE(groups_that_come_and_go_use_their_memory_again),
	CASE(scatter_to_a_lost_peer_names_it),
	CASE(barrier_submission_counts_once_at_each_target),
	CASE(barrier_round_ends_when_the_slowest_has_entered),
	CASE(barrier_with_one_member_a_round_ahead_keeps_rounds_apart),
	CASE(barrier_without_room_can_be_entered_later),
	CASE(barrier_round_that_fails_ends_the_barrier),
	CASE(barrier_closed_in_a_round_cancels_it),
	CASE(barrier_open_refuses_bad_arguments),
};
GROUP(group, cases);
