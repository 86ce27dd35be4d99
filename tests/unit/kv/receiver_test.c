/* SPDX-License-Identifier: Apache-2.0 */
#include "kv/pair.h"

#include "core/engine.h"
#include "kv/mem.h"

#include <stdatomic.h>
#include <string.h>

#include <wimm/kv.h>

static const uint32_t src_pages[] = { 9, 2, 14, 0, 7, 1, 4, 5, 6, 8 };
static const uint32_t dst_pages[] = { 3, 15, 0, 8, 5, 6, 7, 9, 10, 11 };

static struct wimm_kv_receiver *open_receiver(struct kv_pair *p,
                                              const struct wimm_kv_receive_opts *o)
{
	struct wimm_kv_receiver *r = NULL;
	struct wimm_error_info error = { 0 };

	if (wimm_kv_receiver_open(p->decode[0].cache, o, &r, &error) != WIMM_OK)
		fail_msg("receiver: %s", error.text);
	return r;
}

static struct wimm_kv_sender *open_sender(struct kv_pair *p, uint32_t rank,
                                          const struct wimm_kv_send_opts *o)
{
	struct wimm_kv_sender *s = NULL;
	struct wimm_error_info error = { 0 };

	if (wimm_kv_sender_open(p->prefill[rank].cache, o, &s, &error) != WIMM_OK)
		fail_msg("sender: %s", error.text);
	return s;
}

static bool result_called(void *arg)
{
	return kv_there(arg);
}

struct flag {
	_Atomic uint32_t calls;
	wimm_status status;
};

static void on_quiet(void *context, const struct wimm_done *done)
{
	struct flag *f = context;

	f->status = done->status;
	/* Release, with the acquire in flag_set(). */
	atomic_fetch_add_explicit(&f->calls, 1, memory_order_release);
}

static bool flag_set(void *arg)
{
	struct flag *f = arg;

	return atomic_load_explicit(&f->calls, memory_order_acquire) != 0;
}

/* One request of five pages, armed on both sides; peer 0: the receiver does not know it. */
static void open_both(struct kv_pair *p, wimm_peer peer, uint32_t first, struct kv_result *got,
                      struct kv_result *sent, struct wimm_kv_receiver **receiver,
                      struct wimm_kv_sender **sender)
{
	struct wimm_kv_receive_opts r = kv_receive_opts(got, 20, dst_pages + first, 5);
	struct wimm_kv_send_opts o;

	r.deadline_us = 60000000;
	r.peers = peer != 0 ? &peer : NULL;
	r.peer_count = peer != 0;
	*receiver = open_receiver(p, &r);
	o = kv_send_opts(sent, *receiver, src_pages + first, 5);
	*sender = open_sender(p, 0, &o);
}

static wimm_peer prefill_peer(struct kv_pair *p)
{
	struct wimm_net_addr addr;
	wimm_peer peer = 0;

	assert_ok(wimm_main_address(p->prefill[0].engine, &addr));
	assert_ok(wimm_add_peer(p->decode[0].engine, &addr, NULL, &peer));
	return peer;
}

static void case_21_write_that_cannot_start_fails_that_request_on_both_sides(void **state)
{
	/* Goal: a NIC loses one of ten pages. The prefill side reports an error, the decode side
	 * hears "failed" for that request before its own deadline, in the same words; the other
	 * request of the same two goes on over the other NIC, and a new one is served too. */
	struct kv_pair p = { .two_nics = true };
	struct kv_result got[3], sent[3];
	struct wimm_kv_receiver *receiver[3];
	struct wimm_kv_sender *sender[3];
	const struct sim_cfg sim = { .profile = "efa", .seed = test_seed(21) };

	(void)state;
	kv_open(&p, 1, 1, &sim, NULL);
	kv_fill(&p.prefill[0], 3);
	for (uint32_t i = 0; i < 2; i++)
		open_both(&p, 0, 5 * i, &got[i], &sent[i], &receiver[i], &sender[i]);
	sim_lose_next(p.world, 1, SIM_LOSS_UNSENT, 1);
	wimm_kv_sender_bump(sender[0], 4);
	kv_until(&p, result_called, &sent[0]);
	kv_until(&p, result_called, &got[0]);
	assert_true(sent[0].status < 0);
	assert_int_equal(got[0].status, sent[0].status);
	assert_string_equal(got[0].text, sent[0].text);
	assert_false(kv_there(&got[1]));
	wimm_kv_sender_bump(sender[1], 4);
	kv_wait(&p, &got[1], WIMM_OK);
	kv_wait(&p, &sent[1], WIMM_OK);
	open_both(&p, 0, 0, &got[2], &sent[2], &receiver[2], &sender[2]);
	wimm_kv_sender_bump(sender[2], 4);
	kv_wait(&p, &got[2], WIMM_OK);
	kv_check_pages(&p, 0, src_pages, dst_pages, 10);
	for (uint32_t i = 0; i < 3; i++) {
		assert_ok(wimm_kv_sender_close(&sender[i]));
		assert_ok(wimm_kv_receiver_close(&receiver[i], NULL));
	}
	kv_close(&p);
}

