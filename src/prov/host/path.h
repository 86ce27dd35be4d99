/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROV_HOST_PATH_H
#define PROV_HOST_PATH_H

/* A path: writes to and from one remote device through a shared area, and a connection that rings
 * the bell and whose end is the path's end. path.c has its life, join.c how it starts and what is
 * found out then, path_tx.c the sending half, path_rx.c the receiving half. */

#include "prov/host/conn.h"
#include "prov/host/maps.h"
#include "prov/host/ring.h"

#define HOST_POST_DEPTH 1024u /* work requests in flight; a power of two */
#define HOST_BATCH_MAX  64u   /* entries read ahead, and pulled with one system call */

enum host_req_state {
	HOST_REQ_QUEUED, /* its last entry is not in the ring */
	HOST_REQ_SENT,   /* it is: the peer will count it as long as the path lives */
	HOST_REQ_ACKED,
	HOST_REQ_DROPPED, /* taken back: the peer never counts it */
};

enum host_req_by {
	HOST_BY_NONE, /* not decided */
	HOST_BY_ENTRY,
	HOST_BY_RING,
	HOST_BY_OFFER,
	HOST_BY_COPY,  /* into the peer's memory, mapped here */
	HOST_BY_STORE, /* into the peer's memory, by the kernel */
	HOST_BY_GPU,   /* into the peer's memory of a GPU, by this side's card: gpu.h */
	HOST_BY_CARD,  /* the same, offered to the peer's card: fetch.h */
};

enum host_req_cancel {
	HOST_CANCEL_NONE,
	HOST_CANCEL_WAITS, /* for the peer, which reads the source; with `reading` */
	HOST_CANCEL_DUE,   /* PROV_DONE with E_CANCELLED to be reported */
	HOST_CANCEL_TOLD,
};

struct host_req {
	struct prov_wr wr;
	uint8_t state;  /* enum host_req_state */
	uint8_t cancel; /* enum host_req_cancel */
	uint8_t by;     /* enum host_req_by */
	bool begun;     /* entries from first_pos on exist */
	bool reading;   /* taken back while the peer fetched: until it has passed next_pos */
	uint32_t first_pos;
	uint32_t next_pos; /* behind its newest entry */
};

/* Queue positions run freely; head <= ack <= send <= tail. So do positions of entries. */
struct host_tx {
	struct host_req *ring;
	struct host_lane *lane;
	uint32_t head; /* oldest not yet reported */
	uint32_t ack;  /* up to here all are acked or dropped */
	uint32_t send; /* first whose last entry is not in the ring */
	uint32_t tail;
	uint64_t send_off;  /* bytes of `send` that are in entries already */
	uint64_t piece_off; /* bytes copied already of the piece that COPY is at */
	uint64_t budget;    /* bytes left to this turn */
	uint32_t cancels_due;
	uint32_t cancels_waiting;
	uint32_t published; /* next entry */
	uint32_t acked;     /* entries the peer has placed, as last seen and checked */
	uint64_t bytes_head;
	uint64_t bytes_tail;
	uint64_t bytes_end[HOST_RING_ENTRIES]; /* bytes_tail behind each entry */
};

struct host_rx {
	struct host_lane *lane;
	uint32_t pos;   /* of entry[0] */
	uint32_t count; /* entries read; [done, count) are not placed */
	uint32_t done;
	uint32_t told;   /* events of those below are handed out */
	uint64_t off;    /* bytes of `done` that are there */
	uint64_t bytes;  /* running positions in the byte ring: of what was read in entries, */
	uint64_t placed; /* and of what was copied */
	uint32_t acked;  /* what the peer has been told */
	struct host_entry entry[HOST_BATCH_MAX];
};

/* How foreign memory is reached, found out when the path starts. */
struct host_ways {
	bool tx_offer;      /* the peer can fetch from this process */
	int tx_offer_errno; /* why not; 0: it was not tried */
	bool rx_offer;      /* this process can fetch from the peer */
	int rx_offer_errno;
	bool tx_store; /* this process can write into the peer; tried where the setting asks */
	int tx_store_errno;
};

/* What the other process reads and writes, to show that it can. In memory of our own, not
 * shared. */
struct host_probe {
	uint8_t read_me[HOST_NONCE_BYTES];
	uint8_t write_me[HOST_NONCE_BYTES];
};

enum host_join_state {
	HOST_JOIN_NONE,
	HOST_JOIN_DIALLING, /* the peer's queue is full */
	HOST_JOIN_WAIT,     /* for the next packet of the joining */
	HOST_JOIN_DONE,
};

struct host_path {
	struct prov_obj obj;
	struct list hot;
	struct host_conn *conn; /* NULL: not joined, or lost */
	void *context;
	struct host_name remote;
	uint8_t token[HOST_TOKEN_BYTES]; /* passive: own; active: the peer's */
	bool active;
	bool remote_bad; /* path_open() was given a malformed address */
	bool connect_called;
	bool up;    /* PROV_PATH_UP is out */
	bool ended; /* the connection has: what is in the ring still comes, to end_pos */
	uint32_t end_pos;
	bool failed; /* `fail` says how; nothing is sent or placed any more */
	bool down_reported;
	bool closing; /* path_close() was called */
	uint64_t awaits;    /* the peer's `writing` while it is waited for, */
	uint64_t awaits_ns; /* since then */
	uint64_t leave_ns; /* then: until when a peer that reads a source is waited for */
	bool bell_due;
	bool ack_bell_due; /* for an acknowledgement alone: see host_path_ring_later() */
	bool gave_foreign; /* ordinary memory of this process, to be written by the peer */
	bool pull_cards;   /* memory of GPUs is offered, not written */
	bool offers_cards; /* and has been */
	uint8_t join;      /* enum host_join_state */
	bool echoed;       /* what this side wrote through the area has come back */
	uint8_t nonce[HOST_NONCE_BYTES]; /* that */
	struct prov_fail fail;
	struct host_area *area; /* NULL: none */
	pid_t peer_pid;         /* fixed once joined, as is: */
	int pidfd;              /* readable when the peer's process is gone; -1: none */
	struct host_maps maps;
	struct host_gpu *gpu;     /* NULL until it has to do with memory of a GPU, */
	struct host_fetch *fetch; /* or is offered some */
	struct host_ways ways;
	struct host_probe probe;
	char ways_text[224];
	struct host_tx tx;
	struct host_rx rx;
};

