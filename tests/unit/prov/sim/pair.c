/* SPDX-License-Identifier: Apache-2.0 */
#include "pair.h"

#include "base/alloc.h"

#include <string.h>

wimm_status pair_dev(struct pair *p, const char *nic, const uint8_t *instance,
                     struct prov_dev **out, struct prov_error *error)
{
	struct prov_args args = { .nic = nic, .instance = instance, .world = p->world };
	struct prov_caps caps;

	return p->ops->open(&args, &caps, out, error);
}

static void side_open(struct pair *p, int index)
{
	struct side *s = &p->side[index];
	struct prov_args args = { .nic = index == 0 ? "1" : "sim:2",
		                  .instance = s->instance,
		                  .world = p->world };
	struct prov_error error;

	memset(s->instance, 'a' + index, sizeof(s->instance));
	assert_ok(p->ops->open(&args, &s->caps, &s->dev, &error));
	p->ops->addr(s->dev, &s->addr);
}

void pair_open(struct pair *p, const struct sim_cfg *cfg)
{
	struct sim_cfg virtual = *cfg;
	struct prov_error error;

	memset(p, 0, sizeof(*p));
	virtual.virtual_time = true;
	p->ops = &prov_sim_ops;
	assert_ok(sim_world_open(&virtual, &p->world));
	side_open(p, 0);
	side_open(p, 1);
	for (size_t i = 0; i < sizeof(p->src); i++)
		p->src[i] = (uint8_t)(i * 7 + i / 256);
	memset(p->dst, 0xee, sizeof(p->dst));
	assert_ok(p->ops->reg(p->side[0].dev, p->src, sizeof(p->src), 0, 0x100000001, &p->src_key,
	                      &error));
	assert_ok(p->ops->reg(p->side[1].dev, p->dst, sizeof(p->dst), PROV_REG_REMOTE, 0x200000002,
	                      &p->dst_key, &error));
}

void pair_connect(struct pair *p)
{
	struct prov_offer offer[2];

	for (int i = 0; i < 2; i++) {
		p->path[i] = p->ops->path_open(p->side[i].dev, &p->side[1 - i].addr, i == 0,
		                               &p->context[i], &offer[i],
		                               &(struct prov_error){ 0 });
		assert_non_null(p->path[i]);
	}
	p->ops->path_connect(p->path[1], &offer[0]);
	p->ops->path_connect(p->path[0], &offer[1]);
	pair_run(p);
}

void pair_open_path(struct pair *p, const struct sim_cfg *cfg)
{
	pair_open(p, cfg);
	pair_connect(p);
	assert_int_equal(pair_count(p, 0, PROV_PATH_UP), 1);
	assert_int_equal(pair_count(p, 1, PROV_PATH_UP), 1);
}

void pair_close(struct pair *p)
{
	assert_null(sim_violation(p->world));
	p->ops->close(p->side[0].dev);
	p->ops->close(p->side[1].dev);
	sim_world_close(p->world);
	assert_int_equal(mem_live_blocks(), 0);
}

void pair_poll(struct pair *p, int side)
{
	struct side *s = &p->side[side];
	uint64_t now_ns = sim_world_now_ns(p->world);
	uint32_t n;

	do {
		n = p->ops->poll(s->dev, now_ns, s->event + s->events, 8);
		for (uint32_t i = s->events; i < s->events + n; i++) {
			struct prov_cqe *cqe = &s->event[i];

			if (cqe->text)
				snprintf(s->text, sizeof(s->text), "%s", cqe->text);
			if (cqe->kind == PROV_CTL_MSG && cqe->len_bytes <= PAIR_TEXT)
				memcpy(s->message, cqe->data, cqe->len_bytes);
			cqe->text = NULL; /* ends with the next poll, as data does */
			cqe->data = NULL;
		}
		s->events += n;
		assert_true(s->events + 8 <= PAIR_EVENTS);
	} while (n > 0);
}

void pair_run_until(struct pair *p, uint64_t now_ns)
{
	uint64_t next_ns;

	pair_poll(p, 0);
	pair_poll(p, 1);
	while ((next_ns = sim_world_next_ns(p->world)) <= now_ns && next_ns != UINT64_MAX) {
		sim_world_advance(p->world, next_ns);
		pair_poll(p, 0);
		pair_poll(p, 1);
	}
	if (now_ns != UINT64_MAX)
		sim_world_advance(p->world, now_ns);
}

void pair_run(struct pair *p)
{
	pair_run_until(p, UINT64_MAX);
}

uint32_t pair_write(struct pair *p, uint64_t token, uint64_t offset_bytes, uint64_t len_bytes,
                    uint32_t flags, uint32_t imm)
{
	struct prov_wr wr = { .token = token,
		              .src = p->src + offset_bytes,
		              .len_bytes = len_bytes,
		              .local_key = p->src_key,
		              .remote_addr = (uint64_t)(uintptr_t)(p->dst + offset_bytes),
		              .remote_key = p->dst_key,
		              .imm = imm,
		              .flags = flags };

	return p->ops->post(p->path[0], &wr, 1);
}

uint32_t pair_count(const struct pair *p, int side, enum prov_cqe_kind kind)
{
	const struct side *s = &p->side[side];
	uint32_t count = 0;

	for (uint32_t i = 0; i < s->events; i++) {
		if (s->event[i].kind == kind)
			count += s->event[i].count > 0 ? s->event[i].count : 1;
	}
	return count;
}

const struct prov_cqe *pair_find(const struct pair *p, int side, enum prov_cqe_kind kind)
{
	const struct side *s = &p->side[side];

	for (uint32_t i = 0; i < s->events; i++) {
		if (s->event[i].kind == kind)
			return &s->event[i];
	}
	return NULL;
}

const struct prov_cqe *pair_done(const struct pair *p, uint64_t token)
{
	const struct side *s = &p->side[0];
	const struct prov_cqe *found = NULL;
	uint32_t count = 0;

	for (uint32_t i = 0; i < s->events; i++) {
		if (s->event[i].kind == PROV_DONE && s->event[i].token == token) {
			found = &s->event[i];
			count += found->count;
		}
	}
	assert_int_equal(count, 1);
	return found;
}
