/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WIMM_TRANSFER_H
#define WIMM_TRANSFER_H

#include <wimm/region.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Flags of submissions. Unknown bits are refused. */
#define WIMM_IMM 1u           /* carry the immediate `imm` (every 32-bit value is legal) */
#define WIMM_IMM_ONCE 2u      /* paged writes: one immediate after all pages, not one a page. Needs
			       * WIMM_IMM */
#define WIMM_CONFIRMED 4u     /* done means: the receiver's engine has counted it, not only acked.
			       * Needs WIMM_IMM */
#define WIMM_BLOCK 8u         /* wait for room, until the deadline, instead of returning AGAIN; not
			       * in callbacks */
#define WIMM_PIN_NIC 16u      /* use the local NIC `nic_index` only */
#define WIMM_AFTER_STREAM 32u /* begin when all that a CUDA stream holds at the call is done;
			       * nothing waits in the stream for it. 0, 1 and 2 are CUDA's default
			       * streams, of the source's card */

/** One contiguous write. */
struct wimm_write {
	uint32_t size;
	uint32_t flags;
	uint32_t imm;
	uint32_t nic_index;
	const struct wimm_mr *src;
	const struct wimm_remote_mr *dst;
	uint64_t src_offset_bytes;
	uint64_t dst_offset_bytes;
	uint64_t len_bytes;          /* 0..; 0 carries only the immediate */
	uint64_t deadline_us;        /* from now; 0 = none */
	void *stream;                /* with WIMM_AFTER_STREAM: that one; else NULL */
	uint64_t reserved[1];
};
#define WIMM_WRITE_INIT { .size = sizeof(struct wimm_write) }

/** A list of pages inside one region: page i lies at offset_bytes + indices[i] * stride_bytes. */
struct wimm_pages {
	const uint32_t *indices;     /* copied by the call */
	uint64_t count;              /* 0..2^32 - 1 */
	uint64_t stride_bytes;       /* of a source not 0; of a destination a page at least */
	uint64_t offset_bytes;
};

struct wimm_page_list;         /* opaque; indices of both sides, kept for many writes */

/** count pages of page_len_bytes each, source page i to destination page i. */
struct wimm_paged_writes {
	uint32_t size;
	uint32_t flags;
	uint32_t imm;
	uint32_t nic_index;
	const struct wimm_mr *src;
	const struct wimm_remote_mr *dst;
	struct wimm_pages src_pages;
	struct wimm_pages dst_pages;
	uint64_t page_len_bytes;
	uint64_t deadline_us;        /* from now; 0 = none */
	void *stream;                /* as in struct wimm_write */
	/* NULL, or what both sides' indices are entries of, from list_first on and so many as the
	 * counts say; `indices` is not read then */
	const struct wimm_page_list *list;
	uint64_t list_first;
	uint64_t reserved[1];
};
#define WIMM_PAGED_WRITES_INIT { .size = sizeof(struct wimm_paged_writes) }

/** One slice of a source region to one peer's region. */
struct wimm_scatter_entry {
	const struct wimm_remote_mr *dst;
	uint64_t src_offset_bytes;
	uint64_t dst_offset_bytes;
	uint64_t len_bytes;
};

struct wimm_peer_group;       /* opaque; a fixed list of peers */

struct wimm_scatter {
	uint32_t size;
	uint32_t flags;
	uint32_t imm;
	uint32_t nic_index;
	const struct wimm_mr *src;
	const struct wimm_peer_group *group; /* NULL: none. Else entry i goes to its peer i */
	const struct wimm_scatter_entry *entries; /* copied by the call */
	uint64_t count;              /* 0..2^32 - 1; none: done at once */
	uint64_t deadline_us;        /* from now; 0 = none */
	void *stream;                /* as in struct wimm_write */
	uint64_t reserved[1];
};
#define WIMM_SCATTER_INIT { .size = sizeof(struct wimm_scatter) }

