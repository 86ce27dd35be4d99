/* SPDX-License-Identifier: Apache-2.0 */
#include "prov/verbs/lib.h"

#include "base/config.h"
#include "base/log.h"
#include "plat/mutex.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static struct mutex lock = MUTEX_INIT;
static struct verbs_lib table;
static bool loaded;

static const struct {
	const char *symbol;
	size_t at; /* in struct verbs_lib */
	int required;
} symbols[] = {
#define X(name, required, result, params)                                                          \
	{ "ibv_" #name, offsetof(struct verbs_lib, name), required },
	VERBS_LIB_MAP(X)
#undef X
		{ "_ibv_query_gid_table", offsetof(struct verbs_lib, query_gid_table), 0 },
};

static bool find_all(void *handle, const char *path, struct verbs_lib *out, char *why,
                     size_t why_bytes)
{
	for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
		void *symbol = dlsym(handle, symbols[i].symbol);

		if (!symbol && symbols[i].required) {
			(void)snprintf(why, why_bytes,
			               "verbs: %s has no %s; install libibverbs 1.1 or later "
			               "(Debian: libibverbs1)",
			               path, symbols[i].symbol);
			return false;
		}
		memcpy((char *)out + symbols[i].at, &symbol, sizeof(symbol));
	}
	return true;
}

static bool load(char *why, size_t why_bytes)
{
	char path[CONFIG_TEXT_BYTES];
	struct verbs_lib found = { 0 };
	void *handle;

	config_get_text(CFG_VERBS_LIBRARY, path);
	handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!handle) {
		(void)snprintf(why, why_bytes,
		               "verbs: %s; install it (Debian: libibverbs1 and ibverbs-providers) "
		               "or set verbs_library",
		               dlerror());
		return false;
	}
	if (!find_all(handle, path, &found, why, why_bytes)) {
		(void)dlclose(handle);
		return false;
	}
	/* A child must not share pinned pages with its parent; newer kernels see to it alone. */
	if (found.fork_init && found.fork_init() != 0)
		LOG_WARN("verbs: ibv_fork_init() failed: do not fork while regions are registered");
	table = found;
	return true;
}

const struct verbs_lib *verbs_lib_get(char *why, size_t why_bytes)
{
	mutex_lock(&lock);
	/* Kept for good: its finalisers and those of its drivers do not like to be unloaded. */
	if (!loaded)
		loaded = load(why, why_bytes);
	mutex_unlock(&lock);
	return loaded ? &table : NULL;
}

int verbs_lib_query_port(const struct verbs_lib *lib, struct ibv_context *ctx, uint8_t port,
                         struct ibv_port_attr *out)
{
	struct verbs_context *extended = verbs_get_ctx_op(ctx, query_port);

	memset(out, 0, sizeof(*out));
	if (extended)
		return extended->query_port(ctx, port, out, sizeof(*out));
	return lib->query_port(ctx, port, (struct _compat_ibv_port_attr *)(void *)out);
}
