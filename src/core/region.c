/* SPDX-License-Identifier: Apache-2.0 */
/* Local registrations: registered on every NIC or on none, ended only when every session has
 * drained (contract C9). */
#include "core/region.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/log.h"
#include "core/args.h"
#include "core/engine.h"
#include "core/error_text.h"
#include "mem/cuda_queue.h"
#include "mem/word.h"
#include "plat/rand.h"

#include <inttypes.h>
#include <string.h>

wimm_status region_table_init(struct region_table *t, uint32_t max)
{
	memset(t, 0, sizeof(*t));
	t->max = max;
	t->slot = mem_calloc(max, sizeof(*t->slot));
	t->free = mem_calloc(max, sizeof(*t->free));
	if (t->slot == NULL || t->free == NULL) {
		region_table_fini(t);
		return WIMM_E_NOMEM;
	}
	return WIMM_OK;
}

void region_table_fini(struct region_table *t)
{
	for (uint32_t i = 0; t->slot != NULL && i < t->used; i++) {
		struct wimm_mr *mr = atomic_load_explicit(&t->slot[i], memory_order_relaxed);

		if (mr != NULL)
			mem_free(mr->acked);
		mem_free(mr);
	}
	mem_free((void *)t->slot);
	mem_free(t->free);
	memset(t, 0, sizeof(*t));
}

/* A free slot with its memory; the engine's lock is held. */
static struct wimm_mr *slot_get(struct wimm_engine *engine)
{
	struct region_table *t = &engine->regions;
	uint32_t i;
	struct wimm_mr *mr;

	if (t->free_count != 0) {
		i = t->free[--t->free_count];
		return atomic_load_explicit(&t->slot[i], memory_order_relaxed); /* under the lock */
	}
	if (t->used == t->max)
		return NULL;
	mr = mem_calloc(1, sizeof(*mr));
	if (mr == NULL)
		return NULL;
	mr->acked = mem_calloc((engine->worker.max_peers + 7) / 8, 1);
	if (mr->acked == NULL) {
		mem_free(mr);
		return NULL;
	}
	mr->slot = t->used;
	mr->engine = engine;
	list_init(&mr->link);
	/* [A] with [B] in mr_by_slot(): initialised before it is published. */
	atomic_store_explicit(&t->slot[t->used++], mr, memory_order_release);
	return mr;
}

static void slot_put(struct wimm_mr *mr)
{
	struct wimm_engine *engine = mr->engine;

	mutex_lock(&engine->lock);
	engine->regions.free[engine->regions.free_count++] = mr->slot;
	mutex_unlock(&engine->lock);
}

static struct wimm_mr *mr_by_slot(struct wimm_engine *engine, uint32_t slot)
{
	if (slot >= engine->regions.max)
		return NULL;
	/* [B] with [A] in slot_get(). */
	return atomic_load_explicit(&engine->regions.slot[slot], memory_order_acquire);
}

/* Memory of a GPU is registered where it is reached. */
static bool takes(const struct worker *w, const struct wimm_mr *mr, uint32_t i)
{
	return mr->device < 0 || w->nic[i].caps.gpu_direct || w->nic[i].caps.gpu_regions;
}

static wimm_status register_all(struct wimm_engine *engine, struct wimm_mr *mr, uint32_t generation)
{
	struct worker *w = &engine->worker;
	struct prov_error error = { 0 };
	uint64_t core_key = (uint64_t)generation << 32 | mr->slot;
	uint32_t flags = ((mr->flags & WIMM_MR_LOCAL_ONLY) == 0 ? PROV_REG_REMOTE : 0) |
	                 ((mr->flags & WIMM_MR_STRICT_ORDER) != 0 ? PROV_REG_STRICT_ORDER : 0) |
	                 (mr->device >= 0 ? PROV_REG_GPU : 0);

	for (uint32_t i = 0; i < w->dev_count; i++) {
		wimm_status st = WIMM_OK;

		mr->key[i] = 0;
		if (!takes(w, mr, i))
			continue;
		st = w->nic[i].ops->reg(w->nic[i].dev, mr->addr, mr->len_bytes, flags,
		                       core_key, &mr->key[i], &error);
		if (st == WIMM_OK)
			continue;
		if (st == WIMM_E_UNSUPPORTED && mr->device >= 0 && w->nic[i].caps.gpu_regions) {
			LOG_WARN("memory of GPU %d goes through slots of the host: %s", mr->device,
			         error.text);
			continue;
		}
		if (i < w->nic_count)
			error_text_set("NIC %" PRIu32 " of %" PRIu32 ": %s", i, w->nic_count,
			               error.text);
		else
			error_text_set("device for peers of this machine: %s", error.text);
		while (i-- != 0)
			if (mr->key[i] != 0 || mr->device < 0)
				w->nic[i].ops->dereg(w->nic[i].dev, mr->key[i]);
		return st;
	}
	return WIMM_OK;
}

