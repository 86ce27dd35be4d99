/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SIM_STATS_H
#define TESTS_SIM_STATS_H

/* What a run has met, so that a set of seeds can be called strong or weak. */

#include "prov/sim/sim.h"

/* X(NAME, text): what callers do that must be in every set of seeds, as faults must. */
#define PATTERN_MAP(X)                                                                             \
	X(CONFIRMED, "fence, the peer has confirmed")                                              \
	X(FENCED, "fence, the peer was cut off")                                                   \
	X(FENCED_FROZEN, "fence of a frozen peer")                                                 \
	X(PATH_BACK, "lost path stands again within its session")                                  \
	X(RESTART, "engine back at its address as a new instance")                                 \
	X(REREGISTER, "region registered anew at its address")                                     \
	X(CANCEL, "operation cancelled")                                                           \
	X(RETIRE, "immediate retired")                                                             \
	X(BARRIER, "barrier rounds with a slow member")                                            \
	X(STREAM, "stream of writes past a waiting one")                                           \
	X(LAZY, "program that makes progress seldom")                                              \
	X(PLAIN, "message to whoever answers at an address")                                       \
	X(SLOW_LINK, "slow link")                                                                  \
	X(KEYED, "job key")

enum pattern {
#define X(name, text) PATTERN_##name,
	PATTERN_MAP(X)
#undef X
		PATTERN_COUNT
};

struct stats {
	uint64_t pattern[PATTERN_COUNT];
	uint64_t ops, settled_ok, bytes, virtual_ns;
	uint64_t fault[SIM_FAULT_COUNT];
	uint64_t faults;
	uint64_t events;
};

#endif
