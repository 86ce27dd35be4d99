/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CORE_RECV_H
#define CORE_RECV_H

/* Receive buffers, and what all submissions share. */

#include "core/error_text.h"
#include "core/op.h"

#define RECV_BUFFERS_MAX 65536

struct recv_slot {
	struct list link;    /* worker.recv_free */
	struct request back; /* inbox, after its callback */
	struct delivery delivery;
	struct recv_pool *pool;
	struct wimm_recv_buffer buffer;
	struct wimm_received received;
	bool out;  /* with the callback thread */
	bool last; /* this hand-out ends it */
};

/* The buffers of one wimm_submit_recvs(); owned by the worker. */
struct recv_pool {
	struct list link; /* worker.recv_pools */
	struct op *op;
	wimm_recv_fn fn;
	void *context;
	wimm_status ending; /* OK while it takes messages */
	uint32_t count;
	uint32_t returned;
	struct recv_slot slot[];
};

/* submit.c: what every submission has. */
struct submit_common {
	uint32_t flags;
	uint64_t deadline_us;
	const struct wimm_on_done *on_done;
};

/* A fresh operation with these filled in. OK, AGAIN, E_CLOSED. */
wimm_status submit_get(struct wimm_engine *engine, enum op_kind kind, const struct submit_common *c,
                       struct op **out);

#endif
