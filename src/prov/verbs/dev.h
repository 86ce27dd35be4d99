/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROV_VERBS_DEV_H
#define PROV_VERBS_DEV_H

/* One device: a port of an RDMA NIC with its completion queues, the shared receive queue, the UD
 * queue pair for hellos, and the objects that hang on them. Completions change the state of
 * objects; the worker's turn then steps the objects on the ready list, and all events but those of
 * received writes are made inside a step, out of the object's own state, so that nothing is lost
 * when the caller's array is full: the object just stays ready. Received completions wait in
 * `rx.stash`. */

#include "base/hash.h"
#include "base/list.h"
#include "plat/mutex.h"
#include "prov/verbs/addr.h"
#include "prov/verbs/nic.h"

#include <stdatomic.h>

#define VERBS_QPN_MASK 0xffffffu

enum verbs_obj_kind {
	VERBS_OBJ_CTL,
	VERBS_OBJ_PATH,
	VERBS_OBJ_NOTICE,
	VERBS_OBJ_TCP,
};

struct verbs_dev;

struct verbs_obj {
	struct verbs_dev *dev;
	enum verbs_obj_kind kind;
	bool expired;         /* the timer has fired since it was set */
	uint32_t id;          /* in the upper half of its send completions' wr_id */
	uint64_t deadline_ns; /* while `timed` is linked */
	struct list ready;
	struct list timed;
	struct list all; /* in the list of its kind, or among the dead */
};

/* The caller's array of events. */
struct verbs_emit {
	struct prov_cqe *out;
	uint32_t count;
	uint32_t max;
};

struct verbs_limits {
	uint32_t depth; /* work requests in flight on a path; a power of two */
	uint32_t chain; /* work requests a doorbell */
	uint32_t inline_bytes;
	uint32_t recv_depth; /* requests of the shared receive queue */
	uint32_t hello_timeout_ms;
	uint8_t rc_timeout; /* 4.096 us << this */
	uint8_t rc_retries;
	uint8_t traffic_class;
	uint8_t service_level;
	uint16_t pkey_index;
	bool relaxed_ordering;
};

/* A completion queue of sends (and of the ctls' receives), shared by as many queue pairs as surely
 * fit. */
struct verbs_cq {
	struct list link;
	struct ibv_cq *cq;
	uint32_t capacity;
	uint32_t used;
	bool armed; /* will raise an event that has not been read */
};

/* Receiving writes; see rx.c. */
struct verbs_rx {
	struct ibv_cq *cq;
	bool armed;
	struct ibv_srq *srq;
	struct ibv_mr *mr;
	uint8_t *slots; /* VERBS_SLOT_BYTES each */
	uint32_t slot_count;
	struct ibv_wc *stash; /* completions not yet told; a ring, free-running positions */
	uint32_t stash_mask;
	uint32_t head;
	uint32_t tail;
	uint32_t *spent; /* slots to be posted again */
	uint32_t spent_count;
};

#define VERBS_UD_SENDS 32u

struct verbs_way;

/* Hellos and notices by datagram; see ud.c. */
struct verbs_ud {
	struct ibv_qp *qp; /* NULL: the device has none, or it broke */
	struct verbs_cq *cq;
	struct ibv_mr *mr;
	uint8_t *slots;
	uint32_t qkey;
	struct verbs_way *sending[VERBS_UD_SENDS]; /* by send slot; NULL: free */
};

