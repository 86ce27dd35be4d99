/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROV_HOST_GPU_H
#define PROV_HOST_GPU_H

/* Memory of a GPU at both ends, as the sender sees it. Push: it maps the peer's region (CUDA IPC,
 * or a file descriptor of memory that cuMemMap() made) and lets the card copy; the entry goes into
 * the ring when the card says that the bytes are there. Copies of requests that follow one another
 * are under way together. Pull: it offers them to the peer's card (fetch.h).
 * docs/decisions/0010-gpu-memory-in-host.md has the reasons. */

#include "mem/cuda_queue.h"
#include "prov/prov.h"

struct host_dev;
struct host_path;
struct host_req;

/* What a path needs for it; NULL until it has to do with GPU memory. */
struct host_gpu;

/* --- regions, by key slot --- */

/* Thread: any (control plane). OK, or why the memory cannot be registered. */
WIMM_MUST_CHECK wimm_status host_gpu_reg(struct host_dev *dev, const void *addr, uint64_t len_bytes,
                                         uint64_t key, struct prov_error *error);
void host_gpu_dereg(struct host_dev *dev, uint64_t key);
void host_gpu_regs_fini(struct host_dev *dev);
/* The GPU whose memory a region is; -1: the host's. Out of line: see host_gpu_any(). */
int host_gpu_device(const struct host_dev *dev, uint64_t key);

/* --- sending, worker only --- */

/* The run of GPU requests at `send`: start copies, publish what is there. False: not now. */
bool host_gpu_step(struct host_path *path);
/* The request at `send` as an offer to the peer's card. False: no room now. */
bool host_gpu_offer(struct host_path *path, struct host_req *req);
/* Something is to be copied soon. */
void host_gpu_warm(struct host_path *path);
/* Wait until nothing of this path's is being read or written by the card; a few milliseconds. */
void host_gpu_drain(struct host_path *path);
void host_gpu_fini(struct host_path *path);

uint32_t host_op_post_pages(struct prov_path *path, const struct prov_pages *pages);
void host_op_forget(struct prov_path *path, uint64_t remote_key);

#endif
