/* SPDX-License-Identifier: Apache-2.0 */
/* The life of an operation outside its transfer: ids, submission, the one way it ends. */
#include "core/engine.h"
#include "core/fence.h"
#include "core/group.h"
#include "core/marks.h"
#include "core/page_list.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "mem/cuda_mark.h"
#include "mem/cuda_queue.h"
#include "mem/word.h"
#include "plat/clock.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct op *op_by_id(struct worker *w, wimm_op id)
{
	uint32_t index = (uint32_t)id - 1;

	return index < w->max_ops ? &w->ops[index] : NULL;
}

struct op *op_get(struct worker *w, enum op_kind kind)
{
	uint32_t index;
	struct op *op;
	uint64_t generation;

	if (!idpool_get(&w->op_pool, &index)) {
		/* Release, with the acquire of a test: what the call has read before it waits. */
		atomic_fetch_add_explicit(&w->stats.again, 1, memory_order_release);
		return NULL;
	}
	op = &w->ops[index];
	generation = (atomic_load_explicit(&op->state, memory_order_relaxed) >> OP_STATE_BITS) + 1;
	generation &= 0xffffffffu;
	if (generation == 0)
		generation = 1;
	memset((char *)op + offsetof(struct op, kind), 0,
	       offsetof(struct op, leg) - offsetof(struct op, kind));
	op->index = index;
	op->kind = kind;
	op->worker = w;
	op->deadline_ns = CLOCK_NEVER_NS;
	op->request.kind = REQUEST_OP;
	op->cancel.kind = REQUEST_CANCEL;
	op->text[0] = '\0';
	list_init(&op->link);
	list_init(&op->wait_link);
	op->legs = NULL;
	op->legs_of = NULL;
	op->leg_count = 0;
	op->paged.indices = NULL;
	op->paged.list = NULL;
	op->paged.index_bytes = 0;
	op->paged.merged = false;
	op->send.data = NULL;
	op->send.peer = NULL;
	op->recvs = NULL;
	op->expect.e.owes = NULL;
	op->expect.owes_ids = NULL;
	/* [A] with [B] in wimm_cancel(): an id is only handed out after its state is set. */
	atomic_store_explicit(&op->state, generation << OP_STATE_BITS | OP_STATE_LIVE,
	                      memory_order_release);
	return op;
}

static void wake_room(struct worker *w)
{
	/* [C] with [D] in submit_enter(): what was given back is there before its waiter looks
	 * again. */
	if (atomic_load_explicit(&w->room_waiters, memory_order_seq_cst) != 0)
		wake_signal_always(&w->room);
}

static void indices_release(struct worker *w, struct op *op)
{
	if (op->paged.index_bytes != 0)
		STAT_SUB_SHARED(w, index_bytes, op->paged.index_bytes);
	if (op->paged.list != NULL)
		page_list_unref(op->paged.list);
	else if (op->paged.indices != NULL && op->paged.pinned)
		cuda_host_free(op->paged.indices);
	else
		mem_free(op->paged.indices);
	op->paged.index_bytes = 0;
	op->paged.indices = NULL;
	op->paged.list = NULL;
}

static void op_release(struct op *op)
{
	struct worker *w = op->worker;

	indices_release(w, op);
	if (op->mark != NULL)
		cuda_mark_close(op->mark);
	if (op->legs != &op->leg)
		group_legs_put(op->legs_of, op->legs);
	mem_free(op->send.data);
	mem_free(op->expect.e.owes);
	mem_free(op->expect.owes_ids);
	idpool_put(&w->op_pool, op->index);
	wake_room(w);
}

void op_unget(struct worker *w, struct op *op)
{
	(void)w;
	atomic_fetch_and_explicit(&op->state, ~(uint64_t)OP_STATE_LIVE, memory_order_relaxed);
	op_release(op);
}

void op_submit(struct worker *w, struct op *op, wimm_op *out)
{
	if (out != NULL)
		*out = op_id(op);
	worker_submit(w, op);
}

void op_fail(struct op *op, wimm_status status, wimm_peer blame, const char *fmt, ...)
{
	va_list args;

	if (op->status != WIMM_OK)
		return; /* the first cause counts */
	op->status = status;
	op->blame = blame;
	va_start(args, fmt);
	(void)vsnprintf(op->text, sizeof(op->text), fmt, args);
	va_end(args);
}

