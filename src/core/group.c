/* SPDX-License-Identifier: Apache-2.0 */
#include "core/group.h"

#include "base/alloc.h"
#include "base/ignore.h"
#include "core/args.h"
#include "core/engine.h"
#include "core/error_text.h"
#include "core/recv.h"
#include "mem/word.h"

#include <inttypes.h>
#include <string.h>

#include <wimm/imm.h>

#define GROUP_PEERS_MAX 65536
/* Removed groups of a size whose handles are still found out. */
#define GROUPS_FOUND_OUT 64
#define GROUP_SIZES                                                                                \
	(sizeof(((struct wimm_engine *)0)->groups_removed) /                                       \
	 sizeof(((struct wimm_engine *)0)->groups_removed[0]))

bool group_usable(const struct wimm_engine *engine, const struct wimm_peer_group *group)
{
	return group->engine == engine &&
	       atomic_load_explicit(&group->live, memory_order_acquire) != 0;
}

/* log2 of the room for so many peers, 1..GROUP_PEERS_MAX. */
static uint32_t bits_of(uint64_t count)
{
	uint32_t bits = 0;

	while (UINT64_C(1) << bits < count)
		bits++;
	return bits;
}

/* The memory of one removed long ago, or new; NULL when out of it. */
static struct wimm_peer_group *group_get(struct wimm_engine *engine, uint64_t count)
{
	uint32_t bits = bits_of(count);
	struct wimm_peer_group *g = NULL;

	mutex_lock(&engine->lock);
	if (engine->groups_removed[bits].count > GROUPS_FOUND_OUT) {
		g = LIST_ENTRY(list_pop_front(&engine->groups_removed[bits].list),
		               struct wimm_peer_group, link);
		engine->groups_removed[bits].count--;
	}
	mutex_unlock(&engine->lock);
	if (g == NULL)
		g = mem_calloc(1, sizeof(*g) + (sizeof(g->peer[0]) << bits));
	if (g == NULL)
		return NULL;
	g->engine = engine;
	g->room = UINT32_C(1) << bits;
	g->count = count;
	list_init(&g->link);
	return g;
}

struct leg *group_legs_get(struct wimm_peer_group *group)
{
	/* Acquire, with the release in group_legs_put(). */
	struct leg *legs =
		atomic_exchange_explicit(&group->legs, NULL, memory_order_acquire);

	return legs != NULL ? legs : mem_alloc(group->room * sizeof(*legs));
}

void group_legs_put(struct wimm_peer_group *group, struct leg *legs)
{
	struct leg *none = NULL;

	if (group == NULL || legs == NULL ||
	    atomic_load_explicit(&group->live, memory_order_relaxed) == 0 ||
	    /* Release, with the acquire in group_legs_get(): nobody uses them any more. */
	    !atomic_compare_exchange_strong_explicit(&group->legs, &none, legs,
	                                             memory_order_release, memory_order_relaxed))
		mem_free(legs);
}

wimm_status wimm_add_peer_group(struct wimm_engine *engine, const wimm_peer *peers, uint64_t count,
                                struct wimm_peer_group **out)
{
	wimm_status st = engine_check(engine);
	struct wimm_peer_group *g;

	if (st != WIMM_OK)
		return st;
	if (peers == NULL || out == NULL || count == 0) {
		error_text_set("a group has 1..%d peers, not %" PRIu64, GROUP_PEERS_MAX, count);
		return WIMM_E_INVAL;
	}
	if (count > GROUP_PEERS_MAX) {
		error_text_set("a group has 1..%d peers, not %" PRIu64, GROUP_PEERS_MAX, count);
		return WIMM_E_LIMIT;
	}
	for (uint64_t i = 0; i < count; i++) {
		if (peer_public_state(&engine->worker, peers[i]) != PEER_FREE)
			continue;
		error_text_set("peer %" PRIx64 " of entry %" PRIu64 " is unknown", peers[i], i);
		return WIMM_E_NOT_FOUND;
	}
	g = group_get(engine, count);
	if (g == NULL)
		return WIMM_E_NOMEM;
	memcpy(g->peer, peers, count * sizeof(*peers));
	/* Release, with the acquire in group_usable(). */
	atomic_store_explicit(&g->live, 1, memory_order_release);
	mutex_lock(&engine->lock);
	list_push_back(&engine->groups, &g->link);
	mutex_unlock(&engine->lock);
	*out = g;
	return WIMM_OK;
}

wimm_status wimm_remove_peer_group(struct wimm_engine *engine, struct wimm_peer_group *group)
{
	wimm_status st = engine_check(engine);
	uint32_t bits;

	if (st != WIMM_OK)
		return st;
	if (group == NULL || group->engine != engine ||
	    atomic_exchange_explicit(&group->live, 0, memory_order_acq_rel) == 0) {
		error_text_set("the peer group is none of this engine's, or was removed");
		return WIMM_E_INVAL;
	}
	bits = bits_of(group->room);
	mem_free(atomic_exchange_explicit(&group->legs, NULL, memory_order_acquire));
	mutex_lock(&engine->lock);
	list_remove(&group->link);
	list_push_back(&engine->groups_removed[bits].list, &group->link);
	engine->groups_removed[bits].count++;
	mutex_unlock(&engine->lock);
	return WIMM_OK;
}

