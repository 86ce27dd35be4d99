/* SPDX-License-Identifier: Apache-2.0 */
#include "kv/pair.h"

#include "base/alloc.h"
#include "kv/mem.h"

#include <string.h>

/* Each call that opens something, with its n-th allocation failing, for n = 1, 2, 3... until none
 * does: E_NOMEM, nothing stays behind, and the next request goes through. Engines are driven by the
 * test, so that only the call's own allocations fail. */

#define SWEEP_MAX 500
#define TOKENS    18 /* five pages of four, the last one half full */

static const uint32_t src_pages[] = { 9, 2, 14, 0, 7 };
static const uint32_t dst_pages[] = { 3, 15, 0, 8, 5 };

/* Whose allocations fail. */
enum whose { WHOSE_KV, WHOSE_ENGINE };

static void fail_nth(enum whose whose, uint64_t n)
{
	if (whose == WHOSE_KV)
		kv_fail_nth(n);
	else
		mem_fail_nth(n);
}

/* From here on nothing fails. Whether anything has. */
static bool fail_over(enum whose whose)
{
	bool fired = whose == WHOSE_KV ? kv_fail_fired() != 0 : mem_fail_fired();

	fail_nth(whose, 0);
	return fired;
}

static void on_quiet(void *context, const struct wimm_done *done)
{
	assert_int_equal(done->status, WIMM_OK);
	*(bool *)context = true;
}

static bool is_set(void *arg)
{
	return *(bool *)arg;
}

static void receiver_close(struct kv_pair *p, struct wimm_kv_receiver **receiver)
{
	bool quiet = false;
	struct wimm_on_done done = { .fn = on_quiet, .context = &quiet };

	assert_ok(wimm_kv_receiver_close(receiver, &done));
	kv_until(p, is_set, &quiet);
}

/* A whole request, as if nothing had been. */
static void request_goes_through(struct kv_pair *p)
{
	struct kv_result got, sent;
	struct wimm_kv_receive_opts r = kv_receive_opts(&got, TOKENS, dst_pages, 5);
	struct wimm_kv_receiver *receiver;
	struct wimm_kv_sender *sender;
	struct wimm_kv_send_opts o;

	memset(p->decode[0].mem, 0xee, p->decode[0].bytes);
	assert_ok(wimm_kv_receiver_open(p->decode[0].cache, &r, &receiver, NULL));
	o = kv_send_opts(&sent, receiver, src_pages, 5);
	assert_ok(wimm_kv_sender_open(p->prefill[0].cache, &o, &sender, NULL));
	(void)wimm_kv_sender_bump(sender, wimm_kv_sender_steps(sender));
	kv_wait(p, &sent, WIMM_OK);
	kv_wait(p, &got, WIMM_OK);
	p->tokens = TOKENS;
	kv_check_pages(p, 0, src_pages, dst_pages, 5);
	assert_ok(wimm_kv_sender_close(&sender));
	receiver_close(p, &receiver);
}

static bool try_cache(struct kv_pair *p, enum whose whose, uint64_t n, wimm_status *out)
{
	struct wimm_kv_cache_opts o = WIMM_KV_CACHE_OPTS_INIT;
	struct wimm_kv_cache *cache = NULL;
	bool fired;

	o.layout = &p->prefill[0].layout;
	o.region = p->prefill[0].mr;
	o.imm_first = 5000;
	o.messages = 4;
	fail_nth(whose, n);
	*out = wimm_kv_cache_open(p->prefill[0].engine, &o, &cache, NULL);
	fired = fail_over(whose);
	if (*out == WIMM_OK)
		assert_ok(wimm_kv_cache_close(&cache));
	assert_null(cache);
	return fired;
}

static bool try_watch(struct kv_pair *p, enum whose whose, uint64_t n, wimm_status *out)
{
	struct wimm_kv_watch *watch = NULL;
	bool fired;

	fail_nth(whose, n);
	*out = wimm_kv_watch_open(p->prefill[0].cache, &watch);
	fired = fail_over(whose);
	if (*out == WIMM_OK)
		assert_ok(wimm_kv_watch_close(&watch));
	assert_null(watch);
	return fired;
}

