/* SPDX-License-Identifier: Apache-2.0 */
/* Peers that die, and what takes their place (contract C3, C9). */
#include "faults/puppet.h"

#include "core/engine.h"

#include <stdlib.h>
#include <string.h>

#define PAGE_BYTES 65536u
#define PAGES      1000u

/* --- conditions --- */

struct byte_goal {
	const uint8_t *at;
	uint8_t value;
};

static bool byte_is(void *arg)
{
	const struct byte_goal *g = arg;

	return __atomic_load_n(g->at, __ATOMIC_ACQUIRE) == g->value;
}

static bool nobody_is_up(void *arg)
{
	return stats_of(arg).peers_up == 0;
}

/* What the worker still keeps of peers that are not there any more. */
struct remains {
	uint32_t sessions, strangers;
};

static void count_remains(struct worker *w, void *arg)
{
	struct remains *r = arg;

	LIST_FOR_EACH(it, &w->peers) {
		const struct peer *p = LIST_ENTRY(it, struct peer, link);

		r->sessions += p->ctl != NULL || p->paths_open != 0 || p->state != PEER_DOWN;
	}
	LIST_FOR_EACH(it, &w->strangers)
		r->strangers++;
}

static bool nothing_remains(void *arg)
{
	struct node *n = arg;
	struct remains r = { 0, 0 };

	worker_call(&n->engine->worker, count_remains, &r);
	return r.sessions == 0 && r.strangers == 0;
}

static struct wimm_remote_mr *remote_at(struct node *from, const struct wimm_mr_desc *desc)
{
	struct wimm_remote_mr *r = NULL;

	assert_ok(wimm_open_remote_mr(from->engine, desc, &r));
	return r;
}

/* Short times, so that silence is found out within the test. */
static struct wimm_engine_opts quick_opts(void)
{
	struct wimm_engine_opts o = node_opts();

	o.heartbeat_ms = 50;
	o.peer_timeout_ms = 300;
	o.max_ops = 4096;
	return o;
}

/* --- 15 --- */

/* 1000 pages to a process that is stopped after the tenth has arrived. */
static void write_until_stopped(struct node *a, struct puppet *b, struct wimm_remote_mr *to,
                                struct result **r)
{
	struct byte_goal tenth = { b->mem + 9 * PAGE_BYTES + PAGE_BYTES - 1, 0x15 };

	memset(a->mem, 0x15, PAGE_BYTES);
	for (uint32_t i = 0; i < 10; i++)
		r[i] = write_imm(a, to, 0, (uint64_t)i * PAGE_BYTES, PAGE_BYTES, i);
	assert_wait(byte_is, &tenth);
	puppet_stop(b);
	for (uint32_t i = 10; i < PAGES; i++)
		r[i] = write_imm(a, to, 0, (uint64_t)i * PAGE_BYTES, PAGE_BYTES, i);
}

static void others_carry_on(struct node *a, struct node *c)
{
	struct wimm_remote_mr *to = remote_of(a, c);

	for (uint32_t i = 0; i < 64; i++)
		result_ok(write_imm(a, to, 0, (uint64_t)i * 1024, 1024, 77));
	imm_reaches(c, 77, 64);
	assert_ok(wimm_forget_imm(c->engine, 77, NULL));
	assert_true(all_are(c->mem, 64 * 1024, 0x15));
}

/* Whether a NIC of a stopped process goes on taking writes, as RDMA NICs do. */
static bool nics_go_on(void)
{
	return strcmp(cfg.provider, "verbs") == 0;
}

/* Whether a peer that was stopped may be in the middle of reading a source. */
static bool peers_fetch(void)
{
	return strcmp(cfg.provider, "host") == 0 || strcmp(cfg.profile, "routed") == 0;
}

