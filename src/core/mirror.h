/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CORE_MIRROR_H
#define CORE_MIRROR_H

#include "core/worker.h"

/* Words of callers' that hold how many immediates of a value have arrived. All on the worker. */

/* count more of imm have arrived, and the bytes before them. */
void mirror_arrived(struct worker *w, uint32_t imm, uint64_t count) ON_WORKER;
void mirror_close_all(struct worker *w) ON_WORKER;

#endif
