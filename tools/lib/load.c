/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/load.h"

#include "lib/util.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

static void chain_run(struct chain *c);

static void fail(struct load *l, wimm_status status, const char *text)
{
	if (atomic_exchange(&l->failed, 1) != 0)
		return;
	(void)snprintf(l->fail_text, sizeof(l->fail_text), "%s of iteration failed: %s (%s)%s%s",
	               spec_op_name(l->side->spec->op), wimm_status_text(status),
	               wimm_status_name(status), text[0] != '\0' ? ": " : "", text);
	atomic_store(&l->failed, 2);
	side_wake(l->side);
}

/* --- one iteration --- */

/* First block of an iteration; iterations walk over the buffer again and again. */
static uint64_t first_block(const struct side *s, uint64_t iter)
{
	return iter % (s->blocks / s->spec->batch) * s->spec->batch;
}

static uint32_t flags_of(const struct spec *spec)
{
	return WIMM_IMM | (spec->confirmed ? WIMM_CONFIRMED : 0) | (spec->once ? WIMM_IMM_ONCE : 0);
}

static wimm_status submit_write(struct chain *c, const struct wimm_on_done *done)
{
	const struct side *s = c->load->side;
	const struct spec *spec = s->spec;
	uint64_t block = first_block(s, c->iter) + c->submitted;
	struct wimm_write w = WIMM_WRITE_INIT;

	w.flags = flags_of(spec);
	w.imm = c->load->imm;
	w.src = s->src_mr;
	w.dst = s->remote;
	w.src_offset_bytes = block * spec->block_bytes;
	w.dst_offset_bytes = SIDE_GUARD_BYTES + s->to_block[block] * spec->block_bytes;
	w.len_bytes = spec->block_bytes;
	return wimm_submit_single_write(s->engine, &w, done, NULL);
}

static wimm_status submit_paged(struct chain *c, const struct wimm_on_done *done)
{
	const struct side *s = c->load->side;
	const struct spec *spec = s->spec;
	uint64_t block = first_block(s, c->iter);
	struct wimm_paged_writes w = WIMM_PAGED_WRITES_INIT;

	w.flags = flags_of(spec);
	w.imm = c->load->imm;
	w.src = s->src_mr;
	w.dst = s->remote;
	w.src_pages.indices = s->in_order + block;
	w.src_pages.count = spec->batch;
	w.src_pages.stride_bytes = spec->block_bytes;
	w.dst_pages.indices = s->to_block + block;
	w.dst_pages.count = spec->batch;
	w.dst_pages.stride_bytes = spec->block_bytes;
	w.dst_pages.offset_bytes = SIDE_GUARD_BYTES;
	w.page_len_bytes = spec->block_bytes;
	return wimm_submit_paged_writes(s->engine, &w, done, NULL);
}

static wimm_status submit_scatter(struct chain *c, const struct wimm_on_done *done)
{
	const struct side *s = c->load->side;
	const struct spec *spec = s->spec;
	uint64_t block = first_block(s, c->iter);
	struct wimm_scatter w = WIMM_SCATTER_INIT;

	for (uint64_t i = 0; i < spec->batch; i++) {
		c->entries[i] = (struct wimm_scatter_entry){
			.dst = s->remote,
			.src_offset_bytes = (block + i) * spec->block_bytes,
			.dst_offset_bytes =
				SIDE_GUARD_BYTES + s->to_block[block + i] * spec->block_bytes,
			.len_bytes = spec->block_bytes,
		};
	}
	w.flags = flags_of(spec);
	w.imm = c->load->imm;
	w.src = s->src_mr;
	w.entries = c->entries;
	w.count = spec->batch;
	return wimm_submit_scatter(s->engine, &w, done, NULL);
}

static wimm_status submit_barrier(struct chain *c, const struct wimm_on_done *done)
{
	const struct side *s = c->load->side;
	struct wimm_barrier_args b = WIMM_BARRIER_ARGS_INIT;

	b.flags = s->spec->confirmed ? WIMM_CONFIRMED : 0;
	b.imm = c->load->imm;
	b.dst = c->load->targets;
	b.count = s->spec->batch;
	return wimm_submit_barrier(s->engine, &b, done, NULL);
}

static wimm_status submit_send(struct chain *c, const struct wimm_on_done *done)
{
	const struct side *s = c->load->side;
	const struct spec *spec = s->spec;
	struct wimm_send m = WIMM_SEND_INIT;

	m.peer = wimm_remote_mr_peer(s->remote);
	m.data = s->src + (first_block(s, c->iter) + c->submitted) * spec->block_bytes;
	m.len_bytes = spec->block_bytes;
	return wimm_submit_send(s->engine, &m, done, NULL);
}

