/* SPDX-License-Identifier: Apache-2.0 */
#include "prov/host/conn.h"

#include "base/alloc.h"
#include "base/log.h"
#include "prov/host/ctl.h"
#include "prov/host/path.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
	VERSION = 1,
	FDS_MAX = 4, /* that a packet of a stranger may bring; all but one are closed */
	IOV_MAX_COUNT = 2,
};

static const uint8_t magic[4] = { 'w', 'H', 's', 't' };

/* u8[4] magic, u8 version, u8 kind, u16 zero, token. */
static void preface_encode(enum host_conn_kind kind, const uint8_t *token, uint8_t *out)
{
	memset(out, 0, HOST_PREFACE_BYTES);
	memcpy(out, magic, sizeof(magic));
	out[4] = VERSION;
	out[5] = (uint8_t)kind;
	if (token)
		memcpy(out + HOST_PREFACE_BYTES - HOST_TOKEN_BYTES, token, HOST_TOKEN_BYTES);
}

static struct host_conn *conn_new(struct host_dev *dev, int fd, struct list *all)
{
	struct host_conn *conn = mem_calloc(1, sizeof(*conn));

	if (!conn)
		return NULL;
	prov_obj_init(&conn->obj, &dev->loop, HOST_OBJ_CONN, all);
	conn->fd = fd;
	return conn;
}

static bool watch(struct host_conn *conn)
{
	struct epoll_event ev = {
		.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
		.data.ptr = &conn->obj,
	};

	conn->can_read = true;
	conn->can_write = true;
	return epoll_ctl(host_dev_of(&conn->obj)->epoll_fd, EPOLL_CTL_ADD, conn->fd, &ev) == 0;
}

/* Who is at the other end, from the kernel. */
static bool peer_of(int fd, struct ucred *out)
{
	socklen_t len = sizeof(*out);

	return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, out, &len) == 0;
}

static bool learn_peer(struct host_conn *conn)
{
	struct ucred cred;

	if (!peer_of(conn->fd, &cred))
		return false;
	conn->pid = cred.pid;
	conn->uid = cred.uid;
	return true;
}

static bool welcome_user(const struct host_dev *dev, uid_t uid)
{
	return dev->any_uid || uid == geteuid();
}

static ssize_t send_packet(int fd, struct iovec *iov, size_t count, int with_fd)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control;
	struct msghdr msg = { .msg_iov = iov, .msg_iovlen = count };
	ssize_t sent;

	if (with_fd >= 0) {
		struct cmsghdr *c;

		memset(&control, 0, sizeof(control));
		msg.msg_control = control.bytes;
		msg.msg_controllen = sizeof(control.bytes);
		c = CMSG_FIRSTHDR(&msg);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(c), &with_fd, sizeof(int));
	}
	do {
		sent = sendmsg(fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
	} while (sent < 0 && errno == EINTR);
	return sent;
}

static wimm_status dial_failed(struct prov_fail *fail, const struct host_name *to, int code)
{
	wimm_status st = code == EMFILE || code == ENFILE || code == ENOMEM || code == ENOBUFS
	                         ? WIMM_E_SYSTEM
	                         : WIMM_E_PEER_LOST;

	prov_fail_set(fail, st, code, "cannot connect to \"%s\": %s", to->text,
	              code == ECONNREFUSED ? "nobody of that name on this machine (or in this "
	                                     "network namespace)"
	                                   : strerror(code));
	return st;
}

static int connect_to(int fd, const struct host_name *to)
{
	struct sockaddr_un sa;
	socklen_t len = host_name_sockaddr(to, &sa);
	int rc;

	do {
		rc = connect(fd, (const struct sockaddr *)&sa, len);
	} while (rc != 0 && errno == EINTR);
	return rc;
}

bool host_conn_welcome(const struct host_dev *dev, const struct host_name *to)
{
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	struct ucred cred;
	bool yes = false;

	if (fd < 0)
		return false;
	if (connect_to(fd, to) == 0)
		yes = peer_of(fd, &cred) && welcome_user(dev, cred.uid);
	else
		yes = errno == EAGAIN; /* there, and busy */
	(void)close(fd);
	return yes;
}

