/* SPDX-License-Identifier: Apache-2.0 */
#include "core/shard.h"

#include "base/assert.h"
#include "core/gpu.h"
#include "core/region.h"
#include "core/same_host.h"
#include "core/worker.h"

#include <string.h>

/* Parts of a split write start at multiples of this, so that pages stay whole. */
#define SPLIT_UNIT_BYTES 4096u

static uint64_t div_up(uint64_t a, uint64_t b)
{
	return a / b + (a % b != 0);
}

/* Start of share i of n of a length: shares differ by at most one, none is lost. */
static uint64_t share_start(uint64_t total, uint64_t n, uint64_t i)
{
	uint64_t q = total / n;
	uint64_t r = total % n;

	return i * q + (i < r ? i : r);
}

static uint64_t part_start(uint64_t len_bytes, uint32_t parts, uint32_t i)
{
	uint64_t units = div_up(len_bytes, SPLIT_UNIT_BYTES);
	uint64_t start;

	if (i >= parts)
		return len_bytes;
	start = share_start(units, parts, i) * SPLIT_UNIT_BYTES;
	return start < len_bytes ? start : len_bytes;
}

/* A list of pages is one request, so one path has it all. */
static uint32_t pick_gpu_paths(const struct worker *w, struct peer *p, const struct leg *leg,
                               bool by_card, uint8_t *map)
{
	const struct op *op = leg->op;
	uint32_t n = 0;

	for (uint32_t k = 0; k < p->path_count; k++) {
		const struct path *path = &p->path[(p->next_path + k) % p->path_count];

		if (path->state != PATH_UP || w->nic[path->nic].caps.gpu_direct != by_card ||
		    !gpu_path_fits(w, leg, path) ||
		    ((op->flags & WIMM_PIN_NIC) != 0 && path->nic != op->nic_index))
			continue;
		map[n++] = (uint8_t)path->index;
		if (leg->as_list)
			break;
	}
	return n;
}

static uint32_t pick_paths(struct peer *p, const struct op *op, uint8_t *map)
{
	bool pinned = (op->flags & WIMM_PIN_NIC) != 0;
	uint32_t n = 0;

	if (same_host_up(p) && !pinned) {
		map[0] = (uint8_t)p->host_path;
		return 1;
	}
	for (uint32_t k = 0; k < p->path_count; k++) {
		uint32_t i = p->next_path + k;

		if (i >= p->path_count)
			i -= p->path_count;
		if (p->path[i].state != PATH_UP)
			continue;
		if (pinned && p->path[i].nic != op->nic_index)
			continue;
		map[n++] = (uint8_t)i;
	}
	return n;
}

/* In line: every write comes through here. */
__attribute__((always_inline)) static inline void plan_slice(struct worker *w, struct leg *leg,
                                                             uint32_t paths)
{
	const struct op *op = leg->op;
	uint64_t max = w->max_write_bytes;
	uint64_t longest;
	uint32_t split = 1;
	bool ordered = leg->dst->peer->ordered;

	if (leg->len_bytes <= max && (paths == 1 || leg->len_bytes < w->split_bytes)) {
		leg->pieces = 1;
		leg->path_count = 1;
		leg->run = 1;
		leg->end = 1;
		return;
	}
	if (op->kind == OP_WRITE && leg->len_bytes >= w->split_bytes && paths > 1) {
		uint64_t units = div_up(leg->len_bytes, SPLIT_UNIT_BYTES);

		split = units < paths ? (uint32_t)units : paths;
	}
	longest = split == 1 ? leg->len_bytes
	                     : div_up(div_up(leg->len_bytes, SPLIT_UNIT_BYTES), split) *
	                               SPLIT_UNIT_BYTES;
	leg->pieces = longest <= max ? 1 : (uint32_t)div_up(longest, max);
	leg->path_count = (uint8_t)split;
	leg->run = leg->pieces;
	leg->end = (uint64_t)split * leg->pieces;
	leg->parts = ordered ? split : split * leg->pieces;
}

