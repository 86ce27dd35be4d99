/* SPDX-License-Identifier: Apache-2.0 */
/* A bad argument is refused by the call itself, before anything happens (contract C4, C10). */
#include "contract/fixture.h"

#include <stdlib.h>
#include <string.h>

struct both {
	struct node *a, *b;
	struct wimm_remote_mr *to;
	struct wimm_engine_stats before_a, before_b;
};

static struct both *pair_open(uint64_t bytes)
{
	struct both *p = case_memory(sizeof(*p));

	p->a = node_open(bytes);
	p->b = node_open(bytes);
	p->to = remote_of(p->a, p->b);
	result_ok(write_imm(p->a, p->to, 0, 0, 0, 1));
	imm_reaches(p->b, 1, 1);
	p->before_a = stats_of(p->a);
	p->before_b = stats_of(p->b);
	return p;
}

/* After all those refusals: nothing was submitted, sent or counted, and the pair works. */
static void nothing_happened(struct both *p)
{
	struct wimm_engine_stats a = stats_of(p->a), b = stats_of(p->b);

	assert_int_equal(a.ops_submitted, p->before_a.ops_submitted);
	assert_int_equal(a.writes_posted, p->before_a.writes_posted);
	assert_int_equal(a.msgs_sent, p->before_a.msgs_sent);
	assert_int_equal(a.ops_open, 0);
	assert_int_equal(a.index_bytes, 0);
	assert_int_equal(b.imms_received, p->before_b.imms_received);
	assert_true(all_are(p->b->mem, p->b->bytes, 0));
	result_ok(write_imm(p->a, p->to, 0, 0, 0, 1));
	imm_reaches(p->b, 1, 2);
}

#define refuse_write(p, change, want, words)                                                       \
	do {                                                                                       \
		struct wimm_write w = single((p)->a, (p)->to, 0, 0, 8);                            \
		struct result *r = result_new();                                                   \
		struct wimm_on_done done = to_result(r);                                           \
                                                                                                   \
		w.flags = WIMM_IMM;                                                                \
		change;                                                                            \
		assert_refused(wimm_submit_single_write((p)->a->engine, &w, &done, &r->id), want,  \
		               words);                                                             \
		assert_int_equal(r->id, 0);                                                        \
	} while (0)

/* Goal: a write that passes the end of either region, by one byte or by overflow, is refused with
 * the figures; so are foreign and dead handles, unknown flags, wrong sizes. */
static void write_out_of_bounds_case_53_is_refused(void **state)
{
	struct both *p = pair_open(4096);
	struct node *c = node_open(4096);
	struct wimm_remote_mr *foreign = remote_of(c, p->b), *gone = remote_of(p->a, p->b);

	(void)state;
	refuse_write(p, w.src_offset_bytes = 4089, WIMM_E_RANGE, "source");
	refuse_write(p, w.dst_offset_bytes = 4089, WIMM_E_RANGE, "4096");
	refuse_write(p, w.src_offset_bytes = UINT64_MAX - 3, WIMM_E_RANGE, "source");
	refuse_write(p, w.dst_offset_bytes = UINT64_MAX - 3, WIMM_E_RANGE, "destination");
	refuse_write(p, w.len_bytes = UINT64_MAX, WIMM_E_RANGE, "18446744073709551615");
	refuse_write(p, w.len_bytes = 4097, WIMM_E_RANGE, "4097");
	refuse_write(p, w.src = c->mr, WIMM_E_INVAL, "source");
	refuse_write(p, w.src = NULL, WIMM_E_INVAL, "source");
	refuse_write(p, w.dst = foreign, WIMM_E_INVAL, "destination");
	refuse_write(p, w.dst = NULL, WIMM_E_INVAL, "destination");
	refuse_write(p, w.flags |= 1u << 20, WIMM_E_INVAL, "flags");
	refuse_write(p, w.flags |= WIMM_IMM_ONCE, WIMM_E_INVAL, "flags");
	refuse_write(p, w.flags = WIMM_CONFIRMED, WIMM_E_INVAL, "WIMM_IMM");
	refuse_write(p, w.flags |= WIMM_PIN_NIC; w.nic_index = cfg.nics, WIMM_E_INVAL, "NIC");
	refuse_write(p, w.size--, WIMM_E_INVAL, "");
	refuse_write(p, w.size = 0, WIMM_E_INVAL, "");
	refuse_write(p, w.reserved[0] = 1, WIMM_E_INVAL, "");
	refuse_write(p, w.stream = &w, WIMM_E_INVAL, "WIMM_AFTER_STREAM");
	assert_ok(wimm_close_remote_mr(p->a->engine, gone));
	refuse_write(p, w.dst = gone, WIMM_E_INVAL, "destination");
	assert_invalid(wimm_close_remote_mr(p->a->engine, gone));
	assert_invalid(wimm_close_remote_mr(p->a->engine, foreign));
	assert_invalid(wimm_close_remote_mr(p->a->engine, NULL));
	assert_invalid(wimm_submit_single_write(p->a->engine, NULL, NULL, NULL));
	assert_invalid(wimm_submit_single_write(NULL, NULL, NULL, NULL));
	nothing_happened(p);
}

