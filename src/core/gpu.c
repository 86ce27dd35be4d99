/* SPDX-License-Identifier: Apache-2.0 */
#include "core/gpu.h"

#include "core/engine.h"
#include "core/same_host.h"
#include "core/shard.h"

/* One card copies from end to end. Between two of them, and to memory that cannot be mapped, the
 * bytes go through slots. */
static bool same_card(const struct leg *leg)
{
	const struct wimm_mr *src = leg->op->src;

	return src->device >= 0 && leg->dst->gpu && leg->dst->card == src->card &&
	       src->card != WIRE_CARD_NONE;
}

bool gpu_path_fits(const struct worker *w, const struct leg *leg, const struct path *path)
{
	const struct prov_caps *caps = &w->nic[path->nic].caps;
	const struct wimm_mr *src = leg->op->src;

	if (caps->gpu_direct)
		return same_card(leg);
	/* A key of 0: this NIC, or the peer's, does not reach that memory. */
	return caps->gpu_regions && (src->device < 0 || src->key[path->nic] != 0) &&
	       (!leg->dst->gpu || leg->dst->key[path->remote_nic] != 0);
}

/* In this order: the card copies; NICs that reach both ends; slots, where this returns false. */
bool gpu_leg_plan(struct worker *w, struct leg *leg)
{
	struct peer *p = leg->dst->peer;

	leg->as_list = same_card(leg) && leg->op->kind == OP_PAGED && leg->end > 0;
	if (same_card(leg) && shard_plan_gpu(w, p, leg, true)) {
		leg->op->flags |= OP_STAYS;
		return true;
	}
	leg->as_list = false;
	return shard_plan_gpu(w, p, leg, false);
}

const char *gpu_why_not(const struct leg *leg)
{
	return same_card(leg) ? "no path of this peer reaches memory of a GPU, and there are no "
	                        "slots to go through"
	                      : "memory of a GPU at one end, or of two, and there are no slots to "
	                        "go through";
}

/* Everything in flight is counted in these. */
static void account(struct worker *w, struct path *path, struct leg *leg, uint32_t units,
                    bool marks) ON_WORKER
{
	struct op *op = leg->op;

	if (op->post_ns == 0)
		op->post_ns = w->now_ns;
	STAT_ADD(w, writes_posted, leg->end - leg->next);
	leg->next = leg->end;
	leg->used |= 1u << path->index;
	op->outstanding += units;
	op->descriptors += units;
	path->outstanding += units;
	if (!marks)
		return;
	path->posted_marks += units;
	STAT_ADD(w, imms_sent, units);
}

bool gpu_list_post(struct worker *w, struct peer *p, struct leg *leg, uint32_t *out_posted)
{
	struct path *path = &p->path[leg->path_map[0]];
	const struct op *op = leg->op;
	const struct op_paged *pages = &op->paged;
	bool per_page = (op->flags & WIMM_IMM) != 0 && (op->flags & WIMM_IMM_ONCE) == 0;
	struct prov_pages list = {
		.units = per_page ? (uint32_t)pages->count : 1,
		.src_index = pages->indices,
		.dst_index = pages->dst_indices,
		.count = pages->count,
		.src_stride = pages->src_stride,
		.dst_stride = pages->dst_stride,
		.dst_bytes = pages->dst_bytes,
	};

	*out_posted = 0;
	if (path->state != PATH_UP) {
		post_fail_leg(w, leg, WIMM_E_NIC_LOST, "the path of a list of pages was lost");
		return false;
	}
	shard_fill(leg, path, &list.wr, 1);
	list.wr.src = (const uint8_t *)op->src->addr + leg->src_offset;
	list.wr.remote_addr = leg->dst->base + leg->dst_offset;
	list.wr.flags = (op->flags & WIMM_IMM) != 0 ? PROV_WR_IMM : 0;
	list.wr.token &= ~(uint64_t)OP_TOKEN_COUNTED;
	list.wr.token |= list.wr.flags != 0 ? OP_TOKEN_COUNTED : 0;
	path->full = path_ops(w, path)->post_pages(path->prov, &list) == 0;
	if (path->full) {
		p->straight = NULL;
		return true;
	}
	account(w, path, leg, list.units, list.wr.flags != 0);
	*out_posted = 1;
	return true;
}

void gpu_forget(struct worker *w, struct peer *p, uint32_t slot, uint32_t generation)
{
	uint64_t core_key = (uint64_t)generation << 32 | slot;

	for (uint32_t k = 0; k < p->path_count; k++) {
		struct path *path = &p->path[k];

		/* The providers that have it take the core's keys as they are. */
		if (path->state == PATH_UP)
			path_ops(w, path)->forget(path->prov, core_key);
	}
}
