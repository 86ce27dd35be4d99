/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PLAT_RAND_H
#define PLAT_RAND_H

#include <stddef.h>
#include <stdint.h>

#include "wimm/status.h"

/* The kernel's random bytes: identities, nonces, hash seeds. Returns OK or E_SYSTEM (then out is
 * zeroed). Blocks: only before the kernel's pool is ready, at boot. */
WIMM_MUST_CHECK wimm_status rand_bytes(void *out, size_t len_bytes);

/* A seeded generator (xoshiro256**, seeded through splitmix64): the same seed gives the same
 * numbers on every machine. For the simulator and tests, never for secrets. One owner. */
struct rng {
	uint64_t s[4];
};

void rng_init(struct rng *r, uint64_t seed);
uint64_t rng_u64(struct rng *r);
/* 0..bound - 1, each equally likely; 0 when bound is 0. */
uint64_t rng_below(struct rng *r, uint64_t bound);
/* low..high, both included; low <= high. */
uint64_t rng_between(struct rng *r, uint64_t low, uint64_t high);
/* True in `part` of `whole` cases. */
int rng_chance(struct rng *r, uint64_t part, uint64_t whole);
/* Every order of the array equally likely. */
void rng_shuffle_u32(struct rng *r, uint32_t *values, size_t count);

#endif
