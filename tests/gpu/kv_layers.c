/* SPDX-License-Identifier: Apache-2.0 */
/* Llama-3.1-70B's cache from a prefill process to a decode process on one card, layer by layer out
 * of a CUDA graph, over provider host. This process is the decode side: it leads, receives, checks
 * every byte of every round and reports. Its side of the card is idle while anything is timed,
 * since kernels of two processes take turns. */
#include "gpu/kv_layers.h"

#include "base/config.h"
#include "mem/word.h"
#include "plat/clock.h"
#include "plat/rand.h"
#include "plat/thread.h"

#include <wimm/imm.h>
#include <wimm/region.h>

#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROUNDS_MAX = 1000, IMM_RATE = 7, WIDE = 0, NARROW = 1, AFTER_ROUNDS = 10, ONES = 30 };

struct options {
	uint32_t rounds;  /* sent on 64 SMs */
	uint32_t alone;   /* of them, beside one where nothing is sent */
	uint32_t narrow;  /* and one on 16 */
	uint32_t prompts; /* whole ones, chunk by chunk */
	uint32_t events;  /* rounds in which the card times the copies, too */
	bool token_pages; /* pages of one token, and nothing is computed */
};

/* Times of one kind of round, in us. */
struct times {
	uint32_t count;
	double compute[ROUNDS_MAX]; /* start to the last layer's store */
	double last[ROUNDS_MAX];    /* from there to the count */
	double total[ROUNDS_MAX];
};

static struct kvl_share *sh;
static struct wimm_engine *engine;
static struct wimm_kv_cache *cache;
static struct wimm_mr *region;
static cu_ptr pages, places;
static uint32_t *order;
static uint64_t group_units; /* 0: the library chooses */
static unsigned long long *wrong;
static pid_t child;
static bool is_fake;
static int failed;

/* --- the two processes --- */

static void give_up(const char *what)
{
	printf("FAILED decode: %s\n", what);
	(void)fflush(stdout);
	if (child > 0)
		(void)kill(child, SIGKILL);
	_Exit(1);
}

static void must_live(double limit_s, const char *what)
{
	int status;

	if (waitpid(child, &status, WNOHANG) == child) {
		child = 0;
		if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
			exit(77); /* it has said why */
		give_up("the prefill process has ended");
	}
	if (gpu_now_s() > limit_s)
		give_up(what);
}

static void wait_word(const _Atomic uint32_t *word, uint32_t value, const char *what)
{
	double limit = gpu_now_s() + 2 * KVL_PATIENCE_S;

	while (atomic_load(word) != value) {
		must_live(limit, what);
		plat_thread_yield();
	}
}

static void ask(enum kvl_command command)
{
	sh->command = command;
	atomic_fetch_add(&sh->asked, 1);
}

static void wait_answer(void)
{
	wait_word(&sh->answered, atomic_load(&sh->asked), "the prefill process does not answer");
}

static void start_child(int fd)
{
	char text[16];

	(void)snprintf(text, sizeof(text), "%d", fd);
	child = fork();
	MUST(child < 0);
	if (child != 0)
		return;
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	(void)execl("/proc/self/exe", "kv_layers", "--prefill", text, (char *)NULL);
	_Exit(127);
}

/* --- what both sides know --- */

void kvl_page_order(const struct kvl_share *share, int which, uint32_t *out)
{
	const struct kvl_shape *s = &share->shape;
	struct rng rng;

	rng_init(&rng, 11 + (uint64_t)which);
	for (uint32_t i = 0; i < kvl_pages(s); i++)
		out[i] = i;
	if (!share->in_a_row)
		rng_shuffle_u32(&rng, out, kvl_pages(s));
}

