/* SPDX-License-Identifier: Apache-2.0 */
/* Arrivals on the worker: immediates into the table, parts of split writes combined,
 * expectations. */
#include "core/args.h"
#include "core/engine.h"
#include "core/error_text.h"
#include "core/fence.h"
#include "core/marks.h"
#include "core/mirror.h"
#include "core/recv.h"
#include "core/stage.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/log.h"

#include <inttypes.h>
#include <string.h>

/* Split operations of one peer that are not complete here. */
#define PARTS_OPEN_MAX 65536
/* Expectations that are had at hand. */
#define TOUCHED_MAX 4

struct part {
	struct list link; /* peer.parts_done while unused */
	uint32_t parts;   /* to wait for */
	uint32_t seen;
	uint32_t imm;
	bool abandoned; /* its sender gave up: counts nothing */
};

static struct op *expect_op(struct list *link)
{
	return LIST_ENTRY(LIST_ENTRY(link, struct imm_expect, link), struct op, expect.e);
}

static void settle_fired(struct worker *w, struct list *fired) ON_WORKER
{
	while (!list_empty(fired)) {
		STAT_SUB(w, expectations, 1);
		op_settle(w, expect_op(list_pop_front(fired)));
	}
}

static void settle_failed(struct worker *w, const struct peer *p, struct list *failed) ON_WORKER
{
	while (!list_empty(failed)) {
		struct op *op = expect_op(list_pop_front(failed));

		op_fail(op, WIMM_E_PEER_LOST, peer_id(p), "a peer that still owed is gone: %s",
		        p->text);
		STAT_SUB(w, expectations, 1);
		op_settle(w, op);
	}
}

static void add(struct worker *w, struct peer *p, uint32_t imm, uint32_t count) ON_WORKER
{
	struct list fired;
	wimm_status st;

	list_init(&fired);
	STAT_ADD(w, imms_received, count);
	if (w->now_ns - w->arrivals.seen_ns >= RHYTHM_MIN_NS) {
		rhythm_note(&w->arrivals, w->now_ns);
		deliver_came(w->engine, w->now_ns);
	}
	st = imm_arrived(w->imms, p->slot, imm, count, &fired);
	if (st == WIMM_OK)
		mirror_arrived(w, imm, count);
	settle_fired(w, &fired);
	if (st != WIMM_OK)
		peer_down(w, p, st, 0, "immediate %#" PRIx32 " cannot be counted: %s", imm,
		          st == WIMM_E_NOMEM ? "out of memory here"
		                             : "the peer made too many values that nobody expects "
		                               "(setting unexpected_imms)");
}

static struct part *part_get(struct peer *p, uint64_t op_seq)
{
	struct part *part = hash_find_ptr(&p->parts, op_seq);
	struct list *spare;

	if (part != NULL)
		return part;
	if (p->parts.count >= PARTS_OPEN_MAX)
		return NULL;
	spare = list_pop_front(&p->parts_done);
	part = spare != NULL ? LIST_ENTRY(spare, struct part, link) : mem_alloc(sizeof(*part));
	if (part == NULL)
		return NULL;
	memset(part, 0, sizeof(*part));
	list_init(&part->link);
	if (hash_insert_ptr(&p->parts, op_seq, part) != WIMM_OK) {
		mem_free(part);
		return NULL;
	}
	return part;
}

/* There is none for a write: the session cannot go on, as its immediate would be lost. */
static void part_lost(struct worker *w, struct peer *p) ON_WORKER
{
	if (p->parts.count >= PARTS_OPEN_MAX)
		peer_down(w, p, WIMM_E_LIMIT, 0, "more than %d split writes are incomplete",
		          PARTS_OPEN_MAX);
	else
		peer_down(w, p, WIMM_E_NOMEM, 0, "out of memory here for a split write");
}

static void part_put(struct peer *p, uint64_t op_seq, struct part *part)
{
	(void)hash_remove(&p->parts, op_seq);
	list_push_back(&p->parts_done, &part->link);
}

