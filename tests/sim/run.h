/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SIM_RUN_H
#define TESTS_SIM_RUN_H

/* One simulated run: several engines of one process in virtual time, all drawn from one seed.
 *
 * A *node* is a place where an engine lives, dies and may come back. A *rec* is one operation asked
 * of an engine. A *slot* is the piece of a target region that one write, page or slice goes to; no
 * two writes share one, so each byte of every region has exactly one right answer. A *group* is the
 * set of writes that carry one immediate to one node, with the expectations on it.
 *
 * What is checked: model.c. What is done: patterns.c. What goes wrong: faults.c. */

#include "core/engine.h"
#include "plat/rand.h"
#include "prov/sim/sim.h"
#include "sizes.h"
#include "stats.h"

#include <wimm/imm.h>
#include <wimm/transfer.h>

struct run;
typedef void (*action_fn)(struct run *run, uint32_t a, uint32_t b);

struct action {
	uint64_t at_ns;
	uint64_t seq;
	action_fn fn;
	uint32_t a, b;
};

enum rec_kind {
	REC_SINGLE,
	REC_PAGED,
	REC_SCATTER,
	REC_BARRIER,
	REC_SEND,
	REC_EXPECT,
	REC_RETIRE,
	REC_DEREG,
	REC_RECVS,
	REC_FENCE,
	REC_KINDS
};

enum rec_state { REC_PLANNED, REC_ACCEPTED, REC_SETTLED, REC_ABANDONED };

struct rec {
	struct run *run;
	uint32_t index;
	enum rec_kind kind;
	enum rec_state state;
	uint32_t node, life; /* whose operation */
	wimm_op op;
	wimm_status status;
	uint64_t submit_ns, settle_ns;
	uint64_t deadline_us;
	uint64_t cancel_ns; /* when it was cancelled; 0: it was not */
	uint32_t flags, imm;
	uint32_t tries;
	uint32_t order;               /* of acceptance */
	uint32_t chain;               /* rec that its callback submits; NONE */
	bool excused;                 /* a fault may make it fail */
	bool no_slack;                /* its end need not be prompt: its own engine stood still */
	struct wimm_remote_mr *stale; /* a write by an old descriptor: it may never land */
	uint64_t flag;                /* told by flag, too */
	/* Writes. */
	uint32_t slot, slot_count;
	uint32_t src_off, src_len, src_stride, page_len;
	/* Expectations: group and count; retire: group; dereg: region. */
	uint32_t group;
	uint64_t count; /* fence: its deadline in microseconds */
	/* Sends; fence: the peer. */
	uint32_t to, len, delivered;
	/* Fences. */
	wimm_peer peer;
	uint32_t spoils; /* run.spoils when it was asked for */
	bool surely;     /* the peer is well and has all the time to confirm */
};

enum slot_state { SLOT_OPEN, SLOT_GIVEN, SLOT_DEAD, SLOT_RECLAIMED };

struct slot {
	uint32_t rec;
	uint32_t node, mr, mr_life;
	uint32_t off, len;
	uint32_t src_off; /* in the sender's source region */
	uint32_t group;   /* NONE: carries no immediate */
	uint32_t imms;
	uint32_t next_in_mr, next_in_group;
	uint32_t fence; /* rec of the fence that ends its writer; NONE */
	enum slot_state state;
};

struct group {
	uint32_t node, life, imm;
	uint64_t planned;     /* immediates of all its writes */
	uint64_t accepted;    /* of those that an engine took */
	uint64_t consumed;    /* taken by expectations or dropped by forget */
	uint32_t slot;        /* first of its slots */
	uint32_t writes_open; /* planned or accepted, not ended */
	uint32_t expects_open;
	bool tainted; /* a write of it was refused or failed: it may stay incomplete */
	bool live;
	bool retiring;
};

struct region {
	struct wimm_mr *mr; /* NULL: not registered now */
	struct wimm_mr_desc desc;
	struct wimm_mr_desc old_desc; /* of the registration before */
	bool has_old;
	uint32_t life;
	uint32_t used; /* bump allocation over all lives */
	uint32_t dead; /* bytes below belonged to former lives */
	uint32_t slot_first, slot_last;
	bool ending;
};

struct remote {
	struct wimm_remote_mr *handle;
	uint32_t node_life, mr_life;
};

