/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KV_INT_H
#define KV_INT_H

/* What the objects of this folder share. A cache's lock guards all of them: the cache itself, its
 * watches, senders and receivers, but for the fields marked fixed. It is held while the engine is
 * called (which never calls back from inside), never while the application is.
 *
 * An object is live while it is in a list of the cache: it uses the engine then. It ends on the
 * callback thread, with its report. Its memory stays until its handle is closed and the last
 * callback that knows it is through: that is what refs count. */

#include "kv/blob.h"
#include "kv/layout.h"
#include "kv/list.h"
#include "kv/map.h"
#include "kv/mem.h"
#include "kv/plan.h"
#include "kv/slots.h"

#include <pthread.h>
#include <stdbool.h>

/* For calls whose failure changes nothing for the caller; say why beside it. */
static inline void kv_ignore(wimm_status status)
{
	(void)status;
}

enum kv_kind {
	KV_SENDER,
	KV_RECEIVER,
};

/* What senders and receivers have in common; the first member of both. */
struct kv_object {
	struct kv_link link;         /* cache.objects, while live */
	struct wimm_kv_cache *cache; /* fixed; a reference */
	enum kv_kind kind;           /* fixed */
	uint64_t id;                 /* of the request; fixed */
	uint32_t imm;                /* fixed */
	wimm_kv_done_fn fn;          /* fixed */
	void *context;               /* fixed */
	/* Fixed. Callback thread, without the lock: do what can be done, report an end. */
	void (*turn)(struct kv_object *object);
	void (*destroy)(struct kv_object *object); /* fixed. The memory of what is dead */

	uint32_t refs;
	bool due; /* for a turn */
	bool reported;
	wimm_status status; /* why it ends, WIMM_OK while it does not */
	char text[WIMM_ERROR_TEXT_BYTES];
};

/* A peer's region, opened once for all requests that name it. */
struct kv_remote {
	struct kv_link link;
	struct wimm_mr_desc desc;
	struct wimm_remote_mr *mr;
	uint32_t refs;
	bool bad; /* a write through it failed: the next request opens it anew */
};

struct wimm_kv_cache {
	/* Fixed after open. */
	struct wimm_engine *engine;
	struct wimm_mr *region;
	struct wimm_kv_layout layout;
	uint64_t extent_bytes;
	struct wimm_mr_desc desc; /* len_bytes 0: peers may not write, so nothing is received */
	struct wimm_mr_desc tail_desc;
	struct wimm_mr *tail_mr;
	uint8_t *tail; /* a place for each slot */
	uint64_t tail_room_bytes;
	uint64_t tail_stride_bytes;
	uint32_t imm_first;
	wimm_kv_request_fn on_request;
	void *context;
	uint8_t *messages;
	struct wimm_uvm_watcher *kick_word;
	pthread_mutex_t lock;

	/* Guarded. */
	uint32_t refs;
	bool closed; /* by the application */
	bool ended;  /* nothing here uses the engine any more */
	wimm_op recvs;
	struct kv_slots slots;
	struct kv_link objects; /* live senders and receivers */
	struct kv_link remotes;
	struct kv_link spare_watches; /* of senders that had one of their own */
};

/* --- cache.c --- */
void kv_lock(struct wimm_kv_cache *cache);
void kv_unlock(struct wimm_kv_cache *cache);
/* With the lock. */
void kv_cache_get(struct wimm_kv_cache *cache);
/* Without the lock. */
void kv_cache_put(struct wimm_kv_cache *cache);
/* With the lock: have the callback thread give every object a turn soon. */
void kv_cache_kick(struct wimm_kv_cache *cache);
/* Callback thread, without the lock: give a turn to those that are due. */
void kv_cache_turn_due(struct wimm_kv_cache *cache);
/* Callback thread, without the lock: a closed cache whose last request is over gives back what the
 * engine lent it. */
void kv_cache_end_if_over(struct wimm_kv_cache *cache);
uint8_t *kv_cache_tail(const struct wimm_kv_cache *cache, uint32_t slot);

/* --- object.c --- */
void kv_object_init(struct kv_object *o, struct wimm_kv_cache *cache, enum kv_kind kind);
void kv_object_put(struct kv_object *o); /* without the lock */
/* Callback thread, without the lock: one turn, for which the caller gives up a reference. */
void kv_object_turn(struct kv_object *o);
/* With the lock. The first cause counts; false: there was one before, or it is over. */
bool kv_object_fail(struct kv_object *o, wimm_status status, const char *text);
struct kv_object *kv_object_find(struct wimm_kv_cache *cache, enum kv_kind kind, uint64_t id);
/* Without the lock: call the application, once. */
void kv_object_report(struct kv_object *o, struct wimm_kv_done *done);
/* A random number nobody else has; 0: the kernel has none to give. */
uint64_t kv_random_id(void);

/* --- remote.c --- */
/* Without the lock. */
bool kv_peer_is_up(void *engine, wimm_peer peer);
/* Takes the lock itself. */
wimm_status kv_remote_get(struct wimm_kv_cache *cache, const struct wimm_mr_desc *desc,
                          struct kv_remote **out, struct wimm_error_info *error);
/* With the lock. NULL does nothing. */
void kv_remote_put(struct wimm_kv_cache *cache, struct kv_remote *remote);
void kv_remotes_close(struct wimm_kv_cache *cache);
/* With the lock. A message to a peer. on_done may be NULL. */
wimm_status kv_message_send(struct wimm_kv_cache *cache, wimm_peer peer, const struct kv_message *m,
                            const struct wimm_on_done *on_done);

/* --- watch.c --- */
struct wimm_kv_watch {
	struct kv_link link;              /* cache.spare_watches */
	struct wimm_kv_cache *cache;      /* fixed; a reference */
	struct wimm_uvm_watcher *watcher; /* fixed */
	uint32_t refs;
	bool closed;
	struct kv_link senders; /* that follow it, by watch_link */
};

/* Without the lock. A spare one, or a new one. */
wimm_status kv_watch_take(struct wimm_kv_cache *cache, struct wimm_kv_watch **out);
void kv_watch_give(struct wimm_kv_watch *watch);
/* Without the lock. A reference to one of the application's. */
struct wimm_kv_watch *kv_watch_get(struct wimm_kv_watch *watch);
void kv_watch_put(struct wimm_kv_watch *watch);
/* With the lock. */
void kv_watch_attach(struct wimm_kv_watch *watch, struct kv_link *follower);
void kv_watch_detach(struct wimm_kv_watch *watch, struct kv_link *follower);
uint64_t kv_watch_value(const struct wimm_kv_watch *watch);
/* Without the lock. */
void kv_watches_close(struct wimm_kv_cache *cache);

/* --- sender.c --- */
struct kv_object *kv_sender_of_follower(struct kv_link *follower);
/* With the lock. */
void kv_sender_end(struct kv_object *o, wimm_status status, const char *text, bool tell);

/* --- receiver.c --- */
/* With the lock: what a sender says of itself. */
void kv_receiver_heard(struct kv_object *o, wimm_peer peer, const struct kv_message *m);
/* With the lock. */
void kv_receiver_end(struct kv_object *o, wimm_status status, const char *text);
/* With the lock: the cache was closed; a receiver that has reported needs nothing more. */
void kv_receiver_abandon(struct kv_object *o);

#endif