struct verbs_dev {
	/* Fixed after open. */
	struct verbs_nic nic;
	struct verbs_limits limits;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct verbs_addr self;
	int epoll_fd;
	bool use_ud; /* what the setting verbs_hello allows */
	bool use_tcp;
	int listen_fd; /* for hellos over TCP; -1: none */
	/* Regions by key; reg and dereg may come from different threads. */
	struct mutex regions_lock;
	struct hash regions;
	_Atomic uint64_t flush_gpus; /* those to flush before an immediate is told: gpu.c */
	/* Owned by the worker. */
	_Alignas(64) uint64_t now_ns; /* of the last poll */
	uint64_t next_timer_ns;       /* no timer is due earlier */
	uint64_t next_look_ns;        /* when a worker that never sleeps looks at the descriptors */
	uint64_t port_deadline_ns;    /* the port is down; from here on its objects are lost */
	bool armed;                   /* the worker may have slept since the last poll */
	bool dead;                    /* the device is; `dead_fail` says how */
	bool dead_reported;
	uint32_t next_id;
	struct verbs_rx rx;
	struct verbs_ud ud;
	struct list cqs;
	struct hash by_id;       /* objects that own queue pairs */
	struct hash path_by_qpn; /* paths, by the number of their queue pair */
	struct hash dialled;     /* ctls under way from here, by token */
	struct hash accepted;    /* ctls dialled from elsewhere, by token */
	struct list ready;
	struct list timed;
	struct list paths;
	struct list ctls;
	struct list notices;
	struct list tcps; /* connections that carry one hello */
	uint32_t tcp_count;
	struct list dead_objs; /* freed at the next poll: their text may still be read */
	uint32_t half_open;    /* ctls whose dialler has not been heard on its queue pair */
	char dead_text[PROV_TEXT_BYTES];
};

/* What went wrong, until it is reported. */
struct verbs_fail {
	wimm_status status;
	uint32_t vendor_code;
	char text[PROV_TEXT_BYTES];
};

void verbs_fail_set(struct verbs_fail *f, wimm_status status, uint32_t vendor_code, const char *fmt,
                    ...) __attribute__((format(printf, 4, 5)));

static inline bool verbs_emit_full(const struct verbs_emit *e)
{
	return e->count == e->max;
}

/* The next event, zeroed. Only when not full. */
static inline struct prov_cqe *verbs_emit_next(struct verbs_emit *e, enum prov_cqe_kind kind,
                                               void *context)
{
	struct prov_cqe *cqe = &e->out[e->count++];

	*cqe = (struct prov_cqe){ .kind = kind, .context = context };
	return cqe;
}

/* Takes an id as well. False: out of memory. */
bool verbs_obj_init(struct verbs_obj *obj, struct verbs_dev *dev, enum verbs_obj_kind kind,
                    struct list *all);
/* Step it at the next poll. */
void verbs_obj_ready(struct verbs_obj *obj);
/* One timer an object: fires once, sets `expired`, steps it. */
void verbs_obj_timer(struct verbs_obj *obj, uint64_t after_ns);
void verbs_obj_timer_off(struct verbs_obj *obj);
/* Off every list and without its id; freed (the whole object) at the next poll. */
void verbs_obj_kill(struct verbs_obj *obj);

/* The device is of no use any more: everything on it fails, and NIC_DOWN is told. */
void verbs_dev_die(struct verbs_dev *dev, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
/* Everything on it fails with E_NIC_LOST, and may be opened again. */
void verbs_dev_drop_all(struct verbs_dev *dev, const char *text);

/* --- events.c: the descriptors --- */
wimm_status verbs_events_open(struct verbs_dev *dev, struct prov_error *error);
void verbs_events_close(struct verbs_dev *dev);
/* A descriptor that wakes the worker when it is readable; it does not block any more. */
bool verbs_events_watch(struct verbs_dev *dev, int fd);
/* Take what the descriptors have. */
void verbs_events_take(struct verbs_dev *dev);
/* The ops' entries. */
wimm_status verbs_op_open(const struct prov_args *args, struct prov_caps *caps,
                          struct prov_dev **out, struct prov_error *error);
void verbs_op_close(struct prov_dev *dev);
uint32_t verbs_op_poll(struct prov_dev *dev, uint64_t now_ns, struct prov_cqe *out, uint32_t max);
uint64_t verbs_op_next_ns(const struct prov_dev *dev);
int verbs_op_fd(const struct prov_dev *dev);
bool verbs_op_arm(struct prov_dev *dev);

#endif