static void case_21_write_lost_with_the_only_nic_fails_the_request_at_once(void **state)
{
	/* Goal: with one NIC the session is lost too. Whether the sender's message or that loss
	 * comes first, a receiver that knows its peer fails without its deadline, which is a minute
	 * away; the next request is served again. */
	struct kv_pair p = { .two_nics = false };
	struct kv_result got[2], sent[2];
	struct wimm_kv_receiver *receiver[2];
	struct wimm_kv_sender *sender[2];

	(void)state;
	kv_open(&p, 1, 1, NULL, NULL);
	kv_fill(&p.prefill[0], 3);
	open_both(&p, prefill_peer(&p), 0, &got[0], &sent[0], &receiver[0], &sender[0]);
	sim_lose_next(p.world, 1, SIM_LOSS_UNKNOWN, 1);
	wimm_kv_sender_bump(sender[0], 4);
	kv_until(&p, result_called, &sent[0]);
	kv_until(&p, result_called, &got[0]);
	assert_int_equal(got[0].calls, 1);
	assert_true(got[0].status == WIMM_E_PEER_LOST || got[0].status == sent[0].status);
	assert_true(sent[0].status < 0 && sent[0].status != WIMM_E_TIMEOUT);
	open_both(&p, prefill_peer(&p), 0, &got[1], &sent[1], &receiver[1], &sender[1]);
	wimm_kv_sender_bump(sender[1], 4);
	kv_wait(&p, &got[1], WIMM_OK);
	kv_check_pages(&p, 0, src_pages, dst_pages, 5);
	for (uint32_t i = 0; i < 2; i++) {
		assert_ok(wimm_kv_sender_close(&sender[i]));
		assert_ok(wimm_kv_receiver_close(&receiver[i], NULL));
	}
	kv_close(&p);
}

static void receiver_nobody_serves_ends_by_its_deadline(void **state)
{
	/* Goal: a request that gets lost on its way is a time-out, not a hang. */
	struct kv_pair p = { .provider = NULL };
	struct kv_result got;
	struct wimm_kv_receive_opts r = kv_receive_opts(&got, 20, dst_pages, 5);
	struct wimm_kv_receiver *receiver;

	(void)state;
	r.deadline_us = 20000;
	kv_open(&p, 1, 1, NULL, NULL);
	receiver = open_receiver(&p, &r);
	kv_wait(&p, &got, WIMM_E_TIMEOUT);
	assert_ok(wimm_kv_receiver_close(&receiver, NULL));
	kv_close(&p);
}

