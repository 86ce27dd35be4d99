/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WIMM_WATCHER_H
#define WIMM_WATCHER_H

#include <wimm/engine.h>

#ifdef __cplusplus
extern "C" {
#endif

struct wimm_uvm_watcher;      /* opaque; a 64-bit word whose changes are reported */

/** The word went from old_value to new_value; values between may have been skipped. */
typedef void (*wimm_watch_fn)(void *context, uint64_t old_value, uint64_t new_value);

/** Allocate a 64-bit word, 0 at first, that the CPU (and a GPU where there is one) may write; each
 *  change is reported on the callback thread, the last one always. The watcher starts armed. A
 *  kernel adds to it with atomicAdd_system(), a stream writes it with cuStreamWriteValue64(); the
 *  word is pinned for that once the process uses CUDA.
 *  Returns: OK, E_INVAL, E_LIMIT (1,024 watchers an engine), E_NOMEM, E_SYSTEM (no thread),
 *  E_CLOSED, E_FORKED.  Thread: any.  Blocks: no. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_alloc_uvm_watcher(struct wimm_engine *engine,
							    wimm_watch_fn fn, void *context,
							    struct wimm_uvm_watcher **out);

/** The same with a word for the kernels of one card: in its own memory where GDRCopy is there, else
 *  in pinned memory of the host. They use the address of wimm_uvm_watcher_gpu_word().
 *  device  0.., as CUDA numbers the cards for this process.
 *  Returns: as above, and E_UNSUPPORTED (this process has no CUDA in use, or no such card).
 *  Thread: any.  Blocks: for the driver. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_alloc_gpu_watcher(struct wimm_engine *engine, int device,
							    wimm_watch_fn fn, void *context,
							    struct wimm_uvm_watcher **out);

/** Where kernels have the word of any watcher; the host's side is wimm_uvm_watcher_word().
 *  Returns: the address, valid until wimm_free_uvm_watcher(); 0 for NULL.  Thread: any.
 *  Blocks: no. */
WIMM_API uint64_t wimm_uvm_watcher_gpu_word(struct wimm_uvm_watcher *watcher);

/** The word itself, for kernels and writers, at the same address on both sides (not where it lies
 *  in a card: then it is the host's alone). For a kernel ask for it after the process has begun to
 *  use CUDA.
 *  Returns: the word, valid until wimm_free_uvm_watcher(); NULL for NULL.  Thread: any.
 *  Blocks: no. */
WIMM_API uint64_t *wimm_uvm_watcher_word(struct wimm_uvm_watcher *watcher);

/** Add to the word from the CPU, with release order; where it lies in a card not together with
 *  kernels that add. Returns the new value; in a forked child 0, and nothing is added.
 *  Thread: any.  Blocks: no. */
WIMM_API uint64_t wimm_uvm_watcher_add(struct wimm_uvm_watcher *watcher, uint64_t amount);

/** Start (armed != 0) or stop looking at the word. The watcher thread sleeps while none is armed.
 *  A change made while disarmed is reported after arming.
 *  Returns: OK, E_INVAL, E_FORKED.  Thread: any, also callbacks.  Blocks: no. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_uvm_watcher_arm(struct wimm_uvm_watcher *watcher,
							  int armed);

/** Free a watcher. Its last change is reported before this returns, unless called from a callback,
 *  where it is dropped.
 *  Returns: OK, E_INVAL, E_FORKED.  Thread: any, also callbacks.  Blocks: for its callback. */
WIMM_API WIMM_MUST_CHECK wimm_status wimm_free_uvm_watcher(struct wimm_uvm_watcher *watcher);

#ifdef __cplusplus
}
#endif
#endif