static void lose_in_mid_transfer(void (*lose)(struct puppet *b))
{
	const struct puppet_opts po = { .bytes = (uint64_t)PAGES * PAGE_BYTES };
	struct wimm_engine_opts o = quick_opts();
	struct node *a = node_open_with(&o, PAGE_BYTES), *c = node_open(64 * 1024);
	struct result *r[PAGES];
	struct wimm_remote_mr *to;
	uint32_t done = 0;
	struct puppet *b;
	struct wimm_write w;

	b = puppet_start(&po);
	to = remote_at(a, &b->desc);
	write_until_stopped(a, b, to, r);
	if (lose != NULL)
		lose(b);
	others_carry_on(a, c);
	for (uint32_t i = 0; i < PAGES; i++) {
		result_wait(r[i]);
		if (r[i]->status == WIMM_OK)
			done++;
		else if (r[i]->status != WIMM_E_QUARANTINED || !peers_fetch())
			result_is(r[i], WIMM_E_PEER_LOST);
	}
	assert_true(done < PAGES || nics_go_on());
	node_wait_events(a, WIMM_PEER_DOWN, 1);
	w = single(a, to, 0, 0, 1);
	assert_status(wimm_submit_single_write(a->engine, &w, NULL, NULL), WIMM_E_PEER_LOST);
	others_carry_on(a, c);
	assert_int_equal(node_events(c, WIMM_PEER_DOWN), 0);
}

/* Goal: killed in mid-transfer: everything to it settles, nobody else notices. */
static void death_of_a_peer_in_mid_transfer_case_15_settles_every_write(void **state)
{
	(void)state;
	lose_in_mid_transfer(puppet_kill);
}

/* Goal: a peer that only falls silent is lost at its time-out, just the same. */
static void silence_of_a_peer_in_mid_transfer_case_15_settles_every_write(void **state)
{
	(void)state;
	lose_in_mid_transfer(NULL);
}

/* --- 17 --- */

/* Goal: the first write to a restarted peer succeeds; what was under way to the old one has ended
 * before. */
static void restart_on_the_same_address_case_17_first_write_succeeds(void **state)
{
	struct puppet_opts po = { .bytes = 64 << 20 };
	struct node *a = node_open(64 << 20);
	struct wimm_remote_mr *to;
	struct result *old, *first;
	char nics[128];
	struct puppet *b;

	(void)state;
	b = puppet_start(&po);
	to = remote_at(a, &b->desc);
	result_ok(write_imm(a, to, 0, 0, 4096, 1));
	puppet_stop(b);
	old = write_imm(a, to, 4096, 4096, (64 << 20) - 4096, 2);
	puppet_nics(b, nics, sizeof(nics));
	puppet_kill(b);
	po.nics = nics;
	po.bytes = 4096;
	b = puppet_start(&po);
	fill(a->mem, 4096, 17);
	first = write_imm(a, remote_at(a, &b->desc), 0, 0, 4096, 3);
	result_ok(first);
	assert_true(result_there(old));
	assert_true(old->status == WIMM_E_PEER_LOST || old->status == WIMM_E_PEER_RESTARTED);
	puppet_imm_reaches(b, 3, 1);
	assert_true(holds(b->mem, 4096, 17));
	puppet_end(b);
}

/* Goal: a peer known by its address alone is found again at the first try after its restart. */
static void restart_of_a_peer_known_by_address_case_17_connects_at_once(void **state)
{
	struct puppet_opts po = { .bytes = 4096 };
	struct node *a = node_open(4096);
	struct wimm_net_addr plain;
	char nics[128], text[160];
	struct puppet *b;
	wimm_peer first, second;

	(void)state;
	b = puppet_start(&po);
	puppet_nics(b, nics, sizeof(nics));
	po.nics = nics;
	snprintf(text, sizeof(text), "%s:%s", cfg.provider, nics);
	assert_ok(wimm_net_addr_from_string(text, &plain));
	assert_ok(wimm_add_peer(a->engine, &plain, NULL, &first));
	node_wait_events(a, WIMM_PEER_UP, 1);
	puppet_kill(b);
	b = puppet_start(&po);
	assert_ok(wimm_add_peer(a->engine, &plain, NULL, &second));
	node_wait_events(a, WIMM_PEER_UP, 2);
	assert_int_not_equal(first, second);
	assert_int_equal(node_events(a, WIMM_PEER_DOWN), 1);
	result_ok(write_imm(a, remote_at(a, &b->desc), 0, 0, 4096, 3));
	puppet_end(b);
}

