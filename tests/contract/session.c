/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions: peers by address and by instance, both sides opening at once, an engine as its own
 * peer, goodbye, restart, ids that are not reused. */
#include "contract/fixture.h"

#include <pthread.h>
#include <string.h>

/* An address of `n` that names whoever answers there: without the instance. */
static struct wimm_net_addr address_only(struct node *n)
{
	char text[WIMM_NET_ADDR_MAX_TEXT];
	struct wimm_net_addr addr;

	assert_ok(wimm_net_addr_to_string(&n->addr, text, sizeof(text)));
	*strchr(text, '#') = '\0';
	assert_ok(wimm_net_addr_from_string(text, &addr));
	return addr;
}

static wimm_peer add_by_address(struct node *from, struct node *to)
{
	struct wimm_net_addr addr = address_only(to);
	wimm_peer p = 0;

	assert_ok(wimm_add_peer(from->engine, &addr, NULL, &p));
	return p;
}

struct inbox {
	struct node *n;
	uint8_t buffer[8][64];
	uint32_t count;
	wimm_peer from;
	wimm_op op;
};

static void on_message(void *context, const struct wimm_received *m)
{
	struct inbox *in = context;

	gate_lock();
	if (m->status == WIMM_OK) {
		in->count++;
		in->from = m->peer;
	}
	gate_unlock();
}

static void inbox_open(struct node *n)
{
	struct inbox *in = case_memory(sizeof(*in));
	struct wimm_recv_buffer buffers[8];

	in->n = n;
	for (int i = 0; i < 8; i++)
		buffers[i] = (struct wimm_recv_buffer){ in->buffer[i], sizeof(in->buffer[i]) };
	assert_ok(wimm_submit_recvs(n->engine, buffers, 8, on_message, in, &in->op));
}

/* Accepted, or refused since the peer is gone already. */
static struct result *try_say(struct node *from, wimm_peer to, const char *text)
{
	struct wimm_send s = WIMM_SEND_INIT;
	struct result *r = result_new();
	struct wimm_on_done done = to_result(r);

	s.peer = to;
	s.data = text;
	s.len_bytes = strlen(text);
	r->accepted = wimm_submit_send(from->engine, &s, &done, &r->id) == WIMM_OK;
	return r;
}

static struct result *say(struct node *from, wimm_peer to, const char *text)
{
	struct result *r = try_say(from, to, text);

	assert_true(r->accepted);
	return r;
}

/* One whose count is certain: only these are never lost when their sender goes (C6). */
static struct result *write_confirmed(struct node *from, const struct wimm_remote_mr *to,
                                      uint32_t imm)
{
	struct wimm_write w = single(from, to, 0, 0, 8);

	w.flags = WIMM_IMM | WIMM_CONFIRMED;
	w.imm = imm;
	return submit_write(from, &w);
}

struct event_wait {
	struct node *n;
	wimm_peer_event_kind kind;
	wimm_peer peer; /* 0: any */
	uint32_t count;
};

static bool event_came(void *arg)
{
	struct event_wait *w = arg;
	uint32_t count = 0;

	gate_lock();
	for (uint32_t i = 0; i < w->n->event_count; i++)
		count += w->n->event[i].kind == w->kind &&
		         (w->peer == 0 || w->n->event[i].peer == w->peer);
	gate_unlock();
	return count >= w->count;
}

static void wait_event(struct node *n, wimm_peer_event_kind kind, wimm_peer peer)
{
	struct event_wait w = { n, kind, peer, 1 };

	if (!wait_for(event_came, &w))
		fail_msg("event %d of peer %llx did not come", kind, (unsigned long long)peer);
}

/* Goal: an address that nobody answers at takes the peer down, with the address in the text, and
 * what was submitted to it settles. */
