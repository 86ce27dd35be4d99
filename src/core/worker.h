/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CORE_WORKER_H
#define CORE_WORKER_H

/* The worker: one thread (or the caller's) that owns a group of NICs, every session, and all that
 * is in flight. worker_step() takes the time as an argument and calls nothing that blocks, so that
 * the simulator can run it without threads. */

#include "core/peer.h"
#include "core/post.h"
#include "core/rhythm.h"
#include "core/stats.h"
#include "core/timers.h"
#include "mem/cuda_queue.h"
#include "plat/clock.h"
#include "plat/code.h"
#include "plat/rand.h"
#include "plat/sema.h"
#include "plat/thread.h"
#include "plat/wake.h"
#include "queue/idpool.h"

struct nic {
	const struct prov_ops *ops;
	struct prov_dev *dev;
	struct prov_caps caps;
	struct prov_addr addr;
	bool dead;
};

struct worker {
	/* Fixed after start. */
	struct wimm_engine *engine;
	const struct prov_ops *prov; /* of all NICs */
	/* The NICs, and behind them the device for peers of this machine if there is one. */
	struct nic nic[WIMM_MAX_NICS + 1];
	uint32_t nic_count;
	uint32_t dev_count;      /* nic_count or one more */
	uint8_t same_host;       /* enum same_host_rule */
	bool identifies_source;  /* on every device */
	struct op *ops;
	uint32_t max_ops;
	uint32_t post_batch;
	uint64_t split_bytes;
	uint64_t max_write_bytes; /* of one request, on any NIC */
	uint64_t heartbeat_ns;
	uint64_t peer_timeout_ns;
	uint64_t hello_timeout_ns;
	uint64_t scan_every_ns;
	uint32_t max_msg_bytes;
	uint32_t max_peers;
	uint64_t index_bytes_limit;
	uint64_t spin_ns;
	bool busy_poll;
	bool own_threads;
	bool all_have_fd; /* else the worker polls with pauses */
	int epoll_fd;     /* all devices and the inbox */
	struct plat_thread thread;

	/* Owned by the worker. */
	_Alignas(64) uint64_t now_ns OWNED;
	struct clock_cache clock OWNED;
	struct list peers OWNED;      /* all that are not free */
	struct peer *self_peer OWNED; /* this engine as its own peer; NULL: none */
	struct list ready OWNED;      /* peers with legs to post and room for them */
	struct list buried OWNED;          /* lost peers that nothing refers to, oldest first */
	uint32_t buried_count OWNED;
	struct list talkers OWNED;    /* peers with a filled outbox */
	struct list strangers OWNED;  /* ctl channels without a peer, oldest first */
	uint32_t stranger_count OWNED;
	struct list dead_ctls OWNED;
	struct list ops_started OWNED;
	struct list retires OWNED;    /* operations; peers' questions: retires_new */
	struct list fences OWNED;
	struct list afters OWNED;       /* writes that wait for a stream: after.c */
	uint64_t after_ns OWNED;        /* when to look at them next */
	struct list stage_peers OWNED; /* peers with slots to look at: stage.c */
	struct cuda_queue *stage_queues[2][16] OWNED; /* from and to each GPU */
	uint64_t stage_look_ns OWNED;
	char stage_text[MEM_CUDA_TEXT_BYTES] OWNED; /* why there was no queue */
	struct timers timers OWNED;
	struct imm_table *imms OWNED;
	struct hash mirrors OWNED; /* value -> struct mirror * */
	struct mirror *last_mirror OWNED; /* of the value that came last; NULL: look it up */
	struct hash by_instance OWNED; /* hash of the instance -> peer */
	struct list recv_free OWNED;   /* receive buffers that wait for messages */
	struct list recv_pools OWNED;
	struct list deregs OWNED;       /* regions that wait for their last acknowledgement */
	uint64_t scan_ns OWNED;         /* when peers are looked at next */
	uint64_t step OWNED;            /* turns taken */
	bool polled_out OWNED;          /* the last poll of every NIC had room to spare */
	uint64_t hello_attempt OWNED; /* hellos sent */
	uint64_t next_id OWNED;         /* retire and confirm requests */
	struct rng rng OWNED;           /* nonces; seeded by the environment */
	struct rhythm arrivals OWNED;   /* of immediates */
	uint64_t told_ns OWNED;         /* until when one was said to be expected */
	uint64_t warm_ns OWNED;         /* when the devices are warmed next, */
	uint64_t touch_ns OWNED;        /* and what arrivals end */
	struct plat_code code OWNED;
	uint64_t pause_ns OWNED;        /* of a worker that cannot sleep on a descriptor */
	uint32_t endings OWNED;            /* peers with an ending_step that are not down yet */
	uint64_t endings_ns OWNED;      /* when to look at them next */
	uint64_t chores_ns OWNED;       /* when the next thing is due that a peer has put off */
	uint32_t sends_stuck OWNED;     /* peers whose ctl was full */
	struct list retires_new OWNED;    /* peers' questions to look at: retire.c */
	struct list retires_behind OWNED; /* those that wait for callbacks, oldest first */
	uint32_t imm_ops[1024] OWNED;     /* writes under way by value, modulo so many */
	uint64_t handed_out OWNED;      /* receive buffers given to callbacks, ever */
	uint64_t handed_back OWNED;     /* those whose callback has returned */
	bool closing OWNED;
	struct prov_wr wr[256] OWNED;
	struct prov_cqe cqe[256] OWNED;
	uint8_t *scratch OWNED; /* one encoded message */
	uint32_t scratch_bytes OWNED;

