/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CORE_SAME_HOST_H
#define CORE_SAME_HOST_H

/* Peers of the same machine: beside its NICs an engine has one device of the provider for
 * neighbours, and a session one more path, over it, where the probe of that provider succeeds. No
 * address is ever compared. docs/decisions/0006-same-host-routing.md has the reasons. */

#include "core/worker.h"

enum same_host_rule {
	SAME_HOST_AUTO = 0,
	SAME_HOST_OFF,
	SAME_HOST_REQUIRE, /* no session with who is not reached this way */
};

/* Open the device behind the NICs, by the setting. OK also where there is none. */
wimm_status same_host_open(struct wimm_engine *engine);

static inline bool same_host_there(const struct worker *w)
{
	return w->dev_count > w->nic_count;
}

static inline bool same_host_is(const struct peer *p, const struct path *path)
{
	return path->index == p->host_path;
}

static inline bool same_host_up(const struct peer *p)
{
	return p->host_path != NO_HOST_PATH && p->path[p->host_path].state == PATH_UP;
}

/* Say in a hello where neighbours are served. */
void same_host_say(const struct worker *w, struct wire_msg *hello);
/* Acceptor: whether the hello asks for a path over this machine, and where that side is. */
bool same_host_asked(const struct worker *w, struct peer *p, const struct wire_msg *hello);
/* Acceptor: put this side's place in front of its offer. */
void same_host_wrap(const struct worker *w, struct prov_offer *offer);
/* Initiator: take it off again; false: malformed. */
bool same_host_unwrap(struct peer *p, struct prov_offer *offer);

/* What is told of a peer: which way its writes go, and why. */
void same_host_way(struct peer *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Its paths are planned. */
void same_host_plan(const struct worker *w, struct peer *p);
/* The one through this machine is up, or lost. */
void same_host_path_up(struct worker *w, struct peer *p, const char *text);
void same_host_path_lost(struct peer *p, const char *text);
/* Whether its session may stand; false: the setting wants what it has not. */
bool same_host_suffices(const struct worker *w, const struct peer *p);

#endif
