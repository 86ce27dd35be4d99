/* SPDX-License-Identifier: Apache-2.0 */
/* One NIC of a world: its number is its address. */

#include "prov/sim/sim_int.h"

#include <stdio.h>
#include <string.h>

#define NUMBER_MAX 0xffffffu
#define ANY_FIRST  1000u /* chosen numbers stay clear of those that tests name */

/* "7" or "sim:7"; SIM_NIC_NONE for anything else. */
static uint32_t number_parse(const char *text)
{
	uint32_t number = 0;

	if (strncmp(text, "sim:", 4) == 0)
		text += 4;
	if (*text == '\0' || *text == '0')
		return SIM_NIC_NONE;
	for (; *text >= '0' && *text <= '9'; text++) {
		number = number * 10 + (uint32_t)(*text - '0');
		if (number > NUMBER_MAX)
			return SIM_NIC_NONE;
	}
	return *text == '\0' ? number : SIM_NIC_NONE;
}

uint32_t sim_addr_number(const struct prov_addr *addr)
{
	uint32_t number;

	if (addr->len_bytes != 4)
		return SIM_NIC_NONE;
	number = (uint32_t)addr->bytes[0] | (uint32_t)addr->bytes[1] << 8 |
	         (uint32_t)addr->bytes[2] << 16 | (uint32_t)addr->bytes[3] << 24;
	return number <= NUMBER_MAX ? number : SIM_NIC_NONE;
}

static void addr_make(uint32_t number, struct prov_addr *out)
{
	*out = (struct prov_addr){ .len_bytes = 4 };
	for (int i = 0; i < 4; i++)
		out->bytes[i] = (uint8_t)(number >> (8 * i));
}

void sim_dev_addr(const struct prov_dev *dev, struct prov_addr *out)
{
	addr_make(((const struct sim_dev *)dev)->number, out);
}

uint32_t sim_dev_list_nics(char (*out)[PROV_TEXT_BYTES], uint32_t max)
{
	if (max == 0)
		return 0;
	snprintf(out[0], PROV_TEXT_BYTES, "any");
	return 1;
}

wimm_status sim_dev_addr_format(const struct prov_addr *addr, char *text, size_t text_bytes)
{
	uint32_t number = sim_addr_number(addr);
	int len;

	if (number == SIM_NIC_NONE)
		return WIMM_E_PARSE;
	len = snprintf(text, text_bytes, "%u", number);
	return len < 0 || (size_t)len >= text_bytes ? WIMM_E_LIMIT : WIMM_OK;
}

wimm_status sim_dev_addr_parse(const char *text, struct prov_addr *out)
{
	uint32_t number = number_parse(text);

	if (number == SIM_NIC_NONE)
		return WIMM_E_PARSE;
	addr_make(number, out);
	return WIMM_OK;
}

/* Numbers of the killed are free again: a new process may come up at the old address. */
static wimm_status number_choose(struct sim_world *w, const char *nic, uint32_t *out,
                                 struct prov_error *error)
{
	uint32_t number;

	if (nic[0] == '\0' || strcmp(nic, "any") == 0 || strcmp(nic, "sim:any") == 0) {
		do {
			number = ANY_FIRST + w->next_number++;
		} while (sim_world_dev(w, number));
		*out = number;
		return WIMM_OK;
	}
	number = number_parse(nic);
	if (number == SIM_NIC_NONE) {
		snprintf(error->text, sizeof(error->text),
		         "\"%.64s\" names no simulated NIC; use \"any\" or a number from 1", nic);
		return WIMM_E_NOT_FOUND;
	}
	if (sim_world_dev(w, number)) {
		snprintf(error->text, sizeof(error->text),
		         "simulated NIC %u is in use; choose another number or \"any\"", number);
		return WIMM_E_ADDR_IN_USE;
	}
	*out = number;
	return WIMM_OK;
}

static void caps_fill(const struct sim_world *w, struct prov_caps *caps)
{
	*caps = (struct prov_caps){
		.ordered = w->ordered,
		.identifies_source = !w->cfg.no_source,
		.needs_empty_target = !w->ordered && !w->late,
		.can_cancel = !w->cfg.no_cancel,
		.wait_fd = !w->cfg.virtual_time,
		.max_ctl_bytes = w->cfg.max_ctl_bytes,
		.post_depth = w->cfg.post_depth,
		.max_write_bytes = w->cfg.max_write_bytes,
		.link_bytes_per_s = w->cfg.link_bytes_per_s,
		.numa_node = -1,
	};
}

