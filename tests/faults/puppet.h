/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FAULTS_PUPPET_H
#define TESTS_FAULTS_PUPPET_H

/* An engine in a process of its own that does what the test says, so that it can be stopped, killed
 * and started again. Its region is shared memory that the test sees too, also while it is stopped.
 * It uses the provider of this run; another process cannot join a simulated world. */

#include "contract/fixture.h"

#include <sys/types.h>

/* With the fixture's ONLY_*: providers that work between processes. */
#define ONLY_PROCESSES 0x10000u
/* Providers that take back a single write. Others end the path for it, and with the last path the
 * session. */
#define ONLY_CANCEL 0x20000u
#define ONLY_VERBS  0x40000u

struct puppet_opts {
	const char *nics;     /* NULL: one, wherever it is free */
	void *at;             /* address of the region there; NULL: any */
	uint64_t bytes;       /* of the region; 0: none */
	uint32_t heartbeat_ms, peer_timeout_ms; /* 0: default */
	bool driven;          /* nobody drives it but its orders */
};

struct puppet {
	pid_t pid; /* 0: ended and waited for */
	int link;
	struct wimm_net_addr addr;
	struct wimm_mr_desc desc;
	uint8_t *mem; /* the region, as mapped here */
	uint64_t bytes;
	uint32_t extra_fds; /* descriptors it found open beyond its own */
};

/* How its operations stand. */
struct puppet_tally {
	uint64_t submitted, refused, done, failed;
	wimm_status last_status; /* of a failed one, or of a refused call */
	char text[WIMM_ERROR_TEXT_BYTES];
};

struct puppet_write {
	uint64_t src_offset, dst_offset, len_bytes;
	uint64_t dst_step;  /* added to dst_offset from one to the next */
	uint64_t count;     /* so many writes; at least 1 */
	uint64_t deadline_us;
	uint32_t imm;
	uint32_t flags;
};

/* Start one and open its engine. It is the fixture's, as its memory is, until the case is over. */
struct puppet *puppet_start(const struct puppet_opts *opts);
/* NIC list text of where it listens. */
void puppet_nics(const struct puppet *p, char *out, size_t out_bytes);

/* Orders; each waits until it has been carried out. */
void puppet_connect(struct puppet *p, const struct wimm_net_addr *to);
void puppet_write(struct puppet *p, const struct wimm_mr_desc *to, const struct puppet_write *w);
void puppet_tally(struct puppet *p, struct puppet_tally *out);
uint64_t puppet_imm(struct puppet *p, uint32_t imm);
uint32_t puppet_events(struct puppet *p, wimm_peer_event_kind kind);
/* Deregister the region and register it again; the new descriptor is in p->desc. */
void puppet_reregister(struct puppet *p);
/* The same in two steps, for one that is stopped in between. */
void puppet_reregister_begin(struct puppet *p);
void puppet_reregister_end(struct puppet *p);
/* From now on it gets so many more descriptors than it has, and no more. */
void puppet_limit_fds(struct puppet *p, uint32_t more);
/* Wait until the engine there has counted so many. */
void puppet_imm_reaches(struct puppet *p, uint32_t imm, uint64_t count);
/* Wait until so many of its operations have ended. */
void puppet_settled(struct puppet *p, uint64_t count, struct puppet_tally *out);
/* Close its engine and end; fails the test unless all is well over there. */
void puppet_end(struct puppet *p);
/* End without a word: _exit() of the process with everything open. */
void puppet_leave(struct puppet *p);
void puppet_kill(struct puppet *p);
void puppet_stop(struct puppet *p); /* SIGSTOP, and wait until it stands */
void puppet_continue(struct puppet *p);
/* Nobody looks at it any more: its place is free for another. */
void puppet_done(struct puppet *p);
/* After a case: kill what runs, unmap, free. */
void puppets_sweep(void);

/* main() of a puppet, when argv says so; else -1. */
int puppet_main(int argc, char **argv);

#endif
