/* SPDX-License-Identifier: Apache-2.0 */
/* Peers of the same machine, of an engine whose NICs lead anywhere: found by a probe at the hello,
 * never by an address. */
#include "contract/fixture.h"

#include "base/config.h"
#include "core/engine.h"

#include <string.h>

#define IMM 7

static struct wimm_peer_info info_of(struct node *n, wimm_peer peer)
{
	struct wimm_peer_info info = WIMM_PEER_INFO_INIT;

	assert_ok(wimm_peer_get_info(n->engine, peer, &info));
	return info;
}

/* The setting of the engines opened from now on. */
static void rule(const char *value)
{
	assert_ok(config_set("same_host", value));
}

static struct node *node_auto(uint64_t bytes)
{
	rule("auto");
	return node_open(bytes);
}

static void has_words(const char *text, const char *words)
{
	if (strstr(text, words) == NULL)
		fail_msg("\"%s\" does not say \"%s\"", text, words);
}

/* A write of each kind, from a to b, arrives and is counted once. */
static void write_all_kinds(struct node *a, struct node *b, uint64_t seed)
{
	struct wimm_remote_mr *to = remote_of(a, b);
	uint64_t before = imm_now(b, IMM);
	uint64_t len = a->bytes / 2;

	fill(a->mem, len, seed);
	memset(b->mem, 0, b->bytes);
	result_ok(write_imm(a, to, 0, 0, len, IMM));
	result_ok(write_imm(a, to, 0, len, 1, IMM));
	result_ok(write_imm(a, to, 0, 0, 0, IMM));
	imm_reaches(b, IMM, before + 3);
	assert_true(holds(b->mem, len, seed));
	assert_int_equal(b->mem[len], a->mem[0]);
	assert_ok(wimm_close_remote_mr(a->engine, to));
}

/* Goal: without being told, neighbours write through their machine's memory, both ways, and both
 * sides say so. */
static void neighbours_find_each_other(void **state)
{
	struct node *a = node_auto(2 << 20), *b = node_auto(2 << 20);
	wimm_peer pb;

	(void)state;
	connect_nodes(a, b);
	pb = peer_of(a, b);
	assert_int_equal(info_of(a, pb).same_host, 1);
	assert_int_equal(info_of(a, pb).paths_up, cfg.nics + 1);
	has_words(info_of(a, pb).way, "this machine's memory");
	assert_int_equal(info_of(b, peer_of(b, a)).same_host, 1);
	assert_memory_equal(info_of(a, pb).instance, b->engine->self.instance, 16);
	write_all_kinds(a, b, 1);
	write_all_kinds(b, a, 2);
}

/* Goal: setting same_host off: neither side goes past its NICs, and says why. */
static void forbidden_by_either_side_goes_over_nics(void **state)
{
	struct node *a = node_auto(2 << 20), *b;

	(void)state;
	rule("off");
	b = node_open(2 << 20);
	connect_nodes(a, b);
	assert_int_equal(info_of(a, peer_of(a, b)).same_host, 0);
	assert_int_equal(info_of(b, peer_of(b, a)).same_host, 0);
	has_words(info_of(a, peer_of(a, b)).way, "NICs");
	has_words(info_of(b, peer_of(b, a)).way, "setting same_host is off");
	write_all_kinds(a, b, 3);
	write_all_kinds(b, a, 4);
}

static bool one_down(void *arg)
{
	return node_events(arg, WIMM_PEER_DOWN) == 1;
}

/* Goal: setting same_host require: no session with who is not reached that way; one with who is. */
static void required_way_that_is_not_there_refuses_the_session(void **state)
{
	struct wimm_error_info why;
	struct node *a, *b, *c;
	wimm_peer pb;

	(void)state;
	rule("off");
	b = node_open(4096);
	rule("require");
	a = node_open(4096);
	c = node_open(4096);
	pb = peer_of(a, b);
	assert_wait(one_down, a);
	assert_ok(wimm_peer_last_error(a->engine, pb, &why));
	assert_int_equal(why.status, WIMM_E_PEER_REFUSED);
	has_words(why.text, "same_host");
	write_all_kinds(a, c, 5);
}

/* Goal: a setting that is none of the three is refused in words. */
static void unknown_rule_refuses_the_engine(void **state)
{
	struct wimm_engine_opts o = node_opts();
	struct wimm_engine *e = NULL;

	(void)state;
	rule("perhaps");
	assert_refused(engine_open_here(&o, &e), WIMM_E_PARSE, "auto, off or require");
}

