/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of a test's own, as functions that the test gives, and graphs of them. They run when they
 * are launched, whatever else is held back. */
#include "fake/cuda_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KERNELS = 32, PARAMS = 16 };

struct kernel {
	char name[64];
	unsigned int params;
	void (*run)(const uint64_t *params);
};

struct node {
	const struct kernel *kernel;
	uint64_t param[PARAMS];
};

struct graph {
	struct node *node;
	uint32_t count;
	uint32_t room;
};

static struct kernel kernels[KERNELS];
static void *captured_stream; /* one at a time */
static struct graph *captured;

void fake_kernel(const char *name, unsigned int params, void (*run)(const uint64_t *params))
{
	for (int i = 0; i < KERNELS && params <= PARAMS; i++) {
		if (kernels[i].run && strcmp(kernels[i].name, name) != 0)
			continue;
		(void)snprintf(kernels[i].name, sizeof(kernels[i].name), "%s", name);
		kernels[i].params = params;
		kernels[i].run = run;
		return;
	}
}

static bool add_node(struct graph *g, const struct node *node)
{
	if (g->count == g->room) {
		uint32_t room = g->room != 0 ? 2 * g->room : 64;
		struct node *grown = realloc(g->node, room * sizeof(*grown));

		if (!grown)
			return false;
		g->node = grown;
		g->room = room;
	}
	g->node[g->count++] = *node;
	return true;
}

int fake_kernel_launch(const char *name, void *stream, void **params)
{
	struct node node = { NULL, { 0 } };

	for (int i = 0; i < KERNELS && !node.kernel; i++)
		if (kernels[i].run && strcmp(kernels[i].name, name) == 0)
			node.kernel = &kernels[i];
	if (!node.kernel)
		return INVALID_VALUE;
	for (unsigned int i = 0; i < node.kernel->params; i++)
		memcpy(&node.param[i], params[i], sizeof(node.param[i]));
	if (captured && captured_stream == stream)
		return add_node(captured, &node) ? OK : OUT_OF_MEMORY;
	node.kernel->run(node.param);
	return OK;
}

EXPORT int cuStreamBeginCapture_v2(void *stream, int mode)
{
	(void)mode;
	if (captured)
		return INVALID_VALUE;
	captured = calloc(1, sizeof(*captured));
	captured_stream = stream;
	return captured ? OK : OUT_OF_MEMORY;
}

EXPORT int cuStreamEndCapture(void *stream, void **out)
{
	if (!captured || captured_stream != stream)
		return INVALID_VALUE;
	*out = captured;
	captured = NULL;
	return OK;
}

EXPORT int cuGraphInstantiateWithFlags(void **out, void *graph, unsigned long long flags)
{
	(void)flags;
	*out = graph;
	return OK;
}

EXPORT int cuGraphLaunch(struct graph *g, void *stream)
{
	(void)stream;
	for (uint32_t i = 0; i < g->count; i++)
		g->node[i].kernel->run(g->node[i].param);
	return OK;
}

EXPORT int cuCtxSynchronize(void)
{
	return OK;
}

EXPORT int cuMemcpy(uint64_t dst, uint64_t src, size_t bytes)
{
	memmove(fake_host(dst), fake_host(src), bytes);
	return OK;
}

EXPORT int cuMemCreate(uint64_t *out, size_t bytes, const void *prop, unsigned long long flags)
{
	(void)out;
	(void)bytes;
	(void)prop;
	(void)flags;
	return NOT_SUPPORTED;
}

EXPORT int cuStreamWaitValue64_v2(void *stream, uint64_t ptr, uint64_t value, unsigned int flags)
{
	(void)stream;
	(void)ptr;
	(void)value;
	(void)flags;
	return NOT_SUPPORTED;
}