static void plan_pages(struct worker *w, struct leg *leg, uint32_t paths)
{
	uint64_t share = div_up(leg->end, paths);
	bool ordered = leg->dst->peer->ordered;

	leg->run = share < w->post_batch ? (uint32_t)share : w->post_batch;
	if (leg->run == 0)
		leg->run = 1;
	if ((leg->op->flags & WIMM_IMM_ONCE) != 0) {
		uint64_t used = div_up(leg->end, leg->run);

		if (used < paths)
			paths = (uint32_t)used;
		leg->parts = ordered ? paths : (uint32_t)leg->end;
	}
	leg->path_count = (uint8_t)paths;
}

/* One path and one request: there is nothing to choose. */
static inline bool plan_short(const struct worker *w, struct peer *p, struct leg *leg)
{
	const struct op *op = leg->op;

	if (p->path_count != 1 || op->kind == OP_PAGED || leg->len_bytes > w->max_write_bytes ||
	    p->path[0].state != PATH_UP || (op->flags & WIMM_PIN_NIC) != 0)
		return false;
	leg->path_map[0] = 0;
	leg->path_count = 1;
	leg->pieces = 1;
	leg->run = 1;
	leg->end = 1;
	leg->parts = 1;
	return true;
}

bool shard_plan(struct worker *w, struct peer *p, struct leg *leg)
{
	const struct op *op = leg->op;
	uint32_t paths;

	if (plan_short(w, p, leg))
		return true;
	paths = pick_paths(p, op, leg->path_map);

	if (paths == 0)
		return false;
	leg->parts = 1;
	if (op->kind == OP_PAGED)
		plan_pages(w, leg, paths);
	else
		plan_slice(w, leg, paths);
	if ((op->flags & WIMM_IMM) == 0)
		leg->parts = 1;
	if (leg->parts > 1)
		leg->op_seq = ++p->op_seq;
	p->next_path = (uint32_t)leg->path_map[leg->path_count - 1] + 1;
	if (p->next_path == p->path_count)
		p->next_path = 0;
	return true;
}

/* Nothing about the peer forbids that a new write goes out at once. */
static bool goes_at_once(const struct peer *p)
{
	return p->state == PEER_UP && !p->stopped && !p->hold && p->ending_step == 0;
}

struct path *shard_straight(struct peer *p)
{
	struct path *path;

	if (!goes_at_once(p))
		return NULL;
	if (same_host_up(p))
		return p->path[p->host_path].full ? NULL : &p->path[p->host_path];
	for (uint32_t k = 0; k < p->path_count; k++) {
		path = &p->path[(p->next_path + k) % p->path_count];
		if (path->state == PATH_UP)
			return path->full ? NULL : path;
	}
	return NULL;
}

bool shard_straight_stands(const struct peer *p)
{
	const struct path *path = p->straight;

	return path == NULL || (goes_at_once(p) && path->state == PATH_UP && !path->full &&
	                        (!same_host_up(p) || same_host_is(p, path)));
}

void shard_straight_next(struct peer *p)
{
	p->next_path = p->straight->index + 1 < p->path_count ? p->straight->index + 1 : 0;
	p->straight = shard_straight(p);
}

uint64_t shard_straight_bytes(const struct worker *w, const struct op *op)
{
	uint64_t max = w->max_write_bytes;

	return op->kind == OP_WRITE && w->split_bytes <= max ? w->split_bytes - 1 : max;
}

bool shard_plan_gpu(struct worker *w, struct peer *p, struct leg *leg, bool by_card)
{
	uint32_t paths = pick_gpu_paths(w, p, leg, by_card, leg->path_map);

	if (paths == 0)
		return false;
	leg->parts = 1;
	if (leg->as_list)
		leg->path_count = 1;
	else if (leg->op->kind == OP_PAGED && !by_card)
		plan_pages(w, leg, paths);
	else
		plan_slice(w, leg, paths);
	if ((leg->op->flags & WIMM_IMM) == 0)
		leg->parts = 1;
	if (leg->parts > 1)
		leg->op_seq = ++p->op_seq;
	p->next_path = leg->path_map[leg->path_count - 1];
	return true;
}

/* Requests that share one immediate stay where they were planned: on an ordered path the last one
 * counts for all before it. */
