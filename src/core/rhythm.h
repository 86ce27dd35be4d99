/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CORE_RHYTHM_H
#define CORE_RHYTHM_H

/* When the next of several like events is to be expected: layers of a model come one after the
 * other, each about as long after the one before. One thread's. */

#include <stdint.h>

/* Nobody sleeps between events that follow closer, and one that is rarer is not waited for. EARLY
 * beside an eighth of the gap covers a sleep that lasts too long. */
#define RHYTHM_MIN_NS   50000
#define RHYTHM_MAX_NS   1000000000
#define RHYTHM_EARLY_NS 200000

struct rhythm {
	uint64_t seen_ns; /* the last one, */
	uint64_t gap_ns;  /* how long after the one before, */
	uint64_t gap_before_ns; /* and that after the one before it */
};

static inline void rhythm_note(struct rhythm *r, uint64_t now_ns)
{
	r->gap_before_ns = r->gap_ns;
	r->gap_ns = now_ns - r->seen_ns;
	r->seen_ns = now_ns;
}

/* Whether the last two gaps are alike. */
static inline int rhythm_is_steady(const struct rhythm *r)
{
	uint64_t most = r->gap_ns > r->gap_before_ns ? r->gap_ns : r->gap_before_ns;
	uint64_t least = r->gap_ns > r->gap_before_ns ? r->gap_before_ns : r->gap_ns;

	return most - least <= most / 4;
}

/* From when the next one is to be expected; 0: there is no telling. */
static inline uint64_t rhythm_from(const struct rhythm *r)
{
	uint64_t from_ns = r->seen_ns + r->gap_ns - r->gap_ns / 8;

	if (r->gap_ns < RHYTHM_MIN_NS || r->gap_ns > RHYTHM_MAX_NS)
		return 0;
	return from_ns - r->seen_ns > RHYTHM_EARLY_NS ? from_ns - RHYTHM_EARLY_NS : r->seen_ns + 1;
}

/* Until when it is to be expected, if now it is; else 0. */
static inline uint64_t rhythm_until(const struct rhythm *r, uint64_t now_ns)
{
	uint64_t from_ns = rhythm_from(r);
	uint64_t until_ns = r->seen_ns + r->gap_ns + r->gap_ns / 4;

	return from_ns != 0 && now_ns >= from_ns && now_ns <= until_ns ? until_ns : 0;
}

#endif
