/* SPDX-License-Identifier: Apache-2.0 */
/* The decode side of a request: its bytes, its expectation, its end. */
#include "kv/arrived.h"
#include "kv/kv_int.h"

#include <inttypes.h>
#include <string.h>

#include <wimm/cuda.h>

#define TOKENS_MAX (UINT64_C(1) << 40)

#define GROUP_UNITS            256 /* few enough to leave with their chunk */
#define GROUP_PIECE_BYTES_MOST 16384

struct wimm_kv_receiver {
	struct kv_object base;

	/* Fixed after open. */
	uint8_t *request;
	uint64_t request_bytes;
	uint64_t group; /* units that share an immediate */
	uint64_t count;
	uint64_t bytes;
	bool wants_tail;
	uint32_t slot;
	wimm_peer *peers; /* NULL: not known */
	uint32_t peer_count;

	/* Guarded by the cache's lock. */
	wimm_op expectation;
	bool counted;  /* the expectation has settled */
	bool closing;  /* the handle is gone */
	bool retiring; /* the immediate is being retired, or is */
	uint32_t told;    /* peers that were sent word of a failure */
	uint32_t telling; /* of these, those that have not got it yet */
	struct wimm_on_done on_quiet;
	struct kv_arrived arrived;

	/* Callback thread only, after the retirement. */
	uint32_t fence_at; /* the next of peers to ask about */
	bool fence_again;  /* the engine had no room */
	bool quiet_told;
	uint32_t answer; /* wimm_fence_answer, the worst so far */
};

static struct wimm_kv_receiver *receiver_of(struct kv_object *o)
{
	return KV_ENTRY(o, struct wimm_kv_receiver, base);
}

/* --- the end --- */

void kv_receiver_end(struct kv_object *o, wimm_status status, const char *text)
{
	struct wimm_kv_receiver *r = receiver_of(o);

	/* What has been counted by now decides: the expectation tells it in its callback. */
	if (!r->counted && kv_object_fail(o, status, text))
		kv_ignore(wimm_cancel(o->cache->engine, r->expectation));
}

void kv_receiver_heard(struct kv_object *o, wimm_peer peer, const struct kv_message *m)
{
	kv_arrived_heard(&receiver_of(o)->arrived, peer, m);
	if (m->kind == KV_BLOB_FAILED)
		kv_receiver_end(o, m->status, m->text);
}

void kv_receiver_abandon(struct kv_object *o)
{
	if (receiver_of(o)->closing)
		return;           /* its retirement is under way */
	kv_list_remove(&o->link); /* the slot stays taken: there will be no other request */
	o->refs--;                /* the list's; the handle has one too */
}

static void on_counted(void *context, const struct wimm_done *done)
{
	struct wimm_kv_receiver *r = context;

	kv_lock(r->base.cache);
	r->counted = true;
	if (done->status == WIMM_OK) {
		r->base.status = WIMM_OK; /* all is here, whatever was said meanwhile */
		r->base.text[0] = '\0';
	} else {
		(void)kv_object_fail(&r->base, done->status, done->text);
	}
	kv_unlock(r->base.cache);
	kv_object_turn(&r->base);
}

static void fill_done(struct wimm_kv_receiver *r, struct wimm_kv_done *done)
{
	struct wimm_kv_cache *cache = r->base.cache;
	const uint8_t *tail = kv_cache_tail(cache, r->slot);

	if (r->base.status != WIMM_OK)
		return;
	kv_arrived_all(&r->arrived);
	done->immediates = r->count;
	done->bytes = r->bytes;
	if (!r->wants_tail)
		return;
	if (kv_blob_tail_parse(tail, cache->tail_room_bytes, &done->first_token,
	                       &done->tail_bytes) != WIMM_OK) {
		(void)kv_object_fail(&r->base, WIMM_E_PROTOCOL,
		                     "the prefill side wrote a tail that is none");
		return;
	}
	done->tail = tail + KV_TAIL_HEAD_BYTES;
	done->bytes += KV_TAIL_HEAD_BYTES + done->tail_bytes;
}

/* --- after the report --- */

