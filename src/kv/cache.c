/* SPDX-License-Identifier: Apache-2.0 */
/* What the requests of one cache share, and how it begins and ends. */
#include "kv/kv_int.h"

#include <inttypes.h>
#include <string.h>

#define MAX_REQUESTS_DEFAULT  64
#define MAX_REQUESTS_MOST     65536
#define MESSAGES_MOST         1024
#define MESSAGE_BYTES_DEFAULT 65536
#define TAIL_ROOM_MOST        (UINT64_C(1) << 30)
#define TAIL_ALIGN_BYTES      64

void kv_lock(struct wimm_kv_cache *cache)
{
	(void)pthread_mutex_lock(&cache->lock);
}

void kv_unlock(struct wimm_kv_cache *cache)
{
	(void)pthread_mutex_unlock(&cache->lock);
}

void kv_cache_get(struct wimm_kv_cache *cache)
{
	cache->refs++;
}

static void cache_free(struct wimm_kv_cache *cache)
{
	kv_slots_fini(&cache->slots);
	kv_free(cache->messages);
	kv_free(cache->tail);
	(void)pthread_mutex_destroy(&cache->lock);
	kv_free(cache);
}

void kv_cache_put(struct wimm_kv_cache *cache)
{
	bool last;

	kv_lock(cache);
	last = --cache->refs == 0;
	kv_unlock(cache);
	if (last)
		cache_free(cache);
}

uint8_t *kv_cache_tail(const struct wimm_kv_cache *cache, uint32_t slot)
{
	return cache->tail + slot * cache->tail_stride_bytes;
}

/* --- turns --- */

void kv_cache_kick(struct wimm_kv_cache *cache)
{
	if (cache->ended)
		return;
	(void)wimm_uvm_watcher_add(cache->kick_word, 1);
	/* Armed after the change: the callback, which disarms first, finds what it is for. In a
	 * fork's child it is refused: nothing runs there. */
	kv_ignore(wimm_uvm_watcher_arm(cache->kick_word, 1));
}

/* The tails' memory is the engine's no more; it may go with the last reference. */
static void on_tails_free(void *context, const struct wimm_done *done)
{
	(void)done;
	kv_cache_put(context);
}

void kv_cache_end_if_over(struct wimm_kv_cache *cache)
{
	struct wimm_on_done on_done = { on_tails_free, cache, NULL };

	kv_lock(cache);
	if (!cache->closed || cache->ended || !kv_list_empty(&cache->objects)) {
		kv_unlock(cache);
		return;
	}
	cache->ended = true;
	kv_remotes_close(cache);
	kv_unlock(cache);
	kv_watches_close(cache);
	/* None of these is refused to the engine's own threads. Should the tails be kept, their
	 * memory stays. */
	if (cache->recvs != 0)
		kv_ignore(wimm_cancel(cache->engine, cache->recvs));
	kv_ignore(wimm_free_uvm_watcher(cache->kick_word));
	/* With the application's reference. */
	kv_ignore(wimm_dereg_mr(cache->engine, cache->tail_mr, &on_done));
}

void kv_cache_turn_due(struct wimm_kv_cache *cache)
{
	kv_lock(cache);
	kv_cache_get(cache);
	for (;;) {
		struct kv_object *due = NULL;

		KV_FOR_EACH(it, &cache->objects)
		{
			due = KV_ENTRY(it, struct kv_object, link);
			if (due->due)
				break;
			due = NULL;
		}
		if (due == NULL)
			break;
		due->due = false;
		due->refs++;
		kv_unlock(cache);
		due->turn(due);
		kv_object_put(due);
		kv_lock(cache);
	}
	kv_unlock(cache);
	kv_cache_end_if_over(cache);
	kv_cache_put(cache);
}

