/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CORE_SESSION_H
#define CORE_SESSION_H

/* What session.c, hello.c and path.c share; worker.h has what the rest of the core may call. */

#include "core/worker.h"

/* "6f1c..": enough of an instance to tell two apart. */
const char *session_instance_text(const uint8_t *instance, char out[17]);
const char *session_addr_text(const struct wire_addr *addr, char *out, size_t out_bytes);

/* A channel without a provider's end yet; NULL: no memory. */
struct ctl *session_ctl_new(struct worker *w, uint32_t nic) ON_WORKER;
/* Close it; flush: what was sent is still delivered. */
void session_ctl_drop(struct worker *w, struct ctl *c, bool flush) ON_WORKER;

/* Somebody says that this session is over. Whoever has lost its end of it has closed the channel,
 * and a message there comes back as the end of the channel; who has not does not mind one more. */
void session_knock(struct worker *w, struct peer *p) ON_WORKER;
void hello_arrived(struct worker *w, struct ctl *c, const struct wire_msg *m) ON_WORKER;
void hello_acked(struct worker *w, struct peer *p, const struct wire_msg *m) ON_WORKER;
void hello_paths(struct worker *w, struct peer *p, const struct wire_msg *m) ON_WORKER;
/* The peer did not answer at this NIC of its: try the next. False: there is none. */
bool hello_dial_next(struct worker *w, struct peer *p) ON_WORKER;
/* Start over on a fresh channel to the same NIC. */
void hello_redial(struct worker *w, struct peer *p) ON_WORKER;
/* Something of a peer's is due at a time, which is kept where due_ns points. */
void session_chore(struct worker *w, uint64_t *due_ns, uint64_t at_ns) ON_WORKER;

/* How many paths a session with this peer has; neighbour: one of them through this machine. */
void path_plan(const struct worker *w, struct peer *p, bool neighbour);
/* Open this side's end of path k. */
bool path_prepare(struct worker *w, struct peer *p, uint32_t k, uint32_t seq,
                  struct prov_offer *out, struct prov_error *error);
/* The session stands once all paths have come up or failed; at_deadline: with what is up. */
void path_maybe_up(struct worker *w, struct peer *p, bool at_deadline) ON_WORKER;
/* Another instance was said to be at the place of this peer, which is lost now: that one, if its
 * session stands, with old->text saying so. */
struct peer *path_heir(struct worker *w, struct peer *old) ON_WORKER;
/* The event: it has taken the place of one that is lost. */
void path_restarted(struct worker *w, struct peer *p);
void path_event(struct worker *w, struct path *path, const struct prov_cqe *c) ON_WORKER;

/* path_again.c: doubt about a peer that has lost a path, and that path's way back. */
void doubt_begin(struct worker *w, struct peer *p) ON_WORKER;
void doubt_peer_down(struct worker *w, struct peer *p) ON_WORKER;
/* A path has no end here: have a new one made, after a pause. */
void path_again(struct worker *w, struct path *path) ON_WORKER;
/* The pause is over, or a try has lasted too long. */
void path_due(struct worker *w, struct path *path) ON_WORKER;
/* It has come up in a session that stood without it. */
void path_back(struct worker *w, struct path *path);
void path_message(struct worker *w, struct peer *p, const struct wire_msg *m) ON_WORKER;

#endif
