/* SPDX-License-Identifier: Apache-2.0 */
/* Peers' regions, opened once for all requests that name them, and messages to their owners. */
#include "kv/kv_int.h"

#include <string.h>

#define IDLE_MAX 64

static struct kv_remote *find(struct wimm_kv_cache *cache, const struct wimm_mr_desc *desc)
{
	KV_FOR_EACH(it, &cache->remotes)
	{
		struct kv_remote *r = KV_ENTRY(it, struct kv_remote, link);

		if (!r->bad && r->desc.len_bytes == desc->len_bytes &&
		    memcmp(r->desc.bytes, desc->bytes, desc->len_bytes) == 0)
			return r;
	}
	return NULL;
}

static void remote_free(struct wimm_kv_cache *cache, struct kv_remote *r)
{
	kv_list_remove(&r->link);
	/* Refused only where there is nothing to close any more. */
	if (wimm_close_remote_mr(cache->engine, r->mr) != WIMM_OK)
		r->mr = NULL;
	kv_free(r);
}

/* Keep some of those that nobody uses: the next request of the same peer need not ask again. */
static void trim(struct wimm_kv_cache *cache)
{
	uint32_t idle = 0;

	KV_FOR_EACH(it, &cache->remotes)
	idle += KV_ENTRY(it, struct kv_remote, link)->refs == 0;
	KV_FOR_EACH(it, &cache->remotes)
	{
		struct kv_remote *r = KV_ENTRY(it, struct kv_remote, link);

		if (r->refs != 0 || (idle <= IDLE_MAX && !r->bad))
			continue;
		remote_free(cache, r);
		idle--;
	}
}

bool kv_peer_is_up(void *engine, wimm_peer peer)
{
	struct wimm_peer_info info = WIMM_PEER_INFO_INIT;

	return wimm_peer_get_info(engine, peer, &info) == WIMM_OK && info.up != 0;
}

wimm_status kv_remote_get(struct wimm_kv_cache *cache, const struct wimm_mr_desc *desc,
                          struct kv_remote **out, struct wimm_error_info *error)
{
	struct wimm_remote_mr *mr = NULL;
	struct kv_remote *r;
	wimm_status st;

	kv_lock(cache);
	r = find(cache, desc);
	if (r != NULL)
		r->refs++;
	kv_unlock(cache);
	if (r != NULL && kv_peer_is_up(cache->engine, wimm_remote_mr_peer(r->mr))) {
		*out = r;
		return WIMM_OK;
	}
	if (r != NULL) { /* the owner may be back, in another session, which this is none of */
		kv_lock(cache);
		r->bad = true;
		kv_remote_put(cache, r);
		kv_unlock(cache);
	}
	/* Two callers at once open it twice; both handles are good. */
	r = kv_calloc(1, sizeof(*r));
	if (r == NULL)
		return kv_error(error, WIMM_E_NOMEM, "kv: no memory for a remote region");
	st = wimm_open_remote_mr(cache->engine, desc, &mr);
	if (st != WIMM_OK) {
		kv_free(r);
		return kv_error(error, st, "kv: the peer's region: %s", wimm_last_error_text());
	}
	r->desc = *desc;
	r->mr = mr;
	r->refs = 1;
	kv_lock(cache);
	kv_list_add(&cache->remotes, &r->link);
	kv_unlock(cache);
	*out = r;
	return WIMM_OK;
}

void kv_remote_put(struct wimm_kv_cache *cache, struct kv_remote *r)
{
	if (r == NULL)
		return;
	r->refs--;
	trim(cache);
}

void kv_remotes_close(struct wimm_kv_cache *cache)
{
	KV_FOR_EACH(it, &cache->remotes)
	remote_free(cache, KV_ENTRY(it, struct kv_remote, link));
}

wimm_status kv_message_send(struct wimm_kv_cache *cache, wimm_peer peer, const struct kv_message *m,
                            const struct wimm_on_done *on_done)
{
	uint8_t data[KV_MESSAGE_MAX_BYTES];
	struct wimm_send send = WIMM_SEND_INIT;

	send.peer = peer;
	send.data = data;
	send.len_bytes = kv_blob_message(m, data);
	return wimm_submit_send(cache->engine, &send, on_done, NULL);
}
