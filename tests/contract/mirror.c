/* SPDX-License-Identifier: Apache-2.0 */
/* Words that hold how many immediates of a value have arrived in all. */
#include "contract/fixture.h"

#include <string.h>

enum { IMM = 9, ROUNDS = 64, LEN = 8192 };

struct word_goal {
	const uint64_t *word;
	uint64_t least;
};

static bool word_is_there(void *arg)
{
	const struct word_goal *g = arg;

	return wimm_mirror_load(g->word) >= g->least;
}

static void word_reaches(const uint64_t *word, uint64_t count)
{
	struct word_goal g = { word, count };

	assert_wait(word_is_there, &g);
	assert_int_equal(wimm_mirror_load(word), count);
}

/* Goal: C6: whoever polls the word finds the bytes of what it counts, each time. */
static void word_counts_only_what_can_be_read(void **state)
{
	struct node *a = node_open(ROUNDS * LEN), *b = node_open(ROUNDS * LEN);
	uint64_t *word = case_memory(sizeof(*word));
	struct wimm_remote_mr *to = remote_of(a, b);

	(void)state;
	fill(a->mem, a->bytes, 1);
	assert_ok(wimm_mirror_enable(b->engine, IMM, word));
	assert_int_equal(wimm_mirror_load(word), 0);
	for (uint64_t i = 0; i < ROUNDS; i++) {
		struct word_goal g = { word, i + 1 };
		struct result *r = write_imm(a, to, i * LEN, i * LEN, LEN, IMM);

		assert_wait(word_is_there, &g);
		assert_memory_equal(b->mem + i * LEN, a->mem + i * LEN, LEN);
		result_ok(r);
	}
	assert_int_equal(*word, ROUNDS);
}

/* Goal: what expectations take and forget drops is still in the word; so is what came before. */
static void word_only_grows(void **state)
{
	struct node *a = node_open(4096), *b = node_open(4096);
	uint64_t *word = case_memory(sizeof(*word));
	struct wimm_remote_mr *to = remote_of(a, b);
	uint64_t total = 0;

	(void)state;
	for (int i = 0; i < 3; i++)
		result_ok(write_imm(a, to, 0, 0, 8, IMM));
	imm_reaches(b, IMM, 3);
	assert_ok(wimm_mirror_enable(b->engine, IMM, word));
	assert_int_equal(wimm_mirror_load(word), 3);
	result_ok(expect(b, IMM, 2));
	result_ok(write_imm(a, to, 0, 0, 8, IMM));
	result_ok(write_imm(a, to, 0, 0, 8, IMM + 1));
	word_reaches(word, 4);
	assert_ok(wimm_forget_imm(b->engine, IMM, NULL));
	result_ok(write_imm(a, to, 0, 0, 8, IMM));
	word_reaches(word, 5);
	assert_int_equal(imm_now(b, IMM), 1);
	assert_ok(wimm_mirror_disable(b->engine, IMM, &total));
	assert_int_equal(total, 5);
	result_ok(write_imm(a, to, 0, 0, 8, IMM));
	imm_reaches(b, IMM, 2);
	assert_int_equal(*word, 5); /* ended: nobody writes it any more */
}

/* Goal: a page each, a scatter's entries, a split write: the word has what C1 says, and what a peer
 * that goes has delivered. */
static void word_counts_as_the_contract_counts(void **state)
{
	enum { PAGES = 40 };
	static const uint64_t split = 1 << 20;
	struct node *a = node_open(split), *b = node_open(split);
	struct wimm_paged_writes pages = WIMM_PAGED_WRITES_INIT;
	uint64_t *word = case_memory(sizeof(*word));
	struct wimm_remote_mr *to = remote_of(a, b);
	uint32_t index[PAGES];

	(void)state;
	for (uint32_t i = 0; i < PAGES; i++)
		index[i] = i;
	assert_ok(wimm_mirror_enable(b->engine, IMM, word));
	pages.src = a->mr;
	pages.dst = to;
	pages.src_pages = (struct wimm_pages){ index, PAGES, 1024, 0 };
	pages.dst_pages = (struct wimm_pages){ index, PAGES, 1024, 0 };
	pages.page_len_bytes = 1024;
	pages.flags = WIMM_IMM;
	pages.imm = IMM;
	result_ok(submit_pages(a, &pages));
	result_ok(write_imm(a, to, 0, 0, split, IMM));
	result_ok(write_imm(a, to, 0, 0, 0, IMM));
	word_reaches(word, PAGES + 2);
	node_close(a);
	drive_rounds(100);
	assert_int_equal(wimm_mirror_load(word), PAGES + 2);
}

/* Goal: what cannot be a mirror is refused in words and changes nothing. */
static void bad_mirror_is_refused(void **state)
{
	struct node *b = node_open(64);
	uint64_t *words = case_memory(4 * sizeof(*words));
	uint64_t total = 77;

	(void)state;
	assert_refused(wimm_mirror_enable(b->engine, IMM, NULL), WIMM_E_INVAL, "multiple of 8");
	assert_refused(wimm_mirror_enable(b->engine, IMM, (uint64_t *)((char *)words + 4)),
	               WIMM_E_INVAL, "multiple of 8");
	assert_int_equal(wimm_mirror_enable(NULL, IMM, words), WIMM_E_INVAL);
	assert_status(wimm_mirror_disable(b->engine, IMM, &total), WIMM_E_NOT_FOUND);
	assert_int_equal(total, 77);
	assert_ok(wimm_mirror_enable(b->engine, IMM, words));
	assert_refused(wimm_mirror_enable(b->engine, IMM, words + 1), WIMM_E_BUSY, "disable");
	assert_ok(wimm_mirror_enable(b->engine, 0, words + 2));
	assert_ok(wimm_mirror_enable(b->engine, UINT32_MAX, words + 3));
	assert_ok(wimm_mirror_disable(b->engine, IMM, NULL));
	assert_ok(wimm_mirror_enable(b->engine, IMM, words + 1));
}

static const struct contract_case cases[] = {
	CASE(word_counts_only_what_can_be_read),
	CASE(word_only_grows),
	CASE(word_counts_as_the_contract_counts),
	CASE(bad_mirror_is_refused),
};
GROUP(mirror, cases);