/* Goal: a restarted peer comes back under whatever address it has now, without help over here: no
 * call but the writes themselves. */
static void restarted_peer_reconnects_without_help(void **state)
{
	const struct puppet_opts po = { .bytes = 4096 };
	struct puppet_write w = { .len_bytes = 4096, .flags = WIMM_IMM };
	struct wimm_engine_opts o = quick_opts();
	struct node *a = node_open_with(&o, 4096);
	struct puppet_tally tally;

	(void)state;
	for (uint32_t i = 1; i <= 3; i++) {
		struct puppet *b = puppet_start(&po);

		fill(b->mem, 4096, i);
		w.imm = i;
		puppet_write(b, &a->desc, &w);
		imm_reaches(a, i, 1);
		assert_true(holds(a->mem, 4096, i));
		puppet_settled(b, 1, &tally);
		assert_int_equal(tally.done, 1);
		result_ok(write_imm(a, remote_at(a, &b->desc), 0, 0, 4096, 100 + i));
		puppet_imm_reaches(b, 100 + i, 1);
		node_wait_events(a, WIMM_PEER_UP, i);
		puppet_kill(b);
	}
	node_wait_events(a, WIMM_PEER_DOWN, 3);
	assert_wait(nothing_remains, a);
}

/* --- 19 --- */

/* Goal: readers that leave without a word leave nothing behind, and the last one is served as the
 * first was. */
static void leavers_without_goodbye_case_19_leave_nothing_behind(void **state)
{
	const struct puppet_opts po = { .bytes = 65536 };
	const struct puppet_write w = { .len_bytes = 65536, .imm = 19, .flags = WIMM_IMM };
	struct wimm_engine_opts o = quick_opts();
	struct node *a = node_open_with(&o, 65536);
	struct puppet_tally tally;
	struct puppet *r;

	(void)state;
	for (uint32_t i = 1; i <= 20; i++) {
		r = puppet_start(&po);
		fill(r->mem, 65536, i);
		puppet_write(r, &a->desc, &w);
		puppet_settled(r, 1, &tally);
		assert_int_equal(tally.done, 1);
		imm_reaches(a, 19, 1);
		assert_true(holds(a->mem, 65536, i));
		puppet_leave(r);
			node_wait_events(a, WIMM_PEER_DOWN, i);
		assert_int_equal(imm_now(a, 19), 0); /* its share went with it */
	}
	assert_wait(nothing_remains, a);
	assert_int_equal(stats_of(a).peers_up, 0);
}

/* --- 31 --- */

static struct result *expect_from(struct node *n, uint32_t imm, wimm_peer peer)
{
	struct wimm_owes owes = { peer, 1 };
	struct wimm_expect_opts eo = WIMM_EXPECT_OPTS_INIT;

	eo.owes = &owes;
	eo.owes_count = 1;
	return expect_with(n, imm, 1, &eo);
}

static wimm_peer peer_at(struct node *n, const struct puppet *p)
{
	wimm_peer peer = 0;

	assert_ok(wimm_add_peer(n->engine, &p->addr, NULL, &peer));
	return peer;
}

/* Goal: a peer that falls silent fails what waits for it, and nothing else; a newcomer is used. */
static void silence_of_one_of_three_case_31_fails_its_requests_alone(void **state)
{
	const struct puppet_opts po = { .bytes = 4096, .heartbeat_ms = 50, .peer_timeout_ms = 300 };
	struct puppet_write w = { .len_bytes = 4096, .flags = WIMM_IMM };
	struct wimm_engine_opts o = quick_opts();
	struct node *d = node_open_with(&o, 4096);
	struct puppet *p[4];
	struct result *r[4];
	wimm_peer peer[4];

	(void)state;
	for (uint32_t i = 0; i < 3; i++) {
		p[i] = puppet_start(&po);
		peer[i] = peer_at(d, p[i]);
	}
	node_wait_events(d, WIMM_PEER_UP, 3);
	for (uint32_t i = 0; i < 3; i++)
		r[i] = expect_from(d, 100 + i, peer[i]);
	puppet_stop(p[1]);
	result_is(r[1], WIMM_E_PEER_LOST);
	assert_int_equal(r[1]->peer, peer[1]);
	assert_non_null(strstr(r[1]->text, "silent"));
	assert_false(result_there(r[0]) || result_there(r[2]));
	p[3] = puppet_start(&po);
	peer[3] = peer_at(d, p[3]);
	r[3] = expect_from(d, 103, peer[3]);
	for (uint32_t i = 0; i < 4; i++) {
		if (i == 1)
			continue;
		w.imm = 100 + i;
		puppet_write(p[i], &d->desc, &w);
		result_ok(r[i]);
	}
	assert_int_equal(node_events(d, WIMM_PEER_DOWN), 1);
	for (uint32_t i = 0; i < 4; i++) {
		if (i != 1)
			puppet_end(p[i]);
		}
}

