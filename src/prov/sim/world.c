/* SPDX-License-Identifier: Apache-2.0 */
/* A world: its clock, its events, its settings. */

#include "prov/sim/sim_int.h"

#include "plat/clock.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The world of those who name none: real time, opened by its first NIC, closed by its last. */
static struct mutex common_lock = MUTEX_INIT_FOR_CHILDREN;
static struct sim_world *common_world TSA(guarded_by(common_lock));
static uint32_t common_users TSA(guarded_by(common_lock));
static pid_t common_pid TSA(guarded_by(common_lock)); /* a forked child begins a world anew */

static void cfg_defaults(struct sim_cfg *cfg)
{
	if (!cfg->profile)
		cfg->profile = "efa";
	if (cfg->post_depth == 0)
		cfg->post_depth = 128;
	if (cfg->ctl_depth == 0)
		cfg->ctl_depth = 16;
	if (cfg->ctl_depth < 4)
		cfg->ctl_depth = 4;
	if (cfg->max_ctl_bytes == 0)
		cfg->max_ctl_bytes = (1u << 20) + 4096;
	if (cfg->max_write_bytes == 0)
		cfg->max_write_bytes = UINT64_C(1) << 30;
	if (cfg->max_delay_ns < cfg->min_delay_ns)
		cfg->max_delay_ns = cfg->min_delay_ns;
}

wimm_status sim_world_open(const struct sim_cfg *cfg, struct sim_world **out)
{
	struct sim_world *w;
	bool rc, late;

	rc = cfg && cfg->profile && strcmp(cfg->profile, "rc") == 0;
	late = cfg && cfg->profile && strcmp(cfg->profile, "late") == 0;
	if (cfg && cfg->profile && !rc && !late && strcmp(cfg->profile, "efa") != 0)
		return WIMM_E_INVAL;
	w = mem_calloc(1, sizeof(*w));
	if (!w)
		return WIMM_E_NOMEM;
	if (cfg)
		w->cfg = *cfg;
	cfg_defaults(&w->cfg);
	w->cfg.profile = rc ? "rc" : late ? "late" : "efa";
	w->ordered = rc;
	w->late = late;
	mutex_init(&w->lock);
	rng_init(&w->rng, w->cfg.seed);
	list_init(&w->held);
	list_init(&w->devs);
	list_init(&w->wr_free);
	list_init(&w->chunks);
	list_init(&w->accepted);
	hash_init(&w->paths, 1);
	hash_init(&w->ctls, 2);
	hash_init(&w->cut, 3);
	hash_init(&w->gone, 4);
	*out = w;
	return WIMM_OK;
}

/* Only messages are left without an owner among the devices. */
static void drop_messages(struct sim_world *w)
{
	struct sim_event *ev;

	sim_world_held_release(w);
	while ((ev = sim_heap_top(&w->heap)) != NULL) {
		sim_heap_remove(&w->heap, ev);
		if (ev->kind == EV_MSG)
			sim_msg_free(w, ev->obj);
	}
}

void sim_world_close(struct sim_world *w)
{
	if (!w)
		return;
	ASSERT(list_empty(&w->devs));
	drop_messages(w);
	sim_wr_pool_fini(w);
	ASSERT(w->heap.events == 0);
	sim_heap_fini(&w->heap);
	hash_fini(&w->paths);
	hash_fini(&w->ctls);
	hash_fini(&w->cut);
	hash_fini(&w->gone);
	mutex_fini(&w->lock);
	mem_free(w);
}

struct sim_world *sim_world_join(void *world)
{
	if (world)
		return world;
	mutex_lock(&common_lock);
	if (common_pid != getpid()) {
		common_pid = getpid();
		common_world = NULL;
		common_users = 0;
	}
	if (common_world || sim_world_open(NULL, &common_world) == WIMM_OK)
		common_users++;
	world = common_world;
	mutex_unlock(&common_lock);
	return world;
}

void sim_world_leave(struct sim_world *w)
{
	mutex_lock(&common_lock);
	if (w == common_world && --common_users == 0) {
		common_world = NULL;
		sim_world_close(w);
	}
	mutex_unlock(&common_lock);
}

