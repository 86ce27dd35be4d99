/* SPDX-License-Identifier: Apache-2.0 */
/* Peers without a job key that say to be somebody else: a session that stands does not notice
 * (docs/decisions/0009-claims-without-a-key.md). */
#include "faults/puppet.h"
#include "faults/raw.h"

#include <stdlib.h>
#include <string.h>

/* An engine, an honest peer with a session, and somebody who takes that peer's name. */
struct scene {
	struct node *victim, *honest;
	struct wimm_remote_mr *there, *back;
	uint32_t writes;
	struct raw *liar;
};

static void scene_open(struct scene *s)
{
	s->victim = node_open(4096);
	s->honest = node_open(4096);
	s->there = remote_of(s->honest, s->victim);
	s->back = remote_of(s->victim, s->honest);
	s->writes = 0;
	s->liar = case_memory(sizeof(*s->liar));
	raw_identity(s->liar);
}

/* Both directions work, through the session that there has been from the start. */
static void scene_is_calm(struct scene *s)
{
	result_ok(write_imm(s->honest, s->there, 0, 0, 64, 1));
	result_ok(write_imm(s->victim, s->back, 0, 0, 64, 1));
	s->writes++;
	imm_reaches(s->victim, 1, s->writes);
	imm_reaches(s->honest, 1, s->writes);
	assert_int_equal(node_events(s->victim, WIMM_PEER_UP), 1);
	assert_int_equal(node_events(s->victim, WIMM_PEER_DOWN), 0);
	assert_int_equal(node_events(s->honest, WIMM_PEER_DOWN), 0);
}

static void be(struct raw *r, const struct node *whom)
{
	assert_ok(wire_addr_decode(&whom->addr, &r->self));
}

/* Goal: a hello with the instance of a peer that has a session neither ends that session nor gets
 * one, whatever number it bears and whatever former session it makes up. */
static void claim_of_a_connected_peers_instance_is_refused(void **state)
{
	struct scene s;

	(void)state;
	scene_open(&s);
	scene_is_calm(&s);
	be(s.liar, s.honest);
	for (uint64_t i = 0; i < 24; i++) {
		uint64_t attempt = UINT64_MAX >> (i % 8), former = i < 12 ? 0 : i * 2 + 1;

		assert_status(raw_claim(s.liar, &s.victim->addr, attempt, former), WIMM_E_BUSY);
		raw_wait_closed(s.liar->ctl);
		raw_close(s.liar->ctl);
		scene_is_calm(&s);
	}
	assert_int_equal(stats_of(s.victim).peers_up, 1);
}

static bool two_are_up(void *arg)
{
	return stats_of(arg).peers_up == 2;
}

static bool one_went_down(void *arg)
{
	return node_events(arg, WIMM_PEER_DOWN) == 1;
}

/* Goal: an instance of its own that names a connected peer's address does not supersede that peer:
 * both have a session, and the peer's is the one that it was. */
static void claim_of_a_connected_peers_address_ends_no_session(void **state)
{
	struct wire_addr own;
	struct scene s;

	(void)state;
	scene_open(&s);
	scene_is_calm(&s);
	own = s.liar->self;
	be(s.liar, s.honest);
	memcpy(s.liar->self.instance, own.instance, sizeof(own.instance));
	assert_ok(raw_claim(s.liar, &s.victim->addr, 1, 0));
	raw_paths(s.liar, &s.victim->addr);
	assert_wait(two_are_up, s.victim);
	for (int i = 0; i < 4; i++)
		result_ok(write_imm(s.honest, s.there, 0, 0, 64, 2));
	imm_reaches(s.victim, 2, 4);
	assert_int_equal(node_events(s.victim, WIMM_PEER_DOWN), 0);
	raw_end(s.liar);
	assert_wait(one_went_down, s.victim);
	result_ok(write_imm(s.honest, s.there, 0, 0, 64, 3));
	imm_reaches(s.victim, 3, 1);
	assert_int_equal(node_events(s.honest, WIMM_PEER_DOWN), 0);
	assert_int_equal(node_events(s.victim, WIMM_PEER_RESTARTED), 0);
}

/* Goal: while this side dials a peer, a hello with its instance has to wait until whoever is at the
 * peer's address has answered. */
