/* SPDX-License-Identifier: Apache-2.0 */
#include "kv/pair.h"

#include "kv/mem.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <wimm/transfer.h>

/* --- what the sender asks of the engine; the linker leads its calls here --- */

#define CALLS_MAX 4096

struct call {
	uint64_t src_offset;
	uint64_t pages;
};

static struct call calls[CALLS_MAX];
static _Atomic uint32_t call_count;
static _Atomic uint32_t again_left; /* so many calls say AGAIN first */

wimm_status __real_wimm_submit_paged_writes(struct wimm_engine *engine,
                                            const struct wimm_paged_writes *w,
                                            const struct wimm_on_done *on_done, wimm_op *out);
wimm_status __wrap_wimm_submit_paged_writes(struct wimm_engine *engine,
                                            const struct wimm_paged_writes *w,
                                            const struct wimm_on_done *on_done, wimm_op *out);

wimm_status __wrap_wimm_submit_paged_writes(struct wimm_engine *engine,
                                            const struct wimm_paged_writes *w,
                                            const struct wimm_on_done *on_done, wimm_op *out)
{
	wimm_status st;
	uint32_t at;

	/* Relaxed: one thread calls at a time, and a test reads after the report. */
	if (atomic_load_explicit(&again_left, memory_order_relaxed) != 0) {
		atomic_fetch_sub_explicit(&again_left, 1, memory_order_relaxed);
		return WIMM_AGAIN;
	}
	st = __real_wimm_submit_paged_writes(engine, w, on_done, out);
	if (st != WIMM_OK)
		return st;
	at = atomic_fetch_add_explicit(&call_count, 1, memory_order_relaxed);
	if (at < CALLS_MAX)
		calls[at] = (struct call){ w->src_pages.offset_bytes, w->src_pages.count };
	return st;
}

static void calls_reset(void)
{
	atomic_store_explicit(&call_count, 0, memory_order_relaxed);
	atomic_store_explicit(&again_left, 0, memory_order_relaxed);
}

static uint32_t calls_made(void)
{
	return atomic_load_explicit(&call_count, memory_order_relaxed);
}

/* --- one request from beginning to end --- */

static const uint32_t src_pages[] = { 9, 2, 14, 0, 7 };
static const uint32_t dst_pages[] = { 3, 15, 0, 8, 5 };
#define TOKENS 20 /* five pages of four */

struct story {
	struct kv_pair pair;
	struct kv_result got, sent;
	struct wimm_kv_receiver *receiver;
	struct wimm_kv_sender *sender;
};

static void story_open(struct story *s, const struct sim_cfg *cfg)
{
	calls_reset();
	kv_open(&s->pair, 1, 1, cfg, NULL);
	kv_fill(&s->pair.prefill[0], 1);
}

static void story_begin(struct story *s, const struct wimm_kv_receive_opts *receive,
                        const struct wimm_kv_send_opts *send)
{
	struct wimm_error_info error = { 0 };
	struct wimm_kv_send_opts o = *send;

	if (wimm_kv_receiver_open(s->pair.decode[0].cache, receive, &s->receiver, &error) !=
	    WIMM_OK)
		fail_msg("receiver: %s", error.text);
	o.request = wimm_kv_receiver_request(s->receiver, &o.request_bytes);
	if (wimm_kv_sender_open(s->pair.prefill[0].cache, &o, &s->sender, &error) != WIMM_OK)
		fail_msg("sender: %s", error.text);
}

static void story_close(struct story *s)
{
	assert_ok(wimm_kv_sender_close(&s->sender));
	assert_ok(wimm_kv_receiver_close(&s->receiver, NULL));
	kv_close(&s->pair);
}

