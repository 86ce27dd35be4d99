/* SPDX-License-Identifier: Apache-2.0 */
#include "stub.h"

#include "prov/providers.h"

#include <stdlib.h>
#include <string.h>

enum { PATHS_MAX = 64, DONE_MAX = 1 << 16 };

static struct {
	struct prov_path *path;
	struct prov_dev *dev;
	void *context;
} paths[PATHS_MAX];
static uint32_t path_count;

/* A ring of what is done and not reported yet; only one device posts. */
static struct prov_dev *poster;
static struct prov_cqe done[DONE_MAX];
static uint32_t done_head, done_tail;
static bool held;
static uint64_t posted;
static uint64_t reached_at;
static void (*reached_fn)(void);

const char *const stub_provider = "sim";

const char *stub_nic(uint32_t i)
{
	(void)i;
	return NULL;
}

void stub_arm(uint64_t count, void (*reached)(void), void (*aside)(void))
{
	(void)aside;
	reached_at = posted + count;
	reached_fn = reached;
}

void stub_hold(bool hold)
{
	held = hold;
}

uint64_t stub_posted(void)
{
	return posted;
}

static wimm_status stub_open(const struct prov_args *args, struct prov_caps *caps,
                             struct prov_dev **out, struct prov_error *error)
{
	wimm_status st = prov_sim_ops.open(args, caps, out, error);

	caps->ordered = true; /* as tcp and RC are */
	caps->post_depth = DONE_MAX / 2;
	return st;
}

static struct prov_path *stub_path_open(struct prov_dev *dev, const struct prov_addr *remote,
                                        bool active, void *context, struct prov_offer *out,
                                        struct prov_error *error)
{
	struct prov_path *path = prov_sim_ops.path_open(dev, remote, active, context, out, error);

	if (path_count == PATHS_MAX)
		abort();
	paths[path_count].path = path;
	paths[path_count].dev = dev;
	paths[path_count++].context = context;
	return path;
}

static void *context_of(const struct prov_path *path)
{
	uint32_t i = 0;

	while (paths[i].path != path)
		i++;
	if (poster != NULL && poster != paths[i].dev)
		abort();
	poster = paths[i].dev;
	return paths[i].context;
}

static uint32_t stub_post(struct prov_path *path, const struct prov_wr *wr, uint32_t n)
{
	void *context;

	if (reached_fn != NULL && posted + n >= reached_at) {
		reached_fn();
		reached_fn = NULL;
	}
	context = context_of(path);
	for (uint32_t i = 0; i < n; i++) {
		if (done_tail - done_head == DONE_MAX)
			abort();
		done[done_tail++ % DONE_MAX] = (struct prov_cqe){
			.kind = PROV_DONE, .context = context, .token = wr[i].token, .count = 1
		};
	}
	posted += n;
	return n;
}

static uint32_t stub_poll(struct prov_dev *dev, uint64_t now_ns, struct prov_cqe *out, uint32_t max)
{
	uint32_t n = prov_sim_ops.poll(dev, now_ns, out, max);

	while (dev == poster && !held && n < max && done_head != done_tail)
		out[n++] = done[done_head++ % DONE_MAX];
	return n;
}

static const struct prov_ops *stub_ops(void)
{
	static struct prov_ops ops;

	ops = prov_sim_ops;
	ops.open = stub_open;
	ops.path_open = stub_path_open;
	ops.post = stub_post;
	ops.poll = stub_poll;
	return &ops;
}

/* In place of src/prov/registry.c. */
const struct prov_ops *prov_find(const char *name)
{
	return strcmp(name, "sim") == 0 ? stub_ops() : NULL;
}

const struct prov_ops *prov_same_host(void)
{
	return NULL; /* no device of the stub's leaves the machine */
}

const struct prov_ops *prov_at(uint32_t index)
{
	return index == 0 ? stub_ops() : NULL;
}
