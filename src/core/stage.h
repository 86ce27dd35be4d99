/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CORE_STAGE_H
#define CORE_STAGE_H

/* Memory of a GPU over paths that do not reach it: the bytes go through pinned slots of both hosts.
 * The sender packs pages into a slot of its own (stage_tx.c), writes it into a slot that the
 * receiver has lent it, and the receiver copies from there to where it belongs, counts, and says so
 * (stage_rx.c). Up to STAGE_SLOTS are under way, over all paths of the peer, so that copies and
 * links work at the same time; they are counted in the order of their numbers, however they come.
 * A slot begins with what lies in it, all little endian:
 *   u32 magic, u32 number, u32 region slot, u32 generation, u32 pieces, u32 immediate, u32 how many
 *   of it, u32 zero, u64 bytes; then for each piece u64 offset in the region, u64 length; then the
 *   bytes.
 * docs/decisions/0011-staging.md has the reasons. */

#include "core/worker.h"
#include "mem/cuda_queue.h"

#define STAGE_SLOTS       16u
#define STAGE_BYTES       (1u << 20) /* of payload in a slot */
#define STAGE_PIECES      1024u
#define STAGE_HEAD_BYTES  40u
#define STAGE_PIECE_BYTES 16u
#define STAGE_STRIDE      (STAGE_BYTES + STAGE_HEAD_BYTES + STAGE_PIECES * STAGE_PIECE_BYTES)
#define STAGE_MAGIC       0x32475453u
#define STAGE_NUMBER_AT   4u /* in the head */
/* In op_seq of the PROV_PART of a slot. */
#define STAGE_SEQ  (UINT64_C(1) << 63)
#define STAGE_DEVICES 16
/* Slots lent to one peer, those that were taken back and not acknowledged included. */
#define STAGE_AREAS_MAX 4u

/* The slots of one direction of one peer. */
struct stage_mem {
	uint8_t *base;
	bool pinned;
	struct wimm_mr *mr;
	_Atomic uint32_t *areas; /* of the peer they are lent to; NULL: they are this side's */
};

/* What names a slot: of which area it is, by the region's place and generation, and its number. */
static inline uint64_t stage_seq(uint32_t region_slot, uint32_t generation, uint32_t index)
{
	return STAGE_SEQ | (uint64_t)(generation & 0x7fffffff) << 32 |
	       (uint64_t)(region_slot & 0x0fffffff) << 4 | index;
}

/* Worker only, all of it. */
/* areas: counts those of a peer until they are free; NULL: for this side's own use. */
bool stage_mem_open(struct worker *w, struct stage_mem *mem, _Atomic uint32_t *areas);
void stage_mem_close(struct worker *w, struct stage_mem *mem);
/* The queue of a device for one direction; NULL: *why says why. */
struct cuda_queue *stage_queue(struct worker *w, bool to_device, int device, const char **why);
void stage_fini(struct worker *w) ON_WORKER;
/* This peer has something to step. */
void stage_busy(struct worker *w, struct peer *p);
/* A turn; how much there was to do, copies under way too. */
uint32_t stage_step(struct worker *w) ON_WORKER;
void stage_peer_down(struct worker *w, struct peer *p) ON_WORKER;
/* It is down, and no path of its reads or writes any slot. */
void stage_peer_closed(struct worker *w, struct peer *p);
/* Now and then: whether the device has failed, so that no ticket of its comes any more. */
bool stage_fault(struct worker *w, struct cuda_queue *queue) ON_WORKER;
void stage_message(struct worker *w, struct peer *p, const struct wire_msg *m) ON_WORKER;

/* --- stage_tx.c --- */
/* Take a leg over. False: not with this peer. */
bool stage_leg(struct worker *w, struct leg *leg) ON_WORKER;
void stage_done(struct worker *w, struct path *path, const struct prov_cqe *c) ON_WORKER;
void stage_area(struct worker *w, struct peer *p, const struct wire_msg *m) ON_WORKER;
void stage_landed(struct worker *w, struct peer *p, const struct wire_msg *m) ON_WORKER;
uint32_t stage_tx_step(struct worker *w, struct peer *p) ON_WORKER;
/* The operation is given up: nothing of its source is read after this. */
void stage_abort(struct worker *w, struct op *op);
/* Fail what is not in a slot yet, of writes into one region or all. */
void stage_fail(struct worker *w, struct peer *p, const struct wimm_remote_mr *region,
                wimm_status status, const char *text) ON_WORKER;
/* The peer wants nothing more: nor is posted what lies in slots. */
void stage_stop(struct worker *w, struct peer *p, wimm_status status, const char *text) ON_WORKER;
void stage_tx_down(struct worker *w, struct peer *p) ON_WORKER;
void stage_tx_closed(struct worker *w, struct peer *p);

/* --- stage_rx.c --- */
void stage_asked(struct worker *w, struct peer *p) ON_WORKER;
void stage_arrived(struct worker *w, struct path *path, const struct prov_cqe *c) ON_WORKER;
uint32_t stage_rx_step(struct worker *w, struct peer *p) ON_WORKER;
void stage_rx_down(struct worker *w, struct peer *p) ON_WORKER;

#endif
