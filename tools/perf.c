/* SPDX-License-Identifier: Apache-2.0 */
/* wimm perf: how fast the operations are, and whether they bring the right bytes. */
#include "commands.h"

#include "lib/launch.h"
#include "lib/report.h"
#include "lib/run.h"
#include "lib/util.h"

#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WALK_BYTES        (UINT64_C(64) << 20)
#define MAX_BLOCKS        (UINT64_C(1) << 20) /* of a buffer that the user did not choose */
#define SWEEP_BYTES       (UINT64_C(1) << 30) /* moved for one size of a sweep */
#define SWEEP_FIRST_BYTES 2u
#define SWEEP_LAST_BYTES  (8u << 20)
#define MAX_ROWS          1024u

enum {
	KEY_JSON = 0x100,
	KEY_NO_VALIDATE,
	KEY_CONFIRMED,
	KEY_IMM,
	KEY_SHUFFLE,
	KEY_PROGRESS,
	KEY_BUFFER,
	KEY_SEED,
	KEY_CHECK_ITERS,
	KEY_GBITS,
	KEY_FIRST_BLOCK,
	KEY_LAST_BLOCK,
	KEY_FIRST_BATCH,
	KEY_LAST_BATCH,
	KEY_VALIDATE,
};

struct perf {
	struct launch launch;
	struct spec spec;
	bool op_given;
	bool json;
	bool gbits;
	bool sweep_sizes;
	bool no_validate;
	bool iters_given;
	bool buffer_given;
	bool size_given;
	bool batch_given;
	bool check_given;
	uint64_t first_block, last_block;
	uint64_t first_batch, last_batch;
};

static const struct argp_option options[] = {
	{ NULL, 0, NULL, 0, "What is moved:", 1 },
	{ "size", 's', "BYTES", 0, "block size, with K, M or G; 64K (0 for a barrier)", 1 },
	{ "block-size", 's', NULL, OPTION_ALIAS, NULL, 1 },
	{ "all", 'a', NULL, 0, "sizes from 2 bytes to 8M, doubling", 1 },
	{ "start-block-size", KEY_FIRST_BLOCK, "BYTES", 0, "first size of a sweep", 1 },
	{ "max-block-size", KEY_LAST_BLOCK, "BYTES", 0, "last size of a sweep, doubling", 1 },
	{ "batch", 'l', "N", 0,
	  "blocks an iteration: single writes, pages, entries, targets or messages; 1, for paged "
	  "64, for scatter 8",
	  1 },
	{ "batch-size", 'l', NULL, OPTION_ALIAS, NULL, 1 },
	{ "post-list", 'l', NULL, OPTION_ALIAS, NULL, 1 },
	{ "start-batch-size", KEY_FIRST_BATCH, "N", 0, "first batch of a sweep", 1 },
	{ "max-batch-size", KEY_LAST_BATCH, "N", 0, "last batch of a sweep, doubling", 1 },
	{ "bidirectional", 'b', NULL, 0, "both sides write; bytes of both are counted", 1 },
	{ "imm", KEY_IMM, "page|once", 0, "immediates of a paged write", 1 },
	{ "shuffle", KEY_SHUFFLE, NULL, 0, "destination blocks in a random order", 1 },
	{ "buffer", KEY_BUFFER, "BYTES", 0, "memory walked over, each side; 64M", 1 },
	{ "total-buffer-size", KEY_BUFFER, NULL, OPTION_ALIAS, NULL, 1 },
	{ NULL, 0, NULL, 0, "How long and how deep:", 2 },
	{ "iters", 'n', "N", 0, "iterations; 1000", 2 },
	{ "num-iter", 'n', NULL, OPTION_ALIAS, NULL, 2 },
	{ "warmup", 'w', "N", 0, "iterations before the clock starts; 100", 2 },
	{ "warmup-iter", 'w', NULL, OPTION_ALIAS, NULL, 2 },
	{ "duration", 'D', "SECONDS", 0, "run that long instead of --iters", 2 },
	{ "depth", 't', "N", 0, "iterations in flight; 16", 2 },
	{ "tx-depth", 't', NULL, OPTION_ALIAS, NULL, 2 },
	{ "pipeline-depth", 't', NULL, OPTION_ALIAS, NULL, 2 },
	{ "confirmed", KEY_CONFIRMED, NULL, 0, "done means counted by the receiver", 2 },
	{ "progress", KEY_PROGRESS, "threads|caller", 0, "who drives the engine; threads", 2 },
	{ NULL, 0, NULL, 0, "What is checked and printed:", 3 },
	{ "no-validate", KEY_NO_VALIDATE, NULL, 0, "do not compare the bytes", 3 },
	{ "data-validation", KEY_VALIDATE, NULL, OPTION_HIDDEN, NULL, 3 },
	{ "check-consistency", KEY_VALIDATE, NULL, OPTION_HIDDEN, NULL, 3 },
	{ "check-iters", KEY_CHECK_ITERS, "N", 0,
	  "iterations compared, of each writer; as many as were timed", 3 },
	{ "seed", KEY_SEED, "N", 0, "of patterns and orders; 1", 3 },
	{ "json", KEY_JSON, NULL, 0, "one JSON object on the standard output", 3 },
	{ "report-gbits", KEY_GBITS, NULL, 0, "Gbit/s instead of 10^9 bytes a second", 3 },
	{ NULL, 'F', NULL, OPTION_HIDDEN, NULL, 3 },
	{ NULL, 'q', "N", OPTION_HIDDEN, NULL, 3 },
	{ NULL, 0, NULL, 0, "Where:", 10 },
	{ 0 }
};