static void sender_bumped_layer_by_layer_delivers_every_page(void **state)
{
	/* Goal: chunk by chunk and layer by layer, over sim and tcp, with threads and driven by the
	 * caller: every byte is there when the count fires, and the tail with it. */
	static const struct {
		const char *provider;
		bool driven;
	} runs[] = { { NULL, false }, { NULL, true }, { "tcp", false }, { "tcp", true } };

	(void)state;
	for (size_t i = 0; i < sizeof(runs) / sizeof(runs[0]); i++) {
		struct story s = { .pair = { .provider = runs[i].provider,
			                     .driven = runs[i].driven } };
		struct wimm_kv_receive_opts r = kv_receive_opts(&s.got, TOKENS, dst_pages, 5);
		struct wimm_kv_send_opts o = kv_send_opts(&s.sent, NULL, src_pages, 5);

		r.tail = 1;
		o.chunk_tokens = 8;
		story_open(&s, NULL);
		story_begin(&s, &r, &o);
		assert_int_equal(wimm_kv_receiver_count(s.receiver), 4 * 2 * 5 + 1);
		assert_int_equal(wimm_kv_sender_steps(s.sender), 3 * 4);
		for (uint64_t k = 1; k <= 12; k++)
			assert_int_equal(wimm_kv_sender_bump(s.sender, 1), k);
		assert_ok(wimm_kv_sender_tail(s.sender, 77, "tail", 4));
		assert_int_equal(wimm_kv_sender_tail(s.sender, 77, "tail", 4), WIMM_E_INVAL);
		kv_wait(&s.pair, &s.got, WIMM_OK);
		kv_wait(&s.pair, &s.sent, WIMM_OK);
		kv_check_pages(&s.pair, 0, src_pages, dst_pages, 5);
		assert_int_equal(s.got.first_token, 77);
		assert_int_equal(s.got.tail_bytes, 4);
		assert_memory_equal(s.got.tail, "tail", 4);
		assert_int_equal(s.got.immediates, 41);
		assert_int_equal(s.sent.immediates, 41);
		assert_int_equal(s.got.bytes, s.sent.bytes);
		assert_int_equal(s.got.imm, 1000);
		assert_int_equal(s.sent.imm, 1000);
		story_close(&s);
	}
}

/* Every layer once a chunk, in order, with the pages that the chunk completes. */
static void check_calls(const struct wimm_kv_layout *l, const uint64_t *pages_of_chunk,
                        uint32_t chunks)
{
	uint32_t at = 0;

	for (uint32_t chunk = 0; chunk < chunks; chunk++)
		for (uint32_t layer = 0; layer < l->layers && pages_of_chunk[chunk] != 0; layer++) {
			assert_int_equal(calls[at].src_offset, layer * l->layer_stride_bytes);
			assert_int_equal(calls[at].pages, 2 * pages_of_chunk[chunk]);
			at++;
		}
	assert_int_equal(calls_made(), at);
}

struct writer {
	struct wimm_kv_sender *sender;
	uint64_t steps;
	bool pauses;
};

static bool layers_sent(void *arg)
{
	return calls_made() >= *(uint32_t *)arg;
}

static void *write_word(void *arg)
{
	struct writer *w = arg;

	for (uint32_t i = 1; i <= w->steps; i++) {
		wimm_kv_sender_bump(w->sender, 1);
		if (w->pauses && i % 7 == 0) /* let the callback catch up */
			assert_true(test_wait_until(layers_sent, &i, TEST_DEADLINE_MS));
	}
	return NULL;
}

