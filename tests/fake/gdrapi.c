/* SPDX-License-Identifier: Apache-2.0 */
#include "fake/gdrapi.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

enum { PAGE = 64 << 10, HANDLES = 16 };

EXPORT struct fake_gdr_knobs fake_gdr_knobs = { .major = 2 };

struct gdr {
	void *(*shadow)(uint64_t ptr);
};

struct handle {
	unsigned long h;
};

struct info {
	uint64_t va, mapped_size;
	uint32_t page_size;
	uint64_t tm_cycles;
	uint32_t cycles_per_ms;
	unsigned int mapped : 1, wc_mapping : 1;
	int mapping_type;
};

static struct gdr gdr;
static struct {
	uint64_t addr, bytes;
} pins[HANDLES]; /* by handle - 1 */

EXPORT struct gdr *gdr_open(void)
{
	void *cuda = dlopen(getenv("WIMM_CUDA_LIBRARY"), RTLD_NOW | RTLD_NOLOAD);
	void *symbol = cuda ? dlsym(cuda, "fake_cuda_shadow") : NULL;

	if (fake_gdr_knobs.absent || !symbol)
		return NULL;
	memcpy(&gdr.shadow, &symbol, sizeof(symbol));
	fake_gdr_knobs.opened++;
	return &gdr;
}

EXPORT int gdr_close(struct gdr *g)
{
	(void)g;
	fake_gdr_knobs.opened--;
	return 0;
}

EXPORT int gdr_pin_buffer(struct gdr *g, unsigned long addr, size_t size, uint64_t token,
                          uint32_t va_space, struct handle *out)
{
	(void)token;
	(void)va_space;
	if (fake_gdr_knobs.fail_pin)
		return fake_gdr_knobs.fail_pin;
	if (size == 0 || !g->shadow(addr) || !g->shadow(addr + size - 1))
		return EINVAL;
	for (unsigned long i = 0; i < HANDLES; i++) {
		if (pins[i].bytes != 0)
			continue;
		pins[i].addr = addr;
		pins[i].bytes = size;
		out->h = i + 1;
		fake_gdr_knobs.pinned++;
		return 0;
	}
	return ENOMEM;
}

EXPORT int gdr_unpin_buffer(struct gdr *g, struct handle handle)
{
	(void)g;
	pins[handle.h - 1].bytes = 0;
	fake_gdr_knobs.pinned--;
	return 0;
}

EXPORT int gdr_get_info_v2(struct gdr *g, struct handle handle, struct info *out)
{
	(void)g;
	if (fake_gdr_knobs.fail_info)
		return fake_gdr_knobs.fail_info;
	*out = (struct info){ .va = pins[handle.h - 1].addr / PAGE * PAGE,
		              .mapped_size = pins[handle.h - 1].bytes,
		              .page_size = PAGE, .mapped = 1, .wc_mapping = 1, .mapping_type = 1 };
	return 0;
}

/* As the real one, from the page that holds the address. */
EXPORT int gdr_map(struct gdr *g, struct handle handle, void **out, size_t size)
{
	uint64_t addr = pins[handle.h - 1].addr;

	if (fake_gdr_knobs.fail_map || size > pins[handle.h - 1].bytes)
		return fake_gdr_knobs.fail_map ? fake_gdr_knobs.fail_map : EINVAL;
	*out = (uint8_t *)g->shadow(addr) - addr % PAGE;
	fake_gdr_knobs.mapped++;
	return 0;
}

EXPORT int gdr_unmap(struct gdr *g, struct handle handle, void *va, size_t size)
{
	(void)g;
	(void)handle;
	(void)va;
	(void)size;
	fake_gdr_knobs.mapped--;
	return 0;
}

EXPORT void gdr_runtime_get_version(int *major, int *minor)
{
	*major = fake_gdr_knobs.major;
	*minor = 5;
}

EXPORT int gdr_driver_get_version(struct gdr *g, int *major, int *minor)
{
	(void)g;
	*major = 2;
	*minor = 4;
	return 0;
}