void kvl_layout(const struct kvl_shape *s, struct wimm_kv_layout *out)
{
	struct wimm_error_info error = { 0 };

	*out = (struct wimm_kv_layout)WIMM_KV_LAYOUT_INIT;
	out->kind = WIMM_KV_GQA;
	out->layers = s->layers;
	out->kv_heads = s->kv_heads;
	out->head_dim = s->head_dim;
	out->elem_bytes = 2;
	out->page_tokens = s->page_tokens;
	out->tp = 1;
	out->pages = kvl_pages(s);
	MUST(wimm_kv_layout_pack(out, &error));
}

/* --- receiving --- */

static _Atomic uint64_t counted_ns;
static struct wimm_kv_done counted;

static void on_counted(void *context, const struct wimm_kv_done *done)
{
	uint64_t now_ns = clock_now_ns();

	(void)context;
	kvl_times_called();
	counted = *done;
	if (done->status != WIMM_OK)
		printf("# the receiver: %s: %s\n", wimm_status_name(done->status), done->text);
	atomic_store(&counted_ns, now_ns);
}

static struct wimm_kv_receiver *receive(void)
{
	struct wimm_kv_receive_opts opts = WIMM_KV_RECEIVE_OPTS_INIT;
	struct wimm_error_info error = { 0 };
	struct wimm_kv_receiver *r = NULL;
	const void *request;

	opts.tokens = sh->shape.tokens;
	opts.pages = order;
	opts.page_count = kvl_pages(&sh->shape);
	opts.group_units = group_units;
	opts.deadline_us = KVL_PATIENCE_S * UINT64_C(1000000);
	opts.fn = on_counted;
	atomic_store(&counted_ns, 0);
	if (wimm_kv_receiver_open(cache, &opts, &r, &error) != WIMM_OK)
		give_up(error.text);
	request = wimm_kv_receiver_request(r, &sh->request_bytes);
	MUST(request == NULL || sh->request_bytes > KVL_REQUEST_BYTES);
	memcpy(sh->request, request, sh->request_bytes);
	return r;
}

static uint64_t expected(void)
{
	struct wimm_error_info error = { 0 };
	struct wimm_kv_layout l;
	uint64_t count;

	kvl_layout(&sh->shape, &l);
	MUST(wimm_kv_count(&l, &l, kvl_pages(&sh->shape), 0, WIMM_KV_ALL_RANKS, &count, &error));
	return count;
}

static void check_bytes(void)
{
	const struct kvl_shape *s = &sh->shape;

	*wrong = 0;
	KVL_LAUNCH("check_pages", 528, 512, pages, places, kvl_pages(s), s->layers,
	           kvl_layer_bytes(s), kvl_page_bytes(s), sh->seed, (uint64_t)(uintptr_t)wrong);
	MUST(gpu.lib->stream_sync(gpu.stream));
	if (*(volatile unsigned long long *)wrong != 0) {
		printf("FAILED round %" PRIu64 ": %llu pieces of 16 bytes are wrong\n", sh->seed,
		       *wrong);
		failed = 1;
	}
}

static void add_times(struct times *t)
{
	uint64_t end_ns = atomic_load(&counted_ns);

	if (sh->command == KVL_ALONE)
		end_ns = sh->store_ns;
	if (t->count == ROUNDS_MAX)
		return;
	t->compute[t->count] = (double)(sh->store_ns - sh->start_ns) / 1e3;
	t->last[t->count] =
		(double)((int64_t)(end_ns - sh->store_ns) + (int64_t)sh->word_raw_ns) / 1e3;
	t->total[t->count] = (double)(end_ns - sh->start_ns) / 1e3;
	t->count++;
}

/* One round; t and steps may be NULL. */
static void round_of(enum kvl_command command, uint32_t side, uint32_t chunks, struct times *t,
                     struct kvl_steps *steps)
{
	struct wimm_kv_receiver *r = NULL;
	uint64_t quiet = 0;
	struct wimm_on_done on_quiet = { .flag = &quiet };
	double limit = gpu_now_s() + 2 * KVL_PATIENCE_S;