static void case_77_skipped_values_send_each_layer_once_in_order(void **state)
{
	/* Goal: a writer that counts to 61 as fast as it can, or with pauses: each layer's pages
	 * leave exactly once, in order, whatever values were never seen. */
	struct wimm_kv_layout l = kv_small(1, 0);
	static const uint64_t pages[] = { 5 };

	(void)state;
	l.layers = 61;
	assert_ok(wimm_kv_layout_pack(&l, NULL));
	for (unsigned round = 0; round < 20 * test_scale(); round++) {
		struct story s = { .pair = { .provider = NULL } };
		struct wimm_kv_receive_opts r = kv_receive_opts(&s.got, TOKENS, dst_pages, 5);
		struct wimm_kv_send_opts o = kv_send_opts(&s.sent, NULL, src_pages, 5);
		struct writer w = { NULL, 61, round % 2 == 1 };
		pthread_t thread;

		calls_reset();
		kv_open(&s.pair, 1, 1, NULL, &l);
		kv_fill(&s.pair.prefill[0], round);
		story_begin(&s, &r, &o);
		w.sender = s.sender;
		assert_ok(pthread_create(&thread, NULL, write_word, &w));
		assert_ok(pthread_join(thread, NULL));
		kv_wait(&s.pair, &s.got, WIMM_OK);
		kv_wait(&s.pair, &s.sent, WIMM_OK);
		check_calls(&l, pages, 1);
		kv_check_pages(&s.pair, 0, src_pages, dst_pages, 5);
		story_close(&s);
	}
}

static void sender_chunks_send_pages_when_they_are_complete(void **state)
{
	/* Goal: chunk ends inside pages: a page leaves with the chunk that completes it, the last
	 * one with the last chunk, also when the prefill side had some tokens already. */
	static const struct {
		uint64_t first_token, computed_token, chunk_tokens;
		uint32_t chunks;
		uint64_t pages[10];
	} rows[] = {
		{ 0, 0, 0, 1, { 5 } },
		{ 0, 0, 6, 4, { 1, 2, 1, 1 } },
		{ 0, 0, 5, 4, { 1, 1, 1, 2 } },
		{ 0, 0, 2, 10, { 0, 1, 0, 1, 0, 1, 0, 1, 0, 1 } },
		{ 0, 6, 6, 3, { 3, 1, 1 } },
		{ 8, 0, 6, 4, { 0, 1, 1, 1 } },
		{ 8, 10, 4, 3, { 1, 1, 1 } },
		{ 16, 0, 6, 4, { 0, 0, 0, 1 } },
		{ 0, 20, 6, 0, { 5 } }, /* all final before */
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct story s = { .pair = { .provider = NULL } };
		uint64_t count = 5 - rows[i].first_token / 4;
		struct wimm_kv_receive_opts r = kv_receive_opts(&s.got, TOKENS, dst_pages, count);
		struct wimm_kv_send_opts o = kv_send_opts(&s.sent, NULL, src_pages, count);
		struct wimm_kv_layout l = kv_small(1, 0);

		r.first_token = rows[i].first_token;
		o.computed_token = rows[i].computed_token;
		o.chunk_tokens = rows[i].chunk_tokens;
		story_open(&s, NULL);
		story_begin(&s, &r, &o);
		assert_int_equal(wimm_kv_sender_steps(s.sender), 4 * rows[i].chunks);
		wimm_kv_sender_bump(s.sender, wimm_kv_sender_steps(s.sender));
		kv_wait(&s.pair, &s.got, WIMM_OK);
		kv_wait(&s.pair, &s.sent, WIMM_OK);
		check_calls(&l, rows[i].pages, rows[i].chunks != 0 ? rows[i].chunks : 1);
		kv_check_pages(&s.pair, 0, src_pages, dst_pages, count);
		story_close(&s);
	}
}