struct pool {
	uint32_t rec;
	uint32_t count, len;
	uint32_t back; /* buffers brought back for good */
	uint8_t mem[8][MSG_BYTES];
	bool returned[8];
};

struct node {
	struct run *run;
	uint32_t index;
	struct wimm_engine *engine; /* NULL: none now */
	uint32_t life;
	uint32_t nics;
	uint8_t instance[16];
	struct wimm_net_addr addr;
	struct wimm_mr *source;
	uint32_t source_used;
	uint32_t source_limit; /* bytes that this life may use up to */
	struct region region[MR_COUNT];
	struct remote remote[NODES_MAX][MR_COUNT];
	wimm_peer peer_seen[NODES_MAX]; /* the last that came up; 0: none */
	struct pool pool[POOLS_MAX];
	uint32_t pools;
	bool frozen;
	bool killed; /* in the world; the engine is about to be freed */
	bool closing;
	uint64_t closing_until_ns; /* time goes on for it while it closes */
	uint64_t lazy_ns;          /* its program makes progress so seldom; 0: all the time */
	uint64_t turn_ns;          /* when it does so next */
	bool busy;                 /* its last turn did something */
	uint64_t frozen_ns;        /* of the last freeze */
	uint64_t killed_ns;        /* of the last death; 0: none */
	uint64_t nics_dead;
};

struct run {
	uint64_t seed;
	struct rng rng;
	bool verbose, keyed; /* with a job key */
	struct sim_world *world;
	struct sim_cfg cfg;
	uint32_t accepted; /* recs so far */
	uint64_t end_ns;   /* nothing new is asked for after it */
	uint64_t peer_timeout_ns;
	bool corrupts;     /* a write was sent to a wrong key on purpose */
	uint32_t bad_keys; /* writes to wrong keys that were not */
	uint32_t missing[3]; /* the path that paths_back() waits for: from, index, to */
	bool nested; /* time goes on inside the close of an engine */
	bool ending; /* the final cancels have begun */
	uint32_t nodes;
	struct node node[NODES_MAX];
	uint64_t blocked_until_ns;        /* somebody is frozen or cut off */
	uint32_t spoils;                  /* faults that excuse somebody, so far */
	bool lossy[NODES_MAX][NODES_MAX]; /* the same, orderly goodbyes apart */
	bool dirty[NODES_MAX][NODES_MAX]; /* a fault came between the two: losses are excused */
	struct action action[ACTIONS_MAX];
	uint32_t actions;
	uint64_t action_seq;
	struct rec rec[RECS_MAX];
	uint32_t recs;
	struct slot slot[SLOTS_MAX];
	uint32_t slots;
	struct group group[GROUPS_MAX];
	uint64_t mirror[GROUPS_MAX]; /* the word of each: what its node says has arrived in all */
	uint32_t groups;
	struct stats stats;
};

