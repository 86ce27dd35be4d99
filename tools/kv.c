/* SPDX-License-Identifier: Apache-2.0 */
/* wimm kv: paged writes of the shape of a model's K/V cache, a layer at a time. */
#include "commands.h"

#include "lib/launch.h"
#include "lib/models.h"
#include "lib/report.h"
#include "lib/run.h"
#include "lib/util.h"

#include <argp.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BUFFER_BYTES (UINT64_C(512) << 20)

enum {
	KEY_MODEL = 0x100,
	KEY_TOKENS,
	KEY_PAGE_TOKENS,
	KEY_TP,
	KEY_DTYPE,
	KEY_REQUESTS,
	KEY_JSON,
	KEY_NO_VALIDATE,
	KEY_BUFFER,
};

struct kv {
	struct launch launch;
	struct spec spec;
	const struct model *model;
	uint64_t tokens;
	uint64_t page_tokens; /* 0: the model's */
	uint64_t tp;
	uint64_t requests;
	uint64_t buffer_bytes;
	uint32_t dtype_bytes;
	bool json;
	bool no_validate;
};

static const struct argp_option options[] = {
	{ NULL, 0, NULL, 0, "The cache:", 1 },
	{ "model", KEY_MODEL, "NAME", 0,
	  "llama-3.1-8b (default), llama-3.1-70b, qwen3-8b, qwen3-235b-a22b, deepseek-v3, "
	  "gpt-oss-120b, smollm2-135m",
	  1 },
	{ "tokens", KEY_TOKENS, "N", 0, "length of the prompt; 4096", 1 },
	{ "page-tokens", KEY_PAGE_TOKENS, "N", 0, "tokens a page; 16, for deepseek-v3 64", 1 },
	{ "tp", KEY_TP, "N", 0, "one of N tensor-parallel ranks; 1", 1 },
	{ "dtype", KEY_DTYPE, "bf16|fp8", 0, "bytes an element; bf16", 1 },
	{ NULL, 0, NULL, 0, "The run:", 2 },
	{ "requests", KEY_REQUESTS, "N", 0, "prompts, one after the other; 1", 2 },
	{ "depth", 't', "N", 0, "layers in flight; 4", 2 },
	{ "buffer", KEY_BUFFER, "BYTES", 0,
	  "memory for the cache, each side; 512M. A larger cache reuses it layer by layer", 2 },
	{ "no-validate", KEY_NO_VALIDATE, NULL, 0, "do not compare the bytes", 2 },
	{ "json", KEY_JSON, NULL, 0, "one JSON object on the standard output", 2 },
	{ NULL, 0, NULL, 0, "Where:", 10 },
	{ 0 }
};

static uint64_t count_arg(struct argp_state *state, const char *what, const char *arg)
{
	uint64_t value = 1;

	if (!parse_u64(arg, 1, UINT64_C(1) << 32, &value))
		argp_error(state, "%s \"%s\": a number from 1 is wanted", what, arg);
	return value;
}

static const struct model *model_arg(struct argp_state *state, const char *arg)
{
	const struct model *model = model_find(arg);

	if (model == NULL)
		argp_error(state, "model \"%s\" is unknown; --help lists those there are", arg);
	return model;
}

