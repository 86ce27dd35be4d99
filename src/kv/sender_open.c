/* SPDX-License-Identifier: Apache-2.0 */
/* From a request to a sender: everything that can be wrong with it is found here, and told to the
 * decode side, before the first byte. */
#include "kv/sender.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* --- the deadline --- */

/* The engine has the clock: an expectation that nobody is to fulfil ends by its deadline. */
static void on_timer(void *context, const struct wimm_done *done)
{
	struct wimm_kv_sender *s = context;
	struct wimm_kv_cache *cache = s->base.cache;

	kv_lock(cache);
	s->timer = 0;
	if (done->status == WIMM_E_TIMEOUT)
		kv_sender_end(&s->base, WIMM_E_TIMEOUT, "the deadline passed before all was sent",
		              true);
	kv_unlock(cache);
	kv_object_turn(&s->base);
}

static wimm_status start_timer(struct wimm_kv_sender *s, uint64_t deadline_us)
{
	struct wimm_kv_cache *cache = s->base.cache;
	struct wimm_expect_opts opts = WIMM_EXPECT_OPTS_INIT;
	struct wimm_on_done on_done = { on_timer, s, NULL };
	wimm_status st;

	if (deadline_us == 0)
		return WIMM_OK;
	opts.deadline_us = deadline_us;
	/* A value of this cache's own, which no peer has a request for. */
	st = wimm_expect_imm_count(cache->engine, cache->imm_first + s->slot, 1, &opts, &on_done,
	                           &s->timer);
	if (st == WIMM_OK)
		s->base.refs++;
	return st;
}

/* --- opening --- */

static wimm_status check_opts(const struct wimm_kv_send_opts *o, struct wimm_error_info *error)
{
	for (size_t i = 0; i < sizeof(o->reserved) / sizeof(o->reserved[0]); i++)
		if (o->reserved[i] != 0)
			return kv_error(error, WIMM_E_INVAL, "kv sender: reserved is not zero");
	if ((o->flags & ~(WIMM_KV_FROM_VALUE | WIMM_KV_AT_END | WIMM_KV_CHUNKS_TOLD)) != 0 ||
	    o->request == NULL || (o->pages == NULL && o->page_count != 0))
		return kv_error(error, WIMM_E_INVAL,
		                "kv sender: no request or no pages, or "
		                "unknown flags");
	if ((o->flags & WIMM_KV_CHUNKS_TOLD) != 0 &&
	    (o->page_count != 0 || o->computed_token != 0 || o->chunk_tokens != 0))
		return kv_error(error, WIMM_E_INVAL,
		                "kv sender: pages, computed_token or chunk_tokens beside chunks "
		                "that are told");
	return WIMM_OK;
}

/* Whether this cache is what the decode side takes it for, and fits. */
static wimm_status check_pair(const struct wimm_kv_cache *cache, const struct wimm_kv_request *r,
                              struct wimm_error_info *error)
{
	const struct wimm_kv_layout *own = &cache->layout;
	uint64_t believed, real;
	wimm_status st = wimm_kv_compare(own, &r->decode, error);

	if (st == WIMM_OK && own->tp != r->prefill.tp)
		return kv_error(error, WIMM_E_MISMATCH,
		                "kv layout: tp at prefill is %" PRIu32
		                ", decode took it for %" PRIu32,
		                own->tp, r->prefill.tp);
	if (st == WIMM_OK)
		st = kv_map_count(own, r, WIMM_KV_ALL_RANKS, &real, error);
	if (st == WIMM_OK)
		st = kv_map_count(&r->prefill, r, WIMM_KV_ALL_RANKS, &believed, error);
	if (st == WIMM_OK && real != believed)
		return kv_error(error, WIMM_E_MISMATCH,
		                "kv layout: strides and page_tokens at prefill make %" PRIu64
		                " writes, decode took them for %" PRIu64,
		                real, believed);
	return st;
}

uint64_t kv_sender_pages_before(uint64_t first_token, uint64_t page_tokens, uint64_t token)
{
	if (token <= first_token)
		return 0;
	return (token + page_tokens - 1) / page_tokens - first_token / page_tokens;
}

