/* SPDX-License-Identifier: Apache-2.0 */
/* Submission of writes on the caller's thread: check everything, copy what is the caller's, hand it
 * to the worker. Nothing is sent before all of a request has been found right (contract C4). */
#include "core/after.h"
#include "core/args.h"
#include "core/error_text.h"
#include "core/group.h"
#include "core/merge.h"
#include "core/page_list.h"
#include "core/recv.h"

#include "base/alloc.h"
#include "mem/cuda_queue.h"
#include "plat/clock.h"

#include <inttypes.h>
#include <string.h>

#define WRITE_FLAGS                                                                                \
	(WIMM_IMM | WIMM_CONFIRMED | WIMM_BLOCK | WIMM_PIN_NIC | WIMM_AFTER_STREAM)
#define RUNS_PER_NIC  4
#define BLOCK_LOOK_NS (2 * CLOCK_NS_PER_MS)

/* --- room --- */

/* A call that may wait keeps the engine: close waits until it has returned. */
bool submit_enter(struct wimm_engine *engine, uint32_t flags)
{
	if ((flags & WIMM_BLOCK) == 0)
		return false;
	/* [D] with [C] in wake_room(): either it sees the waiter or the next look sees its slot.
	 * And with the look in wimm_engine_close(), which comes after `closing` was set. */
	atomic_fetch_add_explicit(&engine->worker.room_waiters, 1, memory_order_seq_cst);
	return true;
}

void submit_leave(struct wimm_engine *engine, bool entered)
{
	/* Release, with the acquire in wimm_engine_close(): the last touch of the engine. */
	if (entered)
		atomic_fetch_sub_explicit(&engine->worker.room_waiters, 1, memory_order_release);
}

/* The time of a deadline that counts from start_ns. */
static uint64_t deadline_of(const struct submit_common *c, uint64_t start_ns)
{
	if (c->deadline_us == 0 || c->deadline_us >= UINT64_MAX / CLOCK_NS_PER_US)
		return CLOCK_NEVER_NS;
	return clock_deadline_ns(start_ns, c->deadline_us * CLOCK_NS_PER_US);
}

/* Wait a little for something to be given back. False: this call may not wait, or no longer. */
static bool wait_for_room(struct wimm_engine *engine, struct submit_common *c)
{
	uint64_t now, until, look;

	if ((c->flags & WIMM_BLOCK) == 0 || !engine->worker.own_threads ||
	    engine_in_callback(engine))
		return false;
	now = clock_now_ns();
	if (c->wait_ns == 0)
		c->wait_ns = now;
	until = deadline_of(c, c->wait_ns);
	if (now >= until)
		return false;
	look = clock_deadline_ns(now, BLOCK_LOOK_NS);
	(void)wake_wait(&engine->worker.room, look < until ? look : until);
	return true;
}

/* Out of line, as it is rare. */
__attribute__((noinline)) static wimm_status get_after_waiting(struct wimm_engine *engine,
                                                               enum op_kind kind,
                                                               struct submit_common *c,
                                                               struct op **out)
{
	while (wait_for_room(engine, c)) {
		if (engine_closing(engine))
			return WIMM_E_CLOSED;
		*out = op_get(&engine->worker, kind);
		if (*out != NULL)
			return WIMM_OK;
	}
	return WIMM_AGAIN;
}

wimm_status submit_get(struct wimm_engine *engine, enum op_kind kind, struct submit_common *c,
                       struct op **out)
{
	struct op *op;
	wimm_status st;

	if (engine_closing(engine))
		return WIMM_E_CLOSED;
	op = op_get(&engine->worker, kind);
	if (op == NULL) {
		st = get_after_waiting(engine, kind, c, &op);
		if (st != WIMM_OK)
			return st;
	}
	op->flags = c->flags;
	/* engine_turn_ns() is the worker's, who is the caller in caller-driven mode. */
	op->submit_ns = c->wait_ns != 0                ? c->wait_ns
	                : engine->worker.own_threads ? engine_now_ns(engine)
	                                             : engine_turn_ns(engine);
	if (c->deadline_us != 0)
		op->deadline_ns = deadline_of(c, op->submit_ns);
	if (c->on_done != NULL)
		op->on_done = *c->on_done;
	*out = op;
	return WIMM_OK;
}

