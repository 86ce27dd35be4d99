/* SPDX-License-Identifier: Apache-2.0 */
/* The job key: without it no session, and nothing is told (docs/decisions/0008-job-key.md). */
#include "faults/puppet.h"
#include "faults/raw.h"

#include "base/config.h"
#include "core/engine.h"

#include <stdlib.h>
#include <string.h>

static const char key_a[] = "a key that all of this job have";
static const char key_b[] = "a key that some other job has..";

static struct node *open_keyed(const char *key)
{
	struct wimm_engine_opts o = node_opts();

	o.job_key = key;
	o.job_key_bytes = key != NULL ? strlen(key) : 0;
	return node_open_with(&o, 4096);
}

static void needs_keys(void)
{
	if (!auth_available())
		test_skip("this build has no libsodium");
}

static void transfers(struct node *a, struct node *b, uint32_t imm)
{
	fill(a->mem, 4096, imm);
	result_ok(write_imm(a, remote_of(a, b), 0, 0, 4096, imm));
	imm_reaches(b, imm, 1);
	assert_true(holds(b->mem, 4096, imm));
}

/* Goal: who has the same key has a session, in both directions, on all paths. */
static void key_shared_by_both_gives_a_session(void **state)
{
	struct node *a, *b;

	(void)state;
	needs_keys();
	a = open_keyed(key_a);
	b = open_keyed(key_a);
	transfers(a, b, 1);
	transfers(b, a, 2);
}

static bool is_down(void *arg)
{
	return node_events(arg, WIMM_PEER_DOWN) != 0;
}

static void refused(const char *from, const char *to)
{
	struct node *a = open_keyed(from), *b = open_keyed(to);
	wimm_peer peer = peer_of(a, b);
	struct wimm_error_info info;

	assert_wait(is_down, a);
	assert_ok(wimm_peer_last_error(a->engine, peer, &info));
	assert_status(info.status, WIMM_E_PEER_REFUSED);
	assert_non_null(strstr(info.text, "job key"));
	assert_int_equal(node_events(a, WIMM_PEER_UP) + node_events(b, WIMM_PEER_UP), 0);
	assert_int_equal(node_events(b, WIMM_PEER_DOWN), 0); /* it never was a peer */
	node_close(a);
	node_close(b);
}

/* Goal: another key, no key, or a key where none is known: refused, and the key is named as the
 * reason. */
static void key_of_one_side_alone_is_refused(void **state)
{
	(void)state;
	needs_keys();
	refused(key_a, key_b);
	refused(key_a, NULL);
	refused(NULL, key_a);
}

/* Goal: keys that cannot be one are refused with the limits, a file is as good as an option. */
static void key_is_checked_when_the_engine_opens(void **state)
{
	struct wimm_engine_opts o = node_opts();
	struct wimm_engine *e = NULL;
	struct node *a, *b;

	(void)state;
	needs_keys();
	o.job_key = "too short";
	o.job_key_bytes = 9;
	assert_refused(engine_open_here(&o, &e), WIMM_E_INVAL, "16..4096");
	o.job_key = NULL;
	assert_int_equal(engine_open_here(&o, &e), WIMM_E_INVAL);
	assert_ok(config_set("job_key_file", "/nonexistent/key"));
	o.job_key_bytes = 0;
	assert_refused(engine_open_here(&o, &e), WIMM_E_NOT_FOUND, "/nonexistent/key");
	assert_ok(config_set("job_key_file", test_dir()));
	assert_refused(engine_open_here(&o, &e), WIMM_E_SYSTEM, "Is a directory");
	assert_ok(config_set("job_key_file", test_file("short", "15 bytes of key")));
	assert_refused(engine_open_here(&o, &e), WIMM_E_INVAL, "short (setting job_key_file): 15");
	assert_ok(config_set("job_key_file", test_file("key", key_a)));
	a = node_open(4096);
	config_reload();
	b = open_keyed(key_a);
	transfers(a, b, 1);
}

