/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CORE_PEER_H
#define CORE_PEER_H

/* Peers, their sessions and paths; all owned by the worker but for `public_state`. */

#include "base/hash.h"
#include "core/op.h"
#include "core/wire.h"

#include <wimm/region.h>

enum peer_state {
	PEER_FREE = 0,
	PEER_CONNECTING = 1,
	PEER_UP = 2,
	PEER_DOWN = 3, /* never up again; its id stays refused */
};

enum path_state { PATH_NONE = 0, PATH_OPENING, PATH_UP, PATH_CLOSING };

/* What a prov context points to. */
enum context_kind { CONTEXT_CTL = 1, CONTEXT_PATH };
struct context {
	enum context_kind kind;
};

/* Local NIC index % own count to remote NIC index % their count. */
struct path {
	struct context context;
	enum path_state state;
	struct peer *peer;
	struct prov_path *prov;
	uint32_t (*post)(struct prov_path *path, const struct prov_wr *wr, uint32_t n);
	uint32_t index;
	uint32_t bit; /* 1 << index */
	uint32_t nic; /* local */
	uint32_t remote_nic; /* WIMM_MAX_NICS: the one for peers of this machine */
	uint32_t seq; /* which life of this path */
	uint32_t outstanding;
	bool dirty;    /* cancelled requests may be under way: drain.c */
	bool flushing; /* the empty write behind them is */
	bool full; /* it took less than it was offered: who waits for it goes first */
	bool connected; /* the peer's end of this life is known */
	bool barred;   /* not opened again: its end broke a rule */
	bool stood;    /* it has been up in this session */
	uint32_t tries; /* to open it again */
	uint64_t due_ns; /* to try so, or to give a try up; 0: neither */
	uint32_t lost_at; /* peer.losses when it was lost last */
	uint64_t done_ns; /* the last completion */
	uint64_t posted_marks; /* requests posted that the receiver counts */
	uint64_t seen_marks;   /* the same, received */
};

/* A ctl before it is known whose it is, and afterwards. */
struct ctl {
	struct context context;
	struct list link; /* worker.strangers without a peer, worker.dead_ctls */
	struct peer *peer;
	struct prov_ctl *prov;
	uint32_t nic;
	uint64_t opened_ns;
	bool dead; /* closed; freed at the end of the turn */
};

#define NO_HOST_PATH UINT32_MAX
#define PEER_WAY_BYTES 256

struct peer_event {
	struct delivery delivery;
	struct worker *worker;
	struct wimm_peer_event event;
	char text[WIMM_ERROR_TEXT_BYTES];
	struct peer *owner; /* the down event: the slot is freed after it */
	bool heap;          /* allocated: freed after it ran */
};

struct peer {
	_Atomic uint64_t
		public_state; /* generation << 8 | enum peer_state; shared, written by the worker */
	struct request done;  /* inbox, after the down event ran */

	/* Owned by the worker. */
	struct worker *worker;
	uint32_t slot;
	uint32_t generation;
	enum peer_state state;
	struct list link;   /* worker.peers */
	struct peer *alias; /* this one turned out to be that one */
	struct wire_addr addr;
	bool by_place; /* it was added by an address without an instance: */
	struct wire_addr place;
	bool instance_known;
	bool initiator;
	bool at_home;   /* this side has found it at the address that it names first */
	bool contested; /* another instance has said that this place is its own */
	bool leaving; /* this side said goodbye */
	bool down_delivered;
	bool goodbye;                /* the peer said so */
	uint64_t ending_step;        /* goodbye or loss was seen in this step; 0: neither. The
				      * peer is down once every NIC was polled empty after it */
	uint64_t ending_ns;          /* nor before this: its goodbye may be under way */
	wimm_status ending_cause;
	uint32_t ending_code;
	char ending_text[WIMM_ERROR_TEXT_BYTES];
	uint8_t progress_mode;
	uint64_t nonce;
	uint64_t former;     /* of the session before, once the peer said that it is busy with it */
	uint64_t dialled_ns; /* our hello went out */
	struct ctl *ctl;
	uint32_t dial_nic;   /* remote NIC last tried for the ctl */
	bool awaiting_hello; /* the other side won the simultaneous open */
	uint64_t redial_ns;  /* it was busy: when to ask again; 0: no need */
	struct {
		uint8_t hello[32];   /* of the hello of this session */
		uint8_t session[32]; /* its key */
	} auth;              /* with a job key: auth.c */
	bool agreed;         /* both ends of the paths are known: other messages may come */
	uint64_t connect_deadline_ns;
	struct list outbox; /* messages the ctl had no room for */
	uint32_t outbox_count;
	struct list talk_link; /* worker.talkers, while outbox is not empty */
	uint64_t last_rx_ns;
	uint64_t last_tx_ns;
	uint64_t timeout_ns;     /* of these: */
	uint64_t own_timeout_ns; /* asked for; 0: the engine's */
	uint64_t min_timeout_ns; /* for its heartbeats */
	uint64_t attempt; /* the peer's hellos up to this one are out of date */
	uint32_t max_msg_bytes;
	uint32_t path_count;
	uint32_t host_path; /* which one stays on this machine, NO_HOST_PATH if none; the last */
	struct prov_addr host_addr;
	bool ordered;       /* on all its paths */
	bool can_cancel;
	char way[PEER_WAY_BYTES]; /* which way its writes go and why */
	uint32_t paths_up;
	uint32_t paths_open; /* not yet reported closed by the provider */
	uint32_t next_path;  /* round robin */
	struct path *straight; /* where the next short write goes at once; NULL: to be found out.
				* Whatever could forbid it clears this */
	struct path path[WIRE_MAX_PATHS];