	sh->side = side;
	sh->chunks = chunks;
	sh->seed++;
	if (command != KVL_ALONE)
		r = receive();
	ask(command);
	wait_answer();
	if (command != KVL_ALONE) {
		while (atomic_load(&counted_ns) == 0)
			must_live(limit, "the receiver does not report");
		if (counted.status != WIMM_OK || counted.immediates != wimm_kv_receiver_count(r))
			give_up("a round has failed, or counted too few or too many");
		if (steps)
			kvl_times_add(steps, atomic_load(&counted_ns));
		check_bytes();
		MUST(wimm_kv_receiver_close(&r, &on_quiet));
		while (wimm_flag_load(&quiet) == 0)
			must_live(limit, "the immediate does not retire");
	}
	if (t)
		add_times(t);
}

static double page_rate(uint32_t side, uint64_t len, uint64_t list_bytes, uint64_t times)
{
	uint64_t total = kvl_layer_bytes(&sh->shape) * sh->shape.layers;
	uint64_t count;

	list_bytes = list_bytes < total ? list_bytes : total;
	sh->side = side;
	sh->page_len = len;
	sh->page_count = list_bytes / len;
	sh->times = times;
	ask(KVL_RATE);
	wait_answer();
	MUST(wimm_forget_imm(engine, IMM_RATE, &count));
	return sh->rate;
}

/* Lists of a layer's bytes, one at a time. */
static void ones(uint32_t side, bool events, struct kvl_steps *steps)
{
	uint64_t count, before;

	sh->side = side;
	sh->page_len = kvl_page_bytes(&sh->shape) / 2;
	sh->page_count = kvl_layer_bytes(&sh->shape) / sh->page_len;
	sh->events = events;
	MUST(wimm_forget_imm(engine, IMM_RATE, &before));
	for (uint32_t i = 0; i < ONES; i++) {
		ask(KVL_ONE);
		wait_answer();
		MUST(wimm_forget_imm(engine, IMM_RATE, &count));
		if (i != 0) /* the first opens the way */
			kvl_times_add(steps, clock_now_ns());
	}
	sh->events = false;
}

/* --- start --- */

static void start(void)
{
	struct wimm_engine_opts opts = WIMM_ENGINE_OPTS_INIT;
	struct wimm_kv_cache_opts cache_opts = WIMM_KV_CACHE_OPTS_INIT;
	struct wimm_error_info error = { 0 };
	uint64_t bytes = kvl_layer_bytes(&sh->shape) * sh->shape.layers;
	uint32_t *pinned;
	struct wimm_kv_layout layout;

	gpu_start();
	is_fake = kvl_fake_install();
	kvl_times_start(sh, false);
	pages = gpu_alloc(bytes);
	order = calloc(kvl_pages(&sh->shape), sizeof(*order));
	pinned = cuda_host_alloc(kvl_pages(&sh->shape) * sizeof(*order));
	wrong = cuda_host_alloc(sizeof(*wrong));
	MUST(!order || !pinned || !wrong);
	kvl_page_order(sh, 1, order);
	memcpy(pinned, order, kvl_pages(&sh->shape) * sizeof(*order));
	places = (cu_ptr)(uintptr_t)pinned; /* the check reads it where it is */
	opts.provider = "host";
	opts.progress = WIMM_PROGRESS_THREADS;
	MUST(wimm_engine_open(&opts, &engine));
	kvl_times_of(engine);
	MUST(wimm_reg_mr(engine, (void *)(uintptr_t)pages, bytes, NULL, &region));
	MUST(wimm_mr_get_desc(region, &sh->desc));
	kvl_layout(&sh->shape, &layout);
	cache_opts.layout = &layout;
	cache_opts.region = region;
	cache_opts.messages = 8;
	if (wimm_kv_cache_open(engine, &cache_opts, &cache, &error) != WIMM_OK)
		give_up(error.text);
}

/* --- the report --- */

static double p50(double *values, uint32_t count)
{
	return count != 0 ? gpu_percentile(values, count, 0.5) : 0;
}