/* Goal: a peer that names somebody else's place is reached where it is; the other gets nothing. */
static void name_of_another_process_is_found_out(void **state)
{
	struct node *a = node_auto(2 << 20), *b = node_auto(2 << 20), *c = node_auto(2 << 20);
	struct worker *liar = &b->engine->worker;

	(void)state;
	memset(c->mem, 0x5c, c->bytes);
	liar->nic[liar->nic_count].addr =
		c->engine->worker.nic[c->engine->worker.nic_count].addr;
	connect_nodes(a, b);
	assert_int_equal(info_of(a, peer_of(a, b)).same_host, 0);
	write_all_kinds(a, b, 6);
	assert_true(all_are(c->mem, c->bytes, 0x5c));
	assert_int_equal(stats_of(c).imms_received, 0);
}

/* Goal: a name that nobody has costs no time: both sides are up at once, over NICs. */
static void name_of_nobody_is_found_out(void **state)
{
	struct node *a = node_auto(2 << 20), *b = node_auto(2 << 20);
	struct prov_addr *addr;

	(void)state;
	for (struct node *n = a;; n = b) {
		addr = &n->engine->worker.nic[n->engine->worker.nic_count].addr;
		addr->bytes[addr->len_bytes - 1] ^= 1;
		if (n == b)
			break;
	}
	connect_nodes(a, b);
	assert_int_equal(info_of(a, peer_of(a, b)).same_host, 0);
	assert_int_equal(info_of(b, peer_of(b, a)).same_host, 0);
	has_words(info_of(a, peer_of(a, b)).way, "NICs");
	write_all_kinds(a, b, 7);
}

/* Goal: who sends garbage in place of its name, or of its offer, is served over NICs. */
static void malformed_names_are_ignored(void **state)
{
	struct node *a = node_auto(2 << 20), *b = node_auto(2 << 20);
	struct prov_addr *addr = &a->engine->worker.nic[a->engine->worker.nic_count].addr;

	(void)state;
	addr->len_bytes = 1;
	connect_nodes(a, b);
	write_all_kinds(a, b, 8);
	write_all_kinds(b, a, 9);
}

static void cut_on_worker(struct worker *w, void *arg) ON_WORKER
{
	const wimm_status *cause = arg;

	LIST_FOR_EACH(it, &w->peers) {
		struct peer *p = LIST_ENTRY(it, struct peer, link);

		if (p->alias == NULL && p->host_path != NO_HOST_PATH)
			path_lost(w, &p->path[p->host_path], *cause, 0, "cut by the test");
	}
}

static bool both_lost(void *arg)
{
	struct node **n = arg;

	return node_events(n[0], WIMM_PEER_NIC_LOST) == 1 &&
	       node_events(n[1], WIMM_PEER_NIC_LOST) == 1;
}

struct enough {
	struct node *node;
	uint64_t least;
};

static bool enough(void *arg)
{
	const struct enough *e = arg;

	return imm_now(e->node, IMM) >= e->least;
}

/* Goal: the way through memory is lost for good under load: what was on it ends, each write once;
 * the session stands, and what comes after goes over NICs. */
static void lost_way_leaves_the_nics(void **state)
{
	enum { WRITES = 200 };
	wimm_status cause = WIMM_E_PROTOCOL; /* after which no path is opened again */
	struct node *a = node_auto(2 << 20), *b = node_auto(2 << 20);
	struct node *both[] = { a, b };
	struct wimm_remote_mr *to;
	struct result *r[WRITES];
	struct enough counted;
	uint64_t ok = 0;

	(void)state;
	connect_nodes(a, b);
	to = remote_of(a, b);
	for (unsigned i = 0; i < WRITES; i++)
		r[i] = write_imm(a, to, 0, 0, 512 << 10, IMM);
	worker_call(&a->engine->worker, cut_on_worker, &cause);
	for (unsigned i = 0; i < WRITES; i++) {
		result_wait(r[i]);
		ok += r[i]->status == WIMM_OK;
	}
	assert_wait(both_lost, both);
	gate_lock();
	for (uint32_t i = 0; i < a->event_count; i++)
		if (a->event[i].kind == WIMM_PEER_NIC_LOST)
			assert_true(a->event[i].nic_index == WIMM_NIC_SAME_HOST);
	gate_unlock();
	counted = (struct enough){ b, ok };
	assert_wait(enough, &counted);
	assert_int_equal(info_of(a, peer_of(a, b)).same_host, 0);
	has_words(info_of(a, peer_of(a, b)).way, "failed: cut by the test");
	assert_int_equal(info_of(a, peer_of(a, b)).up, 1);
	assert_ok(wimm_close_remote_mr(a->engine, to));
	write_all_kinds(a, b, 10);
	write_all_kinds(b, a, 11);
}

static bool both_back(void *arg)
{
	struct node **n = arg;

	return node_events(n[0], WIMM_PEER_NIC_BACK) >= 1 &&
	       node_events(n[1], WIMM_PEER_NIC_BACK) >= 1;
}