	/* Shared by queue. */
	_Alignas(64) struct mpsc inbox;
	struct wake wake;
	_Atomic uint32_t stop;
	struct idpool op_pool;
	_Atomic uint32_t room_waiters; /* submitters that block for a free operation */
	struct wake room;
	struct worker_stats stats;

	/* Peer slots: pointers are published once and never taken back. */
	_Atomic(struct peer *) *peer_slot;
	uint32_t *peer_free; /* stack of free slots, the worker's */
	uint32_t peer_free_count;
};

/* worker.c */
wimm_status worker_init(struct worker *w, struct wimm_engine *engine);
void worker_fini(struct worker *w);
wimm_status worker_start(struct worker *w);
void worker_stop(struct worker *w);
/* One turn at now_ns; returns whether there was anything to do. */
bool worker_step(struct worker *w, uint64_t now_ns) ON_WORKER;
/* Whether no NIC has more to say: its poll may return fewer events than there is room for. */
bool worker_polled_out(const struct worker *w) ON_WORKER;
/* When worker_step() must run next though nothing arrives. */
uint64_t worker_next_ns(const struct worker *w) ON_WORKER;
/* Nothing is left to do but what comes from the NICs or at worker_next_ns(). */
bool worker_may_sleep(const struct worker *w) ON_WORKER;
/* Sleep until there may be something to do, at most until deadline_ns. */
void worker_wait(struct worker *w, uint64_t deadline_ns) ON_WORKER;
/* For a caller that sleeps on epoll_fd itself: make it readable when there is something to do.
 * may_sleep: nothing else is due. */
void worker_arm(struct worker *w, bool may_sleep) ON_WORKER;
void worker_push(struct worker *w, struct request *r);
/* To the inbox; a write of a caller that drives starts here, on its way to the NIC. */
void worker_submit(struct worker *w, struct op *op);
/* Run fn on the worker and wait for it; at once on the worker itself or when caller-driven. */
void worker_call(struct worker *w, void (*fn)(struct worker *w, void *arg), void *arg);
/* The same for fn that only reads and needs no time: cheap for a caller that polls. */
void worker_ask(struct worker *w, void (*fn)(struct worker *w, void *arg), void *arg);
uint64_t worker_random(struct worker *w);

static inline const struct prov_ops *path_ops(const struct worker *w, const struct path *path)
{
	return w->nic[path->nic].ops;
}

static inline const struct prov_ops *ctl_ops(const struct worker *w, const struct ctl *c)
{
	return w->nic[c->nic].ops;
}

/* session.c, peer.c */
struct peer *peer_get(struct worker *w, const struct wire_addr *addr, wimm_status *out_status)
	ON_WORKER;
/* E_LIMIT of peer_get() in words, on the caller's thread. */
void peer_no_room_text(const struct worker *w);
struct peer *peer_by_id(struct worker *w, wimm_peer id);
struct peer *peer_by_instance(struct worker *w, const uint8_t *instance) ON_WORKER;
struct peer *peer_real(struct peer *p);
wimm_peer peer_id(const struct peer *p);
/* Any thread: whether an id was ever given out. */
bool peer_was_there(struct worker *w, wimm_peer id);
/* Any thread: the state of a peer id, PEER_FREE when stale. */
enum peer_state peer_public_state(struct worker *w, wimm_peer id);
/* Silence after which it is lost; own_ns 0: the engine's. */
void peer_set_timeout(struct worker *w, struct peer *p, uint64_t own_ns);
void peer_set_state(struct peer *p, enum peer_state state);
void peer_down(struct worker *w, struct peer *p, wimm_status cause, uint32_t vendor_code,
               const char *fmt, ...) __attribute__((format(printf, 5, 6), nonnull(5))) ON_WORKER;
wimm_status peer_index(struct worker *w, struct peer *p) ON_WORKER;
void peer_done(struct worker *w, struct request *r) ON_WORKER;
void peer_maybe_free(struct worker *w, struct peer *p) ON_WORKER;
void peer_free(struct worker *w, struct peer *p) ON_WORKER;
struct peer *peer_new(struct worker *w, const struct wire_addr *addr) ON_WORKER;
/* An id that stands for another peer's comes up with that. */
void peer_alias_up(struct worker *w, struct peer *p);
void peer_event(struct worker *w, struct peer *p, wimm_peer_event_kind kind, wimm_status cause,
                uint32_t nic_index, const char *text);
