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
	uint64_t wait_ns; /* when the call began to wait for room; 0: it did not */
};

/* A fresh operation with these filled in. OK, AGAIN, E_CLOSED. */
wimm_status submit_get(struct wimm_engine *engine, enum op_kind kind, struct submit_common *c,
                       struct op **out);

/* Around every submission that may have WIMM_BLOCK among its flags. */
bool submit_enter(struct wimm_engine *engine, uint32_t flags);
void submit_leave(struct wimm_engine *engine, bool entered);

/* count.c: an expectation that is checked and has its operation, for op_submit() or op_unget(). */
wimm_status expect_prepare(struct wimm_engine *engine, uint32_t imm, uint64_t count,
                           const struct wimm_expect_opts *opts,
                           const struct wimm_on_done *on_done, struct op **out);

/* submit.c: the regions of a barrier, and that its group names their owners. */
wimm_status submit_check_targets(const struct wimm_engine *engine,
                                 const struct wimm_barrier_args *b);

#endif
