/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TOOLS_LIB_SPEC_H
#define TOOLS_LIB_SPEC_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>

enum spec_op { OP_WRITE, OP_PAGED, OP_SCATTER, OP_BARRIER, OP_SEND, OP_COUNT };

/* What both sides of a run have to know; the client decides, the target hears it in the hello.
 *
 * An iteration is one request of `batch` blocks: `batch` single writes, one paged write of `batch`
 * pages, one scatter of `batch` entries, one barrier to `batch` targets, `batch` messages. */
struct spec {
	enum spec_op op;
	char provider[32];
	uint64_t block_bytes;
	uint64_t batch;
	uint64_t iters;
	uint64_t warmup;
	uint64_t check_iters;  /* of each writer in the validating passes; 0: none, see below */
	uint64_t depth;        /* iterations in flight */
	uint64_t buffer_bytes; /* memory that is walked over, each of source and destination */
	uint64_t seed;
	double seconds; /* instead of iters; 0: not */
	bool both_ways;
	bool confirmed; /* done means counted by the receiver, not only acknowledged */
	bool once;      /* paged: one immediate a request, not one a page */
	bool shuffle;   /* destination blocks in another order than source blocks */
	bool check_all; /* the client's alone: check_iters is as many as a writer made */
	bool caller;    /* the tool drives the engine with wimm_progress() */
};

const char *spec_op_name(enum spec_op op);
bool spec_op_find(const char *name, enum spec_op *out);
/* What is wrong with it, in words that name the option; NULL: nothing. Static. */
const char *spec_fault(const struct spec *spec);

cJSON *spec_to_json(const struct spec *spec);
void spec_from_json(const cJSON *object, struct spec *out); /* dies of faults */

/* Bytes and messages of one iteration; immediates the receiver counts for it (not OP_SEND). */
uint64_t spec_iter_bytes(const struct spec *spec);
uint64_t spec_iter_imms(const struct spec *spec);
/* Iterations whose blocks fit into the buffer side by side. */
uint64_t spec_slots(const struct spec *spec);

#endif