static void receiver_given_up_ends_its_sender_and_its_pages_come_back(void **state)
{
	/* Goal: a receiver that knows its prefill rank tells it; the sender ends as cancelled, and
	 * on_quiet says when the pages are the decode side's own again. */
	struct kv_pair p = { .provider = NULL };
	struct kv_result got, sent;
	struct wimm_kv_receive_opts r = kv_receive_opts(&got, 20, dst_pages, 5);
	struct wimm_kv_send_opts o;
	struct wimm_kv_receiver *receiver;
	struct wimm_kv_sender *sender;
	struct wimm_net_addr addr;
	struct flag flag = { 0 };
	const struct wimm_on_done quiet = { on_quiet, &flag, NULL };
	wimm_peer peer = 0;

	(void)state;
	kv_open(&p, 1, 1, NULL, NULL);
	kv_fill(&p.prefill[0], 3);
	assert_ok(wimm_main_address(p.prefill[0].engine, &addr));
	assert_ok(wimm_add_peer(p.decode[0].engine, &addr, NULL, &peer));
	r.peers = &peer;
	r.peer_count = 1;
	receiver = open_receiver(&p, &r);
	o = kv_send_opts(&sent, receiver, src_pages, 5);
	sender = open_sender(&p, 0, &o);
	wimm_kv_sender_bump(sender, 1);
	assert_ok(wimm_kv_receiver_close(&receiver, &quiet));
	assert_null(receiver);
	kv_wait(&p, &got, WIMM_E_CANCELLED);
	kv_wait(&p, &sent, WIMM_E_CANCELLED);
	assert_non_null(strstr(sent.text, "given up by the decode side"));
	kv_until(&p, flag_set, &flag);
	assert_ok(flag.status);
	assert_ok(wimm_kv_sender_close(&sender));
	kv_close(&p);
}

static void case_28_pages_of_a_cancelled_request_are_reused_once_quiet(void **state)
{
	/* Goal: half of a request's layers are on their way, slowly, when it is cancelled. Once its
	 * pages are reported quiet no byte of it gets into them: those of the next request, in the
	 * same pages, are exact. */
	struct kv_pair p = { .provider = NULL };
	const unsigned rounds = 20 * test_scale() < 1000 ? 20 * test_scale() : 1000;

	(void)state;
	kv_open(&p, 1, 1, NULL, NULL);
	sim_set_delay(p.world, 1000, 3000000);
	for (unsigned i = 0; i < rounds; i++) {
		struct kv_result got[2], sent[2];
		struct wimm_kv_receiver *receiver[2];
		struct wimm_kv_sender *sender[2];
		struct flag flag = { 0 };
		const struct wimm_on_done quiet = { on_quiet, &flag, NULL };
		wimm_peer peer = prefill_peer(&p);

		kv_fill(&p.prefill[0], 2 * i + 1);
		open_both(&p, peer, 0, &got[0], &sent[0], &receiver[0], &sender[0]);
		wimm_kv_sender_bump(sender[0], 2);
		assert_ok(wimm_kv_receiver_close(&receiver[0], &quiet));
		kv_wait(&p, &got[0], WIMM_E_CANCELLED);
		kv_until(&p, flag_set, &flag);
		assert_ok(flag.status);
		memset(p.decode[0].mem, 0xee, p.decode[0].bytes); /* our own again */
		kv_wait(&p, &sent[0], WIMM_E_CANCELLED);
		kv_fill(&p.prefill[0], 2 * i + 2);
		open_both(&p, peer, 0, &got[1], &sent[1], &receiver[1], &sender[1]);
		wimm_kv_sender_bump(sender[1], 4);
		kv_wait(&p, &got[1], WIMM_OK);
		kv_wait(&p, &sent[1], WIMM_OK);
		kv_check_pages(&p, 0, src_pages, dst_pages, 5);
		assert_ok(wimm_kv_sender_close(&sender[0]));
		assert_ok(wimm_kv_sender_close(&sender[1]));
		assert_ok(wimm_kv_receiver_close(&receiver[1], NULL));
	}
	kv_close(&p);
}

