/* SPDX-License-Identifier: Apache-2.0 */
#include "pair.h"

#include "base/alloc.h"
#include "base/config.h"
#include "plat/clock.h"
#include "plat/rand.h"

#include <stdlib.h>
#include <string.h>

static void path_tx_full_queue_takes_fewer_and_loses_none(void **state)
{
	/* Goal: a full send queue is back-pressure, never a lost or doubled write. */
	enum { TRIES = TCP_POST_DEPTH + 100 };
	struct pair p;
	struct prov_wr *wr = calloc(TRIES, sizeof(*wr));
	uint32_t taken;

	(void)state;
	pair_open(&p, "127.0.0.1:0");
	for (uint32_t i = 0; i < TRIES; i++) {
		wr[i] = pair_wr(&p, i, i * 64, i * 64, 64);
		wr[i].flags = PROV_WR_IMM;
	}
	taken = p.ops->post(p.a.path, wr, TRIES);
	assert_int_equal(taken, p.a.caps.post_depth);
	assert_int_equal(p.ops->post(p.a.path, wr, 1), 0);
	pair_drain(&p, taken, taken);
	assert_int_equal(p.ops->post(p.a.path, wr + taken, TRIES - taken), TRIES - taken);
	pair_drain(&p, TRIES, TRIES);
	for (uint32_t i = 0; i < TRIES; i++)
		assert_int_equal(p.a.units[i], 1);
	assert_memory_equal(p.a.mem, p.b.mem, TRIES * 64);
	pair_close(&p);
	free(wr);
}

static void path_tx_long_write_is_one_unit_and_one_immediate(void **state)
{
	/* Goal: cutting into frames shows nowhere, also with a chunk that divides nothing. */
	struct pair p;
	struct prov_wr wr;

	(void)state;
	assert_ok(config_set("tcp_chunk_bytes", "5000"));
	pair_open(&p, "127.0.0.1:0");
	wr = pair_wr(&p, 9, 1, 3, 5000000);
	wr.flags = PROV_WR_IMM;
	wr.imm = 0;
	assert_int_equal(p.ops->post(p.a.path, &wr, 1), 1);
	pair_drain(&p, 1, 1);
	assert_memory_equal(p.a.mem + 1, p.b.mem + 3, 5000000);
	pair_close(&p);
	config_reload();
}

static void path_tx_parts_arrive_with_their_operation(void **state)
{
	/* Goal: PROV_PART carries op_seq, parts and the immediate, one event a part. */
	struct pair p;
	struct prov_wr wr[3];

	(void)state;
	pair_open(&p, "127.0.0.1:0");
	for (uint32_t i = 0; i < 3; i++) {
		wr[i] = pair_wr(&p, 1, i * 100, i * 100, i == 1 ? 0 : 100);
		wr[i].flags = PROV_WR_PART;
		wr[i].op_seq = UINT64_C(0x8000000000000001);
		wr[i].parts = 7;
		wr[i].imm = 0xfffffffe;
	}
	assert_int_equal(p.ops->post(p.a.path, wr, 3), 3);
	pair_drain(&p, 3, 0);
	assert_int_equal(p.b.parts, 3);
	assert_true(p.b.last_part.op_seq == wr[0].op_seq);
	assert_int_equal(p.b.last_part.parts, 7);
	assert_int_equal(p.b.last_part.imm, 0xfffffffe);
	pair_close(&p);
}

/* a sends until the sockets are full; b does not poll. */
static void fill_sockets(struct pair *p)
{
	uint32_t quiet = 0;

	while (quiet < 100)
		quiet = side_poll(&p->a) == 0 && p->ops->arm(p->a.dev) ? quiet + 1 : 0;
}

static void path_tx_cancel_in_mid_write_frees_the_source_at_once(void **state)
{
	/* Goal: with a receiver that does not read, the cancelled write's source may be overwritten
	 * as soon as its end is reported, and nothing of that reaches the target. */
	const uint64_t len = 6u << 20;
	struct pair p;
	struct prov_wr wr[3];
	uint8_t *before;

	(void)state;
	assert_ok(config_set("tcp_sndbuf_bytes", "64K"));
	pair_open(&p, "127.0.0.1:0");
	before = malloc(len);
	memcpy(before, p.a.mem, len);
	memset(p.b.mem, 0xcc, PAIR_MEM_BYTES);
	wr[0] = pair_wr(&p, 1, 0, 0, len);
	wr[1] = pair_wr(&p, 2, len, len, 4096);
	wr[2] = pair_wr(&p, 1, 0, len + 4096, 4096);
	for (int i = 0; i < 3; i++)
		wr[i].flags = PROV_WR_IMM;
	assert_int_equal(p.ops->post(p.a.path, wr, 3), 3);
	fill_sockets(&p);
	p.ops->cancel(p.a.path, 1);
	(void)side_poll(&p.a);
	assert_int_equal(p.a.done_cancelled, 2);
	assert_int_equal(p.a.done_cancelled_sent, 0); /* its last frame had not begun */
	memset(p.a.mem, 0xee, len);
	pair_drain(&p, 1, 1);
	for (uint64_t i = 0; i < len; i++) {
		if (p.b.mem[i] != before[i] && p.b.mem[i] != 0xcc)
			fail_msg("byte %llu is %02x", (unsigned long long)i, p.b.mem[i]);
	}
	assert_memory_equal(p.b.mem, before, 4096); /* it had begun */
	assert_int_equal(p.b.mem[len - 1], 0xcc);
	assert_int_equal(p.b.mem[len + 4096], 0xcc);
	assert_memory_equal(p.b.mem + len, p.a.mem + len, 4096);
	pair_close(&p);
	free(before);
	config_reload();
}

