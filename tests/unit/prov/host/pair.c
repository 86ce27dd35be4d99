/* SPDX-License-Identifier: Apache-2.0 */
#include "pair.h"

#include "base/config.h"
#include "mem/shared.h"
#include "plat/clock.h"
#include "plat/rand.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

enum { REGIONS = 64, WAIT_MS = 20 };

static const struct prov_ops *const ops = &prov_host_ops;

void side_open(struct side *s, const char *nic)
{
	struct prov_args args = { .nic = nic, .peer_timeout_ms = 5000, .max_regions = REGIONS };
	struct prov_error error;
	wimm_status st = ops->open(&args, &s->caps, &s->dev, &error);

	if (st != WIMM_OK)
		fail_msg("open %s: %s", nic, error.text);
	ops->addr(s->dev, &s->addr);
	s->max = 64;
}

void side_close(struct side *s)
{
	if (s->dev)
		ops->close(s->dev);
	if (s->own)
		assert_ok(mem_shared_free(s->mem));
	else
		free(s->mem);
	memset(s, 0, sizeof(*s));
}

static void count_done(struct side *s, const struct prov_cqe *cqe)
{
	bool sent = cqe->flags & PROV_CQE_SENT;

	assert_true(cqe->count > 0);
	s->units[cqe->token % PAIR_TOKENS] += cqe->count;
	s->done_reading += cqe->flags & PROV_CQE_READING ? cqe->count : 0;
	if (cqe->status == WIMM_OK) {
		s->done_ok += cqe->count;
	} else if (cqe->status == WIMM_E_CANCELLED) {
		s->done_cancelled += cqe->count;
		s->done_cancelled_sent += sent ? cqe->count : 0;
	} else {
		assert_int_equal(cqe->status, WIMM_E_PATH_LOST);
		s->done_lost += cqe->count;
		s->done_lost_sent += sent ? cqe->count : 0;
	}
}

static void count_ctl(struct side *s, const struct prov_cqe *cqe)
{
	uint32_t keep = cqe->len_bytes < sizeof(s->ctl_last) ? cqe->len_bytes : sizeof(s->ctl_last);

	if (cqe->kind == PROV_CTL_NEW) {
		s->ctl_new++;
		s->ctl = cqe->ctl;
		ops->ctl_set_context(cqe->ctl, s);
		return;
	}
	assert_ptr_equal(cqe->context, s);
	if (cqe->kind == PROV_CTL_MSG) {
		s->ctl_msgs++;
		s->ctl_msg_bytes += cqe->len_bytes;
		memcpy(s->ctl_last, cqe->data, keep);
		return;
	}
	assert_int_equal(cqe->kind, PROV_CTL_DOWN);
	s->ctl_down = true;
	s->ctl_down_status = cqe->status;
	(void)snprintf(s->ctl_down_text, sizeof(s->ctl_down_text), "%s", cqe->text);
}

static void count_event(struct side *s, const struct prov_cqe *cqe)
{
	if (cqe->kind >= PROV_CTL_NEW && cqe->kind <= PROV_CTL_DOWN) {
		count_ctl(s, cqe);
		return;
	}
	assert_ptr_equal(cqe->context, s);
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
		s->ups++;
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
		fail_msg("event of kind %d", (int)cqe->kind);
	}
}

uint32_t side_poll(struct side *s)
{
	struct prov_cqe cqes[64];
	uint32_t n = ops->poll(s->dev, clock_now_ns(), cqes, s->max);

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

/* Sleep until either device has something, or until its timer. */
static void wait_for_work(struct pair *p)
{
	struct side *sides[] = { &p->a, &p->b };
	struct pollfd fds[2];
	nfds_t count = 0;

	for (int i = 0; i < 2; i++) {
		if (!sides[i]->dev)
			continue;
		if (!ops->arm(sides[i]->dev))
			return;
		fds[count++] = (struct pollfd){ ops->fd(sides[i]->dev), POLLIN, 0 };
	}
	(void)poll(fds, count, WAIT_MS);
}

bool pair_until(struct pair *p, pair_cond cond)
{
	uint64_t deadline = clock_now_ns() + TEST_DEADLINE_MS * CLOCK_NS_PER_MS;

	while (!cond(p)) {
		uint32_t n = p->a.dev ? side_poll(&p->a) : 0;

		n += p->b.dev ? side_poll(&p->b) : 0;
		if (n > 0)
			continue;
		if (clock_now_ns() > deadline)
			return false;
		wait_for_work(p);
	}
	return true;
}

static uint64_t goal_done;
static uint64_t goal_imms;

static bool drained(const struct pair *p)
{
	return p->a.done_ok >= goal_done && p->b.imms >= goal_imms;
}

void pair_drain(struct pair *p, uint64_t done_ok, uint64_t imms)
{
	goal_done = done_ok;
	goal_imms = imms;
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
	void *mem;
	int code;

	assert_ok(s->own ? mem_shared_alloc(PAIR_MEM_BYTES, &mem, &code)
	                 : posix_memalign(&mem, 4096, PAIR_MEM_BYTES));
	s->mem = mem;
	rng_init(&r, seed);
	for (uint32_t i = 0; i < PAIR_MEM_BYTES; i += 8) {
		uint64_t v = rng_u64(&r);

		memcpy(s->mem + i, &v, sizeof(v));
	}
	assert_ok(ops->reg(s->dev, s->mem, PAIR_MEM_BYTES, PROV_REG_REMOTE,
	                   (UINT64_C(0x1234) + slot) << 32 | slot, &s->key, &error));
}

void pair_open_devs(struct pair *p, const char *way)
{
	memset(p, 0, sizeof(*p));
	p->a.own = p->b.own = strcmp(way, "own") == 0;
	assert_ok(config_set("host_way", p->b.own ? "auto" : way));
	side_open(&p->a, "any");
	side_open(&p->b, "any");
	add_memory(&p->a, 3, 1);
	add_memory(&p->b, 5, 2);
}

static bool both_up(const struct pair *p)
{
	return p->a.up && p->b.up;
}

void pair_join(struct pair *p)
{
	struct prov_offer a;
	struct prov_offer b;

	p->a.up = p->b.up = p->a.closed = p->b.closed = p->a.down = p->b.down = false;
	p->b.path = ops->path_open(p->b.dev, &p->a.addr, false, &p->b, &b,
	                           &(struct prov_error){ 0 });
	p->a.path = ops->path_open(p->a.dev, &p->b.addr, true, &p->a, &a,
	                           &(struct prov_error){ 0 });
	assert_non_null(p->a.path);
	assert_non_null(p->b.path);
	ops->path_connect(p->a.path, &b);
	ops->path_connect(p->b.path, &a);
	if (!pair_until(p, both_up))
		fail_msg("no path: %s / %s", p->a.down_text, p->b.down_text);
}

void pair_open(struct pair *p, const char *way)
{
	pair_open_devs(p, way);
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
		uint32_t taken = ops->post(p->a.path, wr, n);

		wr += taken;
		n -= taken;
		if (side_poll(&p->a) + side_poll(&p->b) == 0 && clock_now_ns() > deadline)
			fail_msg("queue full for ever: %s", p->a.down_text);
	}
}

bool pair_a_down(const struct pair *p)
{
	return p->a.down;
}

bool pair_b_down(const struct pair *p)
{
	return p->b.down;
}

bool pair_a_closed(const struct pair *p)
{
	return p->a.closed;
}

bool pair_b_closed(const struct pair *p)
{
	return p->b.closed;
}
