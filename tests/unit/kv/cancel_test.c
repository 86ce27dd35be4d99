/* SPDX-License-Identifier: Apache-2.0 */
/* Requests given up in mid-transfer, whose pages the next request takes at once. */
#include "kv/pair.h"

#include "core/engine.h"
#include "kv/sender.h"

#include <string.h>

#include <wimm/imm.h>

#define PAGES      5
#define TOKENS     20
#define CHUNK      6
#define TWO_CHUNKS (2 * CHUNK)

static const uint32_t first_src[] = { 9, 2, 14, 0, 7 };
static const uint32_t second_src[] = { 1, 3, 5, 4, 6 };
static const uint32_t dst[] = { 3, 15, 0, 8, 5 };

struct prompt {
	struct kv_result got, sent;
	struct wimm_kv_receiver *receiver;
	struct wimm_kv_sender *sender;
};

static void begin_in(struct kv_pair *p, wimm_peer peer, struct prompt *q, const uint32_t *src,
                     uint64_t chunk_tokens, uint8_t *arrived)
{
	struct wimm_kv_receive_opts r = kv_receive_opts(&q->got, TOKENS, dst, PAGES);
	struct wimm_kv_send_opts o;
	struct wimm_error_info error = { 0 };

	r.peers = &peer;
	r.peer_count = 1;
	r.arrived = arrived;
	if (wimm_kv_receiver_open(p->decode[0].cache, &r, &q->receiver, &error) != WIMM_OK)
		fail_msg("receiver: %s", error.text);
	o = kv_send_opts(&q->sent, q->receiver, src, PAGES);
	o.chunk_tokens = chunk_tokens;
	if (wimm_kv_sender_open(p->prefill[0].cache, &o, &q->sender, &error) != WIMM_OK)
		fail_msg("sender: %s", error.text);
}

static void begin(struct kv_pair *p, wimm_peer peer, struct prompt *q, const uint32_t *src)
{
	begin_in(p, peer, q, src, 0, NULL);
}

static bool is_quiet(void *arg)
{
	return wimm_flag_load(arg) != 0;
}

static bool has_ended(void *arg)
{
	return kv_there(arg);
}

/* One of both sides gives up; when the library says so the pages are the caller's. */
static void cancel(struct kv_pair *p, struct prompt *q, bool by_sender)
{
	uint64_t flag = 0;
	const struct wimm_on_done quiet = { .flag = &flag };

	if (by_sender)
		assert_ok(wimm_kv_sender_fail(q->sender, WIMM_E_CANCELLED, "aborted"));
	assert_ok(wimm_kv_receiver_close(&q->receiver, &quiet));
	kv_until(p, is_quiet, &flag);
	assert_int_equal(wimm_flag_load(&flag), 1);
}

static void case_28_cancelled_request_leaves_its_pages_to_the_next(void **state)
{
	/* Goal: with delayed, reordered writes a request is given up, by either side, after any of
	 * its steps; once its pages are reported free no byte of it lands in them any more, and the
	 * request that reuses them at once is exact. */
	const struct sim_cfg sim = { .seed = test_seed(28), .max_delay_ns = 300000 };
	struct kv_pair p = { .max_requests = 64 };
	struct wimm_net_addr addr;
	wimm_peer peer = 0;
	uint32_t cancelled = 0;

	(void)state;
	kv_open(&p, 1, 1, &sim, NULL);
	kv_fill(&p.prefill[0], 3);
	assert_ok(wimm_main_address(p.prefill[0].engine, &addr));
	assert_ok(wimm_add_peer(p.decode[0].engine, &addr, NULL, &peer));
	for (unsigned round = 0; round < 200 * test_scale(); round++) {
		struct prompt one = { 0 }, two = { 0 };

		begin(&p, peer, &one, first_src);
		wimm_kv_sender_bump(one.sender, 1 + round % 4);
		cancel(&p, &one, round % 3 == 2);
		memset(p.decode[0].mem, 0xee, p.decode[0].bytes);
		if (round % 2 == 0) { /* nobody writes: not even later */
			kv_until(&p, has_ended, &one.sent);
			kv_check_pages(&p, 0, first_src, dst, 0);
		}
		begin(&p, peer, &two, second_src);
		wimm_kv_sender_bump(two.sender, 4);
		kv_wait(&p, &two.got, WIMM_OK);
		kv_wait(&p, &two.sent, WIMM_OK);
		kv_until(&p, has_ended, &one.sent);
		kv_until(&p, has_ended, &one.got);
		kv_check_pages(&p, 0, second_src, dst, PAGES);
		cancelled += one.got.status < 0;
		assert_ok(wimm_kv_sender_close(&one.sender));
		assert_ok(wimm_kv_sender_close(&two.sender));
		assert_ok(wimm_kv_receiver_close(&two.receiver, NULL));
		memset(p.decode[0].mem, 0xee, p.decode[0].bytes);
	}
	/* Some had all they needed before they were given up; most had not. */
	assert_true(cancelled > 50);
	kv_close(&p);
}