static wimm_status check_pages(const struct wimm_kv_cache *cache, const struct kv_request *q,
                               const struct wimm_kv_send_opts *o, struct wimm_error_info *error)
{
	bool told = (o->flags & WIMM_KV_CHUNKS_TOLD) != 0;
	uint64_t need =
		kv_sender_pages_before(q->r.first_token, cache->layout.page_tokens, q->r.tokens);

	if (!told && o->page_count != need)
		return kv_error(error, WIMM_E_INVAL,
		                "kv sender: %" PRIu64 " pages, the request has %" PRIu64
		                " of %" PRIu64 " tokens",
		                o->page_count, need, (uint64_t)cache->layout.page_tokens);
	if (o->computed_token > q->r.tokens)
		return kv_error(error, WIMM_E_INVAL,
		                "kv sender: computed_token %" PRIu64 " of %" PRIu64 " tokens",
		                o->computed_token, q->r.tokens);
	for (uint64_t i = 0; i < o->page_count; i++)
		if (o->pages[i] >= cache->layout.pages)
			return kv_error(error, WIMM_E_RANGE,
			                "kv sender: page %" PRIu32 ", the cache has %" PRIu64,
			                o->pages[i], cache->layout.pages);
	for (uint64_t i = 0; i < q->r.page_count; i++)
		if (kv_blob_page(q, i) >= q->r.decode.pages)
			return kv_error(error, WIMM_E_RANGE,
			                "kv sender: the request names page %" PRIu32 " of %" PRIu64,
			                kv_blob_page(q, i), q->r.decode.pages);
	return WIMM_OK;
}

static wimm_status check_remote(const struct kv_request *q, const struct kv_remote *remote,
                                struct wimm_error_info *error)
{
	uint64_t extent_bytes;
	wimm_status st = wimm_kv_layout_extent(&q->r.decode, &extent_bytes, error);

	if (st == WIMM_OK && extent_bytes > wimm_remote_mr_len_bytes(remote->mr))
		return kv_error(error, WIMM_E_RANGE,
		                "kv sender: the decode side's layout takes %" PRIu64
		                " bytes, its region has %" PRIu64,
		                extent_bytes, wimm_remote_mr_len_bytes(remote->mr));
	return st;
}

static wimm_status make_plan(struct wimm_kv_sender *s, const struct kv_request *q,
                             const struct wimm_kv_send_opts *o, struct wimm_error_info *error)
{
	const struct wimm_kv_layout *own = &s->base.cache->layout;
	struct wimm_kv_segment segment;
	bool any = kv_map_from(own, &q->r.decode, own->tp_rank, &segment);
	struct kv_job job = { own, &q->r.decode, &segment, s->told ? NULL : o->pages, NULL,
		              0,   { 0 },        0 };
	uint32_t *dst_pages;
	wimm_status st;

	s->lead = any && segment.dst_head == 0;
	job.units = kv_map_units(own, &q->r.decode, q->r.first_token, q->r.tokens);
	job.group = q->r.group_units;
	job.src_skip_tokens = (uint32_t)(q->r.first_token % own->page_tokens);
	s->unit_tokens = job.units.tokens;
	s->group = job.group;
	if (!any || q->r.page_count == 0)
		return WIMM_OK;
	dst_pages = kv_calloc(q->r.page_count, sizeof(*dst_pages));
	if (dst_pages == NULL)
		return kv_error(error, WIMM_E_NOMEM, "kv sender: no memory for its pages");
	for (uint64_t i = 0; i < q->r.page_count; i++)
		dst_pages[i] = kv_blob_page(q, i);
	job.dst_pages = dst_pages;
	st = kv_plan_init(&s->plan, &job);
	kv_free(dst_pages);
	if (st == WIMM_OK)
		s->units = kv_plan_total(&s->plan);
	if (st == WIMM_OK && !s->told)
		kv_plan_keep(&s->plan, s->base.cache->engine, s->base.cache->region);
	if (st == WIMM_OK && s->told) {
		/* Pages of this side, so many as the whole request takes. */
		s->told_list = kv_calloc(
			kv_sender_pages_before(q->r.first_token, own->page_tokens, q->r.tokens),
			sizeof(*s->told_list));
		if (s->told_list == NULL)
			st = WIMM_E_NOMEM;
	}
	return st == WIMM_OK ? st : kv_error(error, st, "kv sender: no memory for its pages");
}

