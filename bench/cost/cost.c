/* SPDX-License-Identifier: Apache-2.0 */

/* Instructions of the core from the submission of a request to its post, on the calling thread of a
 * caller-driven engine over a provider that does nothing (stub.c). Run under
 * "valgrind --tool=callgrind --collect-atstart=no", which counts between the two marks only:
 *
 *   cost write N          N single writes
 *   cost paged PAGES N    N requests of PAGES pages, up to the post of the last page
 *   cost scatter ENTRIES N
 *
 * Two sizes give the cost of a further page. bench/run does that. */

#include "stub.h"

#include <wimm/imm.h>
#include <wimm/transfer.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <valgrind/callgrind.h>

enum { PAGE_BYTES = 4096, PAGES_MAX = 8192, WARMUP = 20 };

static struct wimm_engine *engine[2];
static struct wimm_mr *source;
static struct wimm_remote_mr *target;
static uint32_t indices[PAGES_MAX];
static struct wimm_scatter_entry entries[PAGES_MAX];
static uint64_t settled;
static bool counting;

static void must(wimm_status status, const char *what)
{
	if (status == WIMM_OK)
		return;
	(void)fprintf(stderr, "%s: %s: %s\n", what, wimm_status_name(status),
	              wimm_last_error_text());
	exit(1);
}

static void step_all(void)
{
	must(wimm_progress(engine[0], NULL), "progress");
	must(wimm_progress(engine[1], NULL), "progress");
}

static void on_done(void *context, const struct wimm_done *done)
{
	(void)context;
	must(done->status, "a write");
	settled++;
}

static void open_all(void)
{
	struct wimm_engine_opts opts = WIMM_ENGINE_OPTS_INIT;
	struct wimm_mr_desc desc;
	struct wimm_mr *mr;
	uint8_t *memory = calloc(2 * PAGES_MAX, PAGE_BYTES);

	if (memory == NULL)
		exit(1);
	opts.provider = "sim";
	opts.progress = WIMM_PROGRESS_CALLER;
	opts.peer_timeout_ms = 3600000; /* valgrind is slow, and nobody writes back */
	must(wimm_engine_open(&opts, &engine[0]), "open");
	must(wimm_engine_open(&opts, &engine[1]), "open");
	must(wimm_reg_mr(engine[0], memory, (uint64_t)PAGES_MAX * PAGE_BYTES, NULL, &source),
	     "reg_mr");
	must(wimm_reg_mr(engine[1], memory + (uint64_t)PAGES_MAX * PAGE_BYTES,
	                 (uint64_t)PAGES_MAX * PAGE_BYTES, NULL, &mr),
	     "reg_mr");
	must(wimm_mr_get_desc(mr, &desc), "desc");
	must(wimm_open_remote_mr(engine[0], &desc, &target), "remote");
	for (uint32_t i = 0; i < PAGES_MAX; i++) {
		indices[i] = (i * 5 + 3) % PAGES_MAX;
		entries[i] = (struct wimm_scatter_entry){
			.dst = target,
			.src_offset_bytes = (uint64_t)indices[i] * PAGE_BYTES,
			.dst_offset_bytes = (uint64_t)i * PAGE_BYTES,
			.len_bytes = PAGE_BYTES,
		};
	}
}

/* What the request looks like is the caller's business; the count begins with the call. */
static void count_from_here(void)
{
	if (counting)
		CALLGRIND_TOGGLE_COLLECT;
}

static void submit_write(uint64_t count)
{
	const struct wimm_on_done done = { .fn = on_done };
	struct wimm_write w = WIMM_WRITE_INIT;

	(void)count;
	w.flags = WIMM_IMM;
	w.imm = 7;
	w.src = source;
	w.dst = target;
	w.len_bytes = PAGE_BYTES;
	count_from_here();
	must(wimm_submit_single_write(engine[0], &w, &done, NULL), "submit");
}

static void submit_paged(uint64_t count)
{
	const struct wimm_on_done done = { .fn = on_done };
	struct wimm_paged_writes w = WIMM_PAGED_WRITES_INIT;

	w.flags = WIMM_IMM;
	w.imm = 7;
	w.src = source;
	w.dst = target;
	w.src_pages = (struct wimm_pages){ indices, count, PAGE_BYTES, 0 };
	w.dst_pages = (struct wimm_pages){ indices, count, PAGE_BYTES, 0 };
	w.page_len_bytes = PAGE_BYTES;
	count_from_here();
	must(wimm_submit_paged_writes(engine[0], &w, &done, NULL), "submit");
}

static void submit_scatter(uint64_t count)
{
	const struct wimm_on_done done = { .fn = on_done };
	struct wimm_scatter w = WIMM_SCATTER_INIT;

	w.flags = WIMM_IMM;
	w.imm = 7;
	w.src = source;
	w.entries = entries;
	w.count = count;
	count_from_here();
	must(wimm_submit_scatter(engine[0], &w, &done, NULL), "submit");
}

static void reached(void)
{
	if (counting)
		CALLGRIND_TOGGLE_COLLECT;
	counting = false;
}

/* One request, counted from here to the entry of the post of its last part. */
static void one(void (*submit)(uint64_t count), uint64_t count, bool count_it)
{
	uint64_t before = settled;
	uint64_t end = stub_posted() + count;

	stub_arm(count, reached);
	stub_hold(true);
	counting = count_it;
	submit(count);
	while (stub_posted() < end) {
		must(wimm_progress(engine[0], NULL), "progress");
		if (!count_it) /* the session is set up meanwhile */
			must(wimm_progress(engine[1], NULL), "progress");
	}
	stub_hold(false);
	while (settled == before)
		step_all();
}

int main(int argc, char **argv)
{
	const char *kind = argc > 1 ? argv[1] : "";
	bool single = strcmp(kind, "write") == 0;
	void (*submit)(uint64_t count) = single                         ? submit_write
	                                 : strcmp(kind, "paged") == 0   ? submit_paged
	                                 : strcmp(kind, "scatter") == 0 ? submit_scatter
	                                                                : NULL;
	uint64_t count = 1;
	int runs;

	if (submit == NULL || argc != (single ? 3 : 4)) {
		(void)fprintf(stderr, "usage: cost write N | paged PAGES N | scatter ENTRIES N\n");
		return 2;
	}
	if (!single)
		count = strtoull(argv[2], NULL, 10);
	runs = atoi(argv[argc - 1]);
	if (count == 0 || count > PAGES_MAX || runs < 1)
		return 2;
	open_all();
	for (int i = 0; i < WARMUP + runs; i++)
		one(submit, count, i >= WARMUP);
	must(wimm_engine_close(&engine[0]), "close");
	must(wimm_engine_close(&engine[1]), "close");
	return 0;
}
