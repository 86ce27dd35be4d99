/* SPDX-License-Identifier: Apache-2.0 */
/* What a sender may count on: a settled write leaves its source alone, a write needs no further
 * call of the sender's program, requests may be long (contract C3, C5, C8). */
#include "faults/puppet.h"

#include "core/engine.h"
#include "prov/sim/sim.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MIB (UINT64_C(1) << 20)

/* --- 201 --- */

static struct result *write_with_deadline(struct node *a, const struct wimm_remote_mr *to,
                                          uint64_t bytes, uint64_t deadline_us)
{
	struct wimm_write w = single(a, to, 0, 0, bytes);

	w.flags = WIMM_IMM;
	w.imm = 201;
	w.deadline_us = deadline_us;
	return submit_write(a, &w);
}

/* One byte behind whatever was still under way. Where a write cannot be taken back it has cost the
 * session, and this is the first of a new one. */
static void write_behind(struct node *a, const struct puppet *b)
{
	struct wimm_remote_mr *to = NULL;

	assert_ok(wimm_open_remote_mr(a->engine, &b->desc, &to));
	result_ok(write_imm(a, to, 0, 64 * MIB - 1, 1, 7));
	assert_ok(wimm_close_remote_mr(a->engine, to));
}

/* Goal: a write that ran out of time while its receiver stood still reads its source no more: what
 * is put there afterwards arrives nowhere. A NIC of its own may have taken it all in time. */
static void source_reused_after_a_timeout_case_201_is_not_sent(void **state)
{
	const struct puppet_opts po = { .bytes = 64 * MIB };
	struct puppet *b = puppet_start(&po);
	struct node *a = node_open(64 * MIB);
	struct wimm_remote_mr *to = NULL;
	struct result *r;

	(void)state;
	memset(a->mem, 0x11, 64 * MIB);
	assert_ok(wimm_open_remote_mr(a->engine, &b->desc, &to));
	result_ok(write_with_deadline(a, to, 64, 0));
	puppet_stop(b);
	r = write_with_deadline(a, to, 64 * MIB, 200000);
	result_wait(r); /* not E_QUARANTINED: the source is ours again */
	if (r->status != WIMM_OK || strcmp(cfg.provider, "verbs") != 0)
		result_is(r, WIMM_E_TIMEOUT);
	memset(a->mem, 0x22, 64 * MIB);
	puppet_continue(b);
	write_behind(a, b);
	puppet_imm_reaches(b, 7, 1);
	assert_null(memchr(b->mem, 0x22, 64 * MIB - 1));
	puppet_end(b);
}

/* Nothing is under way in the world any more. */
static bool quiet(void *world)
{
	return sim_world_next_ns(world) == UINT64_MAX;
}

/* Goal: the same where the receiver is simulated, whatever the order of its writes. */
static void source_reused_after_a_timeout_case_201_is_not_read(void **state)
{
	struct node *a = node_open(4 * MIB), *b = node_open(4 * MIB);
	struct wimm_remote_mr *to = remote_of(a, b);
	struct sim_world *w = case_world();
	struct result *r;

	(void)state;
	memset(a->mem, 0x11, 4 * MIB);
	result_ok(write_with_deadline(a, to, 64, 0));
	sim_set_delay(w, 0, 400000000);
	r = write_with_deadline(a, to, 4 * MIB, 200000);
	result_wait(r);
	memset(a->mem, 0x22, 4 * MIB);
	sim_set_delay(w, 0, 1000);
	result_ok(write_imm(a, to, 0, 4 * MIB - 1, 1, 7));
	imm_reaches(b, 7, 1);
	assert_wait(quiet, w); /* what was held up for longest has landed, or never will */
	assert_null(memchr(b->mem, 0x22, 4 * MIB - 1));
	assert_true(r->status == WIMM_OK || r->status == WIMM_E_TIMEOUT);
}

static bool begun(void *at)
{
	/* Another process writes it. */
	return __atomic_load_n((const uint8_t *)at, __ATOMIC_RELAXED) != 0;
}

/* One long write whose receiver is stopped in the middle, cancelled and left stopped until the
 * answer is there. What it was. */
