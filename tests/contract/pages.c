/* SPDX-License-Identifier: Apache-2.0 */
/* Page lists: empty, repeated, with one immediate in all; pinned NICs; regions that end. */
#include "contract/fixture.h"

#include "prov/sim/sim.h"

#include <string.h>

static struct wimm_paged_writes pages_of(struct node *a, const struct wimm_remote_mr *to,
                                         const uint32_t *src, const uint32_t *dst, uint64_t count,
                                         uint64_t len)
{
	struct wimm_paged_writes w = WIMM_PAGED_WRITES_INIT;

	w.flags = WIMM_IMM;
	w.src = a->mr;
	w.dst = to;
	w.src_pages = (struct wimm_pages){ src, count, len, 0 };
	w.dst_pages = (struct wimm_pages){ dst, count, len, 0 };
	w.page_len_bytes = len;
	return w;
}

/* Goal: no pages at all is no work: done at once, nothing counted, also without an immediate, with
 * one immediate in all, before there is a session. */
static void pages_none_at_all_case_57_are_done_at_once(void **state)
{
	static const uint32_t flags[] = { 0, WIMM_IMM, WIMM_IMM | WIMM_IMM_ONCE,
		                          WIMM_IMM | WIMM_CONFIRMED };
	struct node *a = node_open(64), *b = node_open(64);
	struct wimm_remote_mr *to = remote_of(a, b);

	(void)state;
	for (int connected = 0; connected < 2; connected++) {
		for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++) {
			struct wimm_paged_writes w = pages_of(a, to, NULL, NULL, 0, 64);
			struct result *r;

			w.flags = flags[i];
			w.imm = 57;
			r = submit_pages(a, &w);
			result_ok(r);
			assert_int_equal(r->bytes, 0);
			assert_int_equal(r->descriptors, 0);
		}
		result_ok(write_imm(a, to, 0, 0, 8, 1));
		imm_reaches(b, 1, (uint64_t)connected + 1);
		assert_int_equal(imm_now(b, 57), 0);
	}
}

/* Goal: one source page may go to several targets; of a target named twice the bytes are one of the
 * two, both immediates count, and nothing else is touched. */
static void pages_repeated_case_59_count_each(void **state)
{
	static const uint32_t same[] = { 2, 2, 2 }, apart[] = { 1, 4, 7 };
	static const uint32_t two[] = { 0, 1 }, twice[] = { 5, 5 };
	struct node *a = node_open(640), *b = node_open(640);
	struct wimm_remote_mr *to = remote_of(a, b);
	struct wimm_paged_writes w = pages_of(a, to, same, apart, 3, 64);

	(void)state;
	fill(a->mem, 640, 59);
	result_ok(submit_pages(a, &w));
	imm_reaches(b, 0, 3);
	for (int i = 0; i < 10; i++) {
		if (i == 1 || i == 4 || i == 7)
			assert_memory_equal(b->mem + i * 64, a->mem + 128, 64);
		else
			assert_true(all_are(b->mem + i * 64, 64, 0));
	}
	memset(b->mem, 0, 640);
	hand_over(b);
	w = pages_of(a, to, two, twice, 2, 64);
	w.imm = 1;
	result_ok(submit_pages(a, &w));
	imm_reaches(b, 1, 2);
	for (int i = 0; i < 64; i++)
		assert_true(b->mem[320 + i] == a->mem[i] || b->mem[320 + i] == a->mem[64 + i]);
	assert_true(all_are(b->mem, 320, 0) && all_are(b->mem + 384, 640 - 384, 0));
}

/* Bytes of pages [first, first + count) are where the list says, and no others have changed. */
static void check_listed(const struct node *a, const struct node *b, const uint32_t *src,
                         const uint32_t *dst, uint64_t first, uint64_t count, uint64_t len)
{
	uint8_t *want = case_memory(b->bytes);

	memset(want, 0, b->bytes);
	for (uint64_t i = first; i < first + count; i++)
		memcpy(want + dst[i] * len, a->mem + src[i] * len, len);
	assert_memory_equal(b->mem, want, b->bytes);
}

/* Goal: a list that is kept serves many writes, whole and in part, with an immediate a page and one
 * in all, after the caller's arrays have changed and, for those accepted, after it was closed. */