static void part_arrived(struct worker *w, struct peer *p, const struct prov_cqe *c) ON_WORKER
{
	struct part *part = part_get(p, c->op_seq);
	uint32_t imm = c->imm;

	if (part == NULL) {
		part_lost(w, p);
		return;
	}
	if (part->parts == 0 && !part->abandoned) {
		part->parts = c->parts;
		part->imm = imm;
	}
	part->seen++;
	if (!part->abandoned && (part->parts != c->parts || part->imm != imm || c->parts < 2)) {
		peer_down(w, p, WIMM_E_PROTOCOL, 0,
		          "parts of one write disagree: %" PRIu32 " and %" PRIu32 " parts",
		          part->parts, c->parts);
		return;
	}
	if (part->seen < part->parts)
		return;
	if (part->abandoned) {
		part_put(p, c->op_seq, part);
		return;
	}
	part_put(p, c->op_seq, part);
	add(w, p, imm, 1);
}

void count_arrived(struct worker *w, struct path *path, const struct prov_cqe *c)
{
	struct peer *p = path->peer;

	if (__builtin_expect(c->kind == PROV_PART && (c->op_seq & STAGE_SEQ) != 0, 0)) {
		stage_arrived(w, path, c); /* seen when it has landed */
		return;
	}
	path->seen_marks += c->count;
	if (c->kind == PROV_IMM)
		add(w, p, c->imm, c->count);
	else
		part_arrived(w, p, c);
	count_looked_for(w, p);
}

/* The op of an expectation that may be next, to where its end is written. */
static void touch_op(const struct op *op)
{
	const char *at = (const char *)op;

	for (size_t i = 0; i < offsetof(struct op, leg); i += PLAT_CODE_LINE_BYTES)
		__builtin_prefetch(at + i, 1);
}

void count_touch(struct worker *w)
{
	struct imm_expect *e[TOUCHED_MAX];
	uint32_t n = imm_first_expected(w->imms, e, TOUCHED_MAX);

	for (uint32_t i = 0; i < n; i++)
		touch_op(expect_op(&e[i]->link));
}

void count_add(struct worker *w, struct peer *p, uint32_t imm, uint32_t count)
{
	add(w, p, imm, count);
}

void count_looked_for(struct worker *w, struct peer *p)
{
	if (p->asked.id != 0)
		confirm_answer(w, p);
	if (!list_empty(&w->retires))
		retire_arrived(w, p);
	if (!list_empty(&w->fences))
		fence_arrived(w, p);
}

void count_abandon(struct worker *w, struct leg *leg)
{
	struct wire_msg m = { .type = WIRE_ABANDON };

	if (leg->parts <= 1 || leg->parts_sent == 0 || leg->parts_sent >= leg->parts ||
	    !leg->held || leg->dst->peer->state != PEER_UP)
		return;
	m.u.abandon.op_seq = leg->op_seq;
	m.u.abandon.parts_sent = leg->parts_sent;
	leg->parts_sent = leg->parts; /* said once */
	session_say(w, leg->dst->peer, &m);
}

static void on_abandon(struct worker *w, struct peer *p, const struct wire_msg *m) ON_WORKER
{
	struct part *part = part_get(p, m->u.abandon.op_seq);

	if (part == NULL) {
		part_lost(w, p);
		return;
	}
	part->abandoned = true;
	part->parts = m->u.abandon.parts_sent;
	if (part->seen >= part->parts)
		part_put(p, m->u.abandon.op_seq, part);
}

void count_message(struct worker *w, struct peer *p, const struct wire_msg *m)
{
	switch (m->type) {
	case WIRE_HEARTBEAT:
		confirm_heard(w, p, m);
		return;
	case WIRE_CONFIRM:
		confirm_asked(w, p, m);
		return;
	case WIRE_RETIRE:
		retire_asked(w, p, m);
		return;
	case WIRE_RETIRE_ACK:
		retire_heard(w, p, m);
		return;
	case WIRE_ABANDON:
		on_abandon(w, p, m);
		return;
	default:
		ASSERT(false && "a message of counting");
	}
}