/* Goal: at the very end of a region, with nothing or the last byte to write, it is no overrun. */
static void write_up_to_the_last_byte_case_53_is_accepted(void **state)
{
	struct both *p = pair_open(4096);

	(void)state;
	p->a->mem[4095] = 9;
	result_ok(write_imm(p->a, p->to, 4095, 4095, 1, 2));
	result_ok(write_imm(p->a, p->to, 4096, 4096, 0, 2));
	result_ok(write_imm(p->a, p->to, 0, 0, 4096, 2));
	imm_reaches(p->b, 2, 3);
	assert_int_equal(p->b->mem[4095], 9);
}

static struct wimm_paged_writes pages_of(struct both *p, const uint32_t *src, uint64_t src_count,
                                         const uint32_t *dst, uint64_t dst_count)
{
	struct wimm_paged_writes w = WIMM_PAGED_WRITES_INIT;

	w.flags = WIMM_IMM;
	w.src = p->a->mr;
	w.dst = p->to;
	w.src_pages = (struct wimm_pages){ src, src_count, 64, 0 };
	w.dst_pages = (struct wimm_pages){ dst, dst_count, 64, 0 };
	w.page_len_bytes = 64;
	return w;
}

static void refuse_pages(struct both *p, const struct wimm_paged_writes *w, wimm_status want,
                         const char *words)
{
	struct result *r = result_new();
	struct wimm_on_done done = to_result(r);

	assert_refused(wimm_submit_paged_writes(p->a->engine, w, &done, &r->id), want, words);
	assert_int_equal(r->id, 0);
}

/* Goal: one page index outside its region refuses the whole list, with index and page count. */
static void page_index_out_of_range_case_55_is_refused(void **state)
{
	static const uint32_t good[] = { 0, 9 }, high[] = { 0, 10 }, huge[] = { UINT32_MAX };
	struct both *p = pair_open(640);
	struct wimm_paged_writes w;

	(void)state;
	w = pages_of(p, high, 2, good, 2);
	refuse_pages(p, &w, WIMM_E_RANGE, "source: page index 10");
	w = pages_of(p, good, 2, high, 2);
	refuse_pages(p, &w, WIMM_E_RANGE, "destination: page index 10");
	refuse_pages(p, &w, WIMM_E_RANGE, "holds 10 pages");
	w = pages_of(p, huge, 1, good, 1);
	refuse_pages(p, &w, WIMM_E_RANGE, "4294967295");
	w = pages_of(p, good, 1, huge, 1);
	refuse_pages(p, &w, WIMM_E_RANGE, "4294967295");
	w = pages_of(p, good, 2, good, 2);
	w.src_pages.offset_bytes = 1;
	refuse_pages(p, &w, WIMM_E_RANGE, "source");
	w = pages_of(p, good, 1, good, 1);
	w.dst_pages.offset_bytes = UINT64_MAX;
	refuse_pages(p, &w, WIMM_E_RANGE, "destination");
	w = pages_of(p, good, 2, good, 2);
	w.src_pages.stride_bytes = UINT64_MAX / 4;
	refuse_pages(p, &w, WIMM_E_RANGE, "source");
	nothing_happened(p);
}