static void pages_of_a_kept_list_go_where_it_says(void **state)
{
	static const struct {
		uint64_t first, count;
		uint32_t flags;
	} parts[] = {
		{ 0, 300, WIMM_IMM },
		{ 17, 200, WIMM_IMM },
		{ 299, 1, WIMM_IMM },
		{ 300, 0, WIMM_IMM },
		{ 5, 290, WIMM_IMM | WIMM_IMM_ONCE },
	};
	struct node *a = node_open(300 * 96), *b = node_open(300 * 96);
	struct wimm_remote_mr *to = remote_of(a, b);
	uint32_t *src = case_memory(300 * sizeof(*src)), *dst = case_memory(300 * sizeof(*dst));
	uint32_t *given = case_memory(300 * sizeof(*given));

	(void)state;
	for (uint32_t i = 0; i < 300; i++) {
		src[i] = (i * 7 + 3) % 300;
		dst[i] = (i * 211) % 300;
	}
	fill(a->mem, a->bytes, 7);
	for (uint32_t k = 0; k < sizeof(parts) / sizeof(parts[0]); k++) {
		struct wimm_paged_writes w = pages_of(a, to, NULL, NULL, parts[k].count, 96);
		struct wimm_page_list *list = NULL;
		struct result *r;

		memcpy(given, src, 300 * sizeof(*given));
		assert_ok(wimm_page_list_open(a->engine, a->mr, given, dst, 300, &list));
		memset(given, 0xff, 300 * sizeof(*given));
		memset(b->mem, 0, b->bytes);
		hand_over(b);
		w.list = list;
		w.list_first = parts[k].first;
		w.flags = parts[k].flags;
		w.imm = k;
		r = submit_pages(a, &w);
		wimm_page_list_close(&list);
		assert_null(list);
		result_ok(r);
		if (parts[k].count != 0)
			imm_reaches(b, k,
			            parts[k].flags == WIMM_IMM ? parts[k].count : UINT64_C(1));
		check_listed(a, b, src, dst, parts[k].first, parts[k].count, 96);
	}
}

struct look {
	struct node *b;
	const uint32_t *dst;
	uint64_t count, len, seed;
	uint32_t fired, stale;
};

static void look_at_all(void *context, const struct wimm_done *done)
{
	struct look *l = context;

	gate_lock();
	l->stale += done->status != WIMM_OK;
	for (uint64_t i = 0; i < l->count; i++)
		for (uint64_t k = 0; k < l->len; k += 61) {
			uint64_t at = l->dst[i] * l->len + k;

			l->stale += l->b->mem[at] != pattern(l->seed, at);
		}
	l->fired++;
	gate_unlock();
}

static bool look_fired(void *arg)
{
	bool yes;

	gate_lock();
	yes = ((struct look *)arg)->fired != 0;
	gate_unlock();
	return yes;
}

/* Goal: with one immediate in all it is counted once, after every page, for any number of pages on
 * any number of NICs. */
static void pages_with_one_immediate_count_it_after_the_last(void **state)
{
	static const uint64_t counts[] = { 1, 2, 3, 5, 63, 64, 65, 127, 129, 500 };
	struct node *a = node_open(500 * 700), *b = node_open(500 * 700);
	struct wimm_remote_mr *to = remote_of(a, b);
	uint32_t *list = case_memory(500 * sizeof(*list));

	(void)state;
	for (uint32_t i = 0; i < 500; i++)
		list[i] = (i * 211) % 500;
	for (uint32_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
		struct wimm_paged_writes w = pages_of(a, to, list, list, counts[c], 700);
		struct look *l = case_memory(sizeof(*l));
		struct wimm_on_done done = { .fn = look_at_all, .context = l };

		fill(a->mem, a->bytes, c);
		memset(b->mem, 0xcc, b->bytes);
		hand_over(b);
		*l = (struct look){ b, list, counts[c], 700, c, 0, 0 };
		w.flags = WIMM_IMM | WIMM_IMM_ONCE;
		w.imm = c;
		assert_ok(wimm_expect_imm_count(b->engine, c, 1, NULL, &done, NULL));
		result_ok(submit_pages(a, &w));
		assert_wait(look_fired, l);
		assert_int_equal(l->stale, 0);
	}
	for (uint32_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++)
		assert_int_equal(imm_now(b, c), 0);
}