static void peer_that_nobody_answers_for_goes_down_by_name(void **state)
{
	struct node *a = node_open(64), *b = node_open(64);
	struct wimm_error_info info;
	char text[WIMM_NET_ADDR_MAX_TEXT];
	struct result *r;
	wimm_peer p;

	(void)state;
	assert_ok(wimm_net_addr_to_string(&b->addr, text, sizeof(text)));
	node_close(b);
	p = peer_of(a, b);
	r = try_say(a, p, "hello?");
	if (r->accepted) {
		result_is(r, WIMM_E_PEER_LOST);
		assert_true(r->peer == p);
	}
	wait_event(a, WIMM_PEER_DOWN, p);
	text[strcspn(text, ",#")] = '\0'; /* the text may be cut behind the first of several */
	if (strstr(a->event_text, text) == NULL)
		fail_msg("no \"%s\" in \"%s\"", text, a->event_text);
	assert_ok(wimm_peer_last_error(a->engine, p, &info));
	assert_int_equal(info.status, WIMM_E_PEER_LOST);
	assert_string_equal(info.text, a->event_text);
	assert_int_equal(stats_of(a).peers_up, 0);
}

/* Goal: a peer named by its address alone comes up, and its id works for messages. */
static void peer_by_address_alone_comes_up(void **state)
{
	struct node *a = node_open(64), *b = node_open(64);
	wimm_peer p;

	(void)state;
	inbox_open(b);
	p = add_by_address(a, b);
	result_ok(say(a, p, "by address"));
	wait_event(a, WIMM_PEER_UP, p);
	/* Its descriptors lead to the same peer. */
	assert_true(wimm_remote_mr_peer(remote_of(a, b)) == p);
	assert_true(peer_of(a, b) == p);
	assert_int_equal(stats_of(a).peers_up, 1);
}

/* Goal: an address turns out to be a peer that is known by instance: one session serves both ids,
 * and both hear of its end. */
static void peer_by_address_merges_with_the_known_instance(void **state)
{
	struct node *a = node_open(64), *b = node_open(64);
	wimm_peer known, alias;

	(void)state;
	inbox_open(b);
	known = peer_of(a, b);
	result_ok(say(a, known, "one"));
	alias = add_by_address(a, b);
	assert_true(alias != known);
	result_ok(say(a, alias, "two"));
	wait_event(a, WIMM_PEER_UP, alias);
	result_ok(write_imm(a, remote_of(a, b), 0, 0, 8, 1));
	imm_reaches(b, 1, 1);
	assert_int_equal(stats_of(a).peers_up, 1);
	assert_int_equal(stats_of(b).peers_up, 1);
	assert_int_equal(node_events(b, WIMM_PEER_DOWN), 0);
	node_close(b);
	wait_event(a, WIMM_PEER_DOWN, known);
	wait_event(a, WIMM_PEER_DOWN, alias);
	assert_int_equal(stats_of(a).peers_up, 0);
}

/* Goal: the same while the session is still being opened, by either side. */
static void peer_by_address_merges_while_both_connect(void **state)
{
	unsigned rounds = 4 * test_scale();

	(void)state;
	for (unsigned i = 0; i < rounds; i++) {
		struct node *a = node_open(64), *b = node_open(64);
		wimm_peer by_address, by_instance, back;
		struct result *r[3];

		inbox_open(a);
		inbox_open(b);
		if (i % 2 == 0) {
			by_address = add_by_address(a, b);
			by_instance = peer_of(a, b);
		} else {
			by_instance = peer_of(a, b);
			by_address = add_by_address(a, b);
		}
		back = i % 4 < 2 ? peer_of(b, a) : add_by_address(b, a);
		r[0] = say(a, by_address, "1");
		r[1] = say(a, by_instance, "2");
		r[2] = say(b, back, "3");
		for (int k = 0; k < 3; k++)
			result_ok(r[k]);
		assert_int_equal(stats_of(a).peers_up, 1);
		assert_int_equal(stats_of(b).peers_up, 1);
		node_close(a);
		node_close(b);
	}
}