static void row(const char *what, double is, const char *unit, double limit, bool at_most)
{
	bool good = at_most ? is <= limit : is >= limit;

	printf("| %s | %.2f %s | %s %.2f | %s |\n", what, is, unit, at_most ? "<=" : ">=", limit,
	       good ? "PASS" : "FAIL");
}

static void fact(const char *what, double is, const char *unit)
{
	printf("| %s | %.2f %s | | |\n", what, is, unit);
}

static void print_shape(void)
{
	const struct kvl_shape *s = &sh->shape;
	double gemm = kvl_gemm_flops(s);
	double attention = kvl_attention_flops(s, s->tokens - s->chunk);
	double all = 0;

	for (uint32_t at = 0; at < s->tokens; at += s->chunk)
		all += s->layers * (gemm + kvl_attention_flops(s, at));
	printf("# %u layers, %u tokens in pages of %u, %u kv heads of %u, bf16: %.1f MiB a layer, "
	       "%.2f GiB, %" PRIu64 " immediates\n",
	       s->layers, s->tokens, s->page_tokens, s->kv_heads, s->head_dim,
	       (double)kvl_layer_bytes(s) / KVL_MIB,
	       (double)kvl_layer_bytes(s) * s->layers / KVL_MIB / 1024, expected());
	printf("# a layer of the stand-in: %u tokens: products %u x %u x %u, %u x %u x %u, "
	       "%u x %u x %u, %u x %u x %u (m, n, k): %.2f TFLOP; attention of %u heads over "
	       "%u tokens: %.2f TFLOP; the whole prompt in %u chunks: %.0f TFLOP\n",
	       s->chunk, s->chunk, (s->heads + 2 * s->kv_heads) * s->head_dim, s->hidden, s->chunk,
	       s->hidden, s->heads * s->head_dim, s->chunk, 2 * s->ffn, s->hidden, s->chunk,
	       s->hidden, s->ffn, gemm / 1e12, s->heads, s->tokens, attention / 1e12,
	       s->tokens / s->chunk, all / 1e12);
	printf("# products by %s; largest difference from a slow one %.4f, of attention %.4f%s\n",
	       sh->gemm, sh->gemm_off, sh->attention_off, sh->check ? "" : " (not checked)");
	(void)fflush(stdout);
}

struct results {
	double rate16[KVL_SIDES], rate[KVL_SIDES]; /* GB/s: 16 KiB; this cache's pages */
	struct times alone, sent[KVL_SIDES], prompt_alone, prompt, after;
	struct kvl_steps one, one_events, steps[KVL_SIDES], events, prompt_steps;
};

static void print_rounds(struct results *r, double bytes_us)
{
	double alone = p50(r->alone.compute, r->alone.count);
	struct times *wide = &r->sent[WIDE];
	char text[96];

	fact("compute alone, p50", alone / 1e3, "ms");
	row("from the last layer's store to the count, p50", p50(wide->last, wide->count), "us",
	    30 + bytes_us, true);
	fact("the same, p90", gpu_percentile(wide->last, wide->count, 0.9), "us");
	fact("the same, least", gpu_percentile(wide->last, wide->count, 0), "us");
	row("total, p50", p50(wide->total, wide->count) / 1e3, "ms",
	    (1.02 * alone + bytes_us) / 1e3, true);
	for (int side = 0; side < KVL_SIDES; side++) {
		struct times *t = &r->sent[side];

		if (t->count == 0)
			continue;
		(void)snprintf(text, sizeof(text), "compute with the copy on %u SMs, p50",
		               sh->sms[side]);
		fact(text, p50(t->compute, t->count) / alone * 100 - 100, "% slower");
	}
	if (r->sent[NARROW].count != 0) {
		(void)snprintf(text, sizeof(text),
		               "from the last store to the count on %u SMs, p50", sh->sms[NARROW]);
		fact(text, p50(r->sent[NARROW].last, r->sent[NARROW].count), "us");
	}
}