static void on_kick(void *context, uint64_t old_value, uint64_t new_value)
{
	struct wimm_kv_cache *cache = context;

	(void)old_value;
	(void)new_value;
	kv_lock(cache);
	kv_ignore(wimm_uvm_watcher_arm(cache->kick_word, 0)); /* never refused to this thread */
	KV_FOR_EACH(it, &cache->objects)
	KV_ENTRY(it, struct kv_object, link)->due = true;
	kv_unlock(cache);
	kv_cache_turn_due(cache);
}

/* --- messages --- */

/* One side of a request to the other. */
static wimm_status take_word(struct wimm_kv_cache *cache, wimm_peer peer, const void *data,
                             uint64_t len_bytes)
{
	struct kv_message m;
	wimm_status st = kv_blob_message_parse(data, len_bytes, &m);
	struct kv_object *o;

	if (st != WIMM_OK)
		return st;
	kv_lock(cache);
	o = kv_object_find(cache, m.kind == KV_BLOB_CANCEL ? KV_SENDER : KV_RECEIVER, m.id);
	if (o == NULL) {
		st = WIMM_E_NOT_FOUND; /* of another cache, or over already */
	} else if (m.kind == KV_BLOB_CANCEL) {
		kv_sender_end(o, m.status, m.text, false);
		kv_cache_kick(cache);
	} else {
		kv_receiver_heard(o, peer, &m);
	}
	kv_unlock(cache);
	return st;
}

static wimm_status take_message(struct wimm_kv_cache *cache, wimm_peer peer, const void *data,
                                uint64_t len_bytes)
{
	enum kv_blob_kind kind = KV_BLOB_REQUEST;
	wimm_status st = kv_blob_kind(data, len_bytes, &kind);
	bool closed;

	if (st != WIMM_OK)
		return st;
	if (kind != KV_BLOB_REQUEST)
		return take_word(cache, peer, data, len_bytes);
	kv_lock(cache);
	closed = cache->closed;
	kv_unlock(cache);
	if (cache->on_request == NULL || closed)
		return WIMM_E_NOT_FOUND;
	cache->on_request(cache->context, peer, data, len_bytes);
	return WIMM_OK;
}

wimm_status wimm_kv_cache_message(struct wimm_kv_cache *cache, wimm_peer peer, const void *data,
                                  uint64_t len_bytes)
{
	if (cache == NULL || (data == NULL && len_bytes != 0))
		return WIMM_E_INVAL;
	return take_message(cache, peer, data, len_bytes);
}

static void on_message(void *context, const struct wimm_received *received)
{
	struct wimm_kv_cache *cache = context;

	if (received->status != WIMM_OK) {
		kv_cache_put(cache); /* one for each buffer */
		return;
	}
	/* What is none of a cache's own messages has nobody else to go to. */
	kv_ignore(take_message(cache, received->peer, received->addr, received->len_bytes));
}

static wimm_status open_messages(struct wimm_kv_cache *cache, const struct wimm_kv_cache_opts *o,
                                 struct wimm_error_info *error)
{
	uint64_t each = o->message_bytes != 0 ? o->message_bytes : MESSAGE_BYTES_DEFAULT;
	struct wimm_recv_buffer *buffers;
	wimm_status st;

	if (o->messages == 0)
		return WIMM_OK;
	cache->messages = kv_calloc(o->messages, each);
	buffers = kv_calloc(o->messages, sizeof(*buffers));
	if (cache->messages == NULL || buffers == NULL) {
		kv_free(buffers);
		return kv_error(error, WIMM_E_NOMEM, "kv cache: no memory for messages");
	}
	for (uint32_t i = 0; i < o->messages; i++) {
		buffers[i].addr = cache->messages + i * each;
		buffers[i].len_bytes = each;
	}
	kv_lock(cache);
	st = wimm_submit_recvs(cache->engine, buffers, o->messages, on_message, cache,
	                       &cache->recvs);
	if (st == WIMM_OK)
		cache->refs += o->messages;
	kv_unlock(cache);
	kv_free(buffers);
	if (st != WIMM_OK)
		return kv_error(error, st, "kv cache: buffers for messages: %s",
		                wimm_status_text(st));
	return WIMM_OK;
}

