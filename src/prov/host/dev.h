/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROV_HOST_DEV_H
#define PROV_HOST_DEV_H

/* One device: a name with its listening socket, one epoll descriptor, and the objects that hang on
 * them; prov/loop.h says how they take turns. A turn (host_op_poll) looks at the rings of all paths
 * that are up, which takes no system call. Sockets are looked at now and then, and at once after a
 * sleep. */

#include "mem/cuda_queue.h"
#include "prov/host/addr.h"
#include "prov/loop.h"
#include "prov/regions.h"

enum host_obj_kind {
	HOST_OBJ_LISTENER,
	HOST_OBJ_CONN, /* a connection that has not said what it is */
	HOST_OBJ_CTL,
	HOST_OBJ_PATH,
};

/* Setting host_way: how bytes travel. */
enum host_way {
	HOST_WAY_AUTO,
	HOST_WAY_PULL, /* fetched by the receiver where the kernel allows it */
	HOST_WAY_RING, /* through the ring, always */
	HOST_WAY_PUSH, /* written by the sender where the kernel allows it */
};

struct mem_shared;

struct host_dev {
	/* Fixed after open. */
	struct host_name name;
	uint32_t hello_timeout_ms;
	bool any_uid; /* peers of other users are let in */
	bool beside;  /* NICs of another provider */
	uint8_t way;  /* enum host_way */
	bool gpu_pull; /* memory of a GPU is fetched by the receiver */
	int epoll_fd;
	int listen_fd;
	/* Shared; see prov/regions.h. */
	struct prov_regions regions;
	struct mem_shared **shared; /* by slot; of regions in memory that can be given away */
	/* By slot, the GPU whose memory a region is, plus 1. NULL: there has been none. */
	_Atomic(uint8_t *) gpu;
	/* By device: what this side's cards fetch, of all paths. The worker opens them. */
	_Atomic(struct cuda_queue *) fetches[MEM_CUDA_MAX_DEVICES];
	/* Owned by the worker. */
	_Alignas(64) struct prov_loop loop;
	uint64_t look_ns;             /* when the sockets are looked at again */
	bool armed;                   /* the rings say that we sleep */
	struct list paths;
	struct list hot; /* paths that are up */
	struct list ctls;
	struct list hellos; /* connections that have not said what they are, oldest first */
	uint32_t hello_count;
	bool accept_paused; /* out of descriptors or memory; said once */
	struct prov_obj listener;
};

/* Whether any region may be memory of a GPU. */
static inline bool host_gpu_any(const struct host_dev *dev)
{
	/* [L] with [K] in host_gpu_reg(). */
	return atomic_load_explicit(&dev->gpu, memory_order_acquire) != NULL;
}

static inline struct host_dev *host_dev_of(const struct prov_obj *obj)
{
	return LIST_ENTRY(obj->loop, struct host_dev, loop);
}

/* The ops' entries. */
wimm_status host_op_open(const struct prov_args *args, struct prov_caps *caps,
                         struct prov_dev **out, struct prov_error *error);
void host_op_close(struct prov_dev *dev);
uint32_t host_op_poll(struct prov_dev *dev, uint64_t now_ns, struct prov_cqe *out, uint32_t max);
uint64_t host_op_next_ns(const struct prov_dev *dev);
int host_op_fd(const struct prov_dev *dev);
bool host_op_arm(struct prov_dev *dev);
void host_op_warm(struct prov_dev *dev);

#endif
