/* SPDX-License-Identifier: Apache-2.0 */
#include "mem/gdr.h"

#include "base/config.h"
#include "base/log.h"
#include "base/tsa.h"
#include "plat/mutex.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

enum {
	PAGE_BYTES = 64 << 10,  /* what the kernel module pins and maps */
	POINTER_SYNC_MEMOPS = 6, /* CUDA's own copies there are over when they return */
	MAJOR = 2,              /* of the interface below */
};

struct gdr;

/* As the library's header has it. */
struct gdr_handle {
	unsigned long h;
};

struct gdr_info {
	uint64_t va; /* where the pinned range begins: at or before the address asked for */
	uint64_t mapped_size;
	uint32_t page_size;
	uint64_t tm_cycles;
	uint32_t cycles_per_ms;
	unsigned int mapped : 1;
	unsigned int wc_mapping : 1;
	int mapping_type;
};

/* X(field, symbol, result, parameters) */
#define GDR_MAP(X)                                                                                 \
	X(open, "gdr_open", struct gdr *, (void))                                                  \
	X(close, "gdr_close", int, (struct gdr *))                                                 \
	X(pin, "gdr_pin_buffer", int,                                                              \
	  (struct gdr *, unsigned long, size_t, uint64_t, uint32_t, struct gdr_handle *))          \
	X(unpin, "gdr_unpin_buffer", int, (struct gdr *, struct gdr_handle))                       \
	X(info, "gdr_get_info_v2", int, (struct gdr *, struct gdr_handle, struct gdr_info *))      \
	X(map, "gdr_map", int, (struct gdr *, struct gdr_handle, void **, size_t))                 \
	X(unmap, "gdr_unmap", int, (struct gdr *, struct gdr_handle, void *, size_t))              \
	X(version, "gdr_runtime_get_version", void, (int *, int *))                                \
	X(driver_version, "gdr_driver_get_version", int, (struct gdr *, int *, int *))

static struct {
#define X(field, symbol, result, params) result(*field) params;
	GDR_MAP(X)
#undef X
} lib;

static const struct {
	const char *symbol;
	void *at;
} symbols[] = {
#define X(field, symbol, result, params) { symbol, &lib.field },
	GDR_MAP(X)
#undef X
};

static struct mutex lock = MUTEX_INIT;
static struct gdr *gdr TSA(guarded_by(lock)); /* opened once and kept */
static bool tried TSA(guarded_by(lock));
static char why[256] TSA(guarded_by(lock));     /* it is not there */
static char failure[256] TSA(guarded_by(lock)); /* the last one of an area; "": none */

static bool find_all(void *handle) TSA(requires_capability(lock))
{
	for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
		void *symbol = dlsym(handle, symbols[i].symbol);

		if (!symbol) {
			(void)snprintf(why, sizeof(why), "gdrcopy: its library has no %s",
			               symbols[i].symbol);
			return false;
		}
		memcpy(symbols[i].at, &symbol, sizeof(symbol));
	}
	return true;
}

static void load(void) TSA(requires_capability(lock))
{
	char path[CONFIG_TEXT_BYTES];
	int major = 0, minor = 0;
	void *handle;

	tried = true;
	config_get_text(CFG_GDRCOPY_LIBRARY, path);
	if (path[0] == '\0') {
		(void)snprintf(why, sizeof(why), "switched off (setting gdrcopy_library)");
		return;
	}
	handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!handle) {
		(void)snprintf(why, sizeof(why), "%s (setting gdrcopy_library)", dlerror());
		return;
	}
	if (!find_all(handle))
		goto undo_handle;
	lib.version(&major, &minor);
	if (major != MAJOR) {
		(void)snprintf(why, sizeof(why), "version %d.%d, version %d is needed", major,
		               minor, MAJOR);
		goto undo_handle;
	}
	gdr = lib.open();
	if (gdr)
		return;
	(void)snprintf(why, sizeof(why),
	               "its kernel module does not answer (is gdrdrv loaded, and /dev/gdrdrv ours "
	               "to open?)");
undo_handle:
	(void)dlclose(handle);
	LOG_INFO("gdrcopy: %s", why);
}

static bool is_there(void) TSA(requires_capability(lock))
{
	if (!tried)
		load();
	return gdr != NULL;
}

