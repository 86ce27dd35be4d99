/* SPDX-License-Identifier: Apache-2.0 */
#include "core/auth.h"

#include "base/config.h"
#include "base/log.h"
#include "core/engine.h"
#include "core/error_text.h"
#include "plat/rand.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const uint8_t no_key[AUTH_BYTES];

void auth_wipe(void *bytes, size_t count)
{
	explicit_bzero(bytes, count);
}

/* In constant time: how much of a proof was right must not be told by how long it took. */
static bool same(const uint8_t *a, const uint8_t *b)
{
	uint8_t differ = 0;

	for (size_t i = 0; i < AUTH_BYTES; i++)
		differ |= a[i] ^ b[i];
	return differ == 0;
}

/* --- the key --- */

static wimm_status key_from(const uint8_t *bytes, size_t count, struct auth_key *out)
{
	if (count < AUTH_KEY_MIN || count > AUTH_KEY_MAX) {
		error_text_set("job key of %zu bytes; allowed are %d..%d", count, AUTH_KEY_MIN,
		               AUTH_KEY_MAX);
		return WIMM_E_INVAL;
	}
	if (!auth_available()) {
		error_text_set("a job key needs libsodium, which this build does not have");
		return WIMM_E_UNSUPPORTED;
	}
	auth_hash(no_key, "wimm job key", bytes, count, NULL, 0, out->bytes, AUTH_BYTES);
	out->set = true;
	return WIMM_OK;
}

wimm_status auth_key_load(const struct wimm_engine_opts *opts, struct auth_key *out)
{
	char path[CONFIG_TEXT_BYTES];
	uint8_t bytes[AUTH_KEY_MAX + 1];
	size_t count;
	wimm_status st;
	FILE *file;

	out->set = false;
	if (opts->job_key != NULL || opts->job_key_bytes != 0) {
		if (opts->job_key == NULL)
			return WIMM_E_INVAL;
		return key_from(opts->job_key, opts->job_key_bytes, out);
	}
	config_get_text(CFG_JOB_KEY_FILE, path);
	if (path[0] == '\0')
		return WIMM_OK;
	file = fopen(path, "re");
	if (file == NULL) {
		error_text_set("job key file %s: %s (setting job_key_file)", path, strerror(errno));
		return WIMM_E_NOT_FOUND;
	}
	errno = 0;
	count = fread(bytes, 1, sizeof(bytes), file);
	st = ferror(file) ? WIMM_E_SYSTEM : key_from(bytes, count, out);
	if (st == WIMM_E_SYSTEM)
		error_text_set("job key file %s: %s (setting job_key_file)", path, strerror(errno));
	else if (st == WIMM_E_INVAL)
		error_text_set("job key file %s (setting job_key_file): %zu bytes%s; allowed are "
		               "%d..%d",
		               path, count, count > AUTH_KEY_MAX ? " or more" : "", AUTH_KEY_MIN,
		               AUTH_KEY_MAX);
	(void)fclose(file);
	auth_wipe(bytes, sizeof(bytes));
	return st;
}

/* --- a session's proofs --- */

static const struct auth_key *key_of(const struct worker *w)
{
	return &w->engine->job_key;
}

static void nonce_new(struct worker *w, uint8_t *out)
{
	/* In a simulated world everything comes from its seed. */
	if (w->engine->env.rng_seed == 0 && rand_bytes(out, AUTH_BYTES) == WIMM_OK)
		return;
	for (size_t i = 0; i < AUTH_BYTES; i++)
		out[i] = (uint8_t)worker_random(w);
}

/* What both sides know of each other and nobody else: the key, both nonces, both instances and the
 * version, which are in the hello and its answer. */
static void session_key(const struct worker *w, struct peer *p, const uint8_t *nonce,
                        const uint8_t *acceptor)
{
	uint8_t both[AUTH_BYTES + WIMM_INSTANCE_BYTES];

	memcpy(both, nonce, AUTH_BYTES);
	memcpy(both + AUTH_BYTES, acceptor, WIMM_INSTANCE_BYTES);
	auth_hash(key_of(w)->bytes, "wimm session", p->auth.hello, AUTH_BYTES, both, sizeof(both),
	          p->auth.session, AUTH_BYTES);
}