/* --- checks --- */

static bool fits(uint64_t offset, uint64_t len, uint64_t total)
{
	return offset <= total && len <= total - offset;
}

static wimm_status check_slice(const char *side, uint64_t offset, uint64_t len, uint64_t total)
{
	if (fits(offset, len, total))
		return WIMM_OK;
	error_text_set("%s: offset %" PRIu64 " + %" PRIu64
	               " bytes pass the region's end at %" PRIu64,
	               side, offset, len, total);
	return WIMM_E_RANGE;
}

static wimm_status check_source(const struct wimm_engine *engine, const struct wimm_mr *src)
{
	if (mr_usable(engine, src))
		return WIMM_OK;
	if (src != NULL && src->engine == engine) {
		error_text_set("the source region is deregistered");
		return WIMM_E_REVOKED;
	}
	error_text_set("the source region is none of this engine's");
	return WIMM_E_INVAL;
}

static wimm_status check_dest(const struct wimm_engine *engine, const struct wimm_remote_mr *dst)
{
	wimm_status st = remote_usable(engine, dst);

	if (st == WIMM_E_INVAL)
		error_text_set("the destination is none of this engine's open remote regions");
	return st;
}

static wimm_status check_flags(const struct wimm_engine *engine, uint32_t flags, uint32_t allowed,
                               uint32_t nic_index)
{
	if ((flags & ~allowed) != 0) {
		error_text_set("unknown flags %#" PRIx32, flags & ~allowed);
		return WIMM_E_INVAL;
	}
	if ((flags & WIMM_CONFIRMED) != 0 && (flags & WIMM_IMM) == 0) {
		error_text_set("WIMM_CONFIRMED needs WIMM_IMM: only immediates are counted");
		return WIMM_E_INVAL;
	}
	if ((flags & WIMM_PIN_NIC) != 0 && nic_index >= engine->worker.nic_count) {
		error_text_set("NIC %" PRIu32 " of %" PRIu32, nic_index, engine->worker.nic_count);
		return WIMM_E_INVAL;
	}
	return WIMM_OK;
}

static wimm_status check_count(uint64_t count, const char *what)
{
	if (count <= UINT32_MAX)
		return WIMM_OK;
	error_text_set("%" PRIu64 " %s, the most are %" PRIu32, count, what, UINT32_MAX);
	return WIMM_E_LIMIT;
}

/* What handles stood for when they were checked. Kept from before the call waits for room:
 * meanwhile another thread may end a region and its place hold the next one, of which nothing was
 * checked. The worker finds that out by the generation. */
struct seen {
	uint32_t src_generation, dst_generation;
	uint64_t src_bytes, dst_bytes;
	wimm_peer peer;
};

/* Acquire, with the release in wimm_reg_mr(): it may be a later life than the one that was checked,
 * and then the length read next is of that one. */
static uint32_t seen_source(const struct wimm_mr *src)
{
	return atomic_load_explicit(&src->generation, memory_order_acquire);
}

/* Relaxed: visible with the state that was checked. */

static uint32_t seen_dest(const struct wimm_remote_mr *dst)
{
	return atomic_load_explicit(&dst->generation, memory_order_relaxed);
}

static struct seen see(const struct wimm_mr *src, const struct wimm_remote_mr *dst)
{
	return (struct seen){ seen_source(src), seen_dest(dst), src->len_bytes, dst->len_bytes,
		              dst->peer_id };
}

/* Its operation is the worker's to set. */
static void leg_init(struct leg *leg, const struct wimm_remote_mr *dst, uint32_t generation)
{
	memset((char *)leg + offsetof(struct leg, op_seq), 0,
	       sizeof(*leg) - offsetof(struct leg, op_seq));
	leg->dst = (struct wimm_remote_mr *)(uintptr_t)dst;
	leg->dst_generation = generation;
	leg->src_offset = 0;
	leg->dst_offset = 0;
	leg->len_bytes = 0;
}