/* Goal: pages that follow each other on both sides take fewer requests where they carry no
 * immediate each; every byte lands where its own page says, nothing else is touched, one immediate
 * counts. */
static void pages_in_a_row_are_merged_where_no_page_counts(void **state)
{
	enum { PAGES = 400, LEN = 128 };
	struct node *a = node_open(PAGES * LEN), *b = node_open(PAGES * LEN);
	struct wimm_remote_mr *to = remote_of(a, b);
	uint32_t src[PAGES / 2], dst[PAGES / 2];
	uint32_t n = 0;

	(void)state;
	/* Runs of 20 pages, apart from each other, in another order over there. */
	for (uint32_t run = 0; run < 10; run++)
		for (uint32_t i = 0; i < 20; i++, n++) {
			src[n] = run * 40 + i;
			dst[n] = (9 - run) * 40 + 7 + i;
		}
	for (uint32_t round = 0; round < 3; round++) {
		struct wimm_paged_writes w = pages_of(a, to, src, dst, n, LEN);
		struct result *r;

		fill(a->mem, a->bytes, round);
		memset(b->mem, 0xcc, b->bytes);
		hand_over(b);
		w.flags = round == 0 ? 0 : round == 1 ? WIMM_IMM | WIMM_IMM_ONCE : WIMM_IMM;
		w.imm = 60 + round;
		r = submit_pages(a, &w);
		result_ok(r);
		assert_int_equal(r->bytes, n * LEN);
		assert_int_equal(r->descriptors, round == 2 ? n : 10);
		if (round == 0)
			result_ok(write_imm(a, to, 0, 0, 0, 60)); /* no order, but the same bytes */
		imm_reaches(b, 60 + round, round == 2 ? n : 1);
		if (round == 0)
			continue; /* covered by no immediate */
		for (uint32_t i = 0; i < n; i++)
			assert_memory_equal(b->mem + dst[i] * LEN, a->mem + src[i] * LEN, LEN);
		for (uint32_t run = 0; run < 10; run++) {
			assert_true(all_are(b->mem + run * 40 * LEN, 7 * LEN, 0xcc));
			assert_true(all_are(b->mem + (run * 40 + 27) * LEN, 13 * LEN, 0xcc));
		}
	}
}

/* Goal: a pinned write uses the NIC it names, each in turn, for all forms of writes. */
static void writes_pinned_to_each_nic_arrive(void **state)
{
	static const uint32_t list[] = { 0, 1, 2, 3 };
	struct node *a = node_open(1 << 20), *b = node_open(1 << 20);
	struct wimm_remote_mr *to = remote_of(a, b);

	(void)state;
	for (uint32_t nic = 0; nic < cfg.nics; nic++) {
		struct wimm_write w = single(a, to, 0, 0, 1 << 20);
		struct wimm_paged_writes p = pages_of(a, to, list, list, 4, 1000);
		struct wimm_scatter_entry entry = { to, 0, 0, 5000 };
		struct wimm_scatter s = WIMM_SCATTER_INIT;
		struct result *r = result_new();
		struct wimm_on_done done = to_result(r);

		fill(a->mem, a->bytes, nic);
		w.flags = p.flags = s.flags = WIMM_IMM | WIMM_PIN_NIC;
		w.imm = p.imm = s.imm = nic;
		w.nic_index = p.nic_index = s.nic_index = nic;
		r = submit_write(a, &w);
		result_ok(r);
		assert_int_equal(r->descriptors, 1); /* not split */
		imm_reaches(b, nic, 1);
		assert_true(holds(b->mem, b->bytes, nic));
		result_ok(submit_pages(a, &p));
		imm_reaches(b, nic, 5);
		s.src = a->mr;
		s.entries = &entry;
		s.count = 1;
		r = result_new();
		done = to_result(r);
		assert_ok(wimm_submit_scatter(a->engine, &s, &done, &r->id));
		r->accepted = true;
		result_ok(r);
		imm_reaches(b, nic, 6);
	}
}

struct gone {
	bool done;
};

