/* SPDX-License-Identifier: Apache-2.0 */
#include "prov/verbs/dev.h"

#include "base/alloc.h"
#include "base/config.h"
#include "base/log.h"
#include "plat/clock.h"
#include "plat/rand.h"
#include "plat/thread.h"
#include "prov/verbs/ctl.h"
#include "prov/verbs/gpu.h"
#include "prov/verbs/path.h"
#include "prov/verbs/region.h"
#include "prov/verbs/rx.h"
#include "prov/verbs/tcp_hello.h"
#include "prov/verbs/ud.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* A request is seen to go on only when it ends, and those behind it wait for that: at 25 MB/s, as
 * slow as soft-RoCE may be, 40 ms. */
#define REQUEST_MAX_BYTES (1u << 20)

enum {
	CLOSE_FLUSH_MS = 1000,
	LOOK_EVERY_MS = 1, /* at the descriptors, of a worker that never sleeps */
};

void verbs_fail_set(struct verbs_fail *f, wimm_status status, uint32_t vendor_code, const char *fmt,
                    ...)
{
	va_list args;

	f->status = status;
	f->vendor_code = vendor_code;
	va_start(args, fmt);
	(void)vsnprintf(f->text, sizeof(f->text), fmt, args);
	va_end(args);
}

/* --- objects --- */

bool verbs_obj_init(struct verbs_obj *obj, struct verbs_dev *dev, enum verbs_obj_kind kind,
                    struct list *all)
{
	*obj = (struct verbs_obj){ .dev = dev, .kind = kind };
	list_init(&obj->ready);
	list_init(&obj->timed);
	list_init(&obj->all);
	do {
		obj->id = ++dev->next_id;
	} while (obj->id == 0 || hash_find(&dev->by_id, obj->id, NULL));
	if (hash_insert_ptr(&dev->by_id, obj->id, obj) != WIMM_OK)
		return false;
	list_push_back(all, &obj->all);
	return true;
}

void verbs_obj_ready(struct verbs_obj *obj)
{
	if (!list_linked(&obj->ready))
		list_push_back(&obj->dev->ready, &obj->ready);
}

void verbs_obj_timer(struct verbs_obj *obj, uint64_t after_ns)
{
	struct verbs_dev *dev = obj->dev;

	verbs_obj_timer_off(obj);
	obj->deadline_ns = clock_deadline_ns(clock_now_ns(), after_ns);
	list_push_back(&dev->timed, &obj->timed);
	if (obj->deadline_ns < dev->next_timer_ns)
		dev->next_timer_ns = obj->deadline_ns;
}

void verbs_obj_timer_off(struct verbs_obj *obj)
{
	list_remove(&obj->timed);
	obj->expired = false;
	if (list_empty(&obj->dev->timed))
		obj->dev->next_timer_ns = CLOCK_NEVER_NS;
}

void verbs_obj_kill(struct verbs_obj *obj)
{
	verbs_obj_timer_off(obj);
	list_remove(&obj->ready);
	list_remove(&obj->all);
	(void)hash_remove(&obj->dev->by_id, obj->id);
	list_push_back(&obj->dev->dead_objs, &obj->all);
}

static void free_dead(struct verbs_dev *dev)
{
	struct list *link;

	while ((link = list_pop_front(&dev->dead_objs)) != NULL) {
		struct verbs_obj *obj = LIST_ENTRY(link, struct verbs_obj, all);

		switch (obj->kind) {
		case VERBS_OBJ_CTL:
			verbs_ctl_free(obj);
			break;
		case VERBS_OBJ_PATH:
			verbs_path_free(obj);
			break;
		case VERBS_OBJ_NOTICE:
			verbs_notice_free(obj);
			break;
		case VERBS_OBJ_TCP:
			verbs_tcp_free(obj);
			break;
		}
	}
}

static void run_timers(struct verbs_dev *dev)
{
	uint64_t next = CLOCK_NEVER_NS;

	LIST_FOR_EACH(it, &dev->timed) {
		struct verbs_obj *obj = LIST_ENTRY(it, struct verbs_obj, timed);

		if (obj->deadline_ns > dev->now_ns) {
			next = obj->deadline_ns < next ? obj->deadline_ns : next;
			continue;
		}
		list_remove(&obj->timed);
		obj->expired = true;
		verbs_obj_ready(obj);
	}
	dev->next_timer_ns = next;
}

