/* SPDX-License-Identifier: Apache-2.0 */
#include "prov/verbs/tcp_hello.h"

#include "base/alloc.h"
#include "plat/clock.h"
#include "prov/verbs/ctl.h"
#include "prov/verbs/gid.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
	CONNECTIONS_MAX = 64, /* from elsewhere; more wait in the kernel */
	BACKLOG = 64,
};

struct verbs_tcp {
	struct verbs_obj obj;
	int fd;
	bool dialler;
	bool sent;      /* dialler: DIAL is out */
	uint64_t token; /* dialler: of the ctl */
	uint32_t have;  /* bytes received */
	uint8_t out[VERBS_HELLO_BYTES];
	uint8_t in[VERBS_HELLO_BYTES];
};

/* False for an address that only means something on one link. */
static bool sockaddr_of(const uint8_t *ip, uint16_t port, struct sockaddr_in6 *out)
{
	*out = (struct sockaddr_in6){ .sin6_family = AF_INET6, .sin6_port = htons(port) };
	memcpy(&out->sin6_addr, ip, sizeof(out->sin6_addr));
	return !verbs_gid_is_zero(ip) && !IN6_IS_ADDR_LINKLOCAL(&out->sin6_addr);
}

/* IPv6 sockets, which take mapped IPv4 addresses too. */
static int make_socket(void)
{
	int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	int off = 0;

	if (fd >= 0)
		(void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
	return fd;
}

static int listen_at(struct verbs_dev *dev)
{
	struct sockaddr_in6 sa;
	socklen_t len = sizeof(sa);
	int fd;

	errno = EADDRNOTAVAIL;
	if (!dev->self.ethernet || !sockaddr_of(dev->self.tcp_ip, 0, &sa))
		return -1;
	fd = make_socket();
	if (fd < 0)
		return -1;
	if (bind(fd, (struct sockaddr *)&sa, sizeof(sa)) == 0 && listen(fd, BACKLOG) == 0 &&
	    getsockname(fd, (struct sockaddr *)&sa, &len) == 0 && verbs_events_watch(dev, fd)) {
		dev->self.tcp_port = ntohs(sa.sin6_port);
		return fd;
	}
	(void)close(fd);
	return -1;
}

wimm_status verbs_tcp_open(struct verbs_dev *dev, struct verbs_fail *fail)
{
	char ip[VERBS_GID_TEXT_BYTES];

	dev->listen_fd = listen_at(dev);
	if (dev->listen_fd >= 0)
		return WIMM_OK;
	memset(dev->self.tcp_ip, 0, sizeof(dev->self.tcp_ip));
	if (dev->ud.qp)
		return WIMM_OK;
	verbs_gid_text(dev->self.gid, ip);
	verbs_fail_set(fail, WIMM_E_SYSTEM, (uint32_t)errno,
	               "%s: no hello: UD is not used (setting verbs_hello), and TCP cannot listen "
	               "at %s: %s",
	               dev->nic.name, ip, strerror(errno));
	return WIMM_E_SYSTEM;
}

void verbs_tcp_close(struct verbs_dev *dev)
{
	if (dev->listen_fd >= 0)
		(void)close(dev->listen_fd);
	dev->listen_fd = -1;
}

void verbs_tcp_free(struct verbs_obj *obj)
{
	struct verbs_tcp *t = LIST_ENTRY(obj, struct verbs_tcp, obj);

	if (t->fd >= 0)
		(void)close(t->fd);
	mem_free(t);
}

static void end(struct verbs_tcp *t)
{
	(void)close(t->fd);
	t->fd = -1;
	t->obj.dev->tcp_count -= t->dialler ? 0 : 1;
	verbs_obj_kill(&t->obj);
}

/* Owns fd. */
static struct verbs_tcp *new_connection(struct verbs_dev *dev, int fd)
{
	struct verbs_tcp *t = mem_calloc(1, sizeof(*t));

	if (!t || !verbs_obj_init(&t->obj, dev, VERBS_OBJ_TCP, &dev->tcps)) {
		mem_free(t);
		(void)close(fd);
		return NULL;
	}
	t->fd = fd;
	verbs_obj_timer(&t->obj, dev->limits.hello_timeout_ms * CLOCK_NS_PER_MS);
	return t;
}

void verbs_tcp_dial(struct verbs_dev *dev, const struct verbs_addr *to,
                    const struct verbs_hello *dial)
{
	struct epoll_event ev = { .events = EPOLLIN | EPOLLOUT };
	struct verbs_hello h = *dial;
	struct sockaddr_in6 sa;
	struct verbs_tcp *t;
	int fd = sockaddr_of(to->tcp_ip, to->tcp_port, &sa) ? make_socket() : -1;

	t = fd >= 0 ? new_connection(dev, fd) : NULL;
	if (!t) {
		verbs_dial_tcp_failed(dev, dial->token, EMFILE);
		return;
	}
	verbs_addr_encode(&dev->self, &h.from);
	verbs_hello_encode(&h, t->out);
	t->dialler = true;
	t->token = dial->token;
	ev.data.fd = fd;
	if ((connect(fd, (struct sockaddr *)&sa, sizeof(sa)) != 0 && errno != EINPROGRESS) ||
	    epoll_ctl(dev->epoll_fd, EPOLL_CTL_ADD, fd, &ev) != 0) {
		verbs_dial_tcp_failed(dev, t->token, errno);
		end(t);
	}
}

static void take_all(struct verbs_dev *dev)
{
	while (dev->tcp_count < CONNECTIONS_MAX) {
		int fd = accept4(dev->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		struct verbs_tcp *t;

		if (fd < 0)
			return;
		t = new_connection(dev, fd);
		if (!t)
			return;
		dev->tcp_count++;
		if (!verbs_events_watch(dev, fd))
			end(t);
	}
}

void verbs_tcp_event(struct verbs_dev *dev, int fd)
{
	if (fd == dev->listen_fd) {
		take_all(dev);
		return;
	}
	LIST_FOR_EACH(it, &dev->tcps) {
		struct verbs_obj *obj = LIST_ENTRY(it, struct verbs_obj, all);

		if (LIST_ENTRY(obj, struct verbs_tcp, obj)->fd == fd)
			verbs_obj_ready(obj);
	}
}

/* True: nothing more can come of it. */
static bool send_dial(struct verbs_tcp *t)
{
	struct epoll_event ev = { .events = EPOLLIN, .data.fd = t->fd };
	ssize_t n = send(t->fd, t->out, sizeof(t->out), MSG_NOSIGNAL);

	if (n < 0 && (errno == EAGAIN || errno == ENOTCONN))
		return false;
	t->sent = n == (ssize_t)sizeof(t->out); /* an empty buffer has room for all of it */
	errno = n < 0 ? errno : EIO;
	return !t->sent || epoll_ctl(t->obj.dev->epoll_fd, EPOLL_CTL_MOD, t->fd, &ev) != 0;
}

/* True: the hello is whole, or nothing more can come. */
static bool receive(struct verbs_tcp *t)
{
	while (t->have < sizeof(t->in)) {
		ssize_t n = recv(t->fd, t->in + t->have, sizeof(t->in) - t->have, 0);

		if (n < 0 && errno == EAGAIN)
			return false;
		if (n <= 0) {
			errno = n == 0 ? ECONNRESET : errno;
			return true;
		}
		t->have += (uint32_t)n;
	}
	return true;
}

static void answer(struct verbs_tcp *t, const struct verbs_hello *h, const struct verbs_addr *from)
{
	struct verbs_dev *dev = t->obj.dev;
	struct verbs_hello out;

	if (h->type != VERBS_HELLO_DIAL || !verbs_dial_answer(dev, h, from, &out))
		return;
	verbs_addr_encode(&dev->self, &out.from);
	verbs_hello_encode(&out, t->out);
	(void)!send(t->fd, t->out, sizeof(t->out), MSG_NOSIGNAL);
}

void verbs_tcp_step(struct verbs_obj *obj)
{
	struct verbs_tcp *t = LIST_ENTRY(obj, struct verbs_tcp, obj);
	struct verbs_hello h;
	struct verbs_addr from;
	bool over = obj->expired;
	int code;

	errno = over ? ETIMEDOUT : 0;
	if (!over && t->dialler && !t->sent)
		over = send_dial(t);
	else if (!over)
		over = receive(t);
	code = errno;
	if (!over)
		return;
	if (t->have == sizeof(t->in) && verbs_hello_decode(t->in, sizeof(t->in), &h) == WIMM_OK &&
	    verbs_addr_decode(&h.from, &from) == WIMM_OK) {
		if (!t->dialler)
			answer(t, &h, &from);
		else if (h.token == t->token &&
		         (h.type == VERBS_HELLO_ACCEPT || h.type == VERBS_HELLO_REFUSE))
			verbs_ctl_answered(obj->dev, &h, &from);
	}
	if (t->dialler) /* of no effect once it was answered */
		verbs_dial_tcp_failed(obj->dev, t->token, code);
	end(t);
}
