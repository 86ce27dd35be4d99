/* SPDX-License-Identifier: Apache-2.0 */
/* The prefill side of a request: steps in, paged writes out. */
#include "kv/sender.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* An operation under way. Those that came back wait for their next use. */
struct flight {
	struct kv_link link;
	struct wimm_kv_sender *sender;
	wimm_op op;
	uint64_t chunk; /* NO_CHUNK: it carries none of the pages */
	uint64_t immediates;
};

#define NO_CHUNK UINT64_MAX

static struct wimm_kv_sender *sender_of(struct kv_object *o)
{
	return KV_ENTRY(o, struct wimm_kv_sender, base);
}

struct kv_object *kv_sender_of_follower(struct kv_link *follower)
{
	return &KV_ENTRY(follower, struct wimm_kv_sender, follow)->base;
}

/* --- flights --- */

static struct flight *flight_get(struct wimm_kv_sender *s)
{
	struct flight *f;

	if (!kv_list_empty(&s->spare_flights)) {
		f = KV_ENTRY(s->spare_flights.next, struct flight, link);
		kv_list_remove(&f->link);
		return f;
	}
	f = kv_calloc(1, sizeof(*f));
	if (f == NULL)
		return NULL;
	kv_link_init(&f->link);
	f->sender = s;
	return f;
}

static void on_write(void *context, const struct wimm_done *done)
{
	struct flight *f = context;
	struct wimm_kv_sender *s = f->sender;
	struct wimm_kv_cache *cache = s->base.cache;

	kv_lock(cache);
	kv_list_remove(&f->link);
	kv_list_add(&s->spare_flights, &f->link);
	s->in_flight--;
	if (done->status == WIMM_OK) {
		s->immediates += f->immediates;
		s->bytes += done->bytes;
	} else {
		if (f->chunk < s->lost_chunk)
			s->lost_chunk = f->chunk;
		if (s->remote != NULL && done->status != WIMM_E_CANCELLED)
			s->remote->bad = true;
		kv_sender_end(&s->base, done->status, done->text, true);
	}
	kv_unlock(cache);
	kv_object_turn(&s->base);
}

/* What a submission said: it is under way, or never will be. */
static void flown(struct wimm_kv_sender *s, struct flight *f, wimm_status st, uint64_t chunk,
                  uint64_t immediates)
{
	if (st != WIMM_OK) {
		kv_list_add(&s->spare_flights, &f->link);
		return;
	}
	f->chunk = chunk;
	f->immediates = immediates;
	kv_list_add(&s->flights, &f->link);
	s->in_flight++;
	s->base.refs++;
}

/* --- what is written --- */

/* Units that are final with the tokens before `token`, counted from the request's first. Those that
 * share an immediate leave together. */
static uint64_t units_before(const struct wimm_kv_sender *s, uint64_t token)
{
	uint64_t units;

	if (token <= s->first_token)
		return 0;
	units = (token - s->first_token) / s->unit_tokens;
	units -= units % s->group;
	return units < s->units ? units : s->units;
}

/* The same after chunk `chunk`. */
static uint64_t chunk_end(const struct wimm_kv_sender *s, uint64_t chunk)
{
	if (s->told)
		return s->chunk_units[chunk];
	if (chunk + 1 == s->chunks)
		return s->units; /* the one that the prompt ends in too */
	return units_before(s, s->computed_token + (chunk + 1) * s->chunk_tokens);
}

static wimm_status send_call(struct wimm_kv_sender *s, uint64_t first, uint64_t end)
{
	struct wimm_paged_writes w = WIMM_PAGED_WRITES_INIT;
	struct flight *f = flight_get(s);
	struct wimm_on_done on_done = { on_write, f, NULL };
	uint64_t immediates;
	wimm_status st;

	if (f == NULL)
		return WIMM_E_NOMEM;
	immediates =
		kv_plan_fill(&s->plan, (uint32_t)(s->step % s->layers), first, end, s->call, &w);
	w.imm = s->base.imm;
	w.src = s->base.cache->region;
	w.dst = s->remote->mr;
	st = wimm_submit_paged_writes(s->base.cache->engine, &w, &on_done, &f->op);
	flown(s, f, st, s->step / s->layers, immediates);
	return st;
}

