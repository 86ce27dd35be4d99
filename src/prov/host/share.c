/* SPDX-License-Identifier: Apache-2.0 */
#include "prov/host/share.h"

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/log.h"
#include "mem/shared.h"
#include "plat/clock.h"
#include "plat/mutex.h"
#include "plat/thread.h"
#include "prov/host/gpu.h"
#include "prov/host/path.h"

#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

/* How long a writer in the middle of a copy is waited for before it is fenced off. */
#define QUIET_WAIT_NS (20 * CLOCK_NS_PER_MS)
/* A card in the middle of a long list cannot be stopped, and ends by itself. */
#define GPU_QUIET_WAIT_NS (500 * CLOCK_NS_PER_MS)

struct host_grant {
	struct list link;
	struct host_path *path;
	struct mem_shared *shared; /* NULL: foreign memory; alive as long as the key is */
	bool gpu;                  /* memory of a GPU */
	uint64_t key;
};

/* One list for the process: one allocation may be registered on many devices. */
static struct mutex lock = MUTEX_INIT_FOR_CHILDREN;
static struct list grants TSA(guarded_by(lock)) = { &grants, &grants };

void host_given_encode(const struct host_given *given, uint8_t *out)
{
	struct bw w;

	bw_init(&w, out, HOST_GIVEN_BYTES);
	bw_u64(&w, given->key);
	bw_u64(&w, given->addr);
	bw_u64(&w, given->len_bytes);
	bw_u64(&w, given->offset);
	bw_u64(&w, given->file_bytes);
	bw_u64(&w, given->gate);
	bw_u8(&w, given->kind);
	bw_u8(&w, given->vmm);
	bw_u64(&w, given->pci);
	bw_bytes(&w, given->handle, sizeof(given->handle));
}

bool host_given_decode(const uint8_t *in, size_t len, struct host_given *out)
{
	struct br r;

	br_init(&r, in, len);
	out->key = br_u64(&r);
	out->addr = br_u64(&r);
	out->len_bytes = br_u64(&r);
	out->offset = br_u64(&r);
	out->file_bytes = br_u64(&r);
	out->gate = br_u64(&r);
	out->kind = br_u8(&r);
	out->vmm = br_u8(&r);
	out->pci = br_u64(&r);
	br_bytes(&r, out->handle, sizeof(out->handle));
	return br_done(&r) && out->kind <= HOST_GIVE_OFFERS && out->vmm <= 1;
}

bool host_share_peer_gone(const struct host_path *path)
{
	struct pollfd pfd = { .fd = path->pidfd, .events = POLLIN };

	return path->pidfd >= 0 && poll(&pfd, 1, 0) == 1;
}

/* After the gate was changed: wait until the peer is out. False: it stays inside. */
static bool wait_quiet(const struct host_path *path, bool gpu)
{
	const struct host_lane *lane = path->rx.lane;
	uint64_t deadline_ns = clock_now_ns() + (gpu ? GPU_QUIET_WAIT_NS : QUIET_WAIT_NS);
	/* [I] with [H] in maps.h. */
	uint64_t seen = atomic_load_explicit(&lane->writing, memory_order_seq_cst);

	while (seen % 2 == 1 &&
	       atomic_load_explicit(&lane->writing, memory_order_acquire) == seen) {
		if (host_share_peer_gone(path))
			return true;
		if (clock_now_ns() > deadline_ns)
			return false;
		plat_thread_yield();
	}
	return true;
}

static void change_gate(const struct host_path *path, bool close)
{
	struct host_lane *lane = path->rx.lane;
	/* Relaxed: only written under the lock. A peer that writes it too disturbs itself. */
	uint64_t gate = atomic_load_explicit(&lane->gate, memory_order_relaxed);

	if (gate == HOST_GATE_CLOSED)
		return;
	/* [J] with [H]. */
	atomic_store_explicit(&lane->gate, close ? HOST_GATE_CLOSED : gate + 1,
	                      memory_order_seq_cst);
}

static void grant_drop(struct host_grant *grant)
{
	list_remove(&grant->link);
	mem_free(grant);
}

/* Everybody who has it asks anew: what they have will be memory of nobody's. */
static void fence_off(struct mem_shared *shared, const struct host_path *why)
	TSA(requires_capability(lock))
{
	wimm_status st;

	LIST_FOR_EACH(it, &grants) {
		struct host_grant *grant = LIST_ENTRY(it, struct host_grant, link);

		if (grant->shared != shared)
			continue;
		change_gate(grant->path, false);
		/* A copy cut off is made again by its writer. */
		(void)wait_quiet(grant->path, false);
		grant_drop(grant);
	}
	st = mem_shared_fence(shared);
	if (st == WIMM_OK)
		LOG_WARN("host: process %d did not stop writing: fenced off", (int)why->peer_pid);
	else
		LOG_ERROR("host: process %d did not stop writing and cannot be fenced off: %s",
		          (int)why->peer_pid, wimm_status_text(st));
}

/* The region of a live key. False: there is none for peers. */
static bool region_of(struct host_dev *dev, uint64_t key, struct host_given *out,
                      struct mem_shared **out_shared)
{
	uint32_t index = PROV_KEY_SLOT(key);
	bool found;

	prov_regions_enter(&dev->regions);
	found = prov_regions_find(&dev->regions, key, &out->addr, &out->len_bytes);
	if (found)
		*out_shared = dev->shared[index];
	prov_regions_leave(&dev->regions);
	return found;
}

