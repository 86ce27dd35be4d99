/* SPDX-License-Identifier: Apache-2.0 */
/* Asking engines for operations, and their callbacks. */
#include "run.h"

#include <stdio.h>
#include <string.h>

#define TRIES_MAX 400u

/* What a message carries ahead of its bytes. */
struct msg_head {
	uint32_t rec;
	uint32_t from, to;
	uint32_t len;
};

static void on_done(void *context, const struct wimm_done *done)
{
	struct rec *rec = context;
	struct run *run = rec->run;

	rec_settled(run, rec, done);
	if (rec->chain != NONE && !run->node[rec->node].closing && !run->ending)
		rec_submit(run, rec->chain, 0); /* from inside the callback */
}

/* --- the calls, one a kind --- */

static struct wimm_remote_mr *slot_remote(struct run *run, const struct rec *rec, uint32_t i)
{
	const struct slot *s = &run->slot[rec->slot + i];

	if (!node_alive(run, s->node) || run->node[s->node].region[s->mr].life != s->mr_life)
		return NULL;
	return remote_get(run, rec->node, s->node, s->mr);
}

/* By a descriptor from before the region was registered anew, to a place that nobody else uses. */
static wimm_status submit_stale(struct run *run, struct rec *rec, const struct wimm_on_done *done)
{
	struct node *n = &run->node[rec->node];
	struct wimm_write wr = WIMM_WRITE_INIT;

	wr.dst = rec->stale;
	wr.src = n->source;
	wr.len_bytes = 48;
	wr.dst_offset_bytes = MR_BYTES - 64;
	return wimm_submit_single_write(n->engine, &wr, done, &rec->op);
}

static wimm_status submit_single(struct run *run, struct rec *rec, const struct wimm_on_done *done)
{
	struct node *n = &run->node[rec->node];
	const struct slot *s = &run->slot[rec->slot];
	struct wimm_write wr = WIMM_WRITE_INIT;

	wr.dst = slot_remote(run, rec, 0);
	if (!wr.dst)
		return WIMM_E_REVOKED;
	wr.flags = rec->flags;
	wr.imm = rec->imm;
	wr.nic_index = rec->index % n->nics;
	wr.src = n->source;
	wr.src_offset_bytes = s->src_off;
	wr.dst_offset_bytes = s->off;
	wr.len_bytes = s->len;
	wr.deadline_us = rec->deadline_us;
	return wimm_submit_single_write(n->engine, &wr, done, &rec->op);
}

static wimm_status submit_paged(struct run *run, struct rec *rec, const struct wimm_on_done *done)
{
	struct node *n = &run->node[rec->node];
	const struct slot *first = &run->slot[rec->slot];
	struct wimm_paged_writes wr = WIMM_PAGED_WRITES_INIT;
	static uint32_t src[512], dst[512];
	uint32_t stride =
		rec->slot_count > 1 ? run->slot[rec->slot + 1].off - first->off : first->len;

	wr.dst = slot_remote(run, rec, 0);
	if (!wr.dst)
		return WIMM_E_REVOKED;
	for (uint32_t i = 0; i < rec->slot_count; i++)
		dst[i] = i;
	rng_shuffle_u32(&run->rng, dst, rec->slot_count);
	for (uint32_t i = 0; i < rec->slot_count; i++)
		src[i] = (run->slot[rec->slot + dst[i]].src_off - rec->src_off) / rec->src_stride;
	wr.flags = rec->flags;
	wr.imm = rec->imm;
	wr.nic_index = rec->index % n->nics;
	wr.src = n->source;
	wr.src_pages = (struct wimm_pages){ src, rec->slot_count, rec->src_stride, rec->src_off };
	wr.dst_pages = (struct wimm_pages){ dst, rec->slot_count, stride ? stride : 1, first->off };
	wr.page_len_bytes = first->len;
	wr.deadline_us = rec->deadline_us;
	return wimm_submit_paged_writes(n->engine, &wr, done, &rec->op);
}

