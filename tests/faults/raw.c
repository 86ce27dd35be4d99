/* SPDX-License-Identifier: Apache-2.0 */
#include "faults/raw.h"

#include "plat/rand.h"
#include "prov/tcp/addr.h"

#include <endian.h>
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int raw_dial(const struct wimm_net_addr *to, uint32_t nic)
{
	struct wire_addr addr;
	union tcp_sockaddr sa;
	int fd;

	assert_ok(wire_addr_decode(to, &addr));
	assert_ok(tcp_addr_decode(&addr.nic[nic], &sa));
	fd = socket(sa.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_true(fd >= 0);
	if (connect(fd, &sa.any, tcp_sockaddr_len(&sa)) != 0)
		fail_msg("connect: %s", strerror(errno));
	return fd;
}

bool raw_send(int fd, const void *bytes, size_t count)
{
	const uint8_t *at = bytes;

	while (count != 0) {
		ssize_t sent = send(fd, at, count, MSG_NOSIGNAL);

		if (sent < 0 && errno == EINTR)
			continue;
		if (sent <= 0)
			return false;
		at += sent;
		count -= (size_t)sent;
	}
	return true;
}

static void wait_readable(int fd)
{
	struct pollfd pfd = { .fd = fd, .events = POLLIN };

	if (poll(&pfd, 1, TEST_DEADLINE_MS) != 1)
		fail_msg("the other side neither speaks nor closes");
}

bool raw_read(int fd, void *bytes, size_t count)
{
	uint8_t *at = bytes;

	while (count != 0) {
		ssize_t got;

		wait_readable(fd);
		got = recv(fd, at, count, 0);
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return false;
		at += got;
		count -= (size_t)got;
	}
	return true;
}

void raw_wait_closed(int fd)
{
	uint8_t junk[4096];

	while (raw_read(fd, junk, 1))
		;
}

void raw_close(int fd)
{
	if (fd >= 0)
		(void)close(fd);
}

int raw_open(const struct wimm_net_addr *to, uint32_t nic, const uint8_t *token)
{
	uint8_t preface[TCP_PREFACE_BYTES], answer[TCP_ANSWER_BYTES], refusal = 0xff;
	int fd = raw_dial(to, nic);

	tcp_preface_encode(token != NULL ? TCP_KIND_PATH : TCP_KIND_CTL, token, preface);
	if (raw_send(fd, preface, sizeof(preface)) && raw_read(fd, answer, sizeof(answer)) &&
	    tcp_answer_decode(answer, &refusal) == WIMM_OK && refusal == TCP_WELCOME)
		return fd;
	raw_close(fd);
	return -1;
}

bool raw_say_bytes(int ctl, const void *bytes, uint32_t count)
{
	uint32_t le = htole32(count);

	return raw_send(ctl, &le, sizeof(le)) && raw_send(ctl, bytes, count);
}

bool raw_say(int ctl, const struct wire_msg *m)
{
	uint8_t bytes[8192];
	uint32_t count = wire_encode(m, bytes, sizeof(bytes));

	assert_int_not_equal(count, 0);
	return raw_say_bytes(ctl, bytes, count);
}

bool raw_hear(struct raw *r, struct wire_msg *out)
{
	uint32_t le;

	do {
		if (!raw_read(r->ctl, &le, sizeof(le)))
			return false;
		assert_true(le32toh(le) <= sizeof(r->in));
		if (!raw_read(r->ctl, r->in, le32toh(le)))
			return false;
		assert_ok(wire_decode(r->in, le32toh(le), out));
	} while (out->type == WIRE_HEARTBEAT);
	return true;
}

void raw_hello(const struct raw *r, struct wire_msg *out)
{
	memset(out, 0, sizeof(*out));
	out->type = WIRE_HELLO;
	out->u.hello.major = WIRE_MAJOR;
	out->u.hello.minor = WIRE_MINOR;
	out->u.hello.nonce = r->nonce;
	out->u.hello.heartbeat_ms = 1000;
	out->u.hello.peer_timeout_ms = 5000;
	out->u.hello.max_msg_bytes = 1024;
	out->u.hello.self = r->self;
}

void raw_identity(struct raw *r)
{
	memset(r, 0, sizeof(*r));
	for (uint32_t i = 0; i < WIMM_MAX_NICS; i++)
		r->path[i] = -1;
	/* One NIC, at an address where nobody listens. */
	assert_ok(wire_addr_parse("tcp:127.0.0.1:1", &r->self));
	assert_ok(rand_bytes(r->self.instance, sizeof(r->self.instance)));
	r->nonce = 1;
	r->ctl = -1;
}

wimm_status raw_claim(struct raw *r, const struct wimm_net_addr *to, uint64_t attempt,
                      uint64_t former)
{
	struct wire_msg hello;
	struct wire_addr them;

	r->ctl = raw_open(to, 0, NULL);
	assert_true(r->ctl >= 0);
	raw_hello(r, &hello);
	hello.u.hello.attempt = attempt;
	hello.u.hello.former = former;
	/* Without a target a hello would only ask who is there. */
	assert_ok(wire_addr_decode(to, &them));
	memcpy(hello.u.hello.target, them.instance, sizeof(them.instance));
	assert_true(raw_say(r->ctl, &hello));
	assert_true(raw_hear(r, &r->ack));
	assert_int_equal(r->ack.type, WIRE_HELLO_ACK);
	r->path_count = r->ack.u.hello.path_count;
	return r->ack.u.hello.status;
}

void raw_greet(struct raw *r, const struct wimm_net_addr *to)
{
	raw_identity(r);
	assert_status(raw_claim(r, to, 0, 0), WIMM_OK);
}

void raw_session(struct raw *r, const struct wimm_net_addr *to)
{
	raw_greet(r, to);
	raw_paths(r, to);
}

void raw_paths(struct raw *r, const struct wimm_net_addr *to)
{
	struct wire_msg paths = { .type = WIRE_PATHS };

	paths.u.paths.nonce = r->nonce;
	paths.u.paths.path_count = r->path_count;
	for (uint32_t k = 0; k < r->path_count; k++) {
		/* Version 1, active, no token. */
		paths.u.paths.offer[k].len_bytes = 2 + TCP_TOKEN_BYTES;
		paths.u.paths.offer[k].bytes[0] = 1;
		paths.u.paths.offer[k].bytes[1] = 1;
	}
	assert_true(raw_say(r->ctl, &paths));
	for (uint32_t k = 0; k < r->path_count; k++) {
		const struct prov_offer *offer = &r->ack.u.hello.offer[k];

		r->path[k] = raw_open(to, k, offer->bytes + 2);
		assert_true(r->path[k] >= 0);
	}
}

bool raw_data(int path, const struct tcp_desc *desc, const void *payload, uint64_t announced)
{
	uint8_t block[TCP_HDR_BYTES + TCP_DESC_BYTES];
	struct tcp_hdr hdr = { .type = TCP_FRAME_DATA, .count = 1, .value = announced };

	tcp_hdr_encode(&hdr, block);
	tcp_desc_encode(desc, block + TCP_HDR_BYTES);
	return raw_send(path, block, sizeof(block)) &&
	       (payload == NULL || raw_send(path, payload, desc->len_bytes));
}

void raw_end(struct raw *r)
{
	raw_close(r->ctl);
	for (uint32_t k = 0; k < WIMM_MAX_NICS; k++)
		raw_close(r->path[k]);
}

void raw_listen(struct raw_listener *l, const struct wimm_net_addr *owner,
                struct wimm_net_addr *out)
{
	struct wire_addr addr;
	union tcp_sockaddr sa;
	socklen_t len = sizeof(sa);

	assert_ok(wire_addr_decode(owner, &addr));
	assert_ok(tcp_addr_decode(&addr.nic[0], &sa));
	sa.v4.sin_port = 0;
	l->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_true(l->fd >= 0);
	assert_ok(bind(l->fd, &sa.any, sizeof(sa.v4)));
	assert_ok(listen(l->fd, 4));
	assert_ok(getsockname(l->fd, &sa.any, &len));
	addr.nic_count = 1;
	tcp_addr_encode(&sa, &addr.nic[0]);
	assert_ok(wire_addr_encode(&addr, out));
}

uint32_t raw_overhear(struct raw_listener *l, uint8_t *bytes, uint32_t room)
{
	uint8_t preface[TCP_PREFACE_BYTES], answer[TCP_ANSWER_BYTES];
	uint32_t le = 0;
	int fd;

	wait_readable(l->fd);
	fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC);
	assert_true(fd >= 0);
	assert_true(raw_read(fd, preface, sizeof(preface)));
	tcp_answer_encode(TCP_WELCOME, answer);
	assert_true(raw_send(fd, answer, sizeof(answer)));
	assert_true(raw_read(fd, &le, sizeof(le)));
	assert_true(le32toh(le) <= room);
	assert_true(raw_read(fd, bytes, le32toh(le)));
	raw_close(fd);
	return le32toh(le);
}

void raw_listen_end(struct raw_listener *l)
{
	raw_close(l->fd);
}
