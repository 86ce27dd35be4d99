/* SPDX-License-Identifier: Apache-2.0 */
#include "prov/tcp/conn.h"

#include "base/alloc.h"
#include "base/log.h"
#include "prov/tcp/ctl.h"
#include "prov/tcp/path.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { LINGER_MS = 1000 };

static struct tcp_conn *conn_new(struct tcp_dev *dev, int fd, const union tcp_sockaddr *peer,
                                 struct list *all)
{
	struct tcp_conn *conn = mem_calloc(1, sizeof(*conn));

	if (!conn)
		return NULL;
	prov_obj_init(&conn->obj, &dev->loop, TCP_OBJ_CONN, all);
	conn->fd = fd;
	conn->peer = *peer;
	return conn;
}

static bool watch(struct tcp_conn *conn)
{
	struct epoll_event ev = {
		.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
		.data.ptr = &conn->obj,
	};

	return epoll_ctl(tcp_dev_of(&conn->obj)->epoll_fd, EPOLL_CTL_ADD, conn->fd, &ev) == 0;
}

/* An IPv6 link-local address means something together with an interface only: ours. */
static void set_zone(const struct tcp_dev *dev, union tcp_sockaddr *to)
{
	if (to->any.sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&to->v6.sin6_addr) &&
	    dev->local.any.sa_family == AF_INET6 && dev->local.v6.sin6_scope_id != 0)
		to->v6.sin6_scope_id = dev->local.v6.sin6_scope_id;
}

/* Leave by this device's own address, whatever the routing table prefers. */
static int bind_source(const struct tcp_dev *dev, int fd)
{
	union tcp_sockaddr from = dev->local;
	int on = 1;

	if (from.any.sa_family == AF_INET)
		from.v4.sin_port = 0;
	else
		from.v6.sin6_port = 0;
	(void)setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof(on));
	return bind(fd, &from.any, tcp_sockaddr_len(&from));
}

/* Starts; errno of an immediate failure, or 0. */
static int start_connect(struct tcp_conn *conn)
{
	const struct tcp_dev *dev = tcp_dev_of(&conn->obj);

	if (conn->peer.any.sa_family != dev->local.any.sa_family)
		return EAFNOSUPPORT;
	tcp_socket_options(dev, conn->fd);
	if (bind_source(dev, conn->fd) != 0)
		return errno;
	if (connect(conn->fd, &conn->peer.any, tcp_sockaddr_len(&conn->peer)) == 0)
		conn->can_write = true;
	else if (errno != EINPROGRESS && errno != EINTR)
		return errno;
	return watch(conn) ? 0 : errno;
}

struct tcp_conn *tcp_conn_dial(struct tcp_dev *dev, const union tcp_sockaddr *to,
                               enum tcp_kind kind, const uint8_t *token, struct prov_obj *owner,
                               int *out_errno)
{
	struct tcp_conn *conn;
	int fd = socket(to->any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	if (fd < 0) {
		*out_errno = errno;
		return NULL;
	}
	conn = conn_new(dev, fd, to, NULL);
	if (!conn) {
		*out_errno = ENOMEM;
		(void)close(fd);
		return NULL;
	}
	conn->owner = owner;
	conn->kind = kind;
	conn->state = TCP_CONN_CONNECTING;
	tcp_preface_encode(kind, token, conn->hello);
	set_zone(dev, &conn->peer);
	conn->error = start_connect(conn);
	prov_obj_ready(owner);
	return conn;
}

bool tcp_conn_accepted(struct tcp_dev *dev, int fd, const union tcp_sockaddr *peer)
{
	struct tcp_conn *conn = conn_new(dev, fd, peer, &dev->hellos);

	if (!conn) {
		(void)close(fd);
		return false;
	}
	dev->hello_count++;
	conn->state = TCP_CONN_HELLO;
	conn->can_read = true; /* the preface follows the handshake closely */
	tcp_socket_options(dev, fd);
	if (!watch(conn)) {
		tcp_conn_close(conn);
		return false;
	}
	prov_obj_timer(&conn->obj, dev->limits.hello_timeout_ms);
	prov_obj_ready(&conn->obj);
	return true;
}

ssize_t tcp_conn_recv(struct tcp_conn *conn, struct iovec *iov, size_t count, size_t asked_bytes)
{
	struct msghdr msg = { .msg_iov = iov, .msg_iovlen = count };
	ssize_t got;

	do {
		got = recvmsg(conn->fd, &msg, MSG_DONTWAIT);
	} while (got < 0 && errno == EINTR);
	if (got > 0) {
		/* Short means drained: the next byte makes a new event. The end of the stream may
		 * have been announced already, though, and has to be fetched. */
		if ((size_t)got < asked_bytes && !conn->hangup)
			conn->can_read = false;
		return got;
	}
	if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
		conn->can_read = false;
		return 0;
	}
	if (got < 0)
		conn->error = errno; /* at the end of the stream that of a failed send stays */
	return -1;
}

