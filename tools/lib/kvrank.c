/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/kvrank.h"
#include "lib/util.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define DEADLINE_US (600 * UINT64_C(1000000))

/* How one sender or receiver ended; its callback fills it. */
struct ending {
	pthread_mutex_t lock;
	pthread_cond_t cond;
	bool done;
	uint64_t at_ns;
	struct wimm_kv_done what;
	char text[256];
};

struct wimm_kv_layout kvrank_layout(const struct kvrun_spec *spec, enum kvrun_side side,
                                    uint32_t rank, uint32_t layers)
{
	struct wimm_kv_layout l = WIMM_KV_LAYOUT_INIT;
	struct wimm_error_info error = { 0 };

	l.kind = spec->model->segments == 1 ? WIMM_KV_MLA : WIMM_KV_GQA;
	l.layers = layers;
	l.kv_heads = spec->model->kv_heads;
	l.head_dim = spec->model->head_dim;
	l.elem_bytes = spec->elem_bytes;
	l.page_tokens = (uint32_t)spec->page_tokens[side];
	l.tp = spec->tp[side];
	l.tp_rank = rank;
	l.pages = (spec->tokens + l.page_tokens - 1) / l.page_tokens;
	if (wimm_kv_layout_pack(&l, &error) != WIMM_OK)
		die("%s", error.text);
	return l;
}

static void list_pages(struct kvrank *r, uint64_t count)
{
	uint64_t random = 7 + r->side;

	r->pages = must_alloc(count, sizeof(*r->pages));
	for (uint64_t i = 0; i < count; i++)
		r->pages[i] = (uint32_t)i;
	for (uint64_t i = count; i > 1 && !r->spec->in_order; i--) {
		uint64_t k;
		uint32_t swap = r->pages[i - 1];

		random = random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
		k = (random >> 33) % i;
		r->pages[i - 1] = r->pages[k];
		r->pages[k] = swap;
	}
}

static void open_engine(struct kvrank *r)
{
	struct wimm_engine_opts opts = WIMM_ENGINE_OPTS_INIT;
	char nics[256] = "";
	size_t len = 0;

	for (uint32_t i = 0; i < r->spec->nics; i++)
		len += (size_t)snprintf(nics + len, sizeof(nics) - len,
		                        strcmp(r->spec->provider, "tcp") == 0 ? "%s127.0.0.%u:0"
		                                                              : "%sany",
		                        i != 0 ? "," : "", i + 1);
	opts.provider = r->spec->provider;
	opts.nics = nics;
	must(wimm_engine_open(&opts, &r->engine), "opening the engine");
}

void kvrank_open(struct kvrank *r)
{
	const struct wimm_kv_layout *own = &r->layout[r->side];
	struct wimm_kv_cache_opts cache = WIMM_KV_CACHE_OPTS_INIT;
	struct wimm_error_info error = { 0 };

	r->layout[KVRUN_PREFILL] = kvrank_layout(r->spec, KVRUN_PREFILL, 0, r->layers);
	r->layout[r->side] = kvrank_layout(r->spec, r->side, r->rank, r->layers);
	if (wimm_kv_layout_extent(own, &r->memory_bytes, &error) != WIMM_OK)
		die("%s", error.text);
	r->memory = mmap(NULL, r->memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
	                 -1, 0);
	if (r->memory == MAP_FAILED)
		die("%llu bytes for a cache: %s", (unsigned long long)r->memory_bytes,
		    strerror(errno));
	list_pages(r, own->pages);
	if (r->side == KVRUN_PREFILL)
		kvbytes_fill(r);
	else
		kvbytes_poison(r);
	open_engine(r);
	must(wimm_reg_mr(r->engine, r->memory, r->memory_bytes, NULL, &r->mr),
	     "registering the cache");
	cache.layout = own;
	cache.region = r->mr;
	cache.max_requests = KVRUN_RANKS_MAX;
	cache.imm_first = 1;
	cache.messages = 16;
	if (wimm_kv_cache_open(r->engine, &cache, &r->cache, &error) != WIMM_OK)
		die("%s", error.text);
	if (r->side == KVRUN_PREFILL)
		must(wimm_kv_watch_open(r->cache, &r->watch), "a watched word");
}

