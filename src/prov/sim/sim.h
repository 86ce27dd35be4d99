/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROV_SIM_SIM_H
#define PROV_SIM_SIM_H

/* Provider `sim`: NICs, links and their faults inside one process, repeatable from one seed. This
 * header is for tests: a world is opened here, handed to engines as prov_args.world, driven and
 * broken through the calls below. docs/prov/sim.md describes what is simulated and what is not.
 *
 * Thread: any; one lock guards a world, in the data plane too. That is an exception from the rule
 * for providers and the price of faults that reach into several NICs at one moment. */

#include "prov/providers.h"

struct sim_world;

/* X(name, text): every kind of fault that a world can inject, for the counters. */
#define SIM_FAULT_MAP(X)                                                                           \
	X(LOSS_UNSENT, "write lost, known not to have landed")                                     \
	X(LOSS_UNKNOWN, "write lost, may have landed")                                             \
	X(LOSS_LANDED, "write landed, reported lost")                                              \
	X(RESEND, "payload applied twice")                                                         \
	X(CTL_DELAY, "message held up")                                                            \
	X(CTL_FULL, "message refused, buffer full")                                                \
	X(QUEUE_FULL, "writes refused, path full")                                                 \
	X(PATH_REFUSED, "path refused")                                                            \
	X(NIC_DEATH, "NIC died")                                                                   \
	X(NIC_RETURN, "NIC that died works again")                                                 \
	X(KILL, "engine killed")                                                                   \
	X(KILL_SILENT, "engine vanished silently")                                                 \
	X(FREEZE, "engine frozen for a time")                                                      \
	X(PARTITION, "NICs cannot talk for a time")                                                \
	X(LOCK_LIMIT, "registration over the memory-lock limit")                                   \
	X(REGION_LIMIT, "registration over the number of regions")                                 \
	X(BAD_KEY, "write to a wrong key or range")

enum sim_fault {
#define X(name, text) SIM_##name,
	SIM_FAULT_MAP(X)
#undef X
		SIM_FAULT_COUNT
};

typedef void (*sim_trace_fn)(void *context, uint64_t now_ns, const char *line);
/* A fault was injected at this NIC. Called under the world's lock: it may not call back. */
typedef void (*sim_fault_fn)(void *context, enum sim_fault kind, uint32_t nic);

/* Zero in a field means: no such limit, no such fault, no delay, or the default named. */
struct sim_cfg {
	uint64_t seed;
	const char *profile; /* "efa" (default): no order, empty writes need a valid target;
				      * "rc": ordered per path, an error costs the path;
				      * "late": no order, acked before the bytes are in place */
	bool virtual_time;   /* the harness advances time; no descriptors */
	bool recycle_keys;   /* hand out small keys that are used again at once */
	bool no_cancel;      /* caps.can_cancel is false */
	bool no_source;      /* caps.identifies_source is false */

	uint64_t min_delay_ns, max_delay_ns; /* one way */
	uint64_t late_ns;                    /* "late": at most this long from acked to visible */
	uint64_t notice_ns;                  /* at most this long until a peer notices a death */
	uint64_t ctl_delay_ns;               /* a held-up message: at most this much more */

	uint32_t loss_ppm;      /* of the writes end with an error */
	uint32_t resend_ppm;    /* of the writes are applied twice */
	uint32_t ctl_delay_ppm; /* of the messages are held up */
	uint32_t refuse_ppm;    /* of the paths are refused */
	uint32_t corrupt_ppm;   /* of the writes arrive with another key */

	uint32_t post_depth;       /* 128 */
	uint32_t ctl_depth;        /* messages under way on one ctl: 16; at least 4 */
	uint32_t max_ctl_bytes;    /* 1 MiB + 4 KiB */
	uint32_t max_regions;      /* per NIC */
	uint64_t max_write_bytes;  /* 1 GiB */
	uint64_t lock_limit_bytes; /* per engine, each NIC charging the whole length */
	uint64_t link_bytes_per_s;

	sim_trace_fn trace; /* a line for each event; NULL: none */
	void *trace_context;
	sim_fault_fn on_fault; /* NULL: nobody listens */
	void *fault_context;
};