void groups_init(struct wimm_engine *engine)
{
	list_init(&engine->groups);
	for (uint32_t i = 0; i < GROUP_SIZES; i++)
		list_init(&engine->groups_removed[i].list);
}

void groups_close(struct wimm_engine *engine)
{
	for (uint32_t i = 0; i < GROUP_SIZES; i++)
		list_splice_back(&engine->groups, &engine->groups_removed[i].list);
	while (!list_empty(&engine->groups)) {
		struct wimm_peer_group *g = LIST_ENTRY(list_pop_front(&engine->groups),
		                                       struct wimm_peer_group, link);

		mem_free(atomic_load_explicit(&g->legs, memory_order_relaxed));
		mem_free(g);
	}
}

/* --- barriers --- */

struct wimm_barrier {
	struct wimm_engine *engine;
	const struct wimm_peer_group *group;
	uint64_t count;
	uint32_t flags; /* of its writes */
	uint32_t imm[2];
	uint64_t round;         /* the round's owner: whoever set `busy` */
	_Atomic uint32_t busy;  /* a round is under way */
	_Atomic uint32_t refs;  /* the handle, and each open operation */
	_Atomic uint32_t parts; /* operations of the round that have not settled */
	_Atomic int broken;     /* status that ended it for good */
	_Atomic wimm_op expect; /* ids of the round; 0: none yet */
	_Atomic wimm_op writes;
	struct wimm_on_done on_done;
	struct wimm_done done; /* the round's result: the first failure */
	char text[WIMM_ERROR_TEXT_BYTES];
	const struct wimm_remote_mr *dst[];
};

static void barrier_unref(struct wimm_barrier *b)
{
	if (atomic_fetch_sub_explicit(&b->refs, 1, memory_order_acq_rel) == 1)
		mem_free(b);
}

static void round_end(struct wimm_barrier *b)
{
	struct wimm_on_done on_done = b->on_done;
	struct wimm_done done = b->done;
	char text[WIMM_ERROR_TEXT_BYTES];

	memcpy(text, b->text, sizeof(text));
	done.text = text;
	if (done.status == WIMM_OK)
		b->round++;
	else
		atomic_store_explicit(&b->broken, (int)done.status, memory_order_relaxed);
	/* Release, with the acquire in wimm_barrier_enter(): the callback may enter again. */
	atomic_store_explicit(&b->busy, 0, memory_order_release);
	if (on_done.flag != NULL)
		mem_word_store(on_done.flag, /* release, with wimm_flag_load() */
		               done.status == WIMM_OK ? 1 : (uint64_t)(int64_t)done.status);
	if (on_done.fn != NULL)
		on_done.fn(on_done.context, &done);
}

/* Callback thread: one of the round's two operations has settled. */
static void part_done(void *context, const struct wimm_done *done)
{
	struct wimm_barrier *b = context;
	wimm_op other;

	if (done->status != WIMM_OK && b->done.status == WIMM_OK) {
		b->done = *done;
		memcpy(b->text, done->text, strlen(done->text) + 1);
		/* The other one would wait for nothing; one not submitted yet ends by itself. */
		other = atomic_load_explicit(&b->expect, memory_order_relaxed);
		if (other == done->op)
			other = atomic_load_explicit(&b->writes, memory_order_relaxed);
		status_ignore(wimm_cancel(b->engine, other));
	}
	if (atomic_fetch_sub_explicit(&b->parts, 1, memory_order_acq_rel) == 1)
		round_end(b);
	barrier_unref(b);
}

static wimm_status check_barrier(const struct wimm_engine *engine,
                                 const struct wimm_barrier_args *args, const uint32_t imms[2])
{
	if (!ARGS_GOOD(args, WIMM_CONFIRMED) || args->reserved32 != 0)
		return ARGS_REFUSED(args, "wimm_barrier_args", WIMM_CONFIRMED);
	if (args->count == 0 || args->count > GROUP_PEERS_MAX) {
		error_text_set("a barrier has 1..%d peers, not %" PRIu64, GROUP_PEERS_MAX,
		               args->count);
		return args->count == 0 ? WIMM_E_INVAL : WIMM_E_LIMIT;
	}
	if (args->dst == NULL)
		return args_null("wimm_barrier_args.dst");
	if (imms[0] == imms[1]) {
		error_text_set("a barrier needs two different values, both are %#" PRIx32, imms[0]);
		return WIMM_E_INVAL;
	}
	return submit_check_targets(engine, args);
}

