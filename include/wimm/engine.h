/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WIMM_ENGINE_H
#define WIMM_ENGINE_H

#include <wimm/status.h>

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Structs of arguments begin with `size`, set by their _INIT, and hold `reserved` fields that must
 * be zero. Their size is fixed within a major version: what is added takes the place of a reserved
 * field. A failed call leaves a sentence in wimm_last_error_text(). */

struct wimm_engine;           /* opaque; wimm_engine_open() */

/** A peer of one engine: one instance of a remote engine. 0 is no peer. An id is never reused for
 *  another instance, so a stale one is refused, not misdirected. */
typedef uint64_t wimm_peer;

/** An accepted operation of one engine, until it has settled. 0 is no operation. */
typedef uint64_t wimm_op;

#define WIMM_INSTANCE_BYTES 16
#define WIMM_NET_ADDR_MAX_BYTES 1024
#define WIMM_NET_ADDR_MAX_TEXT 2048
#define WIMM_DEFAULT_PORT 18515
#define WIMM_MAX_NICS 16
#define WIMM_ERROR_TEXT_BYTES 256
#define WIMM_NIC_SAME_HOST 0xffffffffu /* no NIC: this machine's memory */

/** The address of an engine: all its NICs and its instance, as bytes that any channel may carry. */
struct wimm_net_addr {
	uint32_t len_bytes;
	uint8_t bytes[WIMM_NET_ADDR_MAX_BYTES];
};

/** How an operation ended; handed to its callback, valid during the callback only. */
struct wimm_done {
	wimm_status status;
	uint32_t imm;            /* expectations and retire: the value; else the operation's */
	wimm_op op;
	wimm_peer peer;      /* of one peer: that one. A lost expectation: who still owed. Else 0 */
	uint64_t bytes;          /* payload bytes accepted by the peer */
	uint64_t descriptors;    /* work requests posted to NICs */
	uint64_t post_ns;        /* submit to first post */
	uint64_t transfer_ns;    /* first post to settled */
	const char *text;        /* what went wrong, for people; "" when nothing did */
	uint32_t fence;          /* of wimm_fence_peer(): a wimm_fence_answer; else 0 */
	uint32_t reserved;
};

typedef void (*wimm_done_fn)(void *context, const struct wimm_done *done);

/** How the caller learns that an operation has settled: a callback, a flag, both or neither.
 *  The flag must stay valid until it is set; set it to 0 before and read it with
 *  wimm_flag_load(): 0 pending, 1 done, else the negative status. */
struct wimm_on_done {
	wimm_done_fn fn;         /* runs on the callback thread, or inside wimm_progress() */
	void *context;
	uint64_t *flag;
};

/** Read a flag with acquire order. Returns: 0 pending, 1 done, else the negative status.
 *  Thread: any.  Blocks: no. */
WIMM_API int64_t wimm_flag_load(const uint64_t *flag);

typedef enum {
	WIMM_PEER_UP = 1,        /* the session is established */
	WIMM_PEER_DOWN = 2,      /* lost, gone or refused; `cause` says which */
	WIMM_PEER_RESTARTED = 3, /* a new instance answers at the address of a lost one */
	WIMM_PEER_NIC_LOST = 4,  /* one path is gone, others carry on */
	WIMM_PEER_NIC_BACK = 5,  /* a lost path stands again, in the same session */
} wimm_peer_event_kind;

struct wimm_peer_event {
	wimm_peer_event_kind kind;
	wimm_status cause;
	wimm_peer peer;
	uint32_t nic_index;      /* local NIC, or WIMM_NIC_SAME_HOST, for the NIC events */
	uint8_t instance[WIMM_INSTANCE_BYTES];
	const char *text;        /* valid during the callback only */
};

typedef void (*wimm_peer_event_fn)(void *context, const struct wimm_peer_event *event);

typedef enum {
	WIMM_PROGRESS_THREADS = 0, /* a worker and a callback thread of the engine's own */
	WIMM_PROGRESS_CALLER = 1,  /* the caller drives it with wimm_progress() from one thread */
} wimm_progress_mode;

