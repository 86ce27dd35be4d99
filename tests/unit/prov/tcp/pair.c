/* SPDX-License-Identifier: Apache-2.0 */
#include "pair.h"

#include "plat/clock.h"
#include "plat/rand.h"
#include "plat/thread.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { REGIONS = 64, WAIT_MS = 20 };

void side_open(struct side *s, const char *nic)
{
	struct prov_args args = { .nic = nic, .peer_timeout_ms = 5000, .max_regions = REGIONS };
	struct prov_error error;
	wimm_status st = prov_tcp_ops.open(&args, &s->caps, &s->dev, &error);

	if (st != WIMM_OK)
		fail_msg("open %s: %s", nic, error.text);
	prov_tcp_ops.addr(s->dev, &s->addr);
	s->max = 64;
}

void side_close(struct side *s)
{
	if (s->dev)
		prov_tcp_ops.close(s->dev);
	free(s->mem);
	memset(s, 0, sizeof(*s));
}

uint16_t side_port(const struct side *s)
{
	union tcp_sockaddr sa;

	assert_ok(tcp_addr_decode(&s->addr, &sa));
	return tcp_sockaddr_port(&sa);
}

static void count_done(struct side *s, const struct prov_cqe *cqe)
{
	bool sent = cqe->flags & PROV_CQE_SENT;

	assert_true(cqe->count > 0);
	s->units[cqe->token % PAIR_TOKENS] += cqe->count;
	switch ((int)cqe->status) {
	case WIMM_OK:
		s->done_ok += cqe->count;
		break;
	case WIMM_E_CANCELLED:
		s->done_cancelled += cqe->count;
		s->done_cancelled_sent += sent ? cqe->count : 0;
		break;
	case WIMM_E_PATH_LOST:
		s->done_lost += cqe->count;
		s->done_lost_sent += sent ? cqe->count : 0;
		break;
	default:
		fail_msg("unexpected status %d", (int)cqe->status);
	}
}

static void count_ctl(struct side *s, const struct prov_cqe *cqe)
{
	uint32_t keep = cqe->len_bytes < sizeof(s->ctl_last) ? cqe->len_bytes : sizeof(s->ctl_last);

	switch (cqe->kind) {
	case PROV_CTL_NEW:
		s->ctl_new++;
		s->ctl = cqe->ctl;
		prov_tcp_ops.ctl_set_context(cqe->ctl, s);
		break;
	case PROV_CTL_MSG:
		assert_ptr_equal(cqe->context, s);
		s->ctl_msgs++;
		s->ctl_msg_bytes += cqe->len_bytes;
		if (keep > 0)
			memcpy(s->ctl_last, cqe->data, keep);
		break;
	default:
		assert_ptr_equal(cqe->context, s);
		s->ctl_down = true;
		s->ctl_down_status = cqe->status;
		(void)snprintf(s->ctl_down_text, sizeof(s->ctl_down_text), "%s", cqe->text);
		break;
	}
}

static void count_path_event(struct side *s, const struct prov_cqe *cqe)
{
	assert_false(s->closed);
	switch (cqe->kind) {
	case PROV_DONE:
		count_done(s, cqe);
		break;
	case PROV_IMM:
		s->imms += cqe->count;
		s->imm_events++;
		s->last_imm = cqe->imm;
		break;
	case PROV_PART:
		s->parts += cqe->count;
		s->last_part = *cqe;
		break;
	case PROV_PATH_UP:
		s->up = true;
		break;
	case PROV_PATH_DOWN:
		assert_false(s->down);
		s->down = true;
		s->down_status = cqe->status;
		(void)snprintf(s->down_text, sizeof(s->down_text), "%s", cqe->text);
		break;
	case PROV_PATH_CLOSED:
		s->closed = true;
		s->path = NULL;
		break;
	default:
		fail_msg("event %d", (int)cqe->kind);
	}
}

static void count_event(struct side *s, const struct prov_cqe *cqe)
{
	if (cqe->kind == PROV_CTL_NEW || cqe->kind == PROV_CTL_MSG || cqe->kind == PROV_CTL_DOWN)
		count_ctl(s, cqe);
	else
		count_path_event(cqe->context, cqe);
}

