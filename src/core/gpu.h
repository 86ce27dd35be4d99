/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CORE_GPU_H
#define CORE_GPU_H

/* Writes from or to memory of a GPU: which way they go, and whole page lists in one request. */

#include "core/region.h"
#include "core/worker.h"

static inline bool leg_has_gpu(const struct leg *leg)
{
	return leg->op->src != NULL && (leg->op->src->device >= 0 || leg->dst->gpu);
}
/* A leg about to be planned has memory of a GPU at either end: choose its way and its paths.
 * False: there are none, and gpu_why_not() says why. */
bool gpu_leg_plan(struct worker *w, struct leg *leg);
const char *gpu_why_not(const struct leg *leg);
/* Whether a path may carry such a leg. */
bool gpu_path_fits(const struct worker *w, const struct leg *leg, const struct path *path);
/* Post a leg that is one list of pages. False: it failed, and its operation may be gone. */
bool gpu_list_post(struct worker *w, struct peer *p, struct leg *leg, uint32_t *out_posted)
	ON_WORKER;
/* A peer's region has ended: no provider keeps anything of it. */
void gpu_forget(struct worker *w, struct peer *p, uint32_t slot, uint32_t generation);

#endif
