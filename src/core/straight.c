/* SPDX-License-Identifier: Apache-2.0 */
/* The start of an operation's legs. Most of them need no decision: one request each, to a region
 * that stands, on the path that its peer has ready (peer.straight). Those are posted in a row; the
 * others go the long way, through remote.c and post.c.
 * docs/decisions/0021-straight-writes.md has the reasons. */
#include "core/region.h"
#include "core/shard.h"
#include "core/worker.h"

/* Legs from `first` on that need no decision: one request each, on the path that their peer has
 * ready for it. Posted from one template, of which five fields change, and accounted together.
 * Returns the first leg that needs a closer look. */
static uint32_t walk(struct worker *w, struct op *op, uint32_t first) ON_WORKER
{
	static const struct wimm_mr nothing;
	const struct wimm_mr *src = op->src != NULL ? op->src : &nothing;
	const uint64_t longest = shard_straight_bytes(w, op);
	const uint32_t marks = op->flags & WIMM_IMM;
	struct prov_wr wr = { .imm = op->imm };
	struct leg *leg = &op->legs[first];
	struct leg *const end = op->legs + op->leg_count;

	_Static_assert(WIMM_IMM == 1 && PROV_WR_IMM == 1, "one stands for the other, and for one");
	wr.flags = marks;
	wr.token = shard_token(op) | (marks != 0 ? OP_TOKEN_COUNTED : 0);
	for (; leg < end; leg++) {
		struct wimm_remote_mr *r = leg->dst;
		struct path *path;

		if (!remote_takes(r, leg->dst_generation) || leg->path_count != 0 ||
		    leg->len_bytes > longest)
			break;
		path = r->peer->straight;
		if (path == NULL)
			break;
		wr.src = (const uint8_t *)src->addr + leg->src_offset;
		wr.len_bytes = leg->len_bytes;
		wr.local_key = src->key[path->nic];
		wr.remote_addr = r->base + leg->dst_offset;
		wr.remote_key = r->key[path->remote_nic];
		if (path->post(path->prov, &wr, 1) == 0)
			break;
		r->refs++;
		path->outstanding++;
		path->posted_marks += marks;
		leg->op = op;
		leg->held = true;
		leg->state = LEG_POSTED;
		leg->next = 1;
		leg->used = path->bit;
		leg->losses = r->peer->losses;
		if (r->peer->path_count > 1)
			shard_straight_next(r->peer);
	}
	return (uint32_t)(leg - op->legs);
}

static void account(struct worker *w, struct op *op, uint32_t count) ON_WORKER
{
	if (count == 0)
		return;
	if (op->post_ns == 0)
		op->post_ns = w->now_ns;
	op->outstanding += count;
	op->descriptors += count;
	op->legs_open -= count;
	STAT_ADD(w, writes_posted, count);
	if ((op->flags & WIMM_IMM) != 0)
		STAT_ADD(w, imms_sent, count);
}

/* Several NICs have their turns, and lists of pages their plan. */
static bool may_walk(const struct op *op)
{
	return op->kind != OP_PAGED && op->mark == NULL && (op->flags & WIMM_PIN_NIC) == 0;
}

void straight_start(struct worker *w, struct op *op)
{
	bool straight = may_walk(op);

	for (uint32_t i = 0; i < op->leg_count; i++) {
		if (straight) {
			uint32_t n = walk(w, op, i) - i;

			account(w, op, n);
			i += n;
			if (i == op->leg_count)
				return;
		}
		op->legs[i].op = op;
		remote_leg(w, &op->legs[i]);
	}
}