size_t tcp_conn_send(struct tcp_conn *conn, struct iovec *iov, size_t count)
{
	struct msghdr msg = { .msg_iov = iov, .msg_iovlen = count };
	ssize_t sent;

	do {
		sent = sendmsg(conn->fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
	} while (sent < 0 && errno == EINTR);
	if (sent >= 0)
		return (size_t)sent;
	conn->can_write = false;
	if (errno != EAGAIN && errno != EWOULDBLOCK) {
		/* What the peer said before it went may explain it: read on until the end. */
		conn->error = errno;
		conn->can_read = true;
		conn->hangup = true;
	}
	return 0;
}

static void release_fd(struct tcp_conn *conn)
{
	if (conn->fd < 0)
		return;
	/* A child forked meanwhile may hold the descriptor too: the connection has to end and leave
	 * the epoll set all the same. */
	(void)epoll_ctl(tcp_dev_of(&conn->obj)->epoll_fd, EPOLL_CTL_DEL, conn->fd, NULL);
	(void)shutdown(conn->fd, SHUT_RDWR);
	(void)close(conn->fd);
	conn->fd = -1;
}

void tcp_conn_close(struct tcp_conn *conn)
{
	if (conn->state == TCP_CONN_HELLO)
		tcp_dev_of(&conn->obj)->hello_count--;
	conn->state = TCP_CONN_LINGER;
	conn->owner = NULL;
	release_fd(conn);
	prov_obj_kill(&conn->obj);
}

void tcp_conn_free(struct prov_obj *obj)
{
	struct tcp_conn *conn = LIST_ENTRY(obj, struct tcp_conn, obj);

	mem_free(conn->rest);
	mem_free(conn);
}

void tcp_conn_linger(struct tcp_conn *conn, uint8_t *rest, size_t rest_bytes)
{
	struct tcp_dev *dev = tcp_dev_of(&conn->obj);

	if (conn->state == TCP_CONN_HELLO)
		dev->hello_count--;
	conn->state = TCP_CONN_LINGER;
	conn->owner = NULL;
	conn->rest = rest;
	conn->rest_bytes = rest_bytes;
	list_remove(&conn->obj.all);
	list_push_back(&dev->lingers, &conn->obj.all);
	prov_obj_timer(&conn->obj, LINGER_MS);
	conn->can_read = true;
	conn->can_write = true;
	prov_obj_ready(&conn->obj);
}

void tcp_conn_fail_text(const struct tcp_conn *conn, struct prov_fail *fail, wimm_status status,
                        const char *what)
{
	char peer[TCP_ADDR_TEXT_BYTES];

	if (tcp_sockaddr_format(&conn->peer, peer, sizeof(peer)) != WIMM_OK)
		peer[0] = '\0';
	if (conn->error != 0)
		prov_fail_set(fail, status, conn->error, "%s: %s: %s", peer, what,
		             strerror(conn->error));
	else
		prov_fail_set(fail, status, 0, "%s: %s: closed by the peer", peer, what);
}

static wimm_status dial_failed(struct tcp_conn *conn, struct prov_fail *fail)
{
	if (conn->error == EAFNOSUPPORT) {
		tcp_conn_fail_text(conn, fail, WIMM_E_UNSUPPORTED,
		                   "this NIC's address is of the other IP version");
		return fail->status;
	}
	tcp_conn_fail_text(conn, fail, WIMM_E_PEER_LOST, "cannot connect");
	return fail->status;
}

/* The kernel has connected, or given up. */
static wimm_status send_preface(struct tcp_conn *conn, struct prov_fail *fail)
{
	struct iovec iov = { conn->hello, TCP_PREFACE_BYTES };
	socklen_t len = sizeof(conn->error);

	if (getsockopt(conn->fd, SOL_SOCKET, SO_ERROR, &conn->error, &len) != 0)
		conn->error = errno;
	if (conn->error != 0)
		return dial_failed(conn, fail);
	if (tcp_conn_send(conn, &iov, 1) != TCP_PREFACE_BYTES) {
		/* A fresh connection always has room for 32 bytes. */
		if (conn->error == 0)
			conn->error = ENOBUFS;
		return dial_failed(conn, fail);
	}
	conn->state = TCP_CONN_ANSWER;
	conn->hello_bytes = 0;
	conn->can_read = true;
	return WIMM_AGAIN;
}

static wimm_status read_answer(struct tcp_conn *conn, struct prov_fail *fail)
{
	static const char *const reasons[] = {
		[TCP_REFUSE_VERSION] = "refused: the peer speaks another version",
		[TCP_REFUSE_TOKEN] = "refused: the peer has no such path",
		[TCP_REFUSE_RESOURCES] = "refused: the peer is out of memory",
	};
	struct iovec iov = { conn->hello + conn->hello_bytes,
		             TCP_ANSWER_BYTES - conn->hello_bytes };
	ssize_t got = tcp_conn_recv(conn, &iov, 1, iov.iov_len);
	uint8_t refusal = 0;
	wimm_status st;

	if (got < 0)
		return dial_failed(conn, fail);
	conn->hello_bytes += (uint32_t)got;
	if (conn->hello_bytes < TCP_ANSWER_BYTES)
		return WIMM_AGAIN;
	st = tcp_answer_decode(conn->hello, &refusal);
	if (st == WIMM_OK && refusal == TCP_WELCOME) {
		conn->state = TCP_CONN_OPEN;
		conn->can_read = true;
		return WIMM_OK;
	}
	if (st == WIMM_OK)
		prov_fail_set(fail, WIMM_E_PEER_REFUSED, 0, "%s",
		             refusal < sizeof(reasons) / sizeof(reasons[0]) ? reasons[refusal]
		                                                            : "refused");
	else
		prov_fail_set(fail, st == WIMM_E_VERSION ? st : WIMM_E_PROTOCOL, 0,
		             st == WIMM_E_VERSION ? "the peer speaks another version"
		                                  : "what answers there is no wimm");
	return fail->status;
}

wimm_status tcp_conn_dial_step(struct tcp_conn *conn, struct prov_fail *fail)
{
	wimm_status st;

	if (conn->error != 0)
		return dial_failed(conn, fail);
	if (conn->state == TCP_CONN_CONNECTING) {
		if (!conn->can_write)
			return WIMM_AGAIN;
		st = send_preface(conn, fail);
		if (conn->state == TCP_CONN_CONNECTING)
			return st;
	}
	return conn->can_read ? read_answer(conn, fail) : WIMM_AGAIN;
}

/* Send the answer and pass the connection on, or refuse it. */
static void welcome(struct tcp_conn *conn, const struct tcp_preface *preface, wimm_status st)
{
	enum tcp_refusal refusal = st == WIMM_OK ? TCP_WELCOME : TCP_REFUSE_VERSION;
	struct tcp_path *path = NULL;
	uint8_t answer[TCP_ANSWER_BYTES];
	struct iovec iov = { answer, sizeof(answer) };

	if (st == WIMM_OK && preface->kind == TCP_KIND_PATH) {
		path = tcp_path_waiting(tcp_dev_of(&conn->obj), preface->token);
		if (!path)
			refusal = TCP_REFUSE_TOKEN;
	}
	tcp_answer_encode(refusal, answer);
	if (tcp_conn_send(conn, &iov, 1) != TCP_ANSWER_BYTES) {
		tcp_conn_close(conn);
		return;
	}
	if (refusal != TCP_WELCOME) {
		LOG_DEBUG("tcp: connection refused: %s",
		          refusal == TCP_REFUSE_TOKEN ? "unknown path" : "other version");
		tcp_conn_linger(conn, NULL, 0);
		return;
	}
	tcp_dev_of(&conn->obj)->hello_count--;
	conn->state = TCP_CONN_OPEN;
	conn->can_read = true;
	conn->kind = preface->kind == TCP_KIND_PATH ? TCP_KIND_PATH : TCP_KIND_CTL;
	list_remove(&conn->obj.all);
	prov_obj_timer_off(&conn->obj);
	if (path)
		tcp_path_joined(path, conn);
	else if (!tcp_ctl_accepted(conn))
		tcp_conn_close(conn);
}

static bool hello_step(struct tcp_conn *conn)
{
	struct iovec iov = { conn->hello + conn->hello_bytes,
		             TCP_PREFACE_BYTES - conn->hello_bytes };
	struct tcp_preface preface;
	wimm_status st;
	ssize_t got;

	if (conn->obj.expired) {
		tcp_conn_close(conn);
		return false;
	}
	if (!conn->can_read)
		return false;
	got = tcp_conn_recv(conn, &iov, 1, iov.iov_len); /* never a byte behind the preface */
	if (got < 0) {
		tcp_conn_close(conn);
		return false;
	}
	conn->hello_bytes += (uint32_t)got;
	if (conn->hello_bytes < TCP_PREFACE_BYTES)
		return conn->can_read;
	st = tcp_preface_decode(conn->hello, &preface);
	if (st == WIMM_E_PARSE)
		tcp_conn_close(conn);
	else
		welcome(conn, &preface, st);
	return false;
}

/* Whatever still comes is of no interest; only the end of it is. */
static bool discard(struct tcp_conn *conn)
{
	uint8_t junk[4096];
	struct iovec iov = { junk, sizeof(junk) };

	for (int i = 0; i < 16 && conn->can_read; i++) {
		if (tcp_conn_recv(conn, &iov, 1, sizeof(junk)) < 0)
			return false;
	}
	return true;
}

static bool linger_step(struct tcp_conn *conn)
{
	while (conn->rest_pos < conn->rest_bytes && conn->can_write) {
		struct iovec iov = { conn->rest + conn->rest_pos,
			             conn->rest_bytes - conn->rest_pos };

		conn->rest_pos += tcp_conn_send(conn, &iov, 1);
	}
	if (conn->rest_pos == conn->rest_bytes && !conn->ended) {
		conn->ended = true;
		(void)shutdown(conn->fd, SHUT_WR);
	}
	if (conn->obj.expired || !discard(conn)) {
		tcp_conn_close(conn);
		return false;
	}
	return conn->can_read;
}

bool tcp_conn_step(struct prov_obj *obj)
{
	struct tcp_conn *conn = LIST_ENTRY(obj, struct tcp_conn, obj);

	return conn->state == TCP_CONN_HELLO ? hello_step(conn) : linger_step(conn);
}