/* Goal: a peer's own time-out holds for it alone. */
static void silence_limit_is_each_peers_own(void **state)
{
	const struct puppet_opts po = { .bytes = 4096, .heartbeat_ms = 50 };
	struct wimm_peer_opts opts = WIMM_PEER_OPTS_INIT;
	struct wimm_engine_opts o = node_opts();
	struct puppet *b, *c;
	struct node *a;
	wimm_peer peer;

	(void)state;
	o.peer_timeout_ms = 600000;
	a = node_open_with(&o, 4096);
	b = puppet_start(&po);
	c = puppet_start(&po);
	opts.peer_timeout_ms = 300;
	assert_ok(wimm_add_peer(a->engine, &b->addr, &opts, &peer)); /* before it has a session */
	(void)peer_at(a, c);
	node_wait_events(a, WIMM_PEER_UP, 2);
	puppet_stop(b);
	puppet_stop(c);
	node_wait_events(a, WIMM_PEER_DOWN, 1);
	gate_lock();
	for (uint32_t i = 0; i < a->event_count; i++)
		if (a->event[i].kind == WIMM_PEER_DOWN)
			assert_int_equal(a->event[i].peer, peer);
	gate_unlock();
	assert_int_equal(node_events(a, WIMM_PEER_DOWN), 1);
}

/* --- 204 --- */

static void names_both(const char *text, const struct wimm_net_addr *was,
                       const struct wimm_net_addr *is)
{
	char line[WIMM_NET_ADDR_MAX_TEXT];
	const struct wimm_net_addr *addr[2] = { was, is };

	for (int i = 0; i < 2; i++) {
		assert_ok(wimm_net_addr_to_string(addr[i], line, sizeof(line)));
		line[strcspn(line, "#") + 17] = '\0'; /* half an instance tells two apart */
		if (strstr(text, strchr(line, '#') + 1) == NULL)
			fail_msg("\"%s\" does not name %s", text, line);
	}
}

/* The old descriptor, in hands that never saw its owner: refused, or ended, with both names. */
static void write_is_told_of_restart(struct node *late, const struct wimm_mr_desc *old,
                                     const struct wimm_net_addr *was,
                                     const struct wimm_net_addr *is)
{
	struct wimm_write w = single(late, remote_at(late, old), 0, 0, 65536);
	struct result *r = result_new();
	struct wimm_on_done done = to_result(r);
	wimm_status st = wimm_submit_single_write(late->engine, &w, &done, &r->id);

	if (st != WIMM_OK) {
		assert_status(st, WIMM_E_PEER_RESTARTED);
		names_both(wimm_last_error_text(), was, is);
		return;
	}
	r->accepted = true;
	result_is(r, WIMM_E_PEER_RESTARTED);
	names_both(r->text, was, is);
}