bool auth_hello_ok(const struct worker *w, const struct wire_msg *m)
{
	uint8_t want[AUTH_BYTES];

	if (!key_of(w)->set)
		return m->u.hello.auth == 0;
	if (m->u.hello.auth != WIRE_AUTH_BLAKE2B)
		return false;
	auth_hash(key_of(w)->bytes, "wimm hello", m->raw, m->mac_at, NULL, 0, want, sizeof(want));
	return same(want, m->u.hello.mac);
}

void auth_heard_hello(struct worker *w, struct peer *p, const struct wire_msg *m)
{
	if (key_of(w)->set)
		auth_hash(key_of(w)->bytes, "wimm heard", m->raw, m->mac_at, NULL, 0, p->auth.hello,
		          AUTH_BYTES);
}

void auth_begin(struct worker *w, struct peer *p, struct wire_msg *hello)
{
	if (!key_of(w)->set)
		return;
	hello->u.hello.auth = WIRE_AUTH_BLAKE2B;
	nonce_new(w, hello->u.hello.auth_nonce);
	if (hello->type == WIRE_HELLO_ACK)
		session_key(w, p, hello->u.hello.auth_nonce, hello->u.hello.self.instance);
}

bool auth_ack_ok(struct worker *w, struct peer *p, const struct wire_msg *m)
{
	uint8_t want[AUTH_BYTES];

	if (!key_of(w)->set)
		return m->u.hello.auth == 0;
	if (m->u.hello.auth != WIRE_AUTH_BLAKE2B)
		return false;
	auth_hash(key_of(w)->bytes, "wimm ack", p->auth.hello, AUTH_BYTES, m->raw, m->mac_at, want,
	          sizeof(want));
	if (!same(want, m->u.hello.mac))
		return false;
	session_key(w, p, m->u.hello.auth_nonce, m->u.hello.self.instance);
	return true;
}

bool auth_paths_ok(const struct worker *w, const struct peer *p, const struct wire_msg *m)
{
	uint8_t want[AUTH_BYTES];

	if (!key_of(w)->set)
		return true;
	if (!m->u.paths.has_mac)
		return false;
	auth_hash(p->auth.session, "wimm paths", m->raw, m->mac_at, NULL, 0, want, sizeof(want));
	return same(want, m->u.paths.mac);
}

void auth_mask_offer(const struct worker *w, const struct peer *p, bool of_acceptor, uint32_t path,
                     uint32_t seq, struct prov_offer *offer)
{
	/* A later life of a path has a mask of its own. */
	uint8_t which[6] = { of_acceptor,          (uint8_t)path,       (uint8_t)(seq >> 24),
		             (uint8_t)(seq >> 16), (uint8_t)(seq >> 8), (uint8_t)seq };
	size_t bytes = seq == 1 ? 2 : sizeof(which);
	uint8_t mask[PROV_OFFER_BYTES];

	if (!key_of(w)->set)
		return;
	auth_hash(p->auth.session, "wimm offer", which, bytes, NULL, 0, mask, sizeof(mask));
	for (uint32_t i = 0; i < offer->len_bytes; i++)
		offer->bytes[i] ^= mask[i];
}

void auth_seal(struct worker *w, struct peer *p, enum wire_type type, uint8_t *bytes, uint32_t len)
{
	const uint8_t *key = key_of(w)->bytes;
	uint32_t before = len - AUTH_BYTES;
	uint8_t *mac = bytes + before;

	if (!key_of(w)->set)
		return;
	switch (type) {
	case WIRE_HELLO:
		auth_hash(key, "wimm hello", bytes, before, NULL, 0, mac, AUTH_BYTES);
		auth_hash(key, "wimm heard", bytes, before, NULL, 0, p->auth.hello, AUTH_BYTES);
		return;
	case WIRE_HELLO_ACK:
		auth_hash(key, "wimm ack", p->auth.hello, AUTH_BYTES, bytes, before, mac,
		          AUTH_BYTES);
		return;
	case WIRE_PATHS:
		auth_hash(p->auth.session, "wimm paths", bytes, before, NULL, 0, mac, AUTH_BYTES);
		return;
	default:
		return;
	}
}
