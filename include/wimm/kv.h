/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WIMM_KV_H
#define WIMM_KV_H

/* KvCache transfer: a prefill process writes the K and V pages of a prompt into the pages of a
 * decode process, layer by layer while it computes on. docs/guide/kv.md shows a whole program.
 *
 * The decode side opens a receiver, which makes a request: bytes that any channel may carry to each
 * prefill rank. There a sender is opened on them; the application adds 1 to a watched word whenever
 * a layer's K and V of a chunk are final, and the pages leave. The decode side learns that all is
 * there from the number of immediates alone, which both sides compute with wimm_kv_count(). */

#include <wimm/imm.h>
#include <wimm/transfer.h>
#include <wimm/watcher.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
	WIMM_KV_GQA = 1, /* K and V a kv head; ranks share the heads out among them */
	WIMM_KV_MLA = 2, /* one latent row a token, the same on every rank; kv_heads is 1 */
} wimm_kv_kind;

/** The K and V of one rank inside its region. Dimension 0 of (layer, page, part, head, token) lies
 *  offset_bytes + layer * layer_stride_bytes + page * page_stride_bytes + part * part_stride_bytes
 *  + head * head_stride_bytes + token * token_stride_bytes into it; the dimensions of a head follow
 *  each other. Part 0 is K, part 1 is V (MLA: part 0 alone); heads count from the rank's first.
 *  The fields down to model_tag must agree on both sides, but for page_tokens; the others are each
 *  side's own. */
struct wimm_kv_layout {
	uint32_t size;
	wimm_kv_kind kind;
	uint32_t layers;             /* 1..4096 */
	uint32_t kv_heads;           /* of the whole model, 1..4096 */
	uint32_t head_dim;           /* 1..65536; MLA: the whole row */
	uint32_t elem_bytes;         /* 1..16 */
	uint32_t elem_type;          /* the application's number for the type of an element */
	uint32_t page_tokens;        /* 1..65536; each side's own */
	uint64_t model_tag;          /* the application's digest of what else must agree */

	uint32_t tp;                 /* ranks that share the model, 1..4096 */
	uint32_t tp_rank;            /* this one */
	uint64_t pages;              /* pages that this rank has, 1..2^32 */
	uint64_t offset_bytes;
	uint64_t layer_stride_bytes;
	uint64_t page_stride_bytes;
	uint64_t part_stride_bytes;
	uint64_t head_stride_bytes;
	uint64_t token_stride_bytes;
	uint64_t reserved[4];
};
#define WIMM_KV_LAYOUT_INIT { .size = sizeof(struct wimm_kv_layout) }

/** Set the strides of a cache without gaps, [layer][page][part][head][token], from the other
 *  fields.
 *  Returns: OK, E_INVAL (a field out of range, a rank that has no heads; words in *error, which may
 *  be NULL, as below).  Thread: any.  Blocks: no. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_kv_layout_pack(struct wimm_kv_layout *layout,
							 struct wimm_error_info *error);

/** Bytes from the region's start to the end of the last page, after all checks of the layout: its
 *  ranges, and that no two elements share a byte.
 *  Returns: OK, E_INVAL.  Thread: any.  Blocks: no. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_kv_layout_extent(const struct wimm_kv_layout *layout,
							   uint64_t *out_bytes,
							   struct wimm_error_info *error);

/** A hash of the fields that must agree on both sides; equal on every machine and version.
 *  Thread: any.  Blocks: no. */
WIMM_API uint64_t wimm_kv_layout_hash(const struct wimm_kv_layout *layout);

/** Whether pages can go from one cache to the other: the first field that differs is named with
 *  both values, as is a tensor-parallel pair that does not divide the heads.
 *  Returns: OK, E_MISMATCH, E_INVAL (one of them is none by itself).  Thread: any.  Blocks: no. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_kv_compare(const struct wimm_kv_layout *prefill,
						     const struct wimm_kv_layout *decode,
						     struct wimm_error_info *error);

/** Tokens of a unit, the greatest that pages of both sides are whole numbers of: a page where they
 *  are of one size. What travels is counted in units.  Thread: any.  Blocks: no. */
WIMM_API uint32_t wimm_kv_unit_tokens(const struct wimm_kv_layout *prefill,
				      const struct wimm_kv_layout *decode);