/* Goal: a kept list is checked at every write that uses it, by the pages that this one has, and
 * named by the same words; entries that it does not have and another engine's are refused. */
static void page_of_a_kept_list_out_of_range_is_refused(void **state)
{
	static const uint32_t src[] = { 0, 9, 10, 3 }, dst[] = { 1, 2, 3, 10 };
	struct both *p = pair_open(640);
	struct wimm_paged_writes w = pages_of(p, NULL, 4, NULL, 4);
	struct wimm_page_list *list = NULL, *others = NULL;

	(void)state;
	assert_ok(wimm_page_list_open(p->a->engine, p->a->mr, src, dst, 4, &list));
	assert_ok(wimm_page_list_open(p->b->engine, p->b->mr, src, dst, 4, &others));
	w.list = list;
	refuse_pages(p, &w, WIMM_E_RANGE, "source: page index 10");
	w.src_pages.count = w.dst_pages.count = 3;
	refuse_pages(p, &w, WIMM_E_RANGE, "source: page index 10");
	w.list_first = 3;
	w.src_pages.count = w.dst_pages.count = 1;
	refuse_pages(p, &w, WIMM_E_RANGE, "destination: page index 10");
	w.list_first = 0;
	w.src_pages.count = w.dst_pages.count = 2;
	w.src_pages.stride_bytes = UINT64_MAX / 4;
	refuse_pages(p, &w, WIMM_E_RANGE, "source: page index 9");
	w = pages_of(p, NULL, 2, NULL, 2);
	w.list = list;
	w.dst_pages.offset_bytes = 512;
	refuse_pages(p, &w, WIMM_E_RANGE, "destination: page index 2");
	w.dst_pages.offset_bytes = 0;
	w.list_first = 3;
	refuse_pages(p, &w, WIMM_E_RANGE, "pages 3 and 2 more of a list of 4");
	w.list_first = UINT64_MAX;
	refuse_pages(p, &w, WIMM_E_RANGE, "of a list of 4");
	w.list_first = 0;
	w.list = others;
	refuse_pages(p, &w, WIMM_E_INVAL, "none of this engine's");
	assert_int_equal(wimm_page_list_open(p->a->engine, p->a->mr, NULL, dst, 4, &others),
	                 WIMM_E_INVAL);
	assert_int_equal(wimm_page_list_open(p->a->engine, p->b->mr, src, dst, 4, &others),
	                 WIMM_E_INVAL);
	assert_int_equal(wimm_page_list_open(p->a->engine, p->a->mr, src, dst,
	                                     UINT64_C(1) << 32, &others),
	                 WIMM_E_LIMIT);
	wimm_page_list_close(&list);
	wimm_page_list_close(&others);
	wimm_page_list_close(&others);
	wimm_page_list_close(NULL);
	nothing_happened(p);
}

/* Goal: lists of unequal length, pages that overlap by their stride, and the rest of what a paged
 * write can get wrong. */
static void page_lists_of_unequal_length_case_58_are_refused(void **state)
{
	static const uint32_t list[] = { 0, 1, 2, 3 };
	struct both *p = pair_open(640);
	struct wimm_paged_writes w;

	(void)state;
	w = pages_of(p, list, 2, list, 0);
	refuse_pages(p, &w, WIMM_E_INVAL, "2 source pages and 0 destination pages");
	w = pages_of(p, list, 3, list, 4);
	refuse_pages(p, &w, WIMM_E_INVAL, "3 source pages and 4 destination pages");
	w = pages_of(p, list, 2, list, 2);
	w.src_pages.stride_bytes = 0;
	refuse_pages(p, &w, WIMM_E_INVAL, "stride");
	w = pages_of(p, list, 2, list, 2);
	w.dst_pages.stride_bytes = 0;
	refuse_pages(p, &w, WIMM_E_INVAL, "stride");
	w = pages_of(p, NULL, 2, list, 2);
	refuse_pages(p, &w, WIMM_E_INVAL, "");
	w = pages_of(p, list, 2, list, 2);
	w.flags = WIMM_IMM_ONCE;
	refuse_pages(p, &w, WIMM_E_INVAL, "WIMM_IMM");
	w = pages_of(p, list, 2, list, 2);
	w.flags |= 1u << 31;
	refuse_pages(p, &w, WIMM_E_INVAL, "flags");
	w = pages_of(p, list, 2, list, 2);
	w.size = 8;
	refuse_pages(p, &w, WIMM_E_INVAL, "");
	w = pages_of(p, list, 2, list, 2);
	w.reserved[0] = 1;
	refuse_pages(p, &w, WIMM_E_INVAL, "");
	/* Length 0 is no fault: it behaves like an empty write per page. */
	w = pages_of(p, list, 4, list, 4);
	w.page_len_bytes = 0;
	w.imm = 8;
	result_ok(submit_pages(p->a, &w));
	imm_reaches(p->b, 8, 4);
	p->before_a = stats_of(p->a);
	p->before_b = stats_of(p->b);
	nothing_happened(p);
}