static uint64_t size_arg(struct argp_state *state, const char *what, const char *arg)
{
	uint64_t value = 0;

	if (!parse_size(arg, &value))
		argp_error(state, "%s \"%s\": a number of bytes such as 4096, 64K or 1M is wanted",
		           what, arg);
	return value;
}

static uint64_t count_arg(struct argp_state *state, const char *what, const char *arg, uint64_t min)
{
	uint64_t value = 0;

	if (!parse_u64(arg, min, UINT64_C(1) << 40, &value))
		argp_error(state, "%s \"%s\": a number from %u is wanted", what, arg,
		           (unsigned)min);
	return value;
}

static bool word_arg(struct argp_state *state, const char *what, const char *arg, const char *no,
                     const char *yes)
{
	if (strcmp(arg, no) != 0 && strcmp(arg, yes) != 0)
		argp_error(state, "%s \"%s\": %s or %s is wanted", what, arg, no, yes);
	return strcmp(arg, yes) == 0;
}

static void positional(struct perf *p, char *arg, struct argp_state *state)
{
	if (!p->op_given) {
		if (!spec_op_find(arg, &p->spec.op))
			argp_error(state,
			           "operation \"%s\": write, paged, scatter, barrier or send is "
			           "wanted",
			           arg);
		p->op_given = true;
	} else if (p->launch.host == NULL) {
		p->launch.host = arg;
	} else {
		argp_error(state, "one host is wanted; \"%s\" is too much", arg);
	}
}

/* Options that need more than a line. False: none of these. */
static bool parse_rare(struct perf *p, int key, char *arg, struct argp_state *state)
{
	char *end;

	switch (key) {
	case 'D':
		p->spec.seconds = strtod(arg, &end);
		if (end == arg || *end != '\0' || !(p->spec.seconds > 0))
			argp_error(state, "duration \"%s\": seconds above 0 are wanted", arg);
		return true;
	case 'q':
		argp_error(state, "-q: wimm has one path for each pair of NICs, not queue pairs to "
		                  "choose; -t sets the iterations in flight");
		return true;
	case 'a':
		p->sweep_sizes = true;
		return true;
	case KEY_FIRST_BLOCK:
		p->first_block = size_arg(state, "--start-block-size", arg);
		if (p->first_block == 0)
			argp_error(state, "--start-block-size 0: a sweep doubles from 1 on");
		p->sweep_sizes = true;
		return true;
	case KEY_LAST_BLOCK:
		p->last_block = size_arg(state, "--max-block-size", arg);
		p->sweep_sizes = true;
		return true;
	case KEY_FIRST_BATCH:
		p->first_batch = count_arg(state, "--start-batch-size", arg, 1);
		return true;
	case KEY_LAST_BATCH:
		p->last_batch = count_arg(state, "--max-batch-size", arg, 1);
		return true;
	case KEY_IMM:
		p->spec.once = word_arg(state, "--imm", arg, "page", "once");
		return true;
	case KEY_PROGRESS:
		p->spec.caller = word_arg(state, "--progress", arg, "threads", "caller");
		return true;
	case KEY_SEED:
		if (!parse_u64(arg, 0, UINT32_MAX, &p->spec.seed))
			argp_error(state, "seed \"%s\": 0 to 4294967295 is wanted", arg);
		return true;
	default:
		return false;
	}
}