/** The heads that one decode rank gets from one prefill rank. */
struct wimm_kv_segment {
	uint32_t src_rank;
	uint32_t src_head;           /* counted from the prefill rank's first */
	uint32_t dst_head;           /* counted from the decode rank's first */
	uint32_t heads;
	uint32_t pieces;             /* writes that a unit's part takes: 1 where both sides hold the
				      * segment as one run in one order */
	uint32_t reserved;
	uint64_t piece_bytes;
};

/** The segments of decode->tp_rank, by rising dst_head; tp_rank of prefill is ignored. *out_count
 *  is their number, of which at most `room` are stored.
 *  Returns: OK, E_LIMIT (more than `room`), E_MISMATCH, E_INVAL.  Thread: any.  Blocks: no. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_kv_map(const struct wimm_kv_layout *prefill,
						 const struct wimm_kv_layout *decode,
						 struct wimm_kv_segment *out, uint32_t room,
						 uint32_t *out_count,
						 struct wimm_error_info *error);

#define WIMM_KV_ALL_RANKS 0xffffffffu

/** Immediates that decode->tp_rank counts for one request: one a layer, part, unit, segment and
 *  piece, and one for the tail. A request without any of them counts 1: its first sender then
 *  writes nothing but the immediate. src_rank: those of one prefill rank, or WIMM_KV_ALL_RANKS.
 *  units: those that travel (pages, where both sides' are of one size), the one in which the prompt
 *  ends like any other; with wimm_kv_receive_opts.group_units the groups of the others, and that
 *  one.  tail: not 0 if there is one; it comes from the first segment's rank.
 *  Returns: OK, E_LIMIT (2^63 passed), E_MISMATCH, E_INVAL.  Thread: any.  Blocks: no. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_kv_count(const struct wimm_kv_layout *prefill,
						   const struct wimm_kv_layout *decode,
						   uint64_t units, int tail, uint32_t src_rank,
						   uint64_t *out, struct wimm_error_info *error);

struct wimm_kv_cache;         /* opaque; the cache of one rank on one engine */
struct wimm_kv_receiver;      /* opaque; one request, on the decode side */
struct wimm_kv_sender;        /* opaque; one request, on the prefill side */
struct wimm_kv_watch;         /* opaque; a word that any number of senders follow */

/** How a request ended. Pointers are valid during the callback only. */
struct wimm_kv_done {
	wimm_status status;
	uint32_t imm;
	uint64_t request_id;
	uint64_t immediates;         /* receiver: counted; sender: of writes that were accepted */
	uint64_t bytes;              /* payload of these */
	const void *tail;            /* receiver: NULL without a tail */
	uint64_t tail_bytes;
	uint32_t first_token;        /* receiver: of the tail */
	uint32_t reserved;
	const char *text;            /* what went wrong, for people; "" when nothing did */
};

typedef void (*wimm_kv_done_fn)(void *context, const struct wimm_kv_done *done);

/** What a request says. Pointers lead into the bytes that were parsed. */
struct wimm_kv_request {
	uint32_t size;
	uint32_t imm;
	uint64_t id;
	uint64_t tokens;             /* of the whole prompt */
	uint64_t first_token;        /* the pages begin with it: decode has those before */
	uint64_t page_count;
	uint32_t tail;               /* not 0: a tail is wanted */
	uint32_t reserved32;
	uint64_t tail_room_bytes;    /* for what comes beside its first token */
	struct wimm_kv_layout decode;
	struct wimm_kv_layout prefill; /* as the decode side believes it */
	const void *note;            /* the application's own bytes */
	uint64_t note_bytes;
	uint64_t group_units;        /* units whose like pieces share an immediate; 1: none do */
	uint64_t reserved[3];
};
#define WIMM_KV_REQUEST_INIT { .size = sizeof(struct wimm_kv_request) }

/** Read a request.  Returns: OK, E_INVAL, E_PARSE, E_VERSION.  Thread: any.  Blocks: no. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_kv_request_parse(const void *data, uint64_t len_bytes,
							   struct wimm_kv_request *out);

/** A request has come as a message. The bytes are valid during the callback; keep a copy. */
typedef void (*wimm_kv_request_fn)(void *context, wimm_peer peer, const void *data,
				   uint64_t len_bytes);

