/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/sink.h"

#include "lib/pattern.h"
#include "lib/util.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POOL_MAX_BYTES (64u << 20)
#define POOL_MAX       512u

/* Every round has its own, so that what an earlier one left never passes for this one's. */
static uint8_t poison_of(uint64_t round)
{
	return (uint8_t)(0xe0 + round % 16);
}

static void fail(struct sink *k, const char *what, const struct wimm_done *done)
{
	(void)snprintf(k->fail_text, sizeof(k->fail_text), "%s: %s (%s)%s%s", what,
	               wimm_status_text(done->status), wimm_status_name(done->status),
	               done->text[0] != '\0' ? ": " : "", done->text);
	atomic_store(&k->fired, 2);
}

static void on_count(void *context, const struct wimm_done *done)
{
	struct sink *k = context;

	if (done->status == WIMM_OK)
		atomic_store(&k->fired, 1);
	else
		fail(k, "waiting for the immediates", done);
	side_wake(k->side);
}

/* --- messages --- */

/* A message of a validating pass: its number in the first 8 bytes, if it is long enough. */
static void check_message(struct sink *k, const uint8_t *at, uint64_t len)
{
	const struct spec *spec = k->side->spec;
	uint64_t number = 0;
	size_t head = len >= sizeof(number) ? sizeof(number) : 0;

	memcpy(&number, at, head);
	if (len != spec->block_bytes || number >= k->seen_count ||
	    pattern_check(at + head, len - head, pattern_key(spec->seed, k->round, number)) !=
	            len - head) {
		k->bad++;
		return;
	}
	if (head != 0 && (k->seen[number / 8] >> (number % 8) & 1) != 0)
		k->bad++; /* came twice */
	k->seen[number / 8] |= (uint8_t)(1u << (number % 8));
}

static void on_message(void *context, const struct wimm_received *r)
{
	struct sink *k = context;
	uint64_t want = atomic_load(&k->want); /* first: it was set behind what this pass checks */
	uint64_t got;

	if (r->status != WIMM_OK) {
		atomic_fetch_add(&k->returned, 1);
		side_wake(k->side);
		return;
	}
	if (k->compare) {
		check_message(k, r->addr, r->len_bytes);
		memset(r->addr, poison_of(k->round), k->pool_bytes);
	}
	got = atomic_fetch_add(&k->got, 1) + 1;
	if (got == want || got == atomic_load(&k->want)) {
		atomic_store(&k->fired, 1);
		side_wake(k->side);
	}
}

static void open_pool(struct sink *k)
{
	const struct spec *spec = k->side->spec;
	struct wimm_recv_buffer *buffers;

	k->pool_bytes = spec->block_bytes != 0 ? spec->block_bytes : 1;
	k->pool_count = POOL_MAX_BYTES / k->pool_bytes;
	if (k->pool_count > POOL_MAX)
		k->pool_count = POOL_MAX;
	if (k->pool_count == 0)
		k->pool_count = 1;
	k->pool = must_alloc(k->pool_count, k->pool_bytes);
	buffers = must_alloc(k->pool_count, sizeof(*buffers));
	for (uint64_t i = 0; i < k->pool_count; i++)
		buffers[i] =
			(struct wimm_recv_buffer){ k->pool + i * k->pool_bytes, k->pool_bytes };
	must(wimm_submit_recvs(k->side->engine, buffers, k->pool_count, on_message, k, &k->recvs),
	     "receive buffers");
	free(buffers);
}

/* --- passes --- */

void sink_open(struct sink *k, struct side *side)
{
	*k = (struct sink){ .side = side };
	atomic_store(&k->want, UINT64_MAX);
	if (side->spec->op == OP_SEND)
		open_pool(k);
}

static bool all_returned(void *arg)
{
	struct sink *k = arg;

	return atomic_load(&k->returned) == k->pool_count;
}

static uint64_t count_returned(void *arg)
{
	return atomic_load(&((struct sink *)arg)->returned);
}

void sink_close(struct sink *k)
{
	if (k->pool != NULL) {
		must(wimm_cancel(k->side->engine, k->recvs), "taking the receive buffers back");
		while (!side_wait(k->side, all_returned, count_returned, k))
			cJSON_Delete(channel_recv(k->side->channel, "bye", 1));
	}
	free(k->pool);
	free(k->seen);
}

void sink_expect(struct sink *k, uint32_t imm, uint64_t iters)
{
	const struct side *s = k->side;
	const struct wimm_on_done done = { .fn = on_count, .context = k };
	uint64_t messages = iters * s->spec->batch;

	if (iters == 0) {
		atomic_store(&k->fired, 1);
		return;
	}
	if (s->spec->op != OP_SEND) {
		must(wimm_expect_imm_count(s->engine, imm, iters * spec_iter_imms(s->spec), NULL,
		                           &done, NULL),
		     "expecting the immediates");
		return;
	}
	atomic_store(&k->want, messages);
	if (atomic_load(&k->got) == messages)
		atomic_store(&k->fired, 1);
}

