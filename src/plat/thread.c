/* SPDX-License-Identifier: Apache-2.0 */
#include "plat/thread.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/log.h"
#include "plat/numa.h"

static void pin_self(const struct plat_thread *t)
{
	static _Atomic int told; /* relaxed: at worst two threads tell */
	int err = EINVAL;
	cpu_set_t cpus;

	if (t->cpu_index == PLAT_CPU_ANY)
		return;
	if (t->cpu_index >= 0 && t->cpu_index < CPU_SETSIZE) {
		CPU_ZERO(&cpus);
		CPU_SET((size_t)t->cpu_index, &cpus);
		err = pthread_setaffinity_np(pthread_self(), sizeof(cpus), &cpus);
	}
	if (err != 0 && atomic_exchange_explicit(&told, 1, memory_order_relaxed) == 0)
		LOG_WARN("thread %s cannot be pinned to CPU %d (%s): threads run unpinned; choose "
		         "a CPU this process may use",
		         t->name, t->cpu_index, strerror(err));
}

void plat_thread_stay_on_node(int node)
{
	cpu_set_t cpus;
	int err;

	if (node == NUMA_NODE_NONE || numa_cpus_of_node(node, &cpus) != WIMM_OK)
		return;
	err = pthread_setaffinity_np(pthread_self(), sizeof(cpus), &cpus);
	if (err != 0)
		LOG_WARN("a thread cannot stay on NUMA node %d (%s): it runs where it may", node,
		         strerror(err));
}

static void *thread_main(void *arg)
{
	struct plat_thread *t = arg;

	pthread_setname_np(pthread_self(), t->name);
	pin_self(t);
	t->fn(t->arg);
	return NULL;
}

wimm_status plat_thread_start(struct plat_thread *t, plat_thread_fn fn, void *arg, const char *name,
                              int cpu_index)
{
	sigset_t all;
	sigset_t before;
	int err;

	*t = (struct plat_thread){ .fn = fn, .arg = arg, .cpu_index = cpu_index };
	snprintf(t->name, sizeof(t->name), "%s", name);
	/* A new thread inherits the mask, so there is no moment at which it could be chosen. */
	sigfillset(&all);
	ASSERT(pthread_sigmask(SIG_SETMASK, &all, &before) == 0);
	err = pthread_create(&t->handle, NULL, thread_main, t);
	ASSERT(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
	if (err == 0)
		return WIMM_OK;
	LOG_ERROR("thread %s cannot be started: %s; raise ulimit -u or the memory limit", t->name,
	          strerror(err));
	return err == ENOMEM ? WIMM_E_NOMEM : WIMM_E_SYSTEM;
}

void plat_thread_join(struct plat_thread *t)
{
	ASSERT(pthread_join(t->handle, NULL) == 0);
}

bool plat_thread_is_self(const struct plat_thread *t)
{
	return pthread_equal(t->handle, pthread_self()) != 0;
}

void plat_thread_yield(void)
{
	sched_yield();
}

uint32_t plat_cpu_count(void)
{
	cpu_set_t set;

	return sched_getaffinity(0, sizeof(set), &set) == 0 ? (uint32_t)CPU_COUNT(&set) : 1;
}

void plat_store_fence(void)
{
#if defined(__x86_64__)
	__builtin_ia32_sfence();
#elif defined(__aarch64__)
	__asm__ volatile("dsb st" ::: "memory");
#endif
}

void plat_cpu_relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}