/* --- opening --- */

static wimm_status check_opts(const struct wimm_kv_cache_opts *o, struct wimm_error_info *error)
{
	for (size_t i = 0; i < sizeof(o->reserved) / sizeof(o->reserved[0]); i++)
		if (o->reserved[i] != 0)
			return kv_error(error, WIMM_E_INVAL, "kv cache: reserved is not zero");
	if (o->flags != 0 || o->region == NULL)
		return kv_error(error, WIMM_E_INVAL, "kv cache: no region, or unknown flags");
	if (o->max_requests > MAX_REQUESTS_MOST || o->messages > MESSAGES_MOST ||
	    o->tail_room_bytes > TAIL_ROOM_MOST)
		return kv_error(error, WIMM_E_INVAL,
		                "kv cache: max_requests %" PRIu32 " (at most %d), messages %" PRIu32
		                " (%d), tail_room_bytes %" PRIu64 " (2^30)",
		                o->max_requests, MAX_REQUESTS_MOST, o->messages, MESSAGES_MOST,
		                o->tail_room_bytes);
	return WIMM_OK;
}

/* A region that peers may not write to serves the prefill side only. */
static wimm_status describe(struct wimm_kv_cache *cache, struct wimm_error_info *error)
{
	wimm_status st = wimm_mr_get_desc(cache->region, &cache->desc);

	if (st == WIMM_E_UNSUPPORTED) {
		memset(&cache->desc, 0, sizeof(cache->desc));
		return WIMM_OK;
	}
	return st == WIMM_OK ? st : kv_error(error, st, "kv cache: the region has no descriptor");
}

static wimm_status open_tails(struct wimm_kv_cache *cache, uint32_t slots,
                              struct wimm_error_info *error)
{
	uint64_t stride = KV_TAIL_HEAD_BYTES + cache->tail_room_bytes + TAIL_ALIGN_BYTES - 1;
	wimm_status st;

	cache->tail_stride_bytes = stride / TAIL_ALIGN_BYTES * TAIL_ALIGN_BYTES;
	cache->tail = kv_calloc(slots, cache->tail_stride_bytes);
	if (cache->tail == NULL || !kv_slots_init(&cache->slots, slots))
		return kv_error(error, WIMM_E_NOMEM,
		                "kv cache: no memory for %" PRIu32 " tails of %" PRIu64 " bytes",
		                slots, cache->tail_stride_bytes);
	st = wimm_reg_mr(cache->engine, cache->tail, slots * cache->tail_stride_bytes, NULL,
	                 &cache->tail_mr);
	if (st != WIMM_OK)
		return kv_error(error, st, "kv cache: memory for tails: %s",
		                wimm_last_error_text());
	st = wimm_mr_get_desc(cache->tail_mr, &cache->tail_desc);
	return st == WIMM_OK ? st : kv_error(error, st, "kv cache: tails have no descriptor");
}

static struct wimm_kv_cache *cache_alloc(struct wimm_engine *engine,
                                         const struct wimm_kv_cache_opts *o)
{
	struct wimm_kv_cache *cache = kv_calloc(1, sizeof(*cache));

	if (cache == NULL)
		return NULL;
	cache->engine = engine;
	cache->region = o->region;
	cache->layout = *o->layout;
	cache->tail_room_bytes = o->tail_room_bytes;
	cache->imm_first = o->imm_first;
	cache->on_request = o->on_request;
	cache->context = o->context;
	cache->refs = 1;
	kv_link_init(&cache->objects);
	kv_link_init(&cache->remotes);
	kv_link_init(&cache->spare_watches);
	(void)pthread_mutex_init(&cache->lock, NULL);
	return cache;
}