static void dtype_arg(struct kv *kv, struct argp_state *state, const char *arg)
{
	if (strcmp(arg, "bf16") != 0 && strcmp(arg, "fp8") != 0)
		argp_error(state, "dtype \"%s\": bf16 or fp8 is wanted", arg);
	kv->dtype_bytes = strcmp(arg, "bf16") == 0 ? 2 : 1;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct kv *kv = state->input;

	switch (key) {
	case ARGP_KEY_INIT:
		state->child_inputs[0] = &kv->launch;
		return 0;
	case ARGP_KEY_ARG:
		if (kv->launch.host != NULL)
			argp_error(state, "one host is wanted; \"%s\" is too much", arg);
		kv->launch.host = arg;
		return 0;
	case KEY_MODEL:
		kv->model = model_arg(state, arg);
		return 0;
	case KEY_TOKENS:
		kv->tokens = count_arg(state, "--tokens", arg);
		return 0;
	case KEY_PAGE_TOKENS:
		kv->page_tokens = count_arg(state, "--page-tokens", arg);
		return 0;
	case KEY_TP:
		kv->tp = count_arg(state, "--tp", arg);
		return 0;
	case KEY_DTYPE:
		dtype_arg(kv, state, arg);
		return 0;
	case KEY_REQUESTS:
		kv->requests = count_arg(state, "--requests", arg);
		return 0;
	case 't':
		kv->spec.depth = count_arg(state, "--depth", arg);
		return 0;
	case KEY_BUFFER:
		if (!parse_size(arg, &kv->buffer_bytes))
			argp_error(state, "--buffer \"%s\": a number of bytes is wanted", arg);
		return 0;
	case KEY_NO_VALIDATE:
		kv->no_validate = true;
		return 0;
	case KEY_JSON:
		kv->json = true;
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static uint64_t pages_of(const struct kv *kv)
{
	return (kv->tokens + kv->page_tokens - 1) / kv->page_tokens;
}

/* Heads of one rank; more ranks than heads hold copies of the same one. */
static uint64_t heads_of(const struct kv *kv)
{
	return kv->tp < kv->model->kv_heads ? (kv->model->kv_heads + kv->tp - 1) / kv->tp : 1;
}

static void plan(struct kv *kv)
{
	const struct model *m = kv->model;
	struct spec *s = &kv->spec;
	uint64_t layer_bytes;
	uint64_t fit;
	const char *fault;

	if (kv->page_tokens == 0)
		kv->page_tokens = m->page_tokens;
	s->op = OP_PAGED;
	s->block_bytes = kv->page_tokens * heads_of(kv) * m->head_dim * kv->dtype_bytes;
	s->batch = pages_of(kv) * m->segments;
	s->iters = m->layers * kv->requests;
	s->warmup = m->layers < 8 ? m->layers : 8;
	s->shuffle = true; /* pages of a cache lie anywhere */
	layer_bytes = spec_iter_bytes(s);
	fit = kv->buffer_bytes / layer_bytes;
	if (fit > m->layers)
		fit = m->layers;
	s->buffer_bytes = (fit != 0 ? fit : 1) * layer_bytes;
	s->check_all = !kv->no_validate;
	launch_provider(&kv->launch, s->provider, sizeof(s->provider));
	fault = spec_fault(s);
	if (fault != NULL) {
		(void)fprintf(stderr, "wimm kv: %s\n", fault);
		exit(STATUS_USAGE);
	}
}

static void add(cJSON *object, const char *name, double value)
{
	if (cJSON_AddNumberToObject(object, name, value) == NULL)
		die("out of memory");
}

static void print_json(const struct kv *kv, const struct run_result *r)
{
	cJSON *object = report_json(r, kv->launch.target);

	if (cJSON_AddStringToObject(object, "command", "kv") == NULL ||
	    cJSON_AddStringToObject(object, "model", kv->model->name) == NULL ||
	    cJSON_AddStringToObject(object, "dtype", kv->dtype_bytes == 2 ? "bf16" : "fp8") == NULL)
		die("out of memory");
	add(object, "tokens", (double)kv->tokens);
	add(object, "page_tokens", (double)kv->page_tokens);
	add(object, "pages", (double)pages_of(kv));
	add(object, "layers", kv->model->layers);
	add(object, "segments", kv->model->segments);
	add(object, "tp", (double)kv->tp);
	add(object, "requests", (double)kv->requests);
	add(object, "ms_per_request", r->seconds * 1e3 / (double)kv->requests);
	report_print_json(object);
}

static void print_text(const struct kv *kv, const struct run_result *r)
{
	const struct model *m = kv->model;

	printf("%s, %" PRIu64 " tokens, 1 of %" PRIu64 " ranks: %u layers of %" PRIu64
	       " pages in %u segments of %" PRIu64 " bytes, %" PRIu64 " immediates a prompt\n",
	       m->name, kv->tokens, kv->tp, m->layers, pages_of(kv), m->segments,
	       kv->spec.block_bytes, m->layers * kv->spec.batch);
	report_heading(false);
	report_row(r, false);
	printf("a prompt's cache is known to be complete after %.3f ms\n",
	       r->seconds * 1e3 / (double)kv->requests);
}

int kv_main(int argc, char **argv)
{
	static const struct argp_child children[] = { { &launch_argp, 0, NULL, 10 }, { 0 } };
	static const struct argp argp = {
		options,
		parse,
		"[HOST]\nbench [OPTION...]",
		"Move the K/V cache of a model's shape: one paged write a layer, one "
		"immediate a page and segment, pages in a random order.\v"
		"Without HOST it waits for a client; with one it is the client. wimm kv bench "
		"moves whole prompts between processes of many ranks; see its --help.",
		children,
		NULL,
		NULL
	};
	struct kv *kv;
	struct run_result *result;

	if (argc > 1 && strcmp(argv[1], "bench") == 0) {
		static char name[] = "wimm kv bench"; /* as its messages begin */

		argv[1] = name;
		return kv_bench_main(argc - 1, argv + 1);
	}
	kv = must_alloc(1, sizeof(*kv));
	result = must_alloc(1, sizeof(*result));

	launch_init(&kv->launch);
	kv->model = model_default();
	kv->tokens = 4096;
	kv->tp = 1;
	kv->requests = 1;
	kv->dtype_bytes = 2;
	kv->buffer_bytes = BUFFER_BYTES;
	kv->spec.depth = 4;
	kv->spec.seed = 1;
	argp_parse(&argp, argc, argv, 0, NULL, kv);
	plan(kv);
	if (launch_connect(&kv->launch)) {
		run_client(&kv->launch.channel, &kv->spec, launch_nics(&kv->launch),
		           kv->launch.shares_process, result);
		launch_finish(&kv->launch);
		if (kv->json)
			print_json(kv, result);
		else
			print_text(kv, result);
	}
	free(result);
	free(kv);
	return 0;
}
