/* SPDX-License-Identifier: Apache-2.0 */
/* The unit in which the prompt ends. It counts as many immediates as any other, since the other
 * side counts without looking at tokens, but writes only the tokens that there are:
 *   one run a part, token by token:  one shorter piece
 *   one run a part, head by head:    a piece a head, one immediate for all of them
 *   a piece a head:                  shorter pieces
 *   a piece a token:                 those that there are, and empty ones for the rest */
#include "kv/plan_end.h"
#include "kv/layout.h"

#include <string.h>

static bool one_run_by_token(const struct kv_job *j, struct kv_cut cut)
{
	uint64_t run = kv_layout_row_bytes(j->src) * j->segment->heads;

	if (cut.by_head || cut.by_token)
		return false;
	return j->segment->heads == 1 || j->units.tokens == 1 ||
	       (j->src->token_stride_bytes == run && j->dst->token_stride_bytes == run);
}

uint64_t kv_plan_end_counts(const struct kv_job *j)
{
	if (j->units.last_tokens == 0)
		return 0;
	return j->segment->heads > j->units.tokens ? j->segment->heads : j->units.tokens;
}

/* Of a part: pieces that there are take a call a head where tokens are pieces, else one. */
static uint32_t full_calls(const struct kv_end *e)
{
	return e->cut.by_token && e->cut.by_head ? e->heads : 1;
}

/* And the empty ones, as many again. */
static uint32_t part_calls(const struct kv_end *e)
{
	return full_calls(e) * (e->cut.by_token ? 2 : 1);
}

void kv_plan_end_init(struct kv_end *e, const struct kv_job *j)
{
	uint64_t dst_at = j->units.whole * j->units.tokens;

	if (j->units.last_tokens == 0)
		return;
	e->tokens = j->units.last_tokens;
	e->unit_tokens = j->units.tokens;
	e->heads = j->segment->heads;
	e->cut = kv_map_cut(j->src, j->dst, j->segment->heads);
	e->by_token = one_run_by_token(j, e->cut);
	e->row_bytes = kv_layout_row_bytes(j->src);
	e->src.part_bytes = j->src->part_stride_bytes;
	e->src.head_bytes = j->src->head_stride_bytes;
	e->src.token_bytes = j->src->token_stride_bytes;
	e->src.offset_bytes = j->src->offset_bytes + j->segment->src_head * e->src.head_bytes;
	e->dst.part_bytes = j->dst->part_stride_bytes;
	e->dst.head_bytes = j->dst->head_stride_bytes;
	e->dst.token_bytes = j->dst->token_stride_bytes;
	e->dst.offset_bytes =
		j->dst->offset_bytes + j->segment->dst_head * e->dst.head_bytes +
		j->dst_pages[dst_at / j->dst->page_tokens] * j->dst->page_stride_bytes +
		dst_at % j->dst->page_tokens * e->dst.token_bytes;
	e->calls = kv_layout_parts(j->src) * part_calls(e);
}

void kv_plan_end_tell(struct kv_end *e, uint64_t src_bytes)
{
	e->src.offset_bytes += src_bytes;
}

static void fill_tokens(const struct kv_end *e, uint32_t call, struct wimm_paged_writes *out)
{
	uint32_t head = call % full_calls(e);
	bool empty = call >= full_calls(e);

	out->src_pages.offset_bytes += head * e->src.head_bytes;
	out->dst_pages.offset_bytes += head * e->dst.head_bytes;
	if (empty) { /* at the place of the first that there is: nothing is read or written */
		out->src_pages.count = e->unit_tokens - e->tokens;
		return;
	}
	out->src_pages.count = e->tokens;
	out->src_pages.stride_bytes = e->src.token_bytes;
	out->dst_pages.stride_bytes = e->dst.token_bytes;
	out->page_len_bytes = e->row_bytes * (e->cut.by_head ? 1 : e->heads);
}

void kv_plan_end_fill(const struct kv_end *e, uint32_t call, struct wimm_paged_writes *out)
{
	uint32_t part = call / part_calls(e);

	out->src_pages = (struct wimm_pages){ e->count, 1, 0, 0 };
	out->dst_pages = out->src_pages;
	out->src_pages.offset_bytes = e->src.offset_bytes + part * e->src.part_bytes;
	out->dst_pages.offset_bytes = e->dst.offset_bytes + part * e->dst.part_bytes;
	out->page_len_bytes = 0;
	if (e->cut.by_token) {
		fill_tokens(e, call % part_calls(e), out);
		return;
	}
	out->page_len_bytes = e->tokens * e->row_bytes;
	if (e->by_token) {
		out->page_len_bytes *= e->heads;
		return;
	}
	out->src_pages.count = e->heads;
	out->src_pages.stride_bytes = e->src.head_bytes;
	out->dst_pages.stride_bytes = e->dst.head_bytes;
	if (!e->cut.by_head)
		out->flags |= WIMM_IMM_ONCE;
}
