/* SPDX-License-Identifier: Apache-2.0 */
/* Faults on demand, settings that change, and what a test may look at. */

#include "prov/sim/sim_int.h"

#include <string.h>

static uint64_t pair_key(uint32_t a, uint32_t b)
{
	return a < b ? (uint64_t)a << 32 | b : (uint64_t)b << 32 | a;
}

static bool nic_frozen(struct sim_world *w, uint32_t number)
{
	LIST_FOR_EACH(it, &w->devs) {
		struct sim_dev *d = LIST_ENTRY(it, struct sim_dev, link);

		if (d->number == number && d->frozen && !d->killed)
			return true;
	}
	return false;
}

bool sim_link_blocked(struct sim_world *w, uint32_t from, uint32_t to)
{
	if (from == SIM_NIC_NONE || to == SIM_NIC_NONE)
		return false;
	return hash_find(&w->cut, pair_key(from, to), NULL) || nic_frozen(w, from) ||
	       nic_frozen(w, to);
}

void sim_nic_die(struct sim_dev *d, bool silent)
{
	if (d->nic_dead || d->killed)
		return;
	sim_world_fault(d->world, SIM_NIC_DEATH, d->number);
	d->nic_dead = true;
	if (silent && hash_insert(&d->world->gone, d->number, 1) != WIMM_OK)
		silent = false; /* without memory it is a death that peers notice */
	sim_cq_push(d, &d->down_node, WIMM_E_NIC_LOST, 0);
	LIST_FOR_EACH(it, &d->paths)
		sim_path_fail(LIST_ENTRY(it, struct sim_path, link), WIMM_E_NIC_LOST,
		              silent ? SIM_TELL_TIMEOUT : SIM_TELL_NOTICE, "the NIC died");
	LIST_FOR_EACH(it, &d->ctls)
		sim_ctl_fail(LIST_ENTRY(it, struct sim_ctl, link), WIMM_E_NIC_LOST, true, !silent);
}

static void dev_kill(struct sim_dev *d, bool silent)
{
	struct sim_world *w = d->world;

	d->killed = true;
	if (d->frozen) {
		d->frozen = false;
		w->blocks--;
	}
	if (silent && hash_insert(&w->gone, d->number, 1) != WIMM_OK)
		silent = false;
	sim_event_remove(w, &d->death);
	LIST_FOR_EACH(it, &d->paths)
		sim_path_sever(LIST_ENTRY(it, struct sim_path, link),
		               silent ? SIM_TELL_NONE : SIM_TELL_NOTICE);
	LIST_FOR_EACH(it, &d->ctls)
		sim_ctl_fail(LIST_ENTRY(it, struct sim_ctl, link), WIMM_E_PEER_LOST, false,
		             !silent);
}

static bool is_of(const struct sim_dev *d, const uint8_t *instance)
{
	return memcmp(d->instance, instance, sizeof(d->instance)) == 0;
}

void sim_kill_engine(struct sim_world *w, const uint8_t *instance, bool silent)
{
	bool told = false;

	mutex_lock(&w->lock);
	LIST_FOR_EACH(it, &w->devs) {
		struct sim_dev *d = LIST_ENTRY(it, struct sim_dev, link);

		if (!is_of(d, instance) || d->killed)
			continue;
		if (!told)
			sim_world_fault(w, silent ? SIM_KILL_SILENT : SIM_KILL, d->number);
		told = true;
		dev_kill(d, silent);
	}
	sim_world_held_release(w);
	mutex_unlock(&w->lock);
}

void sim_kill_nic(struct sim_world *w, uint32_t nic, bool silent)
{
	struct sim_dev *d;

	mutex_lock(&w->lock);
	d = sim_world_dev(w, nic);
	if (d)
		sim_nic_die(d, silent);
	mutex_unlock(&w->lock);
}