static void sender_told_chunks_sends_the_pages_that_came_with_them(void **state)
{
	/* Goal: chunks of unequal length whose pages are known one chunk at a time, told before the
	 * word moves or behind it: every page leaves once, with the chunk that completes it. */
	static const struct {
		uint64_t first_token, ends[4], begun[4], sent[4];
		uint32_t chunks;
	} rows[] = {
		{ 0, { 20 }, { 5 }, { 5 }, 1 },
		{ 0, { 3, 9, 20 }, { 1, 2, 2 }, { 0, 2, 3 }, 3 },
		{ 8, { 4, 10, 17, 20 }, { 0, 1, 2, 0 }, { 0, 0, 2, 1 }, 4 },
	};

	(void)state;
	for (size_t i = 0; i < 2 * sizeof(rows) / sizeof(rows[0]); i++) {
		bool behind = i % 2 == 1;
		struct story s = { .pair = { .provider = NULL } };
		uint64_t count = 5 - rows[i / 2].first_token / 4, told = 0, token = 0;
		struct wimm_kv_receive_opts r = kv_receive_opts(&s.got, TOKENS, dst_pages, count);
		struct wimm_kv_send_opts o = kv_send_opts(&s.sent, NULL, NULL, 0);
		struct wimm_kv_layout l = kv_small(1, 0);
		uint32_t page = 99;

		r.first_token = rows[i / 2].first_token;
		o.flags = WIMM_KV_CHUNKS_TOLD;
		story_open(&s, NULL);
		story_begin(&s, &r, &o);
		for (uint32_t k = 0; k < rows[i / 2].chunks; k++) {
			uint64_t begun = rows[i / 2].begun[k];

			if (behind)
				wimm_kv_sender_bump(s.sender, 4);
			assert_int_equal(wimm_kv_sender_chunk(s.sender, token, NULL, 0, NULL),
			                 WIMM_E_INVAL);
			assert_int_equal(wimm_kv_sender_chunk(s.sender, rows[i / 2].ends[k],
			                                      src_pages + told, begun + 1, NULL),
			                 WIMM_E_INVAL);
			if (begun == 1)
				assert_int_equal(wimm_kv_sender_chunk(s.sender, rows[i / 2].ends[k],
				                                      &page, 1, NULL),
				                 WIMM_E_RANGE);
			assert_ok(wimm_kv_sender_chunk(s.sender, rows[i / 2].ends[k],
			                               src_pages + told, begun, NULL));
			told += begun;
			token = rows[i / 2].ends[k];
			if (!behind)
				wimm_kv_sender_bump(s.sender, 4);
		}
		kv_wait(&s.pair, &s.got, WIMM_OK);
		kv_wait(&s.pair, &s.sent, WIMM_OK);
		check_calls(&l, rows[i / 2].sent, rows[i / 2].chunks);
		kv_check_pages(&s.pair, 0, src_pages, dst_pages, count);
		assert_int_equal(wimm_kv_sender_steps(s.sender), 4 * rows[i / 2].chunks);
		assert_int_equal(wimm_kv_sender_chunk(s.sender, TOKENS, NULL, 0, NULL),
		                 WIMM_E_INVAL);
		story_close(&s);
	}
}

static void case_57_full_prefix_hit_tells_both_sides(void **state)
{
	/* Goal: no page to send, with and without a tail: one immediate, both sides report. */
	(void)state;
	for (int tail = 0; tail < 2; tail++) {
		struct story s = { .pair = { .provider = NULL } };
		struct wimm_kv_receive_opts r = kv_receive_opts(&s.got, 16, NULL, 0);
		struct wimm_kv_send_opts o = kv_send_opts(&s.sent, NULL, NULL, 0);

		r.first_token = 16;
		r.tail = tail;
		story_open(&s, NULL);
		story_begin(&s, &r, &o);
		assert_int_equal(wimm_kv_receiver_count(s.receiver), 1);
		if (tail)
			assert_ok(wimm_kv_sender_tail(s.sender, 5, NULL, 0));
		kv_wait(&s.pair, &s.got, WIMM_OK);
		kv_wait(&s.pair, &s.sent, WIMM_OK);
		assert_int_equal(s.got.first_token, tail ? 5 : 0);
		assert_int_equal(calls_made(), 0);
		kv_check_pages(&s.pair, 0, src_pages, dst_pages, 0);
		story_close(&s);
	}
}