struct wimm_kv_cache_opts {
	uint32_t size;
	uint32_t flags;              /* none defined */
	const struct wimm_kv_layout *layout;
	struct wimm_mr *region;      /* holds the layout; on the decode side open for peers */
	uint32_t max_requests;       /* open at a time; 0: 64 */
	uint32_t imm_first;          /* the cache's immediates are this and the max_requests - 1
				      * values after it (mod 2^32); nobody else uses them */
	uint64_t tail_room_bytes;    /* longest tail beside the first token, 0..2^30 */
	uint32_t messages;           /* buffers for messages, 0..1024. 0: the application has a pool
				      * of its own and calls wimm_kv_cache_message() */
	uint32_t message_bytes;      /* length of each; 0: 65536 */
	wimm_kv_request_fn on_request; /* NULL: requests that come as messages are dropped */
	void *context;
	uint64_t reserved[4];
};
#define WIMM_KV_CACHE_OPTS_INIT { .size = sizeof(struct wimm_kv_cache_opts) }

/** Take a region's pages into use. Both sides need a way for short messages: a failure on one side
 *  is told to the other that way.
 *  Returns: OK, E_INVAL, E_RANGE (the layout passes the region's end), E_NOMEM, E_LIMIT, E_CLOSED,
 *  E_FORKED; words in *error.
 *  Thread: any.  Blocks: as wimm_reg_mr().
 *  Owns: engine and region must outlive the cache. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_kv_cache_open(struct wimm_engine *engine,
							const struct wimm_kv_cache_opts *opts,
							struct wimm_kv_cache **out,
							struct wimm_error_info *error);

/** Give a cache up and set *cache to NULL, before its region and its engine are closed. Requests
 *  still open end with E_CLOSED, each reported once, at the latest inside wimm_engine_close();
 *  their handles stay to be closed, before the engine.
 *  Returns: OK (also when *cache is NULL), E_INVAL, E_FORKED.
 *  Thread: any, also callbacks.  Blocks: no. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_kv_cache_close(struct wimm_kv_cache **cache);

/** Hand over a message that came into a pool of the application's own.
 *  Returns: OK (it was for this cache), E_NOT_FOUND (it was not), E_PARSE (broken).
 *  Thread: any, also callbacks.  Blocks: no. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_kv_cache_message(struct wimm_kv_cache *cache,
							   wimm_peer peer, const void *data,
							   uint64_t len_bytes);

struct wimm_kv_receive_opts {
	uint32_t size;
	uint32_t flags;              /* none defined */
	const struct wimm_kv_layout *prefill; /* NULL: like this cache's own */
	uint64_t tokens;             /* of the prompt, 1..2^40 */
	uint64_t first_token;        /* prefix hit: tokens before it are here; whole pages */
	const uint32_t *pages;       /* copied. Page i takes tokens from first_token + i * page */
	uint64_t page_count;         /* exactly what the tokens need; 0 after a full prefix hit */
	int tail;                    /* not 0: a tail is wanted */
	uint32_t peer_count;         /* of peers: prefill.tp, or 0 */
	const wimm_peer *peers;      /* NULL, or the prefill ranks in order: losing one that still
				      * owes something fails the request at once */
	uint64_t deadline_us;        /* from now; 0: none */
	const void *note;            /* copied into the request for the prefill side */
	uint64_t note_bytes;
	wimm_kv_done_fn fn;          /* called once, on the callback thread */
	void *context;
	uint64_t group_units;        /* 1: an immediate a unit and piece. More: like pieces of so
				      * many units share one, neighbours are merged; they leave
				      * with the chunk that completes the group. 0: chosen, more
				      * for many small pages that lie in a row */
	uint8_t *arrived;            /* NULL, or page_count bytes: whether each page is here. 0 at
				      * first; all 1 when fn reports OK; of a request that failed
				      * as wimm_kv_receiver_close() says. Stays until then */
	uint64_t reserved[2];
};
#define WIMM_KV_RECEIVE_OPTS_INIT { .size = sizeof(struct wimm_kv_receive_opts) }