static wimm_status submit_scatter(struct run *run, struct rec *rec, const struct wimm_on_done *done)
{
	struct node *n = &run->node[rec->node];
	struct wimm_scatter sc = WIMM_SCATTER_INIT;
	struct wimm_scatter_entry entry[NODES_MAX];

	for (uint32_t i = 0; i < rec->slot_count; i++) {
		const struct slot *s = &run->slot[rec->slot + i];

		entry[i].dst = slot_remote(run, rec, i);
		if (!entry[i].dst)
			return WIMM_E_REVOKED;
		entry[i].src_offset_bytes = s->src_off;
		entry[i].dst_offset_bytes = s->off;
		entry[i].len_bytes = s->len;
	}
	sc.flags = rec->flags;
	sc.imm = rec->imm;
	sc.nic_index = rec->index % n->nics;
	sc.src = n->source;
	sc.entries = entry;
	sc.count = rec->slot_count;
	sc.deadline_us = rec->deadline_us;
	return wimm_submit_scatter(n->engine, &sc, done, &rec->op);
}

static void message_fill(struct run *run, const struct rec *rec, uint8_t *out)
{
	struct msg_head head = { rec->index, rec->node, rec->to, rec->len };

	(void)run;
	memcpy(out, &head, sizeof(head));
	memcpy(out + sizeof(head), payload(rec->index), rec->len - sizeof(head));
}

static wimm_status submit_send(struct run *run, struct rec *rec, const struct wimm_on_done *done)
{
	struct node *n = &run->node[rec->node];
	struct wimm_send send = WIMM_SEND_INIT;
	uint8_t bytes[MSG_BYTES];
	wimm_status st;

	struct wimm_net_addr addr = run->node[rec->to].addr;

	if (!node_alive(run, rec->to))
		return WIMM_E_PEER_LOST;
	if (rec->flags != 0 && rec->tries == 0) /* whoever answers there */
		memset(addr.bytes + 4, 0, WIMM_INSTANCE_BYTES);
	st = wimm_add_peer(n->engine, &addr, NULL, &send.peer);
	if (st != WIMM_OK)
		return st;
	message_fill(run, rec, bytes);
	send.data = bytes;
	send.len_bytes = rec->len;
	send.deadline_us = rec->deadline_us;
	st = wimm_submit_send(n->engine, &send, done, &rec->op);
	memset(bytes, BYTE_SETTLED, sizeof(bytes)); /* it was copied */
	return st;
}

/* What each sender contributes to a group, as its receiver may say it. */
static uint64_t owes_fill(struct run *run, const struct rec *rec, struct wimm_owes *owes)
{
	struct node *n = &run->node[rec->node];
	uint64_t count[NODES_MAX] = { 0 }, used = 0;

	for (uint32_t i = run->group[rec->group].slot; i != NONE; i = run->slot[i].next_in_group)
		count[run->rec[run->slot[i].rec].node] += run->slot[i].imms;
	for (uint32_t s = 0; s < run->nodes; s++) {
		if (count[s] == 0 || s == rec->node || !node_alive(run, s) ||
		    wimm_add_peer(n->engine, &run->node[s].addr, NULL, &owes[used].peer) != WIMM_OK)
			continue;
		owes[used++].count = count[s];
	}
	return used;
}

static wimm_status submit_expect(struct run *run, struct rec *rec, const struct wimm_on_done *done)
{
	struct wimm_expect_opts opts = WIMM_EXPECT_OPTS_INIT;
	struct wimm_owes owes[NODES_MAX];

	opts.deadline_us = rec->deadline_us;
	if (rec->flags != 0) { /* with what everybody owes */
		opts.owes_count = owes_fill(run, rec, owes);
		opts.owes = opts.owes_count ? owes : NULL;
	}
	return wimm_expect_imm_count(run->node[rec->node].engine, run->group[rec->group].imm,
	                             rec->count, &opts, done, &rec->op);
}

static wimm_status submit(struct run *run, struct rec *rec)
{
	struct wimm_on_done done = { .fn = on_done, .context = rec };

	if (rec->index % 4 == 0)
		done.flag = &rec->flag;
	switch (rec->kind) {
	case REC_SINGLE:
		return rec->stale ? submit_stale(run, rec, &done) : submit_single(run, rec, &done);
	case REC_PAGED:
		return submit_paged(run, rec, &done);
	case REC_SCATTER:
		return submit_scatter(run, rec, &done);
	case REC_SEND:
		return submit_send(run, rec, &done);
	case REC_EXPECT:
		return submit_expect(run, rec, &done);
	case REC_RETIRE:
		return wimm_retire_imm(run->node[rec->node].engine, run->group[rec->group].imm,
		                       &done, &rec->op);
	case REC_FENCE:
		return fence_submit(run, rec, &done);
	default:
		return WIMM_E_INVAL;
	}
}

