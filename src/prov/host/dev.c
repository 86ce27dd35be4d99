/* SPDX-License-Identifier: Apache-2.0 */
#include "prov/host/dev.h"

#include "base/alloc.h"
#include "base/config.h"
#include "mem/shared.h"
#include "plat/clock.h"
#include "plat/thread.h"
#include "prov/host/conn.h"
#include "prov/host/ctl.h"
#include "prov/host/fetch.h"
#include "prov/host/foreign.h"
#include "prov/host/gpu.h"
#include "prov/host/path.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum {
	EVENTS_A_TURN = 64,
	CLOSE_FLUSH_MS = 1000,
	LOOK_NS = 20000, /* between two looks at the sockets while nobody sleeps */
	LOOK_IDLE_NS = 500000, /* beside NICs, while there is no path */
};

static void free_obj(struct prov_obj *obj)
{
	switch (obj->kind) {
	case HOST_OBJ_CONN:
		host_conn_free(obj);
		break;
	case HOST_OBJ_CTL:
		host_ctl_free(obj);
		break;
	case HOST_OBJ_PATH:
		host_path_free(obj);
		break;
	default:
		break; /* the listener is part of the device */
	}
}

static void conn_event(struct host_conn *conn, uint32_t events)
{
	const uint32_t over = EPOLLERR | EPOLLHUP;

	if (events & (EPOLLIN | EPOLLRDHUP | over))
		conn->can_read = true;
	if (events & (EPOLLOUT | over))
		conn->can_write = true;
	prov_obj_ready(conn->owner ? conn->owner : &conn->obj);
}

static void look_at_sockets(struct host_dev *dev)
{
	struct epoll_event events[EVENTS_A_TURN];
	int n = epoll_wait(dev->epoll_fd, events, EVENTS_A_TURN, 0);

	dev->look_ns = dev->loop.now_ns +
	               (dev->beside && list_empty(&dev->paths) ? LOOK_IDLE_NS : LOOK_NS);
	for (int i = 0; i < n; i++) {
		struct prov_obj *obj = events[i].data.ptr;

		if (obj->kind == HOST_OBJ_LISTENER)
			prov_obj_ready(obj);
		else
			conn_event(LIST_ENTRY(obj, struct host_conn, obj), events[i].events);
	}
}

/* Nothing else is to be done: without the way over the list. */
static void step_rings(struct host_dev *dev, struct prov_emit *emit)
{
	LIST_FOR_EACH(it, &dev->hot) {
		struct host_path *path = LIST_ENTRY(it, struct host_path, hot);

		if (host_path_hint(path) &&
		    (prov_emit_full(emit) || host_path_step(&path->obj, emit)))
			prov_obj_ready(&path->obj);
	}
}

static void look_at_rings(struct host_dev *dev)
{
	LIST_FOR_EACH(it, &dev->hot) {
		struct host_path *path = LIST_ENTRY(it, struct host_path, hot);

		if (host_path_hint(path))
			prov_obj_ready(&path->obj);
	}
}

/* Peers that were asleep when they were looked at, or going to. */
static void ring_rest(struct host_dev *dev)
{
	LIST_FOR_EACH(it, &dev->hot) {
		struct host_path *path = LIST_ENTRY(it, struct host_path, hot);

		if (path->ack_bell_due && !path->ended)
			host_path_ring(path);
	}
}

static void wake_up(struct host_dev *dev)
{
	LIST_FOR_EACH(it, &dev->hot)
		host_path_awake(LIST_ENTRY(it, struct host_path, hot));
	dev->armed = false;
}

static bool step(struct prov_obj *obj, struct prov_emit *emit)
{
	switch (obj->kind) {
	case HOST_OBJ_LISTENER:
		return host_listener_step(obj);
	case HOST_OBJ_CONN:
		return host_conn_step(obj);
	case HOST_OBJ_CTL:
		return host_ctl_step(obj, emit);
	case HOST_OBJ_PATH:
		return host_path_step(obj, emit);
	}
	return false;
}

uint32_t host_op_poll(struct prov_dev *dev_, uint64_t now_ns, struct prov_cqe *out, uint32_t max)
{
	struct host_dev *dev = (struct host_dev *)dev_;
	struct prov_emit emit = { .out = out, .max = max };

	dev->loop.now_ns = now_ns;
	if (!list_empty(&dev->loop.dead))
		prov_loop_reap(&dev->loop, free_obj);
	if (dev->armed || now_ns >= dev->look_ns) {
		ring_rest(dev);
		look_at_sockets(dev);
	}
	if (dev->armed)
		wake_up(dev);
	if (now_ns >= dev->loop.next_timer_ns)
		prov_loop_timers(&dev->loop);
	if (list_empty(&dev->loop.ready)) {
		step_rings(dev, &emit);
		return emit.count;
	}
	look_at_rings(dev);
	prov_loop_turn(&dev->loop, &emit, step);
	return emit.count;
}

