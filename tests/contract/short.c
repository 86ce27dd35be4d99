/* SPDX-License-Identifier: Apache-2.0 */
/* Short forms of submissions, and bytes that can be told apart. */
#include "contract/fixture.h"

#include <string.h>

struct wimm_write single(struct node *from, const struct wimm_remote_mr *to, uint64_t src_offset,
                         uint64_t dst_offset, uint64_t len_bytes)
{
	struct wimm_write w = WIMM_WRITE_INIT;

	w.src = from->mr;
	w.dst = to;
	w.src_offset_bytes = src_offset;
	w.dst_offset_bytes = dst_offset;
	w.len_bytes = len_bytes;
	return w;
}

static void accepted(struct result *r, wimm_status st)
{
	if (st != WIMM_OK)
		fail_msg("refused with %s: %s", wimm_status_name(st), wimm_last_error_text());
	r->accepted = true;
}

struct result *submit_write(struct node *from, const struct wimm_write *w)
{
	struct result *r = result_new();
	struct wimm_on_done done = to_result(r);
	wimm_status st;

	while ((st = wimm_submit_single_write(from->engine, w, &done, &r->id)) == WIMM_AGAIN)
		drive();
	accepted(r, st);
	return r;
}

struct result *submit_pages(struct node *from, const struct wimm_paged_writes *w)
{
	struct result *r = result_new();
	struct wimm_on_done done = to_result(r);
	wimm_status st;

	while ((st = wimm_submit_paged_writes(from->engine, w, &done, &r->id)) == WIMM_AGAIN)
		drive();
	accepted(r, st);
	return r;
}

struct result *write_imm(struct node *from, const struct wimm_remote_mr *to, uint64_t src_offset,
                         uint64_t dst_offset, uint64_t len_bytes, uint32_t imm)
{
	struct wimm_write w = single(from, to, src_offset, dst_offset, len_bytes);

	w.flags = WIMM_IMM;
	w.imm = imm;
	return submit_write(from, &w);
}

struct result *expect_with(struct node *n, uint32_t imm, uint64_t count,
                           const struct wimm_expect_opts *opts)
{
	struct result *r = result_new();
	struct wimm_on_done done = to_result(r);
	wimm_status st;

	while ((st = wimm_expect_imm_count(n->engine, imm, count, opts, &done, &r->id)) ==
	       WIMM_AGAIN)
		drive();
	accepted(r, st);
	return r;
}

struct result *expect(struct node *n, uint32_t imm, uint64_t count)
{
	return expect_with(n, imm, count, NULL);
}

uint64_t imm_now(struct node *n, uint32_t imm)
{
	uint64_t count = UINT64_MAX;

	assert_ok(wimm_poll_imm(n->engine, imm, &count));
	return count;
}

void hand_over(struct node *n)
{
	(void)imm_now(n, UINT32_MAX); /* one turn of its worker */
}

struct imm_wait {
	struct node *n;
	uint32_t imm;
	uint64_t count;
};

static bool imm_is_there(void *arg)
{
	struct imm_wait *w = arg;

	return imm_now(w->n, w->imm) >= w->count;
}

void imm_reaches(struct node *n, uint32_t imm, uint64_t count)
{
	struct imm_wait w = { n, imm, count };

	if (!wait_for(imm_is_there, &w))
		fail_msg("value %#x: %llu of %llu", imm, (unsigned long long)imm_now(n, imm),
		         (unsigned long long)count);
	assert_int_equal(imm_now(n, imm), count);
}

void fill(uint8_t *at, uint64_t len_bytes, uint64_t seed)
{
	for (uint64_t i = 0; i < len_bytes; i++)
		at[i] = pattern(seed, i);
}

bool holds(const uint8_t *at, uint64_t len_bytes, uint64_t seed)
{
	for (uint64_t i = 0; i < len_bytes; i++) {
		if (at[i] == pattern(seed, i))
			continue;
		print_error("byte %llu of %llu is %#x, pattern %llu has %#x\n",
		            (unsigned long long)i, (unsigned long long)len_bytes, at[i],
		            (unsigned long long)seed, pattern(seed, i));
		return false;
	}
	return true;
}

bool all_are(const uint8_t *at, uint64_t len_bytes, uint8_t value)
{
	for (uint64_t i = 0; i < len_bytes; i++) {
		if (at[i] == value)
			continue;
		print_error("byte %llu of %llu is %#x, not %#x\n", (unsigned long long)i,
		            (unsigned long long)len_bytes, at[i], value);
		return false;
	}
	return true;
}
