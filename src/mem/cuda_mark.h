/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MEM_CUDA_MARK_H
#define MEM_CUDA_MARK_H

/* Points in other people's streams, and streams of our own that they may order their work before.
 * docs/decisions/0014-streams.md has the reasons. Thread: any. */

#include "mem/cuda.h"

/* All that a stream held when the mark was made. */
struct cuda_mark;

/* device: whose the streams 0, 1 and 2 are (the default ones of CUDA); -1: of the card in use.
 * Nothing waits in the stream for it. Returns OK, E_UNSUPPORTED (no CUDA in use; the stream is
 * being captured into a graph), E_NOMEM, E_SYSTEM; `text` says why. */
WIMM_MUST_CHECK wimm_status cuda_mark_open(int device, void *stream, struct cuda_mark **out,
                                           char *text, size_t text_bytes);
/* OK: all of it is done. AGAIN: not yet. E_SYSTEM: the device failed; `text` says how. */
WIMM_MUST_CHECK wimm_status cuda_mark_look(const struct cuda_mark *mark, char *text,
                                           size_t text_bytes);
/* Reached or not. NULL is fine. */
void cuda_mark_close(struct cuda_mark *mark);

#define CUDA_LANES_MAX 32

/* Streams of our own of one device, made when first asked for. The caller's lock. */
struct cuda_lanes {
	struct cu_stream *stream[CUDA_LANES_MAX];
	uint32_t count;
	uint32_t turn; /* the next one to look at */
};
/* One that holds nothing, as long as there are any. Returns OK, E_UNSUPPORTED. */
WIMM_MUST_CHECK wimm_status cuda_lanes_get(struct cuda_lanes *lanes, int device, void **out,
                                           char *text, size_t text_bytes);
/* What is left in them ends by itself. */
void cuda_lanes_fini(struct cuda_lanes *lanes, int device);

#endif
