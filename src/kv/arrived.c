/* SPDX-License-Identifier: Apache-2.0 */
/* Which pages of a request that failed are here all the same. */
#include "kv/arrived.h"
#include "kv/map.h"
#include "kv/mem.h"

#include <string.h>

wimm_status kv_arrived_init(struct kv_arrived *a, const struct wimm_kv_layout *prefill,
                            const struct wimm_kv_layout *decode,
                            const struct wimm_kv_receive_opts *o)
{
	struct kv_map_step step = { 0 };
	struct wimm_kv_segment segment;

	if (o->arrived == NULL || o->page_count == 0)
		return WIMM_OK;
	a->rank = kv_calloc(prefill->tp, sizeof(*a->rank));
	if (a->rank == NULL)
		return WIMM_E_NOMEM;
	a->rank_count = prefill->tp;
	while (kv_map_next(prefill, decode, &step, &segment))
		a->rank[segment.src_rank].owes = true;
	a->page_count = o->page_count;
	a->page_tokens = decode->page_tokens;
	a->first_token = o->first_token;
	a->tokens = o->tokens;
	a->pages = o->arrived;
	memset(a->pages, 0, a->page_count);
	return WIMM_OK;
}

void kv_arrived_fini(struct kv_arrived *a)
{
	kv_free(a->rank);
}

void kv_arrived_heard(struct kv_arrived *a, wimm_peer peer, const struct kv_message *m)
{
	struct kv_arrived_rank *r;

	if (m->rank >= a->rank_count)
		return;
	r = &a->rank[m->rank];
	/* Of two words of one peer the later one says more, whichever comes first; of two peers
	 * with one rank the second is not believed. */
	if (m->written_token <= r->written_token || (r->written_token != 0 && r->peer != peer))
		return;
	r->peer = peer;
	r->written_token = m->written_token < a->tokens ? m->written_token : a->tokens;
}

void kv_arrived_all(struct kv_arrived *a)
{
	if (a->pages != NULL)
		memset(a->pages, 1, a->page_count);
}

void kv_arrived_mark(struct kv_arrived *a, bool (*is_up)(void *context, wimm_peer peer),
                     void *context)
{
	uint64_t here = a->tokens;

	if (a->pages == NULL)
		return;
	for (uint32_t i = 0; i < a->rank_count; i++) {
		const struct kv_arrived_rank *r = &a->rank[i];
		uint64_t token = r->written_token;

		if (!r->owes)
			continue;
		if (token != 0 && !is_up(context, r->peer))
			token = 0;
		if (token < here)
			here = token;
	}
	for (uint64_t i = 0; i < a->page_count; i++)
		a->pages[i] = here == a->tokens ||
		              a->first_token + (i + 1) * a->page_tokens <= here;
}
