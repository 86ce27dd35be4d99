/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FAULTS_ORDER_H
#define TESTS_FAULTS_ORDER_H

/* What a test and its puppets say to each other. */

#include "faults/puppet.h"

#define PUPPET_ARG     "--puppet"
#define PUPPET_LINK_FD 200
#define PUPPET_MEM_FD  201

enum order_kind {
	ORDER_OPEN = 1, /* text: NICs; a: address; b: bytes; c, d: heartbeat, time-out */
	ORDER_CONNECT,
	ORDER_WRITE,
	ORDER_TALLY,
	ORDER_IMM,
	ORDER_EVENTS,
	ORDER_REREGISTER,
	ORDER_LIMIT_FDS, /* a: so many more */
	ORDER_END,
	ORDER_LEAVE,
};

struct order {
	enum order_kind kind;
	uint32_t flags;
	uint32_t imm;
	uint64_t a, b, c, d;
	char text[256];
	char provider[16];
	struct puppet_write write;
	struct wimm_net_addr addr;
	struct wimm_mr_desc desc;
};

struct answer {
	wimm_status status;
	uint64_t a;
	char text[WIMM_ERROR_TEXT_BYTES];
	struct puppet_tally tally;
	struct wimm_net_addr addr;
	struct wimm_mr_desc desc;
};

#endif