static void parts_drop(struct peer *p)
{
	uint32_t cursor = 0;
	uint64_t key, value;

	while (hash_next(&p->parts, &cursor, &key, &value))
		mem_free((void *)(uintptr_t)value);
	hash_fini(&p->parts);
	while (!list_empty(&p->parts_done))
		mem_free(LIST_ENTRY(list_pop_front(&p->parts_done), struct part, link));
}

void count_peer_down(struct worker *w, struct peer *p, bool orderly)
{
	struct list failed, fired;

	list_init(&failed);
	list_init(&fired);
	parts_drop(p);
	confirm_peer_down(p);
	retire_peer_down(w, p);
	if (orderly)
		imm_peer_left(w->imms, p->slot, &failed, &fired);
	else
		imm_peer_lost(w->imms, p->slot, &failed, &fired);
	settle_failed(w, p, &failed);
	settle_fired(w, &fired);
}

/* --- expectations --- */

void count_start(struct worker *w, struct op *op)
{
	struct imm_expect *e = &op->expect.e;
	struct list fired;
	wimm_status st;

	for (uint32_t i = 0; i < e->owes_count; i++) {
		struct peer *p = peer_by_id(w, op->expect.owes_ids[i].peer);

		if (p == NULL || p->state == PEER_DOWN) {
			op_fail(op, WIMM_E_PEER_LOST, op->expect.owes_ids[i].peer,
			        "a peer that is to deliver %" PRIu64 " is gone",
			        op->expect.owes_ids[i].count);
			op_settle(w, op);
			return;
		}
		e->owes[i].peer_slot = p->slot;
		e->owes[i].count = op->expect.owes_ids[i].count;
	}
	list_init(&fired);
	st = imm_expect(w->imms, e, &fired);
	STAT_ADD(w, expectations, 1);
	if (st != WIMM_OK) {
		STAT_SUB(w, expectations, 1);
		op_fail(op, st, 0, "no memory for the expectation");
		op_settle(w, op);
		return;
	}
	settle_fired(w, &fired);
}

void count_cancel(struct worker *w, struct op *op, wimm_status status, const char *text)
{
	struct list fired;

	list_init(&fired);
	op_fail(op, status, 0, "%s; %" PRIu64 " of %" PRIu64 " immediates %#" PRIx32 " are there",
	        text, imm_count(w->imms, op->expect.e.imm), op->expect.e.count, op->expect.e.imm);
	imm_cancel(w->imms, &op->expect.e, &fired);
	STAT_SUB(w, expectations, 1);
	op_settle(w, op);
	settle_fired(w, &fired);
}

static wimm_status check_owes(const struct wimm_engine *engine, uint64_t count,
                              const struct wimm_expect_opts *opts)
{
	uint64_t sum = 0;

	for (uint64_t i = 0; i < opts->owes_count; i++) {
		if (opts->owes[i].count > count - sum) {
			error_text_set("peers owe more than the %" PRIu64 " expected", count);
			return WIMM_E_INVAL;
		}
		sum += opts->owes[i].count;
		/* Asked of any thread: the public state is atomic. */
		if (peer_public_state((struct worker *)(uintptr_t)&engine->worker,
		                      opts->owes[i].peer) == PEER_FREE) {
			error_text_set("peer %" PRIx64 " of entry %" PRIu64 " is unknown",
			               opts->owes[i].peer, i);
			return WIMM_E_NOT_FOUND;
		}
	}
	if (engine->worker.identifies_source)
		return WIMM_OK;
	error_text_set("provider %s cannot tell whose an immediate is: expect without owes",
	               engine->worker.prov->name);
	return WIMM_E_UNSUPPORTED;
}

