/* SPDX-License-Identifier: Apache-2.0 */
/* How sessions begin, stay and end (contract C2, C5, C9). */
#include "faults/puppet.h"

#include "core/engine.h"
#include "plat/clock.h"
#include "prov/sim/sim.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* --- the end --- */

/* How what the receiver expected has ended. */
static wimm_status write_and_close(uint32_t round)
{
	struct node *a = node_open(64), *b = node_open(64);
	struct wimm_remote_mr *to = remote_of(a, b);
	struct wimm_owes owes = { 0, 50 };
	struct wimm_expect_opts eo = WIMM_EXPECT_OPTS_INIT;
	struct result *last = NULL, *all;

	connect_nodes(a, b);
	owes.peer = peer_of(b, a);
	eo.owes = &owes;
	eo.owes_count = 1;
	all = expect_with(b, round, 50, &eo);
	for (uint32_t i = 0; i < 50; i++)
		last = write_imm(a, to, 0, 0, 8, round);
	for (uint32_t i = 0; i < 50; i++)
		result_wait(last - i);
	node_close(a);
	result_wait(all); /* it fails if the goodbye comes first */
	node_done(a);
	node_done(b);
	return all->status;
}

/* Goal: a goodbye comes behind the last immediate, so who closes once all is done owes nothing. */
static void goodbye_comes_behind_the_last_immediate(void **state)
{
	unsigned rounds = 5 * test_scale();

	(void)state;
	for (uint32_t i = 0; i < (rounds < 50 ? rounds : 50); i++)
		assert_ok(write_and_close(i));
}

/* Goal: what was acked and is not in place yet when its sender leaves is counted all the same. */
static void goodbye_waits_for_what_is_acked_and_not_yet_counted(void **state)
{
	(void)state;
	sim_set_late(case_world(), 10 * CLOCK_NS_PER_MS);
	/* The leaver lingers for a time: on a busy machine the receiver may not run within it. */
	for (uint32_t i = 0; i < 20; i++)
		if (write_and_close(i) == WIMM_OK)
			return;
	fail_msg("no goodbye waited");
}

/* --- the beginning --- */

struct caller {
	struct node *from;
	const struct node *to;
	struct wimm_net_addr addr;
	wimm_status status;
	wimm_peer peer;
	pthread_barrier_t *start;
};

static void *call(void *arg)
{
	struct caller *c = arg;

	pthread_barrier_wait(c->start);
	c->status = wimm_add_peer(c->from->engine, &c->addr, NULL, &c->peer);
	return NULL;
}

static bool both_up_once(void *arg)
{
	struct caller *c = arg;

	return stats_of(c[0].from).peers_up == 1 && stats_of(c[1].from).peers_up == 1;
}

/* Both sides dial at one moment; by_text: each knows only where the other is. */
static void open_from_both_sides(bool by_text)
{
	struct node *a = node_open(64), *b = node_open(64);
	struct caller c[2] = { { .from = a, .to = b }, { .from = b, .to = a } };
	pthread_barrier_t start;
	pthread_t thread[2];

	assert_ok(pthread_barrier_init(&start, NULL, 2));
	for (int i = 0; i < 2; i++) {
		c[i].start = &start;
		c[i].addr = c[i].to->addr;
		if (by_text) {
			char text[WIMM_NET_ADDR_MAX_TEXT];

			assert_ok(wimm_net_addr_to_string(&c[i].to->addr, text, sizeof(text)));
			*strchr(text, '#') = '\0';
			assert_ok(wimm_net_addr_from_string(text, &c[i].addr));
		}
		assert_ok(pthread_create(&thread[i], NULL, call, &c[i]));
	}
	for (int i = 0; i < 2; i++) {
		assert_ok(pthread_join(thread[i], NULL));
		assert_ok(c[i].status);
	}
	pthread_barrier_destroy(&start);
	assert_wait(both_up_once, c);
	result_ok(write_imm(a, remote_of(a, b), 0, 0, 8, 1));
	result_ok(write_imm(b, remote_of(b, a), 0, 0, 8, 1));
	imm_reaches(a, 1, 1);
	imm_reaches(b, 1, 1);
	assert_true(both_up_once(c));
	assert_int_equal(node_events(a, WIMM_PEER_DOWN) + node_events(b, WIMM_PEER_DOWN), 0);
	node_done(a);
	node_done(b);
}

