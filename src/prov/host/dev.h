/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROV_HOST_DEV_H
#define PROV_HOST_DEV_H

/* One device: a name with its listening socket, one epoll descriptor, and what hangs on them. The
 * worker's turn (host_op_poll) looks at the rings of all paths that are up, which takes no system
 * call, and steps what is on the ready list: put there by a socket's event, a timer or a call of
 * the core. Sockets are looked at now and then, and at once after a sleep.
 *
 * Events are made inside a step, out of the object's own state, so nothing is queued or lost when
 * the caller's array is full: the object stays ready. */

#include "base/list.h"
#include "prov/host/addr.h"
#include "prov/prov.h"
#include "prov/regions.h"

enum host_obj_kind {
	HOST_OBJ_LISTENER,
	HOST_OBJ_CONN, /* a connection that has not said what it is */
	HOST_OBJ_CTL,
	HOST_OBJ_PATH,
};

/* Setting host_way: how bytes travel. */
enum host_way {
	HOST_WAY_AUTO,
	HOST_WAY_PULL, /* fetched by the receiver where the kernel allows it */
	HOST_WAY_RING, /* through the ring, always */
	HOST_WAY_PUSH, /* written by the sender where the kernel allows it */
};

struct host_dev;
struct mem_shared;

struct host_obj {
	struct host_dev *dev;
	enum host_obj_kind kind;
	bool expired;         /* the timer has fired since it was set */
	uint64_t deadline_ns; /* while `timed` is linked */
	struct list ready;
	struct list timed;
	struct list all; /* in the list of its kind, or among the dead */
};

/* The caller's array of events. */
struct host_emit {
	struct prov_cqe *out;
	uint32_t count;
	uint32_t max;
};

/* What went wrong, until it is reported. */
struct host_fail {
	wimm_status status;
	uint32_t vendor_code; /* errno, or 0 */
	char text[PROV_TEXT_BYTES];
};

struct host_dev {
	/* Fixed after open. */
	struct host_name name;
	uint32_t hello_timeout_ms;
	bool any_uid; /* peers of other users are let in */
	bool beside;  /* NICs of another provider */
	uint8_t way;  /* enum host_way */
	int epoll_fd;
	int listen_fd;
	/* Shared; see prov/regions.h. */
	struct prov_regions regions;
	struct mem_shared **shared; /* by slot; of regions in memory that can be given away */
	/* By slot, the GPU whose memory a region is, plus 1. NULL: there has been none. */
	_Atomic(uint8_t *) gpu;
	/* Owned by the worker. */
	_Alignas(64) uint64_t now_ns; /* of the last poll */
	uint64_t next_timer_ns;       /* no timer is due earlier */
	uint64_t look_ns;             /* when the sockets are looked at again */
	bool armed;                   /* the rings say that we sleep */
	struct list ready;
	struct list timed;
	struct list paths;
	struct list hot; /* paths that are up */
	struct list ctls;
	struct list hellos; /* connections that have not said what they are, oldest first */
	struct list dead;   /* freed at the next poll: their text may still be read */
	uint32_t hello_count;
	bool accept_paused; /* out of descriptors or memory; said once */
	struct host_obj listener;
};

/* Whether any region may be memory of a GPU. */
static inline bool host_gpu_any(const struct host_dev *dev)
{
	/* [L] with [K] in host_gpu_reg(). */
	return atomic_load_explicit(&dev->gpu, memory_order_acquire) != NULL;
}

void host_fail_set(struct host_fail *f, wimm_status status, int vendor_code, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

static inline bool host_emit_full(const struct host_emit *e)
{
	return e->count == e->max;
}

/* The next event, zeroed. Only when not full. */
static inline struct prov_cqe *host_emit_next(struct host_emit *e, enum prov_cqe_kind kind,
                                              void *context)
{
	struct prov_cqe *cqe = &e->out[e->count++];

	*cqe = (struct prov_cqe){ .kind = kind, .context = context };
	return cqe;
}

/* The last event, when it is of that kind and object; for counting equal neighbours together. */
static inline struct prov_cqe *host_emit_last(struct host_emit *e, enum prov_cqe_kind kind,
                                              const void *context)
{
	struct prov_cqe *cqe = e->count > 0 ? &e->out[e->count - 1] : NULL;

	return cqe && cqe->kind == kind && cqe->context == context ? cqe : NULL;
}

void host_obj_init(struct host_obj *obj, struct host_dev *dev, enum host_obj_kind kind,
                   struct list *all);
/* Step it at the next poll. */
void host_obj_ready(struct host_obj *obj);
/* One timer an object: fires once, sets `expired`, steps it. */
void host_obj_timer(struct host_obj *obj, uint64_t after_ms);
void host_obj_timer_off(struct host_obj *obj);
/* Off every list; freed (the whole object) at the next poll. */
void host_obj_kill(struct host_obj *obj);

/* The ops' entries. */
wimm_status host_op_open(const struct prov_args *args, struct prov_caps *caps,
                         struct prov_dev **out, struct prov_error *error);
void host_op_close(struct prov_dev *dev);
uint32_t host_op_poll(struct prov_dev *dev, uint64_t now_ns, struct prov_cqe *out, uint32_t max);
uint64_t host_op_next_ns(const struct prov_dev *dev);
int host_op_fd(const struct prov_dev *dev);
bool host_op_arm(struct prov_dev *dev);

#endif