/** Write one slice. One immediate is counted, however the slice is split over NICs.
 *  on_done may be NULL; out_op (may be NULL) receives the operation's id.
 *  Returns: OK (accepted: settles exactly once), AGAIN (no room; nothing changed), E_INVAL, E_RANGE
 *  (either side, figures in wimm_last_error_text()), E_LIMIT (pages too long for
 *  the provider, more than 2^32 - 1 entries), E_REVOKED, E_PEER_LOST, E_PEER_RESTARTED (the text
 *  names both instances), E_NOMEM, E_CLOSED, E_FORKED; with WIMM_AFTER_STREAM also E_UNSUPPORTED
 *  (no CUDA in use, a stream that is being captured into a graph), E_SYSTEM.
 *  Thread: any, also callbacks (without WIMM_BLOCK).  Blocks: only with WIMM_BLOCK.
 *  Owns: the source bytes must not change, and stay registered, until the operation has settled.
 *  Settled with E_QUARANTINED, which only provider "host" says: the write has failed, but a peer
 *  that was stopped while it fetched may read the source when it goes on. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_submit_single_write(struct wimm_engine *engine,
							      const struct wimm_write *write,
							      const struct wimm_on_done *on_done,
							      wimm_op *out_op);

/** Write pages. Counts one immediate a page, or one in all with WIMM_IMM_ONCE. The two lists have
 *  equal length; destination pages of one list may not overlap by stride. No page: done at once.
 *  With WIMM_IMM_ONCE or without WIMM_IMM, pages that follow each other on both sides are merged.
 *  Returns, Thread, Blocks, Owns: as wimm_submit_single_write(); AGAIN also when the copied index
 *  arrays in flight would pass the setting WIMM_INDEX_BYTES_LIMIT. */
WIMM_API WIMM_MUST_CHECK wimm_status
wimm_submit_paged_writes(struct wimm_engine *engine, const struct wimm_paged_writes *writes,
			 const struct wimm_on_done *on_done, wimm_op *out_op);

/** Keep the indices of both sides for paged writes to come, which then neither copy nor look at
 *  them, so that a list of thousands costs no more than one of ten: each write checks the greatest.
 *  src: the region that they will be read from, or one on the same device. Not counted against
 *  WIMM_INDEX_BYTES_LIMIT, unless a write merges pages and copies its part to do so.
 *  Returns: OK, E_INVAL, E_LIMIT (more than 2^32 - 1), E_NOMEM, E_FORKED.
 *  Thread: any.  Blocks: no, but the first for memory of a GPU may pin some.
 *  Owns: both arrays are copied. */
WIMM_API WIMM_MUST_CHECK wimm_status
wimm_page_list_open(struct wimm_engine *engine, const struct wimm_mr *src,
		    const uint32_t *src_indices, const uint32_t *dst_indices, uint64_t count,
		    struct wimm_page_list **out);

/** Give a list back and set *list to NULL. Writes that were accepted with it keep it until they
 *  have settled. May come after the engine's close. NULL is nothing.  Thread: any.  Blocks: no. */
WIMM_API void wimm_page_list_close(struct wimm_page_list **list);

/** Write slices of one region to many peers. Counts one immediate an entry at its peer. With a
 *  group the number of entries must equal its size.
 *  Returns, Thread, Blocks, Owns: as wimm_submit_single_write(). */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_submit_scatter(struct wimm_engine *engine,
							 const struct wimm_scatter *scatter,
							 const struct wimm_on_done *on_done,
							 wimm_op *out_op);

/** Peers to tell, each by one of its regions. */
struct wimm_barrier_args {
	uint32_t size;
	uint32_t flags;              /* WIMM_CONFIRMED, WIMM_BLOCK; WIMM_IMM is implied */
	uint32_t imm;
	uint32_t reserved32;         /* zero */
	const struct wimm_peer_group *group; /* NULL, or of `count` peers: dst[i] is its peer i's */
	const struct wimm_remote_mr *const *dst; /* copied by the call */
	uint64_t count;              /* 0..2^32 - 1; none: done at once */
	uint64_t deadline_us;        /* from now; 0 = none */
	uint64_t reserved[2];
};
#define WIMM_BARRIER_ARGS_INIT { .size = sizeof(struct wimm_barrier_args) }

/** Send one immediate, without payload, to the owner of each region.
 *  Returns, Thread, Blocks: as wimm_submit_single_write(). */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_submit_barrier(struct wimm_engine *engine,
							 const struct wimm_barrier_args *args,
							 const struct wimm_on_done *on_done,
							 wimm_op *out_op);

