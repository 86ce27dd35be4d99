/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CORE_AFTER_H
#define CORE_AFTER_H

/* Writes that wait for a CUDA stream. They are accepted, can be cancelled, and hold their regions;
 * their legs wait beside those whose region is not known yet, and go on once op.mark is reached. */

#include "core/engine.h"

/* Submission: mark the stream for an operation that is to wait for it. OK, or the call's status. */
WIMM_MUST_CHECK wimm_status after_mark(struct op *op, const struct wimm_mr *src, void *stream);
/* Worker: look for a first time; afterwards op.mark says whether it waits. */
void after_start(struct worker *w, struct op *op) ON_WORKER;
/* A look at some of those that wait, when it is due; returns how many went on. */
uint32_t after_step(struct worker *w) ON_WORKER;
void after_lanes_fini(struct wimm_engine *engine);

#endif