static wimm_status cancel_in_the_middle(struct node *a, struct puppet *b)
{
	struct wimm_remote_mr *to = NULL;
	struct wimm_write w;
	struct result *r;
	wimm_status st;

	assert_ok(wimm_open_remote_mr(a->engine, &b->desc, &to));
	w = single(a, to, 0, 0, 64 * MIB);
	memset(b->mem, 0, 64 * MIB);
	w.flags = WIMM_IMM;
	w.imm = 201;
	r = submit_write(a, &w);
	assert_wait(begun, b->mem + 4 * MIB);
	puppet_stop(b);
	st = wimm_cancel(a->engine, r->id);
	assert_true(st == WIMM_OK || st == WIMM_E_NOT_FOUND);
	result_wait(r);
	if (r->status == WIMM_E_QUARANTINED)
		assert_non_null(strstr(r->text, "may still read the source"));
	else
		assert_true(r->status == WIMM_OK || r->status == WIMM_E_CANCELLED);
	if (r->status == WIMM_E_CANCELLED)
		memset(a->mem, 0x22, 64 * MIB);
	puppet_continue(b);
	write_behind(a, b);
	assert_null(memchr(b->mem, 0x22, 64 * MIB - 1));
	memset(a->mem, 0x11, 64 * MIB);
	assert_ok(wimm_close_remote_mr(a->engine, to));
	return r->status;
}

/* Goal: where the receiver fetches by itself and stands still in the middle, the answer is that the
 * source is not free; everywhere else it is, and the next write arrives. */
static void source_read_by_a_stopped_peer_case_201_is_quarantined(void **state)
{
	const struct puppet_opts po = { .bytes = 64 * MIB };
	struct puppet *b = puppet_start(&po);
	struct node *a = node_open(64 * MIB);
	struct wimm_remote_mr *to = NULL;
	bool fetches = strcmp(cfg.provider, "host") == 0 && cfg.profile == NULL;
	bool quarantined = false;

	(void)state;
	memset(a->mem, 0x11, 64 * MIB);
	assert_ok(wimm_open_remote_mr(a->engine, &b->desc, &to));
	result_ok(write_with_deadline(a, to, 64, 0));
	for (int i = 0; i < 20 && !quarantined; i++)
		quarantined = cancel_in_the_middle(a, b) == WIMM_E_QUARANTINED || !fetches;
	assert_true(quarantined);
	puppet_end(b);
}

/* --- 207 --- */

/* Goal: the receiver counts a write whose sender's program does nothing further. */
static void notice_case_207_needs_no_call_of_the_sender(void **state)
{
	const struct puppet_opts po = { .bytes = MIB };
	const struct puppet_write w = { .len_bytes = MIB, .imm = 207, .flags = WIMM_IMM };
	struct puppet *s = puppet_start(&po);
	struct node *b = node_open(MIB);

	(void)state;
	fill(s->mem, MIB, 207);
	puppet_write(s, &b->desc, &w); /* from here on it waits for orders */
	imm_reaches(b, 207, 1);
	assert_true(holds(b->mem, MIB, 207));
	puppet_end(s);
}

/* --- 208 --- */

static uint64_t now_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000 + (uint64_t)ts.tv_nsec / 1000;
}

/* One request of `count` pages, the last page of the source first. */
static void pages_in_one_request(struct node *a, struct node *b, const struct wimm_remote_mr *to,
                                 uint32_t count, uint32_t page)
{
	struct wimm_paged_writes p = WIMM_PAGED_WRITES_INIT;
	uint32_t *from = malloc(count * sizeof(*from)), *at = malloc(count * sizeof(*at));
	struct result *r = result_new();
	struct wimm_on_done done = to_result(r);
	uint64_t start;

	assert_non_null(from);
	assert_non_null(at);
	for (uint32_t i = 0; i < count; i++) {
		from[i] = count - 1 - i;
		at[i] = i;
	}
	p.flags = WIMM_IMM;
	p.imm = count;
	p.src = a->mr;
	p.dst = to;
	p.page_len_bytes = page;
	p.src_pages = (struct wimm_pages){ from, count, page, 0 };
	p.dst_pages = (struct wimm_pages){ at, count, page, 0 };
	memset(b->mem, 0, (size_t)count * page);
	start = now_us();
	assert_ok(wimm_submit_paged_writes(a->engine, &p, &done, &r->id));
	print_message("%u pages of %u bytes: the call took %llu us\n", count, page,
	              (unsigned long long)(now_us() - start));
	r->accepted = true;
	free(from); /* copied by the call */
	free(at);
	result_ok(r);
	imm_reaches(b, count, count);
	for (uint32_t i = 0; i < count; i++)
		assert_memory_equal(b->mem + (size_t)i * page,
		                    a->mem + (size_t)(count - 1 - i) * page, page);
}

