/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CORE_OP_H
#define CORE_OP_H

/* Operations: what a submission becomes. They live in one array of the engine, are named by ids
 * that carry a generation, and hold their own callback record, so that settling never allocates. */

#include "base/list.h"
#include "core/imm.h"
#include "core/wire.h"
#include "queue/mpsc.h"

#include <wimm/imm.h>
#include <wimm/transfer.h>

struct cuda_mark;
struct peer;
struct recv_pool;
struct retire_request;
struct retire_wait;
struct wimm_mr;
struct wimm_remote_mr;
struct worker;

/* What travels through the worker's inbox. */
enum request_kind {
	REQUEST_OP = 1,       /* struct op, submitted */
	REQUEST_CANCEL,       /* struct op, cancel asked */
	REQUEST_CALL,         /* struct call */
	REQUEST_RECV_BACK,    /* struct recv_slot, its callback has run */
	REQUEST_DEREG,        /* struct wimm_mr */
	REQUEST_REMOTE_CLOSE, /* struct wimm_remote_mr */
	REQUEST_PEER_DONE,    /* struct peer, its last event was delivered */
};

struct request {
	struct mpsc_node node;
	enum request_kind kind;
};

/* What travels to the callback thread; run() is called once there, under no lock. */
struct delivery {
	struct mpsc_node node;
	void (*run)(struct delivery *d);
};

enum op_kind {
	OP_WRITE = 1,
	OP_PAGED,
	OP_SCATTER,
	OP_SEND,
	OP_RECVS,
	OP_EXPECT,
	OP_RETIRE,
	OP_FENCE,
};

/* The part of a write that goes to one peer: pages [next, end) of a paged write, or the bytes of
 * one slice. Owned by the worker once its operation is. */
struct leg {
	struct list link; /* in remote_mr.waiting or peer.pending; of some states alone */
	struct op *op;
	struct wimm_remote_mr *dst;
	uint64_t src_offset;
	uint64_t dst_offset;
	uint64_t len_bytes; /* slices */
	uint64_t end;       /* of pages, or of work requests of a slice */
	uint32_t dst_generation;
	uint32_t run;    /* requests for one path before the next has its turn */
	uint32_t pieces; /* slices: requests a part */
	uint8_t path_map[WIMM_MAX_NICS];
	/* From here on zero before it starts. */
	uint64_t op_seq;     /* names a split operation to the receiver; 0: not split */
	uint64_t next;       /* pages, or work requests of a slice, posted so far */
	uint32_t parts;      /* what the receiver waits for before it counts; 0, 1: not split */
	uint32_t parts_sent;
	uint32_t turn;       /* requests posted since others of the peer had theirs */
	uint32_t used;       /* paths it was posted on, a bit each */
	uint32_t losses;     /* of paths of its peer, before it was posted first */
	enum leg_state {
		LEG_IDLE = 0,   /* not taken by a remote region yet */
		LEG_WAITING,    /* in remote_mr.waiting, for the owner's answer or a stream */
		LEG_PENDING,    /* in peer.pending */
		LEG_POSTED,     /* all its requests are on NICs or done */
		LEG_CONFIRMING, /* in peer.confirms */
		LEG_STAGED,     /* waits for slots: stage_tx.c */
	} state;
	uint8_t path_count; /* planned paths; 0: not planned yet; LEG_GPU: nor that */
	bool held;          /* counts in remote_mr.refs */
	bool as_list;       /* all its pages are one request */
};

struct op_paged {
	/* count of the source, then as many of the destination; of merged pages then their numbers.
	 * Or of a list, which is not written. */
	uint32_t *indices;
	uint32_t *dst_indices;
	struct wimm_page_list *list; /* whose they are; NULL: this operation's own */
	uint64_t count; /* of pages, or of runs of them */
	uint64_t src_stride, dst_stride;
	uint64_t page_len_bytes;
	uint64_t dst_bytes;   /* from index 0 to the end of the page that lies last */
	uint64_t index_bytes; /* charged to the engine's budget */
	bool pinned;          /* where a GPU reads them */
	bool merged;          /* each entry is a run of pages, neighbours on both sides */
};

#define OP_STATE_LIVE   1u
#define OP_STATE_CANCEL 2u
#define OP_STATE_BITS   8