wimm_status host_conn_dial(struct host_dev *dev, const struct host_name *to,
                           enum host_conn_kind kind, const uint8_t *token, struct prov_obj *owner,
                           struct host_conn **out, struct prov_fail *fail)
{
	uint8_t preface[HOST_PREFACE_BYTES];
	struct iovec iov = { preface, sizeof(preface) };
	struct host_conn *conn;
	wimm_status st = WIMM_AGAIN;
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return dial_failed(fail, to, errno);
	if (connect_to(fd, to) != 0) {
		if (errno != EAGAIN)
			st = dial_failed(fail, to, errno);
		(void)close(fd);
		return st;
	}
	conn = conn_new(dev, fd, NULL);
	if (!conn) {
		(void)close(fd);
		return dial_failed(fail, to, ENOMEM);
	}
	conn->owner = owner;
	preface_encode(kind, token, preface);
	if (!learn_peer(conn) || !watch(conn) || send_packet(fd, &iov, 1, -1) < 0) {
		st = dial_failed(fail, to, errno);
	} else if (!welcome_user(dev, conn->uid)) {
		st = WIMM_E_PEER_REFUSED;
		prov_fail_set(fail, st, 0,
		              "\"%s\" belongs to user %u; setting host_any_uid lets it in",
		              to->text, (unsigned int)conn->uid);
	} else {
		*out = conn;
		return WIMM_OK;
	}
	host_conn_close(conn);
	return st;
}

bool host_conn_accepted(struct host_dev *dev, int fd)
{
	struct host_conn *conn = conn_new(dev, fd, &dev->hellos);

	if (!conn) {
		(void)close(fd);
		return false;
	}
	dev->hello_count++;
	if (!learn_peer(conn) || !watch(conn)) {
		host_conn_close(conn);
		return false;
	}
	prov_obj_timer(&conn->obj, dev->hello_timeout_ms);
	prov_obj_ready(&conn->obj);
	return true;
}

/* Keep the first descriptor for the caller if it wants one, close all others. */
static void take_fds(struct msghdr *msg, int *out_fd)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		size_t count;

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < count; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
			if (out_fd && *out_fd < 0)
				*out_fd = fd;
			else
				(void)close(fd);
		}
	}
}

ssize_t host_conn_recv(struct host_conn *conn, void *buf, size_t buf_bytes, int *out_fd)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(FDS_MAX * sizeof(int))];
	} control;
	struct iovec iov = { buf, buf_bytes };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
	ssize_t got;

	if (out_fd)
		*out_fd = -1;
	for (;;) {
		msg.msg_control = control.bytes;
		msg.msg_controllen = sizeof(control.bytes);
		got = recvmsg(conn->fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
		if (got < 0 && errno == ECONNRESET && !conn->was_reset)
			conn->was_reset = true;
		else if (got >= 0 || errno != EINTR)
			break;
	}
	if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
		conn->can_read = false;
		return 0;
	}
	if (got > 0) {
		take_fds(&msg, out_fd);
		if ((msg.msg_flags & MSG_TRUNC) == 0)
			return got;
		if (out_fd && *out_fd >= 0)
			(void)close(*out_fd);
		conn->error = EMSGSIZE;
		return -1;
	}
	if (got < 0)
		conn->error = errno;
	return -1;
}

bool host_conn_send(struct host_conn *conn, enum host_packet kind, const struct iovec *iov,
                    size_t count, int fd)
{
	uint8_t kind_byte = (uint8_t)kind;
	struct iovec all[1 + IOV_MAX_COUNT] = { { &kind_byte, 1 } };

	for (size_t i = 0; i < count; i++)
		all[i + 1] = iov[i];
	if (send_packet(conn->fd, all, count + 1, fd) >= 0)
		return true;
	conn->can_write = false;
	if (errno != EAGAIN && errno != EWOULDBLOCK) {
		/* What the peer said before it went may explain it: read on until the end. */
		if (errno != EPIPE)
			conn->error = errno;
		conn->broken = true;
		conn->can_read = true;
	}
	return false;
}

