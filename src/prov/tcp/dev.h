/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROV_TCP_DEV_H
#define PROV_TCP_DEV_H

/* One device: a local address with its listening socket, one epoll descriptor, and the objects that
 * hang on them; prov/loop.h says how they take turns. Events of sockets are edge-triggered. */

#include "prov/loop.h"
#include "prov/regions.h"
#include "prov/tcp/addr.h"

enum tcp_obj_kind {
	TCP_OBJ_LISTENER,
	TCP_OBJ_CONN, /* a connection without owner: saying hello, or lingering */
	TCP_OBJ_CTL,
	TCP_OBJ_PATH,
};

struct tcp_limits {
	uint64_t chunk_bytes;
	uint64_t pacing_bytes_s; /* 0: none */
	int sockbuf_bytes;
	uint32_t user_timeout_ms;
	uint32_t hello_timeout_ms;
};

struct tcp_dev {
	/* Fixed after open. */
	union tcp_sockaddr local;
	struct tcp_limits limits;
	int epoll_fd;
	int listen_fd;
	/* Shared; see prov/regions.h. */
	struct prov_regions regions;
	/* Owned by the worker. */
	_Alignas(64) struct prov_loop loop;
	struct list paths;
	struct list ctls;
	struct list hellos;  /* connections that have not said what they are, oldest first */
	struct list lingers; /* connections that only finish sending */
	uint32_t hello_count;
	bool accept_paused; /* out of descriptors or memory; said once */
	struct prov_obj listener;
};

static inline struct tcp_dev *tcp_dev_of(const struct prov_obj *obj)
{
	return LIST_ENTRY(obj->loop, struct tcp_dev, loop);
}

/* The ops' entries. */
wimm_status tcp_op_open(const struct prov_args *args, struct prov_caps *caps, struct prov_dev **out,
                        struct prov_error *error);
void tcp_op_close(struct prov_dev *dev);
uint32_t tcp_op_poll(struct prov_dev *dev, uint64_t now_ns, struct prov_cqe *out, uint32_t max);
uint64_t tcp_op_next_ns(const struct prov_dev *dev);
int tcp_op_fd(const struct prov_dev *dev);
bool tcp_op_arm(struct prov_dev *dev);

#endif