/* The worker's time is that of its turn, which may have begun before the submission it takes. */
static uint64_t span_ns(uint64_t from_ns, uint64_t to_ns)
{
	return to_ns > from_ns ? to_ns - from_ns : 0;
}

/* Callback thread: tell the caller, then give the slot back. */
static void op_deliver(struct delivery *d)
{
	struct op *op = LIST_ENTRY(d, struct op, delivery);
	struct wimm_done done = {
		.status = op->status,
		.imm = op->kind == OP_EXPECT ? op->expect.e.imm : op->imm,
		.op = op_id(op),
		.peer = op->blame != 0 ? op->blame : op->peer,
		.descriptors = op->descriptors,
		.text = op->text,
		.fence = op->kind == OP_FENCE ? (uint32_t)op->fence.answer : 0,
	};

	if (op->kind <= OP_SCATTER)
		done.bytes = op->bytes_total;
	if (op->post_ns != 0) {
		done.post_ns = span_ns(op->submit_ns, op->post_ns);
		done.transfer_ns = span_ns(op->post_ns, op->settled_ns);
	}
	STAT_ADD(op->worker, callbacks, 1);
	op->on_done.fn(op->on_done.context, &done);
	op_release(op);
}

/* The flag of an operation: 1 or the negative status. */
static void flag_store(uint64_t *flag, wimm_status status)
{
	uint64_t value = status == WIMM_OK ? 1 : (uint64_t)(int64_t)status;

	/* [E] with [F] in wimm_flag_load(): what the operation did is visible before the flag. */
	mem_word_store(flag, value);
}

/* Contract C3: not only has it failed, its source is not the caller's yet. */
static void op_quarantine(struct op *op)
{
	char cause[sizeof(op->text)];

	memcpy(cause, op->text, sizeof(cause));
	op->status = WIMM_E_QUARANTINED;
	(void)snprintf(op->text, sizeof(op->text),
	               "peer %" PRIx64 " may still read the source: leave it alone until that "
	               "process goes on or has ended; the write itself: %.120s",
	               op->blame != 0 ? op->blame : op->peer, cause);
}

static void op_finish(struct worker *w, struct op *op) ON_WORKER
{
	if (op->source_read)
		op_quarantine(op);
	if (op->status == WIMM_OK) {
		STAT_ADD(w, ops_done, 1);
		if (op->kind <= OP_SCATTER)
			STAT_ADD(w, bytes_written, op->bytes_total);
	} else {
		STAT_ADD(w, ops_failed, 1);
		if (op->kind == OP_PAGED) /* at least: a run is a page or more */
			op->bytes_total = op->descriptors_done * op->paged.page_len_bytes;
		else
			op->bytes_total = 0;
	}
	op->settled_ns = w->now_ns;
	if (op->on_done.flag != NULL)
		flag_store(op->on_done.flag, op->status);
	if (op->on_done.fn == NULL) {
		op_release(op);
		return;
	}
	if (op->paged.index_bytes != 0) {
		/* Before the callback, which may submit the next one. */
		indices_release(w, op);
		wake_room(w);
	}
	op->delivery.run = op_deliver;
	deliver_push(w->engine, &op->delivery);
}

/* It carries immediates: whoever retires a value looks for such. */
static bool counts(const struct op *op)
{
	return op->kind <= OP_SCATTER && (op->flags & WIMM_IMM) != 0;
}

void op_settle(struct worker *w, struct op *op)
{
	uint64_t old;

	DASSERT(op->started);
	op->started = false;
	if (counts(op))
		--*retire_imm_ops(w, op->imm);
	if (op->asking != NULL)
		retire_op_done(w, op);
	timers_remove(&w->timers, op);
	list_remove(&op->link);
	if (list_linked(&op->wait_link))
		list_remove(&op->wait_link);
	for (uint32_t i = 0; i < op->leg_count; i++)
		remote_leg_done(w, &op->legs[i]);
	mr_op_done(w, op);
	/* [G] with [B] in wimm_cancel(): whoever changes LIVE or CANCEL first is seen by the
	 * other. */
	old = atomic_fetch_and_explicit(&op->state, ~(uint64_t)OP_STATE_LIVE, memory_order_acq_rel);
	if ((old & OP_STATE_CANCEL) != 0 && op->cancel.kind == REQUEST_CANCEL)
		return; /* the cancel is still in the inbox: op_cancel_request() finishes */
	op_finish(w, op);
}