static bool step(struct verbs_obj *obj, struct verbs_emit *emit)
{
	switch (obj->kind) {
	case VERBS_OBJ_CTL:
		return verbs_ctl_step(obj, emit);
	case VERBS_OBJ_PATH:
		return verbs_path_step(obj, emit);
	case VERBS_OBJ_NOTICE:
		verbs_notice_step(obj);
		return false;
	case VERBS_OBJ_TCP:
		verbs_tcp_step(obj);
		return false;
	}
	return false;
}

/* --- the end of a device --- */

void verbs_dev_drop_all(struct verbs_dev *dev, const char *text)
{
	LIST_FOR_EACH(it, &dev->paths) {
		struct verbs_obj *obj = LIST_ENTRY(it, struct verbs_obj, all);

		verbs_path_fail(LIST_ENTRY(obj, struct verbs_path, obj), WIMM_E_NIC_LOST, 0, "%s",
		                text);
	}
	LIST_FOR_EACH(it, &dev->ctls) {
		struct verbs_obj *obj = LIST_ENTRY(it, struct verbs_obj, all);

		verbs_ctl_fail(LIST_ENTRY(obj, struct verbs_ctl, obj), WIMM_E_NIC_LOST, 0, "%s",
		               text);
	}
}

void verbs_dev_die(struct verbs_dev *dev, const char *fmt, ...)
{
	va_list args;

	if (dev->dead)
		return;
	dev->dead = true;
	va_start(args, fmt);
	(void)vsnprintf(dev->dead_text, sizeof(dev->dead_text), fmt, args);
	va_end(args);
	verbs_dev_drop_all(dev, dev->dead_text);
}

static void tell_death(struct verbs_dev *dev, struct verbs_emit *emit)
{
	struct prov_cqe *cqe;

	if (!dev->dead || dev->dead_reported || verbs_emit_full(emit))
		return;
	cqe = verbs_emit_next(emit, PROV_NIC_DOWN, NULL);
	cqe->status = WIMM_E_NIC_LOST;
	cqe->text = dev->dead_text;
	dev->dead_reported = true;
}

/* --- the worker's turn --- */

static void look_at_descriptors(struct verbs_dev *dev)
{
	if (!dev->armed && dev->now_ns < dev->next_look_ns)
		return;
	dev->armed = false;
	dev->next_look_ns = dev->now_ns + LOOK_EVERY_MS * CLOCK_NS_PER_MS;
	verbs_events_take(dev);
}

static void poll_queues(struct verbs_dev *dev, struct verbs_emit *emit)
{
	/* The rest of the array is for the ends of writes, so that neither starves the other. */
	uint32_t limit = emit->max - emit->max / 4;
	bool more = true;

	while (more) {
		more = verbs_rx_fill(dev);
		verbs_rx_tell(dev, emit, limit);
		more = more && dev->rx.head == dev->rx.tail;
	}
	verbs_rx_repost(dev);
	LIST_FOR_EACH(it, &dev->cqs)
		verbs_cq_poll(dev, LIST_ENTRY(it, struct verbs_cq, link));
}

uint32_t verbs_op_poll(struct prov_dev *dev_, uint64_t now_ns, struct prov_cqe *out, uint32_t max)
{
	struct verbs_dev *dev = (struct verbs_dev *)dev_;
	struct verbs_emit emit = { .out = out, .max = max };
	struct list turn;
	struct list *link;

	dev->now_ns = now_ns;
	free_dead(dev);
	look_at_descriptors(dev);
	if (!dev->dead)
		poll_queues(dev, &emit);
	if (now_ns >= dev->next_timer_ns)
		run_timers(dev);
	tell_death(dev, &emit);
	/* Each object once: what becomes ready meanwhile has its turn at the next poll. */
	list_init(&turn);
	list_splice_back(&turn, &dev->ready);
	while (!verbs_emit_full(&emit) && (link = list_pop_front(&turn)) != NULL) {
		struct verbs_obj *obj = LIST_ENTRY(link, struct verbs_obj, ready);

		if (step(obj, &emit))
			verbs_obj_ready(obj);
	}
	/* Those that had no turn come first next time. */
	list_splice_back(&turn, &dev->ready);
	list_splice_back(&dev->ready, &turn);
	return emit.count;
}

