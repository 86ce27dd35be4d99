/* SPDX-License-Identifier: Apache-2.0 */
#include "prov/tcp/dev.h"

#include "base/alloc.h"
#include "base/config.h"
#include "plat/clock.h"
#include "plat/thread.h"
#include "prov/tcp/conn.h"
#include "prov/tcp/ctl.h"
#include "prov/tcp/nics.h"
#include "prov/tcp/path.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum {
	EVENTS_A_TURN = 64,
	CLOSE_FLUSH_MS = 1000,
	/* The kernel gives up on a receiver that does not read, too. Heartbeats tell a busy peer
	 * from a dead one and allow one that is driven by its program several time-outs; the
	 * kernel's verdict must not come first. */
	PEER_TIMEOUTS = 5,
};

static void free_obj(struct prov_obj *obj)
{
	switch (obj->kind) {
	case TCP_OBJ_CONN:
		tcp_conn_free(obj);
		break;
	case TCP_OBJ_CTL:
		tcp_ctl_free(obj);
		break;
	case TCP_OBJ_PATH:
		tcp_path_free(obj);
		break;
	default:
		break; /* the listener is part of the device */
	}
}

static void conn_event(struct tcp_conn *conn, uint32_t events)
{
	const uint32_t over = EPOLLERR | EPOLLHUP;

	if (events & (EPOLLIN | EPOLLRDHUP | over))
		conn->can_read = true;
	if (events & (EPOLLRDHUP | over))
		conn->hangup = true;
	if (events & (EPOLLOUT | over))
		conn->can_write = true;
	prov_obj_ready(conn->owner ? conn->owner : &conn->obj);
}

static void take_events(struct tcp_dev *dev)
{
	struct epoll_event events[EVENTS_A_TURN];
	int n = epoll_wait(dev->epoll_fd, events, EVENTS_A_TURN, 0);

	for (int i = 0; i < n; i++) {
		struct prov_obj *obj = events[i].data.ptr;

		if (obj->kind == TCP_OBJ_LISTENER)
			prov_obj_ready(obj);
		else
			conn_event(LIST_ENTRY(obj, struct tcp_conn, obj), events[i].events);
	}
}

static bool step(struct prov_obj *obj, struct prov_emit *emit)
{
	switch (obj->kind) {
	case TCP_OBJ_LISTENER:
		return tcp_listener_step(obj);
	case TCP_OBJ_CONN:
		return tcp_conn_step(obj);
	case TCP_OBJ_CTL:
		return tcp_ctl_step(obj, emit);
	case TCP_OBJ_PATH:
		return tcp_path_step(obj, emit);
	}
	return false;
}

uint32_t tcp_op_poll(struct prov_dev *dev_, uint64_t now_ns, struct prov_cqe *out, uint32_t max)
{
	struct tcp_dev *dev = (struct tcp_dev *)dev_;
	struct prov_emit emit = { .out = out, .max = max };

	dev->loop.now_ns = now_ns;
	prov_loop_reap(&dev->loop, free_obj);
	take_events(dev);
	prov_loop_timers(&dev->loop);
	prov_loop_turn(&dev->loop, &emit, step);
	return emit.count;
}

uint64_t tcp_op_next_ns(const struct prov_dev *dev)
{
	return prov_loop_next_ns(&((const struct tcp_dev *)dev)->loop);
}

int tcp_op_fd(const struct prov_dev *dev)
{
	return ((const struct tcp_dev *)dev)->epoll_fd;
}

bool tcp_op_arm(struct prov_dev *dev)
{
	/* Edge-triggered events that were fetched are on the ready list; the others make the
	 * descriptor readable. */
	return list_empty(&((struct tcp_dev *)dev)->loop.ready);
}

static void read_limits(struct tcp_dev *dev, const struct prov_args *args)
{
	uint64_t own = config_get_u64(CFG_TCP_USER_TIMEOUT_MS);
	uint64_t peers = (uint64_t)args->peer_timeout_ms * PEER_TIMEOUTS;

	dev->limits.chunk_bytes = config_get_u64(CFG_TCP_CHUNK_BYTES);
	dev->limits.pacing_bytes_s = config_get_u64(CFG_TCP_PACING_BYTES_S);
	dev->limits.sockbuf_bytes = (int)config_get_u64(CFG_TCP_SNDBUF_BYTES);
	dev->limits.hello_timeout_ms = (uint32_t)config_get_u64(CFG_HELLO_TIMEOUT_MS);
	dev->limits.user_timeout_ms = own != 0            ? (uint32_t)own
	                              : peers < INT32_MAX ? (uint32_t)peers
	                                                  : INT32_MAX;
}

