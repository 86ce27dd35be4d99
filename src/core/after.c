/* SPDX-License-Identifier: Apache-2.0 */
#include "core/after.h"

#include "base/alloc.h"
#include "core/args.h"
#include "core/error_text.h"
#include "mem/cuda_mark.h"
#include "plat/clock.h"

#include <wimm/cuda.h>

#include <stdio.h>

/* Marks looked at in one turn: each look is a call of the driver. */
#define LOOKS_MAX 16
/* Between two looks: a part of the time waited so far, so that neither is a short wait made long
 * nor does a long one cost a core. */
#define PAUSE_PART   16
#define PAUSE_MIN_NS (2 * CLOCK_NS_PER_US)
#define PAUSE_MAX_NS (200 * CLOCK_NS_PER_US)

wimm_status after_mark(struct op *op, const struct wimm_mr *src, void *stream)
{
	char text[MEM_CUDA_TEXT_BYTES];
	wimm_status st = cuda_mark_open(src->device, stream, &op->mark, text, sizeof(text));

	if (st != WIMM_OK)
		error_text_set("%s", text);
	return st;
}

static wimm_status look(struct op *op)
{
	char text[MEM_CUDA_TEXT_BYTES];
	wimm_status st = cuda_mark_look(op->mark, text, sizeof(text));

	if (st == WIMM_AGAIN)
		return st;
	cuda_mark_close(op->mark);
	op->mark = NULL;
	if (st != WIMM_OK)
		op_fail(op, st, 0, "%s", text);
	return st;
}

void after_start(struct worker *w, struct op *op)
{
	/* What failed settles by its legs, which find its status set. */
	if (op->status != WIMM_OK || look(op) != WIMM_AGAIN)
		return;
	list_push_back(&w->afters, &op->wait_link);
	w->after_ns = w->now_ns;
}

static uint64_t pause_of(const struct worker *w, const struct op *op) ON_WORKER
{
	uint64_t waited = w->now_ns > op->submit_ns ? w->now_ns - op->submit_ns : 0;
	uint64_t pause = waited / PAUSE_PART;

	return pause < PAUSE_MIN_NS ? PAUSE_MIN_NS : pause > PAUSE_MAX_NS ? PAUSE_MAX_NS : pause;
}

uint32_t after_step(struct worker *w)
{
	struct list seen;
	uint64_t pause = PAUSE_MAX_NS;
	uint32_t reached = 0;

	if (w->now_ns < w->after_ns)
		return 0;
	list_init(&seen);
	/* Going on may fail others, which leave whichever list they are in. */
	for (uint32_t i = 0; i < LOOKS_MAX && !list_empty(&w->afters); i++) {
		struct list *link = list_pop_front(&w->afters);
		struct op *op = LIST_ENTRY(link, struct op, wait_link);

		wimm_status st = look(op);

		if (st == WIMM_AGAIN) {
			list_push_back(&seen, link);
			pause = pause_of(w, op) < pause ? pause_of(w, op) : pause;
			continue;
		}
		reached++;
		post_go_on(w, op, st == WIMM_OK);
	}
	while (!list_empty(&seen))
		list_push_back(&w->afters, list_pop_front(&seen));
	w->after_ns = reached != 0 ? w->now_ns : clock_deadline_ns(w->now_ns, pause);
	return reached;
}

/* --- the public part --- */

wimm_status wimm_cuda_stream(struct wimm_engine *engine, int device, void **out_stream)
{
	char text[MEM_CUDA_TEXT_BYTES];
	wimm_status st = engine_check(engine);

	if (st != WIMM_OK)
		return st;
	if (out_stream == NULL)
		return args_null("out_stream");
	if (device < 0) {
		error_text_set("cuda: device %d", device);
		return WIMM_E_INVAL;
	}
	if (device >= MEM_CUDA_MAX_DEVICES) {
		error_text_set("cuda: device %d, the most are %d", device, MEM_CUDA_MAX_DEVICES);
		return WIMM_E_UNSUPPORTED;
	}
	mutex_lock(&engine->lock);
	if (engine_closing(engine))
		st = WIMM_E_CLOSED;
	else if (engine->lanes[device] == NULL)
		engine->lanes[device] = mem_calloc(1, sizeof(*engine->lanes[device]));
	if (st == WIMM_OK && engine->lanes[device] == NULL)
		st = WIMM_E_NOMEM;
	if (st == WIMM_OK) {
		st = cuda_lanes_get(engine->lanes[device], device, out_stream, text, sizeof(text));
		if (st != WIMM_OK)
			error_text_set("%s", text);
	}
	mutex_unlock(&engine->lock);
	return st;
}

void after_lanes_fini(struct wimm_engine *engine)
{
	for (int i = 0; i < MEM_CUDA_MAX_DEVICES; i++) {
		if (engine->lanes[i] == NULL)
			continue;
		cuda_lanes_fini(engine->lanes[i], i);
		mem_free(engine->lanes[i]);
		engine->lanes[i] = NULL;
	}
}

int wimm_mr_cuda_device(const struct wimm_mr *mr)
{
	return mr != NULL ? mr->device : -1;
}