static void receiver_whose_peer_dies_fails_at_once(void **state)
{
	/* Goal: with the prefill ranks named, the death of the one that owes is the end, without
	 * any deadline; the error is the peer's. */
	struct kv_pair p = { .provider = NULL };
	struct kv_result got[2], sent[2];
	struct wimm_kv_receiver *receiver[2];
	struct wimm_kv_sender *sender[2];
	struct wimm_kv_layout prefill;
	wimm_peer peers[2];

	(void)state;
	kv_open(&p, 2, 1, NULL, NULL);
	prefill = p.prefill[0].layout;
	for (uint32_t i = 0; i < 2; i++) {
		struct wimm_net_addr addr;

		assert_ok(wimm_main_address(p.prefill[i].engine, &addr));
		assert_ok(wimm_add_peer(p.decode[0].engine, &addr, NULL, &peers[i]));
	}
	{
		struct wimm_kv_receive_opts r = kv_receive_opts(&got[0], 20, dst_pages, 5);

		r.prefill = &prefill;
		r.peers = peers;
		r.peer_count = 1;
		assert_int_equal(wimm_kv_receiver_open(p.decode[0].cache, &r, &receiver[0], NULL),
		                 WIMM_E_INVAL);
		r.peer_count = 2;
		receiver[0] = open_receiver(&p, &r);
	}
	for (uint32_t i = 0; i < 2; i++) {
		struct wimm_kv_send_opts o = kv_send_opts(&sent[i], receiver[0], src_pages, 5);

		sender[i] = open_sender(&p, i, &o);
	}
	wimm_kv_sender_bump(sender[0], 4);
	kv_wait(&p, &sent[0], WIMM_OK);
	wimm_kv_sender_bump(sender[1], 2);
	sim_kill_engine(p.world, p.prefill[1].engine->self.instance, false);
	kv_wait(&p, &got[0], WIMM_E_PEER_LOST);
	for (uint32_t i = 0; i < 2; i++)
		assert_ok(wimm_kv_sender_close(&sender[i]));
	assert_ok(wimm_kv_receiver_close(&receiver[0], NULL));
	kv_close(&p);
}

static void receiver_lists_that_do_not_fit_are_refused(void **state)
{
	/* Goal: the numbers of tokens and pages must agree, pages be inside: both numbers are
	 * named, nothing is armed. */
	static const struct {
		uint64_t tokens, first, pages;
		wimm_status want;
		const char *words;
	} rows[] = {
		{ 20, 0, 4, WIMM_E_INVAL, "4 pages, tokens 0 to 20 take 5" },
		{ 21, 0, 5, WIMM_E_INVAL, "5 pages, tokens 0 to 21 take 6" },
		{ 20, 2, 5, WIMM_E_INVAL, "whole page of 4" },
		{ 0, 0, 0, WIMM_E_INVAL, "tokens 0 to 0" },
		{ 20, 24, 0, WIMM_E_INVAL, "tokens 24 to 20" },
	};
	static const uint32_t outside[] = { 0, 16 };
	struct kv_pair p = { .provider = NULL };
	struct wimm_error_info error = { 0 };
	struct wimm_engine_stats stats = WIMM_ENGINE_STATS_INIT;
	struct wimm_kv_receiver *receiver = NULL;
	struct wimm_kv_receive_opts r;
	struct kv_result got;

	(void)state;
	kv_open(&p, 1, 1, NULL, NULL);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		r = kv_receive_opts(&got, rows[i].tokens, dst_pages, rows[i].pages);
		r.first_token = rows[i].first;
		assert_int_equal(wimm_kv_receiver_open(p.decode[0].cache, &r, &receiver, &error),
		                 rows[i].want);
		assert_non_null(strstr(error.text, rows[i].words));
	}
	r = kv_receive_opts(&got, 8, outside, 2);
	assert_int_equal(wimm_kv_receiver_open(p.decode[0].cache, &r, &receiver, &error),
	                 WIMM_E_RANGE);
	assert_non_null(strstr(error.text, "page 16, the cache has 16"));
	assert_null(receiver);
	assert_ok(wimm_engine_get_stats(p.decode[0].engine, &stats));
	assert_int_equal(stats.expectations, 0);
	kv_close(&p);
}

static void case_70_impossible_pair_is_refused_before_it_is_sent(void **state)
{
	/* Goal: what the decode side can know by itself it refuses by itself. */
	struct kv_pair p = { .provider = NULL };
	struct wimm_error_info error = { 0 };
	struct wimm_kv_receiver *receiver = NULL;
	struct kv_result got;
	struct wimm_kv_receive_opts r = kv_receive_opts(&got, 20, dst_pages, 5);
	struct wimm_kv_layout prefill;

	(void)state;
	kv_open(&p, 1, 1, NULL, NULL);
	prefill = p.decode[0].layout;
	prefill.tp = 3;
	r.prefill = &prefill;
	assert_int_equal(wimm_kv_receiver_open(p.decode[0].cache, &r, &receiver, &error),
	                 WIMM_E_MISMATCH);
	assert_non_null(strstr(error.text, "tp is 3 at prefill, 1 at decode"));
	kv_close(&p);
}