static wimm_status check_expect(const struct wimm_engine *engine, uint64_t count,
                                const struct wimm_expect_opts *opts)
{
	if (count == 0 || count > UINT64_C(1) << 63) {
		error_text_set("an expectation counts from 1 to 2^63, not to %" PRIu64, count);
		return WIMM_E_INVAL;
	}
	if (opts == NULL)
		return WIMM_OK;
	if (!ARGS_GOOD(opts, 0))
		return ARGS_REFUSED(opts, "wimm_expect_opts", 0);
	if (opts->owes_count == 0)
		return WIMM_OK;
	if (opts->owes == NULL)
		return args_null("wimm_expect_opts.owes");
	if (opts->owes_count > engine->worker.max_peers) {
		error_text_set("%" PRIu64 " peers owe, the most are %" PRIu32
		               " (setting max_peers)",
		               opts->owes_count, engine->worker.max_peers);
		return WIMM_E_INVAL;
	}
	return check_owes(engine, count, opts);
}

static wimm_status copy_owes(struct op *op, const struct wimm_expect_opts *opts)
{
	if (opts == NULL || opts->owes_count == 0)
		return WIMM_OK;
	op->expect.e.owes = mem_calloc(opts->owes_count, sizeof(*op->expect.e.owes));
	op->expect.owes_ids = mem_calloc(opts->owes_count, sizeof(*op->expect.owes_ids));
	if (op->expect.e.owes == NULL || op->expect.owes_ids == NULL)
		return WIMM_E_NOMEM;
	memcpy(op->expect.owes_ids, opts->owes, opts->owes_count * sizeof(*opts->owes));
	op->expect.e.owes_count = (uint32_t)opts->owes_count;
	return WIMM_OK;
}

wimm_status expect_prepare(struct wimm_engine *engine, uint32_t imm, uint64_t count,
                           const struct wimm_expect_opts *opts, const struct wimm_on_done *on_done,
                           struct op **out)
{
	struct submit_common c = { 0, opts != NULL ? opts->deadline_us : 0, on_done, 0 };
	wimm_status st = check_expect(engine, count, opts);
	struct op *op;

	if (st == WIMM_OK)
		st = submit_get(engine, OP_EXPECT, &c, &op);
	if (st != WIMM_OK)
		return st;
	memset(&op->expect, 0, sizeof(op->expect));
	op->expect.e.imm = imm;
	op->expect.e.count = count;
	list_init(&op->expect.e.link);
	st = copy_owes(op, opts);
	if (st != WIMM_OK) {
		op_unget(&engine->worker, op);
		return st;
	}
	*out = op;
	return WIMM_OK;
}

wimm_status wimm_expect_imm_count(struct wimm_engine *engine, uint32_t imm, uint64_t count,
                                  const struct wimm_expect_opts *opts,
                                  const struct wimm_on_done *on_done, wimm_op *out_op)
{
	wimm_status st = engine_check(engine);
	struct op *op;

	if (st == WIMM_OK)
		st = expect_prepare(engine, imm, count, opts, on_done, &op);
	if (st == WIMM_OK)
		op_submit(&engine->worker, op, out_op);
	return st;
}

struct count_call {
	uint32_t imm;
	uint64_t out;
};

static void poll_on_worker(struct worker *w, void *arg) ON_WORKER
{
	struct count_call *c = arg;

	c->out = imm_count(w->imms, c->imm);
}

static void forget_on_worker(struct worker *w, void *arg) ON_WORKER
{
	struct count_call *c = arg;

	c->out = imm_forget(w->imms, c->imm);
}

wimm_status wimm_poll_imm(struct wimm_engine *engine, uint32_t imm, uint64_t *out_count)
{
	wimm_status st = engine_check(engine);
	struct count_call c = { imm, 0 };

	if (st == WIMM_OK && out_count == NULL)
		st = args_null("out_count");
	if (st != WIMM_OK)
		return st;
	worker_ask(&engine->worker, poll_on_worker, &c);
	*out_count = c.out;
	return WIMM_OK;
}

wimm_status wimm_forget_imm(struct wimm_engine *engine, uint32_t imm, uint64_t *out_count)
{
	wimm_status st = engine_check(engine);
	struct count_call c = { imm, 0 };

	if (st != WIMM_OK)
		return st;
	worker_call(&engine->worker, forget_on_worker, &c);
	if (out_count != NULL)
		*out_count = c.out;
	return WIMM_OK;
}
