/* SPDX-License-Identifier: Apache-2.0 */
/* The prefill side: computes, bumps, sends. It does what the decode side asks for and tells when
 * what happened. */
#include "gpu/kv_layers.h"

#include "base/config.h"
#include "mem/word.h"
#include "plat/clock.h"
#include "plat/rand.h"
#include "plat/thread.h"

#include <wimm/imm.h>
#include <wimm/region.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RAW_ROUNDS = 5000, IMM_RATE = 7, LOOKS = 1024 };

/* An engine for each number of SMs: a copy's width is chosen when its path first copies. */
struct side {
	struct wimm_engine *engine;
	struct wimm_mr *region;
	struct wimm_kv_cache *cache;
	struct wimm_kv_watch *watch;
	struct wimm_remote_mr *remote;
};

static struct kvl_share *sh;
static struct side sides[KVL_SIDES];
static struct kvl_model *model;
static cu_ptr pages;
static uint32_t *order;
static bool is_fake;

static uint64_t region_bytes(void)
{
	return kvl_layer_bytes(&sh->shape) * sh->shape.layers;
}

static void must_hurry(double limit_s, const char *what)
{
	if (gpu_now_s() < limit_s)
		return;
	printf("FAILED prefill: %s is not over after %d s\n", what, KVL_PATIENCE_S);
	(void)fflush(stdout);
	_Exit(1);
}

static void must_say(wimm_status st, const struct wimm_error_info *error, const char *what)
{
	if (st == WIMM_OK)
		return;
	printf("FAILED prefill: %s: %s: %s\n", what, wimm_status_name(st), error->text);
	(void)fflush(stdout);
	_Exit(1);
}

static struct side *side_get(uint32_t i)
{
	struct wimm_engine_opts opts = WIMM_ENGINE_OPTS_INIT;
	struct wimm_kv_cache_opts cache = WIMM_KV_CACHE_OPTS_INIT;
	struct wimm_kv_layout layout;
	struct wimm_error_info error = { 0 };
	struct side *s = &sides[i];
	char sms[16];

	kvl_times_of(s->engine);
	if (s->engine)
		return s;
	(void)snprintf(sms, sizeof(sms), "%u", sh->sms[i]);
	MUST(config_set("gpu_sms", sms));
	opts.provider = "host";
	opts.progress = WIMM_PROGRESS_THREADS;
	MUST(wimm_engine_open(&opts, &s->engine));
	MUST(wimm_reg_mr(s->engine, (void *)(uintptr_t)pages, region_bytes(), NULL, &s->region));
	MUST(wimm_open_remote_mr(s->engine, &sh->desc, &s->remote));
	kvl_layout(&sh->shape, &layout);
	cache.layout = &layout;
	cache.region = s->region;
	cache.messages = 8;
	must_say(wimm_kv_cache_open(s->engine, &cache, &s->cache, &error), &error, "the cache");
	MUST(wimm_kv_watch_open(s->cache, &s->watch));
	kvl_times_of(s->engine);
	return s;
}

/* --- rates --- */

static void rate_run(struct side *s, struct wimm_paged_writes *wr, uint64_t *flags)
{
	double limit = gpu_now_s() + KVL_PATIENCE_S;

	memset(flags, 0, sh->times * sizeof(*flags));
	for (uint64_t i = 0; i < sh->times; i++) {
		struct wimm_on_done on_done = { .flag = &flags[i] };

		MUST(wimm_submit_paged_writes(s->engine, wr, &on_done, NULL));
	}
	for (uint64_t i = 0; i < sh->times; i++) {
		while (wimm_flag_load(&flags[i]) == 0) {
			must_hurry(limit, "a list of pages");
			plat_cpu_relax();
		}
		MUST(flags[i] != 1);
	}
}

/* Shuffled pages all over both caches. */
static uint32_t *rate_list(struct side *s, struct wimm_paged_writes *out)
{
	uint32_t *index = calloc(2 * sh->page_count, sizeof(*index));
	struct rng rng;

	MUST(index == NULL);
	rng_init(&rng, 5);
	for (uint64_t i = 0; i < sh->page_count; i++)
		index[i] = index[sh->page_count + i] = (uint32_t)i;
	rng_shuffle_u32(&rng, index, sh->page_count);
	rng_shuffle_u32(&rng, index + sh->page_count, sh->page_count);
	*out = (struct wimm_paged_writes)WIMM_PAGED_WRITES_INIT;
	out->src = s->region;
	out->dst = s->remote;
	out->page_len_bytes = sh->page_len;
	out->src_pages = (struct wimm_pages){
		.indices = index,
		.count = sh->page_count,
		.stride_bytes = region_bytes() / sh->page_count / sh->page_len * sh->page_len,
	};
	out->dst_pages = out->src_pages;
	out->dst_pages.indices = index + sh->page_count;
	out->flags = WIMM_IMM;
	out->imm = IMM_RATE;
	return index;
}