static void print_results(struct results *r)
{
	const struct kvl_shape *s = &sh->shape;
	double most = r->rate[WIDE] > r->rate16[WIDE] ? r->rate[WIDE] : r->rate16[WIDE];
	double bytes_us = (double)kvl_layer_bytes(s) / most / 1e3;
	double whole = (double)kvl_layer_bytes(s) * s->layers;
	char text[96];

	printf("\n| what | figure | target | |\n|---|---|---|---|\n");
	for (int side = 0; side < KVL_SIDES; side++) {
		(void)snprintf(text, sizeof(text), "pages of 16 KiB, lists of 512 MiB, %u SMs",
		               sh->sms[side]);
		fact(text, r->rate16[side], "GB/s");
		(void)snprintf(text, sizeof(text),
		               "pages of %" PRIu64 " KiB, a layer a list, %u SMs",
		               kvl_page_bytes(s) / 2048, sh->sms[side]);
		fact(text, r->rate[side], "GB/s");
	}
	fact("a kernel's store is seen by the CPU after at most", (double)sh->word_raw_ns / 1e3,
	     "us");
	print_rounds(r, bytes_us);
	if (r->prompt.count != 0) {
		double chunk_us = bytes_us * s->chunk / s->tokens;
		double alone = p50(r->prompt_alone.total, r->prompt_alone.count);

		fact("whole prompt, chunk by chunk, compute alone", alone / 1e3, "ms");
		row("the same, sent: total", p50(r->prompt.total, r->prompt.count) / 1e3, "ms",
		    (1.02 * alone + chunk_us) / 1e3, true);
		fact("the same, from the last store to the count",
		     p50(r->prompt.last, r->prompt.count), "us");
	}
	row("not hidden: whole cache after compute, p50",
	    whole / p50(r->after.last, r->after.count) / 1e3, "GB/s", 0.9 * most, false);
	fact("hidden: of that time, gone by when the last layer was stored",
	     100 - 100 * p50(r->sent[WIDE].last, r->sent[WIDE].count) /
	                   p50(r->after.last, r->after.count),
	     "%");
	kvl_times_print("the last layer", &r->steps[WIDE], false);
	kvl_times_print("the last layer, timed by the card as well", &r->events, false);
	kvl_times_print("the last layer, the narrow side", &r->steps[NARROW], false);
	kvl_times_print("the last chunk's last layer", &r->prompt_steps, false);
	kvl_times_print("a layer's list alone", &r->one, true);
	kvl_times_print("a layer's list alone, timed by the card as well", &r->one_events, true);
}

/* --- main --- */

/* The whole cache in pages of one token, by an immediate a piece and in groups. */
static void run_token_pages(const struct options *o)
{
	static const uint64_t groups[] = { 1, 256, 4096, 0 };
	static struct times t[sizeof(groups) / sizeof(groups[0])];
	static struct kvl_steps steps[sizeof(groups) / sizeof(groups[0])];
	const struct kvl_shape *s = &sh->shape;
	double bytes = (double)kvl_layer_bytes(s) * s->layers;
	char text[96];

	round_of(KVL_AFTER, WIDE, 1, NULL, NULL); /* warms it up */
	for (uint32_t i = 0; i < o->rounds; i++) {
		for (size_t g = 0; g < sizeof(groups) / sizeof(groups[0]); g++) {
			group_units = groups[g];
			round_of(KVL_AFTER, WIDE, 1, &t[g], &steps[g]);
		}
	}
	printf("\n| what | figure | target | |\n|---|---|---|---|\n");
	for (size_t g = 0; g < sizeof(groups) / sizeof(groups[0]); g++) {
		double us = p50(t[g].last, t[g].count);

		(void)snprintf(text, sizeof(text),
		               "a layer of pages of one token%s, groups of %" PRIu64 "%s",
		               sh->in_a_row ? " in a row" : "", groups[g],
		               groups[g] == 0 ? ": the library's choice" : "");
		fact(text, us / s->layers, "us");
		fact("  the same", bytes / us / 1e3, "GB/s");
	}
}