	struct stage_tx *stage_tx; /* slots for memory of GPUs that is sent, */
	struct stage_rx *stage_rx; /* and that comes in; NULL: none yet */
	bool land_wanted;          /* it asked for slots, and has too many that are not free yet */
	_Atomic uint32_t land_areas; /* lent and not free yet; also of peers that had this place */
	struct list stage_link;    /* worker.stage_peers */
	struct list pending;    /* legs to post */
	struct list ready_link; /* worker.ready */
	struct list remotes;    /* remote_mr.link */
	struct hash by_region;  /* slot and generation -> one of the handles of that region */
	struct list owed_acks;  /* revocations to acknowledge once the paths are drained */
	uint32_t owed_count;
	bool draining;
	bool stopped;         /* it has fenced this side off: nothing more is posted */
	uint64_t fence_asked; /* its question that is not answered yet; 0: none */
	uint8_t minor;        /* of its wire version */
	uint32_t refs;          /* remote regions, open operations */
	struct list sends;      /* operations, oldest first */
	uint32_t sends_in_flight;
	bool sends_stuck; /* the ctl was full */
	bool send_wait;   /* the peer has no buffer; waits for MSG_READY */
	bool owes_ready;  /* this side refused a message and owes a MSG_READY */
	uint64_t send_seq;
	struct list confirms;   /* legs of the next CONFIRM */
	struct list confirming; /* legs of the one under way */
	uint64_t confirm_id;    /* under way; 0: none */
	bool hold;              /* unordered: nothing is posted while a CONFIRM is under way */
	bool blocked;           /* not in worker.ready though legs are pending */
	struct wire_marks asked; /* the peer's CONFIRM that is not answered yet; id 0: none */
	uint64_t doubt_id;       /* ALIVE_ASK that is not answered; 0: none */
	uint64_t alive_id;       /* the last one that was */
	struct list doubts; /* operations that failed with a path, or was it with the peer? */
	uint32_t losses;    /* of paths, so far */
	struct hash parts;      /* op_seq -> struct part * */
	struct list parts_done; /* unused entries */
	uint64_t op_seq;
	struct list retires_asked; /* our questions that it has not answered */
	struct list retires_heard; /* answered, until as much is counted here */
	struct list retires;       /* its questions that are not answered: retire_request.of_peer */
	struct list retires_wait;       /* unordered: for the next CONFIRM */
	struct list retires_confirming; /* for the one under way */
	struct list retires_told; /* answered, until the peer has counted as much */
	uint32_t retire_count;    /* its questions, in all lists */

	wimm_status cause;
	uint32_t vendor_code;
	char text[WIMM_ERROR_TEXT_BYTES];
	struct peer_event up_event;
	struct peer_event down_event;
};

static inline void path_set_state(struct path *path, enum path_state state)
{
	path->state = state;
	path->peer->straight = NULL;
}

#define PEER_PUBLIC(generation, state) ((uint64_t)(generation) << 8 | (uint64_t)(state))

/* A peer's region; memory belongs to the worker's table and is reused, never returned early. */
struct wimm_remote_mr {
	struct request request; /* REQUEST_REMOTE_CLOSE */
	_Atomic uint32_t
		public_state; /* enum remote_state; written by the worker, read by submitters */
	_Atomic uint32_t generation; /* of this handle's life */
	_Atomic uint32_t closed;     /* given back, which the worker may not know yet */
	struct worker *worker;
	uint32_t slot;

	/* Fixed while the handle lives. */
	uint64_t base;
	uint64_t len_bytes;
	uint32_t region_slot;
	uint32_t region_generation;
	uint32_t key_count;
	bool gpu; /* memory of a GPU */
	uint64_t card; /* which, or WIRE_CARD_NONE */
	wimm_peer peer_id;
	/* By path.remote_nic; the last is the core's own, which the provider for peers of this
	 * machine takes as it is. */
	uint64_t key[WIMM_MAX_NICS + 1];

	/* Owned by the worker. */
	struct peer *peer;
	struct list link;    /* peer.remotes */
	struct list same;    /* the other handles of this region */
	struct list waiting; /* legs, until the owner has said that the region stands, and those
			      * that wait for a stream */
	uint32_t refs;       /* legs of operations that have not settled */
	bool check_sent;
	bool closing;
	bool revoke_owed; /* a REVOKE_ACK is owed when refs is 0 */
};

enum remote_state { REMOTE_FREE = 0, REMOTE_NEW, REMOTE_VALID, REMOTE_REVOKED, REMOTE_LOST };

/* Any thread: whether something may be submitted to it, of which remote_usable() says why not. */
static inline bool remote_stands(const struct worker *w, const struct wimm_remote_mr *r)
{
	uint32_t state;

	if (r == NULL || r->worker != w ||
	    atomic_load_explicit(&r->closed, memory_order_relaxed) != 0)
		return false;
	/* Acquire, with the release in set_state(). */
	state = atomic_load_explicit(&r->public_state, memory_order_acquire);
	return state == REMOTE_NEW || state == REMOTE_VALID;
}

/* Worker: whether it is the one that was written to, and its owner has said that it stands. */
static inline bool remote_takes(const struct wimm_remote_mr *r, uint32_t generation)
{
	/* Relaxed: the worker is the only writer and asks here. */
	return atomic_load_explicit(&r->public_state, memory_order_relaxed) == REMOTE_VALID &&
	       atomic_load_explicit(&r->generation, memory_order_relaxed) == generation;
}

#endif