/* Callback thread, without the lock: what the application waits for, once. */
static void tell_quiet(struct wimm_kv_receiver *r, wimm_status status, wimm_peer peer,
                       const char *text)
{
	struct wimm_done done = { .status = status,
		                  .imm = r->base.imm,
		                  .peer = peer,
		                  .fence = r->answer,
		                  .text = text };

	if (r->quiet_told)
		return;
	r->quiet_told = true;
	/* What a session that is up has accepted is counted by now. No message finds it now. */
	if (status == WIMM_OK && r->base.status != WIMM_OK)
		kv_arrived_mark(&r->arrived, kv_peer_is_up, r->base.cache->engine);
	if (r->on_quiet.flag != NULL) /* as the engine does, for wimm_flag_load() */
		__atomic_store_n(r->on_quiet.flag,
		                 status == WIMM_OK ? 1 : (uint64_t)(int64_t)status,
		                 __ATOMIC_RELEASE);
	if (r->on_quiet.fn != NULL)
		r->on_quiet.fn(r->on_quiet.context, &done);
}

/* Callback thread, without the lock: nothing writes for this request any more. */
static void quiet(struct wimm_kv_receiver *r, wimm_status status, const char *text)
{
	struct wimm_kv_cache *cache = r->base.cache;

	kv_lock(cache);
	kv_list_remove(&r->base.link);
	kv_slots_put(&cache->slots, r->slot);
	kv_unlock(cache);
	tell_quiet(r, status, 0, text);
	kv_object_put(&r->base); /* the list's */
}

/* A rank whose session has ended with an error. It answered no question about the immediate, so its
 * paths are what matters. */
static bool is_lost(struct wimm_engine *engine, wimm_peer peer)
{
	struct wimm_peer_info info = WIMM_PEER_INFO_INIT;
	struct wimm_error_info error;

	if (wimm_peer_get_info(engine, peer, &info) != WIMM_OK)
		return true;
	return info.up == 0 && wimm_peer_last_error(engine, peer, &error) == WIMM_OK;
}

static void fence_next(struct wimm_kv_receiver *r);

static void on_fenced(void *context, const struct wimm_done *done)
{
	struct wimm_kv_receiver *r = context;

	if (done->fence > r->answer)
		r->answer = done->fence;
	/* Its pages, and its slot, stay out of use; the peer is asked about until it is gone. */
	if (done->fence == WIMM_FENCE_QUARANTINED)
		tell_quiet(r, WIMM_E_QUARANTINED, r->peers[r->fence_at], done->text);
	else
		r->fence_at = done->fence == WIMM_FENCE_NONE ? r->peer_count : r->fence_at + 1;
	fence_next(r);
	kv_object_turn(&r->base);
}

/* Callback thread, without the lock: ask about each lost rank, one by one. */
static void fence_next(struct wimm_kv_receiver *r)
{
	struct wimm_kv_cache *cache = r->base.cache;
	const struct wimm_on_done on_done = { on_fenced, r, NULL };
	wimm_status st;

	for (; r->fence_at < r->peer_count; r->fence_at++) {
		if (!is_lost(cache->engine, r->peers[r->fence_at]))
			continue;
		kv_lock(cache);
		r->base.refs++; /* the operation's */
		st = wimm_fence_peer(cache->engine, r->peers[r->fence_at], NULL, &on_done, NULL);
		if (st != WIMM_OK)
			r->base.refs--;
		r->fence_again = st == WIMM_AGAIN;
		if (r->fence_again)
			kv_cache_kick(cache);
		kv_unlock(cache);
		if (st == WIMM_OK || st == WIMM_AGAIN)
			return;
	}
	quiet(r, WIMM_OK, "");
}

static void on_retired(void *context, const struct wimm_done *done)
{
	struct wimm_kv_receiver *r = context;

	if (done->status != WIMM_OK) {
		quiet(r, done->status, done->text);
	} else if (r->peer_count == 0) {
		quiet(r, WIMM_OK, "");
	} else {
		r->answer = WIMM_FENCE_CONFIRMED; /* by those that are up */
		if (r->base.status == WIMM_OK)
			r->fence_at = r->peer_count; /* all has come, nothing else will */
		fence_next(r);
	}
	kv_object_turn(&r->base);
}