static void do_rate(void)
{
	struct side *s = side_get(sh->side);
	struct wimm_paged_writes wr;
	uint32_t *index = rate_list(s, &wr);
	uint64_t *flags = calloc(sh->times, sizeof(*flags));
	double from;

	MUST(flags == NULL);
	rate_run(s, &wr, flags); /* opens the way */
	from = gpu_now_s();
	rate_run(s, &wr, flags);
	sh->rate = (double)(sh->page_len * sh->page_count * sh->times) / (gpu_now_s() - from) / 1e9;
	free(index);
	free(flags);
}

/* One list, when all has been quiet for a while. The decode side takes the marks. */
static void do_one(void)
{
	struct side *s = side_get(sh->side);
	struct wimm_paged_writes wr;
	uint32_t *index = rate_list(s, &wr);
	double from = gpu_now_s();
	uint64_t flag = 0;
	struct wimm_on_done on_done = { .flag = &flag };

	while (gpu_now_s() < from + 14e-3)
		plat_cpu_relax();
	sh->store_ns = clock_now_ns();
	MUST(wimm_submit_paged_writes(s->engine, &wr, &on_done, NULL));
	while (wimm_flag_load(&flag) == 0) {
		must_hurry(from + KVL_PATIENCE_S, "a list of pages");
		plat_cpu_relax();
	}
	MUST(flag != 1);
	sh->card_us = kvl_card_us();
	kvl_card_state(&sh->card_mhz, &sh->card_watts);
	free(index);
}

/* --- layers --- */

static _Atomic uint64_t sent_ns;
static wimm_status sent_status;

static void on_sent(void *context, const struct wimm_kv_done *done)
{
	uint64_t now_ns = clock_now_ns();

	(void)context;
	sent_status = done->status;
	if (done->status != WIMM_OK)
		printf("# the sender: %s: %s\n", wimm_status_name(done->status), done->text);
	atomic_store(&sent_ns, now_ns);
}

static struct wimm_kv_sender *send_open(struct side *s, uint64_t from)
{
	struct wimm_kv_send_opts opts = WIMM_KV_SEND_OPTS_INIT;
	struct wimm_error_info error = { 0 };
	struct wimm_kv_sender *sender = NULL;

	opts.flags = WIMM_KV_FROM_VALUE;
	opts.request = sh->request;
	opts.request_bytes = sh->request_bytes;
	opts.pages = order;
	opts.page_count = kvl_pages(&sh->shape);
	opts.chunk_tokens = sh->chunks > 1 ? sh->shape.chunk : 0;
	opts.watch = s->watch;
	opts.watch_value = from;
	opts.deadline_us = KVL_PATIENCE_S * UINT64_C(1000000);
	opts.fn = on_sent;
	atomic_store(&sent_ns, 0);
	must_say(wimm_kv_sender_open(s->cache, &opts, &sender, &error), &error, "the sender");
	return sender;
}

static void queue_graphs(uint64_t *word)
{
	const struct kvl_shape *s = &sh->shape;
	const uint64_t chunk_pages = s->chunk / s->page_tokens;

	if (sh->command == KVL_AFTER) {
		kvl_model_set(model, sh->seed, 0, 0, kvl_pages(s), word);
		kvl_model_write(model);
		return;
	}
	if (sh->chunks == 1) {
		kvl_model_set(model, sh->seed, s->tokens - s->chunk, 0, kvl_pages(s), word);
		kvl_model_layers(model);
		return;
	}
	for (uint64_t i = 0; i < sh->chunks; i++) {
		kvl_model_set(model, sh->seed, i * s->chunk, i * chunk_pages, chunk_pages, word);
		kvl_model_layers(model);
	}
}