/* Goal: one request holds as many pages as anybody has; none is dropped, memory stays bounded. */
static void pages_in_one_request_case_208_have_no_hidden_limit(void **state)
{
	static const uint32_t counts[] = { 1, 2047, 2049, 65535, 65536, 1000000 };
	struct node *a = node_open(64 * MIB), *b = node_open(64 * MIB);
	struct wimm_remote_mr *to = remote_of(a, b);

	(void)state;
	for (uint64_t i = 0; i < a->bytes; i += sizeof(i))
		memcpy(a->mem + i, &i, sizeof(i));
	for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
		uint32_t page = counts[i] <= 16384 ? 4096 : 64;

		if (counts[i] == 1000000 && test_scale() < 2 &&
		    (case_world() != NULL || strcmp(cfg.provider, "verbs") == 0))
			continue; /* each is an event of the simulator's, or of an emulated CPU */
		pages_in_one_request(a, b, to, counts[i], page);
		drive_until(stats_of(a).index_bytes == 0); /* given back behind the callback */
	}
}

/* Goal: index arrays beyond the budget are refused before anything is sent, and tried again. */
static void pages_beyond_the_index_budget_case_208_say_again(void **state)
{
	struct node *a, *b = node_open(MIB);
	struct wimm_paged_writes p = WIMM_PAGED_WRITES_INIT;
	uint32_t *indices = calloc(16384, sizeof(*indices));
	struct result *r[8];
	uint32_t accepted = 0;

	(void)state;
	assert_non_null(indices);
	a = node_open(MIB);
	a->engine->worker.index_bytes_limit = 300000; /* two and a quarter of what follows */
	p.src = a->mr;
	p.dst = remote_of(a, b);
	p.page_len_bytes = 64;
	for (uint32_t i = 0; i < 16384; i++)
		indices[i] = i;
	p.src_pages = p.dst_pages = (struct wimm_pages){ indices, 16384, 64, 0 };
	p.flags = WIMM_IMM;
	p.imm = 208;
	for (int i = 0; i < 8; i++) {
		struct result *now = result_new();
		struct wimm_on_done done = to_result(now);
		wimm_status st = wimm_submit_paged_writes(a->engine, &p, &done, &now->id);

		if (st == WIMM_OK) {
			now->accepted = true;
			r[accepted++] = now;
			continue;
		}
		assert_int_equal(st, WIMM_AGAIN);
		r[accepted++] = submit_pages(a, &p); /* until there is room */
	}
	assert_int_equal(accepted, 8);
	for (uint32_t i = 0; i < 8; i++)
		result_ok(r[i]);
	imm_reaches(b, 208, 8 * 16384);
	assert_true(stats_of(a).again != 0);
	p.src_pages.count = p.dst_pages.count = 16384;
	a->engine->worker.index_bytes_limit = 4096;
	assert_refused(wimm_submit_paged_writes(a->engine, &p, NULL, NULL), WIMM_E_LIMIT,
	               "index_bytes_limit");
	free(indices);
}

static const struct contract_case cases[] = {
	CASE_ONLY(source_reused_after_a_timeout_case_201_is_not_sent, ONLY_PROCESSES),
	CASE_ONLY(source_reused_after_a_timeout_case_201_is_not_read, ONLY_SIM),
	CASE_ONLY(source_read_by_a_stopped_peer_case_201_is_quarantined, ONLY_PROCESSES),
	CASE_ONLY(notice_case_207_needs_no_call_of_the_sender, ONLY_PROCESSES),
	CASE(pages_in_one_request_case_208_have_no_hidden_limit),
	CASE(pages_beyond_the_index_budget_case_208_say_again),
};
GROUP(source, cases);
