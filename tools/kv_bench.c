/* SPDX-License-Identifier: Apache-2.0 */
/* wimm kv bench: whole prompts from prefill ranks to decode ranks, each a process of its own. */
#include "commands.h"

#include "lib/kvrun.h"
#include "lib/report.h"
#include "lib/util.h"

#include <wimm/engine.h>

#include <argp.h>
#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TOKENS_FIRST 128
#define TOKENS_LAST  131072
#define RUNS_MAX     16
#define MEMORY_MOST  (UINT64_C(4) << 30)
#define BAR_WIDTH    50

enum {
	KEY_MODEL = 0x100,
	KEY_TOKENS,
	KEY_PAGE_TOKENS,
	KEY_TP,
	KEY_DTYPE,
	KEY_PROVIDER,
	KEY_CHUNK,
	KEY_GROUP,
	KEY_LAYER_US,
	KEY_MEMORY,
	KEY_IN_ORDER,
	KEY_NO_VALIDATE,
	KEY_PLOT,
	KEY_JSON,
};

struct bench {
	struct kvrun_spec spec;
	uint64_t tokens; /* 0: by doubling */
	bool plot, json;
	uint32_t runs;
	struct kvrun_spec ran[RUNS_MAX];
	struct kvrun_result result[RUNS_MAX];
};

static const struct argp_option options[] = {
	{ NULL, 0, NULL, 0, "The cache:", 1 },
	{ "model", KEY_MODEL, "NAME", 0,
	  "llama-3.1-8b (default), llama-3.1-70b, qwen3-8b, qwen3-235b-a22b, deepseek-v3, "
	  "gpt-oss-120b, smollm2-135m",
	  1 },
	{ "tokens", KEY_TOKENS, "N", 0, "length of the prompt; else 128 to 131072 by doubling", 1 },
	{ "page-tokens", KEY_PAGE_TOKENS, "N[:N]", 0, "at prefill and decode; 16, deepseek-v3: 64",
	  1 },
	{ "tp", KEY_TP, "P:D", 0, "ranks at prefill and decode, a process each; 1:1", 1 },
	{ "dtype", KEY_DTYPE, "bf16|fp8", 0, "bytes an element; bf16", 1 },
	{ NULL, 0, NULL, 0, "The run:", 2 },
	{ "provider", KEY_PROVIDER, "NAME", 0, "host (default), tcp or another one", 2 },
	{ "nics", 'd', "N", 0, "of each rank, of this machine; 1", 2 },
	{ "chunk", KEY_CHUNK, "N", 0, "tokens that are computed at a time; all", 2 },
	{ "group", KEY_GROUP, "N", 0,
	  "units that share an immediate; 1: none do. Else as the library chooses", 2 },
	{ "layer-us", KEY_LAYER_US, "N", 0,
	  "that a layer of a chunk computes in the second pass; else as long as its transfer takes",
	  2 },
	{ "in-order", KEY_IN_ORDER, NULL, 0, "pages in a row, else in a random order", 2 },
	{ "memory", KEY_MEMORY, "BYTES", 0,
	  "for all caches together; a quarter of what is free, 4G at most. A model that takes more "
	  "is "
	  "folded: some of its layers at a time, and the output says so",
	  2 },
	{ "no-validate", KEY_NO_VALIDATE, NULL, 0, "do not compare the bytes", 2 },
	{ "plot", KEY_PLOT, NULL, 0, "bars of time and rate by length", 2 },
	{ "json", KEY_JSON, NULL, 0, "one JSON object on the standard output", 2 },
	{ 0 }
};

static uint64_t number(struct argp_state *state, const char *what, const char *arg, uint64_t most)
{
	uint64_t value = 1;

	if (!parse_u64(arg, 1, most, &value))
		argp_error(state, "%s \"%s\": a number from 1 to %" PRIu64 " is wanted", what, arg,
		           most);
	return value;
}