/* --- submission as a caller does it --- */

static bool refusal_allowed(struct run *run, const struct rec *rec, wimm_status st)
{
	if (rec->excused || st == WIMM_E_REVOKED)
		return true; /* the region is gone, as the harness knows */
	/* Peers dialled in vain keep their places until their program has heard of their end. */
	if (st == WIMM_E_LIMIT && rec->kind == REC_SEND)
		return run->node[rec->node].lazy_ns != 0;
	if (st != WIMM_E_PEER_LOST && st != WIMM_E_NOT_FOUND)
		return false;
	if (rec->kind == REC_SEND)
		return !pair_clean(run, rec->node, rec->to) || run->node[rec->to].life != 0;
	for (uint32_t i = 0; i < rec->slot_count; i++) {
		uint32_t to = run->slot[rec->slot + i].node;

		if (!pair_clean(run, rec->node, to) || run->node[to].life != 0)
			return true;
	}
	return rec->kind == REC_EXPECT;
}

/* In worlds without cancel giving up a write costs its paths, and so others' writes. */
static void spoil_for_fence(struct run *run, const struct rec *rec)
{
	if (!run->cfg.no_cancel || rec->kind > REC_SCATTER)
		return;
	for (uint32_t i = 0; i < rec->slot_count; i++)
		pair_spoil(run, rec->node, run->slot[rec->slot + i].node);
}

static void deadline_passed(struct run *run, uint32_t index, uint32_t unused)
{
	(void)unused;
	if (run->rec[index].state == REC_ACCEPTED)
		spoil_for_fence(run, &run->rec[index]);
}

/* While a node closes, time goes on without actions. */
void deadlines_look(struct run *run)
{
	for (uint32_t i = 0; i < run->recs; i++)
		if (run->rec[i].deadline_us != 0 &&
		    run->rec[i].submit_ns + run->rec[i].deadline_us * US <= run_now(run))
			deadline_passed(run, i, 0);
}

static void tell_accepted(struct run *run, const struct rec *rec)
{
	static const char *const kinds[REC_KINDS] = { "write", "pages",  "scatter", "barrier",
		                                      "send",  "expect", "retire",  "dereg",
		                                      "recvs", "fence" };

	if (!run->verbose)
		return;
	if (rec->kind == REC_FENCE)
		say(run, "node %u: rec %u fences node %u%s within %u us", rec->node, rec->index,
		    rec->to, rec->flags ? " now" : "", (unsigned)rec->count);
	else if (rec->group != NONE)
		say(run, "node %u: rec %u %s of imm %#x, count %u", rec->node, rec->index,
		    kinds[rec->kind], run->group[rec->group].imm, (unsigned)rec->count);
	else
		say(run, "node %u: rec %u %s%s%s, deadline %u us", rec->node, rec->index,
		    kinds[rec->kind], rec->flags & WIMM_CONFIRMED ? ", confirmed" : "",
		    rec->flags & WIMM_IMM_ONCE ? ", once" : "", (unsigned)rec->deadline_us);
	for (uint32_t i = 0; i < rec->slot_count; i++) {
		const struct slot *s = &run->slot[rec->slot + i];

		say(run, "    to node %u region %u, %u bytes at %u, %u x imm %#x", s->node, s->mr,
		    s->len, s->off, s->imms, rec->imm);
	}
}

void rec_submit(struct run *run, uint32_t index, uint32_t unused)
{
	struct rec *rec = &run->rec[index];
	struct node *n = &run->node[rec->node];
	wimm_status st;

	(void)unused;
	if (rec->state != REC_PLANNED)
		return;
	if (!node_alive(run, rec->node) || n->life != rec->life || run_now(run) > run->end_ns) {
		rec_abandoned(run, rec);
		return;
	}
	if (n->frozen) { /* its program stands still, too */
		run_at(run, run_now(run) + 100 * US, rec_submit, index, 0);
		return;
	}
	st = submit(run, rec);
	if (st == WIMM_AGAIN && ++rec->tries < TRIES_MAX) {
		run_at(run, run_now(run) + draw(run, 1, 40) * US, rec_submit, index, 0);
		return;
	}
	if (st != WIMM_OK) {
		if (st != WIMM_AGAIN && !refusal_allowed(run, rec, st))
			broken(run, "node %u: rec %u refused with %s: %s", rec->node, index,
			       wimm_status_name(st), wimm_last_error_text());
		rec_abandoned(run, rec);
		return;
	}
	rec_accepted(run, rec);
	tell_accepted(run, rec);
	if (rec->deadline_us != 0)
		run_at(run, rec->submit_ns + rec->deadline_us * US, deadline_passed, index, 0);
}

