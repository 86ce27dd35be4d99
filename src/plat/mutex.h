/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PLAT_MUTEX_H
#define PLAT_MUTEX_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/tsa.h"

/* Control path only. A capability: clang checks TSA(guarded_by(lock)) for a lock that is a global.
 * For a lock inside a struct clang 14 has no name in C; use one global role a kind of lock. */
struct TSA(capability("mutex")) mutex {
	pthread_mutex_t impl;
	_Atomic int fork_state;
};

#define MUTEX_INIT { PTHREAD_MUTEX_INITIALIZER, 0 }
/* Of what a forked child uses too: a fork waits until it is free, so that no thread that is not
 * there holds it in the child. For a few globals, of which no thread takes two. */
#define MUTEX_INIT_FOR_CHILDREN { PTHREAD_MUTEX_INITIALIZER, 1 }

void mutex_init(struct mutex *m);
void mutex_fini(struct mutex *m);
void mutex_lock(struct mutex *m) TSA(acquire_capability(*m));
void mutex_unlock(struct mutex *m) TSA(release_capability(*m));

#endif
