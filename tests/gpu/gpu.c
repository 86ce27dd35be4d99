/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/gpu.h"

#include "base/config.h"
#include "plat/clock.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const void *gpu_test_image(void);

struct gpu gpu;
static int failures;
static int failures_of_case;
static const char *case_name;

void gpu_must(int code, const char *what, const char *file, int line)
{
	if (code == 0)
		return;
	printf("FAILED %s: %s:%d: %s = %d\n", case_name ? case_name : "start", file, line, what,
	       code);
	(void)fflush(stdout);
	_Exit(1);
}

void gpu_check_true(bool ok, const char *what, const char *file, int line)
{
	if (ok)
		return;
	printf("FAILED %s: %s:%d: %s\n", case_name ? case_name : "start", file, line, what);
	failures++;
	failures_of_case++;
}

void gpu_case(const char *name)
{
	if (case_name && failures_of_case == 0)
		printf("ok %s\n", case_name);
	failures_of_case = 0;
	case_name = name;
	(void)fflush(stdout);
}

int gpu_end(void)
{
	gpu_case(NULL);
	return failures != 0;
}

void gpu_figure(const char *name, double value, const char *unit)
{
	printf("figure %s %.2f %s\n", name, value, unit);
	(void)fflush(stdout);
}

double gpu_now_s(void)
{
	return (double)clock_now_ns() / 1e9;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a;
	double y = *(const double *)b;

	return (x > y) - (x < y);
}

double gpu_percentile(double *values, uint64_t count, double p)
{
	qsort(values, count, sizeof(*values), by_value);
	return values[(uint64_t)((double)(count - 1) * p)];
}

static void find(void *handle, const char *name, void *out)
{
	void *symbol = dlsym(handle, name);

	MUST(symbol == NULL);
	memcpy(out, &symbol, sizeof(symbol));
}

void gpu_start(void)
{
	char name[CONFIG_TEXT_BYTES];
	void *handle;
	char why[256];
	int count = 0;

	config_get_text(CFG_CUDA_LIBRARY, name);
	handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	gpu.lib = handle ? cuda_lib_load(why, sizeof(why)) : NULL;
	if (!gpu.lib || gpu.lib->device_count(&count) != CU_OK || count == 0) {
		printf("skipped: no GPU here\n");
		exit(77);
	}
	MUST(mem_cuda_enter(0, &gpu.lib));
	find(handle, "cuMemAlloc_v2", &gpu.alloc);
	find(handle, "cuMemFree_v2", &gpu.free);
	find(handle, "cuMemcpy", &gpu.copy);
	find(handle, "cuCtxSynchronize", &gpu.sync);
	find(handle, "cuMemCreate", &gpu.vmm_create);
	find(handle, "cuStreamBeginCapture_v2", &gpu.capture);
	find(handle, "cuStreamEndCapture", &gpu.captured);
	find(handle, "cuGraphInstantiateWithFlags", &gpu.instantiate);
	find(handle, "cuGraphLaunch", &gpu.graph_launch);
	find(handle, "cuStreamWaitValue64_v2", &gpu.stream_wait64);
	MUST(gpu.lib->module_load(&gpu.module, gpu_test_image()));
	gpu.stream = gpu_stream();
}

struct cu_stream *gpu_stream(void)
{
	struct cu_stream *stream;

	MUST(gpu.lib->stream_create(&stream, CU_STREAM_FLAG, 0));
	return stream;
}

cu_ptr gpu_alloc(uint64_t bytes)
{
	cu_ptr ptr;

	MUST(gpu.alloc(&ptr, bytes));
	return ptr;
}

cu_ptr gpu_alloc_vmm(uint64_t bytes)
{
	struct {
		int type;
		int handle_types;
		struct cu_location location;
		void *meta;
		uint8_t flags[8];
	} prop = { 1, CU_HANDLE_POSIX_FD, { CU_LOCATION_DEVICE, gpu.device }, NULL, { 0 } };
	struct cu_access access = { { CU_LOCATION_DEVICE, gpu.device }, CU_ACCESS_READ_WRITE };
	uint64_t handle;
	cu_ptr ptr;

	prop.flags[1] = 1; /* for GPUDirect RDMA */
	MUST(gpu.vmm_create(&handle, bytes, &prop, 0));
	MUST(gpu.lib->vmm_reserve(&ptr, bytes, 0, 0, 0));
	MUST(gpu.lib->vmm_map(ptr, bytes, 0, handle, 0));
	MUST(gpu.lib->vmm_access(ptr, bytes, &access, 1));
	return ptr;
}

void gpu_launch(struct cu_stream *stream, const char *kernel, unsigned int blocks,
                unsigned int threads, void **params)
{
	struct cu_function *f;

	MUST(gpu.lib->module_function(&f, gpu.module, kernel));
	MUST(gpu.lib->launch(f, blocks, 1, 1, threads, 1, 1, 0, stream, params, NULL));
}

void gpu_fill(cu_ptr to, uint64_t n, uint64_t seed, uint64_t first)
{
	void *params[] = { &to, &n, &seed, &first };

	if (n != 0)
		gpu_launch(gpu.stream, "fill", 512, 512, params);
	MUST(gpu.lib->stream_sync(gpu.stream));
}

uint64_t gpu_check(cu_ptr at, uint64_t n, uint64_t seed, uint64_t first)
{
	static uint64_t *wrong;
	cu_ptr out;
	void *params[] = { &at, &n, &seed, &first, &out };

	if (!wrong)
		wrong = cuda_host_alloc(sizeof(*wrong));
	*wrong = 0;
	out = (cu_ptr)(uintptr_t)wrong;
	if (n != 0)
		gpu_launch(gpu.stream, "check", 512, 512, params);
	MUST(gpu.lib->stream_sync(gpu.stream));
	return *(volatile uint64_t *)wrong;
}

void gpu_sync(void)
{
	MUST(gpu.sync());
}