static void run(const struct options *o)
{
	static struct results r;
	const struct kvl_shape *s = &sh->shape;

	for (uint32_t side = 0; side < KVL_SIDES; side++) {
		r.rate16[side] = page_rate(side, 16384, UINT64_C(512) * KVL_MIB, 10);
		r.rate[side] = page_rate(side, kvl_page_bytes(s) / 2, kvl_layer_bytes(s), 40);
		round_of(KVL_SEND, side, 1, NULL, NULL); /* warms it up */
		printf("# side of %u SMs is up: %.0f GB/s\n", sh->sms[side], r.rate[side]);
		(void)fflush(stdout);
	}
	round_of(KVL_ALONE, WIDE, 1, NULL, NULL);
	for (uint32_t i = 0; i < o->rounds; i++) {
		if (o->alone != 0 && i % ((o->rounds + o->alone - 1) / o->alone) == 0)
			round_of(KVL_ALONE, WIDE, 1, &r.alone, NULL);
		if (o->narrow != 0 && i % ((o->rounds + o->narrow - 1) / o->narrow) == 0)
			round_of(KVL_SEND, NARROW, 1, &r.sent[NARROW], &r.steps[NARROW]);
		round_of(KVL_SEND, WIDE, 1, &r.sent[WIDE], &r.steps[WIDE]);
		printf("# round %u: %.3f ms, last %.1f us\n", i,
		       r.sent[WIDE].total[i < ROUNDS_MAX ? i : 0] / 1e3,
		       r.sent[WIDE].last[i < ROUNDS_MAX ? i : 0]);
		(void)fflush(stdout);
	}
	ones(WIDE, false, &r.one);
	ones(WIDE, true, &r.one_events);
	sh->events = true;
	for (uint32_t i = 0; i < o->events; i++)
		round_of(KVL_SEND, WIDE, 1, NULL, &r.events);
	sh->events = false;
	for (uint32_t i = 0; i < AFTER_ROUNDS; i++)
		round_of(KVL_AFTER, WIDE, 1, &r.after, NULL);
	for (uint32_t i = 0; i < o->prompts; i++) {
		round_of(KVL_ALONE, WIDE, s->tokens / s->chunk, &r.prompt_alone, NULL);
		round_of(KVL_SEND, WIDE, s->tokens / s->chunk, &r.prompt, &r.prompt_steps);
	}
	print_results(&r);
}

static void usage(void)
{
	printf("kv_layers [--small] [--rounds N] [--alone N] [--narrow N] [--prompts N]\n"
	       "          [--events N] [--sms N] [--chunk TOKENS] [--layers N]\n"
	       "          [--cublas FILE|none] [--no-check] [--token-pages]\n"
	       "          [--in-a-row] [--set NAME=VALUE]...\n");
	exit(2);
}

static void take_setting(const char *text)
{
	const char *value = strchr(text, '=');
	uint32_t i = sh->setting_count;

	if (!value || i == KVL_SETTINGS)
		usage();
	(void)snprintf(sh->setting[i][0], KVL_NAME_BYTES, "%.*s", (int)(value - text), text);
	(void)snprintf(sh->setting[i][1], KVL_NAME_BYTES, "%s", value + 1);
	sh->setting_count++;
}

static void set_all(void)
{
	for (uint32_t i = 0; i < sh->setting_count; i++)
		MUST(config_set(sh->setting[i][0], sh->setting[i][1]));
}

static void set_defaults(struct kvl_shape *s, struct options *o)
{
	*s = (struct kvl_shape){ .layers = 80,
		                 .tokens = 32768,
		                 .chunk = 2048,
		                 .page_tokens = 16,
		                 .heads = 64,
		                 .kv_heads = 8,
		                 .head_dim = 128,
		                 .hidden = 8192,
		                 .ffn = 28672 };
	*o = (struct options){ .rounds = 20, .alone = 7, .narrow = 5, .prompts = 1, .events = 5 };
	sh->sms[WIDE] = 64;
	sh->sms[NARROW] = 16;
	sh->check = true;
}