static void sender_at_the_end_sends_nothing_before_the_last_step(void **state)
{
	/* Goal: the way to measure what sending layer by layer saves. */
	struct story s = { .pair = { .provider = NULL } };
	struct wimm_kv_receive_opts r = kv_receive_opts(&s.got, TOKENS, dst_pages, 5);
	struct wimm_kv_send_opts o = kv_send_opts(&s.sent, NULL, src_pages, 5);
	static const uint64_t pages[] = { 5 };
	struct wimm_kv_layout l = kv_small(1, 0);

	(void)state;
	o.flags = WIMM_KV_AT_END;
	story_open(&s, NULL);
	story_begin(&s, &r, &o);
	for (int i = 0; i < 3; i++)
		wimm_kv_sender_bump(s.sender, 1);
	assert_int_equal(calls_made(), 0);
	wimm_kv_sender_bump(s.sender, 1);
	kv_wait(&s.pair, &s.got, WIMM_OK);
	kv_wait(&s.pair, &s.sent, WIMM_OK);
	check_calls(&l, pages, 1);
	kv_check_pages(&s.pair, 0, src_pages, dst_pages, 5);
	story_close(&s);
}

static void sender_refused_for_want_of_room_tries_again(void **state)
{
	/* Goal: AGAIN is no failure: with no operation of its own under way, and none of anybody's,
	 * the sender still comes back to it, and sends each layer once. */
	struct story s = { .pair = { .provider = NULL } };
	struct wimm_kv_receive_opts r = kv_receive_opts(&s.got, TOKENS, dst_pages, 5);
	struct wimm_kv_send_opts o = kv_send_opts(&s.sent, NULL, src_pages, 5);
	static const uint64_t pages[] = { 2, 2, 1 };
	struct wimm_kv_layout l = kv_small(1, 0);

	(void)state;
	o.chunk_tokens = 8;
	story_open(&s, NULL);
	story_begin(&s, &r, &o);
	atomic_store_explicit(&again_left, 25, memory_order_relaxed);
	wimm_kv_sender_bump(s.sender, 12);
	kv_wait(&s.pair, &s.got, WIMM_OK);
	kv_wait(&s.pair, &s.sent, WIMM_OK);
	check_calls(&l, pages, 3);
	kv_check_pages(&s.pair, 0, src_pages, dst_pages, 5);
	story_close(&s);
}

static void sender_shares_a_word_with_others(void **state)
{
	/* Goal: one word for requests that began at different values; each sends its own steps. */
	struct story s = { .pair = { .provider = NULL } };
	struct wimm_kv_receive_opts r = kv_receive_opts(&s.got, 8, dst_pages, 2);
	struct wimm_kv_send_opts o = kv_send_opts(&s.sent, NULL, src_pages, 2);
	struct kv_result got, sent;
	struct wimm_kv_receiver *receiver = NULL;
	struct wimm_kv_sender *sender = NULL;
	struct wimm_kv_watch *watch = NULL;

	(void)state;
	story_open(&s, NULL);
	assert_ok(wimm_kv_watch_open(s.pair.prefill[0].cache, &watch));
	assert_int_equal(wimm_kv_watch_add(watch, 3), 3);
	o.watch = watch;
	story_begin(&s, &r, &o);
	wimm_kv_watch_add(watch, 2);
	/* The second one's first layer is the word's step 5 to 6; it is told so. */
	r = kv_receive_opts(&got, 8, dst_pages + 2, 2);
	assert_ok(wimm_kv_receiver_open(s.pair.decode[0].cache, &r, &receiver, NULL));
	o = kv_send_opts(&sent, receiver, src_pages + 2, 2);
	o.watch = watch;
	o.flags = WIMM_KV_FROM_VALUE;
	o.watch_value = 5;
	assert_ok(wimm_kv_sender_open(s.pair.prefill[0].cache, &o, &sender, NULL));
	/* As a kernel would, without a call. */
	__atomic_fetch_add(wimm_kv_watch_word(watch), 2, __ATOMIC_RELEASE);
	kv_wait(&s.pair, &s.got, WIMM_OK);
	assert_false(kv_there(&got));
	wimm_kv_sender_bump(sender, 2);
	kv_wait(&s.pair, &got, WIMM_OK);
	assert_true(s.got.imm != got.imm);
	kv_check_pages(&s.pair, 0, src_pages, dst_pages, 4);
	assert_ok(wimm_kv_sender_close(&sender));
	assert_ok(wimm_kv_receiver_close(&receiver, NULL));
	assert_ok(wimm_kv_watch_close(&watch));
	assert_null(watch);
	story_close(&s);
}