/* Whether `goal` is the last word about it. */
static bool all_told(const struct wimm_kv_sender *s)
{
	return !s->told || s->told_token == s->tokens || s->units == 0;
}

/* Every step that the word has reached, each once, in order. */
static wimm_status send_steps(struct wimm_kv_sender *s)
{
	uint64_t reached = kv_watch_value(s->watch) - s->from;

	if (reached > s->goal) /* also below the start: a value yet to come */
		reached = (int64_t)reached < 0 ? 0 : s->goal;
	if (s->at_end && (reached < s->goal || !all_told(s)))
		return WIMM_OK;
	while (s->step < reached) {
		uint64_t chunk = s->step / s->layers;
		uint64_t first = chunk == 0 ? 0 : chunk_end(s, chunk - 1);
		uint64_t end = chunk_end(s, chunk);

		while (end > first && s->call < kv_plan_calls(&s->plan, first, end)) {
			wimm_status st = send_call(s, first, end);

			if (st != WIMM_OK)
				return st;
			s->call++;
		}
		s->call = 0;
		s->step++;
	}
	return WIMM_OK;
}

/* One contiguous write with the immediate; 0 bytes carry nothing else. */
static wimm_status send_single(struct wimm_kv_sender *s, const struct wimm_mr *src,
                               uint64_t src_offset_bytes, uint64_t len_bytes)
{
	struct wimm_write w = WIMM_WRITE_INIT;
	struct flight *f = flight_get(s);
	struct wimm_on_done on_done = { on_write, f, NULL };
	wimm_status st;

	if (f == NULL)
		return WIMM_E_NOMEM;
	w.flags = WIMM_IMM;
	w.imm = s->base.imm;
	w.src = src;
	w.src_offset_bytes = src_offset_bytes;
	w.len_bytes = len_bytes;
	w.dst = len_bytes != 0 ? s->tail_remote->mr : s->remote->mr;
	w.dst_offset_bytes = len_bytes != 0 ? s->tail_offset_bytes : 0;
	st = wimm_submit_single_write(s->base.cache->engine, &w, &on_done, &f->op);
	flown(s, f, st, NO_CHUNK, 1);
	return st;
}

static wimm_status send_all(struct wimm_kv_sender *s)
{
	struct wimm_kv_cache *cache = s->base.cache;
	wimm_status st = send_steps(s);

	if (st == WIMM_OK && s->empty_due) {
		st = send_single(s, cache->region, 0, 0);
		s->empty_due = st != WIMM_OK;
	}
	if (st == WIMM_OK && s->tail == TAIL_READY) {
		st = send_single(s, cache->tail_mr, s->slot * cache->tail_stride_bytes,
		                 s->tail_bytes);
		if (st == WIMM_OK)
			s->tail = TAIL_SENT;
	}
	return st;
}

/* Chunks whose last write was accepted, and all before it. */
static uint64_t chunks_written(const struct wimm_kv_sender *s)
{
	uint64_t count = s->step / s->layers;

	/* In the order of their chunks, but for those that have none. */
	KV_FOR_EACH(it, &s->flights)
	{
		const struct flight *f = KV_ENTRY(it, struct flight, link);

		if (f->chunk == NO_CHUNK)
			continue;
		if (f->chunk < count)
			count = f->chunk;
		break;
	}
	return count < s->lost_chunk ? count : s->lost_chunk;
}