static void do_layers(void)
{
	struct side *s = side_get(sh->side);
	uint64_t *word = wimm_kv_watch_word(s->watch);
	uint64_t from = __atomic_load_n(word, __ATOMIC_ACQUIRE);
	uint64_t target = from + (uint64_t)sh->shape.layers * sh->chunks;
	double limit = gpu_now_s() + KVL_PATIENCE_S;
	struct wimm_kv_sender *sender = sh->command == KVL_ALONE ? NULL : send_open(s, from);

	sh->start_ns = clock_now_ns();
	queue_graphs(word);
	for (uint32_t i = 0; __atomic_load_n(word, __ATOMIC_ACQUIRE) < target; i++)
		if (i % LOOKS == 0)
			must_hurry(limit, "the last layer");
	sh->store_ns = clock_now_ns();
	while (sender && atomic_load(&sent_ns) == 0) {
		must_hurry(limit, "the sender");
		plat_cpu_relax();
	}
	sh->sent_ns = atomic_load(&sent_ns);
	kvl_card_state(&sh->card_mhz, &sh->card_watts);
	MUST(gpu.lib->stream_sync(gpu.stream));
	sh->card_us = kvl_card_us();
	if (sender) {
		MUST(sent_status);
		MUST(wimm_kv_sender_close(&sender));
	}
}

/* --- start --- */

static void spin_raw(void *arg)
{
	uint64_t **words = arg;
	uint64_t seen = 0;

	while (seen < RAW_ROUNDS) {
		seen = __atomic_load_n(words[0], __ATOMIC_ACQUIRE);
		__atomic_store_n(words[1], seen, __ATOMIC_RELEASE);
	}
}

/* How much earlier than the CPU sees it a store may have been made: half of a whole round. */
static void measure_raw(void)
{
	uint64_t *words[2] = { mem_word_alloc(), mem_word_alloc() };
	uint32_t *cycles = cuda_host_alloc(RAW_ROUNDS * sizeof(*cycles));
	uint64_t *span = cuda_host_alloc(2 * sizeof(*span));
	uint64_t rounds = RAW_ROUNDS;
	void *params[] = { &words[0], &words[1], &rounds, &cycles, &span };
	struct plat_thread thread;

	if (is_fake)
		return;
	MUST(!mem_word_pin(words[0]) || !mem_word_pin(words[1]) || !cycles || !span);
	MUST(plat_thread_start(&thread, spin_raw, words, "raw", PLAT_CPU_ANY));
	gpu_launch(gpu.stream, "round_trips", 1, 1, params);
	MUST(gpu.lib->stream_sync(gpu.stream));
	plat_thread_join(&thread);
	sh->word_raw_ns = (span[1] - span[0]) / RAW_ROUNDS / 2;
}

static void copy_order(cu_ptr to)
{
	uint32_t *pinned = cuda_host_alloc(kvl_pages(&sh->shape) * sizeof(*pinned));

	MUST(pinned == NULL);
	memcpy(pinned, order, kvl_pages(&sh->shape) * sizeof(*pinned));
	MUST(gpu.lib->copy_async(to, (cu_ptr)(uintptr_t)pinned,
	                         kvl_pages(&sh->shape) * sizeof(*pinned), gpu.stream));
	MUST(gpu.lib->stream_sync(gpu.stream));
	cuda_host_free(pinned);
}

static void start(void)
{
	cu_ptr index;

	gpu_start();
	is_fake = kvl_fake_install();
	kvl_times_start(sh, true);
	pages = gpu_alloc(region_bytes());
	order = calloc(kvl_pages(&sh->shape), sizeof(*order));
	MUST(order == NULL);
	kvl_page_order(sh, 0, order);
	index = gpu_alloc(kvl_pages(&sh->shape) * sizeof(*order));
	copy_order(index);
	model = kvl_model_open(&sh->shape, pages, index, is_fake ? "none" : sh->cublas,
	                       sh->check && !is_fake, sh);
	measure_raw();
}

static void end(void)
{
	for (uint32_t i = 0; i < KVL_SIDES; i++) {
		if (!sides[i].engine)
			continue;
		MUST(wimm_kv_watch_close(&sides[i].watch));
		MUST(wimm_kv_cache_close(&sides[i].cache));
		MUST(wimm_engine_close(&sides[i].engine));
	}
}

void kvl_prefill(struct kvl_share *share)
{
	sh = share;
	gpu_case("kv layers, the prefill side");
	start();
	atomic_store(&sh->ready, 1);
	for (uint32_t turn = 1;; turn++) {
		while (atomic_load(&sh->asked) < turn)
			plat_thread_yield();
		switch (sh->command) {
		case KVL_RATE:
			do_rate();
			break;
		case KVL_ONE:
			do_one();
			break;
		case KVL_ALONE:
		case KVL_SEND:
		case KVL_AFTER:
			do_layers();
			break;
		case KVL_END:
			end();
			break;
		}
		(void)fflush(stdout);
		atomic_store(&sh->answered, turn);
		if (sh->command == KVL_END)
			return;
	}
}
