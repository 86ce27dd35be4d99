/* SPDX-License-Identifier: Apache-2.0 */
/* Peers that die in a simulated world, as death.c has them as processes (contract C2, C3, C9). */
#include "faults/puppet.h"

#include "core/engine.h"
#include "prov/sim/sim.h"

#include <string.h>

enum { WRITES = 200, BYTES = 4096 };

static const uint8_t *instance_of(const struct node *n)
{
	return n->engine->self.instance;
}

/* It is gone, and so is its memory of everything; `silent`: nobody is told. */
static void die(struct node *n, bool silent)
{
	sim_kill_engine(case_world(), instance_of(n), silent);
	node_close(n);
}

/* An engine on the NICs of one that is gone. */
static struct node *successor(const struct wimm_net_addr *of)
{
	struct wimm_engine_opts o = node_opts();
	char text[WIMM_NET_ADDR_MAX_TEXT];

	assert_ok(wimm_net_addr_to_string(of, text, sizeof(text)));
	*strchr(text, '#') = '\0';
	o.nics = strchr(text, ':') + 1;
	return node_open_with(&o, BYTES);
}

static struct node *impatient(void)
{
	struct wimm_engine_opts o = node_opts();

	o.heartbeat_ms = 50;
	o.peer_timeout_ms = 300;
	return node_open_with(&o, BYTES);
}

static struct wimm_remote_mr *remote_at(struct node *from, const struct wimm_mr_desc *desc)
{
	struct wimm_remote_mr *r = NULL;

	assert_ok(wimm_open_remote_mr(from->engine, desc, &r));
	return r;
}

static void lose_in_mid_transfer(void (*lose)(struct node *b))
{
	struct node *a = impatient(), *b = impatient(), *c = node_open(BYTES);
	struct wimm_remote_mr *to = remote_of(a, b);
	struct result *r[WRITES];
	struct wimm_write w;

	result_ok(write_imm(a, to, 0, 0, 1, 1));
	sim_set_delay(case_world(), 200000, 2000000);
	for (uint32_t i = 0; i < WRITES; i++)
		r[i] = write_imm(a, to, 0, 0, BYTES, 2);
	lose(b);
	for (uint32_t i = 0; i < WRITES; i++) {
		result_wait(r[i]);
		if (r[i]->status != WIMM_OK)
			result_is(r[i], WIMM_E_PEER_LOST);
	}
	node_wait_events(a, WIMM_PEER_DOWN, 1);
	w = single(a, to, 0, 0, 1);
	assert_status(wimm_submit_single_write(a->engine, &w, NULL, NULL), WIMM_E_PEER_LOST);
	result_ok(write_imm(a, remote_of(a, c), 0, 0, BYTES, 3));
	imm_reaches(c, 3, 1);
	assert_int_equal(node_events(c, WIMM_PEER_DOWN), 0);
}

static void killed(struct node *b)
{
	die(b, false);
}

static void frozen(struct node *b)
{
	sim_freeze(case_world(), instance_of(b));
}

/* Goal: a peer of the same world dies in mid-transfer: all settles, nobody else notices. */
static void death_in_the_world_case_15_settles_every_write(void **state)
{
	(void)state;
	lose_in_mid_transfer(killed);
}

/* Goal: so it does when the peer only falls silent. */
static void silence_in_the_world_case_15_settles_every_write(void **state)
{
	(void)state;
	lose_in_mid_transfer(frozen);
}

/* Goal: the first write to the successor of a peer that went without a word succeeds, and what was
 * under way to the old one has ended before. */
static void restart_in_the_world_case_17_first_write_succeeds(void **state)
{
	struct node *a = node_open(BYTES);
	struct wimm_remote_mr *to;

	(void)state;
	for (uint32_t i = 0; i < 4; i++) {
		struct node *b = node_open(BYTES), *b2;
		struct wimm_net_addr place = b->addr;
		struct result *old;

		to = remote_of(a, b);
		result_ok(write_imm(a, to, 0, 0, 1, 1));
		sim_freeze(case_world(), instance_of(b));
		old = write_imm(a, to, 0, 0, BYTES, 2);
		die(b, i % 2 != 0);
		b2 = successor(&place);
		fill(a->mem, BYTES, 17);
		result_ok(write_imm(a, remote_of(a, b2), 0, 0, BYTES, 3));
		assert_true(result_there(old));
		assert_true(old->status == WIMM_E_PEER_LOST ||
		            old->status == WIMM_E_PEER_RESTARTED);
		imm_reaches(b2, 3, 1);
		assert_true(holds(b2->mem, BYTES, 17));
		node_close(b2);
	}
}