uint64_t verbs_op_next_ns(const struct prov_dev *dev_)
{
	const struct verbs_dev *dev = (const struct verbs_dev *)dev_;

	if (!list_empty(&dev->ready) || dev->rx.head != dev->rx.tail)
		return dev->now_ns;
	return dev->next_timer_ns < dev->port_deadline_ns ? dev->next_timer_ns
	                                                  : dev->port_deadline_ns;
}

int verbs_op_fd(const struct prov_dev *dev)
{
	return ((const struct verbs_dev *)dev)->epoll_fd;
}

static bool arm_cq(struct ibv_cq *cq, bool *armed)
{
	/* Armed and its event not read: either none has come, or the descriptor is readable. */
	if (!*armed && ibv_req_notify_cq(cq, 0) != 0)
		return false;
	*armed = true;
	return true;
}

bool verbs_op_arm(struct prov_dev *dev_)
{
	struct verbs_dev *dev = (struct verbs_dev *)dev_;
	bool ok = true;

	if (!dev->dead) {
		ok = arm_cq(dev->rx.cq, &dev->rx.armed);
		LIST_FOR_EACH(it, &dev->cqs) {
			struct verbs_cq *cq = LIST_ENTRY(it, struct verbs_cq, link);

			ok = arm_cq(cq->cq, &cq->armed) && ok;
		}
		/* Look once more: what came before that raises no event. */
		(void)verbs_rx_fill(dev);
		LIST_FOR_EACH(it, &dev->cqs)
			verbs_cq_poll(dev, LIST_ENTRY(it, struct verbs_cq, link));
	}
	dev->armed = true;
	return ok && list_empty(&dev->ready) && dev->rx.head == dev->rx.tail;
}

/* --- open and close --- */

static uint32_t power_below(uint64_t n)
{
	uint32_t p = 1;

	while (p * UINT64_C(2) <= n)
		p *= 2;
	return p;
}

/* The longest time-out of the hardware's that gives up within half the peer's time-out. */
static uint8_t derive_timeout(uint32_t peer_timeout_ms, uint8_t retries)
{
	uint64_t most_ns = peer_timeout_ms * CLOCK_NS_PER_MS / 2 / (retries + 1u);
	uint8_t t = 8;

	while (t < 22 && (UINT64_C(4096) << (t + 1)) <= most_ns)
		t++;
	return t;
}

static void read_limits(struct verbs_dev *dev, const struct prov_args *args)
{
	struct verbs_limits *l = &dev->limits;
	uint64_t depth = config_get_u64(CFG_VERBS_DEPTH);
	uint64_t most = ((uint64_t)dev->nic.attr.max_qp_wr - VERBS_WQE_SPARE) / 2;

	l->depth = power_below(depth < most ? depth : most);
	l->chain = (uint32_t)config_get_u64(CFG_VERBS_CHAIN);
	l->inline_bytes = (uint32_t)config_get_u64(CFG_VERBS_INLINE_BYTES);
	l->recv_depth = (uint32_t)config_get_u64(CFG_VERBS_RECV_DEPTH);
	l->hello_timeout_ms = (uint32_t)config_get_u64(CFG_HELLO_TIMEOUT_MS);
	l->rc_retries = (uint8_t)config_get_u64(CFG_VERBS_RETRIES);
	l->rc_timeout = (uint8_t)config_get_u64(CFG_VERBS_TIMEOUT);
	if (l->rc_timeout == 0)
		l->rc_timeout = derive_timeout(args->peer_timeout_ms, l->rc_retries);
	l->traffic_class = (uint8_t)config_get_u64(CFG_VERBS_TRAFFIC_CLASS);
	l->service_level = (uint8_t)config_get_u64(CFG_VERBS_SERVICE_LEVEL);
	l->pkey_index = (uint16_t)config_get_u64(CFG_VERBS_PKEY_INDEX);
	l->relaxed_ordering = config_get_bool(CFG_VERBS_RELAXED_ORDERING);
}

