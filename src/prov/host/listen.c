/* SPDX-License-Identifier: Apache-2.0 */
#include "prov/host/conn.h"

#include "base/log.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum {
	BACKLOG = 512,
	ACCEPTS_A_TURN = 16,
	PAUSE_MS = 50,    /* out of descriptors: look again then */
	HELLOS_MAX = 256, /* connections that have not said what they are */
};

static wimm_status refuse(const struct host_dev *dev, struct prov_error *error, int code,
                          const char *what)
{
	error->vendor_code = (uint32_t)code;
	(void)snprintf(error->text, sizeof(error->text), "host NIC \"%s\": %s: %s", dev->name.text,
	               what, strerror(code));
	return code == EADDRINUSE ? WIMM_E_ADDR_IN_USE : WIMM_E_SYSTEM;
}

wimm_status host_listen(struct host_dev *dev, struct prov_error *error)
{
	struct epoll_event ev = { .events = EPOLLIN | EPOLLET, .data.ptr = &dev->listener };
	struct sockaddr_un sa;
	socklen_t len = host_name_sockaddr(&dev->name, &sa);
	wimm_status st = WIMM_OK;
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return refuse(dev, error, errno, "socket");
	if (bind(fd, (const struct sockaddr *)&sa, len) != 0 || listen(fd, BACKLOG) != 0)
		st = refuse(dev, error, errno, "cannot listen");
	else if (epoll_ctl(dev->epoll_fd, EPOLL_CTL_ADD, fd, &ev) != 0)
		st = refuse(dev, error, errno, "epoll_ctl");
	if (st != WIMM_OK) {
		(void)close(fd);
		return st;
	}
	dev->listen_fd = fd;
	return WIMM_OK;
}

/* Make room for a newcomer. A real peer's hello is there when it is accepted, so the one that has
 * said nothing for longest is the best guess at an impostor. */
static void evict_oldest(struct host_dev *dev)
{
	while (dev->hello_count >= HELLOS_MAX)
		host_conn_close(LIST_ENTRY(dev->hellos.next, struct host_conn, obj.all));
}

/* The listener stays; those who wait in its queue are served when descriptors are back. */
static void pause_accepting(struct host_dev *dev, int code)
{
	if (!dev->accept_paused)
		LOG_WARN("host: cannot accept connections for now: %s; raise the limit (ulimit -n)",
		         strerror(code));
	dev->accept_paused = true;
	prov_obj_timer(&dev->listener, PAUSE_MS);
}

bool host_listener_step(struct prov_obj *obj)
{
	struct host_dev *dev = host_dev_of(obj);

	for (int i = 0; i < ACCEPTS_A_TURN; i++) {
		int fd;

		evict_oldest(dev);
		fd = accept4(dev->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
		if (fd >= 0) {
			dev->accept_paused = false;
			(void)host_conn_accepted(dev, fd);
			continue;
		}
		if (errno == EAGAIN || errno == EWOULDBLOCK)
			return false;
		if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
			pause_accepting(dev, errno);
			return false;
		}
		/* Anything else is the fate of that one connection. */
	}
	return true;
}