/** Expect a prompt's pages. OK means: the request is armed and its bytes may travel.
 *  fn reports OK when every page and the tail are readable here. It reports an error when the
 *  prefill side says that it failed or refused, when the deadline has passed or a peer was lost;
 *  pages may be written to then until wimm_kv_receiver_close() has reported.
 *  Returns: OK, AGAIN (max_requests are open, or the engine's queue is full), E_INVAL, E_RANGE (a
 *  page), E_MISMATCH, E_NOT_FOUND (a peer), E_NOMEM, E_CLOSED, E_FORKED; words in *error.
 *  Thread: any, also callbacks.  Blocks: no. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_kv_receiver_open(struct wimm_kv_cache *cache,
							   const struct wimm_kv_receive_opts *opts,
							   struct wimm_kv_receiver **out,
							   struct wimm_error_info *error);

/** The request, for every prefill rank. Valid until the receiver is closed.
 *  Thread: any.  Blocks: no. */
WIMM_API const void *wimm_kv_receiver_request(const struct wimm_kv_receiver *receiver,
					      uint64_t *out_bytes);

/** Immediates that the receiver waits for. Thread: any.  Blocks: no. */
WIMM_API uint64_t wimm_kv_receiver_count(const struct wimm_kv_receiver *receiver);

/** Give a receiver up and set *receiver to NULL. One that has not reported yet does so first, with
 *  E_CANCELLED or as it ended meanwhile, and the prefill ranks of `peers` are told. on_quiet (may
 *  be NULL) reports when its immediate is retired: no write of a session that is up can reach the
 *  pages any more. Of `peers` that were lost with the request it says in wimm_done.fence how the
 *  pages come back: CONFIRMED, all ranks have answered; FENCED, the paths of those that have not
 *  are closed; with E_QUARANTINED a lost rank, wimm_done.peer, may still write: the pages stay out
 *  of use until wimm_fence_peer() has another answer for each lost one. Without `peers` that is
 *  NONE.
 *  With OK, `arrived` is 1 by then for each page of a request that failed of which every layer is
 *  here and readable. Senders say so chunk by chunk, and once more when they fail; one that is lost
 *  takes its word with it. After E_QUARANTINED, and without on_quiet, `arrived` is left alone.
 *  Returns: OK (also when *receiver is NULL), E_CLOSED (the cache was closed: the receiver is gone,
 *  on_quiet is not called), E_INVAL, E_FORKED.
 *  Thread: any, also callbacks.  Blocks: no. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_kv_receiver_close(struct wimm_kv_receiver **receiver,
							    const struct wimm_on_done *on_quiet);

/** Open a word for senders to follow. It starts at 0.
 *  Returns: OK, E_INVAL, E_NOMEM, E_LIMIT, E_CLOSED, E_FORKED.  Thread: any.  Blocks: no. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_kv_watch_open(struct wimm_kv_cache *cache,
							struct wimm_kv_watch **out);

/** The word itself, for kernels and CUDA graphs. It is added to, never set.  Blocks: no. */
WIMM_API uint64_t *wimm_kv_watch_word(struct wimm_kv_watch *watch);

/** Add to the word from the CPU, with release order. Returns: its new value.
 *  Thread: any.  Blocks: no. */
WIMM_API uint64_t wimm_kv_watch_add(struct wimm_kv_watch *watch, uint64_t amount);

/** Give a word up and set *watch to NULL. Senders that still follow it fail with E_CANCELLED.
 *  Returns: OK (also when *watch is NULL), E_INVAL, E_FORKED.
 *  Thread: any, also callbacks.  Blocks: at most for a callback. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_kv_watch_close(struct wimm_kv_watch **watch);

#define WIMM_KV_FROM_VALUE 1u /* watch_value is given; else the word's present value */
#define WIMM_KV_AT_END 2u     /* send nothing before the last step: to measure what hiding saves */
#define WIMM_KV_CHUNKS_TOLD 4u /* chunks, and pages with them, come by wimm_kv_sender_chunk() */

struct wimm_kv_send_opts {
	uint32_t size;
	uint32_t flags;              /* WIMM_KV_* */
	const void *request;         /* copied */
	uint64_t request_bytes;
	const uint32_t *pages;       /* copied. From the page of this side that holds the request's
				      * first_token to that of its last one, in order; none where
				      * chunks are told */
	uint64_t page_count;
	uint64_t computed_token;     /* first token that is computed; those before are final */
	uint64_t chunk_tokens;       /* a chunk's; 0: all in one */
	struct wimm_kv_watch *watch; /* the word; NULL: one of the sender's own */
	uint64_t watch_value;        /* of the word before the first chunk's first layer */
	uint64_t deadline_us;        /* from now, for all of it; 0: none */
	wimm_kv_done_fn fn;          /* called once, on the callback thread */
	void *context;
	uint64_t reserved[4];
};
#define WIMM_KV_SEND_OPTS_INIT { .size = sizeof(struct wimm_kv_send_opts) }