void session_connect(struct worker *w, struct peer *p) ON_WORKER;
void session_drop_ctl(struct worker *w, struct peer *p) ON_WORKER;
void session_cqe(struct worker *w, uint32_t nic, const struct prov_cqe *c) ON_WORKER;
void session_scan(struct worker *w) ON_WORKER;
void session_talk(struct worker *w);
void session_endings(struct worker *w) ON_WORKER;
/* What peers have put off and is due now. */
void session_chores(struct worker *w) ON_WORKER;
/* Lose a peer once all that it sent before has been read; may_speak: give its goodbye, which
 * travels on another connection, a little time. */
void peer_ending(struct worker *w, struct peer *p, bool may_speak, wimm_status cause,
                 uint32_t vendor_code, const char *fmt, ...) __attribute__((format(printf, 6, 7)))
	ON_WORKER;
wimm_status session_send(struct worker *w, struct peer *p, const struct wire_msg *m) ON_WORKER;
/* A path failed or is given up: fence it; the peer is lost with its last path. */
void path_lost(struct worker *w, struct path *path, wimm_status cause, uint32_t vendor_code,
               const char *text) ON_WORKER;
/* As session_send(), losing the peer when it cannot be sent nor kept. */
void session_say(struct worker *w, struct peer *p, const struct wire_msg *m) ON_WORKER;
void session_drop_stranger(struct worker *w, struct list *link) ON_WORKER;
void session_bury(struct worker *w);
void session_goodbye(struct worker *w, struct peer *p, wimm_status reason, const char *text)
	ON_WORKER;
void session_message(struct worker *w, struct peer *p, const struct wire_msg *m) ON_WORKER;

/* message.c */
void message_start(struct worker *w, struct op *op) ON_WORKER;
void message_pump(struct worker *w, struct peer *p) ON_WORKER;
void message_arrived(struct worker *w, struct peer *p, const struct wire_msg *m) ON_WORKER;
void message_acked(struct worker *w, struct peer *p, const struct wire_msg *m) ON_WORKER;
void message_ready(struct worker *w, struct peer *p) ON_WORKER;
void message_peer_down(struct worker *w, struct peer *p) ON_WORKER;
void message_unstick(struct worker *w) ON_WORKER;
void message_cancel(struct worker *w, struct op *op, wimm_status status, const char *text)
	ON_WORKER;
void recvs_start(struct worker *w, struct op *op) ON_WORKER;
void recvs_cancel(struct worker *w, struct op *op, wimm_status status) ON_WORKER;
void recvs_back(struct worker *w, struct request *r) ON_WORKER;

/* remote.c, region.c */
/* Any thread: OK, or why nothing may be submitted to it. */
wimm_status remote_usable(const struct wimm_engine *engine, const struct wimm_remote_mr *r);
void remote_leg(struct worker *w, struct leg *leg) ON_WORKER;
/* Its operation waits for no stream any more. */
void remote_leg_go(struct worker *w, struct leg *leg) ON_WORKER;
void remote_leg_done(struct worker *w, struct leg *leg) ON_WORKER;
/* Fail what waits for this peer's regions to be looked up. */
void remote_stop(struct worker *w, struct peer *p, wimm_status status, const char *text) ON_WORKER;
void remote_peer_up(struct worker *w, struct peer *p) ON_WORKER;
void remote_peer_down(struct worker *w, struct peer *p) ON_WORKER;
void remote_message(struct worker *w, struct peer *p, const struct wire_msg *m) ON_WORKER;
void remote_close(struct worker *w, struct request *r) ON_WORKER;
void mr_dereg_start(struct worker *w, struct request *r) ON_WORKER;
void mr_message(struct worker *w, struct peer *p, const struct wire_msg *m) ON_WORKER;
void mr_peer_down(struct worker *w, struct peer *p);
/* At close, when no path is used any more: report every deregistration under way. */
void mr_finish_all(struct worker *w) ON_WORKER;
void mr_op_done(struct worker *w, struct op *op) ON_WORKER;
/* A region that peers may write into, as long as it is held; NULL: none of that generation. */
struct wimm_mr *mr_hold(struct worker *w, uint32_t slot, uint32_t generation);
void mr_release(struct worker *w, struct wimm_mr *mr) ON_WORKER;

/* count.c: immediates, parts of split writes, expectations. */
void count_arrived(struct worker *w, struct path *path, const struct prov_cqe *c) ON_WORKER;
void count_touch(struct worker *w) ON_WORKER; /* what is counted next may be needed soon */
void count_add(struct worker *w, struct peer *p, uint32_t imm, uint32_t count) ON_WORKER;
/* A path's marks have grown: who waits for that. */
void count_looked_for(struct worker *w, struct peer *p) ON_WORKER;
void count_start(struct worker *w, struct op *op) ON_WORKER;
void count_cancel(struct worker *w, struct op *op, wimm_status status, const char *text) ON_WORKER;
/* orderly: it said goodbye, so what it delivered stays countable. */
void count_peer_down(struct worker *w, struct peer *p, bool orderly) ON_WORKER;
void count_message(struct worker *w, struct peer *p, const struct wire_msg *m) ON_WORKER;
/* Tell the receiver how many parts of a split write it will ever see. */
void count_abandon(struct worker *w, struct leg *leg) ON_WORKER;

#endif
