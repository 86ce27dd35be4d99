/* SPDX-License-Identifier: Apache-2.0 */

/* What a plain program over loopback TCP reaches, to hold the tcp provider against.
 *
 *   tcp_floor stream --size 1M              blocks written and read back to back, nothing else
 *   tcp_floor framed --size 4K --batch 64   one sendmsg a batch: a header block (address and length
 *                                           of each write) and the payloads; the reader puts them
 *                                           where the header says, one recvmsg a batch, the next
 *                                           header behind it, and counts
 *
 *   tcp_floor framed --size 8 --one         the next batch when the reader has acknowledged it
 *
 * Two processes, one pinned to each CPU. Time ends when the reader has everything. No window, no
 * acknowledgement, no check of the addresses: a provider has to do more than this. */

#include "../util.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BATCH_MAX = 256, ACK_BYTES = 16 };

struct options {
	bool framed;
	bool json;
	bool one;  /* framed: the next batch when the last one is acknowledged */
	bool poll; /* spin on non-blocking calls instead of sleeping in them */
	uint64_t size;
	uint64_t batch;
	uint64_t total;
	uint64_t sockbuf; /* 0: the kernel's own tuning */
};

struct header {
	uint64_t count;
	uint64_t payload;
	struct {
		uint64_t addr;
		uint64_t len;
		uint64_t imm;
		uint64_t spare[2];
	} w[BATCH_MAX];
};

static size_t header_bytes(uint64_t count)
{
	return offsetof(struct header, w) + count * sizeof(((struct header *)0)->w[0]);
}

static void set_int(int fd, int level, int name, uint64_t value)
{
	int v = (int)value;

	if (setsockopt(fd, level, name, &v, sizeof(v)) != 0)
		bench_die("setsockopt");
}

static void tune(int fd, const struct options *o)
{
	set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
	if (o->sockbuf > 0) {
		set_int(fd, SOL_SOCKET, SO_SNDBUF, o->sockbuf);
		set_int(fd, SOL_SOCKET, SO_RCVBUF, o->sockbuf);
	}
}

/* All of it, however many calls that takes. */
static void send_all(int fd, struct iovec *iov, size_t count, bool poll)
{
	while (count > 0) {
		struct msghdr msg = { .msg_iov = iov, .msg_iovlen = count };
		ssize_t n = sendmsg(fd, &msg, MSG_NOSIGNAL | (poll ? MSG_DONTWAIT : 0));

		if (n < 0 && errno != EAGAIN)
			bench_die("sendmsg");
		for (; n > 0 && count > 0; iov++, count--) {
			if ((size_t)n < iov->iov_len) {
				iov->iov_base = (char *)iov->iov_base + n;
				iov->iov_len -= (size_t)n;
				break;
			}
			n -= (ssize_t)iov->iov_len;
		}
	}
}

/* At least `want` bytes of the vector; returns how many came. */
static size_t recv_atleast(int fd, struct iovec *iov, size_t count, size_t want, bool poll)
{
	size_t total = 0;

	while (total < want) {
		struct msghdr msg = { .msg_iov = iov, .msg_iovlen = count };
		ssize_t n = recvmsg(fd, &msg, poll ? MSG_DONTWAIT : 0);

		if (n == 0 || (n < 0 && errno != EAGAIN))
			bench_die("recvmsg");
		if (n < 0)
			continue;
		total += (size_t)n;
		for (; n > 0; iov++, count--) {
			if ((size_t)n < iov->iov_len) {
				iov->iov_base = (char *)iov->iov_base + n;
				iov->iov_len -= (size_t)n;
				break;
			}
			n -= (ssize_t)iov->iov_len;
		}
	}
	return total;
}

static void write_stream(int fd, const struct options *o, char *mem)
{
	for (uint64_t sent = 0; sent < o->total; sent += o->size) {
		struct iovec iov = { mem + sent % BENCH_WALK_BYTES, o->size };

		send_all(fd, &iov, 1, o->poll);
	}
}

static void read_stream(int fd, const struct options *o, char *mem)
{
	for (uint64_t got = 0; got < o->total; got += o->size) {
		struct iovec iov = { mem + got % BENCH_WALK_BYTES, o->size };

		(void)recv_atleast(fd, &iov, 1, o->size, o->poll);
	}
}

static void write_framed(int fd, const struct options *o, char *mem)
{
	static struct header h;
	char ack[ACK_BYTES];
	struct iovec iov[BATCH_MAX + 1];
	uint64_t sent = 0;

	while (sent < o->total) {
		h.count = o->batch;
		h.payload = o->batch * o->size;
		iov[0] = (struct iovec){ &h, header_bytes(h.count) };
		for (uint64_t i = 0; i < h.count; i++, sent += o->size) {
			h.w[i].addr = sent % BENCH_WALK_BYTES;
			h.w[i].len = o->size;
			iov[i + 1] = (struct iovec){ mem + h.w[i].addr, o->size };
		}
		send_all(fd, iov, h.count + 1, o->poll);
		if (o->one) {
			iov[0] = (struct iovec){ ack, sizeof(ack) };
			(void)recv_atleast(fd, iov, 1, sizeof(ack), o->poll);
		}
	}
}