/* Goal: destination pages that overlap by their stride are refused. */
static void page_overlap_by_stride_case_59_is_refused(void **state)
{
	static const uint32_t list[] = { 0, 1, 2 };
	struct both *p = pair_open(640);
	struct wimm_paged_writes w = pages_of(p, list, 3, list, 3);

	(void)state;
	w.dst_pages.stride_bytes = 63;
	refuse_pages(p, &w, WIMM_E_INVAL, "63");
	nothing_happened(p);
}

/* Goal: registration refuses what cannot be a region, and leaves nothing. */
static void region_that_cannot_be_is_refused(void **state)
{
	struct both *p = pair_open(64);
	struct wimm_engine *e = p->a->engine;
	struct wimm_mr_opts opts = WIMM_MR_OPTS_INIT;
	struct wimm_mr *mr = (struct wimm_mr *)state;
	struct wimm_mr_desc desc;
	uint64_t regions = stats_of(p->a).regions;

	assert_refused(wimm_reg_mr(e, p->a->mem, 0, NULL, &mr), WIMM_E_INVAL, "0 bytes");
	assert_refused(wimm_reg_mr(e, NULL, 64, NULL, &mr), WIMM_E_INVAL, "64 bytes");
	assert_int_equal(wimm_reg_mr(e, p->a->mem, UINT64_MAX, NULL, &mr), WIMM_E_RANGE);
	assert_int_equal(wimm_reg_mr(e, p->a->mem, (UINT64_C(1) << 63) + 1, NULL, &mr),
	                 WIMM_E_RANGE);
	assert_invalid(wimm_reg_mr(e, p->a->mem, 64, NULL, NULL));
	opts.flags = 1u << 9;
	assert_invalid(wimm_reg_mr(e, p->a->mem, 64, &opts, &mr));
	opts = (struct wimm_mr_opts)WIMM_MR_OPTS_INIT;
	opts.reserved[3] = 1;
	assert_invalid(wimm_reg_mr(e, p->a->mem, 64, &opts, &mr));
	opts = (struct wimm_mr_opts)WIMM_MR_OPTS_INIT;
	opts.size = 0;
	assert_invalid(wimm_reg_mr(e, p->a->mem, 64, &opts, &mr));
	assert_ptr_equal(mr, state); /* outputs are written on success only */
	assert_int_equal(stats_of(p->a).regions, regions);
	/* A source alone has no descriptor. */
	opts = (struct wimm_mr_opts)WIMM_MR_OPTS_INIT;
	opts.flags = WIMM_MR_LOCAL_ONLY;
	assert_ok(wimm_reg_mr(e, p->a->mem, 64, &opts, &mr));
	assert_int_equal(wimm_mr_get_desc(mr, &desc), WIMM_E_UNSUPPORTED);
	assert_invalid(wimm_mr_get_desc(NULL, &desc));
	assert_invalid(wimm_mr_get_desc(mr, NULL));
	assert_invalid(wimm_dereg_mr(p->b->engine, mr, NULL));
	assert_invalid(wimm_dereg_mr(e, NULL, NULL));
	assert_ok(wimm_dereg_mr(e, mr, NULL));
	assert_invalid(wimm_dereg_mr(e, mr, NULL));
	nothing_happened(p);
}