static bool parse_flag(struct perf *p, int key)
{
	switch (key) {
	case 'b':
		p->spec.both_ways = true;
		return true;
	case KEY_JSON:
		p->json = true;
		return true;
	case KEY_GBITS:
		p->gbits = true;
		return true;
	case KEY_NO_VALIDATE:
		p->no_validate = true;
		return true;
	case KEY_CONFIRMED:
		p->spec.confirmed = true;
		return true;
	case KEY_SHUFFLE:
		p->spec.shuffle = true;
		return true;
	case 'F': /* perftest: do not look at the CPU's frequency; we never do */
	case KEY_VALIDATE:
		return true;
	default:
		return false;
	}
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct perf *p = state->input;

	switch (key) {
	case ARGP_KEY_INIT:
		state->child_inputs[0] = &p->launch;
		return 0;
	case ARGP_KEY_ARG:
		positional(p, arg, state);
		return 0;
	case ARGP_KEY_NO_ARGS:
		argp_error(state, "an operation is wanted: write, paged, scatter, barrier or send");
		return 0;
	case 's':
		p->spec.block_bytes = size_arg(state, "--size", arg);
		p->size_given = true;
		return 0;
	case 'l':
		p->spec.batch = count_arg(state, "--batch", arg, 1);
		p->batch_given = true;
		return 0;
	case 'n':
		p->spec.iters = count_arg(state, "--iters", arg, 1);
		p->iters_given = true;
		return 0;
	case 'w':
		p->spec.warmup = count_arg(state, "--warmup", arg, 0);
		return 0;
	case 't':
		p->spec.depth = count_arg(state, "--depth", arg, 1);
		return 0;
	case KEY_BUFFER:
		p->spec.buffer_bytes = size_arg(state, "--buffer", arg);
		p->buffer_given = true;
		return 0;
	case KEY_CHECK_ITERS:
		p->spec.check_iters = count_arg(state, "--check-iters", arg, 1);
		p->check_given = true;
		return 0;
	default:
		return parse_rare(p, key, arg, state) || parse_flag(p, key) ? 0 : ARGP_ERR_UNKNOWN;
	}
}

/* What was not said. */
static void fill_defaults(struct perf *p)
{
	static const uint64_t batches[OP_COUNT] = { 1, 64, 8, 1, 1 };

	if (!p->size_given)
		p->spec.block_bytes = p->spec.op == OP_BARRIER ? 0 : 64u << 10;
	if (!p->batch_given)
		p->spec.batch = batches[p->spec.op];
	if (p->first_block == 0)
		p->first_block = SWEEP_FIRST_BYTES;
	if (p->last_block == 0)
		p->last_block = p->spec.op == OP_SEND ? 64u << 10 : SWEEP_LAST_BYTES;
	if (p->first_batch == 0)
		p->first_batch = p->spec.batch;
	if (p->last_batch == 0)
		p->last_batch = p->first_batch;
	launch_provider(&p->launch, p->spec.provider, sizeof(p->spec.provider));
}

/* The spec of one row: `base` with that size and batch. */
static struct spec row_spec(const struct perf *p, uint64_t block_bytes, uint64_t batch)
{
	struct spec s = p->spec;
	uint64_t iter_bytes;
	uint64_t fit;

