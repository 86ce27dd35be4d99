/* SPDX-License-Identifier: Apache-2.0 */
/* The device's descriptors: completions for a worker that sleeps, and the device's own fate. */
#include "prov/verbs/dev.h"

#include "base/log.h"
#include "plat/clock.h"
#include "prov/verbs/ctl.h"
#include "prov/verbs/path.h"
#include "prov/verbs/tcp_hello.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { EVENTS_A_TURN = 64, PORT_GRACE_MS = 1000 };

bool verbs_events_watch(struct verbs_dev *dev, int fd)
{
	struct epoll_event ev = { .events = EPOLLIN, .data.fd = fd };
	int flags = fcntl(fd, F_GETFL);

	return flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0 &&
	       epoll_ctl(dev->epoll_fd, EPOLL_CTL_ADD, fd, &ev) == 0;
}

wimm_status verbs_events_open(struct verbs_dev *dev, struct prov_error *error)
{
	dev->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	dev->channel = dev->nic.lib->create_comp_channel(dev->nic.ctx);
	if (dev->epoll_fd >= 0 && dev->channel && verbs_events_watch(dev, dev->channel->fd) &&
	    verbs_events_watch(dev, dev->nic.ctx->async_fd))
		return WIMM_OK;
	error->vendor_code = (uint32_t)errno;
	(void)snprintf(error->text, sizeof(error->text), "verbs: %s: no event descriptors: %s",
	               dev->nic.name, strerror(errno));
	return WIMM_E_SYSTEM;
}

void verbs_events_close(struct verbs_dev *dev)
{
	if (dev->epoll_fd >= 0)
		(void)close(dev->epoll_fd);
	if (dev->channel)
		(void)dev->nic.lib->destroy_comp_channel(dev->channel);
}

static void take_completions(struct verbs_dev *dev)
{
	struct ibv_cq *cq;
	void *ignored;

	for (uint32_t i = 0; i < EVENTS_A_TURN; i++) {
		if (dev->nic.lib->get_cq_event(dev->channel, &cq, &ignored) != 0)
			return;
		dev->nic.lib->ack_cq_events(cq, 1);
		if (cq == dev->rx.cq)
			dev->rx.armed = false;
		LIST_FOR_EACH(it, &dev->cqs) {
			struct verbs_cq *own = LIST_ENTRY(it, struct verbs_cq, link);

			if (own->cq == cq)
				own->armed = false;
		}
	}
}

static void qp_event(struct verbs_dev *dev, const struct ibv_async_event *ev)
{
	struct verbs_obj *obj = ev->element.qp->qp_context;
	const char *what = dev->nic.lib->event_type_str(ev->event_type);
	bool access =
		ev->event_type == IBV_EVENT_QP_ACCESS_ERR || ev->event_type == IBV_EVENT_QP_REQ_ERR;

	if (!obj) /* the UD queue pair */
		verbs_dev_die(dev, "%s: its UD queue pair failed: %s", dev->nic.name, what);
	else if (obj->kind == VERBS_OBJ_CTL)
		verbs_ctl_fail(LIST_ENTRY(obj, struct verbs_ctl, obj), WIMM_E_PEER_LOST,
		               ev->event_type, "%s: message channel failed: %s", dev->nic.name,
		               what);
	else if (access)
		verbs_path_fail(LIST_ENTRY(obj, struct verbs_path, obj), WIMM_E_PROTOCOL,
		                ev->event_type,
		                "%s: a write of the peer's was refused: wrong key, or outside the "
		                "region (%s)",
		                dev->nic.name, what);
	else
		verbs_path_fail(LIST_ENTRY(obj, struct verbs_path, obj), WIMM_E_PATH_LOST,
		                ev->event_type, "%s: queue pair failed: %s", dev->nic.name, what);
}

static void address_event(struct verbs_dev *dev, const char *what)
{
	struct ibv_port_attr now;

	if (!verbs_nic_gid_stands(&dev->nic) ||
	    (!dev->nic.ethernet &&
	     (verbs_lib_query_port(dev->nic.lib, dev->nic.ctx, dev->nic.port, &now) != 0 ||
	      now.lid != dev->nic.port_attr.lid)))
		verbs_dev_die(dev,
		              "%s: its address has changed (%s); peers know it by the old one: "
		              "open the engine again",
		              dev->nic.name, what);
}

static void port_event(struct verbs_dev *dev, const struct ibv_async_event *ev)
{
	const char *what = dev->nic.lib->event_type_str(ev->event_type);

	if (ev->element.port_num != dev->nic.port)
		return;
	switch (ev->event_type) {
	case IBV_EVENT_PORT_ERR:
		LOG_WARN("verbs: %s is down: its writes wait for %d ms", dev->nic.name,
		         PORT_GRACE_MS);
		dev->port_deadline_ns =
			clock_deadline_ns(dev->now_ns, PORT_GRACE_MS * CLOCK_NS_PER_MS);
		return;
	case IBV_EVENT_PORT_ACTIVE:
		if (dev->port_deadline_ns != CLOCK_NEVER_NS)
			LOG_WARN("verbs: %s is up again", dev->nic.name);
		dev->port_deadline_ns = CLOCK_NEVER_NS;
		return;
	default:
		address_event(dev, what);
	}
}

static void async_event(struct verbs_dev *dev, const struct ibv_async_event *ev)
{
	switch (ev->event_type) {
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
		qp_event(dev, ev);
		return;
	case IBV_EVENT_PORT_ERR:
	case IBV_EVENT_PORT_ACTIVE:
	case IBV_EVENT_LID_CHANGE:
	case IBV_EVENT_GID_CHANGE:
		port_event(dev, ev);
		return;
	case IBV_EVENT_DEVICE_FATAL:
	case IBV_EVENT_CQ_ERR:
	case IBV_EVENT_SRQ_ERR:
		verbs_dev_die(dev, "%s: %s", dev->nic.name,
		              dev->nic.lib->event_type_str(ev->event_type));
		return;
	default:
		LOG_DEBUG("verbs: %s: %s", dev->nic.name,
		          dev->nic.lib->event_type_str(ev->event_type));
	}
}

static void take_async(struct verbs_dev *dev)
{
	struct ibv_async_event ev;

	for (uint32_t i = 0; i < EVENTS_A_TURN; i++) {
		if (dev->nic.lib->get_async_event(dev->nic.ctx, &ev) != 0)
			return;
		async_event(dev, &ev);
		dev->nic.lib->ack_async_event(&ev);
	}
}

static void check_port(struct verbs_dev *dev)
{
	char text[PROV_TEXT_BYTES];

	if (dev->now_ns < dev->port_deadline_ns)
		return;
	dev->port_deadline_ns = CLOCK_NEVER_NS;
	(void)snprintf(text, sizeof(text), "%s is down: check its cable and its interface",
	               dev->nic.name);
	LOG_ERROR("verbs: %s", text);
	verbs_dev_drop_all(dev, text);
}

void verbs_events_take(struct verbs_dev *dev)
{
	struct epoll_event events[EVENTS_A_TURN];
	int n = epoll_wait(dev->epoll_fd, events, EVENTS_A_TURN, 0);

	for (int i = 0; i < n; i++) {
		if (events[i].data.fd == dev->channel->fd)
			take_completions(dev);
		else if (events[i].data.fd == dev->nic.ctx->async_fd)
			take_async(dev);
		else
			verbs_tcp_event(dev, events[i].data.fd);
	}
	check_port(dev);
}
