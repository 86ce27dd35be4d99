/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/channel.h"

#include "lib/util.h"

#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MESSAGE_MAX_BYTES (1u << 20)
#define DIAL_AGAIN_MS     50

void channel_init(struct channel *ch, int fd, const char *peer)
{
	int one = 1;

	ch->fd = fd;
	(void)snprintf(ch->peer, sizeof(ch->peer), "%s", peer);
	/* Fails on a socket pair, which has nothing to delay. */
	(void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

void channel_close(struct channel *ch)
{
	if (ch->fd >= 0)
		(void)close(ch->fd);
	ch->fd = -1;
}

/* Readable, before the deadline. */
static bool wait_readable(int fd, uint64_t deadline_ns)
{
	for (;;) {
		struct pollfd pfd = { .fd = fd, .events = POLLIN };
		uint64_t now = now_ns();
		int left_ms = now < deadline_ns ? (int)((deadline_ns - now) / 1000000u + 1) : 0;
		int n = poll(&pfd, 1, left_ms);

		if (n > 0)
			return true;
		if ((n < 0 && errno != EINTR) || (n == 0 && left_ms == 0))
			return false;
	}
}

static uint64_t deadline_in(uint32_t wait_s)
{
	uint64_t s = wait_s != 0 ? wait_s : 1000000u;

	return now_ns() + s * 1000000000u;
}

/* --- connecting --- */

static int listen_on(uint16_t port)
{
	struct sockaddr_in6 addr = { .sin6_family = AF_INET6, .sin6_port = htons(port) };
	struct sockaddr_in addr4 = { .sin_family = AF_INET, .sin_port = htons(port) };
	int one = 1;
	int zero = 0;
	int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
	bool six = fd >= 0;

	if (!six)
		fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		die("socket: %s", strerror(errno));
	(void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (six)
		(void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof(zero));
	if (bind(fd, six ? (struct sockaddr *)&addr : (struct sockaddr *)&addr4,
	         six ? sizeof(addr) : sizeof(addr4)) != 0 ||
	    listen(fd, 1) != 0)
		die("port %u: %s; choose another with -p on both sides", port, strerror(errno));
	return fd;
}

void channel_serve(struct channel *ch, uint16_t port, uint32_t wait_s, bool said)
{
	int listener = listen_on(port);
	struct sockaddr_storage from;
	socklen_t from_len = sizeof(from);
	char host[80] = "?";
	int fd;

	if (said)
		(void)fprintf(stderr, "wimm: waiting for a client on port %u\n", port);
	if (!wait_readable(listener, deadline_in(wait_s)))
		die("no client came to port %u within %" PRIu32 " s", port, wait_s);
	fd = accept4(listener, (struct sockaddr *)&from, &from_len, SOCK_CLOEXEC);
	if (fd < 0)
		die("accept: %s", strerror(errno));
	(void)getnameinfo((struct sockaddr *)&from, from_len, host, sizeof(host), NULL, 0,
	                  NI_NUMERICHOST);
	(void)close(listener);
	channel_init(ch, fd, host);
}

/* One try of every address of the name; -1 with errno. */
static int try_all(const struct addrinfo *list)
{
	int code = ENOENT;

	for (const struct addrinfo *ai = list; ai != NULL; ai = ai->ai_next) {
		int fd = socket(ai->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

		if (fd >= 0 && connect(fd, ai->ai_addr, ai->ai_addrlen) == 0)
			return fd;
		code = errno;
		if (fd >= 0)
			(void)close(fd);
	}
	errno = code;
	return -1;
}

void channel_dial(struct channel *ch, const char *host, uint16_t port, uint32_t wait_s)
{
	const struct addrinfo hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM };
	uint64_t deadline = deadline_in(wait_s);
	struct addrinfo *list;
	char service[8];
	int code;
	int fd;

	(void)snprintf(service, sizeof(service), "%u", port);
	code = getaddrinfo(host, service, &hints, &list);
	if (code != 0)
		die("host \"%s\": %s", host, gai_strerror(code));
	while ((fd = try_all(list)) < 0 && now_ns() < deadline)
		(void)poll(NULL, 0, DIAL_AGAIN_MS);
	code = errno;
	freeaddrinfo(list);
	if (fd < 0)
		die("%s, port %u: %s; start \"wimm perf OP\" there first, or give both sides "
		    "the same -p",
		    host, port, strerror(code));
	channel_init(ch, fd, host);
}

/* --- messages --- */

cJSON *channel_message(const char *kind)
{
	cJSON *object = cJSON_CreateObject();

	if (object == NULL || cJSON_AddStringToObject(object, "do", kind) == NULL)
		die("out of memory");
	return object;
}

static bool write_all(int fd, const void *bytes, size_t len)
{
	const char *at = bytes;

	while (len != 0) {
		ssize_t n = send(fd, at, len, MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		at += n;
		len -= (size_t)n;
	}
	return true;
}

static bool send_object(struct channel *ch, const cJSON *object)
{
	char *text = cJSON_PrintUnformatted(object);
	size_t len = text != NULL ? strlen(text) : 0;
	uint8_t head[4] = { (uint8_t)len, (uint8_t)(len >> 8), (uint8_t)(len >> 16),
		            (uint8_t)(len >> 24) };
	bool sent = text != NULL && write_all(ch->fd, head, sizeof(head)) &&
	            write_all(ch->fd, text, len);

	cJSON_free(text);
	return sent;
}

void channel_send(struct channel *ch, cJSON *object)
{
	bool sent = send_object(ch, object);

	cJSON_Delete(object);
	if (sent)
		return;
	/* Its last words, if there are any, say why. */
	cJSON_Delete(channel_recv_any(ch, 1));
	die_tells(NULL);
	die("the other side (%s) is gone", ch->peer);
}

void channel_tell_error(struct channel *ch, const char *text)
{
	cJSON *object = cJSON_CreateObject();

	if (object != NULL && cJSON_AddStringToObject(object, "do", "error") != NULL &&
	    cJSON_AddStringToObject(object, "text", text) != NULL)
		(void)send_object(ch, object);
	cJSON_Delete(object);
}

/* 1: all read; 0: closed before the first byte; -1: closed in between, or time out. */
static int read_all(int fd, void *out, size_t len, uint64_t deadline_ns)
{
	char *at = out;
	size_t got = 0;

	while (got < len) {
		ssize_t n;

		if (!wait_readable(fd, deadline_ns))
			return -1;
		n = recv(fd, at + got, len - got, 0);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return got == 0 ? 0 : -1;
		got += (size_t)n;
	}
	return 1;
}

cJSON *channel_recv_any(struct channel *ch, uint32_t wait_s)
{
	uint64_t deadline = deadline_in(wait_s);
	uint8_t head[4] = { 0 };
	int got = read_all(ch->fd, head, sizeof(head), deadline);
	uint32_t len = head[0] | (uint32_t)head[1] << 8 | (uint32_t)head[2] << 16 |
	               (uint32_t)head[3] << 24;
	cJSON *object;
	char *text;

	if (got == 0)
		return NULL;
	die_tells(NULL); /* it does not listen, or cannot be understood */
	if (got < 0)
		die("the other side (%s) has said nothing for %" PRIu32 " s", ch->peer, wait_s);
	if (len > MESSAGE_MAX_BYTES)
		die("the other side (%s) speaks another protocol: message of %" PRIu32 " bytes",
		    ch->peer, len);
	text = must_alloc(1, (size_t)len + 1);
	if (read_all(ch->fd, text, len, deadline) != 1)
		die("the other side (%s) stopped in mid-message", ch->peer);
	object = cJSON_Parse(text);
	free(text);
	if (!cJSON_IsObject(object))
		die("the other side (%s) speaks another protocol: no JSON object", ch->peer);
	if (strcmp(member_text(object, "do"), "error") == 0)
		die("the other side (%s) failed: %s", ch->peer, member_text(object, "text"));
	die_tells(ch);
	return object;
}

cJSON *channel_recv(struct channel *ch, const char *kind, uint32_t wait_s)
{
	cJSON *object = channel_recv_any(ch, wait_s);

	if (object == NULL) {
		die_tells(NULL);
		die("the other side (%s) has closed the connection", ch->peer);
	}
	if (strcmp(member_text(object, "do"), kind) != 0)
		die("the other side (%s) said \"%s\" where \"%s\" was due", ch->peer,
		    member_text(object, "do"), kind);
	return object;
}

/* --- members --- */

double member_number(const cJSON *object, const char *name)
{
	const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

	if (!cJSON_IsNumber(item))
		die("the other side's message has no number \"%s\"", name);
	return item->valuedouble;
}

uint64_t member_u64(const cJSON *object, const char *name, uint64_t min, uint64_t max)
{
	double value = member_number(object, name);

	if (!(value >= (double)min && value <= (double)max))
		die("\"%s\" is %.0f: %" PRIu64 " to %" PRIu64 " is allowed", name, value, min, max);
	return (uint64_t)value;
}

bool member_bool(const cJSON *object, const char *name)
{
	const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

	if (!cJSON_IsBool(item))
		die("the other side's message has no boolean \"%s\"", name);
	return cJSON_IsTrue(item);
}

const char *member_text(const cJSON *object, const char *name)
{
	const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

	if (!cJSON_IsString(item))
		die("the other side's message has no text \"%s\"", name);
	return item->valuestring;
}