#define MR_FLAGS (WIMM_MR_LOCAL_ONLY | WIMM_MR_STRICT_ORDER)

static wimm_status check_range(const void *addr, uint64_t len_bytes,
                               const struct wimm_mr_opts *opts)
{
	if (opts != NULL && !ARGS_GOOD(opts, MR_FLAGS))
		return ARGS_REFUSED(opts, "wimm_mr_opts", MR_FLAGS);
	if (addr == NULL || len_bytes == 0) {
		error_text_set("a region needs an address and at least 1 byte; got %p, %" PRIu64
		               " bytes",
		               addr, len_bytes);
		return WIMM_E_INVAL;
	}
	if (len_bytes > UINT64_C(1) << 63 || (uint64_t)(uintptr_t)addr > UINT64_MAX - len_bytes) {
		error_text_set("region %p + %" PRIu64 " bytes passes the end of the address space",
		               addr, len_bytes);
		return WIMM_E_RANGE;
	}
	return WIMM_OK;
}

struct kind {
	int device; /* the GPU whose memory it is; -1: the host's */
	uint64_t card;
	bool apart;
};

static wimm_status check_kind(const void *addr, uint64_t len_bytes, struct kind *out)
{
	struct mem_cuda_range range;
	char text[MEM_CUDA_TEXT_BYTES];
	bool is_cuda;
	wimm_status st = mem_cuda_describe(addr, len_bytes, &is_cuda, &range, text, sizeof(text));

	if (st != WIMM_OK) {
		error_text_set("%s", text);
		return st;
	}
	*out = (struct kind){ .device = -1 };
	if (!is_cuda)
		return WIMM_OK;
	cuda_queue_prepare(range.device);
	out->device = range.device;
	out->card = mem_cuda_pci(range.device);
	out->apart = out->card == WIRE_CARD_NONE || !mem_cuda_exportable(addr, len_bytes);
	return WIMM_OK;
}

wimm_status wimm_reg_mr(struct wimm_engine *engine, void *addr, uint64_t len_bytes,
                        const struct wimm_mr_opts *opts, struct wimm_mr **out)
{
	wimm_status st = engine_check(engine);
	struct wimm_mr *mr;
	uint32_t generation = 0;
	struct kind kind;

	if (st == WIMM_OK)
		st = out != NULL ? check_range(addr, len_bytes, opts) : args_null("out");
	if (st == WIMM_OK)
		st = check_kind(addr, len_bytes, &kind);
	if (st == WIMM_OK && engine_closing(engine))
		st = WIMM_E_CLOSED;
	while (st == WIMM_OK && generation == 0)
		st = rand_bytes(&generation, sizeof(generation));
	if (st != WIMM_OK)
		return st;
	mutex_lock(&engine->lock);
	mr = slot_get(engine);
	if (mr == NULL) {
		st = engine->regions.used == engine->regions.max ? WIMM_E_LIMIT : WIMM_E_NOMEM;
		error_text_set("no room for another region: %" PRIu32 " of %" PRIu32
		               " are in use (setting max_regions)",
		               engine->regions.used - engine->regions.free_count,
		               engine->regions.max);
		mutex_unlock(&engine->lock);
		return st;
	}
	mr->addr = addr;
	mr->len_bytes = len_bytes;
	mr->flags = opts != NULL ? opts->flags : 0;
	mr->device = kind.device;
	mr->card = kind.card;
	mr->apart = kind.apart;
	mr->refs = 0;
	mr->revoking = false;
	mr->request.kind = REQUEST_DEREG;
	st = register_all(engine, mr, generation);
	if (st != WIMM_OK) {
		engine->regions.free[engine->regions.free_count++] = mr->slot;
		mutex_unlock(&engine->lock);
		return st;
	}
	/* [C] with [D] in mr_usable(): everything above is visible with the state. */
	/* Release, with the acquire in submit.c: who sees this life sees its length. */
	atomic_store_explicit(&mr->generation, generation, memory_order_release);
	atomic_store_explicit(&mr->public_state, MR_LIVE, memory_order_release);
	mutex_unlock(&engine->lock);
	atomic_fetch_add_explicit(&engine->regions.live, 1, memory_order_relaxed);
	*out = mr;
	return WIMM_OK;
}