/** A fixed list of peers, looked up once. A peer may be named twice and then counts twice.
 *  count 1..65536.  Returns: OK, E_INVAL, E_NOT_FOUND (no such peer), E_LIMIT, E_NOMEM, E_FORKED.
 *  Thread: any.  Blocks: for one turn of the worker. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_add_peer_group(struct wimm_engine *engine,
							 const wimm_peer *peers, uint64_t count,
							 struct wimm_peer_group **out);

/** Give a group back. Operations already accepted go on. The handle is dead afterwards: later use
 *  is refused with E_INVAL, unless 64 others have been removed since, when it may be another's.
 *  Returns: OK, E_INVAL, E_FORKED.  Thread: any.  Blocks: no. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_remove_peer_group(struct wimm_engine *engine,
							    struct wimm_peer_group *group);

struct wimm_barrier;          /* opaque; rounds over a group */

/** A barrier among this engine and `args->count` peers that open it alike. It alternates two
 *  immediate values, which must be used for nothing else; args->imm and args->deadline_us are
 *  ignored. flags: WIMM_CONFIRMED. The group, if there is one, stays until the barrier is closed.
 *  Returns: OK, E_INVAL (values equal, no peers), E_LIMIT (65536 peers), E_REVOKED, E_PEER_LOST,
 *  E_PEER_RESTARTED, E_NOMEM, E_CLOSED, E_FORKED.  Thread: any.  Blocks: no.
 *  Owns: the remote regions stay open until wimm_barrier_close(). */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_barrier_open(struct wimm_engine *engine,
						       const struct wimm_barrier_args *args,
						       const uint32_t imms[2],
						       struct wimm_barrier **out);

/** Enter the next round; on_done when all have entered it. A round that fails ends the barrier:
 *  later calls return its status. AGAIN: nothing has happened, nobody was told.
 *  deadline_us  from now; 0 = none.
 *  Returns: OK, AGAIN, E_INVAL, E_BUSY (the round before has not fired), E_NOMEM, E_CLOSED,
 *  E_PEER_LOST, E_FORKED.  Thread: any, also callbacks.  Blocks: no. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_barrier_enter(struct wimm_barrier *barrier,
							uint64_t deadline_us,
							const struct wimm_on_done *on_done);

/** Close a barrier, before its engine. A round under way is cancelled; its on_done still comes.
 *  Returns: OK, E_INVAL, E_FORKED.  Thread: any.  Blocks: no. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_barrier_close(struct wimm_barrier *barrier);

/** A message. The bytes are copied by the call. */
struct wimm_send {
	uint32_t size;
	uint32_t flags;              /* WIMM_BLOCK */
	wimm_peer peer;
	const void *data;
	uint64_t len_bytes;          /* 0..setting WIMM_MAX_MSG_BYTES */
	uint64_t deadline_us;        /* from now; 0 = none */
	uint64_t reserved[2];
};
#define WIMM_SEND_INIT { .size = sizeof(struct wimm_send) }

/** Send a message; done when the peer has put it into one of its receive buffers. Messages of one
 *  peer may overtake each other. A peer without a free buffer delays the message, nothing is lost;
 *  a message longer than the buffer it meets fails with E_TOO_LONG.
 *  Returns: OK, AGAIN, E_INVAL, E_TOO_LONG, E_PEER_LOST, E_NOMEM, E_CLOSED, E_FORKED.
 *  Thread: any, also callbacks.  Blocks: only with WIMM_BLOCK.  Owns: nothing of the caller's. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_submit_send(struct wimm_engine *engine,
						      const struct wimm_send *send,
						      const struct wimm_on_done *on_done,
						      wimm_op *out_op);

struct wimm_recv_buffer {
	void *addr;
	uint64_t len_bytes;
};

/** A message has arrived (status OK), or the buffer comes back for good (E_CANCELLED, E_CLOSED). */
struct wimm_received {
	wimm_status status;
	wimm_op op;                  /* of wimm_submit_recvs() */
	wimm_peer peer;              /* the sender; 0 when the buffer comes back */
	void *addr;
	uint64_t len_bytes;
};

typedef void (*wimm_recv_fn)(void *context, const struct wimm_received *received);

/** Give buffers to the engine for messages from any peer. After each callback the buffer takes the
 *  next message. Cancelling the operation, or close, brings each buffer back through fn once.
 *  count 1..65536.  Returns: OK, AGAIN, E_INVAL, E_NOMEM, E_CLOSED, E_FORKED.
 *  Thread: any, also callbacks.  Blocks: no.  Owns: the engine holds the buffers until they are
 *  brought back; the caller may read one during its callback. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_submit_recvs(struct wimm_engine *engine,
						       const struct wimm_recv_buffer *buffers,
						       uint64_t count, wimm_recv_fn fn,
						       void *context, wimm_op *out_op);

#ifdef __cplusplus
}
#endif
#endif