bool gdr_state(char *text, size_t text_bytes)
{
	int major = 0, minor = 0, driver_major = 0, driver_minor = 0;
	bool there;

	mutex_lock(&lock);
	there = is_there();
	if (there) {
		lib.version(&major, &minor);
		(void)lib.driver_version(gdr, &driver_major, &driver_minor);
		(void)snprintf(text, text_bytes, "ready, version %d.%d, kernel module %d.%d%s%s",
		               major, minor, driver_major, driver_minor,
		               failure[0] != '\0' ? "; the last try failed: " : "", failure);
	} else {
		(void)snprintf(text, text_bytes, "%s", why);
	}
	mutex_unlock(&lock);
	return there;
}

static wimm_status fail(char *text, size_t text_bytes, const char *what, int code)
	TSA(requires_capability(lock))
{
	(void)snprintf(failure, sizeof(failure), "%s: %s", what, strerror(code));
	(void)snprintf(text, text_bytes, "gdrcopy: %s", failure);
	return WIMM_E_UNSUPPORTED;
}

/* Pin and map [card, card + bytes). */
static wimm_status map(struct gdr_area *a, char *text, size_t text_bytes)
	TSA(requires_capability(lock))
{
	struct gdr_handle handle;
	struct gdr_info info = { 0 };
	int code = lib.pin(gdr, a->card, a->bytes, 0, 0, &handle);

	if (code != 0)
		return fail(text, text_bytes, "memory of the GPU cannot be pinned", code);
	code = lib.map(gdr, handle, &a->map, a->bytes);
	if (code != 0) {
		(void)lib.unpin(gdr, handle);
		return fail(text, text_bytes, "memory of the GPU cannot be mapped", code);
	}
	code = lib.info(gdr, handle, &info);
	if (code != 0 || info.va > a->card || a->card - info.va >= PAGE_BYTES) {
		(void)lib.unmap(gdr, handle, a->map, a->bytes);
		(void)lib.unpin(gdr, handle);
		return fail(text, text_bytes, "it does not say what it has mapped", code);
	}
	a->host = (uint8_t *)a->map + (a->card - info.va);
	a->handle = handle.h;
	return WIMM_OK;
}

wimm_status gdr_area_open(int device, uint64_t bytes, struct gdr_area *out, char *text,
                          size_t text_bytes)
{
	struct gdr_area a = { .device = device, .bytes = bytes };
	const struct cuda_lib *cuda;
	unsigned int on = 1;
	wimm_status st;
	cu_result code;

	if (mem_cuda_enter(device, &cuda) != WIMM_OK) {
		(void)snprintf(text, text_bytes, "cuda: device %d is not here, or not in use",
		               device);
		return WIMM_E_UNSUPPORTED;
	}
	mutex_lock(&lock);
	st = is_there() && cuda->mem_alloc && cuda->mem_free ? WIMM_OK : WIMM_E_UNSUPPORTED;
	if (st != WIMM_OK) {
		(void)snprintf(text, text_bytes, "gdrcopy: %s", why);
		goto out;
	}
	code = cuda->mem_alloc(&a.allocated, bytes + PAGE_BYTES);
	if (code != CU_OK) {
		st = WIMM_E_UNSUPPORTED;
		(void)snprintf(text, text_bytes, "cuda: no memory for words on device %d: %s",
		               device, cuda_lib_error(cuda, code));
		goto out;
	}
	a.card = (a.allocated + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
	if (cuda->pointer_set)
		(void)cuda->pointer_set(&on, POINTER_SYNC_MEMOPS, a.allocated);
	st = map(&a, text, text_bytes);
	if (st == WIMM_OK)
		*out = a;
	else
		(void)cuda->mem_free(a.allocated);
out:
	mutex_unlock(&lock);
	mem_cuda_leave(cuda);
	if (st != WIMM_OK)
		LOG_INFO("%s", text);
	return st;
}

void gdr_area_close(const struct gdr_area *area)
{
	const struct cuda_lib *cuda;

	mutex_lock(&lock);
	(void)lib.unmap(gdr, (struct gdr_handle){ area->handle }, area->map, area->bytes);
	(void)lib.unpin(gdr, (struct gdr_handle){ area->handle });
	mutex_unlock(&lock);
	if (mem_cuda_enter(area->device, &cuda) != WIMM_OK)
		return;
	(void)cuda->mem_free(area->allocated);
	mem_cuda_leave(cuda);
}
