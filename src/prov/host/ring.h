/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROV_HOST_RING_H
#define PROV_HOST_RING_H

/* What two processes share for one path: two lanes, one a direction, each with one writing and one
 * reading process. A lane is a ring of entries and a ring of bytes. No lock: each word has one
 * writer (an offer's state has two, by compare-and-swap), so a process that dies or stops blocks
 * nobody. The other side may write anything into it at any time: an entry is copied out before it
 * is checked, and only counters of our own decide where we read and write. */

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HOST_RING_ENTRIES 1024u       /* a power of two */
#define HOST_RING_BYTES   (1u << 20)  /* a power of two */
#define HOST_PIECE_BYTES  (64u << 10) /* longest run of bytes in one entry */
#define HOST_INLINE_BYTES 16u         /* bytes that fit into the entry itself */
#define HOST_OFFER_BYTES  (1u << 30)  /* longest offer */
#define HOST_AREA_MAGIC   UINT64_C(0x32747368776d6977)
#define HOST_NONCE_BYTES  16u

enum host_entry_kind {
	HOST_ENTRY_INLINE = 1, /* the bytes are in the entry */
	HOST_ENTRY_SLOT,       /* the bytes are in the lane's byte ring */
	HOST_ENTRY_OFFER,      /* the receiver fetches them from the sender's memory */
	HOST_ENTRY_PLACED,     /* the sender has put them where they belong */
	HOST_ENTRY_CARD,       /* the receiver's GPU fetches what the byte ring describes there */
};

/* An offer between memory of GPUs: so it lies in the byte ring, perhaps over its end. The entry has
 * the target's key and where index 0 of it lies. */
struct host_card {
	uint64_t src_key;
	uint64_t src; /* of index 0, in the sender */
	uint64_t page_bytes;
	uint64_t count; /* of pages; 1.. */
	uint64_t src_stride;
	uint64_t dst_stride;
	uint64_t indexed; /* 0: one page, index 0; 1: all source, then all target indices follow */
	uint64_t zero;
};

#define HOST_CARD_PAGES ((HOST_PIECE_BYTES - (uint32_t)sizeof(struct host_card)) / 8)

/* Flags of an entry; the first two as in prov.h. */
#define HOST_ENTRY_IMM  1u
#define HOST_ENTRY_PART 2u
#define HOST_ENTRY_LAST 4u /* ends a work request; IMM and PART come with it only */

/* A decoded entry. */
struct host_entry {
	uint32_t kind;
	uint32_t flags;
	uint32_t len_bytes;
	uint32_t imm;
	uint64_t addr;
	uint64_t key;
	uint64_t op_seq;
	uint32_t parts; /* PLACED, CARD with IMM: how many immediates it stands for; 0, 1: one */
	uint64_t src; /* OFFER: address in the sender; SLOT, CARD: running position of its bytes */
	uint64_t inlined[HOST_INLINE_BYTES / 8];
};

/* As it lies in shared memory:
 *   0  u32 sequence (position + 1), u8 kind, u8 flags: stored last
 *   1  u32 length, u32 immediate      2 address      3 key      4 op_seq      5 parts
 *   6  source, or inline bytes 0..7   7 state of an offer, or inline bytes 8..15 */
struct host_slot {
	_Alignas(64) _Atomic uint64_t word[8];
};

struct host_lane {
	_Alignas(128) _Atomic uint64_t acked;   /* entries placed; the reading side writes */
	_Alignas(128) _Atomic uint64_t gate;    /* see share.h; the reading side writes */
	_Alignas(128) _Atomic uint64_t writing; /* see share.h; the writing side writes */
	_Alignas(128) struct host_slot slot[HOST_RING_ENTRIES];
	_Alignas(4096) uint8_t bytes[HOST_RING_BYTES];
};

/* One side's word for the other. */
struct host_bell {
	_Alignas(128) _Atomic uint32_t sleeping; /* set before sleeping: the other side must ring */
};

struct host_area {
	_Atomic uint64_t magic;
	_Atomic uint64_t nonce[2][HOST_NONCE_BYTES / 8]; /* by side, written by the other one */
	struct host_bell bell[2];                        /* by side; 0 dials */
	struct host_lane lane[2];                        /* by the side that writes entries */
};

enum host_slot_look {
	HOST_SLOT_EMPTY,
	HOST_SLOT_FULL,
	HOST_SLOT_BROKEN, /* what lies there no sender of ours writes */
};

enum host_slot_end {
	HOST_SLOT_TAKEN,   /* too late: the receiver has fetched it all and counts it */
	HOST_SLOT_FREE,    /* it is neither read nor counted */
	HOST_SLOT_READING, /* not counted, but read until the receiver has passed the entry */
};

/* Sending side. */
void host_slot_put(struct host_slot *slot, uint32_t pos, const struct host_entry *entry);
/* Take an offer back. */
enum host_slot_end host_slot_withdraw(struct host_slot *slot, uint32_t pos);

/* Receiving side. */
enum host_slot_look host_slot_get(const struct host_slot *slot, uint32_t pos,
                                  struct host_entry *out);
/* Before an offer is fetched, each time. False: it was withdrawn, its source may be gone. */
bool host_slot_begin(struct host_slot *slot, uint32_t pos);
/* Whether one that was begun has been withdrawn since. */
bool host_slot_withdrawn(const struct host_slot *slot, uint32_t pos);
/* The bytes of an offer are here: may it be counted? False: it was withdrawn. */
bool host_slot_take(struct host_slot *slot, uint32_t pos);

/* Into and out of the byte ring at a running position, whatever lies there. */
void host_bytes_put(struct host_lane *lane, uint64_t pos, const void *from, uint64_t bytes);
void host_bytes_get(const struct host_lane *lane, uint64_t pos, void *to, uint64_t bytes);

static inline struct host_slot *host_slot_at(struct host_lane *lane, uint32_t pos)
{
	return &lane->slot[pos & (HOST_RING_ENTRIES - 1)];
}

/* Whether something may lie there; cheap. */
static inline bool host_slot_hint(const struct host_lane *lane, uint32_t pos)
{
	const struct host_slot *slot = &lane->slot[pos & (HOST_RING_ENTRIES - 1)];

	/* A hint: host_slot_get() looks again with the order it needs. */
	return (uint32_t)atomic_load_explicit(&slot->word[0], memory_order_relaxed) == pos + 1;
}

#endif