/* --- run.c: time, order, failure --- */
void run_open(struct run *run, uint64_t seed, bool verbose);
void run_close(struct run *run);
uint64_t run_now(const struct run *run);
/* fn(run, a, b) at a point in time; quietly dropped when the list is full. */
void run_at(struct run *run, uint64_t at_ns, action_fn fn, uint32_t a, uint32_t b);
/* Go on until `done` says so (NULL: never), at most to end_ns. Returns whether it did. */
bool run_until(struct run *run, uint64_t end_ns, bool (*done)(struct run *run));
/* One event further, without actions, but not past limit_ns: for those who wait inside a call. */
void run_slice(struct run *run, uint64_t limit_ns);
/* A line of the transcript. */
void say(struct run *run, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The contract is broken: prints the seed and what is wrong, and ends the process. */
_Noreturn void broken(struct run *run, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
uint64_t draw(struct run *run, uint64_t low, uint64_t high); /* both included */
bool chance(struct run *run, uint32_t percent);

/* --- cluster.c: nodes, regions, remote regions --- */
void node_open(struct run *run, uint32_t n);
void node_close(struct run *run, uint32_t n); /* orderly, or freeing what was killed */
void node_kill(struct run *run, uint32_t n, bool silent);
#define LOOKS_INSIDE TSA(no_thread_safety_analysis) /* into engines: the world is one thread */

bool node_alive(const struct run *run, uint32_t n);
bool node_acts(const struct run *run, uint32_t n); /* alive and not frozen */
uint32_t nic_number(uint32_t n, uint32_t nic);
uint32_t nic_node(uint32_t number);
uint32_t node_of(const struct run *run, const uint8_t *instance); /* NONE: of a former life */
void region_end(struct run *run, uint32_t n); /* deregister MR_CHURN; it comes back later */
/* A handle on a node's region as it is now; NULL when there is none to be had. */
struct wimm_remote_mr *remote_get(struct run *run, uint32_t from, uint32_t to, uint32_t mr);
/* Losses between two nodes are excused from now on. */
void pair_spoil(struct run *run, uint32_t a, uint32_t b);
void node_spoil(struct run *run, uint32_t n);
void node_leaves(struct run *run, uint32_t n); /* all that it has delivered stays */
/* What the first has delivered to the second is still countable there. */
bool pair_lossless(const struct run *run, uint32_t a, uint32_t b);
bool pair_clean(const struct run *run, uint32_t a, uint32_t b);

/* --- model.c: what must hold --- */
uint8_t *mr_memory(uint32_t n, uint32_t mr);
uint8_t *source_memory(uint32_t n);
void memory_reset(struct run *run);
const uint8_t *payload(uint32_t slot);
struct rec *rec_new(struct run *run, enum rec_kind kind, uint32_t node);
/* A range of a target region for a write; NONE: no room. */
uint32_t slot_new(struct run *run, struct rec *rec, uint32_t node, uint32_t mr, uint32_t len);
/* Room for `count` slots of one length at one stride; the first one's index, or NONE. */
uint32_t slots_new(struct run *run, struct rec *rec, uint32_t node, uint32_t mr, uint32_t len,
                   uint32_t stride, uint32_t count);
/* A slot carries so many immediates of a group. */
void slot_join(struct run *run, uint32_t slot, uint32_t group, uint32_t imms);
uint32_t group_new(struct run *run, uint32_t node);
/* The same with a given value; NONE: it is in use there. */
uint32_t group_with(struct run *run, uint32_t node, uint32_t imm);
void group_maybe_free(struct run *run, uint32_t group);
void rec_accepted(struct run *run, struct rec *rec);
void rec_abandoned(struct run *run, struct rec *rec);
void rec_settled(struct run *run, struct rec *rec, const struct wimm_done *done);
void expect_fired(struct run *run, struct rec *rec);
void region_dead(struct run *run, uint32_t n, uint32_t mr);
uint64_t group_count(struct run *run, const struct group *g); /* there and not consumed */
bool group_current(const struct run *run, const struct group *g);

/* --- final.c --- */
void check_all_settled(struct run *run);
void check_counts(struct run *run);
/* Lost paths between NICs that work stand again. */
bool paths_back(struct run *run);
void check_memory(struct run *run);

/* --- ops.c: asking engines for things --- */
void rec_submit(struct run *run, uint32_t rec, uint32_t unused);
void rec_cancel(struct run *run, struct rec *rec);
void deadlines_look(struct run *run);
void recvs_submit(struct run *run, uint32_t node, uint32_t unused);

/* --- writes.c --- */
/* A group: writes with one immediate to one node, and expectations on it. */
void start_group(struct run *run, uint32_t unused, uint32_t unused2);
/* Retire or forget some values that nobody uses any more. */
void keep_house(struct run *run, uint32_t unused, uint32_t unused2);
/* Source bytes for all slots of a rec, at a stride or (0) packed; false: no room. */
bool sources_fill(struct run *run, struct rec *rec, uint32_t stride);

/* --- fences.c --- */
void fences_plan(struct run *run);
wimm_status fence_submit(struct run *run, struct rec *rec, const struct wimm_on_done *done);
void fence_settled(struct run *run, struct rec *rec, uint32_t answer);

/* --- patterns.c, faults.c --- */
uint32_t any_node(struct run *run);
void patterns_plan(struct run *run);
void patterns_end(struct run *run);                 /* no new rounds */
bool patterns_turn(struct run *run, uint32_t node); /* before a node's turn; false: not now */
bool patterns_rest(const struct run *run, uint32_t node); /* it has had its turn for now */
uint64_t patterns_rest_end_ns(void);                      /* when that one goes on */
void patterns_node_down(struct run *run, uint32_t node);
void patterns_handle_closed(uint32_t node); /* its barriers may stand on it: no more rounds */
void faults_plan(struct run *run);
void freeze(struct run *run, uint32_t n, uint32_t us);
void faults_heal(struct run *run);
void faults_listen(void *context, enum sim_fault kind, uint32_t nic);

#endif
