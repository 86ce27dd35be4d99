/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROV_HOST_FETCH_H
#define PROV_HOST_FETCH_H

/* Memory of a GPU at both ends, pulled: the receiver maps the sender's region and lets its own card
 * copy what an entry of kind CARD offers. Nothing of the peer's is needed to stop it, so it is
 * fenced at once, always. docs/decisions/0010-gpu-memory-in-host.md has the reasons. */

#include <stdbool.h>
#include <stdint.h>

struct host_dev;
struct host_path;

/* What a path needs for it; NULL until it is offered something. */
struct host_fetch;

enum host_fetch_look {
	HOST_FETCH_DONE,    /* the entry has been passed */
	HOST_FETCH_COPYING, /* look again */
	HOST_FETCH_ASKING,  /* until the peer says where its region is, if it ever does */
	HOST_FETCH_OVER,    /* path->fail says why */
};

/* The entry at rx.done, an offer to a card; those behind it are started, too. Worker only, inside a
 * stay (prov/regions.h). */
enum host_fetch_look host_fetch_step(struct host_path *path);
/* A new batch of entries is about to be read. */
void host_fetch_batch(struct host_path *path);
/* Wait until this side's card reads nothing of the peer's any more; a few milliseconds. */
void host_fetch_drain(struct host_path *path);
void host_fetch_fini(struct host_path *path);

/* A region of a card is about to be there: what fetching into it needs, since what the driver does
 * for that would wait for kernels that run, and one may be waiting for what is fetched. Control
 * plane. */
void host_fetch_prepare(struct host_dev *dev, int device);
/* The key of a region of this device's is dead: wait until what was fetched into it is there.
 * Thread: any. -1: nothing to wait for. */
void host_fetch_quiet(struct host_dev *dev, int device);
void host_fetch_dev_fini(struct host_dev *dev);

#endif