static inline void leg_kind(struct leg *leg, const struct wimm_mr *src,
                            const struct wimm_remote_mr *dst)
{
	if (__builtin_expect(src->device >= 0 || dst->gpu, 0))
		leg->path_count = LEG_GPU;
}

static void set_source(struct op *op, const struct wimm_mr *src, uint32_t generation)
{
	op->src = src;
	op->src_generation = generation;
}

static wimm_status check_stream(uint32_t flags, const void *stream)
{
	if (stream == NULL || (flags & WIMM_AFTER_STREAM) != 0)
		return WIMM_OK;
	error_text_set("a stream without WIMM_AFTER_STREAM");
	return WIMM_E_INVAL;
}

/* The last step that may fail. */
static wimm_status mark_stream(struct op *op, const struct wimm_mr *src, void *stream)
{
	wimm_status st = (op->flags & WIMM_AFTER_STREAM) == 0 ? WIMM_OK
	                                                      : after_mark(op, src, stream);

	if (st != WIMM_OK)
		op_unget(op->worker, op);
	return st;
}

/* --- single --- */

static wimm_status single_write(struct wimm_engine *engine, const struct wimm_write *wr,
                                const struct wimm_on_done *on_done, wimm_op *out_op)
{
	wimm_status st = check_flags(engine, wr->flags, WRITE_FLAGS, wr->nic_index);
	struct submit_common c;
	struct seen seen;
	struct op *op;

	if (st == WIMM_OK)
		st = check_stream(wr->flags, wr->stream);
	if (st == WIMM_OK)
		st = check_source(engine, wr->src);
	if (st == WIMM_OK)
		st = check_dest(engine, wr->dst);
	if (st != WIMM_OK)
		return st;
	seen = see(wr->src, wr->dst);
	st = check_slice("source", wr->src_offset_bytes, wr->len_bytes, seen.src_bytes);
	if (st == WIMM_OK)
		st = check_slice("destination", wr->dst_offset_bytes, wr->len_bytes,
		                 seen.dst_bytes);
	c = (struct submit_common){ wr->flags, wr->deadline_us, on_done, 0 };
	if (st == WIMM_OK)
		st = submit_get(engine, OP_WRITE, &c, &op);
	if (st != WIMM_OK)
		return st;
	op->imm = wr->imm;
	op->nic_index = wr->nic_index;
	set_source(op, wr->src, seen.src_generation);
	op->legs = &op->leg;
	op->leg_count = 1;
	op->bytes_total = wr->len_bytes;
	leg_init(&op->leg, wr->dst, seen.dst_generation);
	leg_kind(&op->leg, wr->src, wr->dst);
	op->peer = seen.peer;
	op->leg.src_offset = wr->src_offset_bytes;
	op->leg.dst_offset = wr->dst_offset_bytes;
	op->leg.len_bytes = wr->len_bytes;
	op->leg.end = 1;
	st = mark_stream(op, wr->src, wr->stream);
	if (st == WIMM_OK)
		op_submit(&engine->worker, op, out_op);
	return st;
}

wimm_status wimm_submit_single_write(struct wimm_engine *engine, const struct wimm_write *wr,
                                     const struct wimm_on_done *on_done, wimm_op *out_op)
{
	wimm_status st = engine_check(engine);
	bool entered;

	if (st != WIMM_OK)
		return st;
	if (wr == NULL || !ARGS_GOOD(wr, UINT32_MAX)) /* its flags are looked at below */
		return ARGS_REFUSED(wr, "wimm_write", UINT32_MAX);
	entered = submit_enter(engine, wr->flags);
	st = single_write(engine, wr, on_done, out_op);
	submit_leave(engine, entered);
	return st;
}

/* --- pages --- */