static inline unsigned int host_path_side(const struct host_path *path)
{
	return path->active ? 0 : 1;
}

/* The passive path that waits for this token, NULL if none. */
struct host_path *host_path_waiting(struct host_dev *dev, const uint8_t *token);
void host_path_joined(struct host_path *path, struct host_conn *conn);
/* Its dialler is of a user that is not let in: the path is over. */
void host_path_turned_away(struct host_path *path, const struct host_conn *conn);
bool host_path_step(struct prov_obj *obj, struct prov_emit *emit);
void host_path_drop(struct prov_obj *obj);
void host_path_free(struct prov_obj *obj);
/* The path is over: `path->fail` is filled in already. */
void host_path_lost(struct host_path *path);
/* The peer broke the rules: tell it why, then as above. */
void host_path_reject(struct host_path *path);
/* Wake the peer if it sleeps: entries or acknowledgements are there. */
void host_path_ring(struct host_path *path);
/* The same for an acknowledgement, where the caller goes on to tell of what arrived. The word is
 * looked at for certain at the next look at the sockets or before this side sleeps. */
void host_path_ring_later(struct host_path *path);
/* Whether its ring has something for the worker; no system call. */
bool host_path_hint(const struct host_path *path);
/* Whether the peer is copying into memory here just now, so that an entry is to be expected: for a
 * while it is not worth sleeping. */
bool host_path_awaits(struct host_path *path);
/* Before sleeping: the peer rings from now on. And behind it. */
void host_path_announce(struct host_path *path);
void host_path_awake(struct host_path *path);

/* --- join.c --- */
/* Bring the two ends together. OK: both are ready. AGAIN: not yet. Else path->fail says why. */
WIMM_MUST_CHECK wimm_status host_join_step(struct host_path *path);
void host_join_fini(struct host_path *path);
/* How bytes travel, for people; valid as long as the path. */
const char *host_join_text(struct host_path *path);

/* --- path_tx.c --- */
static inline struct host_req *host_tx_req(struct host_tx *tx, uint32_t pos)
{
	return &tx->ring[pos & (HOST_POST_DEPTH - 1)];
}

/* A request that lies at the tail is queued. */
void host_tx_queue(struct host_path *path, struct host_req *req);
/* Whether a request travels this way; decides it if nobody has. */
bool host_tx_by(struct host_path *path, struct host_req *req, enum host_req_by by);
/* Length of the piece of the request at `send` that one entry stands for. */
uint32_t host_tx_piece_bytes(const struct host_tx *tx, const struct host_req *req);
/* An entry for the request at `send`: kind, length, and source or bytes are filled in. */
void host_tx_publish(struct host_path *path, struct host_req *req, struct host_entry *e);
/* The same where the entry has its address, too, and how much it stands for is the caller's. */
void host_tx_put(struct host_path *path, struct host_req *req, struct host_entry *e, bool last);
/* Put what is queued into the ring. */
void host_tx_step(struct host_path *path);
/* Look how far the peer is. False: it lies. */
bool host_tx_acks(struct host_path *path);
/* The peer has had its time to leave the sources it was reading: cancels wait no longer. */
void host_tx_give_up(struct host_path *path);
/* The path is over: take back what can be. */
void host_tx_abandon(struct host_path *path);
/* After that: whether the peer may still read a source. */
bool host_tx_reading(struct host_path *path);
/* And no, it does not: its worker has closed the path, or its process is gone. */
void host_tx_peer_gone(struct host_path *path);
/* Report what has ended. False: the caller's array is full. */
bool host_tx_report(struct host_path *path, struct prov_emit *emit);
/* After path_close(): report everything that is left as lost. False: full. */
bool host_tx_report_lost(struct host_path *path, struct prov_emit *emit);

/* --- push.c --- */
/* The run of STORE requests at `send`, as one system call. False: not now. */
bool host_push_step(struct host_path *path);

/* --- path_rx.c --- */
/* Read, place and report. True: there is more. */
bool host_rx_step(struct host_path *path, struct prov_emit *emit);
/* Report what has been placed. False: full. */
bool host_rx_report(struct host_path *path, struct prov_emit *emit);

/* The ops' entries. */
struct prov_path *host_op_path_open(struct prov_dev *dev, const struct prov_addr *remote,
                                    bool active, void *context, struct prov_offer *out,
                                    struct prov_error *error);
void host_op_path_connect(struct prov_path *path, const struct prov_offer *remote);
void host_op_path_close(struct prov_path *path);
uint32_t host_op_post(struct prov_path *path, const struct prov_wr *wr, uint32_t n);
void host_op_cancel(struct prov_path *path, uint64_t token);

#endif
