/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WIMM_REGION_H
#define WIMM_REGION_H

#include <wimm/engine.h>

#ifdef __cplusplus
extern "C" {
#endif

struct wimm_mr;               /* opaque; one registration on one engine */
struct wimm_remote_mr;        /* opaque; a peer's region as this engine knows it */

#define WIMM_MR_DESC_MAX_BYTES 2048

/** What a peer needs to write into a region: bytes that any channel may carry. They hold the
 *  owner's address and instance, the region's length and its random generation. */
struct wimm_mr_desc {
	uint32_t len_bytes;
	uint8_t bytes[WIMM_MR_DESC_MAX_BYTES];
};

struct wimm_alloc_opts {
	uint32_t size;
	uint32_t flags;              /* none defined */
	uint64_t reserved[4];        /* zero */
};
#define WIMM_ALLOC_OPTS_INIT { .size = sizeof(struct wimm_alloc_opts) }

/** Allocate memory that peers on this machine can be given: registered with wimm_reg_mr(), whole
 *  or in part, a peer that holds the region's descriptor writes straight into it instead of having
 *  its bytes copied twice. It can be taken back from a peer at any time. Zero-filled, aligned to a
 *  page, huge pages asked for. It belongs to no engine; a child of a fork does not inherit it.
 *  Other memory may be registered just as well.
 *  len_bytes  1..2^61; rounded up to whole pages.   opts  NULL = defaults.
 *  Returns: OK, E_INVAL (NULL, length 0, unknown flag), E_NOMEM, E_SYSTEM (out of descriptors:
 *  wimm_last_error_text() has the reason). *out is set only on OK.
 *  Thread: any.  Blocks: no.  Owns: the caller, until wimm_free(). */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_alloc(uint64_t len_bytes,
						const struct wimm_alloc_opts *opts, void **out);

/** Give back what wimm_alloc() returned; NULL is fine.
 *  Returns: OK, E_INVAL (no such allocation), E_BUSY (a region of an engine lies in it), E_FORKED
 *  (the parent's).
 *  Thread: any.  Blocks: no. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_free(void *addr);

#define WIMM_MR_LOCAL_ONLY 1u /* a source only: no peer may write into it */
#define WIMM_MR_STRICT_ORDER 2u /* content is polled by the application: no relaxed ordering */

struct wimm_mr_opts {
	uint32_t size;
	uint32_t flags;              /* WIMM_MR_*; unknown bits are refused */
	uint64_t reserved[4];
};
#define WIMM_MR_OPTS_INIT { .size = sizeof(struct wimm_mr_opts) }

/** Make [addr, addr + len_bytes) usable for local and remote access. The same or overlapping ranges
 *  may be registered any number of times; each registration stands for itself. Memory of a GPU
 *  (CUDA: cuMemAlloc, cuMemMap and what is built on them) is found out by its address; pinned and
 *  managed memory count as the host's.
 *  len_bytes  1..2^63, no alignment needed.   opts  NULL = defaults.
 *  Returns: OK, E_INVAL (NULL, length 0, unknown flag), E_RANGE (the range wraps, or leaves a GPU's
 *  allocation), E_NOMEM, E_LOCK_LIMIT (memory-lock limit of a NIC; wimm_last_error_text() has the
 *  figures), E_LIMIT (max_regions), E_UNSUPPORTED, E_SYSTEM (a NIC or the driver refuses the
 *  memory), E_CLOSED, E_FORKED. *out is set only on OK; on failure no NIC keeps anything.
 *  Thread: any.  Blocks: yes, may pin pages.
 *  Owns: the caller keeps the range mapped until wimm_dereg_mr() has reported done. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_reg_mr(struct wimm_engine *engine, void *addr,
						 uint64_t len_bytes,
						 const struct wimm_mr_opts *opts,
						 struct wimm_mr **out);

/** End a registration: refuse new uses, wait until this engine's own operations on it have settled,
 *  tell every session and wait until each has drained and acknowledged or is fenced, release the
 *  keys, then report. The handle is dead when this returns OK.
 *  Returns: OK (accepted), E_INVAL (not of this engine, dead already), E_CLOSED, E_FORKED.
 *  Thread: any, also callbacks.  Blocks: no.
 *  Owns: the range must stay mapped until on_done. on_done may be NULL. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_dereg_mr(struct wimm_engine *engine, struct wimm_mr *mr,
						   const struct wimm_on_done *on_done);

/** The descriptor of a region, for peers.
 *  Returns: OK, E_INVAL, E_UNSUPPORTED (WIMM_MR_LOCAL_ONLY), E_FORKED.
 *  Thread: any.  Blocks: no. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_mr_get_desc(const struct wimm_mr *mr,
						      struct wimm_mr_desc *out);

/** Length in bytes of a registered region; 0 for NULL. Thread: any.  Blocks: no. */
WIMM_API uint64_t wimm_mr_len_bytes(const struct wimm_mr *mr);

/** Take a peer's descriptor into use; the peer is added if it is new. The first write through it
 *  asks the owner whether the region still stands.
 *  Returns: OK, E_INVAL, E_PARSE, E_VERSION, E_UNSUPPORTED (the owner uses another provider),
 *  E_LIMIT (max_peers), E_NOMEM, E_CLOSED, E_FORKED.
 *  Thread: any.  Blocks: for one turn of the worker. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_open_remote_mr(struct wimm_engine *engine,
							 const struct wimm_mr_desc *desc,
							 struct wimm_remote_mr **out);

/** Give a remote region back. Operations already accepted go on.
 *  Returns: OK, E_INVAL, E_FORKED.  Thread: any, also callbacks.  Blocks: no. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_close_remote_mr(struct wimm_engine *engine,
							  struct wimm_remote_mr *mr);

/** Length in bytes of a region that a peer granted. Thread: any.  Blocks: no. */
WIMM_API uint64_t wimm_remote_mr_len_bytes(const struct wimm_remote_mr *mr);

/** The peer that owns a remote region. Thread: any.  Blocks: no. */
WIMM_API wimm_peer wimm_remote_mr_peer(const struct wimm_remote_mr *mr);

#ifdef __cplusplus
}
#endif
#endif