static wimm_status read_hello(struct verbs_dev *dev, struct prov_error *error)
{
	char how[CONFIG_TEXT_BYTES];

	config_get_text(CFG_VERBS_HELLO, how);
	dev->use_ud = strcmp(how, "tcp") != 0;
	dev->use_tcp = strcmp(how, "ud") != 0;
	if (!dev->use_ud || !dev->use_tcp || strcmp(how, "auto") == 0)
		return WIMM_OK;
	(void)snprintf(error->text, sizeof(error->text),
	               "verbs: the setting verbs_hello is \"%.32s\": auto, ud or tcp wanted", how);
	return WIMM_E_INVAL;
}

static void fill_caps(const struct verbs_dev *dev, struct prov_caps *caps)
{
	uint64_t longest = dev->nic.port_attr.max_msg_sz;

	*caps = (struct prov_caps){
		.ordered = true,
		.identifies_source = true,
		.gpu_regions = true,
		.wait_fd = true,
		.leaves_machine = true,
		.max_ctl_bytes = VERBS_CTL_MAX_BYTES,
		.post_depth = dev->limits.depth,
		.max_write_bytes = longest < REQUEST_MAX_BYTES ? longest : REQUEST_MAX_BYTES,
		.link_bytes_per_s = dev->nic.link_bytes_per_s,
		.numa_node = dev->nic.numa_node,
	};
	(void)snprintf(caps->device, sizeof(caps->device), "%.31s", dev->nic.device);
	verbs_gpu_note(dev->nic.lib, caps->note, sizeof(caps->note));
}

static void dev_init(struct verbs_dev *dev)
{
	uint64_t seed = 0;

	dev->now_ns = clock_now_ns();
	dev->next_timer_ns = CLOCK_NEVER_NS;
	dev->port_deadline_ns = CLOCK_NEVER_NS;
	dev->epoll_fd = -1;
	dev->listen_fd = -1;
	mutex_init(&dev->regions_lock);
	list_init(&dev->cqs);
	list_init(&dev->ready);
	list_init(&dev->timed);
	list_init(&dev->paths);
	list_init(&dev->ctls);
	list_init(&dev->notices);
	list_init(&dev->tcps);
	list_init(&dev->dead_objs);
	if (rand_bytes(&seed, sizeof(seed)) != WIMM_OK)
		seed = dev->now_ns;
	hash_init(&dev->regions, seed);
	hash_init(&dev->by_id, seed);
	hash_init(&dev->path_by_qpn, seed);
	hash_init(&dev->dialled, seed);
	hash_init(&dev->accepted, seed);
}

/* Whatever of it there is. */
static void dev_free(struct verbs_dev *dev)
{
	const struct verbs_lib *lib = dev->nic.lib;

	free_dead(dev);
	verbs_tcp_close(dev);
	verbs_ud_close(dev);
	verbs_rx_close(dev);
	verbs_cqs_close(dev);
	verbs_regions_close(dev);
	verbs_events_close(dev);
	if (dev->pd)
		(void)lib->dealloc_pd(dev->pd);
	verbs_nic_close(&dev->nic);
	hash_fini(&dev->by_id);
	hash_fini(&dev->path_by_qpn);
	hash_fini(&dev->dialled);
	hash_fini(&dev->accepted);
	mutex_fini(&dev->regions_lock);
	mem_free(dev);
}

static void describe_self(struct verbs_dev *dev)
{
	struct verbs_addr *a = &dev->self;

	a->ethernet = dev->nic.ethernet;
	a->mtu = dev->nic.mtu;
	memcpy(a->gid, dev->nic.gid.gid.raw, sizeof(a->gid));
	a->lid = dev->nic.port_attr.lid;
	memcpy(a->tcp_ip, a->gid, sizeof(a->tcp_ip)); /* of RoCE: the interface's address */
	if (dev->ud.qp) {
		a->ud_qpn = dev->ud.qp->qp_num;
		a->ud_qkey = dev->ud.qkey;
	}
}

