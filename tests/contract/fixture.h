/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_CONTRACT_FIXTURE_H
#define TESTS_CONTRACT_FIXTURE_H

/* What every case of the contract suite stands on: engines ("nodes") of the configuration under
 * test, each with one region between guard bytes; results that must come exactly once; waiting that
 * drives the engines where the caller has to. After each case nothing may be left over: no memory
 * of the library's, no descriptor, no thread. */

#include "lib/test.h"

#include <wimm/imm.h>
#include <wimm/transfer.h>
#include <wimm/watcher.h>

/* The configuration of this run, from the command line. */
struct contract_cfg {
	const char *provider; /* "tcp", "host" or "sim" */
	const char *profile;  /* of sim: "efa", "rc", "late"; of host: "own" (memory), or a
			      * way; of tcp: "routed": past its NICs */
	uint32_t nics;
	bool driven; /* WIMM_PROGRESS_CALLER */
};
extern struct contract_cfg cfg;

/* Where a case applies; 0: everywhere. */
enum {
	ONLY_TCP = 1,
	ONLY_SIM = 2,
	ONLY_THREADS = 4,
	ONLY_DRIVEN = 8,
	ONLY_ONE_NIC = 16,
	ONLY_MANY_NICS = 32,
	ONLY_LONG = 64,     /* WIMM_TEST_SCALE of 10 or more, and no sanitizer */
	ONLY_LASTING = 128, /* addresses that a successor can open; those of verbs are drawn anew */
	ONLY_PLAIN = 256,   /* no sanitizer: their shadow of so much memory would not fit */
};

struct contract_case {
	const char *name;
	void (*fn)(void **state);
	unsigned only;
};
#define CASE(fn)                                                                                   \
	{                                                                                          \
#fn, fn, 0                                                                         \
	}
#define CASE_ONLY(fn, where)                                                                       \
	{                                                                                          \
#fn, fn, where                                                                     \
	}

struct contract_group {
	const char *name;
	const struct contract_case *cases;
	size_t count;
};
#define GROUP(name, cases)                                                                         \
	const struct contract_group group_##name = { #name, cases,                                 \
		                                     sizeof(cases) / sizeof((cases)[0]) }

/* --- results --- */

/* How one operation ended. Read under no lock once result_wait() has returned. */
struct result {
	uint32_t calls;
	wimm_status status;
	uint32_t imm;
	wimm_op op; /* as the callback saw it */
	wimm_peer peer;
	uint64_t bytes, descriptors, post_ns, transfer_ns;
	char text[WIMM_ERROR_TEXT_BYTES];
	wimm_op id;    /* as the submission returned it */
	bool accepted; /* must be called once before the case is over; else never */
};

struct node;
/* A result of the fixture's; all are looked at once every engine is closed. */
struct result *result_new(void);
struct wimm_on_done to_result(struct result *r);
bool result_there(struct result *r);
/* The same after one turn of a node that stands apart. */
bool result_there_driving(struct result *r, struct node *apart);
void result_wait(struct result *r);
/* Wait, and it ended so. */
void result_is(struct result *r, wimm_status status);
void result_ok(struct result *r);

/* --- nodes --- */

#define EVENTS_MAX 4096

struct node {
	struct wimm_engine *engine; /* NULL: closed */
	struct wimm_net_addr addr;
	uint8_t *mem; /* the region, between guards */
	uint64_t bytes;
	uint8_t *block;
	struct wimm_mr *mr;
	struct wimm_mr_desc desc;
	bool apart; /* the case drives it itself, or nobody does */
	uint32_t event_count;
	struct wimm_peer_event event[EVENTS_MAX]; /* text points nowhere */
	char event_text[WIMM_ERROR_TEXT_BYTES];   /* of the last one */
};