/* Goal: a region is as long as was asked for, to the byte, on both sides. */
static void region_has_the_length_it_was_registered_with(void **state)
{
	static const uint64_t lengths[] = { 1, 63, 4096, 4097 };
	struct both *p = pair_open(8192);

	(void)state;
	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		struct wimm_remote_mr *remote = NULL;
		struct wimm_mr *mr = NULL;
		struct wimm_mr_desc desc;

		assert_ok(wimm_reg_mr(p->b->engine, p->b->mem + 1, lengths[i], NULL, &mr));
		assert_int_equal(wimm_mr_len_bytes(mr), lengths[i]);
		assert_ok(wimm_mr_get_desc(mr, &desc));
		assert_ok(wimm_open_remote_mr(p->a->engine, &desc, &remote));
		assert_int_equal(wimm_remote_mr_len_bytes(remote), lengths[i]);
		assert_ok(wimm_close_remote_mr(p->a->engine, remote));
		assert_ok(wimm_dereg_mr(p->b->engine, mr, NULL));
	}
	assert_int_equal(wimm_mr_len_bytes(p->b->mr), 8192);
	assert_int_equal(wimm_mr_len_bytes(NULL), 0);
	nothing_happened(p);
}

static void never(void *context, const struct wimm_received *received)
{
	(void)context;
	(void)received;
	abort();
}

static void peer_opts_are_looked_at(struct wimm_engine *e, const struct wimm_net_addr *addr)
{
	struct wimm_peer_opts opts = WIMM_PEER_OPTS_INIT;
	wimm_peer peer;

	opts.flags = 1;
	assert_invalid(wimm_add_peer(e, addr, &opts, &peer));
	opts.flags = 0;
	opts.peer_timeout_ms = UINT64_C(1) << 32;
	assert_refused(wimm_add_peer(e, addr, &opts, &peer), WIMM_E_INVAL,
	               "4294967296; allowed are 0..4294967295");
}

/* Goal: a send, receive buffers, expectations and the small calls refuse what they must. */
static void small_calls_refuse_bad_arguments(void **state)
{
	struct both *p = pair_open(64);
	struct wimm_engine *e = p->a->engine;
	struct wimm_send s = WIMM_SEND_INIT;
	struct wimm_recv_buffer buffer = { NULL, 8 };
	struct wimm_expect_opts opts = WIMM_EXPECT_OPTS_INIT;
	struct wimm_owes owes = { wimm_remote_mr_peer(p->to), 2 };
	struct wimm_engine_stats stats = WIMM_ENGINE_STATS_INIT;
	struct wimm_uvm_watcher *watcher;
	struct wimm_error_info info;
	uint8_t big[70000];
	wimm_peer peer;

	(void)state;
	memset(big, 1, sizeof(big));
	s.peer = wimm_remote_mr_peer(p->to);
	s.len_bytes = 8;
	assert_invalid(wimm_submit_send(e, &s, NULL, NULL));
	s.data = big;
	s.flags = WIMM_IMM;
	assert_invalid(wimm_submit_send(e, &s, NULL, NULL));
	s.flags = 0;
	s.len_bytes = sizeof(big);
	assert_refused(wimm_submit_send(e, &s, NULL, NULL), WIMM_E_TOO_LONG, "70000");
	s.len_bytes = 8;
	s.peer = 0;
	assert_int_equal(wimm_submit_send(e, &s, NULL, NULL), WIMM_E_PEER_LOST);
	s.size = 0;
	assert_invalid(wimm_submit_send(e, &s, NULL, NULL));
	assert_invalid(wimm_submit_recvs(e, &buffer, 1, NULL, NULL, NULL));
	assert_invalid(wimm_submit_recvs(e, NULL, 1, never, NULL, NULL));
	assert_invalid(wimm_submit_recvs(e, &buffer, 0, never, NULL, NULL));
	/* No address, but a length; too many. */
	assert_invalid(wimm_submit_recvs(e, &buffer, 1, never, NULL, NULL));
	assert_invalid(wimm_submit_recvs(e, &buffer, 65537, never, NULL, NULL));
	opts.owes = &owes;
	opts.owes_count = 1;
	assert_refused(wimm_expect_imm_count(e, 1, 1, &opts, NULL, NULL), WIMM_E_INVAL, "owe");
	owes = (struct wimm_owes){ 12345, 1 };
	assert_int_equal(wimm_expect_imm_count(e, 1, 1, &opts, NULL, NULL), WIMM_E_NOT_FOUND);
	opts.owes = NULL;
	assert_invalid(wimm_expect_imm_count(e, 1, 1, &opts, NULL, NULL));
	opts = (struct wimm_expect_opts)WIMM_EXPECT_OPTS_INIT;
	opts.flags = 1;
	assert_invalid(wimm_expect_imm_count(e, 1, 1, &opts, NULL, NULL));
	opts.flags = 0;
	opts.reserved[2] = 1;
	assert_invalid(wimm_expect_imm_count(e, 1, 1, &opts, NULL, NULL));
	assert_invalid(wimm_poll_imm(e, 1, NULL));
	assert_invalid(wimm_poll_imm(NULL, 1, NULL));
	stats.size = 4;
	assert_invalid(wimm_engine_get_stats(e, &stats));
	assert_invalid(wimm_engine_get_stats(e, NULL));
	assert_invalid(wimm_main_address(e, NULL));
	assert_invalid(wimm_add_peer(e, NULL, NULL, &peer));
	peer_opts_are_looked_at(e, &p->b->addr);
	assert_int_equal(wimm_peer_last_error(e, wimm_remote_mr_peer(p->to), &info),
	                 WIMM_E_NOT_FOUND);
	assert_invalid(wimm_peer_last_error(e, wimm_remote_mr_peer(p->to), NULL));
	assert_invalid(wimm_alloc_uvm_watcher(e, NULL, NULL, &watcher));
	assert_invalid(wimm_free_uvm_watcher(NULL));
	assert_invalid(wimm_uvm_watcher_arm(NULL, 1));
	assert_invalid(wimm_cancel(NULL, 1));
	assert_invalid(wimm_progress(cfg.driven ? NULL : e, NULL));
	nothing_happened(p);
}

