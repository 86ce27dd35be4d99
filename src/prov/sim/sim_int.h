/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROV_SIM_SIM_INT_H
#define PROV_SIM_SIM_INT_H

/* Inside the simulator. Everything here is guarded by the world's lock.
 *
 * Who holds what: a device owns its paths and ctls; a work request (sim_wr) lives in the world's
 * pool, since it may outlive either end, and counts what still points to it; a message belongs to
 * whoever holds it: the heap, the receiver's completion queue, its list of returned messages. Ends
 * name each other by id, never by pointer, so that a dead one is simply not found. */

#include "base/alloc.h"
#include "base/assert.h"
#include "base/hash.h"
#include "base/list.h"
#include "plat/mutex.h"
#include "plat/rand.h"
#include "plat/wake.h"
#include "prov/sim/sim.h"

#define SIM_PIECES_MAX 4  /* one write lands in at most so many pieces */
#define SIM_NIC_NONE   0u /* NIC numbers begin with 1 */

enum ev_kind {
	EV_PIECE,     /* obj: sim_wr, arg: which */
	EV_ACCEPT,    /* obj: sim_wr: profile "late" takes the bytes over */
	EV_ACK,       /* obj: sim_wr */
	EV_PATH_UP,   /* obj: sim_path */
	EV_PATH_FAIL, /* obj: sim_path */
	EV_MSG,       /* obj: sim_msg */
	EV_NIC_DEATH, /* obj: sim_dev */
};

/* Something due. In the heap, held because its NICs cannot talk, or neither. */
struct sim_event {
	uint64_t at_ns;
	uint64_t tie; /* among equals: 0 keeps their order, random shuffles */
	uint64_t seq;
	struct list held;
	void *obj;
	enum ev_kind kind;
	uint32_t arg;
	uint32_t heap_pos; /* 1..; 0: not in the heap */
	uint32_t from, to; /* NIC numbers; SIM_NIC_NONE: needs no link */
};

/* One entry of a completion queue. */
struct sim_node {
	struct list link;
	enum prov_cqe_kind kind;
	wimm_status status;
	uint32_t flags;
	void *obj; /* DONE, IMM, PART: sim_wr; CTL_MSG: sim_msg; or path, ctl, dev */
};

enum sim_fate { FATE_OK, FATE_UNSENT, FATE_UNKNOWN, FATE_LANDED };

struct sim_wr {
	struct list link;          /* in path->wrs until its DONE is queued; free: in the pool */
	struct list accepted_link; /* in world->accepted: ended here, not landed there */
	struct prov_wr wr;
	struct sim_path *path;   /* the sender's end; valid until the DONE is polled */
	struct sim_path *target; /* the receiver's end, once landed; valid until that is polled */
	uint64_t path_id;        /* of the sender's end, good for ever */
	uint64_t target_id;
	uint8_t *copy;   /* bytes taken over; NULL: read from the source */
	uint32_t refs;   /* events, queue entries and path->wrs */
	uint32_t pieces; /* planned, repeats included */
	uint32_t pieces_done;
	uint32_t distinct; /* pieces without repeats */
	enum sim_fate fate;
	bool accepted; /* acked before landing */
	bool landed;
	bool done; /* its DONE is queued */
	struct sim_event piece[2 * SIM_PIECES_MAX];
	struct sim_event ack; /* accept, then ack */
	struct sim_node done_node;
	struct sim_node imm_node;
};

struct sim_path {
	struct list link; /* dev->paths */
	struct sim_dev *dev;
	void *context;
	uint64_t id, peer_id;
	uint32_t peer_nic;
	uint32_t in_flight; /* posted, DONE not yet polled */
	uint64_t land_ns;   /* ordered: no later piece lands before */
	uint64_t ack_ns;    /* ordered: no later ack comes before */
	struct list wrs;
	bool connected, up, failed, closed;
	wimm_status fail_status; /* of the fail event under way, then of PATH_DOWN */
	struct sim_event up_event, fail_event;
	struct sim_node up_node, down_node, closed_node;
	char text[PROV_TEXT_BYTES];
};

/* How the other end of a path learns that this one is gone. */
enum sim_tell {
	SIM_TELL_NONE,    /* never */
	SIM_TELL_SOON,    /* as fast as the link */
	SIM_TELL_NOTICE,  /* within notice_ns */
	SIM_TELL_TIMEOUT, /* by its own hardware's time-out */
};

enum msg_kind { MSG_CONNECT, MSG_DATA, MSG_CLOSE };

