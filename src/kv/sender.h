/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KV_SENDER_H
#define KV_SENDER_H

/* A sender as sender_open.c makes it and sender.c runs it. */

#include "kv/kv_int.h"

enum tail_state {
	TAIL_NONE,   /* not wanted, or another rank's */
	TAIL_WANTED, /* the application has not given it yet */
	TAIL_READY,
	TAIL_SENT,
};

struct wimm_kv_sender {
	struct kv_object base;

	/* Fixed after open; where chunks are told, `chunks`, `steps` and `goal` grow with them. */
	struct wimm_kv_watch *watch;
	bool own_watch;
	bool at_end;
	bool told; /* its chunks are told, chunk by chunk */
	bool lead; /* serves the first segment: sends the tail */
	bool wants_tail;
	bool wants_written; /* the decode side asks how far it has come */
	uint32_t layers;
	uint64_t unit_tokens;
	uint64_t group; /* units that leave together */
	uint64_t units; /* that travel; 0: none from this rank */
	uint64_t first_token;
	uint64_t computed_token;
	uint64_t chunk_tokens;
	uint64_t tokens;
	uint64_t chunks;
	uint64_t steps;
	uint64_t goal; /* those that have to be waited for: 0 where nothing is written */
	uint64_t from; /* the word's value before the first step */
	uint64_t tail_offset_bytes;
	uint64_t tail_room_bytes; /* at the decode side */
	struct kv_plan plan;

	/* Guarded by the cache's lock. */
	struct kv_link follow; /* watch.senders */
	struct kv_remote *remote;
	struct kv_remote *tail_remote;
	uint32_t slot; /* of the tail; UINT32_MAX: none */
	uint64_t *chunk_units; /* told: units that are final after each chunk; `chunks` of them */
	uint64_t chunk_room;
	uint64_t told_token; /* the last chunk's end; all is told when it is `tokens` */
	uint32_t *told_list; /* the source pages, */
	uint64_t told_pages; /* so many of them */
	uint64_t step;
	uint64_t call; /* of the step */
	bool empty_due; /* a request without any write: only the immediate */
	bool tail_given;
	enum tail_state tail;
	uint64_t tail_bytes;
	uint64_t lost_chunk; /* the first of which a write was not accepted; UINT64_MAX: none */
	uint64_t said_token; /* written before it, as the decode side has been told */
	bool tell; /* the decode side does not know yet that this failed */
	wimm_op timer;
	uint64_t in_flight;
	uint64_t immediates;
	uint64_t bytes;
	struct kv_link flights;
	struct kv_link spare_flights;
};

/* Pages of page_tokens that begin before a token, from the one that holds the request's first. */
uint64_t kv_sender_pages_before(uint64_t first_token, uint64_t page_tokens, uint64_t token);

/* The two entries of its struct kv_object. */
void kv_sender_turn(struct kv_object *o);
void kv_sender_destroy(struct kv_object *o);

#endif