/* A NIC that does not say that a path is closed. */
static struct {
	const struct prov_ops *real;
	struct prov_ops ops;
	bool holding;
	uint32_t kept;
	struct prov_cqe cqe[8];
} stubborn;

static uint32_t stubborn_poll(struct prov_dev *dev, uint64_t now_ns, struct prov_cqe *out,
                              uint32_t max)
{
	uint32_t n = 0, got;

	while (!stubborn.holding && stubborn.kept != 0 && n < max)
		out[n++] = stubborn.cqe[--stubborn.kept];
	if (n != 0)
		return n;
	got = stubborn.real->poll(dev, now_ns, out, max);
	for (uint32_t i = 0; i < got; i++) {
		if (stubborn.holding && out[i].kind == PROV_PATH_CLOSED)
			stubborn.cqe[stubborn.kept++] = out[i];
		else
			out[n++] = out[i];
	}
	return n;
}

struct answer {
	uint32_t calls, fence;
	wimm_status status;
};

static void on_answer(void *context, const struct wimm_done *done)
{
	struct answer *a = context;

	a->calls++;
	a->fence = done->fence;
	a->status = done->status;
}

static bool has_answer(void *arg)
{
	return ((struct answer *)arg)->calls != 0;
}

static bool one_slot_is_free(void *arg)
{
	struct kv_pair *p = arg;
	struct kv_result got;
	struct wimm_kv_receive_opts r = kv_receive_opts(&got, TOKENS, dst, PAGES);
	struct wimm_kv_receiver *receiver = NULL;
	wimm_status st = wimm_kv_receiver_open(p->decode[0].cache, &r, &receiver, NULL);

	assert_true(st == WIMM_OK || st == WIMM_AGAIN);
	if (st == WIMM_OK) {
		assert_ok(wimm_kv_receiver_close(&receiver, NULL));
		kv_wait(p, &got, WIMM_E_CANCELLED);
	}
	return st == WIMM_OK;
}

static void pages_of_a_failed_request_come_back_in_three_ways(void **state)
{
	/* Goal: a prefill rank that answers, one that is gone, and one whose path cannot be closed:
	 * confirmed, fenced, quarantined. In quarantine the request keeps its immediate and the
	 * place of its tail until the path is closed after all. */
	static const wimm_fence_answer want[] = { WIMM_FENCE_CONFIRMED, WIMM_FENCE_FENCED,
		                                  WIMM_FENCE_QUARANTINED };

	(void)state;
	for (uint32_t i = 0; i < 3; i++) {
		struct kv_pair p = { .driven = true, .max_requests = 1 };
		struct prompt q = { 0 };
		struct answer answer = { 0 };
		const struct wimm_on_done quiet = { on_answer, &answer, NULL };
		struct wimm_net_addr addr;
		wimm_peer peer = 0;
		struct worker *w;

		kv_open(&p, 1, 1, NULL, NULL);
		w = &p.decode[0].engine->worker;
		w->peer_timeout_ns = 100000000;
		assert_ok(wimm_main_address(p.prefill[0].engine, &addr));
		assert_ok(wimm_add_peer(p.decode[0].engine, &addr, NULL, &peer));
		begin(&p, peer, &q, first_src);
		wimm_kv_sender_bump(q.sender, 4);
		kv_wait(&p, &q.got, WIMM_OK); /* a session, over which it goes */
		assert_ok(wimm_kv_sender_close(&q.sender));
		assert_ok(wimm_kv_receiver_close(&q.receiver, &quiet));
		kv_until(&p, has_answer, &answer);
		assert_int_equal(answer.fence, WIMM_FENCE_CONFIRMED);
		memset(&answer, 0, sizeof(answer));
		begin(&p, peer, &q, second_src);
		memset(&stubborn, 0, sizeof(stubborn));
		stubborn.real = w->nic[0].ops;
		stubborn.ops = *stubborn.real;
		stubborn.ops.poll = stubborn_poll;
		stubborn.holding = i == 2;
		w->nic[0].ops = &stubborn.ops;
		if (i != 0) {
			sim_kill_engine(p.world, p.prefill[0].engine->self.instance, false);
			kv_wait(&p, &q.got, WIMM_E_PEER_LOST);
		}
		assert_ok(wimm_kv_receiver_close(&q.receiver, &quiet));
		kv_until(&p, has_answer, &answer);
		assert_int_equal(answer.fence, want[i]);
		assert_int_equal(answer.status, i == 2 ? WIMM_E_QUARANTINED : WIMM_OK);
		if (i == 2)
			assert_false(one_slot_is_free(&p));
		stubborn.holding = false;
		kv_until(&p, one_slot_is_free, &p);
		assert_int_equal(answer.calls, 1);
		assert_ok(wimm_kv_sender_close(&q.sender));
		w->nic[0].ops = stubborn.real;
		kv_close(&p);
	}
}

