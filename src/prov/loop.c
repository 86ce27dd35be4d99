/* SPDX-License-Identifier: Apache-2.0 */
#include "prov/loop.h"

#include "plat/clock.h"

#include <stdarg.h>
#include <stdio.h>

void prov_fail_set(struct prov_fail *f, wimm_status status, int vendor_code, const char *fmt, ...)
{
	va_list args;

	f->status = status;
	f->vendor_code = (uint32_t)vendor_code;
	va_start(args, fmt);
	(void)vsnprintf(f->text, sizeof(f->text), fmt, args);
	va_end(args);
}

void prov_obj_init(struct prov_obj *obj, struct prov_loop *loop, int kind, struct list *all)
{
	*obj = (struct prov_obj){ .loop = loop, .kind = kind };
	list_init(&obj->ready);
	list_init(&obj->timed);
	list_init(&obj->all);
	if (all)
		list_push_back(all, &obj->all);
}

void prov_obj_ready(struct prov_obj *obj)
{
	if (!list_linked(&obj->ready))
		list_push_back(&obj->loop->ready, &obj->ready);
}

void prov_obj_timer(struct prov_obj *obj, uint64_t after_ms)
{
	struct prov_loop *loop = obj->loop;

	prov_obj_timer_off(obj);
	obj->deadline_ns = clock_deadline_ns(clock_now_ns(), after_ms * CLOCK_NS_PER_MS);
	list_push_back(&loop->timed, &obj->timed);
	if (obj->deadline_ns < loop->next_timer_ns)
		loop->next_timer_ns = obj->deadline_ns;
}

void prov_obj_timer_off(struct prov_obj *obj)
{
	list_remove(&obj->timed);
	obj->expired = false;
	if (list_empty(&obj->loop->timed))
		obj->loop->next_timer_ns = CLOCK_NEVER_NS;
}

void prov_obj_kill(struct prov_obj *obj)
{
	prov_obj_timer_off(obj);
	list_remove(&obj->ready);
	list_remove(&obj->all);
	list_push_back(&obj->loop->dead, &obj->all);
}

void prov_loop_init(struct prov_loop *loop)
{
	loop->now_ns = clock_now_ns();
	loop->next_timer_ns = CLOCK_NEVER_NS;
	list_init(&loop->ready);
	list_init(&loop->timed);
	list_init(&loop->dead);
}

void prov_loop_reap(struct prov_loop *loop, void (*free_obj)(struct prov_obj *obj))
{
	struct list *link;

	while ((link = list_pop_front(&loop->dead)) != NULL)
		free_obj(LIST_ENTRY(link, struct prov_obj, all));
}

void prov_loop_timers(struct prov_loop *loop)
{
	uint64_t next = CLOCK_NEVER_NS;

	if (loop->now_ns < loop->next_timer_ns)
		return;
	LIST_FOR_EACH(it, &loop->timed) {
		struct prov_obj *obj = LIST_ENTRY(it, struct prov_obj, timed);

		if (obj->deadline_ns > loop->now_ns) {
			next = obj->deadline_ns < next ? obj->deadline_ns : next;
			continue;
		}
		list_remove(&obj->timed);
		obj->expired = true;
		prov_obj_ready(obj);
	}
	loop->next_timer_ns = next;
}

void prov_loop_turn(struct prov_loop *loop, struct prov_emit *emit,
                    bool (*step)(struct prov_obj *obj, struct prov_emit *emit))
{
	struct list turn;
	struct list *link;

	if (list_empty(&loop->ready))
		return;
	list_init(&turn);
	list_splice_back(&turn, &loop->ready);
	while (!prov_emit_full(emit) && (link = list_pop_front(&turn)) != NULL) {
		struct prov_obj *obj = LIST_ENTRY(link, struct prov_obj, ready);

		if (step(obj, emit))
			prov_obj_ready(obj);
	}
	list_splice_back(&turn, &loop->ready);
	list_splice_back(&loop->ready, &turn);
}

uint64_t prov_loop_next_ns(const struct prov_loop *loop)
{
	return list_empty(&loop->ready) ? loop->next_timer_ns : loop->now_ns;
}