static uint64_t written_token(const struct wimm_kv_sender *s)
{
	uint64_t chunks = chunks_written(s);
	uint64_t units = chunks == 0 ? 0 : chunk_end(s, chunks - 1);

	if (units == 0)
		return 0;
	return units == s->units ? s->tokens : s->first_token + units * s->unit_tokens;
}

/* The last of it the count says. Where there is no room now, the next turn has another try. */
static void say_written(struct wimm_kv_sender *s)
{
	struct kv_message m = { .kind = KV_BLOB_WRITTEN,
		                .id = s->base.id,
		                .rank = s->base.cache->layout.tp_rank,
		                .written_token = written_token(s) };

	if (m.written_token == s->said_token || m.written_token == s->tokens)
		return;
	if (kv_message_send(s->base.cache, wimm_remote_mr_peer(s->remote->mr), &m, NULL) != WIMM_OK)
		return;
	s->said_token = m.written_token;
}

static wimm_status tell_peer(struct wimm_kv_sender *s)
{
	struct kv_message m = { .kind = KV_BLOB_FAILED,
		                .id = s->base.id,
		                .status = s->base.status,
		                .rank = s->base.cache->layout.tp_rank,
		                .written_token = written_token(s) };

	(void)snprintf(m.text, sizeof(m.text), "%.*s", KV_TEXT_BYTES - 1, s->base.text);
	return kv_message_send(s->base.cache, wimm_remote_mr_peer(s->remote->mr), &m, NULL);
}

/* --- the end --- */

static void cancel_op(struct wimm_kv_sender *s, wimm_op op)
{
	if (op != 0) /* not found: it has settled, its callback waits for the lock */
		kv_ignore(wimm_cancel(s->base.cache->engine, op));
}

void kv_sender_end(struct kv_object *o, wimm_status status, const char *text, bool tell)
{
	struct wimm_kv_sender *s = sender_of(o);

	if (!kv_object_fail(o, status, text))
		return;
	s->tell = tell;
	KV_FOR_EACH(it, &s->flights)
	cancel_op(s, KV_ENTRY(it, struct flight, link)->op);
}

static bool is_over(const struct wimm_kv_sender *s)
{
	if (s->base.reported || s->in_flight != 0)
		return false;
	if (s->base.status != WIMM_OK)
		return !s->tell;
	return s->step == s->goal && all_told(s) && !s->empty_due &&
	       (s->tail == TAIL_NONE || s->tail == TAIL_SENT);
}

/* It uses the engine and the cache no more. */
static void retire(struct wimm_kv_sender *s)
{
	struct wimm_kv_cache *cache = s->base.cache;

	s->base.reported = true;
	cancel_op(s, s->timer);
	kv_list_remove(&s->base.link);
	kv_watch_detach(s->watch, &s->follow);
	kv_remote_put(cache, s->remote);
	kv_remote_put(cache, s->tail_remote);
	s->remote = NULL;
	s->tail_remote = NULL;
	if (s->slot != UINT32_MAX)
		kv_slots_put(&cache->slots, s->slot);
	s->slot = UINT32_MAX;
}

void kv_sender_turn(struct kv_object *o)
{
	struct wimm_kv_sender *s = sender_of(o);
	struct wimm_kv_cache *cache = o->cache;
	struct wimm_kv_done done = { 0 };
	wimm_status st = WIMM_OK;
	bool over;

	kv_lock(cache);
	if (o->status == WIMM_OK && !o->reported) {
		st = send_all(s);
		if (st < 0)
			kv_sender_end(o, st, wimm_last_error_text(), true);
		else if (s->wants_written)
			say_written(s);
	}
	if (s->tell && !o->reported) {
		st = tell_peer(s);
		/* A peer that cannot be told is lost and finds out by itself. */
		s->tell = st == WIMM_AGAIN;
	}
	if (st == WIMM_AGAIN)
		kv_cache_kick(cache);
	over = is_over(s);
	if (over)
		retire(s);
	done.immediates = s->immediates;
	done.bytes = s->bytes;
	kv_unlock(cache);
	if (over) {
		kv_object_report(o, &done);
		kv_object_put(o); /* the list's */
	}
}