static wimm_status check_paged(const struct wimm_engine *engine, const struct wimm_paged_writes *wr)
{
	uint64_t count = wr->src_pages.count;
	wimm_status st = check_flags(engine, wr->flags, WRITE_FLAGS | WIMM_IMM_ONCE, wr->nic_index);

	if (st == WIMM_OK)
		st = check_stream(wr->flags, wr->stream);
	if (st != WIMM_OK)
		return st;
	if ((wr->flags & WIMM_IMM_ONCE) != 0 && (wr->flags & WIMM_IMM) == 0) {
		error_text_set("WIMM_IMM_ONCE needs WIMM_IMM");
		return WIMM_E_INVAL;
	}
	if (count != wr->dst_pages.count) {
		error_text_set("%" PRIu64 " source pages and %" PRIu64 " destination pages", count,
		               wr->dst_pages.count);
		return WIMM_E_INVAL;
	}
	if (wr->list != NULL)
		st = page_list_check(engine, wr->list, wr->list_first, count);
	else if (count != 0 && (wr->src_pages.indices == NULL || wr->dst_pages.indices == NULL))
		st = args_null("wimm_pages.indices");
	if (st == WIMM_OK)
		st = check_count(count, "pages");
	if (st != WIMM_OK)
		return st;
	if (count > 1 && wr->page_len_bytes != 0 &&
	    (wr->src_pages.stride_bytes == 0 || wr->dst_pages.stride_bytes < wr->page_len_bytes)) {
		error_text_set("strides of %" PRIu64 " (source) and %" PRIu64
		               " bytes (destination) for pages of %" PRIu64
		               ": a source stride is not 0, destination pages do not overlap",
		               wr->src_pages.stride_bytes, wr->dst_pages.stride_bytes,
		               wr->page_len_bytes);
		return WIMM_E_INVAL;
	}
	if (wr->page_len_bytes > engine->worker.max_write_bytes) {
		error_text_set("pages of %" PRIu64 " bytes, the longest are %" PRIu64,
		               wr->page_len_bytes, engine->worker.max_write_bytes);
		return WIMM_E_LIMIT;
	}
	st = check_source(engine, wr->src);
	return st == WIMM_OK ? check_dest(engine, wr->dst) : st;
}

/* Count index arrays against the byte budget, after waiting for it if the call may. Before an
 * operation is taken: giving one back would wake those who wait for room, and so this very call. */
static wimm_status take_index_bytes(struct wimm_engine *engine, uint64_t bytes,
                                    struct submit_common *c)
{
	struct worker *w = &engine->worker;
	uint64_t limit = w->index_bytes_limit;

	do {
		uint64_t used = atomic_load_explicit(&w->stats.index_bytes, memory_order_relaxed);

		if (engine_closing(engine))
			return WIMM_E_CLOSED;
		/* Relaxed: a sum that bounds memory, nothing is handed over by it. */
		while (bytes <= limit && used <= limit - bytes)
			if (atomic_compare_exchange_weak_explicit(
				    &w->stats.index_bytes, &used, used + bytes,
				    memory_order_relaxed, memory_order_relaxed))
				return WIMM_OK;
		STAT_ADD_SHARED(w, again, 1);
	} while (bytes <= limit && wait_for_room(engine, c));
	error_text_set("index arrays of %" PRIu64 " bytes do not fit the %" PRIu64
	               " allowed in flight (setting index_bytes_limit)",
	               bytes, limit);
	return bytes > limit ? WIMM_E_LIMIT : WIMM_AGAIN;
}

/* Whether the list's own copy serves, so that nothing is done per page: not where the card could
 * not read it, nor where pages may be merged. */
static bool may_borrow(const struct wimm_paged_writes *wr)
{
	bool each = (wr->flags & (WIMM_IMM | WIMM_IMM_ONCE)) == WIMM_IMM;

	if (wr->list == NULL || wr->src_pages.count == 0)
		return false;
	if (wr->src->device >= 0)
		return wr->list->pinned;
	return each || wr->dst->gpu;
}

