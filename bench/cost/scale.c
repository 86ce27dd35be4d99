/* SPDX-License-Identifier: Apache-2.0 */

/* Instructions of two caller-driven engines over provider sim for something that there is COUNT of
 * between them, each once. Run under "valgrind --tool=callgrind --collect-atstart=no", which counts
 * between the two marks only:
 *
 *   scale first COUNT   the first write to each of COUNT regions of one peer
 *   scale end COUNT     the end of COUNT regions that a peer has descriptors of
 *   scale retire COUNT  COUNT values retired at once
 *   scale behind COUNT  the same while writes with other values are under way
 *
 * Two sizes tell whether one of many costs more than one of few. bench/run does that. */

#include "../must.h"

#include <wimm/imm.h>
#include <wimm/transfer.h>

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <valgrind/callgrind.h>

enum { COUNT_MAX = 15000, BYTES = 8, OTHERS = 64 };

static struct wimm_engine *writer, *owner;
static struct wimm_mr *source, *mr[COUNT_MAX];
static struct wimm_remote_mr *remote[COUNT_MAX];
static uint64_t settled;

static void on_done(void *context, const struct wimm_done *done)
{
	must(done->status, context);
	settled++;
}

static void wait_for(uint64_t count)
{
	while (settled < count) {
		must(wimm_progress(writer, NULL), "progress");
		must(wimm_progress(owner, NULL), "progress");
	}
	settled = 0;
}

static struct wimm_engine *engine_open(void)
{
	struct wimm_engine_opts opts = WIMM_ENGINE_OPTS_INIT;
	struct wimm_engine *engine;

	opts.provider = "sim";
	opts.progress = WIMM_PROGRESS_CALLER;
	opts.peer_timeout_ms = 3600000;
	opts.heartbeat_ms = 1800000;
	must(wimm_engine_open(&opts, &engine), "open");
	return engine;
}

static void open_all(uint32_t count)
{
	uint8_t *memory = calloc(COUNT_MAX + 1, BYTES);

	if (memory == NULL)
		exit(1);
	writer = engine_open();
	owner = engine_open();
	must(wimm_reg_mr(writer, memory, BYTES, NULL, &source), "reg_mr");
	for (uint32_t i = 0; i < count; i++) {
		struct wimm_mr_desc desc;

		memory += BYTES;
		must(wimm_reg_mr(owner, memory, BYTES, NULL, &mr[i]), "reg_mr");
		must(wimm_mr_get_desc(mr[i], &desc), "desc");
		must(wimm_open_remote_mr(writer, &desc, &remote[i]), "remote");
	}
}

static void write_to(uint32_t i, uint32_t imm)
{
	const struct wimm_on_done done = { on_done, (void *)(uintptr_t) "a write", NULL };
	struct wimm_write w = WIMM_WRITE_INIT;

	w.flags = WIMM_IMM;
	w.imm = imm;
	w.src = source;
	w.dst = remote[i];
	w.len_bytes = BYTES;
	must(wimm_submit_single_write(writer, &w, &done, NULL), "write");
}

static void write_each(uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		write_to(i, 7);
}

static void end_each(uint32_t count)
{
	const struct wimm_on_done done = { on_done, (void *)(uintptr_t) "an end", NULL };

	for (uint32_t i = 0; i < count; i++)
		must(wimm_dereg_mr(owner, mr[i], &done), "dereg");
}

static void retire_each(uint32_t count)
{
	const struct wimm_on_done done = { on_done, (void *)(uintptr_t) "a retirement", NULL };

	for (uint32_t i = 0; i < count; i++)
		must(wimm_retire_imm(owner, 1000 + i, &done, NULL), "retire");
}

int main(int argc, char **argv)
{
	const char *what = argc == 3 ? argv[1] : "";
	uint32_t count = argc == 3 ? (uint32_t)strtoul(argv[2], NULL, 10) : 0;
	bool first = strcmp(what, "first") == 0, end = strcmp(what, "end") == 0;
	bool behind = strcmp(what, "behind") == 0;

	if (count == 0 || count > COUNT_MAX ||
	    (!first && !end && !behind && strcmp(what, "retire") != 0)) {
		(void)fprintf(stderr, "usage: scale first|end|retire|behind 1..%d\n", COUNT_MAX);
		return 2;
	}
	(void)setenv("WIMM_HELLO_TIMEOUT_MS", "600000", 1); /* valgrind is slow */
	open_all(first || end ? count : 1);
	write_to(0, 7); /* the session */
	wait_for(1);
	if (end) {
		write_each(count);
		wait_for(count);
	}
	CALLGRIND_TOGGLE_COLLECT;
	if (first)
		write_each(count);
	else if (end)
		end_each(count);
	else
		retire_each(count);
	if (behind)
		for (uint32_t i = 0; i < OTHERS; i++)
			write_to(0, 2000 + 1024 * i);
	wait_for(behind ? count + OTHERS : count);
	CALLGRIND_TOGGLE_COLLECT;
	must(wimm_engine_close(&writer), "close");
	must(wimm_engine_close(&owner), "close");
	return 0;
}