/* The peer has it, or is lost. */
static void on_told(void *context, const struct wimm_done *done)
{
	struct wimm_kv_receiver *r = context;

	(void)done;
	kv_lock(r->base.cache);
	r->telling--;
	kv_unlock(r->base.cache);
	kv_object_turn(&r->base);
}

static wimm_status tell_peers(struct wimm_kv_receiver *r)
{
	const struct wimm_on_done on_done = { on_told, r, NULL };
	const struct kv_message m = { .kind = KV_BLOB_CANCEL,
		                      .id = r->base.id,
		                      .status = WIMM_E_CANCELLED,
		                      .text = "given up by the decode side" };

	while (r->base.status != WIMM_OK && r->told < r->peer_count) {
		wimm_status st = kv_message_send(r->base.cache, r->peers[r->told], &m, &on_done);

		if (st == WIMM_AGAIN)
			return WIMM_AGAIN;
		if (st == WIMM_OK) { /* a peer that is lost needs no telling */
			r->telling++;
			r->base.refs++; /* the operation's */
		}
		r->told++;
	}
	return WIMM_OK;
}

/* Retired only once every sender has the message: it is answered after the callback that took it,
 * in which the sender stops, so nothing is posted for this immediate after the answer.
 * Returns: OK, AGAIN (no room, or on_told() goes on), or why it cannot be. */
static wimm_status start_retiring(struct wimm_kv_receiver *r)
{
	struct wimm_on_done on_done = { on_retired, r, NULL };
	wimm_status st = tell_peers(r);

	if (st == WIMM_OK && r->telling != 0)
		return WIMM_AGAIN;
	if (st == WIMM_OK)
		st = wimm_retire_imm(r->base.cache->engine, r->base.imm, &on_done, NULL);
	if (st == WIMM_OK)
		r->base.refs++; /* the operation's */
	return st;
}

static void receiver_turn(struct kv_object *o)
{
	struct wimm_kv_receiver *r = receiver_of(o);
	struct wimm_kv_cache *cache = o->cache;
	struct wimm_kv_done done = { 0 };
	wimm_status over = WIMM_OK;

	kv_lock(cache);
	if (r->counted && !o->reported) {
		fill_done(r, &done);
		o->reported = true;
		kv_unlock(cache);
		kv_object_report(o, &done);
		kv_lock(cache);
	}
	if (o->reported && r->closing && !r->retiring) {
		over = start_retiring(r);
		r->retiring = over != WIMM_AGAIN;
		if (over == WIMM_AGAIN && r->telling == 0)
			kv_cache_kick(cache);
	} else if (o->reported && cache->closed && !r->closing && !kv_list_empty(&o->link)) {
		kv_receiver_abandon(o);
	}
	kv_unlock(cache);
	if (over < 0) /* The engine is being closed: no session delivers anything any more. */
		quiet(r, over, wimm_status_text(over));
	else if (r->fence_again)
		fence_next(r);
}

static void receiver_destroy(struct kv_object *o)
{
	struct wimm_kv_receiver *r = receiver_of(o);

	kv_free(r->request);
	kv_free(r->peers);
	kv_arrived_fini(&r->arrived);
	kv_free(r);
}

/* --- opening --- */