static wimm_status borrow_pages(struct op *op, const struct wimm_paged_writes *wr,
                                const struct seen *seen)
{
	struct wimm_page_list *list = (struct wimm_page_list *)(uintptr_t)wr->list;
	uint64_t count = wr->src_pages.count;
	uint32_t *src = list->indices + wr->list_first;
	uint32_t *dst = src + list->count;
	uint64_t ignored;
	wimm_status st = indices_check("source", &wr->src_pages, src, count, list->src_most,
	                               wr->page_len_bytes, seen->src_bytes, &ignored);

	if (st == WIMM_OK)
		st = indices_check("destination", &wr->dst_pages, dst, count, list->dst_most,
		                   wr->page_len_bytes, seen->dst_bytes, &op->paged.dst_bytes);
	if (st != WIMM_OK)
		return st;
	page_list_ref(list);
	op->paged.list = list;
	op->paged.indices = src;
	op->paged.dst_indices = dst;
	return WIMM_OK;
}

/* Copy both index arrays and check the copies. */
static wimm_status copy_pages(struct op *op, const struct wimm_paged_writes *wr,
                              const struct seen *seen)
{
	const struct wimm_page_list *list = wr->list;
	const uint32_t *src = list != NULL ? list->indices + wr->list_first : wr->src_pages.indices;
	const uint32_t *dst = list != NULL ? src + list->count : wr->dst_pages.indices;
	uint64_t count = wr->src_pages.count;
	uint64_t bytes = 2 * count * sizeof(uint32_t);
	uint64_t ignored;
	uint32_t most;
	wimm_status st;

	/* A GPU reads the copy itself. */
	op->paged.pinned = wr->src->device >= 0;
	op->paged.indices = op->paged.pinned ? cuda_host_alloc(bytes) : mem_alloc(bytes);
	if (op->paged.indices == NULL)
		return WIMM_E_NOMEM;
	op->paged.dst_indices = op->paged.indices + count;
	most = indices_copy(op->paged.indices, src, count);
	st = indices_check("source", &wr->src_pages, NULL, count, most, wr->page_len_bytes,
	                   seen->src_bytes, &ignored);
	if (st != WIMM_OK)
		return st;
	most = indices_copy(op->paged.dst_indices, dst, count);
	return indices_check("destination", &wr->dst_pages, NULL, count, most, wr->page_len_bytes,
	                     seen->dst_bytes, &op->paged.dst_bytes);
}

/* Longest run of pages that is one request: with several NICs short enough for all to have some. */
static uint64_t longest_run(const struct worker *w, uint64_t total_bytes)
{
	uint64_t share = total_bytes / (RUNS_PER_NIC * w->nic_count);
	uint64_t longest = share > w->split_bytes ? share : w->split_bytes;

	return w->nic_count > 1 && longest < w->max_write_bytes ? longest : w->max_write_bytes;
}

/* Pages without an immediate each may go together (contract C1); lists of a GPU's are one request
 * as they are. */
static void merge(struct worker *w, struct op *op)
{
	bool each = (op->flags & (WIMM_IMM | WIMM_IMM_ONCE)) == WIMM_IMM;

	if (each || op->leg.path_count == LEG_GPU || op->leg_count == 0)
		return;
	merge_pages(&op->paged, longest_run(w, op->bytes_total));
	op->leg.end = op->paged.count;
}