struct op {
	struct request request;   /* inbox */
	struct request cancel;    /* inbox; pushed at most once a life */
	struct delivery delivery; /* callback queue */
	_Atomic uint64_t state;   /* generation << OP_STATE_BITS | OP_STATE_*; shared */

	/* Fixed at submission. */
	uint32_t index;
	enum op_kind kind;
	uint32_t flags;
	uint32_t imm;
	uint32_t nic_index;
	uint32_t src_generation;
	bool src_held;  /* counts in wimm_mr.refs; the worker's */
	wimm_peer peer; /* the one it is for; 0: none or several */
	struct worker *worker;
	struct wimm_on_done on_done;
	const struct wimm_mr *src;
	uint64_t submit_ns;
	uint64_t deadline_ns; /* CLOCK_NEVER_NS: none */

	/* Owned by the worker. */
	wimm_status status;
	bool started;           /* accepted by the worker and not settled */
	bool cancel_first;      /* its cancel overtook it on the way to the worker */
	bool close_asked;       /* the engine's close has cancelled it */
	bool source_read;       /* a stopped peer may read its source after all */
	bool aborted;           /* status is final, waiting for outstanding requests */
	uint32_t confirms_left; /* legs that the receiver has not confirmed */
	uint32_t heap_index;    /* in the timers; 0: none */
	uint32_t legs_open;     /* not completely posted */
	uint64_t outstanding;   /* work requests on NICs */
	struct cuda_mark *mark; /* of the stream it waits for; NULL: of none, or no longer */
	uint64_t post_ns;
	uint64_t settled_ns;
	uint64_t doubt_from;    /* the least ALIVE_ASK whose answer ends its doubt; 0: none yet */
	uint64_t lingers_ns;    /* since when it waits for what cannot be taken back */
	uint64_t bytes_total;
	uint64_t descriptors;      /* posted */
	uint64_t descriptors_done; /* ended well */
	wimm_peer blame;
	struct retire_request *asking; /* one of the ring of questions that wait for its end */

	/* From here on op_get() sets only what says that the rest is not in use. */
	struct leg leg;   /* writes to one peer */
	struct leg *legs; /* &leg, or an array of a scatter */
	struct wimm_peer_group *legs_of; /* whose array it is; NULL: nobody's */
	uint32_t leg_count;
	struct op_paged paged;
	struct list link;      /* worker.ops_started, while it is */
	struct list wait_link; /* peer.sends, worker.retires or .afters */
	struct {
		struct peer *peer;
		wimm_peer id;
		uint8_t *data;
		uint64_t len_bytes;
		uint64_t seq;
		bool in_flight;
	} send;
	struct recv_pool *recvs;
	struct {
		struct imm_expect e;
		struct wimm_owes *owes_ids; /* as given; looked up by the worker */
	} expect;
	struct {
		uint32_t left; /* sessions that have not answered */
		uint32_t wait_count;
		struct retire_wait *waits;
	} retire;
	struct {
		wimm_peer id;
		struct peer *peer;
		uint64_t end_ns; /* deadline_ns is when to stop asking, at first */
		uint64_t ask_id;
		struct wire_marks marks; /* what the peer posted before it stopped */
		bool heard;
		bool confirmed; /* and all of that is counted */
		bool closing;   /* the session is over, its paths may not be */
		uint64_t closing_step; /* of the worker, when that was so */
		uint32_t late_turns; /* past its deadline, for NICs that had more to say */
		wimm_fence_answer answer;
	} fence;
	char text[WIMM_ERROR_TEXT_BYTES];
};

static inline wimm_op op_id(const struct op *op)
{
	/* Relaxed: the generation changes only when the slot is free. */
	uint64_t state = atomic_load_explicit(&op->state, memory_order_relaxed);

	return (state >> OP_STATE_BITS) << 32 | (op->index + 1);
}

/* In leg.path_count: not planned yet, and memory of a GPU at an end. One look tells both. */
#define LEG_GPU UINT8_MAX
/* In op.flags beside those of the caller: no request of it may go elsewhere than planned. */
#define OP_STAYS (UINT32_C(1) << 31)

/* Ids: generation << 32 | index + 1. Tokens of work requests: generation << 32 | index << 8 |
 * bits. */
#define FLUSH_TOKEN      0u /* no operation has generation 0: drain.c */
#define STAGE_TOKEN      1u /* and its slot's number: stage_tx.c */
#define OP_TOKEN_COUNTED 1u /* the request carries an immediate or ends a part */

#endif