struct sim_msg {
	struct sim_event event;
	struct sim_node node;
	struct list returned; /* dev->returned: handed out, freed at the next poll */
	struct sim_ctl *end;  /* CONNECT: the end to be; afterwards where it was received */
	enum msg_kind kind;
	wimm_status status; /* CLOSE */
	uint64_t from_id, to_id;
	uint32_t from_nic;
	uint32_t len_bytes;
	uint8_t data[];
};

struct sim_ctl {
	struct list link; /* dev->ctls */
	struct sim_dev *dev;
	void *context;
	uint64_t id, peer_id;
	uint32_t peer_nic;
	uint32_t unread;  /* sent and not yet polled by the peer */
	uint64_t open_ns; /* opener: when the other end comes to be */
	uint64_t last_ns; /* messages keep their order */
	bool refused;     /* a send was refused: wake when there is room */
	bool down;
	struct sim_msg *close_msg;
	struct sim_node new_node, down_node;
};

struct sim_region {
	uint8_t *addr;
	uint64_t len_bytes;
	uint64_t core_key;
	uint64_t key;
	bool remote;
	bool strict; /* no relaxed ordering was asked for: nothing here depends on it */
};

struct sim_dev {
	struct list link; /* world->devs */
	struct sim_world *world;
	uint32_t number;
	uint8_t instance[16];
	bool killed; /* with its process */
	bool nic_dead;
	bool frozen;
	uint32_t post_depth;
	uint64_t timeout_ns;   /* of the hardware's own */
	uint32_t region_limit; /* 0: none */
	uint32_t refuse_next;
	uint32_t lose_next;
	uint32_t corrupt_next;
	enum sim_fault lose_kind;
	uint64_t tx_free_ns; /* link rate: when the wire is free */
	uint64_t locked_bytes;
	struct list cq, paths, ctls;
	struct list returned; /* messages and paths handed out, freed at the next poll */
	struct list closed;
	bool armed;
	bool nudged;         /* virtual time: to be polled though nothing is queued */
	struct hash regions; /* key to sim_region */
	struct sim_event death;
	struct sim_node down_node, up_node;
	struct wake wake; /* real time only */
};

struct sim_heap {
	struct sim_event **at; /* 1..count */
	uint32_t count;
	uint32_t room; /* reserved for all events that exist */
	uint32_t events;
};

struct sim_world {
	struct mutex lock;
	struct sim_cfg cfg;
	bool ordered, late;
	uint64_t now_ns;
	uint64_t seq;
	uint64_t next_id;
	uint32_t next_number;
	uint32_t blocks; /* frozen engines' NICs and partitions */
	struct rng rng;
	struct sim_heap heap;
	struct list held;
	struct list devs;
	struct list wr_free, chunks; /* the pool of requests */
	struct list accepted;
	struct hash paths, ctls; /* by id; ends that can be reached */
	struct hash cut;         /* pairs of NICs that cannot talk */
	struct hash gone;        /* numbers that vanished silently: nobody answers */
	uint64_t events;
	uint64_t faults[SIM_FAULT_COUNT];
	char violation[PROV_TEXT_BYTES];
};