/* Goal: an open that cannot be is refused in words, and *out is left alone. */
static void open_with_bad_options_is_refused(void **state)
{
	struct wimm_engine *mark = (struct wimm_engine *)state, *e = mark;
	struct wimm_engine_opts o = node_opts();

	o.flags = 1;
	assert_invalid(wimm_engine_open(&o, &e));
	o = node_opts();
	o.reserved[5] = 1;
	assert_invalid(wimm_engine_open(&o, &e));
	o = node_opts();
	o.size = 1;
	assert_invalid(wimm_engine_open(&o, &e));
	o = node_opts();
	o.progress = (wimm_progress_mode)2;
	assert_invalid(wimm_engine_open(&o, &e));
	o = node_opts();
	o.max_ops = (1u << 24) + 1;
	assert_refused(wimm_engine_open(&o, &e), WIMM_E_INVAL, "max_ops");
	o = node_opts();
	o.provider = "carrier-pigeon";
	assert_refused(wimm_engine_open(&o, &e), WIMM_E_NOT_FOUND, "carrier-pigeon");
	o = node_opts();
	o.nics = "";
	assert_int_equal(wimm_engine_open(&o, &e), WIMM_E_PARSE);
	o.nics = "any,,any";
	assert_int_equal(wimm_engine_open(&o, &e), WIMM_E_PARSE);
	o.nics = "no such interface";
	assert_true(wimm_engine_open(&o, &e) < 0);
	assert_non_null(strstr(wimm_last_error_text(), "no such interface"));
	assert_invalid(wimm_engine_open(&o, NULL));
	assert_ptr_equal(e, mark);
}

static const struct contract_case cases[] = {
	CASE(write_out_of_bounds_case_53_is_refused),
	CASE(write_up_to_the_last_byte_case_53_is_accepted),
	CASE(page_index_out_of_range_case_55_is_refused),
	CASE(page_of_a_kept_list_out_of_range_is_refused),
	CASE(page_lists_of_unequal_length_case_58_are_refused),
	CASE(page_overlap_by_stride_case_59_is_refused),
	CASE(region_that_cannot_be_is_refused),
	CASE(region_has_the_length_it_was_registered_with),
	CASE(small_calls_refuse_bad_arguments),
	CASE(open_with_bad_options_is_refused),
};
GROUP(args, cases);