static bool try_receiver(struct kv_pair *p, enum whose whose, uint64_t n, wimm_status *out)
{
	struct kv_result got;
	struct wimm_kv_receive_opts r = kv_receive_opts(&got, TOKENS, dst_pages, 5);
	struct wimm_kv_receiver *receiver = NULL;
	struct wimm_net_addr addr;
	wimm_peer peer = 0;
	bool fired;

	assert_ok(wimm_main_address(p->prefill[0].engine, &addr));
	assert_ok(wimm_add_peer(p->decode[0].engine, &addr, NULL, &peer));
	r.peers = &peer; /* which owes something, so that the engine allocates, too */
	r.peer_count = 1;
	fail_nth(whose, n);
	*out = wimm_kv_receiver_open(p->decode[0].cache, &r, &receiver, NULL);
	fired = fail_over(whose);
	if (*out != WIMM_OK) {
		assert_null(receiver);
		return fired;
	}
	receiver_close(p, &receiver);
	kv_wait(p, &got, WIMM_E_CANCELLED);
	return fired;
}

static bool try_sender(struct kv_pair *p, enum whose whose, uint64_t n, wimm_status *out)
{
	struct kv_result got, sent;
	struct wimm_kv_receive_opts r = kv_receive_opts(&got, TOKENS, dst_pages, 5);
	struct wimm_kv_receiver *receiver;
	struct wimm_kv_sender *sender = NULL;
	struct wimm_kv_send_opts o;
	bool fired;

	assert_ok(wimm_kv_receiver_open(p->decode[0].cache, &r, &receiver, NULL));
	o = kv_send_opts(&sent, receiver, src_pages, 5);
	fail_nth(whose, n);
	*out = wimm_kv_sender_open(p->prefill[0].cache, &o, &sender, NULL);
	fired = fail_over(whose);
	if (*out == WIMM_OK) {
		assert_ok(wimm_kv_sender_close(&sender));
		kv_wait(p, &sent, WIMM_E_CANCELLED);
	}
	assert_null(sender);
	receiver_close(p, &receiver); /* told of the failure or not */
	assert_true(kv_there(&got));
	return fired;
}

typedef bool (*try_fn)(struct kv_pair *p, enum whose whose, uint64_t n, wimm_status *out);

static void sweep(try_fn try, enum whose whose, uint64_t least)
{
	struct kv_pair p = { .driven = true, .max_requests = 8 };
	bool fired = true;
	uint64_t n = 0;

	kv_open(&p, 1, 1, NULL, NULL);
	kv_fill(&p.prefill[0], 1);
	request_goes_through(&p); /* so that the two know each other */
	while (fired && ++n < SWEEP_MAX) {
		wimm_status st;

		fired = try(&p, whose, n, &st);
		if (st != WIMM_OK) {
			assert_true(fired);
			assert_int_equal(st, WIMM_E_NOMEM);
		}
		request_goes_through(&p);
	}
	assert_true(n > least && n < SWEEP_MAX);
	kv_close(&p);
}

static void sweep_of_cache_open_leaves_nothing_behind(void **state)
{
	/* Goal: wimm_kv_cache_open(), with its pool of messages. */
	(void)state;
	sweep(try_cache, WHOSE_KV, 1);
	sweep(try_cache, WHOSE_ENGINE, 1);
}

static void sweep_of_watch_open_leaves_nothing_behind(void **state)
{
	/* Goal: wimm_kv_watch_open(). */
	(void)state;
	sweep(try_watch, WHOSE_KV, 1);
	sweep(try_watch, WHOSE_ENGINE, 1);
}

static void sweep_of_receiver_open_leaves_nothing_behind(void **state)
{
	/* Goal: wimm_kv_receiver_open(). */
	(void)state;
	sweep(try_receiver, WHOSE_KV, 1);
	sweep(try_receiver, WHOSE_ENGINE, 1);
}

static void sweep_of_sender_open_leaves_nothing_behind(void **state)
{
	/* Goal: wimm_kv_sender_open(). */
	(void)state;
	sweep(try_sender, WHOSE_KV, 1);
	sweep(try_sender, WHOSE_ENGINE, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sweep_of_cache_open_leaves_nothing_behind),
		cmocka_unit_test(sweep_of_watch_open_leaves_nothing_behind),
		cmocka_unit_test(sweep_of_receiver_open_leaves_nothing_behind),
		cmocka_unit_test(sweep_of_sender_open_leaves_nothing_behind),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