static void read_framed(int fd, const struct options *o, char *mem)
{
	static struct header h[2];
	char ack[ACK_BYTES] = { 0 };
	struct iovec iov[BATCH_MAX + 1];
	size_t need = header_bytes(o->batch);
	size_t have = 0;
	uint64_t got = 0;
	uint64_t counted = 0;

	for (int turn = 0; got < o->total; turn ^= 1) {
		struct header *now = &h[turn];
		size_t n;

		if (have < need) {
			iov[0] = (struct iovec){ (char *)now + have, need - have };
			(void)recv_atleast(fd, iov, 1, need - have, o->poll);
		}
		for (uint64_t i = 0; i < now->count; i++)
			iov[i] = (struct iovec){ mem + now->w[i].addr, now->w[i].len };
		iov[now->count] = (struct iovec){ &h[turn ^ 1], need };
		n = recv_atleast(fd, iov, now->count + 1, now->payload, o->poll);
		have = n - now->payload;
		got += now->payload;
		counted += now->count;
		if (o->one) {
			iov[0] = (struct iovec){ ack, sizeof(ack) };
			send_all(fd, iov, 1, o->poll);
		}
	}
	if (counted * o->size != got)
		bench_die("count");
}

static int listen_on_loopback(const struct options *o, struct sockaddr_in *addr)
{
	socklen_t len = sizeof(*addr);
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	*addr = (struct sockaddr_in){ .sin_family = AF_INET,
		                      .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	if (fd < 0)
		bench_die("socket");
	tune(fd, o);
	if (bind(fd, (struct sockaddr *)addr, len) != 0 || listen(fd, 1) != 0 ||
	    getsockname(fd, (struct sockaddr *)addr, &len) != 0)
		bench_die("listen");
	return fd;
}

static void reader(int listen_fd, const struct options *o, char *mem)
{
	int fd = accept(listen_fd, NULL, NULL);
	char done = 1;

	if (fd < 0)
		bench_die("accept");
	tune(fd, o);
	bench_pin(1);
	if (o->framed)
		read_framed(fd, o, mem);
	else
		read_stream(fd, o, mem);
	if (send(fd, &done, 1, MSG_NOSIGNAL) != 1)
		bench_die("send");
	(void)recv(fd, &done, 1, 0);
}

static double writer(const struct sockaddr_in *addr, const struct options *o, char *mem)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	double start;
	char done;

	if (fd < 0)
		bench_die("socket");
	tune(fd, o);
	if (connect(fd, (const struct sockaddr *)addr, sizeof(*addr)) != 0)
		bench_die("connect");
	bench_pin(0);
	start = bench_now_s();
	if (o->framed)
		write_framed(fd, o, mem);
	else
		write_stream(fd, o, mem);
	if (recv(fd, &done, 1, 0) != 1)
		bench_die("recv");
	start = bench_now_s() - start;
	(void)close(fd);
	return start;
}

static void parse(int argc, char **argv, struct options *o)
{
	*o = (struct options){ .size = 1 << 20, .batch = 1, .total = UINT64_C(4) << 30 };
	if (argc < 2 || (strcmp(argv[1], "stream") != 0 && strcmp(argv[1], "framed") != 0)) {
		(void)fprintf(stderr, "usage: tcp_floor stream|framed [--size N] [--batch N] "
		                      "[--total N] [--sockbuf N] [--one] [--poll] [--json]\n");
		exit(2);
	}
	o->framed = strcmp(argv[1], "framed") == 0;
	for (int i = 2; i < argc; i++) {
		uint64_t *value = strcmp(argv[i], "--size") == 0      ? &o->size
		                  : strcmp(argv[i], "--batch") == 0   ? &o->batch
		                  : strcmp(argv[i], "--total") == 0   ? &o->total
		                  : strcmp(argv[i], "--sockbuf") == 0 ? &o->sockbuf
		                                                      : NULL;

		if (strcmp(argv[i], "--json") == 0)
			o->json = true;
		else if (strcmp(argv[i], "--one") == 0)
			o->one = true;
		else if (strcmp(argv[i], "--poll") == 0)
			o->poll = true;
		else if (value && i + 1 < argc)
			*value = bench_size(argv[++i]);
		else
			exit(2);
	}
	if (o->size == 0 || BENCH_WALK_BYTES % o->size != 0 || o->batch == 0 ||
	    o->batch > BATCH_MAX)
		exit(2);
	o->total -= o->total % (o->size * o->batch);
}

int main(int argc, char **argv)
{
	struct options o;
	struct sockaddr_in addr;
	struct bench_result r;
	double cpu_s;
	char *mem;
	int listen_fd;
	int status;
	pid_t child;

	parse(argc, argv, &o);
	mem = bench_shared(2 * BENCH_WALK_BYTES);
	listen_fd = listen_on_loopback(&o, &addr);
	cpu_s = bench_cpu_s();
	child = fork();
	if (child < 0)
		bench_die("fork");
	if (child == 0) {
		reader(listen_fd, &o, mem + BENCH_WALK_BYTES);
		_exit(0);
	}
	r = (struct bench_result){ .name = o.framed ? "floor-framed" : "floor-stream",
		                   .block_bytes = o.size,
		                   .batch = o.batch,
		                   .blocks = o.total / o.size,
		                   .seconds = writer(&addr, &o, mem) };
	if (waitpid(child, &status, 0) != child || status != 0)
		bench_die("reader");
	r.cpu_seconds = bench_cpu_s() - cpu_s;
	bench_print(&r, o.json);
	return 0;
}