void sim_revive_nic(struct sim_world *w, uint32_t nic)
{
	mutex_lock(&w->lock);
	LIST_FOR_EACH(it, &w->devs) {
		struct sim_dev *d = LIST_ENTRY(it, struct sim_dev, link);

		if (d->number != nic || !d->nic_dead || d->killed ||
		    list_linked(&d->down_node.link) || list_linked(&d->up_node.link))
			continue;
		sim_world_fault(w, SIM_NIC_RETURN, nic);
		hash_remove(&w->gone, nic);
		d->nic_dead = false;
		sim_cq_push(d, &d->up_node, WIMM_OK, 0);
	}
	mutex_unlock(&w->lock);
}

void sim_kill_nic_at(struct sim_world *w, uint32_t nic, uint64_t at_ns)
{
	struct sim_dev *d;

	mutex_lock(&w->lock);
	d = sim_world_dev(w, nic);
	if (d) {
		sim_event_remove(w, &d->death);
		sim_event_push(w, &d->death, at_ns, false);
		sim_dev_wake(d);
	}
	mutex_unlock(&w->lock);
}

static void set_frozen(struct sim_world *w, const uint8_t *instance, bool frozen)
{
	bool told = false;

	mutex_lock(&w->lock);
	LIST_FOR_EACH(it, &w->devs) {
		struct sim_dev *d = LIST_ENTRY(it, struct sim_dev, link);

		if (!is_of(d, instance) || d->killed || d->frozen == frozen)
			continue;
		d->frozen = frozen;
		w->blocks += frozen ? 1 : UINT32_MAX; /* wraps: minus 1 */
		if (frozen && !told)
			sim_world_fault(w, SIM_FREEZE, d->number);
		told = true;
	}
	if (!frozen)
		sim_world_held_release(w);
	mutex_unlock(&w->lock);
}

void sim_freeze(struct sim_world *w, const uint8_t *instance)
{
	set_frozen(w, instance, true);
}

void sim_thaw(struct sim_world *w, const uint8_t *instance)
{
	set_frozen(w, instance, false);
}

void sim_partition(struct sim_world *w, uint32_t nic_a, uint32_t nic_b)
{
	uint64_t key = pair_key(nic_a, nic_b);

	mutex_lock(&w->lock);
	if (!hash_find(&w->cut, key, NULL) && hash_insert(&w->cut, key, 1) == WIMM_OK) {
		w->blocks++;
		sim_world_fault(w, SIM_PARTITION, nic_a);
	}
	mutex_unlock(&w->lock);
}

void sim_heal(struct sim_world *w, uint32_t nic_a, uint32_t nic_b)
{
	mutex_lock(&w->lock);
	if (hash_remove(&w->cut, pair_key(nic_a, nic_b))) {
		w->blocks--;
		sim_world_held_release(w);
	}
	mutex_unlock(&w->lock);
}

void sim_lose_next(struct sim_world *w, uint32_t nic, enum sim_fault kind, uint32_t count)
{
	struct sim_dev *d;

	mutex_lock(&w->lock);
	d = sim_world_dev(w, nic);
	if (d) {
		d->lose_kind = kind;
		d->lose_next = count;
	}
	mutex_unlock(&w->lock);
}

void sim_corrupt_next(struct sim_world *w, uint32_t nic, uint32_t count)
{
	struct sim_dev *d;

	mutex_lock(&w->lock);
	d = sim_world_dev(w, nic);
	if (d)
		d->corrupt_next = count;
	mutex_unlock(&w->lock);
}

void sim_refuse_next(struct sim_world *w, uint32_t nic)
{
	struct sim_dev *d;

	mutex_lock(&w->lock);
	d = sim_world_dev(w, nic);
	if (d)
		d->refuse_next++;
	mutex_unlock(&w->lock);
}

void sim_set_delay(struct sim_world *w, uint64_t min_ns, uint64_t max_ns)
{
	mutex_lock(&w->lock);
	w->cfg.min_delay_ns = min_ns;
	w->cfg.max_delay_ns = max_ns < min_ns ? min_ns : max_ns;
	mutex_unlock(&w->lock);
}

void sim_set_late(struct sim_world *w, uint64_t max_ns)
{
	mutex_lock(&w->lock);
	w->cfg.late_ns = max_ns;
	mutex_unlock(&w->lock);
}

