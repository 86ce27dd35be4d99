/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WIMM_CUDA_H
#define WIMM_CUDA_H

#include <wimm/region.h>

#ifdef __cplusplus
extern "C" {
#endif

/* For programs that use CUDA. Nothing of it is needed to build with this header: a stream is a
 * CUstream or cudaStream_t as a pointer. A write waits for one with WIMM_AFTER_STREAM. */

/** A stream of the engine's own on a card, for others to order their work before: whatever they
 *  make it wait for (cudaStreamWaitEvent(), DLPack's `stream`) comes before a write that is
 *  submitted after it with WIMM_AFTER_STREAM. One that holds nothing is given as long as there are
 *  any, of 32 a card, so that what one holds does not delay another's write. Do not destroy it.
 *  device  0.., as CUDA numbers the cards for this process.
 *  Returns: OK, E_INVAL, E_UNSUPPORTED (this process has no CUDA in use, or no such card;
 *  wimm_last_error_text() says which), E_CLOSED, E_FORKED. *out_stream is set only on OK.
 *  Thread: any.  Blocks: no.  Owns: the engine, until it is closed. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_cuda_stream(struct wimm_engine *engine, int device,
						      void **out_stream);

/** A 64-bit word that kernels of one card and the host share: the flag of an operation
 *  (wimm_on_done.flag) that releases a kernel, or a mirror (wimm_mirror_enable()). Where GDRCopy is
 *  there it lies in the card's memory, so that a kernel that waits for it stays within the card;
 *  else in pinned memory of the host. */
struct wimm_gpu_word {
	uint32_t size;      /* in: sizeof the caller's struct */
	uint32_t in_card;   /* 1: in the card's memory, and then the two addresses differ */
	uint64_t *host;     /* for the host, and for wimm; not for kernels */
	uint64_t gpu;       /* for kernels, and streams: cuStreamWaitValue64() */
	uint64_t reserved[2];
};
#define WIMM_GPU_WORD_INIT { .size = sizeof(struct wimm_gpu_word) }

/** Allocate such a word, 0 at first. The host writes it with wimm_gpu_word_store() alone.
 *  device  0.., as CUDA numbers the cards for this process.
 *  Returns: OK, E_INVAL, E_UNSUPPORTED (this process has no CUDA in use, or no such card), E_NOMEM,
 *  E_FORKED. *out is written only on OK.
 *  Thread: any.  Blocks: for the driver.  Owns: the caller, until wimm_free_gpu_word(); no
 *  operation, mirror or kernel uses it then. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_alloc_gpu_word(struct wimm_engine *engine, int device,
							 struct wimm_gpu_word *out);

/** Free a word by its `host`; NULL is fine.  Thread: any.  Blocks: for the driver. */
WIMM_API void wimm_free_gpu_word(uint64_t *host);

/** Store into any word that kernels look at, in a card or in the host, with release order: what was
 *  written before is there when a kernel sees it.  Thread: any.  Blocks: no. */
WIMM_API void wimm_gpu_word_store(uint64_t *host, uint64_t value);

/** The card whose memory a region is, as CUDA numbers it for this process; -1: memory of the host,
 *  or NULL.  Thread: any.  Blocks: no. */
WIMM_API int wimm_mr_cuda_device(const struct wimm_mr *mr);

#ifdef __cplusplus
}
#endif
#endif
