/* SPDX-License-Identifier: Apache-2.0 */
#include "plat/mutex.h"

#include "base/assert.h"

/* A default mutex fails only when it is misused, which is our own bookkeeping. */
void mutex_init(struct mutex *m)
{
	ASSERT(pthread_mutex_init(&m->impl, NULL) == 0);
}

void mutex_fini(struct mutex *m)
{
	ASSERT(pthread_mutex_destroy(&m->impl) == 0);
}

void mutex_lock(struct mutex *m) TSA(no_thread_safety_analysis)
{
	ASSERT(pthread_mutex_lock(&m->impl) == 0);
}

void mutex_unlock(struct mutex *m) TSA(no_thread_safety_analysis)
{
	ASSERT(pthread_mutex_unlock(&m->impl) == 0);
}