void rec_cancel(struct run *run, struct rec *rec)
{
	struct node *n = &run->node[rec->node];
	wimm_status st;

	if (rec->state != REC_ACCEPTED || !node_acts(run, rec->node) || rec->op == 0)
		return;
	spoil_for_fence(run, rec);
	st = wimm_cancel(n->engine, rec->op);
	say(run, "node %u: rec %u cancel, %s", rec->node, rec->index, wimm_status_name(st));
	if (st == WIMM_OK && rec->cancel_ns == 0) {
		rec->cancel_ns = run_now(run) | 1;
		run->stats.pattern[PATTERN_CANCEL]++;
	} else if (st != WIMM_OK && st != WIMM_E_NOT_FOUND) {
		broken(run, "node %u: cancel of rec %u refused with %s", rec->node, rec->index,
		       wimm_status_name(st));
	}
}

/* --- receiving --- */

static void message_check(struct run *run, struct node *n, const struct wimm_received *r)
{
	struct msg_head head;
	struct rec *rec;

	if (r->len_bytes < sizeof(head))
		broken(run, "node %u: a message of %u bytes that nobody sent", n->index,
		       (unsigned)r->len_bytes);
	memcpy(&head, r->addr, sizeof(head));
	rec = head.rec < run->recs ? &run->rec[head.rec] : NULL;
	if (!rec || rec->kind != REC_SEND || head.to != n->index || head.len != r->len_bytes ||
	    rec->len != r->len_bytes || head.from != rec->node ||
	    memcmp((uint8_t *)r->addr + sizeof(head), payload(head.rec), head.len - sizeof(head)))
		broken(run, "node %u: a message arrived damaged or at the wrong node", n->index);
	if (++rec->delivered > 1)
		broken(run, "node %u: message rec %u arrived twice", n->index, head.rec);
	memset(r->addr, BYTE_POISON, MSG_BYTES < r->len_bytes ? MSG_BYTES : r->len_bytes);
}

static void on_received(void *context, const struct wimm_received *r)
{
	struct node *n = context;
	struct run *run = n->run;

	if (r->status == WIMM_OK) {
		message_check(run, n, r);
		return;
	}
	for (uint32_t i = 0; i < n->pools; i++) {
		for (uint32_t k = 0; k < n->pool[i].count; k++) {
			if (r->addr != n->pool[i].mem[k])
				continue;
			if (n->pool[i].returned[k])
				broken(run, "node %u: a receive buffer came back twice", n->index);
			n->pool[i].returned[k] = true;
			n->pool[i].back++;
			return;
		}
	}
	broken(run, "node %u: a receive buffer came back that was not given", n->index);
}

void recvs_submit(struct run *run, uint32_t index, uint32_t unused)
{
	struct node *n = &run->node[index];
	struct wimm_recv_buffer buffers[8];
	struct pool *pool;
	wimm_op op;

	(void)unused;
	if (!node_acts(run, index) || n->pools == POOLS_MAX)
		return;
	pool = &n->pool[n->pools];
	memset(pool, 0, sizeof(*pool));
	pool->count = (uint32_t)draw(run, 1, 6);
	/* The first pool takes everything, so that every message meets a buffer in the end. */
	pool->len = n->pools == 0 || chance(run, 80) ? MSG_BYTES : 100;
	for (uint32_t i = 0; i < pool->count; i++)
		buffers[i] = (struct wimm_recv_buffer){ pool->mem[i], pool->len };
	n->pools++;
	if (wimm_submit_recvs(n->engine, buffers, pool->count, on_received, n, &op) != WIMM_OK) {
		n->pools--;
		return;
	}
	run->stats.ops++;
}