wimm_status wimm_barrier_open(struct wimm_engine *engine, const struct wimm_barrier_args *args,
                              const uint32_t imms[2], struct wimm_barrier **out)
{
	wimm_status st = engine_check(engine);
	struct wimm_barrier *b;

	if (st == WIMM_OK && (args == NULL || imms == NULL || out == NULL))
		st = args_null(args == NULL ? "args" : imms == NULL ? "imms" : "out");
	if (st == WIMM_OK)
		st = check_barrier(engine, args, imms);
	if (st == WIMM_OK && engine_closing(engine))
		st = WIMM_E_CLOSED;
	if (st != WIMM_OK)
		return st;
	b = mem_calloc(1, sizeof(*b) + args->count * sizeof(b->dst[0]));
	if (b == NULL)
		return WIMM_E_NOMEM;
	b->engine = engine;
	b->group = args->group;
	b->flags = args->flags;
	b->count = args->count;
	b->imm[0] = imms[0];
	b->imm[1] = imms[1];
	memcpy((void *)b->dst, args->dst, args->count * sizeof(b->dst[0]));
	atomic_init(&b->refs, 1);
	*out = b;
	return WIMM_OK;
}

/* The expectation is made ready first and submitted last, so that a round is entered whole or not
 * at all: nothing is taken away and nobody is told when either has no room. */
static wimm_status submit_round(struct wimm_barrier *b, uint64_t deadline_us)
{
	struct wimm_on_done part = { .fn = part_done, .context = b };
	struct wimm_expect_opts e = WIMM_EXPECT_OPTS_INIT;
	struct wimm_barrier_args a = WIMM_BARRIER_ARGS_INIT;
	struct wimm_owes *owes = mem_calloc(b->count, sizeof(*owes));
	struct worker *w = &b->engine->worker;
	struct op *expect;
	wimm_op id = 0;
	wimm_status st;

	if (owes == NULL)
		return WIMM_E_NOMEM;
	for (uint64_t i = 0; i < b->count; i++) {
		owes[i].peer = wimm_remote_mr_peer(b->dst[i]);
		owes[i].count = 1;
	}
	if (w->identifies_source) {
		e.owes = owes;
		e.owes_count = b->count;
	}
	e.deadline_us = deadline_us;
	a.flags = b->flags;
	a.group = b->group;
	a.dst = b->dst;
	a.count = b->count;
	a.imm = b->imm[b->round & 1];
	a.deadline_us = deadline_us;
	st = expect_prepare(b->engine, a.imm, b->count, &e, &part, &expect);
	mem_free(owes);
	if (st != WIMM_OK)
		return st;
	b->done.imm = a.imm;
	atomic_store_explicit(&b->expect, op_id(expect), memory_order_relaxed);
	/* Parts count from before their submission, since their callbacks may run at once. */
	atomic_store_explicit(&b->parts, 2, memory_order_relaxed);
	atomic_fetch_add_explicit(&b->refs, 2, memory_order_relaxed);
	st = wimm_submit_barrier(b->engine, &a, &part, &id);
	if (st != WIMM_OK) {
		atomic_fetch_sub_explicit(&b->refs, 2, memory_order_relaxed);
		op_unget(w, expect);
		return st;
	}
	atomic_store_explicit(&b->writes, id, memory_order_relaxed);
	op_submit(w, expect, NULL);
	return WIMM_OK;
}

wimm_status wimm_barrier_enter(struct wimm_barrier *b, uint64_t deadline_us,
                               const struct wimm_on_done *on_done)
{
	uint32_t idle = 0;
	wimm_status st;
	int broken;

	if (b == NULL)
		return args_null("barrier");
	st = engine_check(b->engine);
	if (st != WIMM_OK)
		return st;
	/* Acquire, with the release in round_end(). */
	if (!atomic_compare_exchange_strong_explicit(&b->busy, &idle, 1, memory_order_acquire,
	                                             memory_order_relaxed)) {
		error_text_set("the round before has not fired");
		return WIMM_E_BUSY;
	}
	broken = atomic_load_explicit(&b->broken, memory_order_relaxed);
	if (broken != 0) {
		atomic_store_explicit(&b->busy, 0, memory_order_release);
		error_text_set("an earlier round ended with %s",
		               wimm_status_name((wimm_status)broken));
		return (wimm_status)broken;
	}
	memset(&b->on_done, 0, sizeof(b->on_done));
	memset(&b->done, 0, sizeof(b->done));
	b->text[0] = '\0';
	if (on_done != NULL)
		b->on_done = *on_done;
	st = submit_round(b, deadline_us);
	if (st != WIMM_OK)
		atomic_store_explicit(&b->busy, 0, memory_order_release);
	return st;
}

wimm_status wimm_barrier_close(struct wimm_barrier *b)
{
	wimm_status st;

	if (b == NULL)
		return args_null("barrier");
	st = engine_check(b->engine);
	if (st != WIMM_OK)
		return st;
	if (atomic_load_explicit(&b->busy, memory_order_acquire) != 0) {
		/* Either part may be the one that the round still waits for. */
		status_ignore(wimm_cancel(b->engine,
		                          atomic_load_explicit(&b->expect, memory_order_relaxed)));
		status_ignore(wimm_cancel(b->engine,
		                          atomic_load_explicit(&b->writes, memory_order_relaxed)));
	}
	barrier_unref(b);
	return WIMM_OK;
}