/* "2:1"; without a colon both are the same, where `alike` allows it. */
static void pair_arg(struct argp_state *state, const char *what, const char *arg, uint64_t most,
                     bool alike, uint64_t out[KVRUN_SIDES])
{
	char first[32] = "";
	const char *colon = strchr(arg, ':');
	size_t len = colon != NULL ? (size_t)(colon - arg) : strlen(arg);

	if (len >= sizeof(first) || (colon == NULL && !alike))
		argp_error(state, "%s \"%s\": two numbers with a colon between are wanted", what,
		           arg);
	memcpy(first, arg, len < sizeof(first) ? len : 0);
	out[KVRUN_PREFILL] = number(state, what, first, most);
	out[KVRUN_DECODE] =
		colon == NULL ? out[KVRUN_PREFILL] : number(state, what, colon + 1, most);
}

static error_t parse_run(int key, char *arg, struct argp_state *state, struct bench *b)
{
	switch (key) {
	case KEY_PROVIDER:
		b->spec.provider = arg;
		return 0;
	case 'd':
		b->spec.nics = (uint32_t)number(state, "--nics", arg, WIMM_MAX_NICS);
		return 0;
	case KEY_CHUNK:
		b->spec.chunk_tokens = number(state, "--chunk", arg, UINT32_MAX);
		return 0;
	case KEY_GROUP:
		b->spec.group_units = number(state, "--group", arg, UINT32_MAX);
		return 0;
	case KEY_LAYER_US:
		b->spec.layer_us = number(state, "--layer-us", arg, UINT32_MAX);
		return 0;
	case KEY_MEMORY:
		if (!parse_size(arg, &b->spec.memory_bytes))
			argp_error(state, "--memory \"%s\": a number of bytes is wanted", arg);
		return 0;
	case KEY_IN_ORDER:
		b->spec.in_order = true;
		return 0;
	case KEY_NO_VALIDATE:
		b->spec.validate = false;
		return 0;
	case KEY_PLOT:
		b->plot = true;
		return 0;
	case KEY_JSON:
		b->json = true;
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct bench *b = state->input;
	uint64_t pair[KVRUN_SIDES];

	switch (key) {
	case ARGP_KEY_ARG:
		argp_error(state, "\"%s\" is too much: all ranks run on this machine", arg);
		return 0;
	case KEY_MODEL:
		b->spec.model = model_find(arg);
		if (b->spec.model == NULL)
			argp_error(state, "model \"%s\" is unknown; --help lists those there are",
			           arg);
		return 0;
	case KEY_TOKENS:
		b->tokens = number(state, "--tokens", arg, UINT64_C(1) << 24);
		return 0;
	case KEY_PAGE_TOKENS:
		pair_arg(state, "--page-tokens", arg, 65536, true, b->spec.page_tokens);
		return 0;
	case KEY_TP:
		pair_arg(state, "--tp", arg, KVRUN_RANKS_MAX, false, pair);
		b->spec.tp[KVRUN_PREFILL] = (uint32_t)pair[KVRUN_PREFILL];
		b->spec.tp[KVRUN_DECODE] = (uint32_t)pair[KVRUN_DECODE];
		return 0;
	case KEY_DTYPE:
		if (strcmp(arg, "bf16") != 0 && strcmp(arg, "fp8") != 0)
			argp_error(state, "dtype \"%s\": bf16 or fp8 is wanted", arg);
		b->spec.elem_bytes = strcmp(arg, "bf16") == 0 ? 2 : 1;
		return 0;
	default:
		return parse_run(key, arg, state, b);
	}
}

/* A quarter of what the kernel calls available. */
static uint64_t free_memory(void)
{
	FILE *file = fopen("/proc/meminfo", "r");
	static const char name[] = "MemAvailable:";
	char line[128];
	uint64_t kib = 0;

	while (kib == 0 && file != NULL && fgets(line, sizeof(line), file) != NULL)
		if (strncmp(line, name, sizeof(name) - 1) == 0)
			kib = strtoull(line + sizeof(name) - 1, NULL, 10);
	if (file != NULL)
		(void)fclose(file);
	return kib * 1024 / 4 < MEMORY_MOST ? kib * 1024 / 4 : MEMORY_MOST;
}

static double exposed_share(const struct kvrun_result *r)
{
	return r->exposed < r->seconds ? r->exposed / r->seconds : 1;
}

static cJSON *json_of(const struct kvrun_spec *s, const struct kvrun_result *r)
{
	cJSON *o = cJSON_CreateObject();
	bool ok = o != NULL;

#define TEXT(name, value)   ok = ok && cJSON_AddStringToObject(o, name, value) != NULL
#define NUMBER(name, value) ok = ok && cJSON_AddNumberToObject(o, name, (double)(value)) != NULL
	TEXT("command", "kv bench");
	TEXT("model", s->model->name);
	TEXT("provider", s->provider);
	TEXT("dtype", s->elem_bytes == 2 ? "bf16" : "fp8");
	TEXT("compute", "a wait: no CPU is used for it");
	NUMBER("nics", s->nics);
	NUMBER("tokens", s->tokens);
	NUMBER("prefill_tp", s->tp[KVRUN_PREFILL]);
	NUMBER("decode_tp", s->tp[KVRUN_DECODE]);
	NUMBER("prefill_page_tokens", s->page_tokens[KVRUN_PREFILL]);
	NUMBER("decode_page_tokens", s->page_tokens[KVRUN_DECODE]);
	NUMBER("layers", s->model->layers);
	NUMBER("layers_at_a_time", r->layers_at_a_time);
	NUMBER("requests", r->requests);
	ok = ok && cJSON_AddBoolToObject(o, "folded", r->requests > 1) != NULL;
	NUMBER("pages", r->pages);
	NUMBER("group_units", r->group_units);
	NUMBER("immediates", r->immediates);
	NUMBER("bytes", r->bytes);
	NUMBER("bytes_checked", r->checked_bytes);
	ok = ok && cJSON_AddBoolToObject(o, "validated", s->validate) != NULL;
	NUMBER("seconds", r->seconds);
	NUMBER("gb_s", (double)r->bytes / 1e9 / r->seconds);
	NUMBER("compute_seconds", r->compute);
	NUMBER("exposed_seconds", r->exposed);
	NUMBER("hidden_share", 1 - exposed_share(r));
	NUMBER("cpu_seconds", r->cpu);
	NUMBER("setup_seconds", r->setup);
#undef TEXT
#undef NUMBER
	if (!ok)
		die("out of memory");
	return o;
}

static void print_json(const struct bench *b)
{
	cJSON *list, *all;

	if (b->tokens != 0) {
		report_print_json(json_of(&b->ran[0], &b->result[0]));
		return;
	}
	all = cJSON_CreateObject();
	list = cJSON_AddArrayToObject(all, "runs");
	if (list == NULL || cJSON_AddStringToObject(all, "command", "kv bench") == NULL)
		die("out of memory");
	for (uint32_t i = 0; i < b->runs; i++)
		if (!cJSON_AddItemToArray(list, json_of(&b->ran[i], &b->result[i])))
			die("out of memory");
	report_print_json(all);
}

static void print_heading(const struct bench *b)
{
	const struct kvrun_spec *s = &b->spec;

	printf("%s, %s, %u prefill and %u decode ranks, provider %s, %u NIC%s each, pages of "
	       "%" PRIu64 " and %" PRIu64 " tokens\n"
	       "time, rate and CPU of the transfer alone; hidden: its share that was over when the "
	       "last "
	       "layer was computed,\nwith a wait in place of compute. 10^9 bytes a GB\n",
	       s->model->name, s->elem_bytes == 2 ? "bf16" : "fp8", s->tp[KVRUN_PREFILL],
	       s->tp[KVRUN_DECODE], s->provider, s->nics, s->nics == 1 ? "" : "s",
	       s->page_tokens[KVRUN_PREFILL], s->page_tokens[KVRUN_DECODE]);
	printf("%8s %8s %10s %12s %12s %9s %9s %8s %10s\n", "tokens", "pages", "immediates",
	       "bytes", "checked", "ms", "GB/s", "hidden", "CPU s");
}

static void print_row(const struct kvrun_spec *s, const struct kvrun_result *r)
{
	printf("%8" PRIu64 " %8" PRIu64 " %10" PRIu64 " %12" PRIu64 " %12" PRIu64
	       " %9.3f %9.3f %7.1f%% %10.3f",
	       s->tokens, r->pages, r->immediates, r->bytes, r->checked_bytes, r->seconds * 1e3,
	       (double)r->bytes / 1e9 / r->seconds, 100 * (1 - exposed_share(r)), r->cpu);
	if (r->requests > 1)
		printf("  folded: %u requests of %u layers", r->requests, r->layers_at_a_time);
	printf("\n");
	(void)fflush(stdout);
}

static void bars(const struct bench *b, const char *what,
                 double (*value)(const struct kvrun_result *))
{
	double most = 0;

	for (uint32_t i = 0; i < b->runs; i++)
		most = value(&b->result[i]) > most ? value(&b->result[i]) : most;
	printf("\n%s\n", what);
	for (uint32_t i = 0; i < b->runs; i++) {
		double v = value(&b->result[i]);
		int width = most > 0 ? (int)(v / most * BAR_WIDTH + 0.5) : 0;

		printf("%8" PRIu64 " |%-*.*s %.3f\n", b->ran[i].tokens, BAR_WIDTH, width,
		       "##################################################", v);
	}
}

static double rate(const struct kvrun_result *r)
{
	return (double)r->bytes / 1e9 / r->seconds;
}

static double ms(const struct kvrun_result *r)
{
	return r->seconds * 1e3;
}

static double hidden(const struct kvrun_result *r)
{
	return 100 * (1 - exposed_share(r));
}

/* One length. False: not a layer of it fits into memory, which is said. */
static bool run_one(struct bench *b, uint64_t tokens)
{
	struct kvrun_spec *s = &b->ran[b->runs];
	uint64_t layer_bytes;

	*s = b->spec;
	s->tokens = tokens;
	if (kvrun_fit(s, &layer_bytes) == 0) {
		(void)fprintf(stderr,
		              "wimm kv bench: %" PRIu64 " tokens: one layer takes %" PRIu64
		              " bytes on all ranks, %" PRIu64 " are allowed (--memory)\n",
		              tokens, layer_bytes, s->memory_bytes);
		return false;
	}
	kvrun(s, &b->result[b->runs]);
	if (!b->json)
		print_row(s, &b->result[b->runs]);
	b->runs++;
	return true;
}

static int run_all(struct bench *b)
{
	uint64_t first = b->tokens != 0 ? b->tokens : TOKENS_FIRST;
	uint64_t last = b->tokens != 0 ? b->tokens : TOKENS_LAST;
	bool all = true;

	if (!b->json)
		print_heading(b);
	for (uint64_t tokens = first; tokens <= last && all; tokens *= 2)
		all = run_one(b, tokens);
	if (b->json && b->runs != 0)
		print_json(b);
	if (b->plot && !b->json) {
		bars(b, "GB/s", rate);
		bars(b, "ms", ms);
		bars(b, "% hidden", hidden);
	}
	return all ? 0 : STATUS_FAILED;
}

int kv_bench_main(int argc, char **argv)
{
	static const struct argp argp = {
		options,
		parse,
		NULL,
		"Move whole prompts of a model's shape from prefill ranks to decode ranks, each a "
		"process "
		"of its own on this machine, through wimm/kv.h: once after all layers, for time "
		"and rate, "
		"and once layer by layer, for what hides behind compute. All bytes are compared.",
		NULL,
		NULL,
		NULL
	};
	struct bench *b = must_alloc(1, sizeof(*b));
	const char *fault;
	int status;

	b->spec = (struct kvrun_spec){ .model = model_default(),
		                       .provider = "host",
		                       .nics = 1,
		                       .elem_bytes = 2,
		                       .tp = { 1, 1 },
		                       .memory_bytes = free_memory(),
		                       .validate = true };
	argp_parse(&argp, argc, argv, 0, NULL, b);
	for (int side = 0; side < KVRUN_SIDES; side++)
		if (b->spec.page_tokens[side] == 0)
			b->spec.page_tokens[side] = b->spec.model->page_tokens;
	b->spec.tokens = b->tokens != 0 ? b->tokens : TOKENS_LAST;
	fault = kvrun_fault(&b->spec);
	if (fault != NULL) {
		(void)fprintf(stderr, "wimm kv bench: %s\n", fault);
		free(b);
		return STATUS_USAGE;
	}
	status = run_all(b);
	free(b);
	return status;
}