static void on_gone(void *context, const struct wimm_done *done)
{
	struct gone *g = context;

	gate_lock();
	g->done = done->status == WIMM_OK;
	gate_unlock();
}

static bool is_gone(void *arg)
{
	bool yes;

	gate_lock();
	yes = ((struct gone *)arg)->done;
	gate_unlock();
	return yes;
}

/* Refused by the call, or as soon as the owner was asked. */
static void write_is_revoked(struct node *a, const struct wimm_remote_mr *to)
{
	struct wimm_write w = single(a, to, 0, 0, 8);
	struct result *r = result_new();
	struct wimm_on_done done = to_result(r);
	wimm_status st = wimm_submit_single_write(a->engine, &w, &done, &r->id);

	r->accepted = st == WIMM_OK;
	if (r->accepted)
		result_is(r, WIMM_E_REVOKED);
	else
		assert_status(st, WIMM_E_REVOKED);
}

/* Goal: a region ends while writes into it run: each settles, done or E_REVOKED; after on_done
 * not a byte lands; another region of the same peer is not disturbed; the old descriptor stays
 * dead. */
static void region_ended_under_writes_takes_no_byte_afterwards(void **state)
{
	unsigned rounds = 8 * test_scale();
	struct node *a = node_open(1 << 16), *b = node_open(1 << 16);
	struct wimm_remote_mr *other = remote_of(a, b);
	uint8_t *bytes = case_memory(1 << 16);

	(void)state;
	memset(a->mem, 0x11, a->bytes);
	result_ok(write_imm(a, other, 0, 0, 8, 1));
	for (unsigned round = 0; round < rounds; round++) {
		struct gone *g = case_memory(sizeof(*g));
		struct wimm_on_done gone = { .fn = on_gone, .context = g };
		struct wimm_remote_mr *to, *late;
		struct result *r[64], *alive[8];
		struct wimm_mr_desc desc;
		struct wimm_write w;
		struct wimm_mr *mr;
		uint32_t n = 0;

		assert_ok(wimm_reg_mr(b->engine, bytes, 1 << 16, NULL, &mr));
		assert_ok(wimm_mr_get_desc(mr, &desc));
		assert_ok(wimm_open_remote_mr(a->engine, &desc, &to));
		assert_ok(wimm_open_remote_mr(a->engine, &desc, &late));
		w = single(a, to, 0, 0, 1 << 14);
		w.flags = WIMM_IMM;
		w.imm = 2;
		if (round % 3 != 0) /* else none was seen before the end */
			result_ok(submit_write(a, &w));
		for (; n < 64; n++) {
			struct wimm_on_done done;
			wimm_status st;

			if (n == 16 + round % 16)
				assert_ok(wimm_dereg_mr(b->engine, mr, &gone));
			r[n] = result_new();
			done = to_result(r[n]);
			while ((st = wimm_submit_single_write(a->engine, &w, &done, &r[n]->id)) ==
			       WIMM_AGAIN)
				drive();
			r[n]->accepted = st == WIMM_OK;
			assert_true(st == WIMM_OK || st == WIMM_E_REVOKED);
			if (n % 8 == 0)
				alive[n / 8] = write_imm(a, other, 0, 0, 64, 3);
		}
		assert_wait(is_gone, g);
		/* From here on the memory is the owner's. */
		memset(bytes, 0x22, 1 << 16);
		for (uint32_t i = 0; i < n; i++) {
			if (!r[i]->accepted)
				continue;
			result_wait(r[i]);
			assert_true(r[i]->status == WIMM_OK || r[i]->status == WIMM_E_REVOKED);
		}
		for (int i = 0; i < 8; i++)
			result_ok(alive[i]);
		assert_true(all_are(bytes, 1 << 16, 0x22));
		write_is_revoked(a, late);
		assert_ok(wimm_close_remote_mr(a->engine, to));
		assert_ok(wimm_close_remote_mr(a->engine, late));
		assert_true(all_are(bytes, 1 << 16, 0x22));
	}
	assert_int_equal(node_events(a, WIMM_PEER_DOWN) + node_events(b, WIMM_PEER_DOWN), 0);
	imm_reaches(b, 3, 8 * rounds);
}