static void event_run(struct sim_world *w, struct sim_event *ev)
{
	if (w->blocks > 0 && sim_link_blocked(w, ev->from, ev->to)) {
		list_push_back(&w->held, &ev->held);
		return;
	}
	w->events++;
	switch (ev->kind) {
	case EV_PIECE:
	case EV_ACCEPT:
	case EV_ACK:
		sim_wr_event(w, ev);
		break;
	case EV_PATH_UP:
		sim_path_is_up(ev->obj);
		break;
	case EV_PATH_FAIL: {
		struct sim_path *p = ev->obj;

		sim_path_fail(p, p->fail_status, SIM_TELL_NONE, NULL);
		break;
	}
	case EV_MSG:
		sim_msg_arrive(w, ev->obj);
		break;
	case EV_NIC_DEATH:
		sim_nic_die(ev->obj, false);
		break;
	}
}

void sim_world_run(struct sim_world *w, uint64_t now_ns)
{
	struct sim_event *ev;

	while ((ev = sim_heap_top(&w->heap)) != NULL && ev->at_ns <= now_ns) {
		sim_heap_remove(&w->heap, ev);
		if (ev->at_ns > w->now_ns)
			w->now_ns = ev->at_ns;
		event_run(w, ev);
	}
	if (now_ns > w->now_ns)
		w->now_ns = now_ns;
}

void sim_world_held_release(struct sim_world *w)
{
	struct list *it;

	while ((it = list_pop_front(&w->held)) != NULL) {
		struct sim_event *ev = LIST_ENTRY(it, struct sim_event, held);

		if (ev->at_ns < w->now_ns)
			ev->at_ns = w->now_ns;
		ev->seq = ++w->seq;
		sim_heap_push(&w->heap, ev);
	}
	LIST_FOR_EACH(dev, &w->devs)
		sim_dev_wake(LIST_ENTRY(dev, struct sim_dev, link));
}

struct sim_dev *sim_world_dev(struct sim_world *w, uint32_t number)
{
	LIST_FOR_EACH(it, &w->devs) {
		struct sim_dev *d = LIST_ENTRY(it, struct sim_dev, link);

		if (d->number == number && !d->killed && !d->nic_dead)
			return d;
	}
	return NULL;
}

uint64_t sim_world_delay(struct sim_world *w)
{
	if (w->cfg.max_delay_ns == 0)
		return 0;
	return rng_between(&w->rng, w->cfg.min_delay_ns, w->cfg.max_delay_ns);
}

bool sim_world_chance(struct sim_world *w, uint32_t ppm)
{
	return ppm != 0 && rng_chance(&w->rng, ppm, 1000000);
}

void sim_world_fault(struct sim_world *w, enum sim_fault kind, uint32_t nic)
{
	w->faults[kind]++;
	if (w->cfg.on_fault)
		w->cfg.on_fault(w->cfg.fault_context, kind, nic);
	sim_world_trace(w, "fault at nic %u: %s", nic, sim_fault_name(kind));
}

void sim_world_violation(struct sim_world *w, const char *format, ...)
{
	va_list args;

	if (w->violation[0] != '\0')
		return;
	va_start(args, format);
	vsnprintf(w->violation, sizeof(w->violation), format, args);
	va_end(args);
	sim_world_trace(w, "violation: %s", w->violation);
}

void sim_world_trace(struct sim_world *w, const char *format, ...)
{
	char line[PROV_TEXT_BYTES];
	va_list args;

	if (!w->cfg.trace)
		return;
	va_start(args, format);
	vsnprintf(line, sizeof(line), format, args);
	va_end(args);
	w->cfg.trace(w->cfg.trace_context, w->now_ns, line);
}

uint64_t sim_world_now_ns(void *world)
{
	struct sim_world *w = world;
	uint64_t now_ns;

	if (!w || !w->cfg.virtual_time)
		return clock_now_ns();
	mutex_lock(&w->lock);
	now_ns = w->now_ns;
	mutex_unlock(&w->lock);
	return now_ns;
}

uint64_t sim_world_next_ns(struct sim_world *w)
{
	struct sim_event *top;
	uint64_t next_ns;

	mutex_lock(&w->lock);
	top = sim_heap_top(&w->heap);
	next_ns = top ? top->at_ns : UINT64_MAX;
	mutex_unlock(&w->lock);
	return next_ns;
}

void sim_world_advance(struct sim_world *w, uint64_t now_ns)
{
	mutex_lock(&w->lock);
	sim_world_run(w, now_ns);
	mutex_unlock(&w->lock);
}
