/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROV_TCP_PATH_H
#define PROV_TCP_PATH_H

/* A path: writes to and from one remote device over one connection. path.c has its life,
 * path_tx.c the sending half, path_rx.c the receiving half. */

#include "prov/tcp/conn.h"

#define TCP_POST_DEPTH 1024u /* work requests in flight; a power of two */
#define TCP_RX_BYTES   (64u << 10)

enum tcp_req_state {
	TCP_REQ_QUEUED, /* no frame with its end has been started */
	TCP_REQ_SENT,   /* one has: the peer will count it as long as the path lives */
	TCP_REQ_ACKED,
	TCP_REQ_DROPPED, /* cancelled before that: the peer never counts it */
};

enum tcp_req_cancel {
	TCP_CANCEL_NONE,
	TCP_CANCEL_DUE, /* PROV_DONE with E_CANCELLED to be reported */
	TCP_CANCEL_TOLD,
};

struct tcp_req {
	struct prov_wr wr;
	uint8_t state;  /* enum tcp_req_state */
	uint8_t cancel; /* enum tcp_req_cancel */
};

/* Rest of a cancelled request's payload, copied so that its source is free at once. */
struct tcp_private {
	struct tcp_private *next;
	uint8_t bytes[];
};

/* What is being sent: an acknowledgement, a DATA frame, or both in one system call. It exists from
 * the first byte that the kernel took until the last; before that nothing is committed. */
struct tcp_tx_frame {
	bool started;
	uint32_t iov_pos; /* iov[0] is the block, the others are payload */
	uint32_t iov_count;
	uint32_t start_pos; /* queue position of its first work request */
	uint32_t end_pos;   /* where the queue goes on behind it */
	uint64_t end_off;
	uint64_t ack; /* what the peer has been told once it is sent */
	struct tcp_private *copies;
	struct iovec iov[1 + TCP_BATCH_MAX];
	uint32_t req[1 + TCP_BATCH_MAX]; /* queue position each iov belongs to */
	uint8_t block[TCP_HDR_BYTES + TCP_BLOCK_MAX];
};

/* Queue positions run freely; head <= ack <= send <= tail. */
struct tcp_tx {
	struct tcp_req *ring;
	uint32_t head; /* oldest not yet reported */
	uint32_t ack;  /* up to here all are acked or dropped */
	uint32_t send; /* first whose end is in no frame */
	uint32_t tail;
	uint64_t send_off; /* bytes of `send` that are in frames already */
	uint32_t cancels_due;
	uint64_t acked_total;
	struct tcp_tx_frame frame;
};

struct tcp_rx {
	uint8_t *buf; /* TCP_RX_BYTES; holds bytes [start, end) */
	uint32_t start;
	uint32_t end;
	uint32_t prefetch; /* how much to read behind a frame's payload */
	/* The frame being placed: descriptors [done, count) still lack bytes. */
	uint32_t count; /* 0: none */
	uint32_t done;
	uint32_t told; /* events of descriptors below are handed out */
	uint64_t off;  /* bytes of `done` that are there */
	bool more;     /* the turn ended with bytes or events left */
	uint64_t payload_left;
	uint64_t removals;     /* prov_regions_removals() when the ranges were last checked */
	uint64_t placed_total; /* work requests */
	uint64_t acked_total;  /* of these the peer knows */
	uint64_t unacked_bytes;
	struct tcp_desc desc[TCP_BATCH_MAX];
};

struct tcp_path {
	struct prov_obj obj;
	struct tcp_conn *conn; /* NULL: not joined, or lost */
	void *context;
	union tcp_sockaddr remote;
	uint8_t token[TCP_TOKEN_BYTES]; /* passive: what the dialler has to show */
	bool active;
	bool remote_bad; /* path_open() was given a malformed address */
	bool connect_called;
	bool up;     /* PROV_PATH_UP is out */
	bool failed; /* `fail` says how; nothing is sent or placed any more */
	bool down_reported;
	bool closing; /* path_close() was called */
	struct prov_fail fail;
	struct tcp_tx tx;
	struct tcp_rx rx;
};

/* The passive path that waits for this token, NULL if none. */
struct tcp_path *tcp_path_waiting(struct tcp_dev *dev, const uint8_t *token);
void tcp_path_joined(struct tcp_path *path, struct tcp_conn *conn);
bool tcp_path_step(struct prov_obj *obj, struct prov_emit *emit);
void tcp_path_drop(struct prov_obj *obj);
void tcp_path_free(struct prov_obj *obj);
/* The path is over: `path->fail` is filled in already. */
void tcp_path_lost(struct tcp_path *path);
/* The peer broke the rules: tell it in an ERROR frame, then as above. */
void tcp_path_reject(struct tcp_path *path);

/* --- path_tx.c --- */
/* Send what is queued, and the acknowledgement that is due. */
void tcp_tx_step(struct tcp_path *path);
/* The peer has placed `total` work requests. False: it lies. */
bool tcp_tx_acked(struct tcp_path *path, uint64_t total);
/* Report what has ended. False: the caller's array is full. */
bool tcp_tx_report(struct tcp_path *path, struct prov_emit *emit);
/* After path_close(): report everything that is left as lost. False: full. */
bool tcp_tx_report_lost(struct tcp_path *path, struct prov_emit *emit);
/* The started frame's unsent rest, in one block with `extra` behind it. NULL: out of memory. */
uint8_t *tcp_tx_take_rest(struct tcp_path *path, const uint8_t *extra, size_t extra_bytes,
                          size_t *out_bytes);
/* Forget the started frame: its connection is gone. */
void tcp_tx_abandon(struct tcp_path *path);

/* --- path_rx.c --- */
/* Read, place and report. False: the path is over. */
bool tcp_rx_step(struct tcp_path *path, struct prov_emit *emit);
/* Report what has been placed. False: full. */
bool tcp_rx_report(struct tcp_path *path, struct prov_emit *emit);
/* Whether an acknowledgement should go out now. */
bool tcp_rx_ack_due(const struct tcp_path *path);

/* The ops' entries. */
struct prov_path *tcp_op_path_open(struct prov_dev *dev, const struct prov_addr *remote,
                                   bool active, void *context, struct prov_offer *out,
                                   struct prov_error *error);
void tcp_op_path_connect(struct prov_path *path, const struct prov_offer *remote);
void tcp_op_path_close(struct prov_path *path);
uint32_t tcp_op_post(struct prov_path *path, const struct prov_wr *wr, uint32_t n);
void tcp_op_cancel(struct prov_path *path, uint64_t token);

#endif
