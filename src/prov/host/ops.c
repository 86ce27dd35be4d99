/* SPDX-License-Identifier: Apache-2.0 */
#include "prov/providers.h"

#include "mem/shared.h"
#include "prov/host/addr.h"
#include "prov/host/ctl.h"
#include "prov/host/dev.h"
#include "prov/host/fetch.h"
#include "prov/host/gpu.h"
#include "prov/host/path.h"
#include "prov/host/share.h"

#include <inttypes.h>
#include <stdio.h>

static void op_addr(const struct prov_dev *dev, struct prov_addr *out)
{
	host_name_encode(&((const struct host_dev *)dev)->name, out);
}

/* Where the slot's allocation is kept; NULL: no such slot, or one in use. */
static struct mem_shared **free_slot(struct host_dev *dev, uint64_t key)
{
	uint32_t index = PROV_KEY_SLOT(key);

	if (index >= dev->regions.count ||
	    atomic_load_explicit(&dev->regions.slots[index].key, memory_order_relaxed) != 0)
		return NULL;
	return &dev->shared[index];
}

static wimm_status op_reg(struct prov_dev *dev_, void *addr, uint64_t len_bytes, uint32_t flags,
                          uint64_t core_key, uint64_t *out_key, struct prov_error *error)
{
	struct host_dev *dev = (struct host_dev *)dev_;
	struct mem_shared **slot = free_slot(dev, core_key);
	bool remote = (flags & PROV_REG_REMOTE) != 0;
	wimm_status st;

	*error = (struct prov_error){ 0 };
	/* Before the key is there: who sees the key sees this too. */
	if (slot) {
		st = host_gpu_reg(dev, addr, len_bytes, core_key, error);
		if (st != WIMM_OK)
			return st;
	}
	if (slot)
		*slot = remote ? mem_shared_get(addr, len_bytes) : NULL;
	st = prov_regions_add(&dev->regions, addr, len_bytes, remote, core_key);
	if (st == WIMM_OK) {
		*out_key = core_key;
		return WIMM_OK;
	}
	if (slot && *slot) {
		mem_shared_put(*slot);
		*slot = NULL;
	}
	if (slot)
		host_gpu_dereg(dev, core_key);
	(void)snprintf(
		error->text, sizeof(error->text),
		"host: cannot register %" PRIu64 " bytes as region %" PRIu32 " of %" PRIu32 ": %s",
		len_bytes, PROV_KEY_SLOT(core_key), dev->regions.count, wimm_status_text(st));
	return st;
}

static void op_dereg(struct prov_dev *dev_, uint64_t key)
{
	struct host_dev *dev = (struct host_dev *)dev_;
	uint32_t index = PROV_KEY_SLOT(key);
	struct mem_shared *shared;

	if (index >= dev->regions.count ||
	    atomic_load_explicit(&dev->regions.slots[index].key, memory_order_relaxed) != key)
		return;
	shared = dev->shared[index];
	prov_regions_remove(&dev->regions, key);
	host_share_revoke(dev, key, shared);
	host_fetch_quiet(dev, host_gpu_device(dev, key));
	host_gpu_dereg(dev, key);
	dev->shared[index] = NULL;
	if (shared)
		mem_shared_put(shared);
}

const struct prov_ops prov_host_ops = {
	.abi = PROV_ABI,
	.name = "host",
	.open = host_op_open,
	.close = host_op_close,
	.addr = op_addr,
	.list_nics = host_op_list_nics,
	.addr_format = host_op_addr_format,
	.addr_parse = host_op_addr_parse,
	.reg = op_reg,
	.dereg = op_dereg,
	.ctl_open = host_op_ctl_open,
	.ctl_set_context = host_op_ctl_set_context,
	.ctl_send = host_op_ctl_send,
	.ctl_close = host_op_ctl_close,
	.path_open = host_op_path_open,
	.path_connect = host_op_path_connect,
	.path_close = host_op_path_close,
	.post = host_op_post,
	.post_pages = host_op_post_pages,
	.forget = host_op_forget,
	.cancel = host_op_cancel,
	.poll = host_op_poll,
	.next_ns = host_op_next_ns,
	.fd = host_op_fd,
	.arm = host_op_arm,
	.warm = host_op_warm,
};
