/* SPDX-License-Identifier: Apache-2.0 */
#include "core/stage.h"

#include "base/alloc.h"
#include "base/ignore.h"
#include "base/log.h"
#include "core/engine.h"
#include "plat/clock.h"

#include <string.h>

/* Lives until the last peer has let go of the slots. */
struct slots {
	void *base;
	bool pinned;
	_Atomic uint32_t *areas;
};

static void slots_free(void *base, bool pinned)
{
	if (pinned)
		cuda_host_free(base);
	else
		mem_free(base);
}

bool stage_mem_open(struct worker *w, struct stage_mem *mem, _Atomic uint32_t *areas)
{
	struct wimm_mr_opts opts = WIMM_MR_OPTS_INIT;
	uint64_t bytes = (uint64_t)STAGE_SLOTS * STAGE_STRIDE;

	mem->base = cuda_host_alloc(bytes);
	mem->pinned = mem->base != NULL;
	if (mem->base == NULL)
		mem->base = mem_alloc_aligned(4096, bytes);
	if (mem->base == NULL)
		return false;
	opts.flags = areas == NULL ? WIMM_MR_LOCAL_ONLY : 0;
	if (wimm_reg_mr(w->engine, mem->base, bytes, &opts, &mem->mr) == WIMM_OK) {
		mem->areas = areas;
		if (areas != NULL)
			atomic_fetch_add_explicit(areas, 1, memory_order_relaxed);
		return true;
	}
	LOG_ERROR("no slots for memory of GPUs: %s", wimm_last_error_text());
	slots_free(mem->base, mem->pinned);
	memset(mem, 0, sizeof(*mem));
	return false;
}

static void on_dereg(void *context, const struct wimm_done *done)
{
	struct slots *s = context;

	(void)done;
	slots_free(s->base, s->pinned);
	/* Release, with the acquire in stage_asked(): what they took is free for the next. */
	if (s->areas != NULL)
		atomic_fetch_sub_explicit(s->areas, 1, memory_order_release);
	mem_free(s);
}

void stage_mem_close(struct worker *w, struct stage_mem *mem)
{
	struct slots *s = mem->base != NULL ? mem_alloc(sizeof(*s)) : NULL;
	struct wimm_on_done on_done = { .fn = on_dereg, .context = s };

	if (s == NULL)
		return; /* out of memory: rather lose the slots than have somebody write there */
	*s = (struct slots){ mem->base, mem->pinned, mem->areas };
	status_ignore(wimm_dereg_mr(w->engine, mem->mr, &on_done)); /* live until now */
	memset(mem, 0, sizeof(*mem));
}

struct cuda_queue *stage_queue(struct worker *w, bool to_device, int device, const char **why)
{
	struct cuda_queue **q;

	*why = "too many GPUs";
	if (device >= STAGE_DEVICES)
		return NULL;
	q = &w->stage_queues[to_device][device];
	*why = w->stage_text;
	if (*q == NULL &&
	    cuda_queue_open(device, q, w->stage_text, sizeof(w->stage_text)) != WIMM_OK)
		*q = NULL;
	return *q;
}

void stage_fini(struct worker *w)
{
	for (int to = 0; to < 2; to++)
		for (int i = 0; i < STAGE_DEVICES; i++)
			cuda_queue_close(w->stage_queues[to][i]);
}

void stage_busy(struct worker *w, struct peer *p)
{
	if (p->state == PEER_UP && !list_linked(&p->stage_link))
		list_push_back(&w->stage_peers, &p->stage_link);
}

uint32_t stage_step(struct worker *w)
{
	uint32_t total = 0;

	LIST_FOR_EACH(it, &w->stage_peers) {
		struct peer *p = LIST_ENTRY(it, struct peer, stage_link);
		uint32_t n = stage_tx_step(w, p);

		n += stage_rx_step(w, p);
		if (n == 0)
			list_remove(&p->stage_link); /* until a message or a completion comes */
		total += n;
	}
	return total;
}

void stage_peer_down(struct worker *w, struct peer *p)
{
	stage_tx_down(w, p);
	stage_rx_down(w, p);
	if (list_linked(&p->stage_link))
		list_remove(&p->stage_link);
}

void stage_peer_closed(struct worker *w, struct peer *p)
{
	stage_tx_closed(w, p);
}

bool stage_fault(struct worker *w, struct cuda_queue *queue)
{
	if (w->now_ns - w->stage_look_ns < CLOCK_NS_PER_MS)
		return false;
	w->stage_look_ns = w->now_ns;
	return cuda_queue_check(queue) != WIMM_OK;
}

void stage_message(struct worker *w, struct peer *p, const struct wire_msg *m)
{
	if (m->type == WIRE_LAND_ASK)
		stage_asked(w, p);
	else if (m->type == WIRE_LAND_AREA)
		stage_area(w, p, m);
	else
		stage_landed(w, p, m);
}
