/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KV_ARRIVED_H
#define KV_ARRIVED_H

#include "kv/blob.h"

/* Which pages of a failed request are here. Immediates alone do not say: any two writes may have
 * been counted. The senders do, chunk by chunk, and what a session that is up has accepted is
 * readable once the request's immediate is retired. */
struct kv_arrived_rank {
	bool owes; /* some of each page comes from it */
	wimm_peer peer;
	uint64_t written_token; /* as it said last */
};

struct kv_arrived {
	uint8_t *pages; /* the application's, a byte each; NULL: nobody asks */
	uint64_t page_count;
	uint64_t page_tokens;
	uint64_t first_token;
	uint64_t tokens;
	struct kv_arrived_rank *rank;
	uint32_t rank_count;
};

/* The options have been checked. Returns: OK, E_NOMEM. */
wimm_status kv_arrived_init(struct kv_arrived *a, const struct wimm_kv_layout *prefill,
                            const struct wimm_kv_layout *decode,
                            const struct wimm_kv_receive_opts *o);
void kv_arrived_fini(struct kv_arrived *a);
/* What a peer says is checked here. */
void kv_arrived_heard(struct kv_arrived *a, wimm_peer peer, const struct kv_message *m);
void kv_arrived_all(struct kv_arrived *a);
void kv_arrived_mark(struct kv_arrived *a, bool (*is_up)(void *context, wimm_peer peer),
                     void *context);

#endif