/* --- chains --- */

static void chain_settled(void *context, const struct wimm_done *done)
{
	struct chain *c = context;
	struct load *l = c->load;

	if (done->status != WIMM_OK)
		fail(l, done->status, done->text);
	if (atomic_fetch_sub(&c->left, 1) != 1)
		return;
	hist_add(&l->hist, now_ns() - c->submit_ns);
	atomic_fetch_add(&l->ended, 1);
	chain_run(c);
}

/* Submit what is left of the chain's iteration. */
static void chain_submit(struct chain *c)
{
	static wimm_status (*const submit[OP_COUNT])(struct chain *,
	                                             const struct wimm_on_done *) = {
		submit_write, submit_paged, submit_scatter, submit_barrier, submit_send
	};
	const struct spec *spec = c->load->side->spec;
	const struct wimm_on_done done = { .fn = chain_settled, .context = c };
	uint64_t calls = spec->op == OP_WRITE || spec->op == OP_SEND ? spec->batch : 1;

	while (c->submitted < calls) {
		/* The last one's callback may take the chain over before the call returns. */
		bool last = c->submitted + 1 == calls;
		wimm_status st = submit[spec->op](c, &done);

		if (st == WIMM_AGAIN) {
			atomic_store(&c->stalled, 1);
			return;
		}
		if (st != WIMM_OK) {
			fail(c->load, st, wimm_last_error_text());
			return;
		}
		if (last)
			return;
		c->submitted++;
	}
}

static void chain_run(struct chain *c)
{
	struct load *l = c->load;
	const struct spec *spec = l->side->spec;
	uint64_t now = now_ns();

	c->iter = atomic_fetch_add(&l->next, 1);
	if (c->iter >= l->iters || (l->iters == UINT64_MAX && now >= l->end_ns) ||
	    atomic_load(&l->failed) != 0) {
		if (atomic_fetch_sub(&l->chains_left, 1) == 1)
			side_wake(l->side);
		return;
	}
	atomic_fetch_add(&l->started, 1);
	c->submit_ns = now;
	c->submitted = 0;
	atomic_store(&c->left, spec->op == OP_WRITE || spec->op == OP_SEND ? spec->batch : 1);
	chain_submit(c);
}

void load_open(struct load *l, struct side *side)
{
	const struct spec *spec = side->spec;

	*l = (struct load){ .side = side };
	l->chains = must_alloc(spec->depth, sizeof(*l->chains));
	for (uint64_t i = 0; i < spec->depth; i++) {
		l->chains[i].load = l;
		if (spec->op == OP_SCATTER)
			l->chains[i].entries =
				must_alloc(spec->batch, sizeof(*l->chains[i].entries));
	}
	if (spec->op == OP_BARRIER) {
		l->targets = must_alloc(spec->batch, sizeof(void *));
		for (uint64_t i = 0; i < spec->batch; i++)
			l->targets[i] = side->remote;
	}
}

void load_close(struct load *l)
{
	for (uint64_t i = 0; i < l->side->spec->depth; i++)
		free(l->chains[i].entries);
	free(l->chains);
	free((void *)l->targets);
}

void load_start(struct load *l, uint32_t imm, uint64_t iters, double seconds)
{
	uint64_t depth = l->side->spec->depth;

	l->imm = imm;
	l->iters = seconds > 0 ? UINT64_MAX : iters;
	l->end_ns = now_ns() + (uint64_t)(seconds * 1e9);
	atomic_store(&l->next, 0);
	atomic_store(&l->started, 0);
	atomic_store(&l->ended, 0);
	atomic_store(&l->chains_left, (uint32_t)depth);
	hist_clear(&l->hist);
	for (uint64_t i = 0; i < depth; i++)
		chain_run(&l->chains[i]);
}

bool load_done(struct load *l)
{
	if (atomic_load(&l->failed) == 2)
		die("%s", l->fail_text);
	if (atomic_load(&l->chains_left) == 0)
		return true;
	for (uint64_t i = 0; i < l->side->spec->depth; i++) {
		struct chain *c = &l->chains[i];

		if (atomic_load_explicit(&c->stalled, memory_order_relaxed) != 0 &&
		    atomic_exchange(&c->stalled, 0) != 0)
			chain_submit(c);
	}
	return false;
}

uint64_t load_ended(const struct load *l)
{
	return atomic_load(&l->ended);
}
