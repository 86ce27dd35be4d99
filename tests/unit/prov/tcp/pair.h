/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_PROV_TCP_PAIR_H
#define TESTS_UNIT_PROV_TCP_PAIR_H

/* Two tcp devices in one process, driven by hand through the ops table. */

#include "lib/test.h"

#include "prov/providers.h"
#include "prov/tcp/dev.h"
#include "prov/tcp/path.h"

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
	uint32_t max; /* events asked of one poll */
	bool up;
	bool down;
	bool closed;
	wimm_status down_status;
	char down_text[PROV_TEXT_BYTES];
	uint64_t done_ok;
	uint64_t done_cancelled; /* of these with PROV_CQE_SENT: */
	uint64_t done_cancelled_sent;
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
	const struct prov_ops *ops;
	struct side a; /* dials, and mostly writes */
	struct side b;
	struct side a2; /* a second path between the same devices; no devices of their own */
	struct side b2;
};

void side_open(struct side *s, const char *nic);
void side_close(struct side *s);
/* One poll, events counted. Returns how many. */
uint32_t side_poll(struct side *s);
/* The address with the port of `s`. */
uint16_t side_port(const struct side *s);

/* Both devices open at nic, memory registered, path up. */
void pair_open(struct pair *p, const char *nic);
void pair_open_devs(struct pair *p, const char *nic);
/* (Re)join a path from a to b; both must be without. */
void pair_join(struct pair *p);
/* The same for a2 and b2, on the devices of a and b. */
void pair_join_second(struct pair *p);
void pair_close(struct pair *p);
/* Poll both until cond holds; false at the deadline. */
bool pair_until(struct pair *p, bool (*cond)(const struct pair *p));
/* Poll both until done_ok of a and what b counted reach these. */
void pair_drain(struct pair *p, uint64_t done_ok, uint64_t imms);
/* Poll both (one of them may be closed), or one alone, until the flag is set. */
void pair_await(struct pair *p, const bool *flag);
void side_await(struct side *s, const bool *flag);
/* Poll one side alone, n times. */
void side_turns(struct side *s, uint32_t n);

/* A plain connection to a device's port; blocking. */
int raw_dial(const struct side *to);
void raw_send(int fd, const void *data, size_t bytes);
/* Poll `s` until the peer's socket has that many bytes, then read them. False: the end came. */
bool raw_read(struct side *s, int fd, void *out, size_t bytes);
/* Poll `s` until the plain socket sees the end of the stream (or a reset). */
void raw_await_end(struct side *s, int fd);
/* A path of b's whose other end is the plain socket that is returned; b is up. */
int raw_path(struct pair *p);

/* A write from a's memory to b's, same offset at both ends. */
struct prov_wr pair_wr(const struct pair *p, uint64_t token, uint64_t src_off, uint64_t dst_off,
                       uint64_t len_bytes);
/* Post all, polling both while the queue is full. */
void pair_post_all(struct pair *p, const struct prov_wr *wr, uint32_t n);

#endif