/* Memory of a GPU: what another process maps. False: there is nothing to give. */
static bool give_gpu(const struct host_path *path, struct host_given *out, int *out_fd)
{
	struct mem_cuda_export e = { .fd = -1 };
	char text[MEM_CUDA_TEXT_BYTES];

	/* Another engine of this process uses the memory as it is. */
	if (path->peer_pid != getpid() &&
	    mem_cuda_export((void *)(uintptr_t)out->addr, out->len_bytes, &e, text,
	                    sizeof(text)) != WIMM_OK) {
		LOG_WARN("host: process %d gets no memory of a GPU: %s", (int)path->peer_pid, text);
		return false;
	}
	if (path->peer_pid == getpid())
		e.bytes = out->len_bytes;
	out->offset = e.offset;
	out->file_bytes = e.bytes;
	out->vmm = e.vmm;
	out->pci = e.pci;
	memcpy(out->handle, e.handle.bytes, sizeof(out->handle));
	*out_fd = e.fd;
	out->kind = HOST_GIVE_CUDA;
	return true;
}

void host_share_give(struct host_path *path, uint64_t key, struct host_given *out, int *out_fd)
{
	struct host_dev *dev = host_dev_of(&path->obj);
	struct host_grant *grant = mem_calloc(1, sizeof(*grant));
	struct mem_shared *shared = NULL;
	struct mem_shared_view view;
	bool gpu = host_gpu_device(dev, key) >= 0;

	*out = (struct host_given){ .key = key };
	*out_fd = -1;
	if (!grant)
		return;
	mutex_lock(&lock);
	if (!region_of(dev, key, out, &shared) ||
	    (!shared && !gpu && dev->way != HOST_WAY_PUSH))
		goto out;
	if (gpu && dev->gpu_pull) {
		out->kind = HOST_GIVE_OFFERS;
		goto out;
	}
	if (gpu) {
		if (!give_gpu(path, out, out_fd))
			goto out;
		path->gave_foreign = true;
	} else if (shared && dev->way == HOST_WAY_AUTO) {
		mem_shared_view(shared, &view);
		*out_fd = fcntl(view.fd, F_DUPFD_CLOEXEC, 0);
		if (*out_fd < 0)
			goto out;
		out->offset = out->addr - (uint64_t)(uintptr_t)view.addr;
		out->file_bytes = view.len_bytes;
		out->kind = HOST_GIVE_MEMFD;
	} else if (dev->way == HOST_WAY_PUSH) {
		shared = NULL;
		out->kind = HOST_GIVE_FOREIGN;
		path->gave_foreign = true;
	} else {
		goto out;
	}
	out->gate = atomic_load_explicit(&path->rx.lane->gate, memory_order_relaxed);
	list_init(&grant->link);
	grant->path = path;
	grant->shared = shared;
	grant->gpu = gpu;
	grant->key = key;
	list_push_back(&grants, &grant->link);
	grant = NULL;
out:
	mutex_unlock(&lock);
	mem_free(grant);
}

void host_share_give_source(struct host_path *path, uint64_t key, struct host_given *out,
                            int *out_fd)
{
	struct host_dev *dev = host_dev_of(&path->obj);
	bool found;

	*out = (struct host_given){ .key = key };
	*out_fd = -1;
	prov_regions_enter(&dev->regions);
	found = path->offers_cards && host_gpu_device(dev, key) >= 0 &&
	        prov_regions_find_own(&dev->regions, key, &out->addr, &out->len_bytes);
	prov_regions_leave(&dev->regions);
	if (found && give_gpu(path, out, out_fd))
		out->gate = atomic_load_explicit(&path->rx.lane->gate, memory_order_relaxed);
}

void host_share_revoke(struct host_dev *dev, uint64_t key, struct mem_shared *shared)
{
	const struct host_path *stuck = NULL;

	mutex_lock(&lock);
	LIST_FOR_EACH(it, &grants) {
		struct host_grant *grant = LIST_ENTRY(it, struct host_grant, link);

		if (host_dev_of(&grant->path->obj) != dev || grant->key != key)
			continue;
		change_gate(grant->path, false);
		if (!wait_quiet(grant->path, grant->gpu)) {
			stuck = grant->path;
			if (!grant->shared)
				LOG_ERROR("host: process %d may still write into a region that "
				          "was deregistered (setting host_way)",
				          (int)stuck->peer_pid);
		}
		grant_drop(grant);
	}
	if (stuck && shared)
		fence_off(shared, stuck);
	mutex_unlock(&lock);
}

/* Whether a writer of this path may have to be fenced off. For a card PROV_PATH_CLOSED waits. */
static bool any_shared(const struct host_path *path) TSA(requires_capability(lock))
{
	LIST_FOR_EACH(it, &grants) {
		const struct host_grant *grant = LIST_ENTRY(it, struct host_grant, link);

		if (grant->path == path && !grant->gpu)
			return true;
	}
	return false;
}

static struct host_grant *grant_of(const struct host_path *path) TSA(requires_capability(lock))
{
	LIST_FOR_EACH(it, &grants) {
		struct host_grant *grant = LIST_ENTRY(it, struct host_grant, link);

		if (grant->path == path)
			return grant;
	}
	return NULL;
}

void host_share_close(struct host_path *path)
{
	struct host_grant *grant;
	bool quiet = true;

	mutex_lock(&lock);
	grant = grant_of(path);
	if (grant) {
		change_gate(path, true);
		quiet = !any_shared(path) || wait_quiet(path, false);
	}
	for (; grant; grant = grant_of(path)) {
		if (!quiet && grant->shared)
			fence_off(grant->shared, path); /* drops all grants of it */
		else
			grant_drop(grant);
	}
	mutex_unlock(&lock);
}

bool host_share_writing(const struct host_path *path)
{
	if (!path->gave_foreign || host_share_peer_gone(path))
		return false;
	return atomic_load_explicit(&path->rx.lane->writing, memory_order_acquire) % 2 == 1;
}