/* Of a cache that nobody has seen yet. The engine may still hold the tails: a reference each. */
static void undo_open(struct wimm_kv_cache *cache)
{
	struct wimm_on_done on_done = { on_tails_free, cache, NULL };

	cache->ended = true;
	if (cache->kick_word != NULL && wimm_free_uvm_watcher(cache->kick_word) != WIMM_OK)
		return; /* a fork's child: nothing of it is ours */
	if (cache->tail_mr != NULL) {
		kv_lock(cache);
		kv_cache_get(cache);
		kv_unlock(cache);
		if (wimm_dereg_mr(cache->engine, cache->tail_mr, &on_done) != WIMM_OK)
			return; /* the engine keeps it, so its memory stays */
	}
	kv_cache_put(cache);
}

wimm_status wimm_kv_cache_open(struct wimm_engine *engine, const struct wimm_kv_cache_opts *o,
                               struct wimm_kv_cache **out, struct wimm_error_info *error)
{
	struct wimm_kv_cache *cache;
	uint64_t extent_bytes = 0;
	wimm_status st;

	if (engine == NULL || o == NULL || o->size != sizeof(*o) || out == NULL)
		return kv_error(error, WIMM_E_INVAL, "kv cache: an argument is missing");
	st = check_opts(o, error);
	if (st == WIMM_OK)
		st = wimm_kv_layout_extent(o->layout, &extent_bytes, error);
	if (st != WIMM_OK)
		return st;
	if (extent_bytes > wimm_mr_len_bytes(o->region))
		return kv_error(error, WIMM_E_RANGE,
		                "kv cache: the layout takes %" PRIu64
		                " bytes, the region has %" PRIu64,
		                extent_bytes, wimm_mr_len_bytes(o->region));
	cache = cache_alloc(engine, o);
	if (cache == NULL)
		return kv_error(error, WIMM_E_NOMEM, "kv cache: no memory");
	cache->extent_bytes = extent_bytes;
	st = describe(cache, error);
	if (st == WIMM_OK)
		st = open_tails(cache,
		                o->max_requests != 0 ? o->max_requests : MAX_REQUESTS_DEFAULT,
		                error);
	if (st == WIMM_OK) {
		st = wimm_alloc_uvm_watcher(engine, on_kick, cache, &cache->kick_word);
		if (st != WIMM_OK)
			st = kv_error(error, st, "kv cache: a watched word: %s",
			              wimm_status_text(st));
	}
	if (st == WIMM_OK)
		st = wimm_uvm_watcher_arm(cache->kick_word, 0);
	if (st == WIMM_OK)
		st = open_messages(cache, o, error);
	if (st != WIMM_OK) {
		undo_open(cache);
		return st;
	}
	*out = cache;
	return WIMM_OK;
}

wimm_status wimm_kv_cache_close(struct wimm_kv_cache **handle)
{
	struct wimm_kv_cache *cache;
	wimm_status st;

	if (handle == NULL)
		return WIMM_E_INVAL;
	cache = *handle;
	if (cache == NULL)
		return WIMM_OK;
	/* Asked first, since it refuses a fork's child, which must touch nothing. */
	st = wimm_uvm_watcher_arm(cache->kick_word, 0);
	if (st != WIMM_OK)
		return st;
	kv_lock(cache);
	cache->closed = true;
	KV_FOR_EACH(it, &cache->objects)
	{
		struct kv_object *o = KV_ENTRY(it, struct kv_object, link);

		if (o->kind == KV_SENDER)
			kv_sender_end(o, WIMM_E_CLOSED, "the cache was closed", true);
		else if (o->reported)
			kv_receiver_abandon(o);
		else
			kv_receiver_end(o, WIMM_E_CLOSED, "the cache was closed");
	}
	/* The callback thread ends the cache, at once if nothing was open. */
	kv_cache_kick(cache);
	kv_unlock(cache);
	*handle = NULL;
	return WIMM_OK;
}