/* Enough turns of both engines for whatever is under way in a world without delays, where nothing
 * waits for time to pass: a session that both sides begin at once does (hello.c). */
static bool turns_are_over(void *arg)
{
	return ++*(uint32_t *)arg > 3000;
}

static void settle(struct kv_pair *p)
{
	uint32_t turns = 0;

	kv_until(p, turns_are_over, &turns);
}

static bool two_chunks_are_written(void *arg)
{
	const struct wimm_kv_sender *s = arg; /* of a driven pair: nobody else has it now */

	return s->in_flight == 0 && s->said_token == TWO_CHUNKS;
}

/* Two chunks and a step of the third are written, and the decode side knows. */
static void write_two_chunks(struct kv_pair *p, struct prompt *q)
{
	wimm_kv_sender_bump(q->sender, 9);
	kv_until(p, two_chunks_are_written, q->sender);
	settle(p); /* the word of it is under way */
}

enum { BY_SENDER, BY_RECEIVER, BY_LOSS, BY_DEATH, NOT_AT_ALL, WAYS };

static void end_by(struct kv_pair *p, struct prompt *q, int way)
{
	switch (way) {
	case BY_SENDER:
		assert_ok(wimm_kv_sender_fail(q->sender, WIMM_E_INTERNAL, "no kernel"));
		kv_wait(p, &q->got, WIMM_E_INTERNAL);
		break;
	case BY_RECEIVER:
		break;
	case BY_LOSS: /* of a page of the third chunk, with one NIC of two */
		sim_lose_next(p->world, 1, SIM_LOSS_UNSENT, 1);
		wimm_kv_sender_bump(q->sender, 3);
		kv_until(p, has_ended, &q->got);
		break;
	case BY_DEATH:
		sim_kill_engine(p->world, p->prefill[0].engine->self.instance, false);
		kv_wait(p, &q->got, WIMM_E_PEER_LOST);
		break;
	default:
		wimm_kv_sender_bump(q->sender, 7);
		kv_wait(p, &q->got, WIMM_OK);
	}
}

static void same_page(struct kv_pair *p, uint32_t here, uint32_t there)
{
	const struct wimm_kv_layout *l = &p->decode[0].layout;

	for (uint32_t layer = 0; layer < l->layers; layer++)
		for (uint32_t part = 0; part < 2; part++)
			assert_memory_equal(kv_at(&p->decode[0], layer, here, part, 0, 0),
			                    kv_at(&p->prefill[0], layer, there, part, 0, 0),
			                    l->part_stride_bytes);
}