static wimm_status paged_writes(struct wimm_engine *engine, const struct wimm_paged_writes *wr,
                                const struct wimm_on_done *on_done, wimm_op *out_op)
{
	wimm_status st = check_paged(engine, wr);
	uint64_t index_bytes = 2 * wr->src_pages.count * sizeof(uint32_t);
	struct submit_common c;
	struct seen seen;
	struct op *op;
	bool borrow;

	if (st != WIMM_OK)
		return st;
	borrow = may_borrow(wr);
	if (borrow)
		index_bytes = 0;
	seen = see(wr->src, wr->dst);
	c = (struct submit_common){ wr->flags, wr->deadline_us, on_done, 0 };
	st = take_index_bytes(engine, index_bytes, &c);
	if (st != WIMM_OK)
		return st;
	st = submit_get(engine, OP_PAGED, &c, &op);
	if (st != WIMM_OK) {
		STAT_SUB_SHARED(&engine->worker, index_bytes, index_bytes);
		return st;
	}
	op->paged.index_bytes = index_bytes;
	if (borrow)
		st = borrow_pages(op, wr, &seen);
	else if (index_bytes != 0)
		st = copy_pages(op, wr, &seen);
	if (st != WIMM_OK) {
		op_unget(&engine->worker, op);
		return st;
	}
	op->imm = wr->imm;
	op->nic_index = wr->nic_index;
	set_source(op, wr->src, seen.src_generation);
	op->paged.count = wr->src_pages.count;
	op->paged.src_stride = wr->src_pages.stride_bytes;
	op->paged.dst_stride = wr->dst_pages.stride_bytes;
	op->paged.page_len_bytes = wr->page_len_bytes;
	op->legs = &op->leg;
	op->leg_count = op->paged.count != 0;
	op->bytes_total = op->paged.count * wr->page_len_bytes;
	leg_init(&op->leg, wr->dst, seen.dst_generation);
	leg_kind(&op->leg, wr->src, wr->dst);
	op->peer = seen.peer;
	op->leg.src_offset = wr->src_pages.offset_bytes;
	op->leg.dst_offset = wr->dst_pages.offset_bytes;
	op->leg.end = op->paged.count;
	merge(&engine->worker, op);
	st = mark_stream(op, wr->src, wr->stream);
	if (st == WIMM_OK)
		op_submit(&engine->worker, op, out_op);
	return st;
}

wimm_status wimm_submit_paged_writes(struct wimm_engine *engine, const struct wimm_paged_writes *wr,
                                     const struct wimm_on_done *on_done, wimm_op *out_op)
{
	wimm_status st = engine_check(engine);
	bool entered;

	if (st != WIMM_OK)
		return st;
	if (wr == NULL || !ARGS_GOOD(wr, UINT32_MAX))
		return ARGS_REFUSED(wr, "wimm_paged_writes", UINT32_MAX);
	entered = submit_enter(engine, wr->flags);
	st = paged_writes(engine, wr, on_done, out_op);
	submit_leave(engine, entered);
	return st;
}

/* --- scatter and barrier --- */

static wimm_status check_group(const struct wimm_engine *engine,
                               const struct wimm_peer_group *group, uint64_t count,
                               const char *what)
{
	if (group == NULL)
		return WIMM_OK;
	if (!group_usable(engine, group)) {
		error_text_set("the peer group is none of this engine's, or was removed");
		return WIMM_E_INVAL;
	}
	if (count != group->count) {
		error_text_set("%" PRIu64 " %s for a group of %" PRIu64 " peers", count, what,
		               group->count);
		return WIMM_E_INVAL;
	}
	return WIMM_OK;
}

/* Entry i of a scatter or barrier, and its peer. */
static wimm_status check_member(const struct wimm_engine *engine,
                                const struct wimm_peer_group *group, uint64_t i,
                                const struct wimm_remote_mr *dst)
{
	wimm_status st = check_dest(engine, dst);

	if (st != WIMM_OK || group == NULL || group->peer[i] == dst->peer_id)
		return st;
	error_text_set("entry %" PRIu64 " goes to peer %" PRIx64 ", peer %" PRIu64
	               " of the group is %" PRIx64,
	               i, dst->peer_id, i, group->peer[i]);
	return WIMM_E_INVAL;
}

static wimm_status check_scatter(const struct wimm_engine *engine, const struct wimm_scatter *s)
{
	wimm_status st = check_flags(engine, s->flags, WRITE_FLAGS, s->nic_index);

	if (st == WIMM_OK)
		st = check_stream(s->flags, s->stream);
	if (st == WIMM_OK && s->count != 0 && s->entries == NULL)
		st = args_null("wimm_scatter.entries");
	if (st == WIMM_OK)
		st = check_count(s->count, "entries");
	if (st == WIMM_OK)
		st = check_group(engine, s->group, s->count, "entries");
	return st == WIMM_OK ? check_source(engine, s->src) : st;
}

/* Targets of an operation that is still to be had; one alone needs no memory of its own. */
struct targets {
	struct leg *legs; /* NULL: none */
	uint64_t count;
	uint64_t bytes; /* of all */
	struct wimm_peer_group *group; /* whose array it is; NULL: nobody's */
	struct leg one;
};