/* Returns OK, E_INVAL (profile), E_NOMEM. cfg is copied; NULL: all defaults, in real time. */
wimm_status sim_world_open(const struct sim_cfg *cfg, struct sim_world **out);
/* No NIC of it is open any more. */
void sim_world_close(struct sim_world *w);

/* The world's clock, of the form that engine_env.now_ns wants. NULL: the process's own world. */
uint64_t sim_world_now_ns(void *world);
/* When the next event is due; UINT64_MAX: nothing is under way. */
uint64_t sim_world_next_ns(struct sim_world *w);
/* Go to a point in time, running what is due on the way in the order of time. */
void sim_world_advance(struct sim_world *w, uint64_t now_ns);

/* --- settings that may change while it runs --- */
void sim_set_delay(struct sim_world *w, uint64_t min_ns, uint64_t max_ns);
/* "late": how long from acked to visible, at most. */
void sim_set_late(struct sim_world *w, uint64_t max_ns);
void sim_set_loss(struct sim_world *w, uint32_t ppm);
void sim_set_resend(struct sim_world *w, uint32_t ppm);
void sim_set_ctl_delay(struct sim_world *w, uint32_t ppm, uint64_t max_ns);
void sim_set_refuse(struct sim_world *w, uint32_t ppm);
void sim_set_lock_limit(struct sim_world *w, uint64_t limit_bytes);
/* NICs opened from now on have this depth. */
void sim_set_post_depth(struct sim_world *w, uint32_t depth);

/* --- faults now; NICs by their number, engines by their instance (16 bytes) --- */
/* The next `count` writes posted on this NIC end so: SIM_LOSS_UNSENT, _UNKNOWN or _LANDED. */
void sim_lose_next(struct sim_world *w, uint32_t nic, enum sim_fault kind, uint32_t count);
/* The next `count` writes posted on this NIC arrive with another key, as of a broken peer. */
void sim_corrupt_next(struct sim_world *w, uint32_t nic, uint32_t count);
/* The next path to be joined on this NIC is refused. */
void sim_refuse_next(struct sim_world *w, uint32_t nic);
/* The process is gone with all its NICs: nothing leaves or reaches it any more, its own calls keep
 * working so that its memory can be freed. silent: peers are never told. */
void sim_kill_engine(struct sim_world *w, const uint8_t *instance, bool silent);
/* The NIC dies; its engine learns it at once, peers within notice_ns or, if silent, when their own
 * hardware gives up (prov_args.peer_timeout_ms). */
void sim_kill_nic(struct sim_world *w, uint32_t nic, bool silent);
/* It works again: its engine learns it at once, its regions still stand. */
void sim_revive_nic(struct sim_world *w, uint32_t nic);
void sim_kill_nic_at(struct sim_world *w, uint32_t nic, uint64_t at_ns);
/* Nothing reaches or leaves an engine until it is thawed; then everything held does. */
void sim_freeze(struct sim_world *w, const uint8_t *instance);
void sim_thaw(struct sim_world *w, const uint8_t *instance);
/* Nothing passes between two NICs until it is healed. */
void sim_partition(struct sim_world *w, uint32_t nic_a, uint32_t nic_b);
void sim_heal(struct sim_world *w, uint32_t nic_a, uint32_t nic_b);

/* --- looking in --- */
uint64_t sim_faults(struct sim_world *w, enum sim_fault kind);
uint64_t sim_faults_all(struct sim_world *w);
const char *sim_fault_name(enum sim_fault kind);
/* What the provider's user did against prov.h, in words; NULL: nothing so far. */
const char *sim_violation(struct sim_world *w);
/* Bytes charged against the memory-lock limit for one engine. */
uint64_t sim_locked_bytes(struct sim_world *w, const uint8_t *instance);
/* Regions registered with PROV_REG_STRICT_ORDER, on all NICs. */
uint32_t sim_strict_regions(struct sim_world *w);
/* The instance that has this NIC; false: no such NIC. */
bool sim_nic_instance(struct sim_world *w, uint32_t nic, uint8_t out[16]);
/* Events run so far. */
uint64_t sim_events(struct sim_world *w);

#endif
