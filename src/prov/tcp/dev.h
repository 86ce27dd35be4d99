/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROV_TCP_DEV_H
#define PROV_TCP_DEV_H

/* One device: a local address with its listening socket, one epoll descriptor, and everything that
 * hangs on them. The worker's turn (tcp_dev_poll) steps the objects on the ready list; an object is
 * put there by an edge-triggered event, by its timer, or by a call of the core. All events are made
 * inside a step, out of the object's own state, so nothing is ever queued or lost when the caller's
 * array is full: the object just stays ready. */

#include "base/list.h"
#include "prov/prov.h"
#include "prov/regions.h"
#include "prov/tcp/addr.h"

struct tcp_dev;

enum tcp_obj_kind {
	TCP_OBJ_LISTENER,
	TCP_OBJ_CONN, /* a connection without owner: saying hello, or lingering */
	TCP_OBJ_CTL,
	TCP_OBJ_PATH,
};

struct tcp_obj {
	struct tcp_dev *dev;
	enum tcp_obj_kind kind;
	bool expired;         /* the timer has fired since it was set */
	uint64_t deadline_ns; /* while `timed` is linked */
	struct list ready;
	struct list timed;
	struct list all; /* in the list of its kind, or among the dead */
};

/* The caller's array of events. */
struct tcp_emit {
	struct prov_cqe *out;
	uint32_t count;
	uint32_t max;
};

struct tcp_limits {
	uint64_t chunk_bytes;
	uint64_t pacing_bytes_s; /* 0: none */
	int sockbuf_bytes;
	uint32_t user_timeout_ms;
	uint32_t hello_timeout_ms;
};

struct tcp_dev {
	/* Fixed after open. */
	union tcp_sockaddr local;
	struct tcp_limits limits;
	int epoll_fd;
	int listen_fd;
	/* Shared; see region.h. */
	struct prov_regions regions;
	/* Owned by the worker. */
	_Alignas(64) uint64_t now_ns; /* of the last poll */
	uint64_t next_timer_ns;       /* no timer is due earlier */
	struct list ready;
	struct list timed;
	struct list paths;
	struct list ctls;
	struct list hellos;  /* connections that have not said what they are, oldest first */
	struct list lingers; /* connections that only finish sending */
	struct list dead;    /* freed at the next poll: their text may still be read */
	uint32_t hello_count;
	bool accept_paused; /* out of descriptors or memory; said once */
	struct tcp_obj listener;
};

/* What went wrong, until it is reported. */
struct tcp_fail {
	wimm_status status;
	uint32_t vendor_code; /* errno, or 0 */
	char text[PROV_TEXT_BYTES];
};

void tcp_fail_set(struct tcp_fail *f, wimm_status status, int vendor_code, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

static inline bool tcp_emit_full(const struct tcp_emit *e)
{
	return e->count == e->max;
}

/* The next event, zeroed. Only when not full. */
static inline struct prov_cqe *tcp_emit_next(struct tcp_emit *e, enum prov_cqe_kind kind,
                                             void *context)
{
	struct prov_cqe *cqe = &e->out[e->count++];

	*cqe = (struct prov_cqe){ .kind = kind, .context = context };
	return cqe;
}

/* The last event, when it is of that kind and object; for counting equal neighbours together. */
static inline struct prov_cqe *tcp_emit_last(struct tcp_emit *e, enum prov_cqe_kind kind,
                                             const void *context)
{
	struct prov_cqe *cqe = e->count > 0 ? &e->out[e->count - 1] : NULL;

	return cqe && cqe->kind == kind && cqe->context == context ? cqe : NULL;
}

void tcp_obj_init(struct tcp_obj *obj, struct tcp_dev *dev, enum tcp_obj_kind kind,
                  struct list *all);
/* Step it at the next poll. */
void tcp_obj_ready(struct tcp_obj *obj);
/* One timer an object: fires once, sets `expired`, steps it. */
void tcp_obj_timer(struct tcp_obj *obj, uint64_t after_ms);
void tcp_obj_timer_off(struct tcp_obj *obj);
/* Off every list; freed (the whole object) at the next poll. */
void tcp_obj_kill(struct tcp_obj *obj);

/* The ops' entries. */
wimm_status tcp_op_open(const struct prov_args *args, struct prov_caps *caps, struct prov_dev **out,
                        struct prov_error *error);
void tcp_op_close(struct prov_dev *dev);
uint32_t tcp_op_poll(struct prov_dev *dev, uint64_t now_ns, struct prov_cqe *out, uint32_t max);
uint64_t tcp_op_next_ns(const struct prov_dev *dev);
int tcp_op_fd(const struct prov_dev *dev);
bool tcp_op_arm(struct prov_dev *dev);

#endif