/* --- over plain sockets --- */

/* Goal: a stranger's hello is answered with nothing of ours. */
static void key_missing_hello_is_told_nothing(void **state)
{
	struct raw *r = calloc(1, sizeof(*r));
	struct node *b;
	struct wire_msg hello;

	(void)state;
	needs_keys();
	assert_non_null(r);
	b = open_keyed(key_a);
	raw_identity(r);
	r->ctl = raw_open(&b->addr, 0, NULL);
	raw_hello(r, &hello); /* it does not say whom it wants */
	assert_true(raw_say(r->ctl, &hello));
	assert_true(raw_hear(r, &r->ack));
	assert_status(r->ack.u.hello.status, WIMM_E_PEER_REFUSED);
	assert_memory_equal(&r->ack.u.hello.self, &r->self, sizeof(r->self));
	raw_wait_closed(r->ctl);
	raw_end(r);
	free(r);
}

/* Hear the hello that `a` says to a socket of ours in place of b. */
static uint32_t overhear(struct node *a, const struct node *b, uint8_t *bytes, uint32_t room)
{
	struct raw_listener l;
	struct wimm_net_addr addr;
	wimm_peer peer;
	uint32_t len;

	raw_listen(&l, &b->addr, &addr);
	assert_ok(wimm_add_peer(a->engine, &addr, NULL, &peer));
	len = raw_overhear(&l, bytes, room);
	raw_listen_end(&l);
	return len;
}

/* Goal: a hello that was overheard opens no session, shows no path, and ends none that stands. */
static void key_of_a_replayed_hello_is_worth_nothing(void **state)
{
	struct raw *r = calloc(1, sizeof(*r));
	uint8_t bytes[4096];
	struct node *a, *b;
	uint32_t len;

	(void)state;
	needs_keys();
	assert_non_null(r);
	a = open_keyed(key_a);
	b = open_keyed(key_a);
	len = overhear(a, b, bytes, sizeof(bytes));
	for (int stands = 0; stands < 2; stands++) {
		struct wire_msg paths = { .type = WIRE_PATHS };

		raw_identity(r);
		r->ctl = raw_open(&b->addr, 0, NULL);
		assert_true(raw_say_bytes(r->ctl, bytes, len));
		assert_true(raw_hear(r, &r->ack));
		if (r->ack.u.hello.status == WIMM_OK) {
			const uint8_t *token = r->ack.u.hello.offer[0].bytes + 2;

			/* What it was shown opens no path, and it cannot answer. */
			assert_int_equal(raw_open(&b->addr, 0, token), -1);
			paths.u.paths.nonce = r->ack.u.hello.nonce;
			paths.u.paths.path_count = r->ack.u.hello.path_count;
			for (uint32_t k = 0; k < paths.u.paths.path_count; k++)
				paths.u.paths.offer[k] = r->ack.u.hello.offer[k];
			paths.u.paths.has_mac = true;
			assert_true(raw_say(r->ctl, &paths));
		}
		raw_wait_closed(r->ctl);
		raw_end(r);
		if (!stands) {
			assert_int_equal(node_events(b, WIMM_PEER_UP), 0);
			transfers(a, b, 1); /* whose hello it was */
		}
	}
	assert_int_equal(node_events(b, WIMM_PEER_UP), 1);
	transfers(b, a, 2);
	transfers(a, b, 3);
	free(r);
}

static const struct contract_case cases[] = {
	CASE(key_shared_by_both_gives_a_session),
	CASE(key_of_one_side_alone_is_refused),
	CASE(key_is_checked_when_the_engine_opens),
	CASE_ONLY(key_missing_hello_is_told_nothing, ONLY_TCP | ONLY_THREADS),
	CASE_ONLY(key_of_a_replayed_hello_is_worth_nothing, ONLY_TCP | ONLY_THREADS),
};
GROUP(key, cases);