struct opener {
	struct node *from, *to;
	pthread_barrier_t *start;
	wimm_peer peer;
	bool by_address;
};

static void *open_at_once(void *arg)
{
	struct opener *o = arg;

	if (o->start != NULL)
		pthread_barrier_wait(o->start);
	o->peer = o->by_address ? add_by_address(o->from, o->to) : peer_of(o->from, o->to);
	return NULL;
}

static void open_from_both_sides(struct node *a, struct node *b, bool a_by_address,
                                 bool b_by_address)
{
	struct opener o[2] = { { .from = a, .to = b, .by_address = a_by_address },
		               { .from = b, .to = a, .by_address = b_by_address } };
	pthread_barrier_t start;
	pthread_t thread;

	if (cfg.driven) {
		open_at_once(&o[0]);
		open_at_once(&o[1]);
		return;
	}
	pthread_barrier_init(&start, NULL, 2);
	o[0].start = o[1].start = &start;
	assert_ok(pthread_create(&thread, NULL, open_at_once, &o[0]));
	open_at_once(&o[1]);
	pthread_join(thread, NULL);
	pthread_barrier_destroy(&start);
}

/* Goal: both sides open at the same moment: one session results, nothing submitted meanwhile is
 * lost, nobody sees the other go. */
static void open_from_both_sides_at_once_makes_one_session(void **state)
{
	unsigned rounds = test_scale() >= 10 ? 200 : 8;

	(void)state;
	for (unsigned i = 0; i < rounds; i++) {
		struct node *a = node_open(64), *b = node_open(64);
		struct result *there, *back;

		open_from_both_sides(a, b, i % 4 == 1 || i % 4 == 3, i % 4 >= 2);
		there = write_imm(a, remote_of(a, b), 0, 0, 8, 1);
		back = write_imm(b, remote_of(b, a), 0, 0, 8, 2);
		result_ok(there);
		result_ok(back);
		imm_reaches(b, 1, 1);
		imm_reaches(a, 2, 1);
		assert_int_equal(node_events(a, WIMM_PEER_DOWN), 0);
		assert_int_equal(node_events(b, WIMM_PEER_DOWN), 0);
		assert_int_equal(stats_of(a).peers_up, 1);
		assert_int_equal(stats_of(b).peers_up, 1);
		node_close(a);
		node_close(b);
	}
}

/* Goal: an engine may be its own peer: writes, immediates, messages, barriers of one. */
static void engine_that_writes_to_itself_counts_its_own_immediates(void **state)
{
	struct node *a = node_open(1 << 20);
	struct wimm_remote_mr *to = remote_of(a, a);
	struct result *r;

	(void)state;
	inbox_open(a);
	fill(a->mem, 4096, 1);
	r = expect(a, 3, 2);
	result_ok(write_imm(a, to, 0, 8192, 4096, 3));
	result_ok(write_imm(a, to, 0, 16384, 4096, 3));
	result_ok(r);
	assert_true(holds(a->mem + 8192, 4096, 1) && holds(a->mem + 16384, 4096, 1));
	result_ok(say(a, wimm_remote_mr_peer(to), "me"));
	assert_true(peer_of(a, a) == wimm_remote_mr_peer(to));
	/* Long enough to be split where there are several NICs. */
	fill(a->mem, 1 << 19, 2);
	result_ok(write_imm(a, to, 0, 1 << 19, 1 << 19, 4));
	imm_reaches(a, 4, 1);
	assert_true(holds(a->mem + (1 << 19), 1 << 19, 2));
}

/* Goal: what a peer wrote before its goodbye stays countable, and the goodbye is told. */
static void peer_that_says_goodbye_leaves_its_counts(void **state)
{
	unsigned rounds = 3 * test_scale();

	(void)state;
	for (unsigned i = 0; i < rounds; i++) {
		struct node *a = node_open(64), *b = node_open(64);
		struct wimm_remote_mr *to = remote_of(a, b);

		for (int k = 0; k < 5; k++)
			result_ok(write_confirmed(a, to, 1));
		node_close(a);
		wait_event(b, WIMM_PEER_DOWN, 0);
		result_ok(expect(b, 1, 5));
		node_close(b);
	}
}