wimm_status wimm_mr_get_desc(const struct wimm_mr *mr, struct wimm_mr_desc *out)
{
	struct wire_desc d;
	wimm_status st;

	if (mr == NULL || out == NULL)
		return args_null(mr == NULL ? "mr" : "out");
	st = engine_check(mr->engine);
	if (st != WIMM_OK)
		return st;
	if (!mr_usable(mr->engine, mr)) {
		error_text_set("the region is deregistered");
		return WIMM_E_INVAL;
	}
	if ((mr->flags & WIMM_MR_LOCAL_ONLY) != 0) {
		error_text_set("the region was registered with WIMM_MR_LOCAL_ONLY: no peer may "
		               "write into it");
		return WIMM_E_UNSUPPORTED;
	}
	memset(&d, 0, sizeof(d));
	d.owner = mr->engine->self;
	d.base = (uint64_t)(uintptr_t)mr->addr;
	d.len_bytes = mr->len_bytes;
	d.region_slot = mr->slot;
	/* Relaxed: visible with the state, which was just read. */
	d.generation = atomic_load_explicit(&mr->generation, memory_order_relaxed);
	memcpy(d.key, mr->key, sizeof(d.key));
	d.kind = mr->device >= 0 ? WIRE_MEMORY_CUDA : WIRE_MEMORY_HOST;
	d.card = mr->apart ? WIRE_CARD_NONE : mr->card;
	return wire_desc_encode(&d, out);
}

/* --- ending --- */

wimm_status wimm_dereg_mr(struct wimm_engine *engine, struct wimm_mr *mr,
                          const struct wimm_on_done *on_done)
{
	wimm_status st = engine_check(engine);
	uint32_t live = MR_LIVE;

	if (st != WIMM_OK)
		return st;
	if (mr == NULL || mr->engine != engine) {
		error_text_set("the region is none of this engine's");
		return WIMM_E_INVAL;
	}
	/* One caller wins; submissions see the state from here on. */
	if (!atomic_compare_exchange_strong_explicit(&mr->public_state, &live, MR_CLOSING,
	                                             memory_order_acq_rel, memory_order_relaxed)) {
		error_text_set("the region was deregistered before");
		return WIMM_E_INVAL;
	}
	memset(&mr->on_done, 0, sizeof(mr->on_done));
	if (on_done != NULL)
		mr->on_done = *on_done;
	worker_push(&engine->worker, &mr->request);
	return WIMM_OK;
}

uint64_t wimm_mr_len_bytes(const struct wimm_mr *mr)
{
	return mr != NULL ? mr->len_bytes : 0;
}

static void dereg_deliver(struct delivery *d)
{
	struct wimm_mr *mr = LIST_ENTRY(d, struct wimm_mr, delivery);
	struct wimm_done done = { .status = WIMM_OK, .text = "" };
	struct wimm_on_done on_done = mr->on_done;

	slot_put(mr);
	if (on_done.fn != NULL)
		on_done.fn(on_done.context, &done);
}

static void dereg_finish(struct worker *w, struct wimm_mr *mr)
{
	list_remove(&mr->link);
	for (uint32_t i = 0; i < w->dev_count; i++)
		if (mr->key[i] != 0 || mr->device < 0)
			w->nic[i].ops->dereg(w->nic[i].dev, mr->key[i]);
	atomic_store_explicit(&mr->public_state, MR_FREE, memory_order_release);
	atomic_fetch_sub_explicit(&w->engine->regions.live, 1, memory_order_relaxed);
	if (mr->on_done.flag != NULL)
		mem_word_store(mr->on_done.flag, 1); /* release, with wimm_flag_load() */
	mr->delivery.run = dereg_deliver;
	deliver_push(w->engine, &mr->delivery);
}

void mr_finish_all(struct worker *w)
{
	while (!list_empty(&w->deregs))
		dereg_finish(w, LIST_ENTRY(w->deregs.next, struct wimm_mr, link));
}