static void claim_of_a_peer_that_is_being_dialled_waits_for_its_address(void **state)
{
	struct node *victim = node_open(64);
	struct raw *liar = case_memory(sizeof(*liar));
	struct wimm_net_addr own, addr;
	struct raw_listener l;
	wimm_peer peer;

	(void)state;
	raw_identity(liar);
	assert_ok(wire_addr_decode(&victim->addr, &liar->self));
	memset(liar->self.instance, 0, sizeof(liar->self.instance)); /* the smaller one wins */
	liar->self.instance[15] = 1;
	assert_ok(wire_addr_encode(&liar->self, &own));
	raw_listen(&l, &own, &addr); /* takes the connection, and answers nothing */
	assert_ok(wimm_add_peer(victim->engine, &addr, NULL, &peer));
	assert_status(raw_claim(liar, &victim->addr, 1, 0), WIMM_E_BUSY);
	raw_wait_closed(liar->ctl);
	raw_end(liar);
	assert_int_equal(node_events(victim, WIMM_PEER_UP), 0);
	assert_ok(wimm_remove_peer(victim->engine, peer));
	raw_listen_end(&l);
}

/* Goal: who has lost its end of a session comes back at once with the number of that session, and
 * without it as soon as the old channel has ended. */
static void claim_of_ones_own_session_is_believed(void **state)
{
	struct node *victim = node_open(64);
	struct raw *r = case_memory(sizeof(*r)), *again = case_memory(sizeof(*again));

	(void)state;
	raw_session(r, &victim->addr);
	raw_identity(again);
	again->self = r->self;
	again->nonce = 77;
	assert_status(raw_claim(again, &victim->addr, 1, 0), WIMM_E_BUSY);
	raw_close(again->ctl);
	assert_int_equal(node_events(victim, WIMM_PEER_DOWN), 0);
	/* The number of the session: the old one ends, and then it may come. */
	assert_status(raw_claim(again, &victim->addr, 2, r->nonce), WIMM_E_BUSY);
	raw_close(again->ctl);
	assert_wait(one_went_down, victim);
	assert_ok(raw_claim(again, &victim->addr, 3, r->nonce));
	raw_paths(again, &victim->addr);
	raw_end(r);
	/* Its channel ends: so does the session, without any number. */
	raw_end(again);
	raw_identity(again);
	again->self = r->self;
	for (uint64_t i = 4;; i++) {
		wimm_status st = raw_claim(again, &victim->addr, i, 0);

		if (st == WIMM_OK)
			break;
		assert_status(st, WIMM_E_BUSY);
		raw_close(again->ctl);
	}
	raw_end(again);
}

struct losses {
	struct node *node;
	uint32_t count;
};

static bool lost_so_many(void *arg)
{
	const struct losses *l = arg;

	return node_events(l->node, WIMM_PEER_DOWN) == l->count;
}

/* Goal: of many peers that came and went the last ones are remembered, and the places of the others
 * are free again. */
static void lost_peers_beyond_those_remembered_give_back_their_places(void **state)
{
	enum { COMERS = 300 };
	struct node *victim = node_open(64);
	struct losses losses = { victim, COMERS };
	struct raw *r = case_memory(sizeof(*r));
	wimm_peer first = 0, last = 0;
	struct wimm_error_info info;

	(void)state;
	for (uint32_t i = 0; i < COMERS; i++) {
		raw_greet(r, &victim->addr);
		raw_end(r);
	}
	assert_wait(lost_so_many, &losses);
	gate_lock();
	for (uint32_t i = 0; i < victim->event_count; i++) {
		if (victim->event[i].kind != WIMM_PEER_DOWN)
			continue;
		first = first == 0 ? victim->event[i].peer : first;
		last = victim->event[i].peer;
	}
	gate_unlock();
	assert_status(wimm_peer_last_error(victim->engine, first, &info), WIMM_E_NOT_FOUND);
	assert_ok(wimm_peer_last_error(victim->engine, last, &info));
	assert_int_equal(stats_of(victim).peers_up, 0);
}

static const struct contract_case cases[] = {
	CASE(claim_of_a_connected_peers_instance_is_refused),
	CASE(claim_of_a_connected_peers_address_ends_no_session),
	CASE(claim_of_a_peer_that_is_being_dialled_waits_for_its_address),
	CASE(claim_of_ones_own_session_is_believed),
	CASE(lost_peers_beyond_those_remembered_give_back_their_places),
};
GROUP(claim, cases);