void op_cancel(struct worker *w, struct op *op, wimm_status status, const char *text)
{
	switch (op->kind) {
	case OP_WRITE:
	case OP_PAGED:
	case OP_SCATTER:
		post_abort(w, op, status, text);
		return;
	case OP_SEND:
		message_cancel(w, op, status, text);
		return;
	case OP_RECVS:
		recvs_cancel(w, op, status);
		return;
	case OP_EXPECT:
		count_cancel(w, op, status, text);
		return;
	case OP_FENCE:
		fence_cancel(w, op, status, text);
		return;
	case OP_RETIRE:
		retire_cancel(w, op, status, text);
		return;
	}
}

void op_cancel_request(struct worker *w, struct request *r)
{
	struct op *op = LIST_ENTRY(r, struct op, cancel);

	op->cancel.kind = 0; /* consumed: op_settle() may finish from now on */
	/* Relaxed: LIVE goes on this thread only. */
	if (op->started)
		op_cancel(w, op, WIMM_E_CANCELLED, "cancelled by the caller");
	else if ((atomic_load_explicit(&op->state, memory_order_relaxed) & OP_STATE_LIVE) != 0)
		op->cancel_first = true;
	else
		op_finish(w, op); /* it had settled while the request was under way */
}

void op_start(struct worker *w, struct op *op)
{
	wimm_status refused = w->closing         ? WIMM_E_CLOSED
	                      : op->cancel_first ? WIMM_E_CANCELLED
	                                         : WIMM_OK;

	op->started = true;
	if (counts(op))
		++*retire_imm_ops(w, op->imm);
	list_push_back(&w->ops_started, &op->link);
	if (op->deadline_ns != CLOCK_NEVER_NS)
		timers_add(&w->timers, op);
	if (refused != WIMM_OK && op->kind != OP_RECVS) {
		op_fail(op, refused, 0, "%s", wimm_status_text(refused));
		op_settle(w, op);
		return;
	}
	switch (op->kind) {
	case OP_WRITE:
	case OP_PAGED:
	case OP_SCATTER:
		post_start(w, op);
		return;
	case OP_SEND:
		message_start(w, op);
		return;
	case OP_RECVS:
		recvs_start(w, op);
		if (refused != WIMM_OK)
			recvs_cancel(w, op, refused);
		return;
	case OP_EXPECT:
		count_start(w, op);
		return;
	case OP_FENCE:
		fence_start(w, op);
		return;
	case OP_RETIRE:
		retire_start(w, op);
		return;
	}
}

wimm_status wimm_cancel(struct wimm_engine *engine, wimm_op id)
{
	wimm_status st = engine_check(engine);
	struct op *op;
	uint64_t state;

	if (st != WIMM_OK)
		return st;
	op = op_by_id(&engine->worker, id);
	if (op == NULL)
		return WIMM_E_NOT_FOUND;
	/* [B] with [A] in op_get() and [G] in op_settle(). */
	state = atomic_load_explicit(&op->state, memory_order_acquire);
	for (;;) {
		if (state >> OP_STATE_BITS != id >> 32 || (state & OP_STATE_LIVE) == 0)
			return WIMM_E_NOT_FOUND;
		if ((state & OP_STATE_CANCEL) != 0)
			return WIMM_OK;
		if (atomic_compare_exchange_weak_explicit(
			    &op->state, &state, state | OP_STATE_CANCEL, memory_order_acq_rel,
			    memory_order_acquire))
			break;
	}
	worker_push(&engine->worker, &op->cancel);
	return WIMM_OK;
}

int64_t wimm_flag_load(const uint64_t *flag)
{
	/* [F] with [E] in flag_store(). */
	return (int64_t)__atomic_load_n(flag, __ATOMIC_ACQUIRE);
}