void kv_sender_destroy(struct kv_object *o)
{
	struct wimm_kv_sender *s = sender_of(o);

	if (s->watch != NULL && s->own_watch)
		kv_watch_give(s->watch);
	else if (s->watch != NULL)
		kv_watch_put(s->watch);
	KV_FOR_EACH(it, &s->spare_flights)
	kv_free(KV_ENTRY(it, struct flight, link));
	kv_plan_fini(&s->plan);
	kv_free(s->chunk_units);
	kv_free(s->told_list);
	kv_free(s);
}

/* --- calls on an open one --- */

uint64_t wimm_kv_sender_bump(struct wimm_kv_sender *s, uint64_t steps)
{
	return wimm_kv_watch_add(s->watch, steps);
}

uint64_t wimm_kv_sender_steps(const struct wimm_kv_sender *s)
{
	uint64_t steps;

	kv_lock(s->base.cache);
	steps = s->steps;
	kv_unlock(s->base.cache);
	return steps;
}

static uint64_t pages_before(const struct wimm_kv_sender *s, uint64_t token)
{
	return kv_sender_pages_before(s->first_token, s->base.cache->layout.page_tokens, token);
}

static wimm_status check_chunk(const struct wimm_kv_sender *s, uint64_t end_token,
                               const uint32_t *pages, uint64_t page_count,
                               struct wimm_error_info *error)
{
	uint64_t need = pages_before(s, end_token) - pages_before(s, s->told_token);
	uint64_t most = s->base.cache->layout.pages;

	if (!s->told || end_token <= s->told_token || end_token > s->tokens)
		return kv_error(error, WIMM_E_INVAL,
		                "kv sender: a chunk up to token %" PRIu64
		                ", told so far are %" PRIu64 " of %" PRIu64 "%s",
		                end_token, s->told_token, s->tokens,
		                s->told ? "" : "; its chunks are not told");
	if (page_count != need || (pages == NULL && need != 0))
		return kv_error(error, WIMM_E_INVAL,
		                "kv sender: %" PRIu64 " pages, tokens %" PRIu64 " to %" PRIu64
		                " begin %" PRIu64,
		                page_count, s->told_token, end_token, need);
	for (uint64_t i = 0; i < page_count; i++)
		if (pages[i] >= most)
			return kv_error(error, WIMM_E_RANGE,
			                "kv sender: page %" PRIu32 ", the cache has %" PRIu64,
			                pages[i], most);
	return WIMM_OK;
}

/* Room for one more chunk. */
static wimm_status grow_chunks(struct wimm_kv_sender *s)
{
	uint64_t room = s->chunk_room != 0 ? 2 * s->chunk_room : 16;
	uint64_t *grown;

	if (s->chunks < s->chunk_room)
		return WIMM_OK;
	grown = kv_calloc(room, sizeof(*grown));
	if (grown == NULL)
		return WIMM_E_NOMEM;
	if (s->chunks != 0)
		memcpy(grown, s->chunk_units, s->chunks * sizeof(*grown));
	kv_free(s->chunk_units);
	s->chunk_units = grown;
	s->chunk_room = room;
	return WIMM_OK;
}

/* The source of more units is known: of all that lie within the pages told so far. */
static void tell_pages(struct wimm_kv_sender *s, const uint32_t *pages, uint64_t page_count)
{
	uint64_t first = s->chunks == 0 ? 0 : s->chunk_units[s->chunks - 1];

	if (s->units == 0)
		return;
	if (page_count != 0)
		memcpy(s->told_list + s->told_pages, pages, page_count * sizeof(*pages));
	s->told_pages += page_count;
	kv_plan_tell(&s->plan, s->told_list, first,
	             s->told_token == s->tokens ? s->units : units_before(s, s->told_token));
}