static void parse(int argc, char **argv, struct options *o)
{
	struct kvl_shape *s = &sh->shape;

	set_defaults(s, o);
	for (int i = 1; i < argc; i++) {
		const char *name = argv[i];
		const char *value = i + 1 < argc ? argv[i + 1] : "";
		uint32_t number = (uint32_t)strtoul(value, NULL, 0);

		if (strcmp(name, "--small") == 0) {
			s->layers = 4;
			s->tokens = 1024;
			s->chunk = 256;
			*o = (struct options){ .rounds = 3, .alone = 2, .narrow = 2, .prompts = 1,
				               .events = 2 };
			continue;
		}
		if (strcmp(name, "--token-pages") == 0) {
			s->page_tokens = 1;
			s->tokens = 15360;
			s->chunk = 1024;
			o->token_pages = true;
			sh->check = false;
			continue;
		}
		if (strcmp(name, "--in-a-row") == 0) {
			sh->in_a_row = true;
			continue;
		}
		if (strcmp(name, "--no-check") == 0) {
			sh->check = false;
			continue;
		}
		if (strcmp(name, "--rounds") == 0)
			o->rounds = number;
		else if (strcmp(name, "--alone") == 0)
			o->alone = number;
		else if (strcmp(name, "--narrow") == 0)
			o->narrow = number;
		else if (strcmp(name, "--prompts") == 0)
			o->prompts = number;
		else if (strcmp(name, "--events") == 0)
			o->events = number;
		else if (strcmp(name, "--sms") == 0)
			sh->sms[WIDE] = number;
		else if (strcmp(name, "--chunk") == 0)
			s->chunk = number;
		else if (strcmp(name, "--layers") == 0)
			s->layers = number;
		else if (strcmp(name, "--cublas") == 0)
			(void)snprintf(sh->cublas, sizeof(sh->cublas), "%s", value);
		else if (strcmp(name, "--set") == 0)
			take_setting(value);
		else
			usage();
		i++;
	}
	if (s->chunk == 0 || s->chunk % 128 != 0 || s->tokens % s->chunk != 0 || s->layers == 0 ||
	    o->rounds == 0)
		usage();
}

static struct kvl_share *map_share(int fd)
{
	void *at = mmap(NULL, sizeof(struct kvl_share), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	MUST(at == MAP_FAILED);
	return at;
}

int main(int argc, char **argv)
{
	struct options o;
	double from = gpu_now_s();
	int status;
	int fd;

	if (argc == 3 && strcmp(argv[1], "--prefill") == 0) {
		sh = map_share(atoi(argv[2]));
		set_all();
		kvl_prefill(sh);
		return 0;
	}
	fd = memfd_create("kv_layers", 0);
	MUST(fd < 0 || ftruncate(fd, sizeof(struct kvl_share)) != 0);
	sh = map_share(fd);
	parse(argc, argv, &o);
	set_all();
	start();
	gpu_case("kv layers, the decode side");
	start_child(fd);
	wait_word(&sh->ready, 1, "the prefill process does not start");
	if (is_fake)
		printf("# THE DRIVER IS A FAKE: it shows that the program works, its figures mean "
		       "nothing\n");
	print_shape();
	if (o.token_pages)
		run_token_pages(&o);
	else
		run(&o);
	ask(KVL_END);
	wait_answer();
	(void)waitpid(child, &status, 0);
	MUST(wimm_kv_cache_close(&cache));
	MUST(wimm_engine_close(&engine));
	if (sh->check && !is_fake && (sh->gemm_off > 0.1 || sh->attention_off > 0.02)) {
		printf("FAILED: a product is wrong\n");
		failed = 1;
	}
	printf("\n# every byte of every round is %s; %.0f s\n", failed ? "NOT right" : "right",
	       gpu_now_s() - from);
	gpu_case(NULL);
	return failed || gpu_end();
}
