/* SPDX-License-Identifier: Apache-2.0 */
#include "prov/verbs/region.h"

#include "base/log.h"
#include "prov/verbs/gpu.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

/* A region that no peer writes may be read-only memory. Never REMOTE_READ: nobody reads here. */
static unsigned access_of(const struct verbs_dev *dev, uint32_t flags)
{
	unsigned access = (flags & PROV_REG_REMOTE) != 0
	                          ? IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE
	                          : 0;

	if (dev->limits.relaxed_ordering && (flags & PROV_REG_STRICT_ORDER) == 0)
		access |= IBV_ACCESS_RELAXED_ORDERING;
	return access;
}

struct ibv_mr *verbs_region_pin(struct verbs_dev *dev, void *addr, uint64_t len_bytes,
                                unsigned access)
{
	const struct verbs_lib *lib = dev->nic.lib;

	/* The library leaves out what the kernel does not know; older ones have no such call. */
	if ((access & IBV_ACCESS_RELAXED_ORDERING) != 0 && lib->reg_mr_iova2)
		return lib->reg_mr_iova2(dev->pd, addr, len_bytes, (uint64_t)(uintptr_t)addr,
		                         access);
	return lib->reg_mr(dev->pd, addr, len_bytes,
	                   (int)(access & ~(unsigned)IBV_ACCESS_RELAXED_ORDERING));
}

bool verbs_lock_limit(int code, char out[VERBS_LOCK_TEXT_BYTES])
{
	struct rlimit limit = { RLIM_INFINITY, RLIM_INFINITY };

	(void)getrlimit(RLIMIT_MEMLOCK, &limit);
	if (code != ENOMEM || limit.rlim_cur == RLIM_INFINITY) {
		(void)snprintf(out, VERBS_LOCK_TEXT_BYTES, "%s", strerror(code));
		return false;
	}
	(void)snprintf(out, VERBS_LOCK_TEXT_BYTES,
	               "the memory-lock limit is %" PRIu64
	               " bytes for the process: ulimit -l unlimited",
	               (uint64_t)limit.rlim_cur);
	return true;
}

static wimm_status explain(const struct verbs_dev *dev, uint64_t len_bytes, uint32_t regions,
                           int code, struct prov_error *error)
{
	char why[VERBS_LOCK_TEXT_BYTES];

	error->vendor_code = (uint32_t)code;
	if (verbs_lock_limit(code, why)) {
		(void)snprintf(error->text, sizeof(error->text),
		               "verbs: %s: %" PRIu64 " bytes cannot be pinned: %s", dev->nic.name,
		               len_bytes, why);
		return WIMM_E_LOCK_LIMIT;
	}
	(void)snprintf(error->text, sizeof(error->text),
	               "verbs: %s: %" PRIu64 " bytes cannot be registered: %.60s; %" PRIu32
	               " regions are, the device allows %d of up to %" PRIu64 " bytes",
	               dev->nic.name, len_bytes, why, regions, dev->nic.attr.max_mr,
	               dev->nic.attr.max_mr_size);
	switch (code) {
	case ENOMEM:
	case ENOSPC:
		return WIMM_E_LIMIT;
	case EINVAL:
	case EFAULT:
		return WIMM_E_INVAL;
	default:
		return WIMM_E_UNSUPPORTED;
	}
}

wimm_status verbs_op_reg(struct prov_dev *dev_, void *addr, uint64_t len_bytes, uint32_t flags,
                         uint64_t core_key, uint64_t *out_key, struct prov_error *error)
{
	struct verbs_dev *dev = (struct verbs_dev *)dev_;
	struct ibv_mr *mr;
	wimm_status st = WIMM_OK;
	uint64_t key;

	(void)core_key;
	*error = (struct prov_error){ 0 };
	errno = 0;
	if ((flags & PROV_REG_GPU) != 0)
		mr = verbs_gpu_reg(dev, addr, len_bytes, access_of(dev, flags), error);
	else
		mr = verbs_region_pin(dev, addr, len_bytes, access_of(dev, flags));
	if (!mr && (flags & PROV_REG_GPU) != 0)
		return WIMM_E_UNSUPPORTED;
	if (!mr) {
		int code = errno;
		uint32_t count;

		mutex_lock(&dev->regions_lock);
		count = dev->regions.count;
		mutex_unlock(&dev->regions_lock);
		return explain(dev, len_bytes, count, code, error);
	}
	key = (uint64_t)mr->lkey << 32 | mr->rkey;
	mutex_lock(&dev->regions_lock);
	st = hash_insert_ptr(&dev->regions, key, mr);
	mutex_unlock(&dev->regions_lock);
	if (st != WIMM_OK) {
		(void)dev->nic.lib->dereg_mr(mr);
		(void)snprintf(error->text, sizeof(error->text), "verbs: out of memory");
		return st;
	}
	*out_key = key;
	return WIMM_OK;
}

void verbs_op_dereg(struct prov_dev *dev_, uint64_t key)
{
	struct verbs_dev *dev = (struct verbs_dev *)dev_;
	struct ibv_mr *mr;
	int code;

	mutex_lock(&dev->regions_lock);
	mr = hash_find_ptr(&dev->regions, key);
	if (mr)
		(void)hash_remove(&dev->regions, key);
	mutex_unlock(&dev->regions_lock);
	if (!mr)
		return;
	code = dev->nic.lib->dereg_mr(mr);
	if (code != 0)
		LOG_ERROR("verbs: %s: a region of %zu bytes cannot be released: %s", dev->nic.name,
		          mr->length, strerror(code));
}

void verbs_regions_close(struct verbs_dev *dev)
{
	uint32_t cursor = 0;
	uint64_t key;
	uint64_t value;

	while (hash_next(&dev->regions, &cursor, &key, &value))
		(void)dev->nic.lib->dereg_mr((struct ibv_mr *)(uintptr_t)value);
	hash_fini(&dev->regions);
}
