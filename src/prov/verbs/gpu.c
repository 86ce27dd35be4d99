/* SPDX-License-Identifier: Apache-2.0 */
#include "prov/verbs/gpu.h"

#include "base/log.h"
#include "mem/cuda.h"
#include "mem/cuda_info.h"
#include "prov/verbs/region.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

_Static_assert(MEM_CUDA_MAX_DEVICES <= 64, "a bit each in flush_gpus");

#define PEERMEM "/sys/module/nvidia_peermem"

static bool peermem_loaded(void)
{
	return access(PEERMEM, F_OK) == 0;
}

/* The descriptor is closed again: the registration holds what stands behind it. */
static struct ibv_mr *by_dmabuf(struct verbs_dev *dev, void *addr, uint64_t len_bytes,
                                unsigned access, char why[MEM_CUDA_TEXT_BYTES])
{
	const struct verbs_lib *lib = dev->nic.lib;
	struct ibv_mr *mr;
	uint64_t offset;
	int fd;

	if (!lib->reg_dmabuf_mr) {
		(void)snprintf(why, MEM_CUDA_TEXT_BYTES,
		               "this libibverbs has no ibv_reg_dmabuf_mr (rdma-core 34)");
		return NULL;
	}
	if (mem_cuda_dmabuf(addr, len_bytes, &fd, &offset, why, MEM_CUDA_TEXT_BYTES) != WIMM_OK)
		return NULL;
	mr = lib->reg_dmabuf_mr(dev->pd, offset, len_bytes, (uint64_t)(uintptr_t)addr, fd,
	                        (int)access);
	if (!mr)
		(void)snprintf(why, MEM_CUDA_TEXT_BYTES, "the NIC's driver refuses it: %s",
		               strerror(errno));
	(void)close(fd);
	return mr;
}

static struct ibv_mr *by_peermem(struct verbs_dev *dev, void *addr, uint64_t len_bytes,
                                 unsigned access, char why[MEM_CUDA_TEXT_BYTES])
{
	struct ibv_mr *mr = verbs_region_pin(dev, addr, len_bytes, access);
	int code = errno;

	if (!mr)
		(void)snprintf(why, MEM_CUDA_TEXT_BYTES, "%s%s", strerror(code),
		               peermem_loaded() ? "" : ", module nvidia_peermem is not loaded");
	return mr;
}

/* Whether peers may write into this card's memory, and what has to be done before that is told. */
static bool card_suits(int device, bool remote, enum mem_flush_rule *out_rule, char *why,
                       size_t why_bytes)
{
	struct mem_cuda_card card;

	*out_rule = MEM_FLUSH_NONE;
	if (!mem_cuda_card(device, &card) || !card.gpu_direct) {
		(void)snprintf(why, why_bytes, "GPU %d lets no NIC at its memory", device);
		return false;
	}
	if (remote)
		*out_rule = mem_cuda_far_rule(&card);
	if (*out_rule != MEM_FLUSH_READ)
		return true;
	(void)snprintf(why, why_bytes,
	               "GPU %d needs %s, which this provider does not do", device,
	               mem_flush_text(*out_rule));
	return false;
}

struct ibv_mr *verbs_gpu_reg(struct verbs_dev *dev, void *addr, uint64_t len_bytes,
                             unsigned access, struct prov_error *error)
{
	const bool remote = (access & IBV_ACCESS_REMOTE_WRITE) != 0;
	char why[MEM_CUDA_TEXT_BYTES] = "", dmabuf[MEM_CUDA_TEXT_BYTES] = "",
	     peermem[MEM_CUDA_TEXT_BYTES] = "";
	struct mem_cuda_range range = { .device = -1 };
	enum mem_flush_rule rule = MEM_FLUSH_NONE;
	struct ibv_mr *mr = NULL;
	bool is_cuda = false;

	if (mem_cuda_describe(addr, len_bytes, &is_cuda, &range, why, sizeof(why)) == WIMM_OK &&
	    is_cuda && card_suits(range.device, remote, &rule, why, sizeof(why))) {
		mr = by_dmabuf(dev, addr, len_bytes, access, dmabuf);
		if (!mr)
			mr = by_peermem(dev, addr, len_bytes, access, peermem);
		if (!mr)
			(void)snprintf(why, sizeof(why), "dma-buf: %.100s; peermem: %.100s", dmabuf,
			               peermem);
	}
	if (!mr) {
		(void)snprintf(error->text, sizeof(error->text), "verbs: %.30s: %.210s",
		               dev->nic.name, why);
		return NULL;
	}
	LOG_INFO("verbs: %s reaches %zu bytes of GPU %d by %s%s", dev->nic.name, (size_t)len_bytes,
	         range.device, dmabuf[0] == '\0' ? "dma-buf" : "peermem; dma-buf: ", dmabuf);
	/* For the life of the device: a region that has ended may have writes under way. */
	if (rule == MEM_FLUSH_CALL)
		atomic_fetch_or_explicit(&dev->flush_gpus, UINT64_C(1) << range.device,
		                         memory_order_relaxed);
	return mr;
}

bool verbs_gpu_flush(struct verbs_dev *dev)
{
	/* Relaxed: whoever wrote into a region had its descriptor, which came after the bit. */
	uint64_t gpus = atomic_load_explicit(&dev->flush_gpus, memory_order_relaxed);

	for (int i = 0; gpus != 0; i++, gpus >>= 1) {
		if ((gpus & 1) == 0 || mem_cuda_flush(i) == WIMM_OK)
			continue;
		verbs_dev_die(dev, "%s: what it wrote into memory of GPU %d cannot be flushed",
		              dev->nic.name, i);
		return false;
	}
	return true;
}

void verbs_gpu_note(const struct verbs_lib *lib, char *out, size_t out_bytes)
{
	(void)snprintf(out, out_bytes,
	               "memory of GPUs: by dma-buf%s, else by peermem%s, else through slots of the "
	               "host",
	               lib->reg_dmabuf_mr ? "" : " (not in this libibverbs)",
	               peermem_loaded() ? "" : " (module nvidia_peermem not loaded)");
}