/* Goal: an old descriptor never reaches the process that took its owner's place. */
static void new_process_on_the_same_port_case_204_is_not_taken_for_the_old(void **state)
{
	struct puppet_opts po = { .bytes = 65536, .at = (void *)0x7e9000000000 };
	struct node *a = node_open(65536), *late = node_open(65536);
	struct wimm_error_info info;
	struct wimm_net_addr was;
	struct wimm_mr_desc old;
	struct wimm_remote_mr *to;
	struct wimm_write w;
	char nics[128];
	struct puppet *b;
	wimm_peer peer;

	(void)state;
	memset(a->mem, 0xee, 65536);
	memset(late->mem, 0xee, 65536);
	b = puppet_start(&po);
	old = b->desc;
	was = b->addr;
	to = remote_at(a, &old);
	result_ok(write_imm(a, to, 0, 0, 65536, 1));
	puppet_nics(b, nics, sizeof(nics));
	puppet_kill(b);
	po.nics = nics;
	b = puppet_start(&po);
	node_wait_events(a, WIMM_PEER_DOWN, 1);
	/* The old handle. */
	w = single(a, to, 0, 0, 65536);
	assert_status(wimm_submit_single_write(a->engine, &w, NULL, NULL), WIMM_E_PEER_LOST);
	/* The old address. */
	assert_ok(wimm_add_peer(a->engine, &was, NULL, &peer));
	node_wait_events(a, WIMM_PEER_DOWN, 2);
	assert_ok(wimm_peer_last_error(a->engine, peer, &info));
	assert_status(info.status, WIMM_E_PEER_RESTARTED);
	names_both(info.text, &was, &b->addr);
	write_is_told_of_restart(late, &old, &was, &b->addr);
	assert_true(all_are(b->mem, 65536, 0));
	assert_int_equal(puppet_imm(b, 2), 0);
	/* The new one. */
	result_ok(write_imm(late, remote_at(late, &b->desc), 0, 0, 65536, 3));
	result_ok(write_imm(a, remote_at(a, &b->desc), 0, 0, 65536, 3));
	puppet_imm_reaches(b, 3, 2);
	assert_true(all_are(b->mem, 65536, 0xee));
	puppet_end(b);
}

/* --- 206 --- */

#define CLIENTS 10

/* Goal: a killed process with connected peers has a successor on its port at once, every time. */
static void restart_with_ten_connected_case_206_listens_at_once(void **state)
{
	struct puppet_opts po = { .bytes = 4096 };
	struct node *client[CLIENTS];
	struct puppet *b;
	char nics[128];

	(void)state;
	for (int i = 0; i < CLIENTS; i++)
		client[i] = node_open(4096);
	b = puppet_start(&po);
	puppet_nics(b, nics, sizeof(nics));
	po.nics = nics;
	for (uint32_t round = 1; round <= 20; round++) {
		for (int i = 0; i < CLIENTS; i++)
			result_ok(write_imm(client[i], remote_at(client[i], &b->desc), 0, 0, 4096,
			                    round));
		puppet_imm_reaches(b, round, CLIENTS);
		puppet_kill(b);
		b = puppet_start(&po); /* fails the case when it cannot bind */
	}
	puppet_end(b);
	for (int i = 0; i < CLIENTS; i++)
		assert_wait(nobody_is_up, client[i]);
}

static const struct contract_case cases[] = {
	CASE_ONLY(death_of_a_peer_in_mid_transfer_case_15_settles_every_write, ONLY_PROCESSES),
	CASE_ONLY(silence_of_a_peer_in_mid_transfer_case_15_settles_every_write, ONLY_PROCESSES),
	CASE_ONLY(restart_on_the_same_address_case_17_first_write_succeeds,
	          ONLY_PROCESSES | ONLY_LASTING),
	CASE_ONLY(restart_of_a_peer_known_by_address_case_17_connects_at_once,
	          ONLY_PROCESSES | ONLY_LASTING),
	CASE_ONLY(restarted_peer_reconnects_without_help, ONLY_PROCESSES),
	CASE_ONLY(leavers_without_goodbye_case_19_leave_nothing_behind, ONLY_PROCESSES),
	CASE_ONLY(silence_of_one_of_three_case_31_fails_its_requests_alone, ONLY_PROCESSES),
	CASE_ONLY(silence_limit_is_each_peers_own, ONLY_PROCESSES),
	CASE_ONLY(new_process_on_the_same_port_case_204_is_not_taken_for_the_old,
	          ONLY_PROCESSES | ONLY_LASTING),
	CASE_ONLY(restart_with_ten_connected_case_206_listens_at_once,
	          ONLY_PROCESSES | ONLY_LASTING),
};
GROUP(death, cases);