static void set_steps(struct wimm_kv_sender *s, const struct kv_request *q,
                      const struct wimm_kv_send_opts *o)
{
	uint64_t left = q->r.tokens - o->computed_token;

	s->layers = s->base.cache->layout.layers;
	s->first_token = q->r.first_token;
	s->tokens = q->r.tokens;
	s->computed_token = o->computed_token;
	s->chunk_tokens = o->chunk_tokens != 0 ? o->chunk_tokens : left;
	s->chunks = left == 0 || s->told ? 0 : (left + s->chunk_tokens - 1) / s->chunk_tokens;
	s->from = kv_watch_value(s->watch);
	if ((o->flags & WIMM_KV_FROM_VALUE) != 0)
		s->from = o->watch_value;
	s->steps = s->chunks * s->layers;
	s->goal = s->units != 0 ? s->steps : 0;
	if (s->units != 0 && s->chunks == 0 && !s->told) {
		/* All of it is final already: as if one chunk had just been computed. */
		s->chunks = 1;
		s->goal = s->layers;
		s->from = kv_watch_value(s->watch) - s->goal;
	}
	s->wants_tail = q->r.tail != 0;
	s->wants_written = q->wants_written;
	s->tail = s->lead && s->wants_tail ? TAIL_WANTED : TAIL_NONE;
	s->tail_offset_bytes = q->tail_offset_bytes;
	s->tail_room_bytes = q->r.tail_room_bytes;
	s->empty_due = s->lead && q->r.page_count == 0 && !s->wants_tail;
}

/* All that is not in need of the lock. */
static wimm_status prepare(struct wimm_kv_sender *s, const struct kv_request *q,
                           const struct wimm_kv_send_opts *o, struct wimm_error_info *error)
{
	wimm_status st = make_plan(s, q, o, error);

	if (st == WIMM_OK && s->lead && q->r.tail != 0)
		st = kv_remote_get(s->base.cache, &q->tail_region, &s->tail_remote, error);
	if (st != WIMM_OK)
		return st;
	s->own_watch = o->watch == NULL;
	if (s->own_watch)
		st = kv_watch_take(s->base.cache, &s->watch);
	else
		s->watch = kv_watch_get(o->watch);
	if (st != WIMM_OK)
		return kv_error(error, st, "kv sender: a watched word: %s", wimm_status_text(st));
	set_steps(s, q, o);
	return WIMM_OK;
}

/* Becomes live: from here on the callback thread ends it. */
static wimm_status enlist(struct wimm_kv_sender *s, uint64_t deadline_us,
                          struct wimm_error_info *error)
{
	struct wimm_kv_cache *cache = s->base.cache;
	wimm_status st = WIMM_OK;

	kv_lock(cache);
	if (cache->closed || s->watch->closed)
		st = kv_error(error, WIMM_E_CLOSED, "kv sender: the cache or the word is closed");
	else if (!kv_slots_get(&cache->slots, &s->slot))
		st = kv_error(error, WIMM_AGAIN, "kv sender: max_requests are open");
	if (st == WIMM_OK) {
		st = start_timer(s, deadline_us);
		if (st != WIMM_OK) {
			(void)kv_error(error, st, "kv sender: its deadline: %s",
			               wimm_status_text(st));
			kv_slots_put(&cache->slots, s->slot);
		}
	}
	if (st == WIMM_OK) {
		kv_list_add(&cache->objects, &s->base.link);
		s->base.refs++;
		kv_watch_attach(s->watch, &s->follow);
		if (s->goal == 0 || kv_watch_value(s->watch) != s->from)
			kv_cache_kick(cache); /* there may be something to do at once */
	}
	kv_unlock(cache);
	return st;
}