/** Serve a request. Step s (from 0) is layer s mod layers of chunk s / layers, and its K and V are
 *  final when the word has reached the start value + s + 1. Values may be skipped: all steps up to
 *  the word's are sent then, each once, in order. With a step go the pages (units, groups of them)
 *  that its chunk completes; with the last chunk also the page that the prompt ends in, of which
 *  bytes beyond its last token are left alone.
 *  fn reports OK when the decode side has accepted everything, the tail too; on any failure nothing
 *  more is sent and the decode side is told why. A request refused here is told to it as well.
 *  Returns: OK, AGAIN, E_INVAL (lists of unequal length...), E_RANGE (a page), E_PARSE, E_VERSION,
 *  E_MISMATCH, E_UNSUPPORTED, E_NOMEM, E_LIMIT, E_CLOSED, E_FORKED; words in *error.
 *  Thread: any, also callbacks.  Blocks: for one turn of the worker.
 *  Owns: a page's bytes must not change from its step on until fn has reported. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_kv_sender_open(struct wimm_kv_cache *cache,
							 const struct wimm_kv_send_opts *opts,
							 struct wimm_kv_sender **out,
							 struct wimm_error_info *error);

/** Add to the sender's word, its own or the one it shares. Returns: its new value; 0 in a forked
 *  child, where nothing is added.  Thread: any.  Blocks: no. */
WIMM_API uint64_t wimm_kv_sender_bump(struct wimm_kv_sender *sender, uint64_t steps);

/** Tell a sender that was opened with WIMM_KV_CHUNKS_TOLD of its next chunk, of any length, before
 *  or after the word reaches its steps: for engines that choose chunks, and pages for them, as they
 *  go. The chunk makes tokens before end_token final; the one that ends with the prompt is last.
 *  pages  copied: the source of those pages of the request that begin before end_token and were not
 *  told with an earlier chunk.
 *  Returns: OK, E_INVAL, E_RANGE (a page), E_NOMEM, E_CLOSED (the sender has ended); words in
 *  *error.
 *  Thread: any, also callbacks; one at a time for a sender.  Blocks: no. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_kv_sender_chunk(struct wimm_kv_sender *sender,
							  uint64_t end_token,
							  const uint32_t *pages,
							  uint64_t page_count,
							  struct wimm_error_info *error);

/** Steps that the sender goes through: chunks (told so far) times layers.
 *  Thread: any.  Blocks: no. */
WIMM_API uint64_t wimm_kv_sender_steps(const struct wimm_kv_sender *sender);

/** Send the tail, once: the first token and up to tail_room_bytes of anything else, copied by the
 *  call. Every sender of a request that wants a tail makes this call; the one that serves the first
 *  segment sends it.
 *  Returns: OK, E_INVAL (no tail wanted, called before), E_TOO_LONG, E_CLOSED (the sender has
 *  ended), E_FORKED.
 *  Thread: any, also callbacks.  Blocks: no. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_kv_sender_tail(struct wimm_kv_sender *sender,
							 uint32_t first_token, const void *data,
							 uint64_t len_bytes);

/** End a sender because the computation failed: nothing more is sent, the decode side is told.
 *  status: negative.  text may be NULL.
 *  Returns: OK, E_INVAL, E_CLOSED (it has ended already), E_FORKED.
 *  Thread: any, also callbacks.  Blocks: no. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_kv_sender_fail(struct wimm_kv_sender *sender,
							 wimm_status status, const char *text);

/** Give a sender up and set *sender to NULL. One that has not reported yet is ended first, with
 *  E_CANCELLED, and reports once nothing reads its pages any more.
 *  Returns: OK (also when *sender is NULL), E_INVAL, E_FORKED.
 *  Thread: any, also callbacks.  Blocks: no. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_kv_sender_close(struct wimm_kv_sender **sender);

#ifdef __cplusplus
}
#endif
#endif