void sim_set_loss(struct sim_world *w, uint32_t ppm)
{
	mutex_lock(&w->lock);
	w->cfg.loss_ppm = ppm;
	mutex_unlock(&w->lock);
}

void sim_set_resend(struct sim_world *w, uint32_t ppm)
{
	mutex_lock(&w->lock);
	w->cfg.resend_ppm = ppm;
	mutex_unlock(&w->lock);
}

void sim_set_ctl_delay(struct sim_world *w, uint32_t ppm, uint64_t max_ns)
{
	mutex_lock(&w->lock);
	w->cfg.ctl_delay_ppm = ppm;
	w->cfg.ctl_delay_ns = max_ns;
	mutex_unlock(&w->lock);
}

void sim_set_refuse(struct sim_world *w, uint32_t ppm)
{
	mutex_lock(&w->lock);
	w->cfg.refuse_ppm = ppm;
	mutex_unlock(&w->lock);
}

void sim_set_lock_limit(struct sim_world *w, uint64_t limit_bytes)
{
	mutex_lock(&w->lock);
	w->cfg.lock_limit_bytes = limit_bytes;
	mutex_unlock(&w->lock);
}

void sim_set_post_depth(struct sim_world *w, uint32_t depth)
{
	mutex_lock(&w->lock);
	w->cfg.post_depth = depth;
	mutex_unlock(&w->lock);
}

uint64_t sim_faults(struct sim_world *w, enum sim_fault kind)
{
	uint64_t count;

	mutex_lock(&w->lock);
	count = w->faults[kind];
	mutex_unlock(&w->lock);
	return count;
}

uint64_t sim_faults_all(struct sim_world *w)
{
	uint64_t count = 0;

	mutex_lock(&w->lock);
	for (int kind = 0; kind < SIM_FAULT_COUNT; kind++)
		count += w->faults[kind];
	mutex_unlock(&w->lock);
	return count;
}

const char *sim_fault_name(enum sim_fault kind)
{
	static const char *const text[] = {
#define X(name, words) [SIM_##name] = words,
		SIM_FAULT_MAP(X)
#undef X
	};

	return (unsigned)kind < SIM_FAULT_COUNT ? text[kind] : "unknown fault";
}

const char *sim_violation(struct sim_world *w)
{
	const char *text;

	mutex_lock(&w->lock);
	text = w->violation[0] ? w->violation : NULL;
	mutex_unlock(&w->lock);
	return text;
}

uint64_t sim_locked_bytes(struct sim_world *w, const uint8_t *instance)
{
	uint64_t bytes = 0;

	mutex_lock(&w->lock);
	LIST_FOR_EACH(it, &w->devs) {
		struct sim_dev *d = LIST_ENTRY(it, struct sim_dev, link);

		bytes += is_of(d, instance) ? d->locked_bytes : 0;
	}
	mutex_unlock(&w->lock);
	return bytes;
}

uint32_t sim_strict_regions(struct sim_world *w)
{
	uint32_t count = 0;

	mutex_lock(&w->lock);
	LIST_FOR_EACH(it, &w->devs) {
		struct sim_dev *d = LIST_ENTRY(it, struct sim_dev, link);
		uint32_t cursor = 0;
		uint64_t key, region;

		while (hash_next(&d->regions, &cursor, &key, &region))
			count += ((const struct sim_region *)(uintptr_t)region)->strict;
	}
	mutex_unlock(&w->lock);
	return count;
}

bool sim_nic_instance(struct sim_world *w, uint32_t nic, uint8_t out[16])
{
	struct sim_dev *d;

	mutex_lock(&w->lock);
	d = sim_world_dev(w, nic);
	if (d)
		memcpy(out, d->instance, sizeof(d->instance));
	mutex_unlock(&w->lock);
	return d != NULL;
}

uint64_t sim_events(struct sim_world *w)
{
	uint64_t events;

	mutex_lock(&w->lock);
	events = w->events;
	mutex_unlock(&w->lock);
	return events;
}
