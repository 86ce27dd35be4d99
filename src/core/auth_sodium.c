/* SPDX-License-Identifier: Apache-2.0 */
#include "core/auth.h"

#include "base/assert.h"

#include <sodium.h>
#include <string.h>

bool auth_available(void)
{
	return sodium_init() >= 0;
}

static void add_part(crypto_generichash_state *state, const void *part, size_t count)
{
	uint8_t len[8];

	/* The length in front: two parts are never mistaken for two others. */
	for (size_t i = 0; i < sizeof(len); i++)
		len[i] = (uint8_t)((uint64_t)count >> (8 * i));
	ASSERT(crypto_generichash_update(state, len, sizeof(len)) == 0);
	ASSERT(crypto_generichash_update(state, part, count) == 0);
}

void auth_hash(const uint8_t key[AUTH_BYTES], const char *label, const void *a, size_t a_bytes,
               const void *b, size_t b_bytes, uint8_t *out, size_t out_bytes)
{
	crypto_generichash_state state;

	ASSERT(crypto_generichash_init(&state, key, AUTH_BYTES, out_bytes) == 0);
	add_part(&state, label, strlen(label));
	add_part(&state, a, a_bytes);
	add_part(&state, b, b_bytes);
	ASSERT(crypto_generichash_final(&state, out, out_bytes) == 0);
	sodium_memzero(&state, sizeof(state));
}