static wimm_status open_queues(struct verbs_dev *dev, struct prov_error *error)
{
	struct verbs_fail fail = { 0 };
	wimm_status st = verbs_rx_open(dev, &fail);

	if (st == WIMM_OK && dev->use_ud) {
		st = verbs_ud_open(dev, &fail);
		if (st != WIMM_OK && dev->use_tcp) {
			LOG_INFO("verbs: %s; hellos go over TCP", fail.text);
			st = WIMM_OK;
		}
	}
	if (st == WIMM_OK) {
		describe_self(dev);
		st = dev->use_tcp ? verbs_tcp_open(dev, &fail) : WIMM_OK;
	}
	if (st == WIMM_OK)
		return WIMM_OK;
	error->vendor_code = fail.vendor_code;
	(void)snprintf(error->text, sizeof(error->text), "verbs: %.240s", fail.text);
	return st;
}

wimm_status verbs_op_open(const struct prov_args *args, struct prov_caps *caps,
                          struct prov_dev **out, struct prov_error *error)
{
	struct verbs_dev *dev = mem_alloc_aligned(_Alignof(struct verbs_dev), sizeof(*dev));
	wimm_status st;

	*error = (struct prov_error){ 0 };
	if (!dev)
		return WIMM_E_NOMEM;
	dev_init(dev);
	st = verbs_nic_open(args->nic, &dev->nic, error);
	if (st != WIMM_OK)
		goto undo;
	read_limits(dev, args);
	st = read_hello(dev, error);
	if (st != WIMM_OK)
		goto undo;
	st = verbs_events_open(dev, error);
	if (st != WIMM_OK)
		goto undo;
	dev->pd = dev->nic.lib->alloc_pd(dev->nic.ctx);
	if (!dev->pd) {
		(void)snprintf(error->text, sizeof(error->text), "verbs: %s: no protection domain",
		               dev->nic.name);
		st = WIMM_E_LIMIT;
		goto undo;
	}
	st = open_queues(dev, error);
	if (st != WIMM_OK)
		goto undo;
	fill_caps(dev, caps);
	*out = (struct prov_dev *)dev;
	return WIMM_OK;
undo:
	dev_free(dev);
	return st;
}

static bool still_sending(const struct verbs_dev *dev)
{
	return !dev->dead && (!list_empty(&dev->ctls) || verbs_notices_due(dev));
}

/* What ctl_close() promised, and the news of closed paths; for a second at most. */
static void flush_rest(struct verbs_dev *dev)
{
	uint64_t deadline_ns = clock_now_ns() + CLOSE_FLUSH_MS * CLOCK_NS_PER_MS;
	struct prov_cqe ignored[8];

	while (still_sending(dev) && clock_now_ns() < deadline_ns) {
		(void)verbs_op_poll((struct prov_dev *)dev, clock_now_ns(), ignored, 8);
		plat_thread_yield();
	}
}

void verbs_op_close(struct prov_dev *dev_)
{
	struct verbs_dev *dev = (struct verbs_dev *)dev_;

	LIST_FOR_EACH(it, &dev->paths)
		verbs_path_drop(LIST_ENTRY(it, struct verbs_obj, all));
	LIST_FOR_EACH(it, &dev->ctls) {
		if (!verbs_ctl_draining(LIST_ENTRY(it, struct verbs_obj, all)))
			verbs_ctl_drop(LIST_ENTRY(it, struct verbs_obj, all));
	}
	flush_rest(dev);
	LIST_FOR_EACH(it, &dev->ctls)
		verbs_ctl_drop(LIST_ENTRY(it, struct verbs_obj, all));
	LIST_FOR_EACH(it, &dev->notices)
		verbs_obj_kill(LIST_ENTRY(it, struct verbs_obj, all));
	LIST_FOR_EACH(it, &dev->tcps)
		verbs_obj_kill(LIST_ENTRY(it, struct verbs_obj, all));
	dev_free(dev);
}
