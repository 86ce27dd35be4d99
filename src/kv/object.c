/* SPDX-License-Identifier: Apache-2.0 */
/* What senders and receivers have in common: references, the cause of an end, the one report. */
#include "kv/kv_int.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

void kv_object_init(struct kv_object *o, struct wimm_kv_cache *cache, enum kv_kind kind)
{
	kv_link_init(&o->link);
	o->cache = cache;
	o->kind = kind;
	o->refs = 1; /* the handle's */
	o->status = WIMM_OK;
}

void kv_object_put(struct kv_object *o)
{
	struct wimm_kv_cache *cache = o->cache;
	bool last;

	kv_lock(cache);
	last = --o->refs == 0;
	kv_unlock(cache);
	if (!last)
		return;
	o->destroy(o);
	kv_cache_put(cache);
}

void kv_object_turn(struct kv_object *o)
{
	struct wimm_kv_cache *cache = o->cache;

	kv_lock(cache);
	kv_cache_get(cache);
	kv_unlock(cache);
	o->turn(o);
	kv_object_put(o);
	kv_cache_end_if_over(cache);
	kv_cache_put(cache);
}

bool kv_object_fail(struct kv_object *o, wimm_status status, const char *text)
{
	if (o->status != WIMM_OK || o->reported)
		return false;
	o->status = status;
	(void)snprintf(o->text, sizeof(o->text), "%s",
	               text != NULL && text[0] != '\0' ? text : wimm_status_text(status));
	return true;
}

struct kv_object *kv_object_find(struct wimm_kv_cache *cache, enum kv_kind kind, uint64_t id)
{
	KV_FOR_EACH(it, &cache->objects)
	{
		struct kv_object *o = KV_ENTRY(it, struct kv_object, link);

		if (o->kind == kind && o->id == id)
			return o;
	}
	return NULL;
}

void kv_object_report(struct kv_object *o, struct wimm_kv_done *done)
{
	done->status = o->status;
	done->imm = o->imm;
	done->request_id = o->id;
	done->text = o->text;
	if (o->fn != NULL)
		o->fn(o->context, done);
}

uint64_t kv_random_id(void)
{
	uint64_t id = 0;

	/* A short read cannot happen below 256 bytes once the pool is initialised. */
	if (getrandom(&id, sizeof(id), 0) != (ssize_t)sizeof(id))
		return 0;
	return id;
}