/* --- world.c --- */
struct sim_world *sim_world_join(void *world); /* the process's own for NULL, counted */
void sim_world_leave(struct sim_world *w);
void sim_world_run(struct sim_world *w, uint64_t now_ns);
void sim_world_held_release(struct sim_world *w);
struct sim_dev *sim_world_dev(struct sim_world *w, uint32_t number); /* reachable ones */
uint64_t sim_world_delay(struct sim_world *w);
bool sim_world_chance(struct sim_world *w, uint32_t ppm);
void sim_world_fault(struct sim_world *w, enum sim_fault kind, uint32_t nic);
void sim_world_violation(struct sim_world *w, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
void sim_world_trace(struct sim_world *w, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* --- heap.c --- */
void sim_event_init(struct sim_event *ev, enum ev_kind kind, void *obj, uint32_t arg);
/* Room for `count` more events, so that pushing never fails; given back by unreserve. */
bool sim_heap_reserve(struct sim_heap *h, uint32_t count);
void sim_heap_unreserve(struct sim_heap *h, uint32_t count);
void sim_heap_fini(struct sim_heap *h);
struct sim_event *sim_heap_top(const struct sim_heap *h);
void sim_heap_push(struct sim_heap *h, struct sim_event *ev);
void sim_heap_remove(struct sim_heap *h, struct sim_event *ev);
void sim_event_push(struct sim_world *w, struct sim_event *ev, uint64_t at_ns, bool shuffle);
/* Whether it was pending. */
bool sim_event_remove(struct sim_world *w, struct sim_event *ev);

/* --- cq.c --- */
void sim_node_init(struct sim_node *n, enum prov_cqe_kind kind, void *obj);
void sim_cq_push(struct sim_dev *d, struct sim_node *n, wimm_status status, uint32_t flags);
uint32_t sim_cq_poll(struct prov_dev *dev, uint64_t now_ns, struct prov_cqe *out, uint32_t max);
uint64_t sim_cq_next_ns(const struct prov_dev *dev);
int sim_cq_fd(const struct prov_dev *dev);
bool sim_cq_arm(struct prov_dev *dev);
void sim_cq_free_returned(struct sim_dev *d);
void sim_dev_wake(struct sim_dev *d);

/* --- dev.c --- */
wimm_status sim_dev_open(const struct prov_args *args, struct prov_caps *caps,
                         struct prov_dev **out, struct prov_error *error);
void sim_dev_close(struct prov_dev *dev);
void sim_dev_addr(const struct prov_dev *dev, struct prov_addr *out);
uint32_t sim_dev_list_nics(char (*out)[PROV_TEXT_BYTES], uint32_t max);
wimm_status sim_dev_addr_format(const struct prov_addr *addr, char *text, size_t text_bytes);
wimm_status sim_dev_addr_parse(const char *text, struct prov_addr *out);
uint32_t sim_addr_number(const struct prov_addr *addr); /* SIM_NIC_NONE: malformed */

/* --- region.c --- */
wimm_status sim_region_reg(struct prov_dev *dev, void *addr, uint64_t len_bytes, uint32_t flags,
                           uint64_t core_key, uint64_t *out_key, struct prov_error *error);
void sim_region_dereg(struct prov_dev *dev, uint64_t key);
void sim_region_drop_all(struct sim_dev *d);
struct sim_region *sim_region_find(const struct sim_dev *d, uint64_t key);
bool sim_region_covers(const struct sim_region *r, uint64_t addr, uint64_t len_bytes);

/* --- ctl.c --- */
struct prov_ctl *sim_ctl_open(struct prov_dev *dev, const struct prov_addr *to, void *context);
void sim_ctl_set_context(struct prov_ctl *ctl, void *context);
wimm_status sim_ctl_send(struct prov_ctl *ctl, const void *data, uint32_t len_bytes);
void sim_ctl_close(struct prov_ctl *ctl, bool flush);
void sim_ctl_drop(struct sim_ctl *c); /* with its device */
void sim_ctl_fail(struct sim_ctl *c, wimm_status status, bool tell_local, bool tell_peer);
void sim_msg_arrive(struct sim_world *w, struct sim_msg *m);
void sim_msg_polled(struct sim_world *w, struct sim_msg *m);
void sim_msg_free(struct sim_world *w, struct sim_msg *m);

/* --- path.c --- */
struct prov_path *sim_path_open(struct prov_dev *dev, const struct prov_addr *remote, bool active,
                                void *context, struct prov_offer *out, struct prov_error *error);
void sim_path_connect(struct prov_path *path, const struct prov_offer *remote);
void sim_path_close(struct prov_path *path);
void sim_path_drop(struct sim_path *p); /* with its device */
void sim_path_free(struct sim_path *p); /* after PATH_CLOSED */
void sim_path_is_up(struct sim_path *p);
/* This end fails now; text for people may be NULL. */
void sim_path_fail(struct sim_path *p, wimm_status status, enum sim_tell tell, const char *text);
void sim_path_sever(struct sim_path *p, enum sim_tell tell); /* its process is gone */
struct sim_path *sim_path_find(struct sim_world *w, uint64_t id);

/* --- wr.c --- */
uint32_t sim_wr_post(struct prov_path *path, const struct prov_wr *wr, uint32_t n);
void sim_wr_cancel(struct prov_path *path, uint64_t token);
void sim_wr_event(struct sim_world *w, struct sim_event *ev);
void sim_wr_unref(struct sim_world *w, struct sim_wr *r);
/* Nothing of what this end posted is read from its source any more. */
void sim_wr_halt(struct sim_path *p);
/* All that this end has outstanding comes back as E_PATH_LOST; report: as events. */
void sim_wr_flush(struct sim_path *p, bool report);
/* Bytes accepted but not yet in place that go by this key are put in place. */
void sim_wr_settle_key(struct sim_dev *d, uint64_t key);
void sim_wr_pool_fini(struct sim_world *w);

/* --- fault.c --- */
bool sim_link_blocked(struct sim_world *w, uint32_t from, uint32_t to);
void sim_nic_die(struct sim_dev *d, bool silent);

#endif
