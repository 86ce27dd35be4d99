/* SPDX-License-Identifier: Apache-2.0 */
#include "plat/rand.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "base/assert.h"
#include "base/log.h"

wimm_status rand_bytes(void *out, size_t len_bytes)
{
	uint8_t *at = out;
	size_t left_bytes = len_bytes;

	while (left_bytes > 0) {
		ssize_t len = getrandom(at, left_bytes, 0);

		if (len < 0 && errno == EINTR)
			continue;
		if (len < 0) {
			LOG_ERROR("getrandom of %zu bytes: %s", left_bytes, strerror(errno));
			memset(out, 0, len_bytes);
			return WIMM_E_SYSTEM;
		}
		at += len;
		left_bytes -= (size_t)len;
	}
	return WIMM_OK;
}

static uint64_t splitmix(uint64_t *state)
{
	uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

static uint64_t rotl(uint64_t x, unsigned bits)
{
	return (x << bits) | (x >> (64 - bits));
}

void rng_init(struct rng *r, uint64_t seed)
{
	for (uint32_t i = 0; i < 4; i++)
		r->s[i] = splitmix(&seed);
}

uint64_t rng_u64(struct rng *r)
{
	uint64_t result = rotl(r->s[1] * 5, 7) * 9;
	uint64_t t = r->s[1] << 17;

	r->s[2] ^= r->s[0];
	r->s[3] ^= r->s[1];
	r->s[1] ^= r->s[2];
	r->s[0] ^= r->s[3];
	r->s[2] ^= t;
	r->s[3] = rotl(r->s[3], 45);
	return result;
}

uint64_t rng_below(struct rng *r, uint64_t bound)
{
	uint64_t reject;
	uint64_t x;

	if (bound == 0)
		return 0;
	/* Numbers below 2^64 mod bound would make small results likelier. */
	reject = (0 - bound) % bound;
	do {
		x = rng_u64(r);
	} while (x < reject);
	return x % bound;
}

uint64_t rng_between(struct rng *r, uint64_t low, uint64_t high)
{
	DASSERT(low <= high);
	if (high - low == UINT64_MAX)
		return rng_u64(r);
	return low + rng_below(r, high - low + 1);
}

int rng_chance(struct rng *r, uint64_t part, uint64_t whole)
{
	return rng_below(r, whole) < part;
}

void rng_shuffle_u32(struct rng *r, uint32_t *values, size_t count)
{
	for (size_t i = count; i > 1; i--) {
		size_t j = (size_t)rng_below(r, i);
		uint32_t swap = values[i - 1];

		values[i - 1] = values[j];
		values[j] = swap;
	}
}