uint64_t host_op_next_ns(const struct prov_dev *dev)
{
	return prov_loop_next_ns(&((const struct host_dev *)dev)->loop);
}

int host_op_fd(const struct prov_dev *dev)
{
	return ((const struct host_dev *)dev)->epoll_fd;
}

bool host_op_arm(struct prov_dev *dev_)
{
	struct host_dev *dev = (struct host_dev *)dev_;

	if (!list_empty(&dev->loop.ready))
		return false;
	LIST_FOR_EACH(it, &dev->hot) {
		if (host_path_awaits(LIST_ENTRY(it, struct host_path, hot)))
			return false;
	}
	ring_rest(dev);
	dev->armed = true; /* the next poll looks at the sockets, and tells the peers */
	LIST_FOR_EACH(it, &dev->hot)
		host_path_announce(LIST_ENTRY(it, struct host_path, hot));
	LIST_FOR_EACH(it, &dev->hot) {
		if (host_path_hint(LIST_ENTRY(it, struct host_path, hot)))
			return false;
	}
	return true;
}

void host_op_warm(struct prov_dev *dev_)
{
	struct host_dev *dev = (struct host_dev *)dev_;

	LIST_FOR_EACH(it, &dev->hot)
		host_gpu_warm(LIST_ENTRY(it, struct host_path, hot));
}

/* What is to be expected; each path finds out for itself. */
static void fill_note(const struct host_dev *dev, struct prov_caps *caps)
{
	static const char own[] = "memory of wimm_alloc() is shared; ";
	size_t at = 0;

	if (dev->way == HOST_WAY_RING) {
		(void)snprintf(caps->note, sizeof(caps->note),
		               "memory goes through the ring: setting host_way");
		return;
	}
	if (dev->way == HOST_WAY_AUTO) {
		memcpy(caps->note, own, sizeof(own));
		at = sizeof(own) - 1;
	}
	host_foreign_outlook(caps->note + at, sizeof(caps->note) - at);
}

static void fill_caps(struct prov_caps *caps, bool gpu)
{
	*caps = (struct prov_caps){
		.ordered = true,
		.identifies_source = true,
		.gpu_direct = gpu,
		.can_cancel = true,
		.wait_fd = true,
		.max_ctl_bytes = HOST_CTL_MAX_BYTES,
		.post_depth = HOST_POST_DEPTH,
		.max_write_bytes = UINT64_C(1) << 40,
		.numa_node = -1,
	};
}

static void dev_init(struct host_dev *dev, const struct prov_args *args)
{
	prov_loop_init(&dev->loop);
	dev->hello_timeout_ms = (uint32_t)config_get_u64(CFG_HELLO_TIMEOUT_MS);
	dev->beside = args->beside;
	dev->any_uid = config_get_bool(CFG_HOST_ANY_UID);
	list_init(&dev->paths);
	list_init(&dev->hot);
	list_init(&dev->ctls);
	list_init(&dev->hellos);
	prov_obj_init(&dev->listener, &dev->loop, HOST_OBJ_LISTENER, NULL);
}

static wimm_status open_name(struct host_dev *dev, const char *nic, struct prov_error *error)
{
	wimm_status st = host_name_of_nic(nic, &dev->name);

	if (st == WIMM_E_PARSE)
		(void)snprintf(error->text, sizeof(error->text),
		               "host NIC \"%.60s\": \"any\", a number, or a name of at most %u "
		               "letters, digits, '_', '-', '.'",
		               nic, HOST_NAME_MAX_CHARS);
	return st;
}

static wimm_status read_gpu_way(struct host_dev *dev, struct prov_error *error)
{
	char text[CONFIG_TEXT_BYTES];

	config_get_text(CFG_HOST_GPU_WAY, text);
	dev->gpu_pull = strcmp(text, "pull") == 0;
	if (dev->gpu_pull || strcmp(text, "push") == 0)
		return WIMM_OK;
	(void)snprintf(error->text, sizeof(error->text),
	               "setting host_gpu_way is \"%.60s\": push or pull", text);
	return WIMM_E_PARSE;
}