/* leg_init() sets each. count fits 32 bits. */
static wimm_status targets_init(struct targets *t, const struct wimm_peer_group *group,
                                uint64_t count)
{
	t->count = count;
	t->bytes = 0;
	t->group = NULL;
	t->legs = NULL;
	if (count == 0)
		return WIMM_OK;
	if (count == 1) {
		t->legs = &t->one;
		return WIMM_OK;
	}
	if (group == NULL) {
		t->legs = mem_alloc(count * sizeof(*t->legs));
	} else {
		t->group = (struct wimm_peer_group *)(uintptr_t)group;
		t->legs = group_legs_get(t->group);
	}
	return t->legs != NULL ? WIMM_OK : WIMM_E_NOMEM;
}

static void targets_drop(struct targets *t)
{
	if (t->legs != &t->one)
		group_legs_put(t->group, t->legs);
}

/* To an operation got for them, which then has them; else they are dropped. */
static wimm_status targets_give(struct wimm_engine *engine, struct targets *t,
                                struct submit_common *c, struct op **out)
{
	struct op *op;
	wimm_status st = submit_get(engine, OP_SCATTER, c, &op);

	if (st != WIMM_OK) {
		targets_drop(t);
		return st;
	}
	if (t->count == 1)
		op->leg = t->one;
	op->legs = t->count == 1 ? &op->leg : t->legs;
	op->legs_of = t->group;
	op->leg_count = (uint32_t)t->count;
	op->bytes_total = t->bytes;
	*out = op;
	return WIMM_OK;
}

/* Legs of the entries from i on, after one look at each one's every figure. Returns the first that
 * is not right, of which target_explain() says why, or their number. */
static uint64_t targets_walk(struct targets *t, const struct worker *w,
                             const struct wimm_scatter *s, uint64_t src_bytes, uint64_t i)
{
	const wimm_peer *member = s->group != NULL ? s->group->peer : NULL;
	const struct wimm_scatter_entry *e = s->entries;
	const uint8_t kind = s->src->device >= 0 ? LEG_GPU : 0;
	const uint64_t count = s->count;
	struct leg *leg = t->legs + i;
	uint64_t bytes = 0;

	for (; i < count; i++, leg++) {
		const struct wimm_remote_mr *dst = e[i].dst;
		const uint64_t len = e[i].len_bytes;
		uint32_t generation;

		if (!remote_stands(w, dst))
			break;
		generation = seen_dest(dst); /* before the length: see struct seen */
		if ((member != NULL && member[i] != dst->peer_id) ||
		    !fits(e[i].src_offset_bytes, len, src_bytes) ||
		    !fits(e[i].dst_offset_bytes, len, dst->len_bytes))
			break;
		leg_init(leg, dst, generation);
		leg->src_offset = e[i].src_offset_bytes;
		leg->dst_offset = e[i].dst_offset_bytes;
		leg->len_bytes = len;
		leg->end = 1;
		leg->path_count = kind;
		if (__builtin_expect(dst->gpu, 0))
			leg->path_count = LEG_GPU;
		bytes += len;
	}
	t->bytes += bytes;
	return i;
}

/* What is wrong with entry i; OK: nothing any more. */
__attribute__((noinline, cold)) static wimm_status
target_explain(const struct wimm_engine *engine, const struct wimm_scatter *s, uint64_t src_bytes,
               uint64_t i)
{
	const struct wimm_scatter_entry *e = &s->entries[i];
	wimm_status st = check_member(engine, s->group, i, e->dst);

	if (st == WIMM_OK)
		st = check_slice("source", e->src_offset_bytes, e->len_bytes, src_bytes);
	if (st == WIMM_OK)
		st = check_slice("destination", e->dst_offset_bytes, e->len_bytes,
		                 e->dst->len_bytes);
	return st;
}

static wimm_status targets_set(struct wimm_engine *engine, const struct wimm_scatter *s,
                               uint64_t src_bytes, struct targets *t)
{
	uint64_t i = 0;

	for (;;) {
		wimm_status st;

		i = targets_walk(t, &engine->worker, s, src_bytes, i);
		if (i == s->count)
			return WIMM_OK;
		st = target_explain(engine, s, src_bytes, i);
		if (st != WIMM_OK)
			return st;
	}
}

