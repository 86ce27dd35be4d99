/* SPDX-License-Identifier: Apache-2.0 */
/* Which heads a decode rank gets from which prefill rank, in how many writes. Both sides call this
 * and nothing else to know how many immediates a request has. */
#include "kv/map.h"
#include "kv/layout.h"

#include <inttypes.h>

/* Whether `heads` heads of a unit's part are one run: head by head, and within it token by
 * token. */
static bool run_by_head(const struct wimm_kv_layout *l, uint32_t tokens, uint32_t heads)
{
	uint64_t row = kv_layout_row_bytes(l);

	return (tokens == 1 || l->token_stride_bytes == row) &&
	       (heads == 1 || l->head_stride_bytes == row * tokens);
}

/* The same, token by token, and within it head by head. */
static bool run_by_token(const struct wimm_kv_layout *l, uint32_t tokens, uint32_t heads)
{
	uint64_t row = kv_layout_row_bytes(l);

	return (heads == 1 || l->head_stride_bytes == row) &&
	       (tokens == 1 || l->token_stride_bytes == row * heads);
}

struct kv_cut kv_map_cut(const struct wimm_kv_layout *p, const struct wimm_kv_layout *d,
                         uint32_t heads)
{
	uint64_t row = kv_layout_row_bytes(p);
	uint32_t tokens = wimm_kv_unit_tokens(p, d);
	struct kv_cut cut = { false, false };

	if ((run_by_head(p, tokens, heads) && run_by_head(d, tokens, heads)) ||
	    (run_by_token(p, tokens, heads) && run_by_token(d, tokens, heads)))
		return cut;
	if (tokens == 1 || (p->token_stride_bytes == row && d->token_stride_bytes == row)) {
		cut.by_head = true;
		return cut;
	}
	cut.by_token = true;
	cut.by_head = heads > 1 && (p->head_stride_bytes != row || d->head_stride_bytes != row);
	return cut;
}

static void measure(const struct wimm_kv_layout *p, const struct wimm_kv_layout *d,
                    struct wimm_kv_segment *s)
{
	struct kv_cut cut = kv_map_cut(p, d, s->heads);
	uint32_t tokens = wimm_kv_unit_tokens(p, d);

	s->pieces = (cut.by_head ? s->heads : 1) * (cut.by_token ? tokens : 1);
	s->piece_bytes =
		kv_layout_row_bytes(p) * (cut.by_head ? 1 : s->heads) * (cut.by_token ? 1 : tokens);
	s->reserved = 0;
}

bool kv_map_next(const struct wimm_kv_layout *p, const struct wimm_kv_layout *d,
                 struct kv_map_step *step, struct wimm_kv_segment *out)
{
	struct kv_heads dst = kv_layout_heads(d, d->tp_rank);
	struct kv_heads src = kv_layout_heads(p, 0);
	uint32_t head = dst.first + step->next_head;
	uint32_t left = dst.count - step->next_head;

	if (left == 0)
		return false;
	if (p->kind == WIMM_KV_MLA) {
		/* Every rank has all of it; the decode ranks spread over the prefill ranks. */
		out->src_rank = d->tp_rank % p->tp;
		out->src_head = 0;
	} else {
		/* Of the ranks that hold the same head, the decode ranks take turns. */
		out->src_rank = head / src.count * src.copies + d->tp_rank % src.copies;
		out->src_head = head % src.count;
	}
	out->dst_head = step->next_head;
	out->heads = src.count - out->src_head < left ? src.count - out->src_head : left;
	measure(p, d, out);
	step->next_head += out->heads;
	return true;
}

bool kv_map_from(const struct wimm_kv_layout *p, const struct wimm_kv_layout *d, uint32_t src_rank,
                 struct wimm_kv_segment *out)
{
	struct kv_map_step step = { 0 };

