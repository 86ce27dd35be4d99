/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROV_HOST_CONN_H
#define PROV_HOST_CONN_H

/* One unix connection of whole packets. The dialler's first packet says what it is for; then it
 * belongs to a ctl or a path. Credentials of the other end come from the kernel. */

#include "prov/host/dev.h"

#include <sys/types.h>

#define HOST_TOKEN_BYTES   16u
#define HOST_PREFACE_BYTES 24u
#define HOST_PACKET_MAX    (32u << 10)

enum host_conn_kind {
	HOST_CONN_CTL = 1,
	HOST_CONN_PATH = 2,
};

/* Packets behind the preface: one byte of kind, then: */
enum host_packet {
	HOST_PACKET_REFUSED = 1, /* u8 reason; the last packet */
	HOST_PACKET_BYTES,       /* ctl: the next bytes of its stream */
	HOST_PACKET_BELL,        /* path: look at the ring */
	HOST_PACKET_JOIN,        /* path: dialler, acceptor, dialler; see probe.h */
	HOST_PACKET_ERROR,       /* path: i32 status, text; the last packet */
	HOST_PACKET_ASK,         /* path: a region's key; see share.h */
	HOST_PACKET_GIVE,        /* path: the answer, with a descriptor or without */
	HOST_PACKET_ASK_SOURCE,  /* the same two for a region of a GPU that was offered: to read */
	HOST_PACKET_GIVE_SOURCE,
};

enum host_refusal {
	HOST_REFUSE_VERSION = 1,
	HOST_REFUSE_TOKEN, /* no path waits for it */
	HOST_REFUSE_RESOURCES,
	HOST_REFUSE_USER,
};

struct host_conn {
	struct prov_obj obj;
	struct prov_obj *owner; /* whom events step; NULL: the connection itself */
	int fd;
	int error; /* errno of the failure that ended it; 0: closed by the peer */
	pid_t pid; /* of the other end, as this process sees it; 0: it cannot */
	uid_t uid;
	bool can_read; /* as far as we know: cleared when the kernel says otherwise */
	bool can_write;
	bool broken;    /* sending has failed for good */
	bool was_reset; /* the peer closed with packets of ours unread; what it sent comes first */
};

/* Connect and send the preface with up to one descriptor (-1: none). Returns OK, AGAIN (its queue
 * is full: once more a little later), E_PEER_LOST (*fail says why), E_PEER_REFUSED (another user),
 * E_NOMEM, E_SYSTEM. */
WIMM_MUST_CHECK wimm_status host_conn_dial(struct host_dev *dev, const struct host_name *to,
                                           enum host_conn_kind kind, const uint8_t *token,
                                           struct prov_obj *owner, struct host_conn **out,
                                           struct prov_fail *fail);

/* Whether anybody of that name would be dialled: somebody is there, of a user we accept. */
bool host_conn_welcome(const struct host_dev *dev, const struct host_name *to);

/* Take over an accepted descriptor; it says hello then. False when out of memory (closed). */
bool host_conn_accepted(struct host_dev *dev, int fd);
bool host_conn_step(struct prov_obj *obj);
void host_conn_free(struct prov_obj *obj);

/* One packet. > 0: its length; 0: not now; -1: over, conn->error says why. *out_fd (may be NULL): a
 * descriptor that came with it, or -1; descriptors nobody wants are closed. */
ssize_t host_conn_recv(struct host_conn *conn, void *buf, size_t buf_bytes, int *out_fd);
/* Kind byte and up to two blocks as one packet, with a descriptor if fd >= 0. False: not now, or
 * over, which shows at the next host_conn_recv(). */
bool host_conn_send(struct host_conn *conn, enum host_packet kind, const struct iovec *iov,
                    size_t count, int fd);
/* The descriptor is gone; freed at the next poll. What was sent before still arrives. */
void host_conn_close(struct host_conn *conn);
/* "WHAT: WHY" into *fail. */
void host_conn_fail_text(const struct host_conn *conn, struct prov_fail *fail, wimm_status status,
                         const char *what);
/* Text of a HOST_PACKET_REFUSED. */
const char *host_refusal_text(uint8_t refusal);

/* --- listen.c --- */
WIMM_MUST_CHECK wimm_status host_listen(struct host_dev *dev, struct prov_error *error);
bool host_listener_step(struct prov_obj *obj);

#endif
