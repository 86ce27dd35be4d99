/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PLAT_MUTEX_H
#define PLAT_MUTEX_H

#include <pthread.h>

#include "base/tsa.h"

/* Control path only. A capability: clang checks TSA(guarded_by(lock)) for a lock that is a global.
 * For a lock inside a struct clang 14 has no name in C; use one global role a kind of lock. */
struct TSA(capability("mutex")) mutex {
	pthread_mutex_t impl;
};

#define MUTEX_INIT { PTHREAD_MUTEX_INITIALIZER }

void mutex_init(struct mutex *m);
void mutex_fini(struct mutex *m);
void mutex_lock(struct mutex *m) TSA(acquire_capability(*m));
void mutex_unlock(struct mutex *m) TSA(release_capability(*m));

#endif