static wimm_status check_opts(const struct wimm_kv_cache *cache,
                              const struct wimm_kv_receive_opts *o, struct wimm_error_info *error)
{
	const struct wimm_kv_layout *l = &cache->layout;
	uint64_t need;

	for (size_t i = 0; i < sizeof(o->reserved) / sizeof(o->reserved[0]); i++)
		if (o->reserved[i] != 0)
			return kv_error(error, WIMM_E_INVAL, "kv receiver: reserved is not zero");
	if (o->group_units > UINT32_MAX)
		return kv_error(error, WIMM_E_INVAL, "kv receiver: group_units passes 2^32 - 1");
	if (o->flags != 0 || (o->pages == NULL && o->page_count != 0) ||
	    (o->note == NULL && o->note_bytes != 0) || (o->peers == NULL && o->peer_count != 0))
		return kv_error(error, WIMM_E_INVAL,
		                "kv receiver: an argument is missing, or "
		                "unknown flags");
	if (cache->desc.len_bytes == 0)
		return kv_error(error, WIMM_E_UNSUPPORTED,
		                "kv receiver: its cache's region is for this side only");
	if (o->tokens == 0 || o->tokens > TOKENS_MAX || o->first_token > o->tokens ||
	    o->first_token % l->page_tokens != 0)
		return kv_error(error, WIMM_E_INVAL,
		                "kv receiver: tokens %" PRIu64 " to %" PRIu64
		                ": not within 1 to 2^40, or not from a whole page of %" PRIu32
		                " on",
		                o->first_token, o->tokens, l->page_tokens);
	need = (o->tokens + l->page_tokens - 1) / l->page_tokens - o->first_token / l->page_tokens;
	if (o->page_count != need)
		return kv_error(error, WIMM_E_INVAL,
		                "kv receiver: %" PRIu64 " pages, tokens %" PRIu64 " to %" PRIu64
		                " take %" PRIu64,
		                o->page_count, o->first_token, o->tokens, need);
	for (uint64_t i = 0; i < o->page_count; i++)
		if (o->pages[i] >= l->pages)
			return kv_error(error, WIMM_E_RANGE,
			                "kv receiver: page %" PRIu32 ", the cache has %" PRIu64,
			                o->pages[i], l->pages);
	return WIMM_OK;
}

/* The bytes of the pages; the tail's are known when it is here. */
static uint64_t token_bytes(const struct wimm_kv_layout *l, uint64_t tokens)
{
	return tokens * l->layers * kv_layout_parts(l) * kv_layout_heads(l, l->tp_rank).count *
	       kv_layout_row_bytes(l);
}

static wimm_status make_request(struct wimm_kv_receiver *r, const struct wimm_kv_layout *prefill,
                                const struct wimm_kv_receive_opts *o)
{
	struct wimm_kv_cache *cache = r->base.cache;
	struct kv_request q = { .r = WIMM_KV_REQUEST_INIT };

	q.r.group_units = r->group;
	q.r.id = r->base.id;
	q.r.imm = r->base.imm;
	q.r.tokens = o->tokens;
	q.r.first_token = o->first_token;
	q.r.page_count = o->page_count;
	q.r.tail = o->tail != 0;
	q.wants_written = o->arrived != NULL;
	q.r.tail_room_bytes = cache->tail_room_bytes;
	q.r.decode = cache->layout;
	q.r.prefill = *prefill;
	q.r.note = o->note;
	q.r.note_bytes = o->note_bytes;
	q.region = cache->desc;
	q.tail_region = cache->tail_desc;
	q.tail_offset_bytes = r->slot * cache->tail_stride_bytes;
	r->request = kv_blob_request(&q, o->pages, &r->request_bytes);
	return r->request != NULL ? WIMM_OK : WIMM_E_NOMEM;
}

/* With the lock: the callback waits for it. */
static wimm_status arm(struct wimm_kv_receiver *r, const struct wimm_kv_layout *prefill,
                       const struct wimm_kv_receive_opts *o, struct wimm_error_info *error)
{
	struct wimm_kv_cache *cache = r->base.cache;
	struct wimm_expect_opts opts = WIMM_EXPECT_OPTS_INIT;
	struct wimm_on_done on_done = { on_counted, r, NULL };
	struct wimm_owes *owes = NULL;
	struct kv_units units;
	wimm_status st = WIMM_OK;

	units = kv_map_units(prefill, &cache->layout, o->first_token, o->tokens);
	opts.deadline_us = o->deadline_us;
	if (r->peer_count != 0) {
		owes = kv_calloc(r->peer_count, sizeof(*owes));
		if (owes == NULL)
			return kv_error(error, WIMM_E_NOMEM, "kv receiver: no memory");
	}
	for (uint32_t i = 0; st == WIMM_OK && i < r->peer_count; i++) {
		owes[opts.owes_count].peer = r->peers[i];
		st = wimm_kv_count(prefill, &cache->layout, kv_map_groups(&units, r->group),
		                   o->tail, i, &owes[opts.owes_count].count, error);
		if (st == WIMM_OK && owes[opts.owes_count].count != 0)
			opts.owes_count++;
	}
	opts.owes = opts.owes_count != 0 ? owes : NULL;
	if (st == WIMM_OK) {
		st = wimm_expect_imm_count(cache->engine, r->base.imm, r->count, &opts, &on_done,
		                           &r->expectation);
		if (st != WIMM_OK)
			st = kv_error(error, st, "kv receiver: the expectation: %s",
			              wimm_status_text(st));
	}
	kv_free(owes);
	return st;
}

