/* SPDX-License-Identifier: Apache-2.0 */
#include "kv/pair.h"

#include "base/alloc.h"
#include "kv/mem.h"

#include <stdlib.h>
#include <string.h>

#include <wimm/kv.h>

static const uint32_t pages[] = { 1, 2 };

static void cache_options_out_of_range_are_refused_with_words(void **state)
{
	/* Goal: a layout longer than its region names both lengths; limits and unknown bits are
	 * refused; nothing is left of it. */
	struct kv_pair p = { .provider = NULL };
	struct wimm_kv_cache_opts o = WIMM_KV_CACHE_OPTS_INIT;
	struct wimm_error_info error = { 0 };
	struct wimm_kv_cache *cache = NULL;
	struct wimm_kv_layout l = kv_small(1, 0);
	uint64_t before;

	(void)state;
	kv_open(&p, 1, 0, NULL, NULL);
	before = kv_live_blocks();
	l.pages = 17;
	assert_ok(wimm_kv_layout_pack(&l, NULL));
	o.layout = &l;
	o.region = p.prefill[0].mr;
	assert_int_equal(wimm_kv_cache_open(p.prefill[0].engine, &o, &cache, &error), WIMM_E_RANGE);
	assert_non_null(strstr(error.text, "takes 34816 bytes, the region has 32768"));
	o.layout = &p.prefill[0].layout;
	o.flags = 1;
	assert_int_equal(wimm_kv_cache_open(p.prefill[0].engine, &o, &cache, NULL), WIMM_E_INVAL);
	o.flags = 0;
	o.messages = 1025;
	assert_int_equal(wimm_kv_cache_open(p.prefill[0].engine, &o, &cache, &error), WIMM_E_INVAL);
	assert_non_null(strstr(error.text, "messages 1025"));
	o.messages = 0;
	o.reserved[3] = 1;
	assert_int_equal(wimm_kv_cache_open(p.prefill[0].engine, &o, &cache, NULL), WIMM_E_INVAL);
	assert_null(cache);
	assert_int_equal(kv_live_blocks(), before);
	kv_close(&p);
}

static void cache_open_without_memory_leaves_nothing(void **state)
{
	/* Goal: each allocation of the call may fail, of this folder or of the engine. */
	struct kv_pair p = { .provider = NULL };
	struct wimm_kv_cache_opts o = WIMM_KV_CACHE_OPTS_INIT;
	struct wimm_kv_cache *cache = NULL;

	(void)state;
	kv_open(&p, 1, 0, NULL, NULL);
	o.layout = &p.prefill[0].layout;
	o.region = p.prefill[0].mr;
	o.messages = 4;
	for (int engine = 0; engine < 2; engine++) {
		uint64_t n = 1;

		for (;; n++) {
			wimm_status st;

			if (engine)
				mem_fail_nth(n);
			else
				kv_fail_nth(n);
			st = wimm_kv_cache_open(p.prefill[0].engine, &o, &cache, NULL);
			if (!(engine ? mem_fail_fired() : kv_fail_fired())) {
				assert_ok(st);
				break;
			}
			if (st == WIMM_OK) /* the engine did without */
				assert_ok(wimm_kv_cache_close(&cache));
		}
		kv_fail_nth(0);
		mem_fail_nth(0);
		assert_true(n > 2);
		assert_ok(wimm_kv_cache_close(&cache));
		assert_null(cache);
	}
	kv_close(&p);
}

