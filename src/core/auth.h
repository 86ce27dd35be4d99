/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CORE_AUTH_H
#define CORE_AUTH_H

/* The job key: who does not have it gets no session. It authenticates, it does not encrypt.
 * docs/decisions/0008-job-key.md describes what is proved, with what, and against whom. */

#include "core/worker.h"

#define AUTH_BYTES     32
#define AUTH_KEY_MIN   16 /* bytes of a key as given */
#define AUTH_KEY_MAX   4096

struct auth_key {
	bool set;
	uint8_t bytes[AUTH_BYTES];
};

/* One of auth_sodium.c and auth_none.c is in the build. */
bool auth_available(void);
/* Keyed BLAKE2b of label, a and b; out_bytes 16..64. */
void auth_hash(const uint8_t key[AUTH_BYTES], const char *label, const void *a, size_t a_bytes,
               const void *b, size_t b_bytes, uint8_t *out, size_t out_bytes);

/* From the options, else from the file that the setting names, else none.
 * OK, E_INVAL (length), E_NOT_FOUND (file), E_UNSUPPORTED (build). */
wimm_status auth_key_load(const struct wimm_engine_opts *opts, struct auth_key *out);
void auth_wipe(void *bytes, size_t count);

/* Whether a hello may go on: it is of somebody with our key, or nobody has one. */
bool auth_hello_ok(const struct worker *w, const struct wire_msg *m);
/* Initiator: put a nonce into a hello; acceptor: into the answer, which fixes the session's key. */
void auth_begin(struct worker *w, struct peer *p, struct wire_msg *hello);
/* Acceptor: the hello that the answer will be for. */
void auth_heard_hello(struct worker *w, struct peer *p, const struct wire_msg *m);
/* Initiator: the answer is of somebody with our key. Fixes the session's key. */
bool auth_ack_ok(struct worker *w, struct peer *p, const struct wire_msg *m);
/* Acceptor: the ends of the paths are of who said hello, and now. */
bool auth_paths_ok(const struct worker *w, const struct peer *p, const struct wire_msg *m);
/* Hide an offer, or show it again: whoever dials a path shows what only the key reveals. */
void auth_mask_offer(const struct worker *w, const struct peer *p, bool of_acceptor, uint32_t path,
                     uint32_t seq, struct prov_offer *offer);
/* An encoded message is about to leave: put its proof in. */
void auth_seal(struct worker *w, struct peer *p, enum wire_type type, uint8_t *bytes, uint32_t len);

#endif
