/* SPDX-License-Identifier: Apache-2.0 */
/* Contract C6 many times over: every byte of a payload is readable when its immediate is
 * counted. */
#include "contract/fixture.h"

#include <string.h>

#define LONGEST (512u << 10)
#define POISON  0xdeadbeefdeadbeefu

/* Word i of pattern `seed`: never the poison, never the same word in two patterns in a row. */
static uint64_t word(uint64_t seed, uint64_t i)
{
	return (seed << 32) ^ (i * 0x9e3779b97f4a7c15u) ^ seed;
}

static void write_words(uint8_t *at, uint64_t len_bytes, uint64_t seed)
{
	uint64_t *w = (uint64_t *)(void *)at;

	for (uint64_t i = 0; i < len_bytes / 8; i++)
		w[i] = word(seed, i);
}

static uint64_t wrong_words(const uint8_t *at, uint64_t len_bytes, uint64_t seed)
{
	const uint64_t *w = (const uint64_t *)(const void *)at;
	uint64_t wrong = 0;

	for (uint64_t i = 0; i < len_bytes / 8; i++)
		wrong += w[i] != word(seed, i);
	return wrong;
}

static void poison(uint8_t *at, uint64_t len_bytes)
{
	uint64_t *w = (uint64_t *)(void *)at;

	for (uint64_t i = 0; i < len_bytes / 8; i++)
		w[i] = POISON;
}

struct proof {
	struct node *b;
	uint64_t len, seed, wrong, looked;
	uint64_t flag, sent;
};

static void look(void *context, const struct wimm_done *done)
{
	struct proof *p = context;
	uint64_t wrong = wrong_words(p->b->mem, p->len, p->seed);

	gate_lock();
	p->wrong += wrong + (done->status != WIMM_OK);
	p->looked++;
	gate_unlock();
}

static bool has_looked(void *arg)
{
	struct proof *p = arg;
	bool yes;

	gate_lock();
	yes = p->looked == p->seed;
	gate_unlock();
	return yes;
}

static void wait_flag(struct proof *p)
{
	uint64_t end_ms = wait_end_ms(), turns = 0;

	/* The moment it is set, with no turn of anybody's in between. */
	while (wimm_flag_load(&p->flag) == 0) {
		if (cfg.driven || ++turns % (1 << 20) == 0)
			wait_more(end_ms, "the flag");
		else if (turns % 4096 == 0)
			drive_rounds(1);
	}
	if (wimm_flag_load(&p->flag) != 1)
		p->wrong++;
	p->wrong += wrong_words(p->b->mem, p->len, p->seed);
	p->looked++;
}

/* Goal: over tcp 100,000 times in check-deep, 1,000,000 in soak: a payload of 64 KiB and more
 * with a pattern of its own, the target poisoned before, is complete when its count is seen:
 * in a callback, or by a flag; whole, split over NICs, or in pages. */
static void payload_is_readable_before_its_count_every_time(void **state)
{
	uint64_t scale = test_scale(), rounds = 150 * (scale < 10 ? scale : 10);
	struct node *a = node_open(LONGEST), *b = node_open(LONGEST);
	struct wimm_remote_mr *to = remote_of(a, b);
	struct proof *p = case_memory(sizeof(*p));
	struct wimm_on_done in_callback = { .fn = look, .context = p };
	struct wimm_on_done by_flag = { .flag = &p->flag };
	struct wimm_on_done to_sent = { .flag = &p->sent };
	struct wimm_paged_writes pages = WIMM_PAGED_WRITES_INIT;
	uint32_t list[16];

	(void)state;
	if (scale >= 10 && cfg.nics == 2 && !cfg.driven && strcmp(cfg.provider, "tcp") == 0)
		rounds = 10000 * scale;
	p->b = b;
	for (uint32_t i = 0; i < 16; i++)
		list[i] = (i * 7) % 16;
	pages.flags = WIMM_IMM | WIMM_IMM_ONCE;
	pages.src = a->mr;
	pages.dst = to;
	pages.src_pages = pages.dst_pages = (struct wimm_pages){ list, 16, 4096, 0 };
	pages.page_len_bytes = 4096;
	for (uint64_t i = 1; i <= rounds; i++) {
		struct wimm_write w = single(a, to, 0, 0, i % 16 == 0 ? LONGEST : 64u << 10);
		wimm_status st;

		p->len = w.len_bytes;
		p->seed = i;
		p->flag = p->sent = 0;
		poison(b->mem, p->len);
		write_words(a->mem, p->len, i);
		w.flags = WIMM_IMM;
		w.imm = pages.imm = (uint32_t)i;
		assert_ok(wimm_expect_imm_count(b->engine, (uint32_t)i, 1, NULL,
		                                i % 2 == 0 ? &in_callback : &by_flag, NULL));
		do {
			st = i % 5 == 0 && i % 16 != 0
			             ? wimm_submit_paged_writes(a->engine, &pages, &to_sent, NULL)
			             : wimm_submit_single_write(a->engine, &w, &to_sent, NULL);
			if (st == WIMM_AGAIN)
				drive();
		} while (st == WIMM_AGAIN);
		assert_ok(st);
		if (i % 2 == 0)
			assert_wait(has_looked, p);
		else
			wait_flag(p);
		assert_int_equal(p->wrong, 0);
		drive_until(wimm_flag_load(&p->sent) == 1); /* only then the source is ours */
	}
	assert_int_equal(p->looked, rounds);
}

static const struct contract_case cases[] = {
	CASE(payload_is_readable_before_its_count_every_time),
};
GROUP(proof, cases);