static void cache_closed_with_open_requests_ends_each_once(void **state)
{
	/* Goal: senders and receivers in every state: each reports E_CLOSED or as it had ended,
	 * once; handles can be closed before and after; nothing is left. */
	(void)state;
	for (unsigned round = 0; round < 50 * test_scale(); round++) {
		struct kv_pair p = { .provider = NULL };
		struct kv_result got[3], sent[3];
		struct wimm_kv_receiver *receiver[3];
		struct wimm_kv_sender *sender[3];
		bool decode_first = round % 2 == 0;

		kv_open(&p, 1, 1, NULL, NULL);
		for (uint32_t i = 0; i < 3; i++) {
			struct wimm_kv_receive_opts r = kv_receive_opts(&got[i], 8, pages, 2);
			struct wimm_kv_send_opts o;

			assert_ok(wimm_kv_receiver_open(p.decode[0].cache, &r, &receiver[i], NULL));
			o = kv_send_opts(&sent[i], receiver[i], pages, 2);
			assert_ok(wimm_kv_sender_open(p.prefill[0].cache, &o, &sender[i], NULL));
			wimm_kv_sender_bump(sender[i], i * 2);
		}
		if (round % 4 < 2) {
			kv_wait(&p, &got[2], WIMM_OK);
			kv_wait(&p, &sent[2], WIMM_OK);
		}
		assert_ok(wimm_kv_cache_close(decode_first ? &p.decode[0].cache
		                                           : &p.prefill[0].cache));
		assert_ok(wimm_kv_cache_close(decode_first ? &p.prefill[0].cache
		                                           : &p.decode[0].cache));
		for (uint32_t i = 0; i < 3; i++) {
			wimm_status st;

			assert_ok(wimm_kv_sender_close(&sender[i]));
			st = wimm_kv_receiver_close(&receiver[i], NULL);
			assert_true(st == WIMM_OK || st == WIMM_E_CLOSED);
		}
		kv_close(&p);
		for (uint32_t i = 0; i < 3; i++) {
			assert_int_equal(got[i].calls, 1);
			assert_int_equal(sent[i].calls, 1);
			assert_true(i == 2 || got[i].status != WIMM_OK);
		}
	}
}

static void cache_engine_closed_under_requests_ends_each_once(void **state)
{
	/* Goal: the engine is closed right after the cache: what was open still reports. */
	(void)state;
	for (unsigned round = 0; round < 50 * test_scale(); round++) {
		struct kv_pair p = { .provider = round % 2 == 0 ? NULL : "tcp" };
		struct kv_result got, sent;
		struct wimm_kv_receive_opts r = kv_receive_opts(&got, 8, pages, 2);
		struct wimm_kv_receiver *receiver = NULL;
		struct wimm_kv_sender *sender = NULL;
		struct wimm_kv_send_opts o;

		kv_open(&p, 1, 1, NULL, NULL);
		assert_ok(wimm_kv_receiver_open(p.decode[0].cache, &r, &receiver, NULL));
		o = kv_send_opts(&sent, receiver, pages, 2);
		assert_ok(wimm_kv_sender_open(p.prefill[0].cache, &o, &sender, NULL));
		wimm_kv_sender_bump(sender, round % 5);
		assert_ok(wimm_kv_sender_close(&sender));
		assert_ok(wimm_kv_receiver_close(&receiver, NULL));
		kv_close(&p);
		assert_int_equal(got.calls, 1);
		assert_int_equal(sent.calls, 1);
	}
}

static void cache_takes_its_own_messages_only(void **state)
{
	/* Goal: an application with a pool of its own hands over what comes; what is not the
	 * cache's is said to be so, broken bytes as well. */
	struct kv_pair p = { .provider = NULL };

	(void)state;
	kv_open(&p, 1, 0, NULL, NULL);
	assert_int_equal(wimm_kv_cache_message(p.prefill[0].cache, 1, "hello", 5),
	                 WIMM_E_NOT_FOUND);
	assert_int_equal(wimm_kv_cache_message(p.prefill[0].cache, 1, NULL, 0), WIMM_E_NOT_FOUND);
	assert_int_equal(wimm_kv_cache_message(p.prefill[0].cache, 1, "WKV1\2\0\2\0\14\0\0\0", 12),
	                 WIMM_E_PARSE);
	assert_int_equal(wimm_kv_cache_message(p.prefill[0].cache, 1, "WKV1\2\0\1\0\14\0\0\0", 12),
	                 WIMM_E_VERSION);
	kv_close(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(cache_options_out_of_range_are_refused_with_words),
		cmocka_unit_test(cache_open_without_memory_leaves_nothing),
		cmocka_unit_test(cache_closed_with_open_requests_ends_each_once),
		cmocka_unit_test(cache_engine_closed_under_requests_ends_each_once),
		cmocka_unit_test(cache_takes_its_own_messages_only),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
