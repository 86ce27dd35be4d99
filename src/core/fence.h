/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CORE_FENCE_H
#define CORE_FENCE_H

/* When nothing of a writer's comes any more: drained paths, and fences. All on the worker. */

#include "core/worker.h"

/* fence.c: getting back what a peer was granted. */
void fence_start(struct worker *w, struct op *op) ON_WORKER;
void fence_cancel(struct worker *w, struct op *op, wimm_status status, const char *text) ON_WORKER;
void fence_message(struct worker *w, struct peer *p, const struct wire_msg *m) ON_WORKER;
void fence_arrived(struct worker *w, struct peer *p) ON_WORKER;
void fence_answer(struct worker *w, struct peer *p) ON_WORKER;
void fence_peer_down(struct worker *w, struct peer *p) ON_WORKER;

/* drain.c: nothing of ours under way any more, cancelled requests included. */
void drain_cancelled(struct worker *w, struct path *path);
bool drain_needed(const struct peer *p);
void drain_step(struct worker *w, struct peer *p) ON_WORKER;
void drain_done(struct worker *w, struct path *path) ON_WORKER;
/* Acknowledge a revocation, as soon as that is so. */
void drain_ack(struct worker *w, struct peer *p, uint32_t slot, uint32_t generation) ON_WORKER;
void drain_peer_down(struct peer *p);

#endif