static void fill_caps(const struct tcp_dev *dev, struct prov_caps *caps)
{
	struct tcp_nic_info info;

	tcp_nic_describe(&dev->local, &info);
	*caps = (struct prov_caps){
		.ordered = true,
		.identifies_source = true,
		.can_cancel = true,
		.wait_fd = true,
		.leaves_machine = true,
		.max_ctl_bytes = TCP_CTL_MAX_BYTES,
		.post_depth = TCP_POST_DEPTH,
		.max_write_bytes = UINT64_C(1) << 40,
		.link_bytes_per_s = info.link_bytes_per_s,
		.numa_node = info.numa_node,
	};
	memcpy(caps->device, info.name, sizeof(info.name));
}

static void dev_init(struct tcp_dev *dev)
{
	prov_loop_init(&dev->loop);
	list_init(&dev->paths);
	list_init(&dev->ctls);
	list_init(&dev->hellos);
	list_init(&dev->lingers);
	prov_obj_init(&dev->listener, &dev->loop, TCP_OBJ_LISTENER, NULL);
}

wimm_status tcp_op_open(const struct prov_args *args, struct prov_caps *caps, struct prov_dev **out,
                        struct prov_error *error)
{
	struct tcp_dev *dev = mem_alloc_aligned(_Alignof(struct tcp_dev), sizeof(*dev));
	wimm_status st;

	*error = (struct prov_error){ 0 };
	if (!dev)
		return WIMM_E_NOMEM;
	dev_init(dev);
	read_limits(dev, args);
	st = prov_regions_init(&dev->regions, args->max_regions);
	if (st != WIMM_OK)
		goto undo_dev;
	dev->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (dev->epoll_fd < 0) {
		error->vendor_code = (uint32_t)errno;
		(void)snprintf(error->text, sizeof(error->text), "tcp: epoll: %s", strerror(errno));
		st = WIMM_E_SYSTEM;
		goto undo_regions;
	}
	st = tcp_listen(dev, args->nic, error);
	if (st != WIMM_OK)
		goto undo_epoll;
	fill_caps(dev, caps);
	*out = (struct prov_dev *)dev;
	return WIMM_OK;
undo_epoll:
	(void)close(dev->epoll_fd);
undo_regions:
	prov_regions_fini(&dev->regions);
undo_dev:
	mem_free(dev);
	return st;
}

static bool still_sending(const struct tcp_dev *dev)
{
	LIST_FOR_EACH(it, &dev->lingers) {
		if (!LIST_ENTRY(it, struct tcp_conn, obj.all)->ended)
			return true;
	}
	return !list_empty(&dev->ctls);
}

/* What ctl_close(flush) promised, for a second at most. */
static void flush_rest(struct tcp_dev *dev)
{
	uint64_t deadline_ns = clock_now_ns() + CLOSE_FLUSH_MS * CLOCK_NS_PER_MS;
	struct prov_cqe ignored[8];

	while (still_sending(dev) && clock_now_ns() < deadline_ns) {
		(void)tcp_op_poll((struct prov_dev *)dev, clock_now_ns(), ignored, 8);
		plat_thread_yield();
	}
}

void tcp_op_close(struct prov_dev *dev_)
{
	struct tcp_dev *dev = (struct tcp_dev *)dev_;

	(void)epoll_ctl(dev->epoll_fd, EPOLL_CTL_DEL, dev->listen_fd, NULL);
	(void)shutdown(dev->listen_fd, SHUT_RDWR); /* a forked child may hold it open */
	(void)close(dev->listen_fd);
	list_remove(&dev->listener.ready);
	prov_obj_timer_off(&dev->listener);
	LIST_FOR_EACH(it, &dev->paths)
		tcp_path_drop(LIST_ENTRY(it, struct prov_obj, all));
	LIST_FOR_EACH(it, &dev->hellos)
		tcp_conn_close(LIST_ENTRY(it, struct tcp_conn, obj.all));
	LIST_FOR_EACH(it, &dev->ctls) {
		if (!tcp_ctl_draining(LIST_ENTRY(it, struct prov_obj, all)))
			tcp_ctl_drop(LIST_ENTRY(it, struct prov_obj, all));
	}
	flush_rest(dev);
	LIST_FOR_EACH(it, &dev->ctls)
		tcp_ctl_drop(LIST_ENTRY(it, struct prov_obj, all));
	LIST_FOR_EACH(it, &dev->lingers)
		tcp_conn_close(LIST_ENTRY(it, struct tcp_conn, obj.all));
	prov_loop_reap(&dev->loop, free_obj);
	(void)close(dev->epoll_fd);
	prov_regions_fini(&dev->regions);
	mem_free(dev);
}
