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

/** The card whose memory a region is, as CUDA numbers it for this process; -1: memory of the host,
 *  or NULL.  Thread: any.  Blocks: no. */
WIMM_API int wimm_mr_cuda_device(const struct wimm_mr *mr);

#ifdef __cplusplus
}
#endif
#endif