/* Our own operations are done with it: now the peers. */
static void dereg_revoke(struct worker *w, struct wimm_mr *mr) ON_WORKER
{
	struct wire_msg m = { .type = WIRE_REVOKE };

	if (mr->revoking || mr->refs != 0)
		return;
	mr->revoking = true;
	mr->acks_left = 1; /* held while the messages go out */
	memset(mr->acked, 0, (w->max_peers + 7) / 8);
	m.u.mr.region_slot = mr->slot;
	m.u.mr.generation = atomic_load_explicit(&mr->generation, memory_order_relaxed);
	/* One of a GPU may be mapped by who fetches from it. */
	if ((mr->flags & WIMM_MR_LOCAL_ONLY) == 0 || mr->device >= 0) {
		LIST_FOR_EACH(it, &w->peers) {
			struct peer *p = LIST_ENTRY(it, struct peer, link);

			if (p->alias != NULL || p->paths_open == 0)
				continue; /* it has no way to write here */
			mr->acked[p->slot / 8] |= (uint8_t)(1u << p->slot % 8);
			mr->acks_left++;
			if (p->ctl != NULL)
				session_say(w, p, &m); /* so does the end of its paths */
		}
	}
	if (--mr->acks_left == 0)
		dereg_finish(w, mr);
}

static void dereg_acked(struct worker *w, struct wimm_mr *mr, const struct peer *p)
{
	uint8_t bit = (uint8_t)(1u << p->slot % 8);

	if (!mr->revoking || (mr->acked[p->slot / 8] & bit) == 0)
		return;
	mr->acked[p->slot / 8] &= (uint8_t)~bit;
	if (--mr->acks_left == 0)
		dereg_finish(w, mr);
}

void mr_dereg_start(struct worker *w, struct request *r)
{
	struct wimm_mr *mr = LIST_ENTRY(r, struct wimm_mr, request);

	list_push_back(&w->deregs, &mr->link);
	dereg_revoke(w, mr);
}

struct wimm_mr *mr_hold(struct worker *w, uint32_t slot, uint32_t generation)
{
	struct wimm_mr *mr = mr_by_slot(w->engine, slot);

	if (mr == NULL || !mr_usable(w->engine, mr) || (mr->flags & WIMM_MR_LOCAL_ONLY) != 0 ||
	    atomic_load_explicit(&mr->generation, memory_order_relaxed) != generation)
		return NULL;
	mr->refs++;
	return mr;
}

void mr_release(struct worker *w, struct wimm_mr *mr)
{
	if (mr != NULL && --mr->refs == 0 && list_linked(&mr->link))
		dereg_revoke(w, mr);
}

void mr_op_done(struct worker *w, struct op *op)
{
	struct wimm_mr *mr = (struct wimm_mr *)(uintptr_t)op->src;

	if (!op->src_held)
		return;
	op->src_held = false;
	DASSERT(mr->refs != 0);
	/* Acquire: with the change of state in wimm_dereg_mr(); linked once its request was
	 * taken. */
	if (--mr->refs == 0 && list_linked(&mr->link))
		dereg_revoke(w, mr);
}

/* A peer is gone and its paths are closed, which is as good as its acknowledgement. */
void mr_peer_down(struct worker *w, struct peer *p)
{
	LIST_FOR_EACH(it, &w->deregs)
		dereg_acked(w, LIST_ENTRY(it, struct wimm_mr, link), p);
}

static void answer_check(struct worker *w, struct peer *p, const struct wire_msg *m) ON_WORKER
{
	struct wimm_mr *mr = mr_by_slot(w->engine, m->u.mr.region_slot);
	struct wire_msg answer = { .type = WIRE_MR_STATE };

	answer.u.mr.region_slot = m->u.mr.region_slot;
	answer.u.mr.generation = m->u.mr.generation;
	answer.u.mr.status = WIMM_E_REVOKED;
	if (mr != NULL && mr_usable(w->engine, mr) && (mr->flags & WIMM_MR_LOCAL_ONLY) == 0 &&
	    atomic_load_explicit(&mr->generation, memory_order_relaxed) == m->u.mr.generation)
		answer.u.mr.status = WIMM_OK;
	session_say(w, p, &answer);
}

void mr_message(struct worker *w, struct peer *p, const struct wire_msg *m)
{
	struct wimm_mr *mr;

	if (m->type == WIRE_MR_CHECK) {
		answer_check(w, p, m);
		return;
	}
	mr = mr_by_slot(w->engine, m->u.mr.region_slot);
	if (mr != NULL &&
	    atomic_load_explicit(&mr->generation, memory_order_relaxed) == m->u.mr.generation)
		dereg_acked(w, mr, p);
}