	s.block_bytes = block_bytes;
	s.batch = batch;
	iter_bytes = spec_iter_bytes(&s) != 0 ? spec_iter_bytes(&s) : 1;
	if (!p->buffer_given) {
		s.buffer_bytes = WALK_BYTES;
		if (block_bytes < WALK_BYTES / MAX_BLOCKS)
			s.buffer_bytes = (block_bytes != 0 ? block_bytes : 1) * MAX_BLOCKS;
		if (s.buffer_bytes < iter_bytes)
			s.buffer_bytes = iter_bytes;
	}
	fit = SWEEP_BYTES / iter_bytes;
	if (p->sweep_sizes && !p->iters_given && s.iters > fit)
		s.iters = fit != 0 ? fit : 1;
	s.check_all = !p->check_given && !p->no_validate;
	if (p->no_validate)
		s.check_iters = 0;
	return s;
}

/* All rows of the run. Returns how many; dies of one that is not allowed. */
static uint32_t plan(const struct perf *p, struct spec *rows)
{
	uint64_t first = p->sweep_sizes ? p->first_block : p->spec.block_bytes;
	uint64_t last = p->sweep_sizes ? p->last_block : p->spec.block_bytes;
	uint32_t count = 0;

	for (uint64_t block = first; block <= last; block *= 2) {
		for (uint64_t batch = p->first_batch; batch <= p->last_batch; batch *= 2) {
			const char *fault;

			if (count == MAX_ROWS)
				die("a sweep of more than %u rows", MAX_ROWS);
			rows[count] = row_spec(p, block, batch);
			fault = spec_fault(&rows[count++]);
			if (fault != NULL) {
				(void)fprintf(stderr, "wimm perf: %s\n", fault);
				exit(STATUS_USAGE);
			}
		}
		if (block == 0)
			break;
	}
	if (count == 0) {
		(void)fprintf(stderr, "wimm perf: the sweep is empty: its first size or batch is "
		                      "above its last\n");
		exit(STATUS_USAGE);
	}
	return count;
}

static void run_rows(struct perf *p, const struct spec *rows, uint32_t count)
{
	struct run_result *result = must_alloc(1, sizeof(*result));
	cJSON *list = count > 1 && p->json ? cJSON_CreateArray() : NULL;

	for (uint32_t i = 0; i < count; i++) {
		cJSON *row;

		run_client(&p->launch.channel, &rows[i], launch_nics(&p->launch),
		           p->launch.shares_process, result);
		if (!p->json) {
			if (i == 0)
				report_heading(p->gbits);
			report_row(result, p->gbits);
			continue;
		}
		row = report_json(result, p->launch.target);
		if (list == NULL)
			report_print_json(row);
		else
			(void)cJSON_AddItemToArray(list, row);
	}
	if (p->json && list != NULL) {
		cJSON *sweep = cJSON_CreateObject();

		(void)cJSON_AddItemToObject(sweep, "sweep", list);
		report_print_json(sweep);
	}
	free(result);
}

int perf_main(int argc, char **argv)
{
	static const struct argp_child children[] = { { &launch_argp, 0, NULL, 10 }, { 0 } };
	static const struct argp argp = {
		options,
		parse,
		"write|paged|scatter|barrier|send [HOST]",
		"Measure an operation between two processes and compare the bytes it brings.\v"
		"Without HOST it waits for a client; with one it is the client, whose options "
		"decide. Two processes of torchrun, mpirun or srun need neither. See wimm(1).",
		children,
		NULL,
		NULL
	};
	struct perf *p = must_alloc(1, sizeof(*p));
	struct spec *rows = must_alloc(MAX_ROWS, sizeof(*rows));
	uint32_t count;

	launch_init(&p->launch);
	p->spec = (struct spec){ .iters = 1000, .warmup = 100, .depth = 16, .seed = 1 };
	argp_parse(&argp, argc, argv, 0, NULL, p);
	fill_defaults(p);
	count = plan(p, rows);
	if (launch_connect(&p->launch)) {
		run_rows(p, rows, count);
		launch_finish(&p->launch);
	}
	free(rows);
	free(p);
	return 0;
}
