/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PLAT_THREAD_H
#define PLAT_THREAD_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "wimm/status.h"

typedef void (*plat_thread_fn)(void *arg);

struct plat_thread {
	pthread_t handle;
	plat_thread_fn fn;
	void *arg;
	int cpu_index;
	char name[16];
};

enum { PLAT_CPU_ANY = -1 };

/* On a variable of a thread: it is reached without a function call. Such variables share a few
 * hundred bytes with all libraries that a process loads late, so for words only. */
#define PLAT_TLS_SMALL __attribute__((tls_model("initial-exec")))

/* Starts fn(arg) on a thread of its own, with all signals blocked: they are the application's.
 * name: cut after 15 bytes. cpu_index: PLAT_CPU_ANY, or a CPU to stay on; a CPU that may not be
 * used is logged once for the process and the thread runs unpinned.
 * `t` stays where it is until the join. Returns OK, E_NOMEM, E_SYSTEM. */
WIMM_MUST_CHECK wimm_status plat_thread_start(struct plat_thread *t, plat_thread_fn fn, void *arg,
                                              const char *name, int cpu_index);
/* Keeps the calling thread on the CPUs of a NUMA node that the process may use; NUMA_NODE_NONE, or
 * a node without any: leaves it where it may run. */
void plat_thread_stay_on_node(int node);
/* Waits for fn to return. */
void plat_thread_join(struct plat_thread *t);
/* Whether the caller runs on `t`. */
bool plat_thread_is_self(const struct plat_thread *t);
/* Lets another runnable thread go first. */
void plat_thread_yield(void);
/* CPUs that the calling thread may run on; at least 1. */
uint32_t plat_cpu_count(void);
/* Tells the CPU that this is a spin loop. */
void plat_cpu_relax(void);
/* What was stored before has left the CPU before what is stored later does, gathered writes to
 * devices too. Not an edge between threads: those have atomics. */
void plat_store_fence(void);

#endif
