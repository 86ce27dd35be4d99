/* SPDX-License-Identifier: Apache-2.0 */
/* Words that senders follow. A sender without one of the application's takes a spare one, so that
 * no request waits for a word to be made, which is dear for a word that a GPU writes. */
#include "kv/kv_int.h"

void kv_watch_put(struct wimm_kv_watch *watch)
{
	struct wimm_kv_cache *cache = watch->cache;
	bool last;

	kv_lock(cache);
	last = --watch->refs == 0;
	kv_unlock(cache);
	if (!last)
		return;
	kv_free(watch);
	kv_cache_put(cache);
}

struct wimm_kv_watch *kv_watch_get(struct wimm_kv_watch *watch)
{
	kv_lock(watch->cache);
	watch->refs++;
	kv_unlock(watch->cache);
	return watch;
}

/* Callback thread: the word has changed, and with it perhaps the steps of all that follow it. */
static void on_change(void *context, uint64_t old_value, uint64_t new_value)
{
	struct wimm_kv_watch *watch = context;
	struct wimm_kv_cache *cache = watch->cache;

	(void)old_value;
	(void)new_value; /* a turn reads the word itself: it may be further by then */
	kv_lock(cache);
	watch->refs++;
	KV_FOR_EACH(it, &watch->senders)
	kv_sender_of_follower(it)->due = true;
	kv_unlock(cache);
	kv_cache_turn_due(cache);
	kv_watch_put(watch);
}

static wimm_status watch_open(struct wimm_kv_cache *cache, struct wimm_kv_watch **out)
{
	struct wimm_kv_watch *watch = kv_calloc(1, sizeof(*watch));
	wimm_status st;

	if (watch == NULL)
		return WIMM_E_NOMEM;
	kv_link_init(&watch->link);
	kv_link_init(&watch->senders);
	watch->cache = cache;
	watch->refs = 1;
	st = wimm_alloc_uvm_watcher(cache->engine, on_change, watch, &watch->watcher);
	if (st != WIMM_OK) {
		kv_free(watch);
		return st;
	}
	/* Nobody follows it yet: the watcher thread need not look. */
	st = wimm_uvm_watcher_arm(watch->watcher, 0);
	if (st != WIMM_OK) {
		kv_free(watch);
		return st;
	}
	kv_lock(cache);
	kv_cache_get(cache);
	kv_unlock(cache);
	*out = watch;
	return WIMM_OK;
}

/* Not under the lock: it waits for the word's last callback. */
static void watch_free(struct wimm_kv_watch *watch)
{
	if (wimm_free_uvm_watcher(watch->watcher) != WIMM_OK)
		return; /* a fork's child: the parent has it */
	kv_watch_put(watch);
}

wimm_status kv_watch_take(struct wimm_kv_cache *cache, struct wimm_kv_watch **out)
{
	struct wimm_kv_watch *watch = NULL;

	kv_lock(cache);
	if (!kv_list_empty(&cache->spare_watches)) {
		watch = KV_ENTRY(cache->spare_watches.next, struct wimm_kv_watch, link);
		kv_list_remove(&watch->link);
	}
	kv_unlock(cache);
	if (watch == NULL)
		return watch_open(cache, out);
	*out = watch;
	return WIMM_OK;
}

void kv_watch_give(struct wimm_kv_watch *watch)
{
	struct wimm_kv_cache *cache = watch->cache;
	bool keep;

	kv_lock(cache);
	keep = !cache->ended;
	if (keep)
		kv_list_add(&cache->spare_watches, &watch->link);
	kv_unlock(cache);
	if (!keep)
		watch_free(watch);
}

void kv_watches_close(struct wimm_kv_cache *cache)
{
	struct kv_link spare;

	kv_link_init(&spare);
	kv_lock(cache);
	KV_FOR_EACH(it, &cache->spare_watches)
	{
		kv_list_remove(it);
		kv_list_add(&spare, it);
	}
	kv_unlock(cache);
	KV_FOR_EACH(it, &spare)
	watch_free(KV_ENTRY(it, struct wimm_kv_watch, link));
}

uint64_t kv_watch_value(const struct wimm_kv_watch *watch)
{
	return wimm_uvm_watcher_add(watch->watcher, 0);
}

void kv_watch_attach(struct wimm_kv_watch *watch, struct kv_link *follower)
{
	bool first = kv_list_empty(&watch->senders);

	kv_list_add(&watch->senders, follower);
	if (first)
		kv_ignore(wimm_uvm_watcher_arm(watch->watcher, 1)); /* refused in a fork's child */
}

void kv_watch_detach(struct wimm_kv_watch *watch, struct kv_link *follower)
{
	kv_list_remove(follower);
	/* One that is closed has no word any more. A fork's child may be refused. */
	if (kv_list_empty(&watch->senders) && !watch->closed)
		kv_ignore(wimm_uvm_watcher_arm(watch->watcher, 0));
}

/* --- the application's own --- */

wimm_status wimm_kv_watch_open(struct wimm_kv_cache *cache, struct wimm_kv_watch **out)
{
	if (cache == NULL || out == NULL)
		return WIMM_E_INVAL;
	return watch_open(cache, out);
}

uint64_t *wimm_kv_watch_word(struct wimm_kv_watch *watch)
{
	return watch != NULL ? wimm_uvm_watcher_word(watch->watcher) : NULL;
}

uint64_t wimm_kv_watch_add(struct wimm_kv_watch *watch, uint64_t amount)
{
	return wimm_uvm_watcher_add(watch->watcher, amount);
}

wimm_status wimm_kv_watch_close(struct wimm_kv_watch **handle)
{
	struct wimm_kv_watch *watch;

	if (handle == NULL)
		return WIMM_E_INVAL;
	watch = *handle;
	if (watch == NULL)
		return WIMM_OK;
	kv_lock(watch->cache);
	watch->closed = true;
	KV_FOR_EACH(it, &watch->senders)
	{
		struct kv_object *sender = kv_sender_of_follower(it);

		kv_sender_end(sender, WIMM_E_CANCELLED, "its watched word was closed", true);
		kv_watch_detach(watch, it);
	}
	kv_cache_kick(watch->cache);
	kv_unlock(watch->cache);
	watch_free(watch);
	*handle = NULL;
	return WIMM_OK;
}