/* Goal: a lost way through memory comes back within its session, is told of as what it is, and is
 * used again by both sides; no NIC stands in for it. */
static void lost_way_comes_back(void **state)
{
	wimm_status cause = WIMM_E_PATH_LOST;
	struct node *a = node_auto(2 << 20), *b = node_auto(2 << 20);
	struct node *both[] = { a, b };

	(void)state;
	connect_nodes(a, b);
	write_all_kinds(a, b, 20);
	worker_call(&a->engine->worker, cut_on_worker, &cause);
	assert_wait(both_back, both);
	gate_lock();
	for (uint32_t i = 0; i < a->event_count; i++)
		if (a->event[i].kind == WIMM_PEER_NIC_BACK)
			assert_true(a->event[i].nic_index == WIMM_NIC_SAME_HOST);
	gate_unlock();
	assert_int_equal(info_of(a, peer_of(a, b)).same_host, 1);
	assert_int_equal(info_of(b, peer_of(b, a)).same_host, 1);
	has_words(info_of(a, peer_of(a, b)).way, "this machine's memory");
	write_all_kinds(a, b, 21);
	write_all_kinds(b, a, 22);
	assert_int_equal(node_events(a, WIMM_PEER_DOWN), 0);
	assert_int_equal(node_events(b, WIMM_PEER_DOWN), 0);
}

/* Goal: a region that is registered anew is as safe from old descriptors as over a NIC. */
static void revoked_region_is_revoked_on_this_way_too(void **state)
{
	struct node *a = node_auto(65536), *b = node_auto(65536);
	struct wimm_remote_mr *to;
	struct wimm_on_done done;
	struct result *gone = result_new();

	(void)state;
	to = remote_of(a, b);
	result_ok(write_imm(a, to, 0, 0, 65536, IMM));
	done = to_result(gone);
	gone->accepted = true;
	assert_ok(wimm_dereg_mr(b->engine, b->mr, &done));
	result_ok(gone);
	memset(b->mem, 0x11, b->bytes);
	{
		struct wimm_write w = single(a, to, 0, 0, 65536);
		struct result *late = result_new();
		wimm_status st;

		done = to_result(late);
		st = wimm_submit_single_write(a->engine, &w, &done, &late->id);
		if (st == WIMM_OK) {
			late->accepted = true;
			result_is(late, WIMM_E_REVOKED);
		} else {
			assert_status(st, WIMM_E_REVOKED);
		}
	}
	assert_true(all_are(b->mem, b->bytes, 0x11));
	assert_ok(wimm_reg_mr(b->engine, b->mem, b->bytes, NULL, &b->mr));
}

struct marks {
	uint64_t same_host, pinned_nic;
};

static void marks_on_worker(struct worker *w, void *arg)
{
	struct marks *m = arg;

	LIST_FOR_EACH(it, &w->peers) {
		struct peer *p = LIST_ENTRY(it, struct peer, link);

		if (p->alias != NULL || p->host_path == NO_HOST_PATH)
			continue;
		m->same_host += p->path[p->host_path].posted_marks;
		m->pinned_nic += p->path[cfg.nics - 1].posted_marks;
	}
}

/* Goal: a pinned write keeps to its NIC, as asked for. */
static void pinned_write_keeps_its_nic(void **state)
{
	struct node *a = node_auto(65536), *b = node_auto(65536);
	struct marks m = { 0 };
	struct wimm_write w;

	(void)state;
	connect_nodes(a, b);
	fill(a->mem, 65536, 12);
	w = single(a, remote_of(a, b), 0, 0, 65536);
	w.flags = WIMM_PIN_NIC | WIMM_IMM;
	w.nic_index = cfg.nics - 1;
	w.imm = IMM;
	result_ok(submit_write(a, &w));
	imm_reaches(b, IMM, 1);
	assert_true(holds(b->mem, 65536, 12));
	worker_call(&a->engine->worker, marks_on_worker, &m);
	assert_int_equal(m.same_host, 0);
	assert_int_equal(m.pinned_nic, 1);
}

static const struct contract_case cases[] = {
	CASE(neighbours_find_each_other),
	CASE(forbidden_by_either_side_goes_over_nics),
	CASE(required_way_that_is_not_there_refuses_the_session),
	CASE(unknown_rule_refuses_the_engine),
	CASE(name_of_another_process_is_found_out),
	CASE(name_of_nobody_is_found_out),
	CASE(malformed_names_are_ignored),
	CASE(lost_way_leaves_the_nics),
	CASE(lost_way_comes_back),
	CASE(revoked_region_is_revoked_on_this_way_too),
	CASE(pinned_write_keeps_its_nic),
};
GROUP(routing, cases);