static void case_68_ranks_of_other_numbers_get_every_byte(void **state)
{
	/* Goal: with one process a rank, any pair of numbers: every decode rank has its heads of
	 * every layer and page, nothing else was written, and idle ranks finish too. */
	static const uint32_t pairs[][2] = { { 1, 1 }, { 4, 4 }, { 2, 4 }, { 4, 1 },
		                             { 1, 4 }, { 2, 1 }, { 8, 2 }, { 2, 8 } };

	(void)state;
	for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
		struct kv_pair p = { .provider = NULL };
		struct kv_result got, sent[RANKS_MAX];
		struct wimm_kv_layout prefill;

		calls_reset();
		kv_open(&p, pairs[i][0], pairs[i][1], NULL, NULL);
		for (uint32_t k = 0; k < p.prefill_tp; k++)
			/* Ranks that hold the same head hold the same bytes. */
			kv_fill(&p.prefill[k], p.prefill_tp > 4 ? k / (p.prefill_tp / 4) : k);
		prefill = p.prefill[0].layout;
		for (uint32_t rank = 0; rank < p.decode_tp; rank++) {
			struct wimm_kv_receive_opts r = kv_receive_opts(&got, TOKENS, dst_pages, 5);
			struct wimm_kv_receiver *receiver = NULL;
			struct wimm_kv_sender *sender[RANKS_MAX] = { NULL };
			uint64_t immediates = 0, bytes = 0;

			r.prefill = &prefill;
			r.tail = 1;
			assert_ok(wimm_kv_receiver_open(p.decode[rank].cache, &r, &receiver, NULL));
			for (uint32_t k = 0; k < p.prefill_tp; k++) {
				struct wimm_kv_send_opts o =
					kv_send_opts(&sent[k], receiver, src_pages, 5);

				assert_ok(wimm_kv_sender_open(p.prefill[k].cache, &o, &sender[k],
				                              NULL));
			}
			for (uint32_t k = 0; k < p.prefill_tp; k++) {
				wimm_status st;

				wimm_kv_sender_bump(sender[k], 4);
				/* A rank that has nothing to do may have ended by now. */
				st = wimm_kv_sender_tail(sender[k], 9, &k, sizeof(k));
				assert_true(st == WIMM_OK || st == WIMM_E_CLOSED);
			}
			kv_wait(&p, &got, WIMM_OK);
			for (uint32_t k = 0; k < p.prefill_tp; k++) {
				kv_wait(&p, &sent[k], WIMM_OK);
				immediates += sent[k].immediates;
				bytes += sent[k].bytes;
				assert_ok(wimm_kv_sender_close(&sender[k]));
			}
			assert_int_equal(immediates, wimm_kv_receiver_count(receiver));
			assert_int_equal(bytes, got.bytes); /* none was written twice */
			kv_check_pages(&p, rank, src_pages, dst_pages, 5);
			assert_ok(wimm_kv_receiver_close(&receiver, NULL));
		}
		kv_close(&p);
	}
}

