/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FAULTS_RAW_H
#define TESTS_FAULTS_RAW_H

/* A peer by hand: it speaks the session's messages and tcp's frames over plain sockets, rightly at
 * first and then as a case wants. */

#include "contract/fixture.h"

#include "core/wire.h"
#include "prov/tcp/frame.h"

struct raw {
	int ctl;
	int path[WIMM_MAX_NICS];
	uint32_t path_count;
	uint64_t nonce;
	struct wire_addr self;
	struct wire_msg ack; /* the other side's answer */
	uint8_t in[1 << 16];
};

/* A connection to a NIC, nothing said. */
int raw_dial(const struct wimm_net_addr *to, uint32_t nic);
/* All bytes; false when the other side has closed meanwhile. */
bool raw_send(int fd, const void *bytes, size_t count);
/* Exactly so many bytes; false when it was closed before. */
bool raw_read(int fd, void *bytes, size_t count);
/* Wait until the other side has closed; what still comes is thrown away. */
void raw_wait_closed(int fd);
void raw_close(int fd);

/* Dial and get past the preface. token NULL: a ctl. Negative: refused. */
int raw_open(const struct wimm_net_addr *to, uint32_t nic, const uint8_t *token);
/* Messages of sessions. */
bool raw_say_bytes(int ctl, const void *bytes, uint32_t count);
bool raw_say(int ctl, const struct wire_msg *m);
/* The next message that is not a heartbeat. False: closed. */
bool raw_hear(struct raw *r, struct wire_msg *out);
/* A hello of `self` to whoever answers. */
void raw_hello(const struct raw *r, struct wire_msg *out);
/* Frames of paths: DATA with one descriptor and its payload. */
bool raw_data(int path, const struct tcp_desc *desc, const void *payload, uint64_t announced);

/* A new identity, nothing connected. */
void raw_identity(struct raw *r);
/* A hello of r->self on a channel of its own; returns how it is answered (r->ack). */
wimm_status raw_claim(struct raw *r, const struct wimm_net_addr *to, uint64_t attempt,
                      uint64_t former);
/* What follows an answer that says OK: the ends of the paths, and the paths. */
void raw_paths(struct raw *r, const struct wimm_net_addr *to);
/* A new identity with a hello said and answered. */
void raw_greet(struct raw *r, const struct wimm_net_addr *to);
/* The whole session, as the initiator, with all paths. */
void raw_session(struct raw *r, const struct wimm_net_addr *to);
void raw_end(struct raw *r);

/* A place where an engine's hello is overheard: an address with `owner`'s instance and our port. */
struct raw_listener {
	int fd;
};
void raw_listen(struct raw_listener *l, const struct wimm_net_addr *owner,
                struct wimm_net_addr *out);
/* Take one ctl and its first message; returns the message's length. */
uint32_t raw_overhear(struct raw_listener *l, uint8_t *bytes, uint32_t room);
void raw_listen_end(struct raw_listener *l);

#endif