wimm_status wimm_kv_sender_chunk(struct wimm_kv_sender *s, uint64_t end_token,
                                 const uint32_t *pages, uint64_t page_count,
                                 struct wimm_error_info *error)
{
	wimm_status st;

	if (s == NULL)
		return kv_error(error, WIMM_E_INVAL, "kv sender: an argument is missing");
	kv_lock(s->base.cache);
	st = check_chunk(s, end_token, pages, page_count, error);
	if (st == WIMM_OK && (s->base.reported || s->base.status != WIMM_OK))
		st = kv_error(error, WIMM_E_CLOSED, "kv sender: it has ended");
	if (st == WIMM_OK && grow_chunks(s) != WIMM_OK)
		st = kv_error(error, WIMM_E_NOMEM, "kv sender: no memory for another chunk");
	if (st == WIMM_OK) {
		s->told_token = end_token;
		tell_pages(s, pages, page_count);
		s->chunk_units[s->chunks++] =
			end_token == s->tokens ? s->units : units_before(s, end_token);
		s->steps = s->chunks * s->layers;
		s->goal = s->units != 0 ? s->steps : 0;
		kv_cache_kick(s->base.cache); /* the word may have reached it already */
	}
	kv_unlock(s->base.cache);
	return st;
}

wimm_status wimm_kv_sender_tail(struct wimm_kv_sender *s, uint32_t first_token, const void *data,
                                uint64_t len_bytes)
{
	struct wimm_kv_cache *cache;
	wimm_status st = WIMM_OK;
	uint8_t *at;

	if (s == NULL || (data == NULL && len_bytes != 0))
		return WIMM_E_INVAL;
	cache = s->base.cache;
	kv_lock(cache);
	if (!s->wants_tail || s->tail_given)
		st = WIMM_E_INVAL;
	else if (s->base.reported || s->base.status != WIMM_OK)
		st = WIMM_E_CLOSED;
	else if (len_bytes > cache->tail_room_bytes || len_bytes > s->tail_room_bytes)
		st = WIMM_E_TOO_LONG;
	if (st == WIMM_OK && s->tail == TAIL_WANTED) {
		at = kv_cache_tail(cache, s->slot);
		kv_blob_tail(at, first_token, len_bytes);
		if (len_bytes != 0)
			memcpy(at + KV_TAIL_HEAD_BYTES, data, len_bytes);
		s->tail_bytes = KV_TAIL_HEAD_BYTES + len_bytes;
		s->tail = TAIL_READY;
		kv_cache_kick(cache);
	}
	s->tail_given = s->tail_given || st == WIMM_OK;
	kv_unlock(cache);
	return st;
}

wimm_status wimm_kv_sender_fail(struct wimm_kv_sender *s, wimm_status status, const char *text)
{
	wimm_status st = WIMM_OK;

	if (s == NULL || status >= 0)
		return WIMM_E_INVAL;
	kv_lock(s->base.cache);
	if (s->base.reported || s->base.status != WIMM_OK) {
		st = WIMM_E_CLOSED;
	} else {
		kv_sender_end(&s->base, status, text, true);
		kv_cache_kick(s->base.cache);
	}
	kv_unlock(s->base.cache);
	return st;
}

wimm_status wimm_kv_sender_close(struct wimm_kv_sender **handle)
{
	struct wimm_kv_sender *s;

	if (handle == NULL)
		return WIMM_E_INVAL;
	s = *handle;
	if (s == NULL)
		return WIMM_OK;
	kv_lock(s->base.cache);
	if (!s->base.reported) {
		kv_sender_end(&s->base, WIMM_E_CANCELLED, "given up by the prefill side", true);
		kv_cache_kick(s->base.cache);
	}
	kv_unlock(s->base.cache);
	kv_object_put(&s->base);
	*handle = NULL;
	return WIMM_OK;
}
