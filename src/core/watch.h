/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CORE_WATCH_H
#define CORE_WATCH_H

/* Watchers: one thread an engine that reads words while any is armed, else sleeps. */

#include "plat/thread.h"
#include "plat/wake.h"

#define WATCH_MAX 1024

struct wimm_engine;
struct wimm_uvm_watcher;

struct watch_set {
	/* Filled and emptied under the engine's lock, read by the watcher thread without it. */
	_Atomic(struct wimm_uvm_watcher *) slot[WATCH_MAX];
	_Atomic uint32_t used;   /* slots ever filled */
	_Atomic uint32_t armed;  /* watchers that are */
	_Atomic uint64_t rounds; /* looks at all slots that have ended */
	_Atomic uint32_t stop;
	_Atomic uint32_t ended; /* the thread looks no more */
	struct wake wake;
	struct plat_thread thread;
	bool started; /* guarded by the engine's lock */
};

wimm_status watch_init(struct watch_set *s);
/* Caller-driven mode: look at every armed word once; returns how many changed. */
uint32_t watch_poll(struct wimm_engine *engine);
/* End the thread; last changes are handed over first. */
void watch_stop(struct wimm_engine *engine);
void watch_fini(struct watch_set *s); /* frees what the application did not */

#endif