struct remains {
	struct node *node;
	uint32_t sessions;
};

static void count_remains(struct worker *w, void *arg)
{
	struct remains *r = arg;

	LIST_FOR_EACH(it, &w->peers) {
		const struct peer *p = LIST_ENTRY(it, struct peer, link);

		r->sessions += p->ctl != NULL || p->paths_open != 0 || p->state != PEER_DOWN;
	}
}

static bool nothing_remains(void *arg)
{
	struct remains *r = arg;

	r->sessions = 0;
	worker_call(&r->node->engine->worker, count_remains, r);
	return r->sessions == 0;
}

/* Goal: peers that go one after the other without a goodbye leave no count and no session. */
static void leavers_in_the_world_case_19_leave_nothing_behind(void **state)
{
	struct node *a = node_open(BYTES);
	struct remains remains = { a, 0 };

	(void)state;
	for (uint32_t i = 1; i <= 20; i++) {
		struct node *r = node_open(BYTES);

		fill(r->mem, BYTES, i);
		result_ok(write_imm(r, remote_of(r, a), 0, 0, BYTES, 19));
		imm_reaches(a, 19, 1);
		assert_true(holds(a->mem, BYTES, i));
		die(r, false);
		node_wait_events(a, WIMM_PEER_DOWN, i);
		assert_int_equal(imm_now(a, 19), 0); /* its share went with it */
	}
	assert_wait(nothing_remains, &remains);
}

/* Goal: an engine closes in time though a peer that it writes to stands still. */
static void close_in_the_world_case_23_waits_for_no_silent_peer(void **state)
{
	struct node *a = node_open(BYTES), *b = node_open(BYTES);
	struct wimm_remote_mr *to = remote_of(a, b);
	struct result *r[64], *e;

	(void)state;
	result_ok(write_imm(a, to, 0, 0, 1, 1));
	sim_freeze(case_world(), instance_of(b));
	e = expect(a, 7, 1);
	for (uint32_t i = 0; i < 64; i++)
		r[i] = write_imm(a, to, 0, 0, BYTES, 2);
	node_close(a);
	for (uint32_t i = 0; i < 64; i++)
		assert_true(result_there(r[i])); /* once: the fixture looks */
	assert_true(result_there(e));
	assert_status(e->status, WIMM_E_CLOSED);
	sim_thaw(case_world(), instance_of(b));
}

static struct result *expect_from(struct node *n, uint32_t imm, wimm_peer peer)
{
	struct wimm_owes owes = { peer, 1 };
	struct wimm_expect_opts eo = WIMM_EXPECT_OPTS_INIT;

	eo.owes = &owes;
	eo.owes_count = 1;
	return expect_with(n, imm, 1, &eo);
}

/* Goal: of three peers one falls silent: what waits for it fails, and nothing else. */
static void silence_in_the_world_case_31_fails_one_peers_requests(void **state)
{
	struct node *d = impatient(), *p[4];
	struct result *r[4];

	(void)state;
	for (uint32_t i = 0; i < 3; i++) {
		p[i] = impatient();
		connect_nodes(d, p[i]);
		r[i] = expect_from(d, 100 + i, peer_of(d, p[i]));
	}
	sim_freeze(case_world(), instance_of(p[1]));
	result_is(r[1], WIMM_E_PEER_LOST);
	assert_non_null(strstr(r[1]->text, "silent"));
	assert_false(result_there(r[0]) || result_there(r[2]));
	p[3] = impatient();
	connect_nodes(d, p[3]);
	r[3] = expect_from(d, 103, peer_of(d, p[3]));
	for (uint32_t i = 0; i < 4; i++) {
		if (i == 1)
			continue;
		result_ok(write_imm(p[i], remote_of(p[i], d), 0, 0, 8, 100 + i));
		result_ok(r[i]);
	}
	assert_int_equal(node_events(d, WIMM_PEER_DOWN), 1);
}

/* Goal: a peer may be given a time-out of its own: it is lost when the engine's own is far off, and
 * another one that stands still as long is not. */
