/* SPDX-License-Identifier: Apache-2.0 */
#include "kv/pair.h"

#include "base/alloc.h"
#include "core/engine.h"
#include "kv/layout.h"
#include "kv/mem.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define EMPTY 0xee

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct wimm_kv_layout kv_small(uint32_t tp, uint32_t rank)
{
	struct wimm_kv_layout l = WIMM_KV_LAYOUT_INIT;

	l.kind = WIMM_KV_GQA;
	l.layers = 4;
	l.kv_heads = 4;
	l.head_dim = 8;
	l.elem_bytes = 2;
	l.page_tokens = 4;
	l.tp = tp;
	l.tp_rank = rank;
	l.pages = 16;
	assert_ok(wimm_kv_layout_pack(&l, NULL));
	return l;
}

static void on_request(void *context, wimm_peer peer, const void *data, uint64_t len_bytes)
{
	struct kv_side *s = context;

	pthread_mutex_lock(&lock);
	assert_true(len_bytes <= sizeof(s->request));
	memcpy(s->request, data, len_bytes);
	s->request_bytes = len_bytes;
	s->from = peer;
	s->requests++;
	pthread_mutex_unlock(&lock);
}

uint32_t kv_requests(struct kv_side *s)
{
	uint32_t count;

	pthread_mutex_lock(&lock);
	count = s->requests;
	pthread_mutex_unlock(&lock);
	return count;
}

void kv_side_open(struct kv_pair *p, struct kv_side *s, const struct wimm_kv_layout *layout)
{
	struct wimm_engine_opts opts = WIMM_ENGINE_OPTS_INIT;
	struct wimm_kv_cache_opts cache = WIMM_KV_CACHE_OPTS_INIT;
	struct engine_env env = { .world = p->world };
	struct wimm_error_info error = { 0 };
	char nic[32];

	memset(s, 0, sizeof(*s));
	snprintf(nic, sizeof(nic), p->two_nics ? "%u,%u" : "%u", p->nics + 1, p->nics + 2);
	p->nics += p->two_nics ? 2 : 1;
	opts.provider = p->provider != NULL ? p->provider : "sim";
	opts.nics = p->provider != NULL ? "127.0.0.1:0" : nic;
	opts.progress = p->driven ? WIMM_PROGRESS_CALLER : WIMM_PROGRESS_THREADS;
	opts.max_ops = 256;
	if (engine_open_in(&opts, p->provider != NULL ? NULL : &env, &s->engine) != WIMM_OK)
		fail_msg("engine: %s", wimm_last_error_text());
	s->layout = *layout;
	assert_ok(wimm_kv_layout_extent(layout, &s->bytes, NULL));
	s->mem = malloc(s->bytes);
	assert_non_null(s->mem);
	memset(s->mem, EMPTY, s->bytes);
	assert_ok(wimm_reg_mr(s->engine, s->mem, s->bytes, NULL, &s->mr));
	cache.layout = layout;
	cache.region = s->mr;
	cache.imm_first = 1000;
	cache.max_requests = p->max_requests;
	cache.tail_room_bytes = TAIL_ROOM;
	cache.messages = 8;
	cache.on_request = on_request;
	cache.context = s;
	if (wimm_kv_cache_open(s->engine, &cache, &s->cache, &error) != WIMM_OK)
		fail_msg("cache: %s", error.text);
}

void kv_side_close(struct kv_side *s)
{
	assert_ok(wimm_kv_cache_close(&s->cache));
	assert_ok(wimm_engine_close(&s->engine));
	free(s->mem);
	s->mem = NULL;
}

void kv_open(struct kv_pair *p, uint32_t prefill_tp, uint32_t decode_tp, const struct sim_cfg *cfg,
             const struct wimm_kv_layout *layout)
{
	p->kv_blocks = kv_live_blocks();
	p->mem_blocks = mem_live_blocks();
	p->prefill_tp = prefill_tp;
	p->decode_tp = decode_tp;
	if (p->provider == NULL)
		assert_ok(sim_world_open(cfg, &p->world));
	for (uint32_t i = 0; i < prefill_tp + decode_tp; i++) {
		bool is_decode = i >= prefill_tp;
		struct wimm_kv_layout l = kv_small(is_decode ? decode_tp : prefill_tp,
		                                   is_decode ? i - prefill_tp : i);

		kv_side_open(p, is_decode ? &p->decode[i - prefill_tp] : &p->prefill[i],
		             layout != NULL ? layout : &l);
	}
}

void kv_close(struct kv_pair *p)
{
	for (uint32_t i = 0; i < p->prefill_tp; i++)
		if (p->prefill[i].engine != NULL)
			kv_side_close(&p->prefill[i]);
	for (uint32_t i = 0; i < p->decode_tp; i++)
		if (p->decode[i].engine != NULL)
			kv_side_close(&p->decode[i]);
	if (p->world != NULL) {
		assert_null(sim_violation(p->world));
		sim_world_close(p->world);
	}
	assert_int_equal(kv_live_blocks(), p->kv_blocks);
	assert_int_equal(mem_live_blocks(), p->mem_blocks);
}

void kv_fill(struct kv_side *s, uint64_t seed)
{
	for (uint64_t i = 0; i < s->bytes; i++) {
		s->mem[i] = (uint8_t)((i * 131 + i / 256 * 7 + seed * 29) % 251);
		if (s->mem[i] == EMPTY)
			s->mem[i] = 1;
	}
}