static uint32_t lower_limit(uint32_t a, uint32_t b)
{
	if (a == 0 || b == 0)
		return a | b;
	return a < b ? a : b;
}

static void dev_init(struct sim_dev *d, struct sim_world *w, const struct prov_args *args)
{
	d->world = w;
	d->timeout_ns = (uint64_t)args->peer_timeout_ms * 1000000;
	d->post_depth = w->cfg.post_depth;
	d->region_limit = lower_limit(w->cfg.max_regions, args->max_regions);
	if (args->instance)
		memcpy(d->instance, args->instance, sizeof(d->instance));
	list_init(&d->link);
	list_init(&d->cq);
	list_init(&d->paths);
	list_init(&d->ctls);
	list_init(&d->returned);
	list_init(&d->closed);
	hash_init(&d->regions, 5);
	sim_event_init(&d->death, EV_NIC_DEATH, d, 0);
	sim_node_init(&d->down_node, PROV_NIC_DOWN, d);
	sim_node_init(&d->up_node, PROV_NIC_UP, d);
}

wimm_status sim_dev_open(const struct prov_args *args, struct prov_caps *caps,
                         struct prov_dev **out, struct prov_error *error)
{
	struct sim_world *w = sim_world_join(args->world);
	struct sim_dev *d = NULL;
	wimm_status st = WIMM_E_NOMEM;

	if (!w)
		return WIMM_E_NOMEM;
	d = mem_alloc_aligned(_Alignof(struct sim_dev), sizeof(*d));
	if (!d)
		goto undo_join;
	dev_init(d, w, args);
	if (!w->cfg.virtual_time) {
		st = wake_init(&d->wake);
		if (st != WIMM_OK)
			goto undo_alloc;
	}
	mutex_lock(&w->lock);
	st = number_choose(w, args->nic ? args->nic : "", &d->number, error);
	if (st == WIMM_OK && !sim_heap_reserve(&w->heap, 1))
		st = WIMM_E_NOMEM;
	if (st == WIMM_OK) {
		hash_remove(&w->gone, d->number);
		list_push_back(&w->devs, &d->link);
		caps_fill(w, caps);
	}
	mutex_unlock(&w->lock);
	if (st != WIMM_OK)
		goto undo_wake;
	*out = (struct prov_dev *)d;
	return WIMM_OK;
undo_wake:
	if (!w->cfg.virtual_time)
		wake_fini(&d->wake);
undo_alloc:
	mem_free(d);
undo_join:
	sim_world_leave(w);
	return st;
}

static void drop_queue(struct sim_dev *d)
{
	struct list *it;

	while ((it = list_pop_front(&d->cq)) != NULL) {
		struct sim_node *n = LIST_ENTRY(it, struct sim_node, link);

		if (n->kind == PROV_DONE || n->kind == PROV_IMM || n->kind == PROV_PART)
			sim_wr_unref(d->world, n->obj);
		else if (n->kind == PROV_CTL_MSG)
			sim_msg_free(d->world, n->obj);
	}
}

void sim_dev_close(struct prov_dev *dev)
{
	struct sim_dev *d = (struct sim_dev *)dev;
	struct sim_world *w = d->world;

	mutex_lock(&w->lock);
	while (!list_empty(&d->paths))
		sim_path_drop(LIST_ENTRY(d->paths.next, struct sim_path, link));
	drop_queue(d);
	while (!list_empty(&d->ctls))
		sim_ctl_drop(LIST_ENTRY(d->ctls.next, struct sim_ctl, link));
	sim_cq_free_returned(d);
	sim_region_drop_all(d);
	sim_event_remove(w, &d->death);
	sim_heap_unreserve(&w->heap, 1);
	list_remove(&d->link);
	if (d->frozen)
		w->blocks--;
	sim_world_held_release(w);
	mutex_unlock(&w->lock);
	if (!w->cfg.virtual_time)
		wake_fini(&d->wake);
	mem_free(d);
	sim_world_leave(w);
}