	/* Both sides' heads are ranges, so two ranks have one range in common at most. */
	while (kv_map_next(p, d, &step, out))
		if (out->src_rank == src_rank)
			return true;
	return false;
}

struct kv_units kv_map_units(const struct wimm_kv_layout *p, const struct wimm_kv_layout *d,
                             uint64_t first_token, uint64_t tokens)
{
	struct kv_units u = { .tokens = wimm_kv_unit_tokens(p, d) };

	u.whole = (tokens - first_token) / u.tokens;
	u.last_tokens = (uint32_t)((tokens - first_token) % u.tokens);
	return u;
}

uint64_t kv_map_groups(const struct kv_units *units, uint64_t group)
{
	return units->whole / group + (units->whole % group != 0) + (units->last_tokens != 0);
}

wimm_status wimm_kv_map(const struct wimm_kv_layout *p, const struct wimm_kv_layout *d,
                        struct wimm_kv_segment *out, uint32_t room, uint32_t *out_count,
                        struct wimm_error_info *error)
{
	wimm_status st = wimm_kv_compare(p, d, error);
	struct kv_map_step step = { 0 };
	struct wimm_kv_segment segment;
	uint32_t count = 0;

	if (st != WIMM_OK)
		return st;
	if (out_count == NULL || (out == NULL && room != 0))
		return kv_error(error, WIMM_E_INVAL, "kv map: no place for the result");
	while (kv_map_next(p, d, &step, &segment)) {
		if (count < room)
			out[count] = segment;
		count++;
	}
	*out_count = count;
	if (count <= room)
		return WIMM_OK;
	return kv_error(error, WIMM_E_LIMIT, "kv map: %" PRIu32 " segments, room for %" PRIu32,
	                count, room);
}

wimm_status wimm_kv_count(const struct wimm_kv_layout *p, const struct wimm_kv_layout *d,
                          uint64_t units, int tail, uint32_t src_rank, uint64_t *out,
                          struct wimm_error_info *error)
{
	wimm_status st = wimm_kv_compare(p, d, error);
	struct kv_map_step step = { 0 };
	struct wimm_kv_segment s;
	uint32_t lead = 0;
	uint64_t a_unit = 0; /* of one layer and part */
	uint64_t count;
	bool counts_lead;

	if (st != WIMM_OK)
		return st;
	if (out == NULL || (src_rank >= p->tp && src_rank != WIMM_KV_ALL_RANKS))
		return kv_error(error, WIMM_E_INVAL,
		                "kv count: no result, or rank %" PRIu32 " of %" PRIu32, src_rank,
		                p->tp);
	while (kv_map_next(p, d, &step, &s)) {
		if (s.dst_head == 0)
			lead = s.src_rank;
		if (src_rank == s.src_rank || src_rank == WIMM_KV_ALL_RANKS)
			a_unit += s.pieces;
	}
	counts_lead = src_rank == lead || src_rank == WIMM_KV_ALL_RANKS;
	/* The sum over the heads times the tokens of a unit stays below 2^28, layers and parts
	 * below 2^13: only the units can take it too far. */
	if (__builtin_mul_overflow(a_unit * p->layers * kv_layout_parts(p), units, &count) ||
	    count > INT64_MAX - 1)
		return kv_error(error, WIMM_E_LIMIT,
		                "kv count: %" PRIu64 " units make more than 2^63 writes", units);
	if (counts_lead && (tail != 0 || units == 0))
		count++;
	*out = count;
	return WIMM_OK;
}

wimm_status kv_map_count(const struct wimm_kv_layout *prefill, const struct wimm_kv_request *r,
                         uint32_t src_rank, uint64_t *out, struct wimm_error_info *error)
{
	struct kv_units units = kv_map_units(prefill, &r->decode, r->first_token, r->tokens);

	return wimm_kv_count(prefill, &r->decode, kv_map_groups(&units, r->group_units),
	                     r->tail != 0, src_rank, out, error);
}