static bool request_there(void *arg)
{
	return kv_requests(arg) != 0;
}

static void receiver_request_travels_as_a_message(void **state)
{
	/* Goal: the usual channel: the decode side sends the request with a note, the prefill
	 * side's cache hands it to the application, which reads it and serves it. */
	struct kv_pair p = { .provider = NULL };
	struct kv_result got, sent;
	struct wimm_kv_receive_opts r = kv_receive_opts(&got, 18, dst_pages, 5);
	struct wimm_kv_request request = WIMM_KV_REQUEST_INIT;
	struct wimm_kv_send_opts o = WIMM_KV_SEND_OPTS_INIT;
	struct wimm_send send = WIMM_SEND_INIT;
	struct wimm_kv_receiver *receiver;
	struct wimm_kv_sender *sender;
	struct wimm_net_addr addr;

	(void)state;
	kv_open(&p, 1, 1, NULL, NULL);
	kv_fill(&p.prefill[0], 8);
	assert_ok(wimm_main_address(p.prefill[0].engine, &addr));
	assert_ok(wimm_add_peer(p.decode[0].engine, &addr, NULL, &send.peer));
	r.note = "ids 1 2 3";
	r.note_bytes = 9;
	receiver = open_receiver(&p, &r);
	send.data = wimm_kv_receiver_request(receiver, &send.len_bytes);
	assert_ok(wimm_submit_send(p.decode[0].engine, &send, NULL, NULL));
	kv_until(&p, request_there, &p.prefill[0]);
	assert_ok(
		wimm_kv_request_parse(p.prefill[0].request, p.prefill[0].request_bytes, &request));
	assert_int_equal(request.tokens, 18);
	assert_int_equal(request.page_count, 5);
	assert_int_equal(request.tail, 0);
	assert_int_equal(request.note_bytes, 9);
	assert_memory_equal(request.note, "ids 1 2 3", 9);
	assert_true(wimm_kv_layout_hash(&request.decode) ==
	            wimm_kv_layout_hash(&p.prefill[0].layout));
	kv_result_init(&sent);
	o.request = p.prefill[0].request;
	o.request_bytes = p.prefill[0].request_bytes;
	o.pages = src_pages;
	o.page_count = request.page_count;
	o.fn = kv_on_done;
	o.context = &sent;
	sender = open_sender(&p, 0, &o);
	wimm_kv_sender_bump(sender, 4);
	kv_wait(&p, &got, WIMM_OK);
	p.tokens = 18;
	kv_check_pages(&p, 0, src_pages, dst_pages, 5);
	assert_ok(wimm_kv_sender_close(&sender));
	assert_ok(wimm_kv_receiver_close(&receiver, NULL));
	kv_close(&p);
}

