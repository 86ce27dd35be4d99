/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/pattern.h"

#include <string.h>

/* The finalizer of splitmix64: every bit of the input changes half of the output. */
static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

uint64_t pattern_key(uint64_t seed, uint64_t round, uint64_t block)
{
	return mix(mix(mix(seed) + round) + block);
}

static uint64_t word_at(uint64_t key, size_t i)
{
	return mix(key + i * UINT64_C(0x9e3779b97f4a7c15));
}

void pattern_fill(uint8_t *at, size_t len, uint64_t key)
{
	size_t i = 0;
	uint64_t word;

	for (; (i + 1) * sizeof(word) <= len; i++) {
		word = word_at(key, i);
		memcpy(at + i * sizeof(word), &word, sizeof(word));
	}
	word = word_at(key, i);
	memcpy(at + i * sizeof(word), &word, len % sizeof(word));
}

static size_t first_difference(const uint8_t *at, uint64_t word, size_t len)
{
	uint8_t want[sizeof(word)];
	size_t i = 0;

	memcpy(want, &word, sizeof(want));
	while (i < len && at[i] == want[i])
		i++;
	return i;
}

size_t pattern_check(const uint8_t *at, size_t len, uint64_t key)
{
	size_t i = 0;
	uint64_t word;

	for (; (i + 1) * sizeof(word) <= len; i++) {
		memcpy(&word, at + i * sizeof(word), sizeof(word));
		if (word != word_at(key, i))
			return i * sizeof(word) + first_difference(at + i * sizeof(word),
			                                           word_at(key, i), sizeof(word));
	}
	return i * sizeof(word) +
	       first_difference(at + i * sizeof(word), word_at(key, i), len % sizeof(word));
}

size_t poison_check(const uint8_t *at, size_t len, uint8_t poison)
{
	/* A buffer of one byte value equals itself shifted by one. */
	if (len == 0 || (at[0] == poison && memcmp(at, at + 1, len - 1) == 0))
		return len;
	for (size_t i = 0; i < len; i++)
		if (at[i] != poison)
			return i;
	return len;
}
