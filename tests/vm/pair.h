/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_VM_PAIR_H
#define TESTS_VM_PAIR_H

/* Two verbs devices in one process, driven by hand through the ops table. */

#include "lib/test.h"

#include "fake/ibverbs.h"
#include "prov/providers.h"

#define PAIR_MEM_BYTES (4u << 20)
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
	uint32_t max; /* events asked of one poll */
	bool up;
	bool down;
	bool closed;
	bool nic_down;
	wimm_status down_status;
	char down_text[PROV_TEXT_BYTES];
	char nic_text[PROV_TEXT_BYTES];
	uint64_t done_ok;
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
	uint64_t ctl_wrong; /* bytes that do not fit the pattern of ctl_fill() */
	bool ctl_down;
	wimm_status ctl_down_status;
	char ctl_down_text[PROV_TEXT_BYTES];
};

struct pair {
	const struct prov_ops *ops;
	struct side a; /* dials, and mostly writes */
	struct side b;
};

/* The i-th device of the guest, or of whatever machine this is; NULL: there are not so many. */
const char *pair_nic(uint32_t i);

/* What the fake library can be made to do, all back at its defaults. */
struct fake_knobs *pair_fake(void);

void side_open(struct side *s, const char *nic);
void side_close(struct side *s);
/* One poll, events counted. Returns how many. */
uint32_t side_poll(struct side *s);

/* Both devices open at the first two NICs, memory registered; with pair_open() a path is up. */
void pair_open_devs(struct pair *p);
void pair_open(struct pair *p);
void pair_join(struct pair *p);
/* Open and connect both ends of a path, whatever comes of it. */
void pair_dial(struct pair *p);
void pair_close(struct pair *p);
/* Poll both until cond holds; false at the deadline. Sleeps on the descriptors in between. */
bool pair_until(struct pair *p, bool (*cond)(const struct pair *p));
/* Poll both until done_ok of a and what b counted reach these, exactly. */
void pair_drain(struct pair *p, uint64_t done_ok, uint64_t imms);
/* Poll both (one of them may be closed) until the flag is set. */
void pair_await(struct pair *p, const bool *flag);
/* Open a ctl from a to b and wait until b has it. */
void pair_talk(struct pair *p);
/* len_bytes of message number n. */
void ctl_fill(uint8_t *out, uint32_t len_bytes, uint32_t n);

/* A write from a's memory to b's, same offset at both ends. */
struct prov_wr pair_wr(const struct pair *p, uint64_t token, uint64_t offset, uint64_t len_bytes);
/* Post all, polling both while the queue is full. */
void pair_post_all(struct pair *p, const struct prov_wr *wr, uint32_t n);

#endif
