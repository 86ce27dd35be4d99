/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_PROCS_PLAN_H
#define TESTS_PROCS_PLAN_H

/* What the processes of a run do in one round. It follows from the seed alone, so each of them
 * knows what the others write to it and how often each immediate comes. */

#include <stdbool.h>
#include <stdint.h>

#define PROCS_MAX  4u
#define SLOTS_MAX  256u
#define WRITES_MAX 64u
#define GROUPS_MAX 32u
#define REGION_BYTES (1u << 20)

enum write_kind { WRITE_SINGLE, WRITE_PAGED, WRITE_ONCE, WRITE_SCATTER, WRITE_PLAIN };

/* A range of one process's region that one write fills. */
struct slot {
	uint32_t to, off, len;
};

/* Slots [slot, slot + count): pages have equal lengths and distances, a scatter one a process. */
struct write {
	enum write_kind kind;
	uint32_t from, slot, count;
	uint32_t imm;
	bool confirmed;
};

/* How many immediates of a value come to one process. */
struct group {
	uint32_t to, imm;
	uint64_t count;
};

enum end { END_NONE, END_CLOSE, END_KILL };

struct plan {
	uint32_t procs;
	struct slot slot[SLOTS_MAX];
	uint32_t slots;
	struct write write[WRITES_MAX];
	uint32_t writes;
	struct group group[GROUPS_MAX];
	uint32_t groups;
	uint32_t message_to[PROCS_MAX]; /* each sends one, to this one; itself: none */
	enum end end;                   /* of process `victim`, once the round is over */
	uint32_t victim;
};

void plan_make(struct plan *p, uint64_t seed, uint32_t round, uint32_t procs, bool kills);
/* The bytes of a slot. */
void plan_fill(uint8_t *at, uint64_t seed, uint32_t round, uint32_t slot, uint32_t len);

#endif
