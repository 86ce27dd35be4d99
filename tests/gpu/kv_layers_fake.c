/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernels that move and check bytes do, for the driver of tests/fake: so that all of this
 * program but its arithmetic runs on machines without a GPU. Products and attention do nothing
 * there, and nothing that is timed means anything. */
#include "gpu/kv_layers.h"

#include "base/config.h"
#include "fake/cuda.h"

#include <dlfcn.h>
#include <string.h>

struct control {
	uint64_t seed, first_token, write_first, write_pages;
	uint64_t *word;
};

static struct fake_cuda_knobs *knobs;

static void *there(uint64_t ptr)
{
	void *at = knobs->shadow(ptr);

	return at ? at : (void *)(uintptr_t)ptr;
}

static void set_control(const uint64_t *p)
{
	struct control c = { p[1], p[2], p[3], p[4], (uint64_t *)(uintptr_t)p[5] };

	memcpy(there(p[0]), &c, sizeof(c));
}

static void bump_by(const uint64_t *p)
{
	struct control *c = there(p[0]);

	__atomic_add_fetch(c->word, p[1], __ATOMIC_RELEASE);
}

static uint64_t mark(uint64_t seed, uint64_t layer, uint64_t page, uint64_t i)
{
	return (seed << 48 ^ layer << 40 ^ page << 20 ^ i) * UINT64_C(0x9e3779b97f4a7c15);
}

static void write_pages(const uint64_t *p)
{
	const struct control *c = there(p[0]);
	const uint32_t *index = there(p[2]);
	uint8_t *layer = (uint8_t *)there(p[1]) + p[3] * p[4];

	for (uint64_t page = c->write_first; page < c->write_first + c->write_pages; page++) {
		uint64_t *to = (uint64_t *)(void *)(layer + index[page] * p[5]);

		for (uint64_t i = 0; i < p[5] / 8; i++)
			to[i] = mark(c->seed, p[3], page, i);
	}
}

/* cache, index, pages, layers, layer_bytes, page_bytes, seed, wrong */
static void check_pages(const uint64_t *p)
{
	const uint32_t *index = there(p[1]);
	uint64_t *wrong = there(p[7]);

	for (uint64_t layer = 0; layer < p[3]; layer++) {
		for (uint64_t page = 0; page < p[2]; page++) {
			const uint8_t *at =
				(uint8_t *)there(p[0]) + layer * p[4] + index[page] * p[5];
			const uint64_t *is = (const uint64_t *)(const void *)at;

			for (uint64_t i = 0; i < p[5] / 8; i++)
				*wrong += is[i] != mark(p[6], layer, page, i);
		}
	}
}

static void nothing(const uint64_t *p)
{
	(void)p;
}

bool kvl_fake_install(void)
{
	static const struct {
		const char *name;
		unsigned int params;
		void (*run)(const uint64_t *params);
	} kernels[] = {
		{ "set_control", 6, set_control }, { "bump_by", 2, bump_by },
		{ "write_pages", 6, write_pages }, { "check_pages", 8, check_pages },
		{ "fill_numbers", 4, nothing },    { "gemm", 7, nothing },
		{ "attention", 11, nothing },
	};
	char name[CONFIG_TEXT_BYTES];
	void *lib;

	config_get_text(CFG_CUDA_LIBRARY, name);
	lib = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	knobs = lib ? dlsym(lib, FAKE_CUDA_KNOBS) : NULL;
	if (!knobs)
		return false;
	for (size_t i = 0; i < sizeof(kernels) / sizeof(kernels[0]); i++)
		knobs->kernel(kernels[i].name, kernels[i].params, kernels[i].run);
	return true;
}