/* Becomes live: slot, immediate, request, expectation. */
static wimm_status enlist(struct wimm_kv_receiver *r, const struct wimm_kv_layout *prefill,
                          const struct wimm_kv_receive_opts *o, struct wimm_error_info *error)
{
	struct wimm_kv_cache *cache = r->base.cache;
	wimm_status st;

	if (cache->closed)
		return kv_error(error, WIMM_E_CLOSED, "kv receiver: the cache is closed");
	if (!kv_slots_get(&cache->slots, &r->slot))
		return kv_error(error, WIMM_AGAIN, "kv receiver: max_requests are open");
	r->base.imm = cache->imm_first + r->slot;
	st = make_request(r, prefill, o);
	if (st == WIMM_OK)
		st = arm(r, prefill, o, error);
	else
		st = kv_error(error, st, "kv receiver: no memory for its request");
	if (st != WIMM_OK) {
		kv_slots_put(&cache->slots, r->slot);
		return st;
	}
	r->base.refs += 2; /* the list's, the expectation's */
	kv_list_add(&cache->objects, &r->base.link);
	return WIMM_OK;
}

static struct wimm_kv_receiver *receiver_alloc(struct wimm_kv_cache *cache,
                                               const struct wimm_kv_receive_opts *o)
{
	struct wimm_kv_receiver *r = kv_calloc(1, sizeof(*r));

	if (r == NULL)
		return NULL;
	r->peer_count = o->peer_count;
	if (o->peer_count != 0) {
		r->peers = kv_calloc(o->peer_count, sizeof(*r->peers));
		if (r->peers == NULL) {
			kv_free(r);
			return NULL;
		}
		memcpy(r->peers, o->peers, o->peer_count * sizeof(*r->peers));
	}
	kv_object_init(&r->base, cache, KV_RECEIVER);
	r->base.id = kv_random_id();
	r->base.fn = o->fn;
	r->base.context = o->context;
	r->base.turn = receiver_turn;
	r->base.destroy = receiver_destroy;
	r->bytes = token_bytes(&cache->layout, o->tokens - o->first_token);
	r->wants_tail = o->tail != 0;
	kv_lock(cache);
	kv_cache_get(cache);
	kv_unlock(cache);
	return r;
}

/* Whether prefill's card writes here by itself: then a list of pages is one launch and one entry,
 * however many immediates it stands for. That is provider host, whose peers are all of this
 * machine; over a NIC, or staged, a page is a request. */
static bool is_by_card(const struct wimm_kv_cache *cache)
{
	char text[WIMM_NET_ADDR_MAX_TEXT];
	struct wimm_net_addr addr;

	return wimm_mr_cuda_device(cache->region) >= 0 &&
	       wimm_main_address(cache->engine, &addr) == WIMM_OK &&
	       wimm_net_addr_to_string(&addr, text, sizeof(text)) == WIMM_OK &&
	       strncmp(text, "host:", 5) == 0;
}

/* Where nobody asks for a group: an immediate for each piece costs its request, beside the
 * time of its bytes. That is worth saving where pages are small and most of them have their
 * neighbour beside them here (docs/decisions/0013-groups-of-units.md has the measurements). Few
 * pages stay as they are: they take no time, and can go over another NIC one by one. */