static void sender_request_that_does_not_fit_is_refused_on_both_sides(void **state)
{
	/* Goal: a list of another length, a page outside, a prefill side that is not what decode
	 * took it for, other numbers of layers, bytes an element, dimensions (case 70): the open
	 * call says why with both numbers, and so does the receiver's report, at once. */
	static const uint32_t outside[] = { 0, 1, 2, 3, 16 };
	struct story s = { .pair = { .provider = NULL } };
	struct wimm_error_info error = { 0 };

	(void)state;
	story_open(&s, NULL);
	for (int i = 0; i < 6; i++) {
		struct wimm_kv_receive_opts r = kv_receive_opts(&s.got, TOKENS, dst_pages, 5);
		struct wimm_kv_layout other = s.pair.prefill[0].layout;
		struct wimm_kv_send_opts o;
		static const char *const words[] = { "4 pages, the request has 5",
			                             "page 16, the cache has 16",
			                             "tp at prefill is 1, decode took it for 2",
			                             "layers is 4 at prefill, 3 at decode",
			                             "elem_bytes is 2 at prefill, 1 at decode",
			                             "head_dim is 8 at prefill, 16 at decode" };
		static const wimm_status want[] = { WIMM_E_INVAL,    WIMM_E_RANGE,
			                            WIMM_E_MISMATCH, WIMM_E_MISMATCH,
			                            WIMM_E_MISMATCH, WIMM_E_MISMATCH };
		struct kv_side odd;

		if (i == 2) {
			other.tp = 2;
			assert_ok(wimm_kv_layout_pack(&other, NULL));
			r.prefill = &other;
		}
		if (i >= 3) {
			other.layers = i == 3 ? 3 : other.layers;
			other.elem_bytes = i == 4 ? 1 : other.elem_bytes;
			other.head_dim = i == 5 ? 16 : other.head_dim;
			assert_ok(wimm_kv_layout_pack(&other, NULL));
			kv_side_open(&s.pair, &odd, &other);
		}
		assert_ok(wimm_kv_receiver_open(i >= 3 ? odd.cache : s.pair.decode[0].cache, &r,
		                                &s.receiver, NULL));
		o = kv_send_opts(&s.sent, s.receiver, i == 1 ? outside : src_pages, i == 0 ? 4 : 5);
		assert_int_equal(
			wimm_kv_sender_open(s.pair.prefill[0].cache, &o, &s.sender, &error),
			want[i]);
		assert_non_null(strstr(error.text, words[i]));
		kv_wait(&s.pair, &s.got, want[i]);
		assert_non_null(strstr(s.got.text, words[i]));
		assert_ok(wimm_kv_receiver_close(&s.receiver, NULL));
		if (i >= 3)
			kv_side_close(&odd);
	}
	assert_int_equal(calls_made(), 0);
	story_close(&s);
}

static void sender_that_fails_or_is_given_up_tells_the_receiver(void **state)
{
	/* Goal: the application's own failure, and a handle closed before the end: both sides
	 * report once, with the cause, and nothing more is sent. */
	(void)state;
	for (int close = 0; close < 2; close++) {
		struct story s = { .pair = { .provider = NULL } };
		struct wimm_kv_receive_opts r = kv_receive_opts(&s.got, TOKENS, dst_pages, 5);
		struct wimm_kv_send_opts o = kv_send_opts(&s.sent, NULL, src_pages, 5);
		uint32_t one = 1;

		r.tail = 1;
		story_open(&s, NULL);
		story_begin(&s, &r, &o);
		wimm_kv_sender_bump(s.sender, 1);
		kv_until(&s.pair, layers_sent, &one);
		if (close)
			assert_ok(wimm_kv_sender_close(&s.sender));
		else
			assert_ok(wimm_kv_sender_fail(s.sender, WIMM_E_INTERNAL, "no kernel"));
		kv_wait(&s.pair, &s.sent, close ? WIMM_E_CANCELLED : WIMM_E_INTERNAL);
		kv_wait(&s.pair, &s.got, close ? WIMM_E_CANCELLED : WIMM_E_INTERNAL);
		if (!close) {
			assert_string_equal(s.got.text, "no kernel");
			wimm_kv_sender_bump(s.sender, 3);
			assert_int_equal(wimm_kv_sender_fail(s.sender, WIMM_E_INTERNAL, NULL),
			                 WIMM_E_CLOSED);
			assert_int_equal(wimm_kv_sender_tail(s.sender, 1, NULL, 0), WIMM_E_CLOSED);
		}
		assert_int_equal(calls_made(), 1);
		story_close(&s);
	}
}