struct wimm_engine_opts {
	uint32_t size;
	uint32_t flags;             /* none defined */
	const char *provider;       /* "tcp", "host", "verbs", "sim"; NULL: setting WIMM_PROVIDER,
				     * else tcp */
	const char *nics;           /* NULL: setting WIMM_NICS, else all. Comma list; for tcp local
				     * addresses, "127.0.0.1:0,[::1]:0"; port 0: any free one */
	wimm_progress_mode progress;
	uint32_t max_ops;           /* 1..2^24 operations in flight; 0: setting WIMM_MAX_OPS */
	uint32_t heartbeat_ms;      /* between two signs of life; 0: setting WIMM_HEARTBEAT_MS */
	uint32_t peer_timeout_ms;   /* 0: setting WIMM_PEER_TIMEOUT_MS. Silence that means death */
	wimm_peer_event_fn on_peer_event; /* NULL: nobody listens */
	void *context;
	const void *job_key;        /* NULL: the file of setting WIMM_JOB_KEY_FILE, else none. Who
				     * does not have the same key gets no session. Copied */
	uint64_t job_key_bytes;     /* 16..4096 */
	uint64_t reserved[6];       /* zero */
};
#define WIMM_ENGINE_OPTS_INIT { .size = sizeof(struct wimm_engine_opts) }

/** Open an engine: bind its NICs, start its threads.
 *  opts  NULL = defaults.
 *  Returns: OK; E_INVAL (unknown flag, non-zero reserved), E_PARSE (nics), E_NOT_FOUND (provider,
 *  NIC or key file), E_UNSUPPORTED (a job key in a build without libsodium), E_ADDR_IN_USE,
 *  E_NOMEM, E_SYSTEM. *out is set only on OK. What went wrong in words: wimm_last_error_text() on
 *  the same thread.
 *  Thread: any.  Blocks: yes (binds, starts threads).  Owns: nothing of the caller's. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_engine_open(const struct wimm_engine_opts *opts,
						      struct wimm_engine **out);

/** Close an engine and set *engine to NULL. Operations still open settle with E_CLOSED or as they
 *  ended, each once, before this returns; peers are told goodbye.
 *  Returns: OK (also when *engine is NULL), E_INVAL (engine is NULL), E_IN_CALLBACK, E_FORKED.
 *  Thread: any but the engine's own.  Blocks: yes, at most about 2 s. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_engine_close(struct wimm_engine **engine);

/** Why the calling thread's last call failed, in one sentence; "" where it did not fail, or where
 *  its status says all.
 *  Thread: any; each has its own.  Blocks: no.  Owns: the library; valid until the thread's next
 *  call into it. */
WIMM_API const char *wimm_last_error_text(void);

/** The address that peers need to reach this engine.
 *  Returns: OK, E_INVAL, E_FORKED.  Thread: any.  Blocks: no. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_main_address(struct wimm_engine *engine,
						       struct wimm_net_addr *out);

/** Write an address as one line of text, "tcp:127.0.0.1:4711,127.0.0.2:4711#INSTANCE" (zero
 *  terminated).  text_bytes: room; WIMM_NET_ADDR_MAX_TEXT always suffices.
 *  Returns: OK, E_INVAL, E_PARSE (malformed address bytes), E_VERSION, E_NOT_FOUND (provider not in
 *  this build), E_LIMIT (no room).
 *  Thread: any.  Blocks: no. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_net_addr_to_string(const struct wimm_net_addr *addr,
							     char *text, size_t text_bytes);

/** Read what wimm_net_addr_to_string() wrote, or a plain "HOST:PORT", "[IPV6]:PORT", "HOST" (tcp,
 *  port WIMM_DEFAULT_PORT), which names whatever instance answers there. Port 0 is refused.
 *  Returns: OK, E_INVAL, E_PARSE, E_NOT_FOUND (name does not resolve).
 *  Thread: any.  Blocks: resolving a host name may. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_net_addr_from_string(const char *text,
							       struct wimm_net_addr *out);

struct wimm_peer_opts {
	uint32_t size;
	uint32_t flags;              /* none defined */
	uint64_t peer_timeout_ms;    /* 1..2^32 - 1; silence after which this peer counts as lost,
				      * from now on: at least three of its heartbeats, four times
				      * as much for one that its program drives. 0: as it was, at
				      * first that of the engine */
	uint64_t reserved[3];
};
#define WIMM_PEER_OPTS_INIT { .size = sizeof(struct wimm_peer_opts) }