/* Options of this configuration; `nics` text is the fixture's. */
struct wimm_engine_opts node_opts(void);
struct wimm_engine_opts node_opts_nics(uint32_t nics);
/* Open an engine with a region of so many bytes (0: none), filled with zeros. */
struct node *node_open(uint64_t bytes);
struct node *node_open_with(const struct wimm_engine_opts *opts, uint64_t bytes);
/* As node_open_with(), for one in caller-driven mode that the fixture does not drive. */
struct node *node_open_apart(const struct wimm_engine_opts *opts, uint64_t bytes);
/* The open itself, in this case's sim world if that is the provider. */
wimm_status engine_open_here(const struct wimm_engine_opts *opts, struct wimm_engine **out);
void node_close(struct node *n);
/* Close it and check it as at the end of the case, so that its place is free again. */
void node_done(struct node *n);
/* Drop an engine without a word, as in a forked child. */
void node_forget(struct node *n);
/* How many events of a kind the node has seen. */
uint32_t node_events(struct node *n, wimm_peer_event_kind kind);
/* Wait until it has seen so many. */
void node_wait_events(struct node *n, wimm_peer_event_kind kind, uint32_t count);
/* The peer handle for `to` at `from`. */
struct wimm_remote_mr *remote_of(struct node *from, const struct node *to);
wimm_peer peer_of(struct node *from, const struct node *to);
/* Wait until both sides have a session. */
void connect_nodes(struct node *a, struct node *b);
struct wimm_engine_stats stats_of(struct node *n);
/* Submissions that wait for room, which the API does not tell. */
uint32_t blocked_submitters(struct node *n);
/* Looks for room in vain, those of blocked submitters too. */
uint64_t refused_submissions(struct node *n);
/* Zeroed memory that lives until every engine of the case is closed. */
void *case_memory(size_t bytes);
/* The simulator's world of this case (struct sim_world), NULL with another provider. */
void *case_world(void);

/* --- waiting --- */

/* Until cond holds, driving all nodes where the caller has to; false at the deadline. */
bool wait_for(bool (*cond)(void *arg), void *arg);
#define assert_wait(cond, arg) assert_true(wait_for(cond, arg))
/* One round of progress in caller-driven mode; else a wait until something is told at the gate, a
 * millisecond at most. */
void drive(void);
/* Drive until an expression holds; fails the case at the deadline. Thread: the case's. */
#define drive_until(cond)                                                                          \
	do {                                                                                       \
		uint64_t end_ms_ = wait_end_ms();                                                  \
		while (!(cond))                                                                    \
			wait_more(end_ms_, #cond);                                                 \
	} while (0)
uint64_t wait_end_ms(void);
void wait_more(uint64_t end_ms, const char *what);
/* So many rounds of progress, or yields: time in which nothing of a kind should happen. */
void drive_rounds(unsigned rounds);
/* What callbacks share with the case. */
void gate_lock(void);
void gate_unlock(void); /* wakes those who wait */
/* Inside a callback: block until cond holds (checked under the gate) or the deadline passes. */
bool gate_wait(bool (*cond)(void *arg), void *arg);

/* --- short forms --- */

struct wimm_write single(struct node *from, const struct wimm_remote_mr *to, uint64_t src_offset,
                         uint64_t dst_offset, uint64_t len_bytes);
/* With an immediate; submitted, accepted. */
struct result *write_imm(struct node *from, const struct wimm_remote_mr *to, uint64_t src_offset,
                         uint64_t dst_offset, uint64_t len_bytes, uint32_t imm);
struct result *submit_write(struct node *from, const struct wimm_write *w);
struct result *submit_pages(struct node *from, const struct wimm_paged_writes *w);
struct result *expect(struct node *n, uint32_t imm, uint64_t count);
struct result *expect_with(struct node *n, uint32_t imm, uint64_t count,
                           const struct wimm_expect_opts *opts);
uint64_t imm_now(struct node *n, uint32_t imm);
/* What this thread has written to the node's region happened before what its worker will write
 * there. It did anyway; but the thread sanitizer does not follow the way through a peer's ring,
 * which lies at two addresses when both engines are in one process. */
void hand_over(struct node *n);
/* Wait until a value has this count, and not more. */
void imm_reaches(struct node *n, uint32_t imm, uint64_t count);
/* Byte i of pattern `seed`. */
static inline uint8_t pattern(uint64_t seed, uint64_t i)
{
	uint64_t x = (seed + 1) * 0x9e3779b97f4a7c15u + (i >> 3) * 0xbf58476d1ce4e5b9u;

	x ^= x >> 29;
	return (uint8_t)(x >> ((i & 7) * 8));
}
void fill(uint8_t *at, uint64_t len_bytes, uint64_t seed);
/* Whether the bytes are those of the pattern; says where not. */
bool holds(const uint8_t *at, uint64_t len_bytes, uint64_t seed);
/* Whether all bytes have this value. */
bool all_are(const uint8_t *at, uint64_t len_bytes, uint8_t value);

/* The call is refused with this status, and the thread's error text has these words. */
#define assert_refused(call, want, words)                                                          \
	do {                                                                                       \
		assert_int_equal(call, want);                                                      \
		assert_string_not_equal(wimm_last_error_text(), "");                               \
		assert_non_null(strstr(wimm_last_error_text(), words));                            \
	} while (0)
#define assert_invalid(call) assert_refused(call, WIMM_E_INVAL, "")
#define assert_status(call, want)                                                                  \
	assert_string_equal(wimm_status_name(call), wimm_status_name(want))

int case_setup(void **state);
int case_teardown(void **state);

#endif