static void receiver_slots_come_back_and_run_out(void **state)
{
	/* Goal: no more than max_requests are open; an immediate is used again only after it was
	 * retired, and a thousand requests in a row all get one. */
	struct kv_pair p = { .provider = NULL, .max_requests = 2 };
	struct wimm_kv_receiver *receiver[3] = { NULL };
	struct kv_result got[3], sent;
	struct flag flag = { 0 };

	(void)state;
	kv_open(&p, 1, 1, NULL, NULL);
	kv_fill(&p.prefill[0], 8);
	for (int i = 0; i < 3; i++) {
		struct wimm_kv_receive_opts r = kv_receive_opts(&got[i], 4, dst_pages + i, 1);

		assert_int_equal(wimm_kv_receiver_open(p.decode[0].cache, &r, &receiver[i], NULL),
		                 i < 2 ? WIMM_OK : WIMM_AGAIN);
	}
	for (int i = 0; i < 2; i++) {
		struct wimm_on_done quiet = { on_quiet, &flag, NULL };

		atomic_store_explicit(&flag.calls, 0, memory_order_relaxed);
		assert_ok(wimm_kv_receiver_close(&receiver[i], &quiet));
		kv_wait(&p, &got[i], WIMM_E_CANCELLED);
		kv_until(&p, flag_set, &flag);
	}
	for (unsigned i = 0; i < 200 * test_scale(); i++) {
		struct wimm_kv_receive_opts r = kv_receive_opts(&got[0], 4, dst_pages, 1);
		struct wimm_on_done quiet = { on_quiet, &flag, NULL };
		struct wimm_kv_send_opts o;
		struct wimm_kv_sender *sender;

		r.tail = 1;
		receiver[0] = open_receiver(&p, &r);
		o = kv_send_opts(&sent, receiver[0], src_pages, 1);
		sender = open_sender(&p, 0, &o);
		wimm_kv_sender_bump(sender, 4);
		assert_ok(wimm_kv_sender_tail(sender, i, &i, sizeof(i)));
		kv_wait(&p, &got[0], WIMM_OK);
		kv_wait(&p, &sent, WIMM_OK);
		assert_int_equal(got[0].first_token, i);
		assert_int_equal(got[0].imm, 1000 + i % 2);
		assert_ok(wimm_kv_sender_close(&sender));
		atomic_store_explicit(&flag.calls, 0, memory_order_relaxed);
		assert_ok(wimm_kv_receiver_close(&receiver[0], &quiet));
		kv_until(&p, flag_set, &flag);
		assert_ok(flag.status);
	}
	kv_close(&p);
}

static void receiver_open_without_memory_leaves_nothing(void **state)
{
	/* Goal: each allocation of the call may fail: NOMEM, and nothing is armed. */
	struct kv_pair p = { .provider = NULL };
	struct wimm_engine_stats stats = WIMM_ENGINE_STATS_INIT;
	struct wimm_kv_receiver *receiver = NULL;
	struct wimm_net_addr addr;
	struct kv_result got;
	wimm_peer peer = 0;
	uint8_t arrived[5];
	uint64_t n = 1;

	(void)state;
	kv_open(&p, 1, 1, NULL, NULL);
	assert_ok(wimm_main_address(p.prefill[0].engine, &addr));
	assert_ok(wimm_add_peer(p.decode[0].engine, &addr, NULL, &peer));
	for (;; n++) {
		struct wimm_kv_receive_opts r = kv_receive_opts(&got, 20, dst_pages, 5);
		uint64_t before = kv_live_blocks();
		wimm_status st;

		r.peers = &peer;
		r.peer_count = 1;
		r.arrived = arrived;
		kv_fail_nth(n);
		st = wimm_kv_receiver_open(p.decode[0].cache, &r, &receiver, NULL);
		if (!kv_fail_fired()) {
			assert_ok(st);
			break;
		}
		assert_int_equal(st, WIMM_E_NOMEM);
		assert_int_equal(kv_live_blocks(), before);
		assert_ok(wimm_engine_get_stats(p.decode[0].engine, &stats));
		assert_int_equal(stats.expectations, 0);
	}
	kv_fail_nth(0);
	assert_true(n > 4);
	assert_ok(wimm_kv_receiver_close(&receiver, NULL));
	kv_close(&p);
	assert_int_equal(got.status, WIMM_E_CANCELLED);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(case_21_write_that_cannot_start_fails_that_request_on_both_sides),
		cmocka_unit_test(case_21_write_lost_with_the_only_nic_fails_the_request_at_once),
		cmocka_unit_test(receiver_nobody_serves_ends_by_its_deadline),
		cmocka_unit_test(receiver_given_up_ends_its_sender_and_its_pages_come_back),
		cmocka_unit_test(case_28_pages_of_a_cancelled_request_are_reused_once_quiet),
		cmocka_unit_test(receiver_whose_peer_dies_fails_at_once),
		cmocka_unit_test(receiver_lists_that_do_not_fit_are_refused),
		cmocka_unit_test(case_70_impossible_pair_is_refused_before_it_is_sent),
		cmocka_unit_test(receiver_request_travels_as_a_message),
		cmocka_unit_test(receiver_slots_come_back_and_run_out),
		cmocka_unit_test(receiver_open_without_memory_leaves_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
