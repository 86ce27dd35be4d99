/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROV_TCP_CONN_H
#define PROV_TCP_CONN_H

/* One TCP connection: dialling and being dialled, both ending in the agreed preface, and lingering
 * after its owner has let go. An open one belongs to a ctl or a path, which does the rest. */

#include "prov/tcp/dev.h"
#include "prov/tcp/frame.h"

#include <sys/types.h>
#include <sys/uio.h>

enum tcp_conn_state {
	TCP_CONN_CONNECTING, /* dialler: the kernel is at it */
	TCP_CONN_ANSWER,     /* dialler: preface sent, waiting for the answer */
	TCP_CONN_HELLO,      /* acceptor: waiting for the preface */
	TCP_CONN_OPEN,
	TCP_CONN_LINGER, /* sends what is left, then waits for the peer's end of stream */
};

struct tcp_conn {
	struct prov_obj obj;
	struct prov_obj *owner; /* whom events step; NULL: the connection itself */
	union tcp_sockaddr peer;
	enum tcp_conn_state state;
	enum tcp_kind kind;
	int fd;
	int error;     /* errno of the failure that ended it; 0: end of stream */
	bool can_read; /* as far as we know: cleared when the kernel says otherwise */
	bool can_write;
	bool hangup; /* the end of the stream, or an error, is waiting to be read */
	bool ended;  /* LINGER: our direction is shut */
	uint8_t hello[TCP_PREFACE_BYTES]; /* what came, or goes out, of the preface or answer */
	uint32_t hello_bytes;
	uint8_t *rest; /* LINGER: owned; still to be sent */
	size_t rest_bytes;
	size_t rest_pos;
};

/* Start dialling. NULL: out of memory or descriptors (*out_errno). Any other failure comes from
 * tcp_conn_dial_step(). */
struct tcp_conn *tcp_conn_dial(struct tcp_dev *dev, const union tcp_sockaddr *to,
                               enum tcp_kind kind, const uint8_t *token, struct prov_obj *owner,
                               int *out_errno);
/* AGAIN: not yet. OK: open. Else it failed: *fail says why. */
WIMM_MUST_CHECK wimm_status tcp_conn_dial_step(struct tcp_conn *conn, struct prov_fail *fail);

/* Take over an accepted descriptor. False when out of memory (the descriptor is closed). */
bool tcp_conn_accepted(struct tcp_dev *dev, int fd, const union tcp_sockaddr *peer);

/* > 0: that many bytes; 0: not now; -1: over, conn->error says why. asked_bytes: sum of iov. */
ssize_t tcp_conn_recv(struct tcp_conn *conn, struct iovec *iov, size_t count, size_t asked_bytes);
/* Bytes taken. A failure is 0 and shows at the next tcp_conn_recv(), behind what had still come. */
size_t tcp_conn_send(struct tcp_conn *conn, struct iovec *iov, size_t count);

/* The descriptor is gone, with whatever the kernel still held; freed at the next poll. */
void tcp_conn_close(struct tcp_conn *conn);
/* No owner any more: send rest (owned, may be NULL), end the stream, wait about a second for the
 * peer's end so that no reset overtakes the bytes, close. */
void tcp_conn_linger(struct tcp_conn *conn, uint8_t *rest, size_t rest_bytes);

/* "ADDRESS: what happened" for conn->error. */
void tcp_conn_fail_text(const struct tcp_conn *conn, struct prov_fail *fail, wimm_status status,
                        const char *what);

/* Listener and connections without owner; true: stay ready. */
bool tcp_listener_step(struct prov_obj *obj);
bool tcp_conn_step(struct prov_obj *obj);
void tcp_conn_free(struct prov_obj *obj);

/* listen.c: bind and listen as dev->limits says; fills dev->local and dev->listen_fd. */
WIMM_MUST_CHECK wimm_status tcp_listen(struct tcp_dev *dev, const char *nic,
                                       struct prov_error *error);
/* Options of every socket, before connect() or listen(). */
void tcp_socket_options(const struct tcp_dev *dev, int fd);

#endif