/* Goal: two that dial each other at once have one session. */
static void simultaneous_open_gives_one_session(void **state)
{
	unsigned rounds = 5 * test_scale();

	(void)state;
	for (unsigned i = 0; i < (rounds < 25 ? rounds : 25); i++)
		open_from_both_sides(false);
}

/* Goal: also when each knows only the other's address. */
static void simultaneous_open_by_address_gives_one_session(void **state)
{
	unsigned rounds = 5 * test_scale();

	(void)state;
	for (unsigned i = 0; i < (rounds < 25 ? rounds : 25); i++)
		open_from_both_sides(true);
}

/* --- what is not death --- */

/* The time-out is short enough to wait for three of them, and so long that a busy machine lets a
 * worker run within it. */
enum { SHORT_MS = 800, THREE_MS = 2400 };

static struct wimm_engine_opts short_lived(void)
{
	struct wimm_engine_opts o = node_opts();

	o.heartbeat_ms = 20;
	o.peer_timeout_ms = SHORT_MS;
	return o;
}

static bool time_is_up(void *arg)
{
	return clock_now_ns() >= *(uint64_t *)arg;
}

static void on_done_slow(void *context, const struct wimm_done *done)
{
	uint64_t *until = context;

	(void)done;
	(void)gate_wait(time_is_up, until); /* nobody opens it: it looks at its deadline again */
}

static bool callback_over(void *arg)
{
	return time_is_up(arg);
}

/* Goal: a callback that takes several time-outs long is no reason to lose a peer. */
static void slow_callback_is_not_taken_for_death(void **state)
{
	struct wimm_engine_opts o = short_lived();
	struct node *a = node_open_with(&o, 64), *b = node_open_with(&o, 64);
	uint64_t *until = case_memory(sizeof(*until)); /* the callback may look later than this */
	struct wimm_on_done slow = { .fn = on_done_slow, .context = until };

	(void)state;
	*until = clock_now_ns() + THREE_MS * CLOCK_NS_PER_MS;
	connect_nodes(a, b);
	assert_ok(wimm_expect_imm_count(b->engine, 1, 1, NULL, &slow, NULL));
	result_ok(write_imm(a, remote_of(a, b), 0, 0, 8, 1));
	assert_wait(callback_over, until);
	gate_lock();
	gate_unlock(); /* wakes the callback */
	result_ok(write_imm(a, remote_of(a, b), 0, 0, 8, 2));
	assert_int_equal(node_events(a, WIMM_PEER_DOWN) + node_events(b, WIMM_PEER_DOWN), 0);
}

/* Goal: a receiver without buffers keeps its peers, however long, and loses no message. */
static void full_receive_pool_is_not_taken_for_death(void **state)
{
	struct wimm_engine_opts o = short_lived();
	struct node *a = node_open_with(&o, 64), *b = node_open_with(&o, 64);
	uint64_t until = clock_now_ns() + THREE_MS * CLOCK_NS_PER_MS;
	struct wimm_send s = WIMM_SEND_INIT;
	struct result *r[100];

	(void)state;
	s.peer = peer_of(a, b);
	s.data = "message";
	s.len_bytes = 7;
	for (int i = 0; i < 100; i++) {
		struct wimm_on_done done;

		r[i] = result_new();
		done = to_result(r[i]);
		assert_ok(wimm_submit_send(a->engine, &s, &done, &r[i]->id));
		r[i]->accepted = true;
	}
	assert_wait(time_is_up, &until);
	assert_int_equal(node_events(a, WIMM_PEER_DOWN) + node_events(b, WIMM_PEER_DOWN), 0);
	for (int i = 0; i < 100; i++)
		assert_false(result_there(r[i]));
	result_ok(write_imm(a, remote_of(a, b), 0, 0, 8, 2));
}

/* --- turns --- */

enum { FLOOD = 4096, MINE = 32 };

static struct result *pages_to(struct node *from, const struct wimm_remote_mr *to, uint32_t count)
{
	struct wimm_paged_writes p = WIMM_PAGED_WRITES_INIT;
	uint32_t *indices = case_memory(count * sizeof(*indices));

	for (uint32_t i = 0; i < count; i++)
		indices[i] = i;
	p.src = from->mr;
	p.dst = to;
	p.page_len_bytes = 1;
	p.src_pages = p.dst_pages = (struct wimm_pages){ indices, count, 1, 0 };
	return submit_pages(from, &p);
}