static uint64_t choose_group(const struct wimm_kv_layout *prefill,
                             const struct wimm_kv_cache *cache,
                             const struct wimm_kv_receive_opts *o)
{
	struct kv_map_step step = { 0 };
	struct wimm_kv_segment s;
	uint64_t in_row = 0;

	if (o->group_units != 0)
		return o->group_units;
	if (o->page_count < GROUP_UNITS || !kv_map_next(prefill, &cache->layout, &step, &s) ||
	    s.piece_bytes >= GROUP_PIECE_BYTES_MOST || is_by_card(cache))
		return 1;
	for (uint64_t i = 1; i < o->page_count; i++)
		in_row += o->pages[i] - o->pages[i - 1] == 1;
	if (in_row < o->page_count / 2)
		return 1;
	return GROUP_UNITS;
}

wimm_status wimm_kv_receiver_open(struct wimm_kv_cache *cache, const struct wimm_kv_receive_opts *o,
                                  struct wimm_kv_receiver **out, struct wimm_error_info *error)
{
	const struct wimm_kv_layout *prefill;
	struct wimm_kv_receiver *r;
	struct kv_units units;
	uint64_t count, group;
	wimm_status st;

	if (cache == NULL || o == NULL || o->size != sizeof(*o) || out == NULL)
		return kv_error(error, WIMM_E_INVAL, "kv receiver: an argument is missing");
	st = check_opts(cache, o, error);
	if (st != WIMM_OK)
		return st;
	prefill = o->prefill != NULL ? o->prefill : &cache->layout;
	st = wimm_kv_compare(prefill, &cache->layout, error);
	if (st != WIMM_OK)
		return st;
	group = choose_group(prefill, cache, o);
	units = kv_map_units(prefill, &cache->layout, o->first_token, o->tokens);
	st = wimm_kv_count(prefill, &cache->layout, kv_map_groups(&units, group), o->tail,
	                   WIMM_KV_ALL_RANKS, &count, error);
	if (st != WIMM_OK)
		return st;
	if (o->peer_count != 0 && o->peer_count != prefill->tp)
		return kv_error(error, WIMM_E_INVAL,
		                "kv receiver: %" PRIu32 " peers for %" PRIu32 " prefill ranks",
		                o->peer_count, prefill->tp);
	r = receiver_alloc(cache, o);
	if (r == NULL)
		return kv_error(error, WIMM_E_NOMEM, "kv receiver: no memory");
	r->group = group;
	r->count = count;
	st = kv_arrived_init(&r->arrived, prefill, &cache->layout, o);
	if (st != WIMM_OK) {
		kv_object_put(&r->base);
		return kv_error(error, st, "kv receiver: no memory");
	}
	kv_lock(cache);
	st = enlist(r, prefill, o, error);
	kv_unlock(cache);
	if (st != WIMM_OK) {
		kv_object_put(&r->base);
		return st;
	}
	*out = r;
	return WIMM_OK;
}

/* --- calls on an open one --- */

const void *wimm_kv_receiver_request(const struct wimm_kv_receiver *r, uint64_t *out_bytes)
{
	if (r == NULL || out_bytes == NULL)
		return NULL;
	*out_bytes = r->request_bytes;
	return r->request;
}

uint64_t wimm_kv_receiver_count(const struct wimm_kv_receiver *r)
{
	return r != NULL ? r->count : 0;
}

wimm_status wimm_kv_receiver_close(struct wimm_kv_receiver **handle,
                                   const struct wimm_on_done *on_quiet)
{
	struct wimm_kv_receiver *r;
	struct wimm_kv_cache *cache;
	wimm_status st = WIMM_OK;

	if (handle == NULL)
		return WIMM_E_INVAL;
	r = *handle;
	if (r == NULL)
		return WIMM_OK;
	cache = r->base.cache;
	kv_lock(cache);
	if (kv_list_empty(&r->base.link)) {
		st = WIMM_E_CLOSED; /* abandoned when the cache was closed */
	} else {
		r->closing = true;
		if (on_quiet != NULL)
			r->on_quiet = *on_quiet;
		else
			r->arrived.pages = NULL; /* the application is not told when to look */
		if (!r->base.reported)
			kv_receiver_end(&r->base, WIMM_E_CANCELLED, "given up by the decode side");
		kv_cache_kick(cache);
	}
	kv_unlock(cache);
	kv_object_put(&r->base);
	*handle = NULL;
	return st;
}
