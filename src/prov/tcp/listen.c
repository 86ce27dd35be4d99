/* SPDX-License-Identifier: Apache-2.0 */
#include "prov/tcp/conn.h"

#include "base/log.h"
#include "prov/tcp/nics.h"

#include <errno.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum {
	BACKLOG = 512,
	ACCEPTS_A_TURN = 16,
	PAUSE_MS = 50,    /* out of descriptors: look again then */
	HELLOS_MAX = 256, /* connections that have not said what they are */
	KEEPALIVE_PROBES = 3,
};

static void set_int(int fd, int level, int name, int value)
{
	/* Each is an optimisation or a limit: a kernel that refuses one still carries bytes. */
	if (setsockopt(fd, level, name, &value, sizeof(value)) != 0)
		LOG_DEBUG("tcp: socket option %d/%d: %s", level, name, strerror(errno));
}

/* The kernel's own pacing of TCP: it needs no queueing discipline and no privilege. */
static void set_pacing(int fd, uint64_t bytes_s)
{
	if (setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &bytes_s, sizeof(bytes_s)) != 0)
		LOG_WARN("tcp: this kernel does not limit a connection to %" PRIu64
		         " bytes/s: %s",
		         bytes_s, strerror(errno));
}

void tcp_socket_options(const struct tcp_dev *dev, int fd)
{
	int timeout_s = (int)(dev->limits.user_timeout_ms / 1000);
	int probe_s = timeout_s / KEEPALIVE_PROBES > 0 ? timeout_s / KEEPALIVE_PROBES : 1;

	set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
	set_int(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
	set_int(fd, IPPROTO_TCP, TCP_KEEPIDLE, probe_s);
	set_int(fd, IPPROTO_TCP, TCP_KEEPINTVL, probe_s);
	set_int(fd, IPPROTO_TCP, TCP_KEEPCNT, KEEPALIVE_PROBES);
	set_int(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, (int)dev->limits.user_timeout_ms);
	if (dev->limits.sockbuf_bytes > 0) {
		set_int(fd, SOL_SOCKET, SO_SNDBUF, dev->limits.sockbuf_bytes);
		set_int(fd, SOL_SOCKET, SO_RCVBUF, dev->limits.sockbuf_bytes);
	}
	if (dev->limits.pacing_bytes_s != 0)
		set_pacing(fd, dev->limits.pacing_bytes_s);
}

static wimm_status refuse(struct prov_error *error, wimm_status st, int code, const char *nic,
                          const char *what)
{
	error->vendor_code = (uint32_t)code;
	if (code != 0)
		(void)snprintf(error->text, sizeof(error->text), "tcp NIC \"%.60s\": %s: %s", nic,
		               what, strerror(code));
	else
		(void)snprintf(error->text, sizeof(error->text), "tcp NIC \"%.60s\": %s", nic,
		               what);
	return st;
}

static wimm_status resolve_nic(const char *nic, union tcp_sockaddr *out, struct prov_error *error)
{
	char first[1][PROV_TEXT_BYTES];
	struct tcp_hostport hp;
	const char *why = "";

	if (nic[0] == '\0') {
		if (tcp_op_list_nics(first, 1) == 0)
			return refuse(error, WIMM_E_NOT_FOUND, 0, nic,
			              "no interface is up; name an address");
		nic = first[0];
	}
	if (tcp_hostport_parse(nic, &hp, &why) != WIMM_OK)
		return refuse(error, WIMM_E_PARSE, 0, nic, why);
	if (tcp_hostport_resolve(&hp, out) != WIMM_OK)
		return refuse(error, WIMM_E_NOT_FOUND, 0, nic,
		              "neither an address, nor an interface, nor a known name");
	return WIMM_OK;
}

static bool wildcard(const union tcp_sockaddr *sa)
{
	return sa->any.sa_family == AF_INET ? sa->v4.sin_addr.s_addr == htonl(INADDR_ANY)
	                                    : IN6_IS_ADDR_UNSPECIFIED(&sa->v6.sin6_addr);
}

static wimm_status bind_and_listen(struct tcp_dev *dev, int fd, const char *nic,
                                   struct prov_error *error)
{
	socklen_t len = sizeof(dev->local);

	set_int(fd, SOL_SOCKET, SO_REUSEADDR, 1); /* a successor binds at once */
	if (dev->local.any.sa_family == AF_INET6)
		set_int(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1);
	tcp_socket_options(dev, fd); /* buffer sizes have to be known before the handshake */
	if (bind(fd, &dev->local.any, tcp_sockaddr_len(&dev->local)) != 0 ||
	    listen(fd, BACKLOG) != 0) {
		int code = errno;

		if (code == EADDRINUSE)
			return refuse(error, WIMM_E_ADDR_IN_USE, code, nic, "cannot listen");
		return refuse(error, code == EADDRNOTAVAIL ? WIMM_E_NOT_FOUND : WIMM_E_SYSTEM, code,
		              nic, "cannot listen");
	}
	if (getsockname(fd, &dev->local.any, &len) != 0)
		return refuse(error, WIMM_E_SYSTEM, errno, nic, "getsockname");
	return WIMM_OK;
}

wimm_status tcp_listen(struct tcp_dev *dev, const char *nic, struct prov_error *error)
{
	struct epoll_event ev = { .events = EPOLLIN | EPOLLET, .data.ptr = &dev->listener };
	wimm_status st = resolve_nic(nic, &dev->local, error);
	int fd;

	if (st != WIMM_OK)
		return st;
	if (wildcard(&dev->local))
		return refuse(error, WIMM_E_INVAL, 0, nic,
		              "peers cannot reach the wildcard address; name one of this machine");
	fd = socket(dev->local.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return refuse(error, WIMM_E_SYSTEM, errno, nic, "socket");
	st = bind_and_listen(dev, fd, nic, error);
	if (st == WIMM_OK && epoll_ctl(dev->epoll_fd, EPOLL_CTL_ADD, fd, &ev) != 0)
		st = refuse(error, WIMM_E_SYSTEM, errno, nic, "epoll_ctl");
	if (st != WIMM_OK) {
		(void)close(fd);
		return st;
	}
	dev->listen_fd = fd;
	return WIMM_OK;
}

/* Make room for a newcomer. A real peer's preface takes one round trip, so the one that has said
 * nothing for longest is the best guess at an impostor. */
static void evict_oldest(struct tcp_dev *dev)
{
	while (dev->hello_count >= HELLOS_MAX)
		tcp_conn_close(LIST_ENTRY(dev->hellos.next, struct tcp_conn, obj.all));
}

/* The listener stays; those who wait in its queue are served when descriptors are back. */
static void pause_accepting(struct tcp_dev *dev, int code)
{
	if (!dev->accept_paused)
		LOG_WARN("tcp: cannot accept connections for now: %s; raise the limit (ulimit -n)",
		         strerror(code));
	dev->accept_paused = true;
	prov_obj_timer(&dev->listener, PAUSE_MS);
}

bool tcp_listener_step(struct prov_obj *obj)
{
	struct tcp_dev *dev = tcp_dev_of(obj);

	for (int i = 0; i < ACCEPTS_A_TURN; i++) {
		union tcp_sockaddr peer;
		socklen_t len = sizeof(peer);
		int fd;

		memset(&peer, 0, sizeof(peer));
		evict_oldest(dev);
		fd = accept4(dev->listen_fd, &peer.any, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
		if (fd >= 0) {
			dev->accept_paused = false;
			(void)tcp_conn_accepted(dev, fd, &peer);
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
