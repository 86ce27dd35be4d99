/* SPDX-License-Identifier: Apache-2.0 */
#include "plat/mutex.h"

#include "base/assert.h"

/* Those that a fork takes and gives back in both processes. */
#define CHILDREN_MAX 8
static pthread_mutex_t children_lock = PTHREAD_MUTEX_INITIALIZER;
static struct mutex *children[CHILDREN_MAX];
static int children_count;

static void before_fork(void)
{
	(void)pthread_mutex_lock(&children_lock);
	for (int i = 0; i < children_count; i++)
		(void)pthread_mutex_lock(&children[i]->impl);
}

static void after_fork(void)
{
	for (int i = children_count; i-- > 0;)
		(void)pthread_mutex_unlock(&children[i]->impl);
	(void)pthread_mutex_unlock(&children_lock);
}

/* At its first use: nobody holds it. */
static void hold_over_forks(struct mutex *m)
{
	(void)pthread_mutex_lock(&children_lock);
	if (atomic_load_explicit(&m->fork_state, memory_order_relaxed) == 1) {
		if (children_count == 0)
			ASSERT(pthread_atfork(before_fork, after_fork, after_fork) == 0);
		ASSERT(children_count < CHILDREN_MAX);
		children[children_count++] = m;
		/* Relaxed: another thread that sees the old state finds out under the lock. */
		atomic_store_explicit(&m->fork_state, 2, memory_order_relaxed);
	}
	(void)pthread_mutex_unlock(&children_lock);
}

/* A default mutex fails only when it is misused, which is our own bookkeeping. */
void mutex_init(struct mutex *m)
{
	ASSERT(pthread_mutex_init(&m->impl, NULL) == 0);
	atomic_init(&m->fork_state, 0);
}

void mutex_fini(struct mutex *m)
{
	ASSERT(pthread_mutex_destroy(&m->impl) == 0);
}

void mutex_lock(struct mutex *m) TSA(no_thread_safety_analysis)
{
	if (atomic_load_explicit(&m->fork_state, memory_order_relaxed) == 1)
		hold_over_forks(m);
	ASSERT(pthread_mutex_lock(&m->impl) == 0);
}

void mutex_unlock(struct mutex *m) TSA(no_thread_safety_analysis)
{
	ASSERT(pthread_mutex_unlock(&m->impl) == 0);
}