static void sender_past_its_deadline_ends_and_tells(void **state)
{
	/* Goal: a computation that stops bumping does not hold a request for ever. */
	struct story s = { .pair = { .provider = NULL } };
	struct wimm_kv_receive_opts r = kv_receive_opts(&s.got, TOKENS, dst_pages, 5);
	struct wimm_kv_send_opts o = kv_send_opts(&s.sent, NULL, src_pages, 5);

	(void)state;
	o.deadline_us = 20000;
	story_open(&s, NULL);
	story_begin(&s, &r, &o);
	wimm_kv_sender_bump(s.sender, 2);
	kv_wait(&s.pair, &s.sent, WIMM_E_TIMEOUT);
	kv_wait(&s.pair, &s.got, WIMM_E_TIMEOUT);
	story_close(&s);
}

static void sender_open_without_memory_leaves_nothing(void **state)
{
	/* Goal: each allocation of the call may fail: NOMEM, told to the decode side, no leak. */
	struct story s = { .pair = { .provider = NULL, .max_requests = 64 } };
	uint64_t n = 1;

	(void)state;
	story_open(&s, NULL);
	for (bool done = false; !done; n++) {
		struct wimm_kv_receive_opts r = kv_receive_opts(&s.got, TOKENS, dst_pages, 5);
		struct wimm_kv_send_opts o;
		wimm_status st;

		r.tail = 1;
		assert_ok(wimm_kv_receiver_open(s.pair.decode[0].cache, &r, &s.receiver, NULL));
		o = kv_send_opts(&s.sent, s.receiver, src_pages, 5);
		kv_fail_nth(n);
		st = wimm_kv_sender_open(s.pair.prefill[0].cache, &o, &s.sender, NULL);
		done = !kv_fail_fired();
		kv_fail_nth(0);
		assert_int_equal(st, done ? WIMM_OK : WIMM_E_NOMEM);
		if (done)
			assert_ok(wimm_kv_sender_fail(s.sender, WIMM_E_INTERNAL, ""));
		if (n == 1) /* the peer's region, which the answer would go to */
			assert_ok(wimm_kv_receiver_close(&s.receiver, NULL));
		kv_wait(&s.pair, &s.got,
		        done     ? WIMM_E_INTERNAL
		        : n == 1 ? WIMM_E_CANCELLED
		                 : WIMM_E_NOMEM);
		assert_ok(wimm_kv_receiver_close(&s.receiver, NULL));
	}
	assert_true(n > 3);
	story_close(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sender_bumped_layer_by_layer_delivers_every_page),
		cmocka_unit_test(case_77_skipped_values_send_each_layer_once_in_order),
		cmocka_unit_test(sender_chunks_send_pages_when_they_are_complete),
		cmocka_unit_test(sender_told_chunks_sends_the_pages_that_came_with_them),
		cmocka_unit_test(case_57_full_prefix_hit_tells_both_sides),
		cmocka_unit_test(sender_at_the_end_sends_nothing_before_the_last_step),
		cmocka_unit_test(sender_refused_for_want_of_room_tries_again),
		cmocka_unit_test(sender_shares_a_word_with_others),
		cmocka_unit_test(case_68_ranks_of_other_numbers_get_every_byte),
		cmocka_unit_test(sender_request_that_does_not_fit_is_refused_on_both_sides),
		cmocka_unit_test(sender_that_fails_or_is_given_up_tells_the_receiver),
		cmocka_unit_test(sender_past_its_deadline_ends_and_tells),
		cmocka_unit_test(sender_open_without_memory_leaves_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