/* Goal: a region registered anew at the same place is another one; overlapping ones stand alone. */
static void region_registered_anew_has_a_descriptor_of_its_own(void **state)
{
	struct node *a = node_open(4096), *b = node_open(4096);
	struct wimm_mr *mr[2];
	struct wimm_mr_desc desc[2];
	struct wimm_remote_mr *to[2];
	struct gone *g = case_memory(sizeof(*g));
	struct wimm_on_done gone = { .fn = on_gone, .context = g };
	struct wimm_write w;

	(void)state;
	for (int i = 0; i < 2; i++) {
		assert_ok(wimm_reg_mr(b->engine, b->mem + 100 * i, 2000, NULL, &mr[i]));
		assert_ok(wimm_mr_get_desc(mr[i], &desc[i]));
		assert_ok(wimm_open_remote_mr(a->engine, &desc[i], &to[i]));
	}
	fill(a->mem, 4096, 1);
	w = single(a, to[0], 0, 0, 2000);
	result_ok(submit_write(a, &w));
	assert_ok(wimm_dereg_mr(b->engine, mr[0], &gone));
	assert_wait(is_gone, g);
	w = single(a, to[1], 0, 0, 2000);
	result_ok(submit_write(a, &w));
	assert_ok(wimm_reg_mr(b->engine, b->mem, 2000, NULL, &mr[0]));
	w = single(a, to[0], 0, 0, 8);
	assert_int_equal(wimm_submit_single_write(a->engine, &w, NULL, NULL), WIMM_E_REVOKED);
	{
		struct wimm_mr_desc fresh;
		struct wimm_remote_mr *again;

		assert_ok(wimm_mr_get_desc(mr[0], &fresh));
		assert_memory_not_equal(&fresh, &desc[0], sizeof(fresh));
		assert_ok(wimm_open_remote_mr(a->engine, &fresh, &again));
		w = single(a, again, 0, 0, 8);
		result_ok(submit_write(a, &w));
	}
}

/* Goal: a region whose content is polled asks every NIC for strict order, others ask none. */
static void region_with_strict_order_asks_every_nic_for_it(void **state)
{
	struct wimm_mr_opts opts = WIMM_MR_OPTS_INIT;
	struct node *a = node_open(64), *b = node_open(64);
	struct wimm_remote_mr *to;
	struct wimm_mr_desc desc;
	struct wimm_write w;
	struct wimm_mr *mr;
	uint8_t *bytes = case_memory(64);
	struct gone *g = case_memory(sizeof(*g));
	struct wimm_on_done gone = { .fn = on_gone, .context = g };

	(void)state;
	assert_int_equal(sim_strict_regions(case_world()), 0);
	opts.flags = WIMM_MR_STRICT_ORDER;
	assert_ok(wimm_reg_mr(b->engine, bytes, 64, &opts, &mr));
	assert_int_equal(sim_strict_regions(case_world()), cfg.nics);
	assert_ok(wimm_mr_get_desc(mr, &desc));
	assert_ok(wimm_open_remote_mr(a->engine, &desc, &to));
	fill(a->mem, 64, 3);
	w = single(a, to, 0, 0, 64);
	w.flags = WIMM_IMM;
	result_ok(submit_write(a, &w));
	imm_reaches(b, 0, 1);
	assert_true(holds(bytes, 64, 3));
	assert_ok(wimm_dereg_mr(b->engine, mr, &gone));
	assert_wait(is_gone, g);
	assert_int_equal(sim_strict_regions(case_world()), 0);
}

static const struct contract_case cases[] = {
	CASE(pages_none_at_all_case_57_are_done_at_once),
	CASE(pages_repeated_case_59_count_each),
	CASE(pages_of_a_kept_list_go_where_it_says),
	CASE(pages_with_one_immediate_count_it_after_the_last),
	CASE(pages_in_a_row_are_merged_where_no_page_counts),
	CASE(writes_pinned_to_each_nic_arrive),
	CASE(region_ended_under_writes_takes_no_byte_afterwards),
	CASE(region_registered_anew_has_a_descriptor_of_its_own),
	CASE_ONLY(region_with_strict_order_asks_every_nic_for_it, ONLY_SIM),
};
GROUP(pages, cases);