/** Name a peer by its address and start connecting to it. The same instance gives the same id as
 *  long as its session lives, a plain address (which names no instance) at most two. Operations
 *  may be submitted at once; they wait for the session.
 *  Returns: OK, E_INVAL, E_PARSE, E_VERSION, E_UNSUPPORTED (an address of another provider),
 *  E_LIMIT (max_peers), E_NOMEM, E_CLOSED, E_FORKED.
 *  Thread: any.  Blocks: for one turn of the worker. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_add_peer(struct wimm_engine *engine,
						   const struct wimm_net_addr *addr,
						   const struct wimm_peer_opts *opts,
						   wimm_peer *out);

/** End the session with a peer: its open operations settle with E_CLOSED, it is told goodbye.
 *  Returns: OK, E_NOT_FOUND, E_FORKED.  Thread: any.  Blocks: for one turn of the worker. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_remove_peer(struct wimm_engine *engine, wimm_peer peer);

/** What has become of the memory that a peer was granted. */
typedef enum {
	WIMM_FENCE_NONE = 0,        /* not known: the fence was cancelled */
	WIMM_FENCE_CONFIRMED = 1,   /* the peer has said that it writes no more, and has drained */
	WIMM_FENCE_FENCED = 2,      /* its paths are revoked, or its process is gone */
	WIMM_FENCE_QUARANTINED = 3, /* neither, so far: the memory must stay out of use */
} wimm_fence_answer;

#define WIMM_FENCE_NOW 1u /* do not ask the peer: revoke its paths at once */

struct wimm_fence_opts {
	uint32_t size;
	uint32_t flags;       /* WIMM_FENCE_*; unknown bits are refused */
	uint64_t deadline_us; /* from now, for the answer; 0: the peer time-out */
	uint64_t reserved[4];
};
#define WIMM_FENCE_OPTS_INIT { .size = sizeof(struct wimm_fence_opts) }

/** Get back all memory that a peer may write to. The peer is asked to stop; where it has not said
 *  so after half the time, its paths are revoked. The session ends in every case: this engine's own
 *  operations towards the peer settle with E_CLOSED, the peer's with E_PEER_LOST.
 *  The answer is in wimm_done.fence. With CONFIRMED and FENCED the status is OK: not one byte of
 *  the peer's lands from now on. With QUARANTINED it is E_QUARANTINED: leave alone what the peer
 *  was granted and call again, with the same id, which waits for the path or the process to end. A
 *  peer that is lost already is answered as soon as its paths are closed.
 *  opts  NULL = defaults.  on_done may be NULL; out_op (may be NULL) receives the operation's id.
 *  Cancelling it gives up the wait, not the fence.
 *  Returns: OK, AGAIN, E_INVAL, E_NOT_FOUND (never a peer of this engine), E_CLOSED, E_FORKED.
 *  Thread: any, also callbacks.  Blocks: no. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_fence_peer(struct wimm_engine *engine, wimm_peer peer,
						     const struct wimm_fence_opts *opts,
						     const struct wimm_on_done *on_done,
						     wimm_op *out_op);

struct wimm_peer_info {
	uint32_t size;               /* in: sizeof the caller's struct */
	uint32_t up;                 /* 1: its session stands */
	uint32_t paths_up;
	uint32_t same_host;          /* 1: writes go through this machine's memory, not a NIC */
	wimm_progress_mode progress; /* its own */
	uint32_t reserved_32;
	uint8_t instance[WIMM_INSTANCE_BYTES]; /* zero: not known yet */
	uint64_t reserved[4];
	char way[WIMM_ERROR_TEXT_BYTES]; /* which way its writes go and why, for people */
};
#define WIMM_PEER_INFO_INIT { .size = sizeof(struct wimm_peer_info) }