static void path_tx_cancel_without_memory_costs_the_path(void **state)
{
	/* Goal: when the private copy cannot be made, the source is free all the same. */
	struct pair p;
	struct prov_wr wr;

	(void)state;
	assert_ok(config_set("tcp_sndbuf_bytes", "64K"));
	pair_open(&p, "127.0.0.1:0");
	wr = pair_wr(&p, 1, 0, 0, 1 << 20);
	assert_int_equal(p.ops->post(p.a.path, &wr, 1), 1);
	fill_sockets(&p);
	mem_fail_nth(1);
	p.ops->cancel(p.a.path, 1);
	assert_true(mem_fail_fired());
	mem_fail_nth(0);
	side_turns(&p.a, 3);
	assert_int_equal(p.a.done_cancelled, 1);
	assert_true(p.a.down);
	assert_int_equal(p.a.down_status, WIMM_E_NOMEM);
	p.ops->path_close(p.a.path);
	side_turns(&p.a, 2);
	assert_true(p.a.closed);
	assert_int_equal(p.a.units[1], 1);
	pair_close(&p);
	config_reload();
}

static bool some_done(const struct pair *p)
{
	return p->a.done_ok > 0;
}

static void path_tx_close_in_mid_write_returns_every_token_once(void **state)
{
	/* Goal: what was acked stays done, what had begun says so, what had not says so too. */
	enum { WRITES = 200 };
	struct pair p;
	struct prov_wr wr[WRITES];

	(void)state;
	assert_ok(config_set("tcp_sndbuf_bytes", "64K"));
	pair_open(&p, "127.0.0.1:0");
	for (uint32_t i = 0; i < WRITES; i++) {
		wr[i] = pair_wr(&p, i, i * 32768, i * 32768, 32768);
		wr[i].flags = PROV_WR_IMM;
	}
	assert_int_equal(p.ops->post(p.a.path, wr, WRITES), WRITES);
	assert_true(pair_until(&p, some_done));
	fill_sockets(&p);
	p.ops->path_close(p.a.path);
	assert_int_equal(p.ops->post(p.a.path, wr, 1), 0);
	p.a.max = 1; /* one event at a time is enough */
	side_await(&p.a, &p.a.closed);
	assert_int_equal(p.a.done_ok + p.a.done_lost, WRITES);
	assert_true(p.a.done_lost_sent > 0 && p.a.done_lost_sent < p.a.done_lost);
	for (uint32_t i = 0; i < WRITES; i++)
		assert_int_equal(p.a.units[i], 1);
	side_await(&p.b, &p.b.down);
	assert_true(p.b.imms >= p.a.done_ok);
	assert_true(p.b.imms <= p.a.done_ok + p.a.done_lost_sent);
	pair_close(&p);
	config_reload();
}

/* --- a random story --- */

enum { STORY_WRITES = 1500, SCRIBBLE = 0xee };

struct story {
	struct pair p;
	struct rng r;
	uint64_t src[STORY_WRITES];
	uint64_t dst[STORY_WRITES];
	uint64_t len[STORY_WRITES];
	bool scribbled[STORY_WRITES];
	uint32_t posted;
	uint64_t next_dst;
};

static uint8_t source_byte(uint64_t at)
{
	uint8_t v = (uint8_t)(at * 2654435761u >> 13);

	return v == SCRIBBLE || v == 0xcc ? 1 : v; /* never the marks */
}

static void story_post(struct story *s)
{
	struct prov_wr wr[16];
	uint32_t n = 0;

	for (uint32_t want = (uint32_t)rng_between(&s->r, 1, 16); n < want; n++) {
		uint32_t i = s->posted + n;
		uint64_t longest = rng_chance(&s->r, 1, 20) ? 60000 : 3000;

		if (i == STORY_WRITES)
			break;
		s->len[i] = rng_chance(&s->r, 1, 8) ? 0 : rng_below(&s->r, longest);
		if (s->next_dst + s->len[i] > PAIR_MEM_BYTES)
			break;
		s->dst[i] = s->src[i] = s->next_dst;
		s->next_dst += s->len[i];
		wr[n] = pair_wr(&s->p, i, s->src[i], s->dst[i], s->len[i]);
		wr[n].flags = PROV_WR_IMM;
		wr[n].imm = i % 3;
	}
	s->posted += s->p.ops->post(s->p.a.path, wr, n);
	s->next_dst = s->posted > 0 ? s->dst[s->posted - 1] + s->len[s->posted - 1] : 0;
}