uint32_t side_poll(struct side *s)
{
	struct prov_cqe cqes[64];
	uint32_t n = prov_tcp_ops.poll(s->dev, clock_now_ns(), cqes, s->max);

	assert_true(n <= s->max);
	for (uint32_t i = 0; i < n; i++)
		count_event(s, &cqes[i]);
	return n;
}

void side_turns(struct side *s, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		(void)side_poll(s);
}

/* Wait for either device without spinning; also exercises arm() and fd(). */
static void wait_for_work(struct pair *p)
{
	struct pollfd fds[2];
	nfds_t count = 0;
	struct side *sides[] = { &p->a, &p->b };

	for (int i = 0; i < 2; i++) {
		if (!sides[i]->dev)
			continue;
		if (!prov_tcp_ops.arm(sides[i]->dev))
			return;
		fds[count++] = (struct pollfd){ prov_tcp_ops.fd(sides[i]->dev), POLLIN, 0 };
	}
	(void)poll(fds, count, WAIT_MS);
}

bool pair_until(struct pair *p, bool (*cond)(const struct pair *p))
{
	uint64_t deadline = clock_now_ns() + TEST_DEADLINE_MS * CLOCK_NS_PER_MS;

	while (!cond(p)) {
		uint32_t n = p->a.dev ? side_poll(&p->a) : 0;

		n += p->b.dev ? side_poll(&p->b) : 0;
		if (n == 0) {
			if (clock_now_ns() > deadline)
				return false;
			wait_for_work(p);
		}
	}
	return true;
}

static const bool *awaited;

static bool flag_set(const struct pair *p)
{
	(void)p;
	return *awaited;
}

void pair_await(struct pair *p, const bool *flag)
{
	awaited = flag;
	if (!pair_until(p, flag_set))
		fail_msg("not within the deadline; a: %s b: %s", p->a.down_text, p->b.down_text);
}

void side_await(struct side *s, const bool *flag)
{
	uint64_t deadline = clock_now_ns() + TEST_DEADLINE_MS * CLOCK_NS_PER_MS;

	while (!*flag) {
		(void)side_poll(s);
		if (clock_now_ns() > deadline)
			fail_msg("not within the deadline: %s", s->down_text);
	}
}

static struct {
	uint64_t done_ok;
	uint64_t imms;
} goal;

static bool drained(const struct pair *p)
{
	return p->a.done_ok >= goal.done_ok && p->b.imms >= goal.imms;
}

void pair_drain(struct pair *p, uint64_t done_ok, uint64_t imms)
{
	goal.done_ok = done_ok;
	goal.imms = imms;
	if (!pair_until(p, drained))
		fail_msg("done %llu of %llu, immediates %llu of %llu, down a %s b %s",
		         (unsigned long long)p->a.done_ok, (unsigned long long)done_ok,
		         (unsigned long long)p->b.imms, (unsigned long long)imms, p->a.down_text,
		         p->b.down_text);
	assert_int_equal(p->a.done_ok, done_ok);
	assert_int_equal(p->b.imms, imms);
}

static void add_memory(struct side *s, uint32_t slot, uint64_t seed)
{
	struct prov_error error;
	struct rng r;

	s->mem = aligned_alloc(4096, PAIR_MEM_BYTES);
	assert_non_null(s->mem);
	rng_init(&r, seed);
	for (uint32_t i = 0; i < PAIR_MEM_BYTES; i += 8) {
		uint64_t v = rng_u64(&r);

		memcpy(s->mem + i, &v, sizeof(v));
	}
	assert_ok(prov_tcp_ops.reg(s->dev, s->mem, PAIR_MEM_BYTES, PROV_REG_REMOTE,
	                           (UINT64_C(0x1234) + slot) << 32 | slot, &s->key, &error));
}

void pair_open_devs(struct pair *p, const char *nic)
{
	memset(p, 0, sizeof(*p));
	p->ops = &prov_tcp_ops;
	side_open(&p->a, nic);
	side_open(&p->b, nic);
	add_memory(&p->a, 3, 1);
	add_memory(&p->b, 5, 2);
}