static wimm_status read_way(struct host_dev *dev, struct prov_error *error)
{
	static const char *const names[] = {
		[HOST_WAY_AUTO] = "auto",
		[HOST_WAY_PULL] = "pull",
		[HOST_WAY_RING] = "ring",
		[HOST_WAY_PUSH] = "push",
	};
	char text[CONFIG_TEXT_BYTES];

	config_get_text(CFG_HOST_WAY, text);
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (strcmp(names[i], text) == 0) {
			dev->way = (uint8_t)i;
			return read_gpu_way(dev, error);
		}
	}
	(void)snprintf(error->text, sizeof(error->text),
	               "setting host_way is \"%.60s\": auto, pull, push or ring", text);
	return WIMM_E_PARSE;
}

wimm_status host_op_open(const struct prov_args *args, struct prov_caps *caps,
                         struct prov_dev **out, struct prov_error *error)
{
	struct host_dev *dev = mem_alloc_aligned(_Alignof(struct host_dev), sizeof(*dev));
	wimm_status st;

	*error = (struct prov_error){ 0 };
	if (!dev)
		return WIMM_E_NOMEM;
	dev_init(dev, args);
	st = open_name(dev, args->nic, error);
	if (st == WIMM_OK)
		st = read_way(dev, error);
	if (st == WIMM_OK)
		st = prov_regions_init(&dev->regions, args->max_regions);
	if (st != WIMM_OK)
		goto undo_dev;
	dev->shared = mem_calloc(args->max_regions, sizeof(struct mem_shared *));
	st = WIMM_E_NOMEM;
	if (!dev->shared)
		goto undo_regions;
	dev->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (dev->epoll_fd < 0) {
		error->vendor_code = (uint32_t)errno;
		(void)snprintf(error->text, sizeof(error->text), "host: epoll: %s",
		               strerror(errno));
		st = WIMM_E_SYSTEM;
		goto undo_regions;
	}
	st = host_listen(dev, error);
	if (st != WIMM_OK)
		goto undo_epoll;
	fill_caps(caps, dev->way == HOST_WAY_AUTO);
	fill_note(dev, caps);
	*out = (struct prov_dev *)dev;
	return WIMM_OK;
undo_epoll:
	(void)close(dev->epoll_fd);
undo_regions:
	mem_free((void *)dev->shared);
	prov_regions_fini(&dev->regions);
undo_dev:
	mem_free(dev);
	return st;
}

/* What ctl_close(flush) promised, for a second at most. */
static void flush_rest(struct host_dev *dev)
{
	uint64_t deadline_ns = clock_now_ns() + CLOSE_FLUSH_MS * CLOCK_NS_PER_MS;
	struct prov_cqe ignored[8];

	while (!list_empty(&dev->ctls) && clock_now_ns() < deadline_ns) {
		(void)host_op_poll((struct prov_dev *)dev, clock_now_ns(), ignored, 8);
		plat_thread_yield();
	}
}

/* Regions that the core has not deregistered. */
static void release_shared(struct host_dev *dev)
{
	for (uint32_t i = 0; i < dev->regions.count; i++) {
		if (dev->shared[i])
			mem_shared_put(dev->shared[i]);
	}
	mem_free((void *)dev->shared);
	host_gpu_regs_fini(dev);
	host_fetch_dev_fini(dev);
}

void host_op_close(struct prov_dev *dev_)
{
	struct host_dev *dev = (struct host_dev *)dev_;

	(void)epoll_ctl(dev->epoll_fd, EPOLL_CTL_DEL, dev->listen_fd, NULL);
	(void)shutdown(dev->listen_fd, SHUT_RDWR); /* a forked child may hold it open */
	(void)close(dev->listen_fd);
	list_remove(&dev->listener.ready);
	prov_obj_timer_off(&dev->listener);
	LIST_FOR_EACH(it, &dev->paths)
		host_path_drop(LIST_ENTRY(it, struct prov_obj, all));
	LIST_FOR_EACH(it, &dev->hellos)
		host_conn_close(LIST_ENTRY(it, struct host_conn, obj.all));
	LIST_FOR_EACH(it, &dev->ctls) {
		if (!host_ctl_draining(LIST_ENTRY(it, struct prov_obj, all)))
			host_ctl_drop(LIST_ENTRY(it, struct prov_obj, all));
	}
	flush_rest(dev);
	LIST_FOR_EACH(it, &dev->ctls)
		host_ctl_drop(LIST_ENTRY(it, struct prov_obj, all));
	prov_loop_reap(&dev->loop, free_obj);
	(void)close(dev->epoll_fd);
	release_shared(dev);
	prov_regions_fini(&dev->regions);
	mem_free(dev);
}