/* Goal: removing a peer settles what is open towards it, tells the peer, and leaves a fresh start
 * to both. */
static void peer_removed_can_be_added_anew(void **state)
{
	struct node *a = node_open(64), *b = node_open(64);
	wimm_peer before = 0;

	(void)state;
	for (int i = 0; i < 5; i++) {
		struct wimm_remote_mr *to = remote_of(a, b);
		wimm_peer p = wimm_remote_mr_peer(to);
		struct result *open;

		assert_true(p != before);
		result_ok(write_confirmed(a, to, 1));
		open = say(a, p, "nobody listens");
		assert_ok(wimm_remove_peer(a->engine, p));
		result_is(open, WIMM_E_CLOSED);
		wait_event(a, WIMM_PEER_DOWN, p);
		assert_int_equal(wimm_submit_single_write(
					 a->engine,
					 &(struct wimm_write){ .size = sizeof(struct wimm_write),
		                                               .src = a->mr,
		                                               .dst = to },
					 NULL, NULL),
		                 WIMM_E_PEER_LOST);
		assert_ok(wimm_close_remote_mr(a->engine, to));
		before = p;
	}
	imm_reaches(b, 1, 5);
	assert_int_equal(wimm_remove_peer(a->engine, 0), WIMM_E_NOT_FOUND);
	assert_int_equal(wimm_remove_peer(a->engine, UINT64_MAX), WIMM_E_NOT_FOUND);
}

/* Goal: many peers come and go one after another; a slot that is used again has another id, and
 * the old id stays refused. */
static void peer_ids_of_the_gone_stay_refused(void **state)
{
	struct node *a = node_open(64);
	wimm_peer first = 0;

	(void)state;
	for (int i = 0; i < 20; i++) {
		struct node *b = node_open(64);
		struct wimm_remote_mr *to = remote_of(a, b);
		struct wimm_send s = WIMM_SEND_INIT;

		assert_true(wimm_remote_mr_peer(to) != first);
		result_ok(write_imm(a, to, 0, 0, 8, 1));
		if (first == 0)
			first = wimm_remote_mr_peer(to);
		node_close(b);
		wait_event(a, WIMM_PEER_DOWN, wimm_remote_mr_peer(to));
		assert_ok(wimm_close_remote_mr(a->engine, to));
		s.peer = first;
		assert_int_equal(wimm_submit_send(a->engine, &s, NULL, NULL), WIMM_E_PEER_LOST);
	}
}

/* Goal: a new instance at the address of a lost one is a new peer; the old descriptor is refused
 * by both names, the new one works at once. */
static void peer_restarted_at_its_address_is_another_peer(void **state)
{
	struct node *a = node_open(64), *b = node_open(64), *b2;
	struct wimm_engine_opts opts = node_opts();
	char text[WIMM_NET_ADDR_MAX_TEXT], *nics;
	struct wimm_remote_mr *to = remote_of(a, b), *late;
	struct wimm_mr_desc old = b->desc;
	struct result *r;

	(void)state;
	result_ok(write_imm(a, to, 0, 0, 8, 1));
	assert_ok(wimm_net_addr_to_string(&b->addr, text, sizeof(text)));
	node_close(b);
	*strchr(text, '#') = '\0';
	nics = strchr(text, ':') + 1;
	opts.nics = nics;
	b2 = node_open_with(&opts, 64);
	/* Seen for the first time after the restart: asked for by instance, answered by another. */
	assert_ok(wimm_open_remote_mr(a->engine, &old, &late));
	wait_event(a, WIMM_PEER_DOWN, wimm_remote_mr_peer(to));
	assert_ok(wimm_open_remote_mr(a->engine, &old, &late));
	{
		struct wimm_write w = single(a, late, 0, 0, 8);
		struct wimm_on_done done;

		r = result_new();
		done = to_result(r);
		if (wimm_submit_single_write(a->engine, &w, &done, &r->id) == WIMM_OK) {
			r->accepted = true;
			result_is(r, WIMM_E_PEER_RESTARTED);
			assert_non_null(strstr(r->text, "instance"));
		}
	}
	result_ok(write_imm(a, remote_of(a, b2), 0, 0, 8, 2));
	imm_reaches(b2, 2, 1);
	assert_int_equal(imm_now(b2, 1), 0);
	assert_true(all_are(b2->mem, 64, 0));
}