/* Goal: with one peer stalled, one dead and one flooded, another's writes wait for at most one
 * batch of the flood (C8), counted in requests. */
static void writes_past_stalled_dead_and_flooded_peers_wait_for_one_batch(void **state)
{
	struct node *a = node_open(FLOOD), *n[4];
	struct wimm_remote_mr *to[4]; /* stalled, dead, flooded, mine */
	struct worker *w = &a->engine->worker;
	struct result *mine;
	uint64_t before;

	(void)state;
	for (uint32_t i = 0; i < 4; i++) {
		n[i] = node_open(FLOOD);
		to[i] = remote_of(a, n[i]);
		result_ok(write_imm(a, to[i], 0, 0, 1, 1));
	}
	sim_freeze(case_world(), n[0]->engine->self.instance);
	sim_kill_engine(case_world(), n[1]->engine->self.instance, true);
	for (uint32_t i = 0; i < 64; i++) {
		write_imm(a, to[0], 0, 0, 1, 2);
		write_imm(a, to[1], 0, 0, 1, 2);
	}
	for (int i = 0; i < 4; i++) /* the inbox is emptied 64 at a time */
		assert_ok(wimm_progress(a->engine, NULL));
	pages_to(a, to[2], FLOOD);
	assert_ok(wimm_progress(a->engine, NULL));
	mine = pages_to(a, to[3], MINE);
	before = stats_of(a).writes_posted;
	while (!result_there(mine) && op_by_id(w, mine->id)->descriptors < MINE)
		assert_ok(wimm_progress(a->engine, NULL));
	assert_true(stats_of(a).writes_posted - before <= MINE + w->post_batch);
	result_ok(mine);
	sim_thaw(case_world(), n[0]->engine->self.instance);
	node_close(a); /* what went to the dead one ends here */
}

static bool lost_its_peer(void *arg)
{
	return node_events(arg, WIMM_PEER_DOWN) != 0;
}

/* Goal: an address without an instance that is added again and again fills no table. */
static void plain_address_added_again_and_again_takes_no_more_room(void **state)
{
	enum { ROUNDS = 100 };
	char text[WIMM_NET_ADDR_MAX_TEXT];
	struct wimm_net_addr plain;
	wimm_peer ids[2] = { 0 }, id = 0;
	struct node *a, *b = node_open(64);

	(void)state;
	a = node_open(64);
	assert_ok(wimm_net_addr_to_string(&b->addr, text, sizeof(text)));
	*strchr(text, '#') = '\0';
	assert_ok(wimm_net_addr_from_string(text, &plain));
	for (int i = 0; i < ROUNDS; i++) {
		assert_ok(wimm_add_peer(a->engine, &plain, NULL, &id));
		if (id != ids[0] && id != ids[1]) {
			assert_int_equal(ids[1], 0); /* not a third one */
			ids[ids[0] != 0] = id;
		}
		result_ok(write_imm(a, remote_of(a, b), 0, 0, 8, 1));
	}
	imm_reaches(b, 1, ROUNDS);
	assert_int_equal(stats_of(b).peers_up, 1);
	assert_int_equal(node_events(a, WIMM_PEER_DOWN), 0);
	/* Once it has gone the next one dials again. */
	node_close(b);
	assert_wait(lost_its_peer, a);
	assert_ok(wimm_add_peer(a->engine, &plain, NULL, &id));
	assert_true(id != ids[0] && id != ids[1]);
}

static const struct contract_case cases[] = {
	CASE(goodbye_comes_behind_the_last_immediate),
	CASE_ONLY(goodbye_waits_for_what_is_acked_and_not_yet_counted, ONLY_SIM | ONLY_THREADS),
	CASE_ONLY(simultaneous_open_gives_one_session, ONLY_THREADS),
	CASE_ONLY(simultaneous_open_by_address_gives_one_session, ONLY_THREADS),
	CASE_ONLY(slow_callback_is_not_taken_for_death, ONLY_THREADS),
	CASE(full_receive_pool_is_not_taken_for_death),
	CASE(plain_address_added_again_and_again_takes_no_more_room),
	CASE_ONLY(writes_past_stalled_dead_and_flooded_peers_wait_for_one_batch,
	          ONLY_SIM | ONLY_DRIVEN),
};
GROUP(session, cases);
