/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CORE_POST_H
#define CORE_POST_H

#include "core/peer.h"
#include "core/role.h"

/* post.c: legs to work requests, completions to operations. */
void post_start(struct worker *w, struct op *op) ON_WORKER;
/* straight.c: start the legs of an operation that may start. */
void straight_start(struct worker *w, struct op *op) ON_WORKER;
/* The stream that it waited for has come so far, or (!reached) failed. */
void post_go_on(struct worker *w, struct op *op, bool reached) ON_WORKER;
void post_leg_ready(struct worker *w, struct leg *leg, bool at_once) ON_WORKER;
bool post_pending(struct worker *w) ON_WORKER;
void post_peer_room(struct worker *w, struct peer *p);
void post_done(struct worker *w, struct path *path, const struct prov_cqe *c) ON_WORKER;
void post_peer_down(struct worker *w, struct peer *p) ON_WORKER;
/* End a write early: nothing more is posted, what is out is taken back, then it settles. */
void post_abort(struct worker *w, struct op *op, wimm_status status, const char *text) ON_WORKER;
/* Fail what is not posted yet of writes into a revoked region. */
void post_fail_region(struct worker *w, struct wimm_remote_mr *r) ON_WORKER;
/* Fail and take back what is under way to a peer that wants no more of it. */
void post_stop(struct worker *w, struct peer *p, wimm_status status, const char *text) ON_WORKER;
void post_fail_leg(struct worker *w, struct leg *leg, wimm_status status, const char *text)
	ON_WORKER;
void post_leg_confirmed(struct worker *w, struct leg *leg) ON_WORKER;
/* Settle a write that nothing more is to come of. */
void post_maybe_settle(struct worker *w, struct op *op) ON_WORKER;
/* Fewer of its requests are out. */
void post_progress(struct worker *w, struct op *op) ON_WORKER;
/* path_again.c: it failed with a path, and whether its peer lives is asked: it settles later. */
bool doubt_holds(struct op *op) ON_WORKER;
/* The path stands and was not lost since the leg was posted first. */
bool path_stood(const struct path *path, const struct leg *leg);

/* settle.c: the end of every operation. */
struct op *op_by_id(struct worker *w, wimm_op id);
/* A fresh operation, or NULL (AGAIN). Any thread. */
struct op *op_get(struct worker *w, enum op_kind kind);
/* Give back one that was never pushed. */
void op_unget(struct worker *w, struct op *op);
void op_submit(struct worker *w, struct op *op, wimm_op *out);
void op_fail(struct op *op, wimm_status status, wimm_peer blame, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
/* Worker: report op->status (OK if none was set) and return the slot after the callback. */
void op_settle(struct worker *w, struct op *op) ON_WORKER;
void op_start(struct worker *w, struct op *op) ON_WORKER;
void op_cancel(struct worker *w, struct op *op, wimm_status status, const char *text) ON_WORKER;
/* The inbox has the cancel of an operation that may have settled meanwhile. */
void op_cancel_request(struct worker *w, struct request *r) ON_WORKER;

#endif