/** What is known of a peer, also of one that was lost lately.
 *  Returns: OK, E_NOT_FOUND, E_INVAL, E_FORKED.  Thread: any.  Blocks: for one turn of the
 *  worker. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_peer_get_info(struct wimm_engine *engine, wimm_peer peer,
							struct wimm_peer_info *out);

struct wimm_error_info {
	wimm_status status;
	uint32_t vendor_code;        /* errno or the device's own code; 0 if none */
	char text[WIMM_ERROR_TEXT_BYTES];
};

/** The last failure of a peer's session.
 *  Returns: OK, E_NOT_FOUND (no such peer, or no failure), E_INVAL, E_FORKED.
 *  Thread: any.  Blocks: for one turn of the worker. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_peer_last_error(struct wimm_engine *engine,
							  wimm_peer peer,
							  struct wimm_error_info *out);

/** Ask for an operation (write, scatter, barrier, send, receive buffers, expectation, retire) to
 *  end early. It still settles once, with E_CANCELLED or as it ended in the meantime.
 *  Returns: OK (asked), E_NOT_FOUND (settled already, or never existed), E_FORKED.
 *  Thread: any, also callbacks.  Blocks: no. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_cancel(struct wimm_engine *engine, wimm_op op);

/** Caller-driven mode: take one turn and run the callbacks that are due.
 *  *out_busy (may be NULL): non-zero when there was something to do.
 *  Returns: OK, E_INVAL (engine has own threads), E_IN_CALLBACK, E_FORKED.
 *  Thread: one thread at a time, the one that makes all calls on this engine.  Blocks: no. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_progress(struct wimm_engine *engine, int *out_busy);

/** Caller-driven mode: sleep until there is something to do or the time is up.
 *  timeout_us: 0 looks only, UINT64_MAX waits without end.
 *  Returns: OK, E_INVAL, E_IN_CALLBACK, E_FORKED.  Thread: as wimm_progress().  Blocks: yes. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_progress_wait(struct wimm_engine *engine,
							uint64_t timeout_us);

/** Caller-driven mode: a descriptor that polls readable when wimm_progress() has something to do,
 *  for the caller's own epoll. Before blocking on it call wimm_progress() until it is not busy,
 *  then wimm_progress_wait() with 0, which arms it.
 *  Returns: the descriptor, or -1 (own threads, forked).  Thread: any.  Blocks: no.
 *  Owns: the engine; valid until close. */
WIMM_API int wimm_progress_fd(struct wimm_engine *engine);

struct wimm_engine_stats {
	uint32_t size;               /* in: sizeof the caller's struct */
	uint32_t nics;
	uint32_t peers_up;
	uint32_t ops_open;           /* accepted, not settled */
	uint64_t ops_submitted;
	uint64_t ops_done;
	uint64_t ops_failed;
	uint64_t again;              /* submissions refused with AGAIN */
	uint64_t bytes_written;      /* payload accepted by peers */
	uint64_t writes_posted;      /* work requests */
	uint64_t imms_sent;
	uint64_t imms_received;
	uint64_t msgs_sent;
	uint64_t msgs_received;
	uint64_t retries;            /* hellos and messages sent again */
	uint64_t callbacks;
	uint64_t worker_steps;
	uint64_t worker_sleeps;
	uint64_t index_bytes;        /* copied index arrays now held */
	uint64_t pending_ops;        /* writes, by peer, that wait for room on a NIC */
	uint64_t regions;
	uint64_t expectations;       /* open */
};
#define WIMM_ENGINE_STATS_INIT { .size = sizeof(struct wimm_engine_stats) }

/** Read the engine's counters; each is exact, together they are no snapshot.
 *  Returns: OK, E_INVAL, E_FORKED.  Thread: any.  Blocks: no. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_engine_get_stats(struct wimm_engine *engine,
							   struct wimm_engine_stats *out);

/** Write a description of this machine and build as JSON (providers, NICs, settings).
 *  out receives up to out_bytes including the zero; *out_len the full length without it.
 *  Returns: OK, E_LIMIT (cut), E_INVAL.  Thread: any.  Blocks: reads /sys. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_info_json(char *out, size_t out_bytes, size_t *out_len);

#ifdef __cplusplus
}
#endif
#endif