void sink_arm(struct sink *k, uint32_t imm, uint64_t iters, uint64_t round, bool compare)
{
	struct side *s = k->side;

	k->round = round;
	k->compare = compare;
	k->bad = 0;
	if (compare && s->spec->op == OP_SEND) {
		k->seen_count = iters * s->spec->batch;
		free(k->seen);
		k->seen = must_alloc(k->seen_count / 8 + 1, 1);
	} else if (compare) {
		memset(s->dst - SIDE_GUARD_BYTES, poison_of(round),
		       s->blocks * s->spec->block_bytes + 2 * (size_t)SIDE_GUARD_BYTES);
	}
	atomic_store(&k->fired, 0);
	atomic_store(&k->got, 0);
	atomic_store(&k->want, UINT64_MAX);
	if (iters != UINT64_MAX)
		sink_expect(k, imm, iters);
}

bool sink_done(struct sink *k)
{
	uint32_t fired = atomic_load(&k->fired);

	if (fired == 2)
		die("%s", k->fail_text);
	return fired == 1;
}

uint64_t sink_progress(const struct sink *k)
{
	struct wimm_engine_stats stats = WIMM_ENGINE_STATS_INIT;

	must(wimm_engine_get_stats(k->side->engine, &stats), "statistics");
	return atomic_load(&k->got) + stats.imms_received;
}

/* --- comparing --- */

void sink_fill_source(struct side *s, uint64_t iters, uint64_t round)
{
	const struct spec *spec = s->spec;
	uint64_t count = iters * spec->batch;

	for (uint64_t b = 0; b < count && spec->block_bytes != 0; b++) {
		uint8_t *at = s->src + b * spec->block_bytes;
		size_t head = 0;
		uint64_t number = b;

		if (spec->op == OP_SEND) {
			head = spec->block_bytes >= sizeof(number) ? sizeof(number) : 0;
			number = head != 0 ? b : 0;
			memcpy(at, &number, head);
		}
		pattern_fill(at + head, spec->block_bytes - head,
		             pattern_key(spec->seed, round, number));
	}
}

static void check_poison(const struct side *s, const uint8_t *at, size_t len, uint64_t round,
                         const char *where)
{
	size_t good = poison_check(at, len, poison_of(round));

	if (good != len)
		die("WRONG DATA: byte %zd of the destination (%s) was written though nothing goes "
		    "there",
		    at + good - s->dst, where);
}

static void check_left_over(const struct side *s, uint32_t imm)
{
	uint64_t left;

	must(wimm_poll_imm(s->engine, imm, &left), "polling the immediates");
	if (left != 0)
		die("WRONG COUNT: %" PRIu64 " more immediates than were sent", left);
}

static uint64_t compare_messages(const struct sink *k)
{
	uint64_t got = atomic_load(&k->got);

	if (k->bad != 0)
		die("WRONG DATA: %" PRIu64 " of %" PRIu64 " messages differ or came twice", k->bad,
		    got);
	if (got != k->seen_count)
		die("WRONG COUNT: %" PRIu64 " messages came, %" PRIu64 " were sent", got,
		    k->seen_count);
	return got * k->side->spec->block_bytes;
}

uint64_t sink_compare(struct sink *k, uint32_t imm, uint64_t iters, uint64_t round)
{
	const struct side *s = k->side;
	const struct spec *spec = s->spec;
	uint64_t count = iters * spec->batch;
	uint64_t len = spec->block_bytes;

	if (spec->op == OP_SEND)
		return compare_messages(k);
	check_left_over(s, imm);
	check_poison(s, s->dst - SIDE_GUARD_BYTES, SIDE_GUARD_BYTES, round, "in front of it");
	check_poison(s, s->dst + s->blocks * len, SIDE_GUARD_BYTES, round, "behind it");
	for (uint64_t b = 0; len != 0 && b < s->blocks; b++) {
		const uint8_t *at = s->dst + s->to_block[b] * len;
		size_t good;

		if (b >= count) {
			check_poison(s, at, len, round, "a block of no iteration");
			continue;
		}
		good = pattern_check(at, len, pattern_key(spec->seed, round, b));
		if (good != len)
			die("WRONG DATA: iteration %" PRIu64 " of round %" PRIu64 ", block %" PRIu64
			    ", byte %zu of %" PRIu64 " is %s",
			    b / spec->batch, round, b % spec->batch, good, len,
			    at[good] == poison_of(round) ? "still poison" : "wrong");
	}
	return count * len;
}
