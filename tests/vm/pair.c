/* SPDX-License-Identifier: Apache-2.0 */
#include "vm/pair.h"

#include "plat/clock.h"
#include "plat/rand.h"

#include <dlfcn.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

enum { WAIT_MS = 20, NICS_MAX = 16 };

const char *pair_nic(uint32_t i)
{
	static char nics[NICS_MAX][PROV_TEXT_BYTES];
	static uint32_t count;

	if (count == 0)
		count = prov_verbs_ops.list_nics(nics, NICS_MAX);
	return i < count ? nics[i] : NULL;
}

struct fake_knobs *pair_fake(void)
{
	static struct fake_knobs *knobs;
	static struct fake_knobs defaults;
	const char *path = getenv("WIMM_VERBS_LIBRARY");
	void *handle;

	if (knobs == NULL) {
		handle = path != NULL ? dlopen(path, RTLD_NOW) : NULL;
		knobs = handle != NULL ? dlsym(handle, "fake_knobs") : NULL;
		if (knobs == NULL)
			fail_msg("WIMM_VERBS_LIBRARY names no fake library");
		defaults = *knobs;
	}
	*knobs = defaults;
	return knobs;
}

void side_open(struct side *s, const char *nic)
{
	static const uint8_t instance[16] = { 1 };
	struct prov_args args = {
		.nic = nic, .instance = instance, .peer_timeout_ms = 2000, .max_regions = 64
	};
	struct prov_error error;

	if (prov_verbs_ops.open(&args, &s->caps, &s->dev, &error) != WIMM_OK)
		fail_msg("open %s: %s", nic, error.text);
	prov_verbs_ops.addr(s->dev, &s->addr);
	s->max = 64;
}

void side_close(struct side *s)
{
	if (s->dev)
		prov_verbs_ops.close(s->dev);
	free(s->mem);
	memset(s, 0, sizeof(*s));
}

static void count_done(struct side *s, const struct prov_cqe *cqe)
{
	bool sent = cqe->flags & PROV_CQE_SENT;

	assert_true(cqe->count > 0);
	s->units[cqe->token % PAIR_TOKENS] += cqe->count;
	if (cqe->status == WIMM_OK) {
		s->done_ok += cqe->count;
		return;
	}
	assert_int_equal(cqe->status, WIMM_E_PATH_LOST);
	s->done_lost += cqe->count;
	s->done_lost_sent += sent ? cqe->count : 0;
}

void ctl_fill(uint8_t *out, uint32_t len_bytes, uint32_t n)
{
	for (uint32_t i = 0; i < len_bytes; i++)
		out[i] = (uint8_t)(n * 31 + i * 7 + (i >> 8));
}

static void count_message(struct side *s, const struct prov_cqe *cqe)
{
	static uint8_t want[1u << 20];

	ctl_fill(want, cqe->len_bytes, s->ctl_msgs);
	for (uint32_t i = 0; i < cqe->len_bytes; i++)
		s->ctl_wrong += cqe->data[i] != want[i];
	s->ctl_msgs++;
	s->ctl_msg_bytes += cqe->len_bytes;
}