/* Whoever was told that it was cancelled may write over it. */
static void story_scribble(struct story *s, uint32_t i)
{
	s->scribbled[i] = true;
	memset(s->p.a.mem + s->src[i], SCRIBBLE, s->len[i]);
}

static void story_cancel(struct story *s)
{
	uint32_t i = (uint32_t)rng_below(&s->r, s->posted);
	uint64_t before = s->p.a.done_cancelled;

	if (s->p.a.units[i] != 0)
		return;
	s->p.ops->cancel(s->p.a.path, i);
	s->p.a.max = 64;
	(void)side_poll(&s->p.a);
	assert_int_equal(s->p.a.units[i], 1); /* without waiting for the peer */
	if (s->p.a.done_cancelled == before + 1)
		story_scribble(s, i);
}

static void story_check(const struct story *s)
{
	uint64_t never = 0;

	for (uint32_t i = 0; i < s->posted; i++) {
		const uint8_t *at = s->p.b.mem + s->dst[i];
		bool whole = true;

		assert_int_equal(s->p.a.units[i], 1);
		for (uint64_t k = 0; k < s->len[i]; k++) {
			whole = whole && at[k] == source_byte(s->src[i] + k);
			if (at[k] != 0xcc && at[k] != source_byte(s->src[i] + k))
				fail_msg("write %u byte %llu is %02x", i, (unsigned long long)k,
				         at[k]);
		}
		if (!s->scribbled[i])
			assert_true(whole);
		never += !whole;
	}
	assert_true(never <= s->p.a.done_cancelled - s->p.a.done_cancelled_sent);
}

static uint32_t story_posted;

static bool story_over(const struct pair *p)
{
	return p->a.done_ok + p->a.done_cancelled == story_posted &&
	       p->b.imms >= p->a.done_ok + p->a.done_cancelled_sent;
}

static void path_tx_random_cancels_never_spoil_bytes_or_counts(void **state)
{
	/* Goal: however posting, polling and cancelling interleave, each write ends once, what was
	 * cancelled is counted exactly when it says so, and no later byte of a source is sent. */
	struct story *s = calloc(1, sizeof(*s));

	(void)state;
	assert_ok(config_set("tcp_sndbuf_bytes", "16K"));
	assert_ok(config_set("tcp_chunk_bytes", "8000"));
	rng_init(&s->r, test_seed(31));
	pair_open(&s->p, "127.0.0.1:0");
	for (uint64_t i = 0; i < PAIR_MEM_BYTES; i++)
		s->p.a.mem[i] = source_byte(i);
	memset(s->p.b.mem, 0xcc, PAIR_MEM_BYTES);
	for (uint32_t step = 0; s->posted < STORY_WRITES && step < 20000; step++) {
		s->p.a.max = (uint32_t)rng_between(&s->r, 1, 8);
		s->p.b.max = (uint32_t)rng_between(&s->r, 1, 8);
		switch (rng_below(&s->r, 5)) {
		case 0:
			story_post(s);
			break;
		case 1:
			if (s->posted > 0)
				story_cancel(s);
			break;
		case 2:
			(void)side_poll(&s->p.b);
			break;
		default:
			(void)side_poll(&s->p.a);
			break;
		}
	}
	story_posted = s->posted;
	if (!pair_until(&s->p, story_over))
		fail_msg("posted %u, done %llu, cancelled %llu (sent %llu), counted %llu; %s, %s",
		         s->posted, (unsigned long long)s->p.a.done_ok,
		         (unsigned long long)s->p.a.done_cancelled,
		         (unsigned long long)s->p.a.done_cancelled_sent,
		         (unsigned long long)s->p.b.imms, s->p.a.down_text, s->p.b.down_text);
	side_turns(&s->p.b, 10);
	assert_int_equal(s->p.b.imms, s->p.a.done_ok + s->p.a.done_cancelled_sent);
	assert_true(s->p.a.done_cancelled > 50);
	story_check(s);
	pair_close(&s->p);
	free(s);
	config_reload();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(path_tx_full_queue_takes_fewer_and_loses_none),
		cmocka_unit_test(path_tx_long_write_is_one_unit_and_one_immediate),
		cmocka_unit_test(path_tx_parts_arrive_with_their_operation),
		cmocka_unit_test(path_tx_cancel_in_mid_write_frees_the_source_at_once),
		cmocka_unit_test(path_tx_cancel_without_memory_costs_the_path),
		cmocka_unit_test(path_tx_close_in_mid_write_returns_every_token_once),
		cmocka_unit_test(path_tx_random_cancels_never_spoil_bytes_or_counts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