static void join(struct pair *p, struct side *a, struct side *b)
{
	struct prov_offer offer_a;
	struct prov_offer offer_b;

	a->up = b->up = a->closed = b->closed = a->down = b->down = false;
	b->path = p->ops->path_open(p->b.dev, &p->a.addr, false, b, &offer_b,
	                            &(struct prov_error){ 0 });
	a->path = p->ops->path_open(p->a.dev, &p->b.addr, true, a, &offer_a,
	                            &(struct prov_error){ 0 });
	assert_non_null(a->path);
	assert_non_null(b->path);
	p->ops->path_connect(a->path, &offer_b);
	p->ops->path_connect(b->path, &offer_a);
	pair_await(p, &a->up);
	pair_await(p, &b->up);
}

void pair_join(struct pair *p)
{
	join(p, &p->a, &p->b);
}

void pair_join_second(struct pair *p)
{
	join(p, &p->a2, &p->b2);
}

void pair_open(struct pair *p, const char *nic)
{
	pair_open_devs(p, nic);
	pair_join(p);
}

void pair_close(struct pair *p)
{
	side_close(&p->a);
	side_close(&p->b);
}

struct prov_wr pair_wr(const struct pair *p, uint64_t token, uint64_t src_off, uint64_t dst_off,
                       uint64_t len_bytes)
{
	return (struct prov_wr){
		.token = token,
		.src = p->a.mem + src_off,
		.len_bytes = len_bytes,
		.local_key = p->a.key,
		.remote_addr = (uint64_t)(uintptr_t)(p->b.mem + dst_off),
		.remote_key = p->b.key,
	};
}

void pair_post_all(struct pair *p, const struct prov_wr *wr, uint32_t n)
{
	uint64_t deadline = clock_now_ns() + TEST_DEADLINE_MS * CLOCK_NS_PER_MS;

	while (n > 0) {
		uint32_t taken = p->ops->post(p->a.path, wr, n);

		wr += taken;
		n -= taken;
		if (side_poll(&p->a) + side_poll(&p->b) == 0 && clock_now_ns() > deadline)
			fail_msg("queue full for ever: %s", p->a.down_text);
	}
}

int raw_dial(const struct side *to)
{
	union tcp_sockaddr sa;
	int fd;

	assert_ok(tcp_addr_decode(&to->addr, &sa));
	fd = socket(sa.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_true(fd >= 0);
	assert_ok(connect(fd, &sa.any, tcp_sockaddr_len(&sa)));
	return fd;
}

void raw_send(int fd, const void *data, size_t bytes)
{
	/* A peer that has hung up already is part of some tests. */
	ssize_t sent = send(fd, data, bytes, MSG_NOSIGNAL);

	assert_true(sent == (ssize_t)bytes || sent < 0);
}

bool raw_read(struct side *s, int fd, void *out, size_t bytes)
{
	uint64_t deadline = clock_now_ns() + TEST_DEADLINE_MS * CLOCK_NS_PER_MS;
	size_t have = 0;

	while (have < bytes) {
		ssize_t got = recv(fd, (uint8_t *)out + have, bytes - have, MSG_DONTWAIT);

		if (got > 0)
			have += (size_t)got;
		else if (got == 0 || errno != EAGAIN)
			return false;
		else
			(void)side_poll(s);
		if (clock_now_ns() > deadline)
			fail_msg("%zu bytes of %zu within the deadline", have, bytes);
	}
	return true;
}

void raw_await_end(struct side *s, int fd)
{
	uint8_t junk;

	while (raw_read(s, fd, &junk, 1))
		continue;
}

int raw_path(struct pair *p)
{
	uint8_t preface[TCP_PREFACE_BYTES];
	uint8_t answer[TCP_ANSWER_BYTES];
	uint8_t refusal = 99;
	struct prov_offer offer;
	struct prov_offer active;
	int fd;

	p->b.path = p->ops->path_open(p->b.dev, &p->a.addr, false, &p->b, &offer,
	                              &(struct prov_error){ 0 });
	tcp_preface_encode(TCP_KIND_PATH, offer.bytes + 2, preface);
	fd = raw_dial(&p->b);
	raw_send(fd, preface, sizeof(preface));
	assert_true(raw_read(&p->b, fd, answer, sizeof(answer)));
	assert_ok(tcp_answer_decode(answer, &refusal));
	assert_int_equal(refusal, TCP_WELCOME);
	active = offer;
	active.bytes[1] = 1; /* the role of the dialler */
	p->b.up = p->b.down = p->b.closed = false;
	p->ops->path_connect(p->b.path, &active);
	side_await(&p->b, &p->b.up);
	return fd;
}