static void count_ctl(struct side *s, const struct prov_cqe *cqe)
{
	switch (cqe->kind) {
	case PROV_CTL_NEW:
		s->ctl_new++;
		s->ctl = cqe->ctl;
		prov_verbs_ops.ctl_set_context(cqe->ctl, s);
		break;
	case PROV_CTL_MSG:
		assert_ptr_equal(cqe->context, s);
		count_message(s, cqe);
		break;
	default:
		assert_ptr_equal(cqe->context, s);
		assert_false(s->ctl_down);
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
		assert_true(s->up && !s->down);
		s->imms += cqe->count;
		s->imm_events++;
		s->last_imm = cqe->imm;
		break;
	case PROV_PART:
		assert_true(s->up && !s->down);
		s->parts += cqe->count;
		s->last_part = *cqe;
		break;
	case PROV_PATH_UP:
		assert_false(s->up);
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

uint32_t side_poll(struct side *s)
{
	struct prov_cqe cqes[64];
	uint32_t n = prov_verbs_ops.poll(s->dev, clock_now_ns(), cqes, s->max);

	assert_true(n <= s->max);
	for (uint32_t i = 0; i < n; i++) {
		s->nic_down = s->nic_down || cqes[i].kind == PROV_NIC_DOWN;
		if (cqes[i].kind == PROV_NIC_DOWN)
			snprintf(s->nic_text, sizeof(s->nic_text), "%s", cqes[i].text);
		else if (cqes[i].kind >= PROV_CTL_NEW && cqes[i].kind <= PROV_CTL_DOWN)
			count_ctl(s, &cqes[i]);
		else
			count_path_event(cqes[i].context, &cqes[i]);
	}
	return n;
}

/* Wait for either device without spinning; also exercises arm() and fd(). */
static void wait_for_work(struct pair *p)
{
	struct pollfd fds[2];
	nfds_t count = 0;
	struct side *sides[] = { &p->a, &p->b };
	int wait_ms = WAIT_MS;

	for (int i = 0; i < 2; i++) {
		uint64_t now = clock_now_ns();
		uint64_t next;

		if (!sides[i]->dev)
			continue;
		if (!prov_verbs_ops.arm(sides[i]->dev))
			return;
		next = prov_verbs_ops.next_ns(sides[i]->dev);
		if (next <= now)
			return;
		if ((next - now) / CLOCK_NS_PER_MS < (uint64_t)wait_ms)
			wait_ms = (int)((next - now) / CLOCK_NS_PER_MS);
		fds[count++] = (struct pollfd){ prov_verbs_ops.fd(sides[i]->dev), POLLIN, 0 };
	}
	(void)poll(fds, count, wait_ms);
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
		fail_msg("not within the deadline; a: %s %s b: %s %s", p->a.down_text,
		         p->a.ctl_down_text, p->b.down_text, p->b.ctl_down_text);
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

static void add_memory(struct side *s, uint64_t seed)
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
	if (prov_verbs_ops.reg(s->dev, s->mem, PAIR_MEM_BYTES, PROV_REG_REMOTE,
	                       UINT64_C(1) << 32 | seed, &s->key, &error) != WIMM_OK)
		fail_msg("register: %s", error.text);
}

void pair_open_devs(struct pair *p)
{
	memset(p, 0, sizeof(*p));
	p->ops = &prov_verbs_ops;
	side_open(&p->a, pair_nic(0));
	side_open(&p->b, pair_nic(1) != NULL ? pair_nic(1) : pair_nic(0));
	add_memory(&p->a, 1);
	add_memory(&p->b, 2);
}

void pair_dial(struct pair *p)
{
	struct prov_error error = { 0 };
	struct prov_offer offer_a;
	struct prov_offer offer_b;
	struct side *a = &p->a, *b = &p->b;

	a->up = b->up = a->closed = b->closed = a->down = b->down = false;
	b->path = p->ops->path_open(p->b.dev, &p->a.addr, false, b, &offer_b, &error);
	a->path = p->ops->path_open(p->a.dev, &p->b.addr, true, a, &offer_a, &error);
	assert_non_null(a->path);
	assert_non_null(b->path);
	p->ops->path_connect(a->path, &offer_b);
	p->ops->path_connect(b->path, &offer_a);
}

void pair_join(struct pair *p)
{
	pair_dial(p);
	pair_await(p, &p->a.up);
	pair_await(p, &p->b.up);
}

void pair_open(struct pair *p)
{
	pair_open_devs(p);
	pair_join(p);
}

void pair_close(struct pair *p)
{
	side_close(&p->a);
	side_close(&p->b);
}

static bool b_has_ctl(const struct pair *p)
{
	return p->b.ctl_new > 0 || p->a.ctl_down;
}

void pair_talk(struct pair *p)
{
	p->a.ctl = p->ops->ctl_open(p->a.dev, &p->b.addr, &p->a);
	assert_non_null(p->a.ctl);
	if (!pair_until(p, b_has_ctl) || p->a.ctl_down)
		fail_msg("no ctl: %s", p->a.ctl_down_text);
}

struct prov_wr pair_wr(const struct pair *p, uint64_t token, uint64_t offset, uint64_t len_bytes)
{
	return (struct prov_wr){
		.token = token,
		.src = p->a.mem + offset,
		.len_bytes = len_bytes,
		.local_key = p->a.key,
		.remote_addr = (uint64_t)(uintptr_t)(p->b.mem + offset),
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