uint8_t *kv_at(struct kv_side *s, uint32_t layer, uint32_t page, uint32_t part, uint32_t head,
               uint32_t token)
{
	const struct wimm_kv_layout *l = &s->layout;

	return s->mem + l->offset_bytes + layer * l->layer_stride_bytes +
	       page * l->page_stride_bytes + part * l->part_stride_bytes +
	       head * l->head_stride_bytes + token * l->token_stride_bytes;
}

/* --- results --- */

void kv_result_init(struct kv_result *r)
{
	memset(r, 0, sizeof(*r));
}

void kv_on_done(void *context, const struct wimm_kv_done *done)
{
	struct kv_result *r = context;

	pthread_mutex_lock(&lock);
	r->calls++;
	r->status = done->status;
	r->imm = done->imm;
	r->immediates = done->immediates;
	r->bytes = done->bytes;
	r->first_token = done->first_token;
	r->tail_bytes = done->tail_bytes;
	if (done->tail != NULL && done->tail_bytes <= sizeof(r->tail))
		memcpy(r->tail, done->tail, done->tail_bytes);
	snprintf(r->text, sizeof(r->text), "%s", done->text);
	pthread_mutex_unlock(&lock);
}

bool kv_there(struct kv_result *r)
{
	bool there;

	pthread_mutex_lock(&lock);
	there = r->calls != 0;
	pthread_mutex_unlock(&lock);
	return there;
}

static bool result_there(void *arg)
{
	return kv_there(arg);
}

struct driven_cond {
	struct kv_pair *p;
	bool (*cond)(void *arg);
	void *arg;
};

static bool drive(void *arg)
{
	struct driven_cond *d = arg;

	for (uint32_t i = 0; i < d->p->prefill_tp && d->p->driven; i++)
		if (d->p->prefill[i].engine != NULL)
			assert_ok(wimm_progress(d->p->prefill[i].engine, NULL));
	for (uint32_t i = 0; i < d->p->decode_tp && d->p->driven; i++)
		if (d->p->decode[i].engine != NULL)
			assert_ok(wimm_progress(d->p->decode[i].engine, NULL));
	return d->cond(d->arg);
}

void kv_until(struct kv_pair *p, bool (*cond)(void *arg), void *arg)
{
	struct driven_cond d = { p, cond, arg };

	assert_true(test_wait_until(drive, &d, TEST_DEADLINE_MS));
}

void kv_wait(struct kv_pair *p, struct kv_result *r, wimm_status status)
{
	kv_until(p, result_there, r);
	assert_int_equal(r->calls, 1);
	if (r->status != status)
		fail_msg("%s (%s), not %s", wimm_status_name(r->status), r->text,
		         wimm_status_name(status));
}

/* --- requests --- */

struct wimm_kv_receive_opts kv_receive_opts(struct kv_result *r, uint64_t tokens,
                                            const uint32_t *pages, uint64_t page_count)
{
	struct wimm_kv_receive_opts o = WIMM_KV_RECEIVE_OPTS_INIT;

	kv_result_init(r);
	o.tokens = tokens;
	o.pages = pages;
	o.page_count = page_count;
	o.fn = kv_on_done;
	o.context = r;
	return o;
}

struct wimm_kv_send_opts kv_send_opts(struct kv_result *r, struct wimm_kv_receiver *receiver,
                                      const uint32_t *pages, uint64_t page_count)
{
	struct wimm_kv_send_opts o = WIMM_KV_SEND_OPTS_INIT;

	kv_result_init(r);
	o.request = wimm_kv_receiver_request(receiver, &o.request_bytes);
	o.pages = pages;
	o.page_count = page_count;
	o.fn = kv_on_done;
	o.context = r;
	return o;
}

const uint8_t *kv_source(struct kv_pair *p, uint32_t layer, uint32_t page, uint32_t part,
                         uint32_t head, uint32_t token)
{
	for (uint32_t i = 0; i < p->prefill_tp; i++) {
		struct kv_heads h = kv_layout_heads(&p->prefill[i].layout, i);

		if (head >= h.first && head < h.first + h.count)
			return kv_at(&p->prefill[i], layer, page, part, head - h.first, token);
	}
	fail_msg("no prefill rank has head %u", head);
	return NULL;
}

/* Tokens of the prompt that page i of a list holds. */
static uint64_t valid(const struct kv_pair *p, const struct wimm_kv_layout *l, uint64_t i)
{
	uint64_t before = i * l->page_tokens;

	if (p->tokens == 0 || p->tokens >= before + l->page_tokens)
		return l->page_tokens;
	return p->tokens > before ? p->tokens - before : 0;
}

void kv_check_pages(struct kv_pair *p, uint32_t rank, const uint32_t *src_pages,
                    const uint32_t *dst_pages, uint64_t page_count)
{
	struct kv_side *s = &p->decode[rank];
	const struct wimm_kv_layout *l = &s->layout;
	struct kv_heads heads = kv_layout_heads(l, l->tp_rank);
	uint64_t row = kv_layout_row_bytes(l);
	uint8_t *want = malloc(s->bytes);

	memset(want, EMPTY, s->bytes);
	for (uint32_t layer = 0; layer < l->layers; layer++)
		for (uint64_t i = 0; i < page_count; i++)
			for (uint32_t part = 0; part < kv_layout_parts(l); part++)
				for (uint32_t h = 0; h < heads.count; h++)
					for (uint64_t t = 0; t < valid(p, l, i); t++)
						memcpy(want + (kv_at(s, layer, dst_pages[i], part,
						                     h, (uint32_t)t) -
						               s->mem),
						       kv_source(p, layer, src_pages[i], part,
						                 heads.first + h, (uint32_t)t),
						       row);
	assert_memory_equal(s->mem, want, s->bytes);
	free(want);
}