static void pages_of_a_failed_request_that_are_here_are_told(void **state)
{
	/* Goal: a prompt in chunks of 6 tokens, pages of 4, is given up in the third chunk, by one
	 * side, the other or a lost write: the three pages of two chunks are here and are called
	 * so, once the request is quiet and not before; of a rank that has died no page is. After
	 * a good end all are here. */
	static const uint8_t want[WAYS][PAGES] = {
		[BY_SENDER] = { 1, 1, 1, 0, 0 }, [BY_RECEIVER] = { 1, 1, 1, 0, 0 },
		[BY_LOSS] = { 1, 1, 1, 0, 0 },   [BY_DEATH] = { 0 },
		[NOT_AT_ALL] = { 1, 1, 1, 1, 1 },
	};
	static const uint8_t none[PAGES] = { 0 };

	(void)state;
	for (int way = 0; way < WAYS; way++) {
		const struct sim_cfg sim = { .profile = "efa", .seed = test_seed(29) };
		struct kv_pair p = { .driven = true, .two_nics = true };
		struct prompt q = { 0 };
		struct answer answer = { 0 };
		const struct wimm_on_done quiet = { on_answer, &answer, NULL };
		uint8_t arrived[PAGES] = { 7, 7, 7, 7, 7 };
		struct wimm_net_addr addr;
		wimm_peer peer = 0;

		kv_open(&p, 1, 1, &sim, NULL);
		kv_fill(&p.prefill[0], 3);
		assert_ok(wimm_main_address(p.prefill[0].engine, &addr));
		assert_ok(wimm_add_peer(p.decode[0].engine, &addr, NULL, &peer));
		begin_in(&p, peer, &q, first_src, CHUNK, arrived);
		write_two_chunks(&p, &q);
		assert_memory_equal(arrived, none, PAGES);
		end_by(&p, &q, way);
		assert_memory_equal(arrived, way == NOT_AT_ALL ? want[way] : none, PAGES);
		assert_ok(wimm_kv_receiver_close(&q.receiver, &quiet));
		kv_until(&p, has_answer, &answer);
		assert_ok(answer.status);
		assert_memory_equal(arrived, want[way], PAGES);
		for (uint32_t i = 0; i < PAGES; i++)
			if (arrived[i] != 0)
				same_page(&p, dst[i], first_src[i]);
		assert_ok(wimm_kv_sender_close(&q.sender));
		kv_close(&p);
	}
}

static void pages_are_left_alone_where_nobody_hears_of_the_quiet(void **state)
{
	/* Goal: a receiver closed without on_quiet writes to the caller's bytes no more. */
	struct kv_pair p = { .driven = true };
	struct prompt q = { 0 };
	uint8_t arrived[PAGES];
	struct wimm_net_addr addr;
	wimm_peer peer = 0;

	(void)state;
	kv_open(&p, 1, 1, NULL, NULL);
	assert_ok(wimm_main_address(p.prefill[0].engine, &addr));
	assert_ok(wimm_add_peer(p.decode[0].engine, &addr, NULL, &peer));
	begin_in(&p, peer, &q, first_src, CHUNK, arrived);
	write_two_chunks(&p, &q);
	assert_ok(wimm_kv_receiver_close(&q.receiver, NULL));
	memset(arrived, 7, PAGES);
	kv_wait(&p, &q.got, WIMM_E_CANCELLED);
	settle(&p);
	for (uint32_t i = 0; i < PAGES; i++)
		assert_int_equal(arrived[i], 7);
	assert_ok(wimm_kv_sender_close(&q.sender));
	kv_close(&p);
}

static void request_after_its_session_was_fenced_is_served_over_the_next(void **state)
{
	/* Goal: both engines live, only their session is gone: what the prefill side keeps of the
	 * decode side's region belongs to that session, and is not used for the next request. */
	struct kv_pair p = { .driven = true };
	struct wimm_net_addr addr;

	(void)state;
	kv_open(&p, 1, 1, NULL, NULL);
	kv_fill(&p.prefill[0], 3);
	assert_ok(wimm_main_address(p.prefill[0].engine, &addr));
	for (int round = 0; round < 3; round++) {
		struct prompt q = { 0 };
		struct answer fenced = { 0 };
		const struct wimm_on_done done = { on_answer, &fenced, NULL };
		wimm_peer peer = 0;

		assert_ok(wimm_add_peer(p.decode[0].engine, &addr, NULL, &peer));
		begin(&p, peer, &q, first_src);
		wimm_kv_sender_bump(q.sender, 4);
		kv_wait(&p, &q.got, WIMM_OK);
		kv_wait(&p, &q.sent, WIMM_OK);
		kv_check_pages(&p, 0, first_src, dst, PAGES);
		assert_ok(wimm_kv_sender_close(&q.sender));
		assert_ok(wimm_kv_receiver_close(&q.receiver, NULL));
		settle(&p);
		memset(p.decode[0].mem, 0xee, p.decode[0].bytes);
		assert_ok(wimm_fence_peer(p.decode[0].engine, peer, NULL, &done, NULL));
		kv_until(&p, has_answer, &fenced);
		assert_ok(fenced.status);
		settle(&p); /* the prefill side has heard of it */
	}
	kv_close(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(case_28_cancelled_request_leaves_its_pages_to_the_next),
		cmocka_unit_test(pages_of_a_failed_request_come_back_in_three_ways),
		cmocka_unit_test(pages_of_a_failed_request_that_are_here_are_told),
		cmocka_unit_test(request_after_its_session_was_fenced_is_served_over_the_next),
		cmocka_unit_test(pages_are_left_alone_where_nobody_hears_of_the_quiet),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
