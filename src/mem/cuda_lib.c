/* SPDX-License-Identifier: Apache-2.0 */
#include "mem/cuda_lib.h"

#include "base/config.h"
#include "base/log.h"
#include "plat/mutex.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static struct mutex lock = MUTEX_INIT;
static struct cuda_lib table;
/* Points to the table once it is filled; never taken back. */
static _Atomic(const struct cuda_lib *) ready;
static bool broken TSA(guarded_by(lock)); /* it is there and does not work: said once */

static const struct {
	const char *symbol;
	size_t at; /* in struct cuda_lib */
	int required;
} symbols[] = {
#define X(field, symbol, required, params) { symbol, offsetof(struct cuda_lib, field), required },
	CUDA_LIB_MAP(X)
#undef X
};

static bool find_all(void *handle, const char *path, char *why, size_t why_bytes)
{
	struct cuda_lib found = { 0 };
	cu_result code;

	for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
		void *symbol = dlsym(handle, symbols[i].symbol);

		if (!symbol && symbols[i].required) {
			(void)snprintf(why, why_bytes,
			               "cuda: %s has no %s; a driver for CUDA 12 or later is "
			               "needed",
			               path, symbols[i].symbol);
			return false;
		}
		memcpy((char *)&found + symbols[i].at, &symbol, sizeof(symbol));
	}
	code = found.init(0);
	if (code != CU_OK) {
		(void)snprintf(why, why_bytes, "cuda: the driver does not start: %s",
		               cuda_lib_error(&found, code));
		return false;
	}
	table = found;
	return true;
}

static const struct cuda_lib *load(int extra_flags, char *why, size_t why_bytes)
	TSA(requires_capability(lock))
{
	char path[CONFIG_TEXT_BYTES];
	void *handle;

	config_get_text(CFG_CUDA_LIBRARY, path);
	if (path[0] == '\0') {
		(void)snprintf(why, why_bytes, "cuda: switched off (setting cuda_library)");
		return NULL;
	}
	/* Kept for good once it works: the driver does not like to be unloaded. */
	handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | extra_flags);
	if (!handle) {
		if (extra_flags == 0)
			(void)snprintf(why, why_bytes, "cuda: %s (setting cuda_library)",
			               dlerror());
		return NULL;
	}
	if (!find_all(handle, path, why, why_bytes)) {
		(void)dlclose(handle);
		broken = true;
		LOG_WARN("%s", why);
		return NULL;
	}
	/* [A] with [B]: the table is filled before it is seen. */
	atomic_store_explicit(&ready, &table, memory_order_release);
	return &table;
}

static const struct cuda_lib *get(int extra_flags, char *why, size_t why_bytes)
{
	/* [B] with [A] in load(). */
	const struct cuda_lib *lib = atomic_load_explicit(&ready, memory_order_acquire);

	if (lib)
		return lib;
	mutex_lock(&lock);
	lib = atomic_load_explicit(&ready, memory_order_relaxed); /* under the lock */
	if (!lib && !broken)
		lib = load(extra_flags, why, why_bytes);
	mutex_unlock(&lock);
	return lib;
}

const struct cuda_lib *cuda_lib_used(void)
{
	char why[256];

	return get(RTLD_NOLOAD, why, sizeof(why));
}

const struct cuda_lib *cuda_lib_load(char *why, size_t why_bytes)
{
	(void)snprintf(why, why_bytes, "cuda: the driver did not start before");
	return get(0, why, why_bytes);
}

const char *cuda_lib_error(const struct cuda_lib *lib, cu_result code)
{
	const char *name = NULL;

	if (lib->error_name(code, &name) != CU_OK || !name)
		return "unknown error";
	return name;
}
