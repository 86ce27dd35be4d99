/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CORE_GROUP_H
#define CORE_GROUP_H

/* Peer groups and barriers: lists of peers that are looked up once. The memory of removed groups is
 * used again, but not that of the last ones, and is not freed before the engine closes, so that a
 * removed handle is found out. */

#include "base/list.h"

#include <wimm/transfer.h>

#include <stdbool.h>

struct leg;

struct wimm_peer_group {
	struct list link; /* engine.groups or engine.groups_removed, under the engine's lock */
	struct wimm_engine *engine;
	_Atomic uint32_t live;
	uint32_t room; /* a power of two, at least count */
	/* For the next operation: legs for `room` peers that the last one has given back. NULL:
	 * none, or lent. Shared. */
	_Atomic(struct leg *) legs;
	uint64_t count;
	wimm_peer peer[];
};

/* Legs for an operation to a group, NULL when out of memory; and back, also those that are no
 * group's (NULL). Any thread. */
struct leg *group_legs_get(struct wimm_peer_group *group);
void group_legs_put(struct wimm_peer_group *group, struct leg *legs);
bool group_usable(const struct wimm_engine *engine, const struct wimm_peer_group *group);

#endif
