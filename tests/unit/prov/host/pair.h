/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_PROV_HOST_PAIR_H
#define TESTS_UNIT_PROV_HOST_PAIR_H

/* Two host devices in one process, driven by hand through the ops table. */

#include "lib/test.h"

#include "prov/host/dev.h"
#include "prov/host/path.h"
#include "prov/providers.h"

#define PAIR_MEM_BYTES (8u << 20)
#define PAIR_TOKENS    4096u

/* What one device has reported. */
struct side {
	struct prov_dev *dev;
	struct prov_caps caps;
	struct prov_addr addr;
	struct prov_path *path;
	struct prov_ctl *ctl; /* opened, or come in */
	uint8_t *mem;
	uint64_t key;
	bool own;     /* mem is wimm's own */
	uint32_t max; /* events asked of one poll */
	uint32_t ups;
	bool up;
	bool down;
	bool closed;
	wimm_status down_status;
	char down_text[PROV_TEXT_BYTES];
	uint64_t done_ok;
	uint64_t done_cancelled; /* of these with PROV_CQE_SENT: */
	uint64_t done_cancelled_sent;
	uint64_t done_reading; /* of any status with PROV_CQE_READING */
	uint64_t done_lost;
	uint64_t done_lost_sent;
	uint32_t units[PAIR_TOKENS]; /* PROV_DONE units by token (modulo) */
	uint64_t imms;
	uint64_t imm_events;
	uint32_t last_imm;
	uint64_t parts;
	struct prov_cqe last_part;
	uint32_t ctl_new;
	uint32_t ctl_msgs;
	uint64_t ctl_msg_bytes;
	uint8_t ctl_last[64]; /* start of the last message */
	bool ctl_down;
	wimm_status ctl_down_status;
	char ctl_down_text[PROV_TEXT_BYTES];
};

struct pair {
	struct side a; /* dials, and mostly writes */
	struct side b;
};

typedef bool (*pair_cond)(const struct pair *p);

/* way: a value of the setting host_way; or "own": auto, and the memory is wimm's own. */
void pair_open_devs(struct pair *p, const char *way);
void side_open(struct side *s, const char *nic);
void side_close(struct side *s);
/* Both devices open, memory registered, path up. */
void pair_open(struct pair *p, const char *way);
/* (Re)join a path from a to b; both must be without. */
void pair_join(struct pair *p);
void pair_close(struct pair *p);

/* One poll, events counted. Returns how many. */
uint32_t side_poll(struct side *s);
void side_turns(struct side *s, uint32_t n);
/* Poll both, asleep in between, until cond holds; false at the deadline. */
bool pair_until(struct pair *p, pair_cond cond);
/* Poll both until done_ok of a and what b counted reach these, exactly. */
void pair_drain(struct pair *p, uint64_t done_ok, uint64_t imms);

/* A write from a's memory to b's. */
struct prov_wr pair_wr(const struct pair *p, uint64_t token, uint64_t src_off, uint64_t dst_off,
                       uint64_t len_bytes);
/* Post all, polling both while the queue is full. */
void pair_post_all(struct pair *p, const struct prov_wr *wr, uint32_t n);

/* Conditions for pair_until(). */
bool pair_a_down(const struct pair *p);
bool pair_b_down(const struct pair *p);
bool pair_a_closed(const struct pair *p);
bool pair_b_closed(const struct pair *p);

#endif
