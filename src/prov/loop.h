/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROV_LOOP_H
#define PROV_LOOP_H

/* What the devices of several providers have in common: a worker's turn steps the objects on the
 * ready list, which are put there by an event, by their timer or by a call of the core. All events
 * for the core are made inside a step, out of the object's own state, so nothing is queued or lost
 * when the caller's array is full: the object just stays ready.
 * Thread: the worker, for everything here. */

#include "base/list.h"
#include "prov/prov.h"

struct prov_loop {
	uint64_t now_ns;        /* of the last turn */
	uint64_t next_timer_ns; /* no timer is due earlier */
	struct list ready;
	struct list timed;
	struct list dead; /* freed at the next turn: their text may still be read */
};

/* First in a provider's own object, or inside it. */
struct prov_obj {
	struct prov_loop *loop; /* a member of the device */
	int kind;               /* the provider's own */
	bool expired;           /* the timer has fired since it was set */
	uint64_t deadline_ns;   /* while `timed` is linked */
	struct list ready;
	struct list timed;
	struct list all; /* in the list of its kind, or among the dead */
};

/* The caller's array of events. */
struct prov_emit {
	struct prov_cqe *out;
	uint32_t count;
	uint32_t max;
};

/* What went wrong, until it is reported. */
struct prov_fail {
	wimm_status status;
	uint32_t vendor_code; /* errno, or 0 */
	char text[PROV_TEXT_BYTES];
};

void prov_fail_set(struct prov_fail *f, wimm_status status, int vendor_code, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

static inline bool prov_emit_full(const struct prov_emit *e)
{
	return e->count == e->max;
}

/* The next event, zeroed. Only when not full. */
static inline struct prov_cqe *prov_emit_next(struct prov_emit *e, enum prov_cqe_kind kind,
                                              void *context)
{
	struct prov_cqe *cqe = &e->out[e->count++];

	*cqe = (struct prov_cqe){ .kind = kind, .context = context };
	return cqe;
}

/* The last event, when it is of that kind and object; for counting equal neighbours together. */
static inline struct prov_cqe *prov_emit_last(struct prov_emit *e, enum prov_cqe_kind kind,
                                              const void *context)
{
	struct prov_cqe *cqe = e->count > 0 ? &e->out[e->count - 1] : NULL;

	return cqe && cqe->kind == kind && cqe->context == context ? cqe : NULL;
}

void prov_obj_init(struct prov_obj *obj, struct prov_loop *loop, int kind, struct list *all);
/* Step it at the next turn. */
void prov_obj_ready(struct prov_obj *obj);
/* One timer an object: fires once, sets `expired`, steps it. */
void prov_obj_timer(struct prov_obj *obj, uint64_t after_ms);
void prov_obj_timer_off(struct prov_obj *obj);
/* Off every list; given to the device's free function at the next turn. */
void prov_obj_kill(struct prov_obj *obj);

void prov_loop_init(struct prov_loop *loop);
/* Give away what was killed before. */
void prov_loop_reap(struct prov_loop *loop, void (*free_obj)(struct prov_obj *obj));
/* Make ready whose timers are due. */
void prov_loop_timers(struct prov_loop *loop);
/* Step each ready object once, until the array is full; a step that returns true stays ready. What
 * becomes ready meanwhile has its turn next time, after those that had none this time. */
void prov_loop_turn(struct prov_loop *loop, struct prov_emit *emit,
                    bool (*step)(struct prov_obj *obj, struct prov_emit *emit));
/* When the next turn is due; see prov_ops.next_ns. */
uint64_t prov_loop_next_ns(const struct prov_loop *loop);

#endif