void kvrank_close(struct kvrank *r)
{
	must(wimm_kv_watch_close(&r->watch), "closing the word");
	must(wimm_kv_cache_close(&r->cache), "closing the cache");
	must(wimm_engine_close(&r->engine), "closing the engine");
	(void)munmap(r->memory, r->memory_bytes);
	free(r->pages);
}

/* --- endings --- */

static void ending_init(struct ending *e)
{
	memset(e, 0, sizeof(*e));
	if (pthread_mutex_init(&e->lock, NULL) != 0 || pthread_cond_init(&e->cond, NULL) != 0)
		die("no lock to be had");
}

static void on_done(void *context, const struct wimm_kv_done *done)
{
	struct ending *e = context;

	(void)pthread_mutex_lock(&e->lock);
	e->at_ns = now_ns();
	e->what = *done;
	(void)snprintf(e->text, sizeof(e->text), "%s", done->text);
	e->done = true;
	(void)pthread_cond_signal(&e->cond);
	(void)pthread_mutex_unlock(&e->lock);
}

/* The deadline of the request itself ends the wait. */
static void ending_wait(struct ending *e, const struct kvrank *r)
{
	(void)pthread_mutex_lock(&e->lock);
	while (!e->done)
		(void)pthread_cond_wait(&e->cond, &e->lock);
	(void)pthread_mutex_unlock(&e->lock);
	if (e->what.status != WIMM_OK)
		die("%s rank %u: %s (%s)", r->side == KVRUN_PREFILL ? "prefill" : "decode", r->rank,
		    e->text, wimm_status_name(e->what.status));
	(void)pthread_mutex_destroy(&e->lock);
	(void)pthread_cond_destroy(&e->cond);
}

/* --- a pass --- */

static void meet(const struct kvrank *r)
{
	/* A rank that dies ends them all: the parent sees to that. */
	(void)pthread_barrier_wait(&r->shared->meet);
}

static struct kvrank_says *says_of(const struct kvrank *r)
{
	return &r->shared->says[r->side == KVRUN_DECODE ? KVRUN_RANKS_MAX + r->rank : r->rank];
}

static uint64_t pages_of(const struct kvrank *r, uint64_t tokens)
{
	uint64_t page = r->layout[r->side].page_tokens;

	return (tokens + page - 1) / page;
}

static void wait_until(uint64_t at_ns)
{
	struct timespec at = { (time_t)(at_ns / 1000000000), (long)(at_ns % 1000000000) };

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR)
		;
}

static void compute(struct kvrank *r, enum kvrank_pass pass, uint64_t steps)
{
	struct kvrank_says *says = says_of(r);
	uint64_t step_ns = pass == KVRANK_LAYERS ? r->shared->layer_ns : 0;

	says->begin_ns = now_ns();
	if (pass != KVRANK_LAYERS) {
		says->last_ns = says->begin_ns;
		(void)wimm_kv_watch_add(r->watch, steps);
		return;
	}
	for (uint64_t i = 1; i <= steps; i++) {
		wait_until(says->begin_ns + i * step_ns);
		says->last_ns = now_ns();
		(void)wimm_kv_watch_add(r->watch, 1);
	}
}

