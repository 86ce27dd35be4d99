/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CORE_GROUP_H
#define CORE_GROUP_H

/* Peer groups and barriers: lists of peers that are looked up once. The memory of removed groups is
 * used again, but not that of the last ones, and is not freed before the engine closes, so that a
 * removed handle is found out. */

#include "base/list.h"

#include <wimm/transfer.h>

#include <stdbool.h>

struct wimm_peer_group {
	struct list link; /* engine.groups or engine.groups_removed, under the engine's lock */
	struct wimm_engine *engine;
	_Atomic uint32_t live;
	uint32_t room; /* a power of two, at least count */
	uint64_t count;
	wimm_peer peer[];
};

bool group_usable(const struct wimm_engine *engine, const struct wimm_peer_group *group);

#endif
