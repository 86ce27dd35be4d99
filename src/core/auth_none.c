/* SPDX-License-Identifier: Apache-2.0 */
/* A build without libsodium: no engine has a key, so nothing is ever hashed. */
#include "core/auth.h"

#include "base/assert.h"

bool auth_available(void)
{
	return false;
}

void auth_hash(const uint8_t key[AUTH_BYTES], const char *label, const void *a, size_t a_bytes,
               const void *b, size_t b_bytes, uint8_t *out, size_t out_bytes)
{
	(void)key;
	(void)label;
	(void)a;
	(void)a_bytes;
	(void)b;
	(void)b_bytes;
	(void)out;
	(void)out_bytes;
	ASSERT(!"a key in a build without libsodium");
}