bool shard_any_path(const struct leg *leg)
{
	const struct op *op = leg->op;

	if ((op->flags & (WIMM_PIN_NIC | OP_STAYS)) != 0)
		return false;
	if ((op->flags & WIMM_IMM) == 0)
		return true;
	if (op->kind == OP_PAGED)
		return (op->flags & WIMM_IMM_ONCE) == 0 || leg->end <= 1;
	return leg->end <= 1;
}

/* Whether page i is the last one that goes to its path. */
static bool last_on_path(const struct leg *leg, uint64_t i)
{
	uint64_t turn = i / leg->run;
	uint64_t next_turn = turn + leg->path_count;

	if (next_turn * leg->run < leg->end)
		return false;
	return i + 1 == leg->end || (i + 1) % leg->run == 0;
}

static void count_flags(const struct leg *leg, bool last, bool ordered, struct prov_wr *wr)
{
	bool counts = !ordered || last;

	if (leg->parts <= 1) {
		if (last)
			wr->flags = PROV_WR_IMM;
	} else if (counts) {
		wr->flags = PROV_WR_PART;
		wr->parts = leg->parts;
		wr->op_seq = leg->op_seq;
	}
}

static void fill_page(const struct leg *leg, uint64_t i, struct prov_wr *wr)
{
	const struct op *op = leg->op;
	const struct op_paged *pages = &op->paged;

	wr->src = (const uint8_t *)op->src->addr + leg->src_offset +
	          pages->indices[i] * pages->src_stride;
	wr->remote_addr = leg->dst->base + leg->dst_offset +
	                  pages->dst_indices[i] * pages->dst_stride;
	wr->len_bytes = pages->page_len_bytes;
	if (pages->merged)
		wr->len_bytes *= pages->indices[2 * pages->count + i];
	if ((op->flags & WIMM_IMM) == 0)
		return;
	if ((op->flags & WIMM_IMM_ONCE) == 0)
		wr->flags = PROV_WR_IMM;
	else
		count_flags(leg, leg->parts > 1 ? last_on_path(leg, i) : i + 1 == leg->end,
		            leg->dst->peer->ordered, wr);
}

static void fill_slice(const struct leg *leg, uint64_t i, struct prov_wr *wr)
{
	const struct op *op = leg->op;
	uint64_t piece = 0;
	uint64_t from = 0;
	uint64_t to = leg->len_bytes;

	if (leg->end > 1) {
		uint32_t part = (uint32_t)(i / leg->pieces);
		uint64_t start = part_start(leg->len_bytes, leg->path_count, part);
		uint64_t len = part_start(leg->len_bytes, leg->path_count, part + 1) - start;

		piece = i % leg->pieces;
		from = start + share_start(len, leg->pieces, piece);
		to = start + share_start(len, leg->pieces, piece + 1);
	}
	if (op->src != NULL)
		wr->src = (const uint8_t *)op->src->addr + leg->src_offset + from;
	wr->remote_addr = leg->dst->base + leg->dst_offset + from;
	wr->len_bytes = to - from;
	if ((op->flags & WIMM_IMM) != 0)
		count_flags(leg, piece + 1 == leg->pieces, leg->dst->peer->ordered, wr);
}

void shard_fill(const struct leg *leg, const struct path *path, struct prov_wr *wr,
                uint32_t count)
{
	const struct op *op = leg->op;
	uint64_t token = shard_token(op);
	uint64_t local_key = op->src != NULL ? op->src->key[path->nic] : 0;
	uint64_t remote_key = leg->dst->key[path->remote_nic];

	for (uint32_t k = 0; k < count; k++) {
		memset(&wr[k], 0, sizeof(wr[k]));
		wr[k].local_key = local_key;
		wr[k].remote_key = remote_key;
		wr[k].imm = op->imm;
		if (op->kind == OP_PAGED)
			fill_page(leg, leg->next + k, &wr[k]);
		else
			fill_slice(leg, leg->next + k, &wr[k]);
		wr[k].token = token | (wr[k].flags != 0 ? OP_TOKEN_COUNTED : 0);
	}
	if (op->src != NULL && op->src->device >= 0)
		for (uint32_t k = 0; k < count; k++)
			wr[k].flags |= PROV_WR_GPU;
}
