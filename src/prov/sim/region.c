/* SPDX-License-Identifier: Apache-2.0 */
/* Registered memory, its keys and its limits. */

#include "prov/sim/sim_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* NICs of one engine share one memory-lock limit; each charges the whole length. What this region
 * will cost in all is known at its first NIC, so it is refused there and nothing stays charged. */
static bool lock_fits(struct sim_dev *d, uint64_t len_bytes, uint64_t core_key,
                      struct prov_error *error)
{
	uint64_t limit = d->world->cfg.lock_limit_bytes;
	uint64_t charged = 0, nics = 0, left = 0;

	if (limit == 0)
		return true;
	LIST_FOR_EACH(it, &d->world->devs) {
		struct sim_dev *other = LIST_ENTRY(it, struct sim_dev, link);
		struct sim_region *r;
		bool has = false;
		uint32_t cursor = 0;
		uint64_t key, value;

		if (memcmp(other->instance, d->instance, sizeof(d->instance)) != 0)
			continue;
		charged += other->locked_bytes;
		nics++;
		while (!has && hash_next(&other->regions, &cursor, &key, &value)) {
			r = (struct sim_region *)(uintptr_t)value;
			has = r->core_key == core_key;
		}
		left += has ? 0 : 1;
	}
	if (charged <= limit && len_bytes <= (limit - charged) / left)
		return true;
	sim_world_fault(d->world, SIM_LOCK_LIMIT, d->number);
	snprintf(error->text, sizeof(error->text),
	         "memory-lock limit: wanted %" PRIu64 " bytes (%" PRIu64 " on each of %" PRIu64
	         " NICs), allowed %" PRIu64 ", in use %" PRIu64
	         "; raise the limit or register less",
	         len_bytes * nics, len_bytes, nics, limit, charged);
	return false;
}

/* The lowest key that is free: hardware hands out a released key again at once. */
static uint64_t recycled_key(const struct sim_dev *d)
{
	uint64_t key = 1;

	while (hash_find(&d->regions, key, NULL))
		key++;
	return key;
}

static wimm_status region_add(struct sim_dev *d, struct sim_region *r, struct prov_error *error)
{
	if (d->region_limit != 0 && d->regions.count >= d->region_limit) {
		sim_world_fault(d->world, SIM_REGION_LIMIT, d->number);
		snprintf(error->text, sizeof(error->text),
		         "NIC %u holds %u regions of at most %u; deregister some", d->number,
		         d->regions.count, d->region_limit);
		return WIMM_E_LIMIT;
	}
	if (!lock_fits(d, r->len_bytes, r->core_key, error))
		return WIMM_E_LOCK_LIMIT;
	r->key = d->world->cfg.recycle_keys ? recycled_key(d) : r->core_key;
	if (hash_find(&d->regions, r->key, NULL)) {
		snprintf(error->text, sizeof(error->text), "key %" PRIx64 " is in use", r->key);
		return WIMM_E_INVAL;
	}
	if (hash_insert_ptr(&d->regions, r->key, r) != WIMM_OK)
		return WIMM_E_NOMEM;
	d->locked_bytes += r->len_bytes;
	return WIMM_OK;
}

wimm_status sim_region_reg(struct prov_dev *dev, void *addr, uint64_t len_bytes, uint32_t flags,
                           uint64_t core_key, uint64_t *out_key, struct prov_error *error)
{
	struct sim_dev *d = (struct sim_dev *)dev;
	struct sim_region *r = mem_alloc(sizeof(*r));
	wimm_status st;

	if (!r)
		return WIMM_E_NOMEM;
	*r = (struct sim_region){ .addr = addr,
		                  .len_bytes = len_bytes,
		                  .core_key = core_key,
		                  .remote = (flags & PROV_REG_REMOTE) != 0,
		                  .strict = (flags & PROV_REG_STRICT_ORDER) != 0 };
	mutex_lock(&d->world->lock);
	st = region_add(d, r, error);
	if (st == WIMM_OK)
		*out_key = r->key;
	mutex_unlock(&d->world->lock);
	if (st != WIMM_OK)
		mem_free(r);
	return st;
}

/* A write that still reads this memory keeps it busy: the core has to wait for its end first. */
static void check_unused(struct sim_dev *d, const struct sim_region *r)
{
	LIST_FOR_EACH(it, &d->paths) {
		struct sim_path *p = LIST_ENTRY(it, struct sim_path, link);

		LIST_FOR_EACH(wr, &p->wrs) {
			struct sim_wr *one = LIST_ENTRY(wr, struct sim_wr, link);

			if (one->wr.len_bytes > 0 && one->wr.local_key == r->key)
				sim_world_violation(d->world,
				                    "NIC %u: source region released under a write",
				                    d->number);
		}
	}
}

static void region_drop(struct sim_dev *d, struct sim_region *r)
{
	d->locked_bytes -= r->len_bytes;
	hash_remove(&d->regions, r->key);
	mem_free(r);
}

void sim_region_dereg(struct prov_dev *dev, uint64_t key)
{
	struct sim_dev *d = (struct sim_dev *)dev;
	struct sim_region *r;

	mutex_lock(&d->world->lock);
	r = sim_region_find(d, key);
	if (!r) {
		sim_world_violation(d->world, "NIC %u: key %" PRIx64 " released twice", d->number,
		                    key);
	} else {
		check_unused(d, r);
		sim_wr_settle_key(d, key);
		region_drop(d, r);
	}
	mutex_unlock(&d->world->lock);
}

void sim_region_drop_all(struct sim_dev *d)
{
	uint64_t key, value;
	uint32_t cursor = 0;

	while (hash_next(&d->regions, &cursor, &key, &value)) {
		region_drop(d, (struct sim_region *)(uintptr_t)value);
		cursor = 0;
	}
	hash_fini(&d->regions);
}

struct sim_region *sim_region_find(const struct sim_dev *d, uint64_t key)
{
	return hash_find_ptr(&d->regions, key);
}

bool sim_region_covers(const struct sim_region *r, uint64_t addr, uint64_t len_bytes)
{
	uint64_t base = (uint64_t)(uintptr_t)r->addr;

	return addr >= base && addr - base <= r->len_bytes &&
	       len_bytes <= r->len_bytes - (addr - base);
}