static void silence_limit_in_the_world_is_each_peers_own(void **state)
{
	struct wimm_peer_opts opts = WIMM_PEER_OPTS_INIT;
	struct wimm_engine_opts o = node_opts();
	struct node *a, *b = impatient(), *c = impatient();
	wimm_peer peer;

	(void)state;
	o.peer_timeout_ms = 600000;
	a = node_open_with(&o, BYTES);
	connect_nodes(a, b);
	connect_nodes(a, c);
	opts.peer_timeout_ms = 300;
	assert_ok(wimm_add_peer(a->engine, &b->addr, &opts, &peer));
	sim_freeze(case_world(), instance_of(b));
	sim_freeze(case_world(), instance_of(c));
	node_wait_events(a, WIMM_PEER_DOWN, 1);
	gate_lock();
	for (uint32_t i = 0; i < a->event_count; i++)
		if (a->event[i].kind == WIMM_PEER_DOWN)
			assert_int_equal(a->event[i].peer, peer);
	assert_non_null(strstr(a->event_text, "silent"));
	gate_unlock();
	assert_int_equal(node_events(a, WIMM_PEER_DOWN), 1);
	sim_thaw(case_world(), instance_of(c));
}

/* Goal: an old descriptor never reaches the engine that took its owner's NICs, whether whoever has
 * it knew the old one or not; the text names both. */
static void new_engine_on_the_same_nics_case_204_is_not_taken_for_the_old(void **state)
{
	struct node *a = node_open(BYTES), *late = node_open(BYTES), *b = node_open(BYTES), *b2;
	struct wimm_mr_desc old = b->desc;
	struct wimm_net_addr place = b->addr;
	struct wimm_remote_mr *to = remote_of(a, b);
	struct wimm_on_done done;
	struct result *r = result_new();
	struct wimm_write w;

	(void)state;
	memset(a->mem, 0xee, BYTES);
	memset(late->mem, 0xee, BYTES);
	result_ok(write_imm(a, to, 0, 0, BYTES, 1));
	die(b, false);
	b2 = successor(&place);
	node_wait_events(a, WIMM_PEER_DOWN, 1);
	w = single(a, to, 0, 0, BYTES);
	assert_status(wimm_submit_single_write(a->engine, &w, NULL, NULL), WIMM_E_PEER_LOST);
	w = single(late, remote_at(late, &old), 0, 0, BYTES);
	done = to_result(r);
	if (wimm_submit_single_write(late->engine, &w, &done, &r->id) == WIMM_OK) {
		r->accepted = true;
		result_is(r, WIMM_E_PEER_RESTARTED);
		assert_non_null(strstr(r->text, "answers at its address"));
	}
	assert_true(all_are(b2->mem, BYTES, 0));
	result_ok(write_imm(late, remote_of(late, b2), 0, 0, BYTES, 3));
	result_ok(write_imm(a, remote_of(a, b2), 0, 0, BYTES, 3));
	imm_reaches(b2, 3, 2);
	assert_int_equal(imm_now(b2, 1), 0);
	assert_true(all_are(b2->mem, BYTES, 0xee));
}

/* Goal: NICs of an engine that died with ten peers can be opened anew at once, every time. */
static void restart_in_the_world_case_206_finds_its_nics_free(void **state)
{
	enum { CLIENTS = 10, ROUNDS = 20 };
	struct node *client[CLIENTS], *b = node_open(BYTES);
	struct wimm_net_addr place = b->addr;

	(void)state;
	for (int i = 0; i < CLIENTS; i++)
		client[i] = node_open(BYTES);
	for (uint32_t round = 1; round <= ROUNDS; round++) {
		for (int i = 0; i < CLIENTS; i++)
			result_ok(write_imm(client[i], remote_of(client[i], b), 0, 0, 64, round));
		imm_reaches(b, round, CLIENTS);
		die(b, round % 2 != 0);
		b = successor(&place); /* fails the case when they are taken */
	}
}

static const struct contract_case cases[] = {
	CASE(death_in_the_world_case_15_settles_every_write),
	CASE(silence_in_the_world_case_15_settles_every_write),
	CASE(restart_in_the_world_case_17_first_write_succeeds),
	CASE(leavers_in_the_world_case_19_leave_nothing_behind),
	CASE(close_in_the_world_case_23_waits_for_no_silent_peer),
	CASE(silence_in_the_world_case_31_fails_one_peers_requests),
	CASE(silence_limit_in_the_world_is_each_peers_own),
	CASE(new_engine_on_the_same_nics_case_204_is_not_taken_for_the_old),
	CASE(restart_in_the_world_case_206_finds_its_nics_free),
};
GROUP(world, cases);