static void release_fd(struct host_conn *conn)
{
	if (conn->fd < 0)
		return;
	/* A child forked meanwhile may hold the descriptor too: the connection has to end and leave
	 * the epoll set all the same. */
	(void)epoll_ctl(host_dev_of(&conn->obj)->epoll_fd, EPOLL_CTL_DEL, conn->fd, NULL);
	(void)shutdown(conn->fd, SHUT_RDWR);
	(void)close(conn->fd);
	conn->fd = -1;
}

static void leave_hellos(struct host_conn *conn)
{
	if (!list_linked(&conn->obj.all))
		return;
	list_remove(&conn->obj.all);
	host_dev_of(&conn->obj)->hello_count--;
}

void host_conn_close(struct host_conn *conn)
{
	leave_hellos(conn);
	conn->owner = NULL;
	release_fd(conn);
	prov_obj_kill(&conn->obj);
}

void host_conn_free(struct prov_obj *obj)
{
	mem_free(LIST_ENTRY(obj, struct host_conn, obj));
}

void host_conn_fail_text(const struct host_conn *conn, struct prov_fail *fail, wimm_status status,
                         const char *what)
{
	prov_fail_set(fail, status, conn->error, "process %d: %s: %s", (int)conn->pid, what,
	              conn->error != 0 ? strerror(conn->error) : "closed by the peer");
}

const char *host_refusal_text(uint8_t refusal)
{
	static const char *const reasons[] = {
		[HOST_REFUSE_VERSION] = "refused: the peer speaks another version",
		[HOST_REFUSE_TOKEN] = "refused: the peer has no such path",
		[HOST_REFUSE_RESOURCES] = "refused: the peer is out of memory",
		[HOST_REFUSE_USER] = "refused: the peer lets no other user in (host_any_uid)",
	};

	if (refusal < sizeof(reasons) / sizeof(reasons[0]) && reasons[refusal])
		return reasons[refusal];
	return "refused";
}

static void refuse(struct host_conn *conn, enum host_refusal refusal)
{
	uint8_t reason = (uint8_t)refusal;
	struct iovec iov = { &reason, 1 };

	LOG_DEBUG("host: process %d: %s", (int)conn->pid, host_refusal_text(reason));
	(void)host_conn_send(conn, HOST_PACKET_REFUSED, &iov, 1, -1);
	host_conn_close(conn);
}

/* The first packet is there: pass the connection on. */
static void hello(struct host_conn *conn, const uint8_t *preface)
{
	struct host_dev *dev = host_dev_of(&conn->obj);
	struct host_path *path = NULL;

	if (preface[5] == HOST_CONN_PATH)
		path = host_path_waiting(dev, preface + HOST_PREFACE_BYTES - HOST_TOKEN_BYTES);
	if (!welcome_user(dev, conn->uid)) {
		if (path) /* nobody else is going to dial for it */
			host_path_turned_away(path, conn);
		refuse(conn, HOST_REFUSE_USER);
		return;
	}
	if (preface[4] != VERSION) {
		refuse(conn, HOST_REFUSE_VERSION);
		return;
	}
	if (preface[5] == HOST_CONN_PATH && !path) {
		refuse(conn, HOST_REFUSE_TOKEN);
		return;
	}
	leave_hellos(conn);
	prov_obj_timer_off(&conn->obj);
	if (path)
		host_path_joined(path, conn);
	else if (!host_ctl_accepted(conn))
		refuse(conn, HOST_REFUSE_RESOURCES);
}

bool host_conn_step(struct prov_obj *obj)
{
	struct host_conn *conn = LIST_ENTRY(obj, struct host_conn, obj);
	uint8_t preface[HOST_PREFACE_BYTES];
	ssize_t got = host_conn_recv(conn, preface, sizeof(preface), NULL);

	if (got == 0 && !obj->expired)
		return false;
	if (got != sizeof(preface) || memcmp(preface, magic, sizeof(magic)) != 0 ||
	    (preface[5] != HOST_CONN_CTL && preface[5] != HOST_CONN_PATH)) {
		LOG_DEBUG("host: process %d said no proper hello", (int)conn->pid);
		host_conn_close(conn);
		return false;
	}
	hello(conn, preface);
	return false;
}
