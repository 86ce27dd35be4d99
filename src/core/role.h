/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CORE_ROLE_H
#define CORE_ROLE_H

/* The role of the thread that drives an engine: its worker, or the caller in caller-driven mode. */

#include "base/tsa.h"

extern struct thread_role on_worker;

/* A function that only that thread may call, a field that only it may touch; clang checks it. */
#define ON_WORKER TSA(requires_capability(on_worker))
#define OWNED     TSA(guarded_by(on_worker))

#endif