/* Goal: what is expected of a peer that is only an address yet fails with the instance that turns
 * out to be there, which was known. */
static void owes_of_an_address_fail_with_the_instance_behind_it(void **state)
{
	struct node *a = node_open(64), *b = node_open(64);
	wimm_peer known = peer_of(a, b), by_address = add_by_address(a, b);
	struct wimm_owes owes[] = { { by_address, 1 }, { known, 1 } };
	struct wimm_expect_opts opts = WIMM_EXPECT_OPTS_INIT;
	struct result *one, *both;

	(void)state;
	opts.owes = owes;
	opts.owes_count = 1;
	one = expect_with(a, 1, 1, &opts);
	opts.owes_count = 2;
	both = expect_with(a, 2, 2, &opts);
	wait_event(a, WIMM_PEER_UP, by_address);
	result_ok(write_imm(b, remote_of(b, a), 0, 0, 8, 2));
	imm_reaches(a, 2, 1);
	assert_false(result_there(one));
	node_close(b);
	result_is(one, WIMM_E_PEER_LOST);
	result_is(both, WIMM_E_PEER_LOST);
}

/* Goal: an address whose instance was damaged at its end is refused by whom it leads to, and costs
 * the session that stands nothing. */
static void address_of_nearly_a_peer_leaves_that_peer_alone(void **state)
{
	struct node *a = node_open(64), *b = node_open(64);
	wimm_peer known = peer_of(a, b), damaged;
	char text[WIMM_NET_ADDR_MAX_TEXT], *last;
	struct wimm_net_addr addr;

	(void)state;
	wait_event(a, WIMM_PEER_UP, known);
	assert_ok(wimm_net_addr_to_string(&b->addr, text, sizeof(text)));
	last = text + strlen(text) - 1;
	*last = *last == '0' ? '1' : '0';
	assert_ok(wimm_net_addr_from_string(text, &addr));
	assert_ok(wimm_add_peer(a->engine, &addr, NULL, &damaged));
	wait_event(a, WIMM_PEER_DOWN, damaged);
	assert_true(peer_of(a, b) == known);
	result_ok(write_imm(a, remote_of(a, b), 0, 0, 8, 1));
	assert_int_equal(node_events(a, WIMM_PEER_DOWN), 1);
	assert_int_equal(node_events(b, WIMM_PEER_DOWN), 0);
}

static const struct contract_case cases[] = {
	CASE(peer_that_nobody_answers_for_goes_down_by_name),
	CASE(peer_by_address_alone_comes_up),
	CASE(peer_by_address_merges_with_the_known_instance),
	CASE(peer_by_address_merges_while_both_connect),
	CASE(owes_of_an_address_fail_with_the_instance_behind_it),
	CASE(address_of_nearly_a_peer_leaves_that_peer_alone),
	CASE(open_from_both_sides_at_once_makes_one_session),
	CASE(engine_that_writes_to_itself_counts_its_own_immediates),
	CASE(peer_that_says_goodbye_leaves_its_counts),
	CASE(peer_removed_can_be_added_anew),
	CASE(peer_ids_of_the_gone_stay_refused),
	CASE_ONLY(peer_restarted_at_its_address_is_another_peer, ONLY_LASTING),
};
GROUP(session, cases);