static void pass_prefill(struct kvrank *r, enum kvrank_pass pass, uint64_t tokens)
{
	uint32_t count = r->spec->tp[KVRUN_DECODE];
	struct wimm_kv_sender **sender = must_alloc(count, sizeof(struct wimm_kv_sender *));
	struct ending *ending = must_alloc(count, sizeof(*ending));
	uint64_t value = wimm_kv_watch_add(r->watch, 0);
	uint64_t steps = 0;
	double cpu;

	meet(r); /* the requests are there */
	for (uint32_t i = 0; i < count; i++) {
		struct wimm_kv_send_opts o = WIMM_KV_SEND_OPTS_INIT;
		struct wimm_error_info error = { 0 };

		ending_init(&ending[i]);
		o.flags = WIMM_KV_FROM_VALUE | (pass == KVRANK_LAYERS ? 0 : WIMM_KV_AT_END);
		o.request = r->shared->requests + i * r->shared->request_room;
		o.request_bytes = r->shared->request_bytes[i];
		o.pages = r->pages;
		o.page_count = pages_of(r, tokens);
		o.chunk_tokens = r->spec->chunk_tokens;
		o.watch = r->watch;
		o.watch_value = value;
		o.deadline_us = DEADLINE_US;
		o.fn = on_done;
		o.context = &ending[i];
		if (wimm_kv_sender_open(r->cache, &o, &sender[i], &error) != WIMM_OK)
			die("prefill rank %u: %s", r->rank, error.text);
		steps = wimm_kv_sender_steps(sender[i]);
	}
	meet(r); /* all senders are open */
	cpu = cpu_s();
	compute(r, pass, steps);
	for (uint32_t i = 0; i < count; i++)
		ending_wait(&ending[i], r);
	says_of(r)->cpu = cpu_s() - cpu;
	meet(r); /* all is there */
	for (uint32_t i = 0; i < count; i++)
		must(wimm_kv_sender_close(&sender[i]), "closing a sender");
	free(sender);
	free(ending);
	meet(r);
}

static void close_receiver(struct wimm_kv_receiver **receiver)
{
	uint64_t flag = 0;
	const struct wimm_on_done quiet = { .flag = &flag };

	must(wimm_kv_receiver_close(receiver, &quiet), "closing a receiver");
	while (wimm_flag_load(&flag) == 0)
		wait_until(now_ns() + 1000000);
}

static void pass_decode(struct kvrank *r, uint64_t tokens)
{
	struct wimm_kv_receive_opts o = WIMM_KV_RECEIVE_OPTS_INIT;
	struct kvrank_says *says = says_of(r);
	struct wimm_kv_receiver *receiver = NULL;
	struct wimm_kv_request said = WIMM_KV_REQUEST_INIT;
	struct wimm_error_info error = { 0 };
	struct ending ending;
	uint64_t bytes = 0;
	const void *request;
	double cpu;

	ending_init(&ending);
	o.prefill = &r->layout[KVRUN_PREFILL];
	o.tokens = tokens;
	o.pages = r->pages;
	o.page_count = pages_of(r, tokens);
	o.group_units = r->spec->group_units;
	o.deadline_us = DEADLINE_US;
	o.fn = on_done;
	o.context = &ending;
	if (wimm_kv_receiver_open(r->cache, &o, &receiver, &error) != WIMM_OK)
		die("decode rank %u: %s", r->rank, error.text);
	request = wimm_kv_receiver_request(receiver, &bytes);
	if (bytes > r->shared->request_room)
		die("a request of %llu bytes, room for %llu", (unsigned long long)bytes,
		    (unsigned long long)r->shared->request_room);
	memcpy(r->shared->requests + r->rank * r->shared->request_room, request, bytes);
	r->shared->request_bytes[r->rank] = bytes;
	must(wimm_kv_request_parse(request, bytes, &said), "reading the request");
	says->group_units = said.group_units;
	meet(r); /* the requests are there */
	meet(r); /* all senders are open */
	cpu = cpu_s();
	ending_wait(&ending, r);
	says->cpu = cpu_s() - cpu;
	says->done_ns = ending.at_ns;
	says->immediates = ending.what.immediates;
	says->bytes = ending.what.bytes;
	says->checked_bytes = 0;
	meet(r); /* all is there */
	if (r->spec->validate)
		says->checked_bytes = kvbytes_check(r, tokens);
	close_receiver(&receiver);
	meet(r);
}

void kvrank_pass(struct kvrank *r, enum kvrank_pass pass, uint64_t tokens)
{
	if (r->side == KVRUN_PREFILL)
		pass_prefill(r, pass, tokens);
	else
		pass_decode(r, tokens);
}
