/* SPDX-License-Identifier: Apache-2.0 */
#include "mem/cuda_info.h"

#include "mem/cuda.h"

#include <string.h>

enum mem_flush_rule mem_flush_rule(bool one_switch, int writes_ordering, int flush_options,
                                   bool has_call)
{
	if (one_switch || writes_ordering >= CU_ORDERING_OWNER)
		return MEM_FLUSH_NONE;
	return has_call && (flush_options & CU_FLUSH_OPTION_HOST) != 0 ? MEM_FLUSH_CALL
	                                                               : MEM_FLUSH_READ;
}

const char *mem_flush_text(enum mem_flush_rule rule)
{
	switch (rule) {
	case MEM_FLUSH_NONE:
		return "no flush: the card orders a NIC's writes";
	case MEM_FLUSH_CALL:
		return "cuFlushGPUDirectRDMAWrites() before an immediate is counted";
	case MEM_FLUSH_READ:
		return "a loopback READ through the NIC before an immediate is counted";
	}
	return "";
}

int mem_cuda_count(char *why, size_t why_bytes)
{
	const struct cuda_lib *lib = cuda_lib_load(why, why_bytes);
	int count = 0;

	return lib && lib->device_count(&count) == CU_OK ? count : -1;
}

static int attribute(const struct cuda_lib *lib, int which, int device)
{
	int value = 0;

	return lib->device_attribute(&value, which, device) == CU_OK ? value : 0;
}

bool mem_cuda_card(int device, struct mem_cuda_card *out)
{
	const struct cuda_lib *lib = cuda_lib_used();

	memset(out, 0, sizeof(*out));
	if (!lib || lib->device_name(out->name, sizeof(out->name) - 1, device) != CU_OK)
		return false;
	out->pci = mem_cuda_pci(device);
	out->sms = (uint32_t)attribute(lib, CU_DEV_SM_COUNT, device);
	out->writes_ordering = attribute(lib, CU_DEV_WRITES_ORDERING, device);
	out->flush_options = attribute(lib, CU_DEV_FLUSH_OPTIONS, device);
	out->gpu_direct = attribute(lib, CU_DEV_GPU_DIRECT_RDMA, device) != 0;
	out->dma_buf = attribute(lib, CU_DEV_DMA_BUF, device) != 0;
	return true;
}

wimm_status mem_cuda_flush(int device)
{
	const struct cuda_lib *lib;
	cu_result code;

	if (mem_cuda_enter(device, &lib) != WIMM_OK)
		return WIMM_E_SYSTEM;
	code = lib->flush_writes ? lib->flush_writes(CU_FLUSH_TARGET_CTX, CU_ORDERING_OWNER) : -1;
	mem_cuda_leave(lib);
	return code == CU_OK ? WIMM_OK : WIMM_E_SYSTEM;
}

enum mem_flush_rule mem_cuda_far_rule(const struct mem_cuda_card *card)
{
	const struct cuda_lib *lib = cuda_lib_used();

	return mem_flush_rule(false, card->writes_ordering, card->flush_options,
	                      lib && lib->flush_writes);
}
