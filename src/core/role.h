/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CORE_ROLE_H
#define CORE_ROLE_H

/* The role of the thread that drives an engine: its worker, or the caller in caller-driven mode. */

#include "base/tsa.h"

extern struct thread_role on_worker;

#endif
