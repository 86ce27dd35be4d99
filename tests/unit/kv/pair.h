/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_KV_PAIR_H
#define TESTS_UNIT_KV_PAIR_H

/* Caches on engines of one process: some prefill ranks and some decode ranks, each with an engine
 * of its own and a region filled with a pattern. After kv_close() no memory of the library is
 * left. */

#include "lib/test.h"

#include "prov/sim/sim.h"

#include <wimm/kv.h>

#define RANKS_MAX 8
#define TAIL_ROOM 512

/* How one request ended; filled under a lock by its callback. */
struct kv_result {
	uint32_t calls;
	wimm_status status;
	uint32_t imm;
	uint64_t immediates, bytes, tail_bytes;
	uint32_t first_token;
	uint8_t tail[TAIL_ROOM];
	char text[WIMM_ERROR_TEXT_BYTES];
};

struct kv_side {
	struct wimm_engine *engine;
	struct wimm_kv_layout layout;
	uint8_t *mem;
	uint64_t bytes;
	struct wimm_mr *mr;
	struct wimm_kv_cache *cache;
	/* The last request that came as a message. */
	uint8_t request[8192];
	uint64_t request_bytes;
	uint32_t requests;
	wimm_peer from;
};

struct kv_pair {
	struct sim_world *world;
	struct kv_side prefill[RANKS_MAX], decode[RANKS_MAX];
	uint32_t prefill_tp, decode_tp;
	bool two_nics; /* of each engine, sim only */
	uint32_t nics; /* opened so far; of sim they count from 1, prefill first */
	uint64_t kv_blocks, mem_blocks;
	const char *provider; /* NULL: "sim" in a world of this pair's */
	uint32_t max_requests;
	uint64_t tokens; /* that kv_check_pages() looks for; 0: all there is room for */
	bool driven;
};

/* Small: 4 layers, 4 heads, 8 dimensions of 2 bytes, pages of 4 tokens, 16 of them. */
struct wimm_kv_layout kv_small(uint32_t tp, uint32_t rank);

/* Everything up to the caches. The fields of *p before are the wishes; layout may be NULL. */
void kv_open(struct kv_pair *p, uint32_t prefill_tp, uint32_t decode_tp, const struct sim_cfg *cfg,
             const struct wimm_kv_layout *layout);
void kv_side_open(struct kv_pair *p, struct kv_side *s, const struct wimm_kv_layout *layout);
void kv_side_close(struct kv_side *s);
void kv_close(struct kv_pair *p);
/* Fill the cache with what only this seed and place have; never 0xee. */
void kv_fill(struct kv_side *s, uint64_t seed);
/* Byte of a place of a rank's cache. */
uint8_t *kv_at(struct kv_side *s, uint32_t layer, uint32_t page, uint32_t part, uint32_t head,
               uint32_t token);
/* The prefill side's byte of a head of the model, whichever rank has that head. */
const uint8_t *kv_source(struct kv_pair *p, uint32_t layer, uint32_t page, uint32_t part,
                         uint32_t head, uint32_t token);

/* Requests that came as messages; what came last may be read afterwards. */
uint32_t kv_requests(struct kv_side *s);

void kv_result_init(struct kv_result *r);
void kv_on_done(void *context, const struct wimm_kv_done *done);
/* Wait for the callback, then require the status. */
void kv_wait(struct kv_pair *p, struct kv_result *r, wimm_status status);
bool kv_there(struct kv_result *r);
/* Wait until cond holds, driving the engines where the caller has to. */
void kv_until(struct kv_pair *p, bool (*cond)(void *arg), void *arg);

/* Options with the callback set. */
struct wimm_kv_receive_opts kv_receive_opts(struct kv_result *r, uint64_t tokens,
                                            const uint32_t *pages, uint64_t page_count);
struct wimm_kv_send_opts kv_send_opts(struct kv_result *r, struct wimm_kv_receiver *receiver,
                                      const uint32_t *pages, uint64_t page_count);
/* Whether decode rank `rank` has in its pages what the prefill ranks have in theirs, and 0xee
 * everywhere else. */
void kv_check_pages(struct kv_pair *p, uint32_t rank, const uint32_t *src_pages,
                    const uint32_t *dst_pages, uint64_t page_count);

#endif
