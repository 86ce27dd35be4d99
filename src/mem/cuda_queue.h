/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MEM_CUDA_QUEUE_H
#define MEM_CUDA_QUEUE_H

/* Copies of one card, in order, asked for and looked at by one thread. Whether one has ended is a
 * look at a word of pinned memory that the card writes: no call of the driver. */

#include "mem/cuda.h"

struct cuda_queue;

/* Index arrays lie in memory that the card can read, and stay until the ticket is done. */
struct cuda_pages {
	uint64_t src; /* of index 0 */
	uint64_t dst;
	const uint32_t *src_index; /* NULL: one page, index 0 on both sides */
	const uint32_t *dst_index;
	uint64_t count;
	uint64_t src_stride;
	uint64_t dst_stride;
	uint64_t page_bytes;
};

/* Load what a queue of this device needs. Loading waits for kernels that are running, so it must
 * not be left to the first copy: a kernel may be waiting for just that. Thread: any. Blocks. */
void cuda_queue_prepare(int device);
/* Returns OK, E_UNSUPPORTED, E_NOMEM; `text` says why. */
WIMM_MUST_CHECK wimm_status cuda_queue_open(int device, struct cuda_queue **out, char *text,
                                            size_t text_bytes);
/* Waits for what is under way. NULL is fine. */
void cuda_queue_close(struct cuda_queue *q);

/* Any direction. *out_ticket: greater than all before it. A failure is the queue's: all that comes
 * later fails, too, with the same text. Returns OK, E_SYSTEM. */
WIMM_MUST_CHECK wimm_status cuda_queue_copy(struct cuda_queue *q, uint64_t dst, uint64_t src,
                                            uint64_t len_bytes, uint64_t *out_ticket);
/* Between places of this card; by one kernel if there is one in this build and `len` is at most
 * the setting gpu_kernel_bytes, else by its copy engine. */
WIMM_MUST_CHECK wimm_status cuda_queue_copy_device(struct cuda_queue *q, uint64_t dst, uint64_t src,
                                                   uint64_t len_bytes, uint64_t *out_ticket);
WIMM_MUST_CHECK wimm_status cuda_queue_pages(struct cuda_queue *q, const struct cuda_pages *p,
                                             uint64_t *out_ticket);
/* Ask for several as one: between these two calls copies have no tickets of their own. */
void cuda_queue_begin(struct cuda_queue *q);
WIMM_MUST_CHECK wimm_status cuda_queue_end(struct cuda_queue *q, uint64_t *out_ticket);
/* Instead, where nothing was asked for. */
void cuda_queue_end_empty(struct cuda_queue *q);

/* A copy is to be asked for soon: after a pause the driver's part of it takes 30 us longer. Does
 * all of it but for the copying. */
void cuda_queue_warm(struct cuda_queue *q);

/* Whether that one, and with it all before it, has ended: then the bytes are there, for any reader
 * of this process and for work of the card that is launched from now on. */
bool cuda_queue_done(const struct cuda_queue *q, uint64_t ticket);
/* A device's fault ends a queue without its tickets: look now and then. OK, or E_SYSTEM. */
WIMM_MUST_CHECK wimm_status cuda_queue_check(struct cuda_queue *q);
const char *cuda_queue_error(const struct cuda_queue *q);
/* Wait until all that was asked for has ended. Blocks. Thread: any. */
void cuda_queue_drain(struct cuda_queue *q);

/* Pinned memory of the host, from a store that keeps what comes back. Thread: any. NULL: none. */
void *cuda_host_alloc(uint64_t len_bytes);
void cuda_host_free(void *ptr);
/* Pin some ahead of the first use. Thread: any. Blocks. */
void cuda_host_prepare(void);

#endif