/* One that never became live. */
static void undo(struct wimm_kv_sender *s)
{
	struct wimm_kv_cache *cache = s->base.cache;

	kv_lock(cache);
	kv_remote_put(cache, s->remote);
	kv_remote_put(cache, s->tail_remote);
	kv_unlock(cache);
	kv_object_put(&s->base);
}

static struct wimm_kv_sender *sender_alloc(struct wimm_kv_cache *cache, const struct kv_request *q,
                                           const struct wimm_kv_send_opts *o)
{
	struct wimm_kv_sender *s = kv_calloc(1, sizeof(*s));

	if (s == NULL)
		return NULL;
	kv_object_init(&s->base, cache, KV_SENDER);
	s->base.id = q->r.id;
	s->base.imm = q->r.imm;
	s->base.fn = o->fn;
	s->base.context = o->context;
	s->base.turn = kv_sender_turn;
	s->base.destroy = kv_sender_destroy;
	s->at_end = (o->flags & WIMM_KV_AT_END) != 0;
	s->told = (o->flags & WIMM_KV_CHUNKS_TOLD) != 0;
	s->slot = UINT32_MAX;
	s->lost_chunk = UINT64_MAX;
	kv_link_init(&s->follow);
	kv_link_init(&s->flights);
	kv_link_init(&s->spare_flights);
	kv_lock(cache);
	kv_cache_get(cache);
	kv_unlock(cache);
	return s;
}

/* The decode side waits for something that will not come. */
static void refuse(struct wimm_kv_cache *cache, const struct kv_remote *remote, uint64_t id,
                   const struct wimm_error_info *error)
{
	struct kv_message m = { .kind = KV_BLOB_FAILED, .id = id, .status = error->status };

	(void)snprintf(m.text, sizeof(m.text), "%.*s", KV_TEXT_BYTES - 1, error->text);
	/* A peer that cannot be told has its own deadline. */
	kv_ignore(kv_message_send(cache, wimm_remote_mr_peer(remote->mr), &m, NULL));
}

wimm_status wimm_kv_sender_open(struct wimm_kv_cache *cache, const struct wimm_kv_send_opts *o,
                                struct wimm_kv_sender **out, struct wimm_error_info *error)
{
	struct wimm_error_info own = { 0 };
	struct kv_remote *remote = NULL;
	struct wimm_kv_sender *s = NULL;
	struct kv_request q;
	wimm_status st;

	if (error == NULL)
		error = &own;
	if (cache == NULL || o == NULL || o->size != sizeof(*o) || out == NULL)
		return kv_error(error, WIMM_E_INVAL, "kv sender: an argument is missing");
	st = check_opts(o, error);
	if (st != WIMM_OK)
		return st;
	st = kv_blob_parse(o->request, o->request_bytes, &q);
	if (st != WIMM_OK && st != WIMM_E_MISMATCH)
		return kv_error(error, st, "kv sender: the request: %s", wimm_status_text(st));
	st = kv_remote_get(cache, &q.region, &remote, error);
	if (st != WIMM_OK)
		return st;
	st = check_pair(cache, &q.r, error);
	if (st == WIMM_OK)
		st = check_pages(cache, &q, o, error);
	if (st == WIMM_OK)
		st = check_remote(&q, remote, error);
	if (st == WIMM_OK) {
		s = sender_alloc(cache, &q, o);
		if (s == NULL)
			st = kv_error(error, WIMM_E_NOMEM, "kv sender: no memory");
	}
	if (st == WIMM_OK)
		st = prepare(s, &q, o, error);
	if (st == WIMM_OK) {
		s->remote = remote;
		st = enlist(s, o->deadline_us, error);
		if (st == WIMM_OK) { /* it may have ended by now */
			*out = s;
			return WIMM_OK;
		}
		s->remote = NULL;
	}
	if (st != WIMM_AGAIN)
		refuse(cache, remote, q.r.id, error);
	kv_lock(cache);
	kv_remote_put(cache, remote);
	kv_unlock(cache);
	if (s != NULL)
		undo(s);
	return st;
}