static wimm_status scatter(struct wimm_engine *engine, const struct wimm_scatter *s,
                           const struct wimm_on_done *on_done, wimm_op *out_op)
{
	wimm_status st = check_scatter(engine, s);
	struct submit_common c = { s->flags, s->deadline_us, on_done, 0 };
	struct targets t;
	uint32_t src_generation;
	struct op *op;

	if (st == WIMM_OK)
		st = targets_init(&t, s->group, s->count);
	if (st != WIMM_OK)
		return st;
	src_generation = seen_source(s->src);
	st = targets_set(engine, s, s->src->len_bytes, &t);
	if (st != WIMM_OK) {
		targets_drop(&t);
		return st;
	}
	st = targets_give(engine, &t, &c, &op);
	if (st != WIMM_OK)
		return st;
	op->imm = s->imm;
	op->nic_index = s->nic_index;
	set_source(op, s->src, src_generation);
	st = mark_stream(op, s->src, s->stream);
	if (st == WIMM_OK)
		op_submit(&engine->worker, op, out_op);
	return st;
}

wimm_status wimm_submit_scatter(struct wimm_engine *engine, const struct wimm_scatter *s,
                                const struct wimm_on_done *on_done, wimm_op *out_op)
{
	wimm_status st = engine_check(engine);
	bool entered;

	if (st != WIMM_OK)
		return st;
	if (s == NULL || !ARGS_GOOD(s, UINT32_MAX))
		return ARGS_REFUSED(s, "wimm_scatter", UINT32_MAX);
	entered = submit_enter(engine, s->flags);
	st = scatter(engine, s, on_done, out_op);
	submit_leave(engine, entered);
	return st;
}

wimm_status submit_check_targets(const struct wimm_engine *engine,
                                 const struct wimm_barrier_args *b)
{
	wimm_status st = check_group(engine, b->group, b->count, "regions");

	for (uint64_t i = 0; st == WIMM_OK && i < b->count; i++)
		st = check_member(engine, b->group, i, b->dst[i]);
	return st;
}

static wimm_status barrier(struct wimm_engine *engine, const struct wimm_barrier_args *b,
                           const struct wimm_on_done *on_done, wimm_op *out_op)
{
	wimm_status st =
		check_flags(engine, b->flags | WIMM_IMM, WIMM_IMM | WIMM_CONFIRMED | WIMM_BLOCK, 0);
	struct submit_common c = { b->flags | WIMM_IMM, b->deadline_us, on_done, 0 };
	struct targets t;
	struct op *op;

	if (st == WIMM_OK)
		st = submit_check_targets(engine, b);
	if (st == WIMM_OK)
		st = targets_init(&t, b->group, b->count);
	if (st != WIMM_OK)
		return st;
	for (uint64_t i = 0; i < b->count; i++) {
		leg_init(&t.legs[i], b->dst[i], seen_dest(b->dst[i]));
		t.legs[i].end = 1;
	}
	st = targets_give(engine, &t, &c, &op);
	if (st != WIMM_OK)
		return st;
	op->imm = b->imm;
	op_submit(&engine->worker, op, out_op);
	return WIMM_OK;
}

wimm_status wimm_submit_barrier(struct wimm_engine *engine, const struct wimm_barrier_args *b,
                                const struct wimm_on_done *on_done, wimm_op *out_op)
{
	wimm_status st = engine_check(engine);
	bool entered;

	if (st != WIMM_OK)
		return st;
	if (b == NULL || !ARGS_GOOD(b, UINT32_MAX) || b->reserved32 != 0)
		return ARGS_REFUSED(b, "wimm_barrier_args", UINT32_MAX);
	if (b->count != 0 && b->dst == NULL)
		return args_null("wimm_barrier_args.dst");
	st = check_count(b->count, "regions");
	if (st != WIMM_OK)
		return st;
	entered = submit_enter(engine, b->flags);
	st = barrier(engine, b, on_done, out_op);
	submit_leave(engine, entered);
	return st;
}
