/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_PROV_HOST_DUO_H
#define TESTS_UNIT_PROV_HOST_DUO_H

/* Two processes with a host device each, and a path from a to b. Both are children of the test, so
 * that what they do to themselves (capabilities, filters, users) ends with them. */

#include "lib/test.h"

#include "prov/host/dev.h"
#include "prov/host/path.h"
#include "prov/providers.h"

#include <sys/types.h>

#define DUO_MEM_BYTES (16u << 20)

/* What both, and the test, can see. */
struct duo_shared {
	struct prov_addr addr[2];
	struct prov_offer offer[2];
	uint64_t mem_addr;
	uint64_t key;
	_Atomic uint32_t step[2]; /* how far each has come */
	_Atomic uint64_t imms[4]; /* that b counted, by value */
	_Atomic uint64_t fetched; /* bytes of an offer that b is in the middle of */
	_Atomic uint32_t over;    /* b may go */
	_Atomic int32_t pid_b;
	char text[PROV_TEXT_BYTES]; /* why one failed */
};

struct duo_side {
	struct duo_shared *shared;
	struct prov_dev *dev;
	struct prov_path *path;
	uint8_t *mem;
	bool up;
	bool down;
	wimm_status down_status;
	uint64_t done_ok;
	uint64_t cancelled;
	uint64_t cancelled_sent;
	uint64_t reading; /* of those cancelled, with PROV_CQE_READING */
};

/* false: the process ends with a failure; the text says why. */
typedef bool (*duo_fn)(struct duo_side *s);

struct duo {
	duo_fn before_a; /* NULL: nothing; run before the device is opened */
	duo_fn before_b;
	duo_fn act_a; /* once the path is up */
	duo_fn end_b; /* NULL: nothing; when a has ended */
	bool b_in_pid_namespace;
	bool refused; /* the path ends instead of coming up, on both sides; act_a is not run */
};

/* Runs both and fails the test unless both end well. */
void duo_run(const struct duo *duo);
bool duo_fail(struct duo_side *s, const char *what);
/* One turn of a device, its events counted. */
void duo_turn(struct duo_side *s);
/* A write of a's to the same place in b's memory. */
struct prov_wr duo_wr(const struct duo_side *s, uint64_t token, uint64_t off, uint64_t len,
                      uint32_t imm);

#endif
