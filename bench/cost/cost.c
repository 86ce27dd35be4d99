/* SPDX-License-Identifier: Apache-2.0 */

/* Instructions of the core from the submission of a request to its post, on the calling thread of
 * a caller-driven engine over a provider that does nothing (stub.c), or over verbs and a library
 * below it that does nothing (stub_verbs.c). Run under
 * "valgrind --tool=callgrind --collect-atstart=no", which counts between the two marks only:
 *
 *   cost write N          N single writes
 *   cost paged PAGES N    N requests of PAGES pages, up to the post of the last page
 *   cost scatter ENTRIES N
 *   cost group ENTRIES N  N scatters to that group of peers, each an engine of its own
 *
 * Two sizes give the cost of a further page. bench/run does that. */

#include "../must.h"
#include "stub.h"

#include <wimm/imm.h>
#include <wimm/transfer.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <valgrind/callgrind.h>

enum { PAGE_BYTES = 4096, PAGES_MAX = 8192, WARMUP = 20, PEERS_MAX = 32 };

static struct wimm_engine *engine[1 + PEERS_MAX]; /* the first one writes to the others */
static uint32_t engines;
static struct wimm_peer_group *group;
static struct wimm_mr *source;
static struct wimm_remote_mr *target;
static uint32_t indices[PAGES_MAX];
static struct wimm_scatter_entry entries[PAGES_MAX];
static uint64_t settled;
static bool counting;

static void step_all(void)
{
	for (uint32_t i = 0; i < engines; i++)
		must(wimm_progress(engine[i], NULL), "progress");
}

static void on_done(void *context, const struct wimm_done *done)
{
	(void)context;
	must(done->status, "a write");
	settled++;
}

/* An engine whose region is there to be written to. */
static struct wimm_remote_mr *open_target(const struct wimm_engine_opts *opts, uint8_t *memory,
                                          uint64_t len_bytes)
{
	struct wimm_engine_opts o = *opts;
	struct wimm_remote_mr *remote;
	struct wimm_mr_desc desc;
	struct wimm_mr *mr;

	o.nics = stub_nic(engines);
	must(wimm_engine_open(&o, &engine[engines]), "open");
	must(wimm_reg_mr(engine[engines++], memory, len_bytes, NULL, &mr), "reg_mr");
	must(wimm_mr_get_desc(mr, &desc), "desc");
	must(wimm_open_remote_mr(engine[0], &desc, &remote), "remote");
	return remote;
}

static void open_group(const struct wimm_engine_opts *opts, uint8_t *memory, uint32_t count)
{
	wimm_peer peer[PEERS_MAX];

	for (uint32_t i = 0; i < count; i++) {
		if (i > 0)
			entries[i].dst = open_target(opts, memory, PAGE_BYTES);
		entries[i].dst_offset_bytes = 0;
		peer[i] = wimm_remote_mr_peer(entries[i].dst);
	}
	must(wimm_add_peer_group(engine[0], peer, count, &group), "group");
}

static void open_all(uint32_t group_peers)
{
	struct wimm_engine_opts opts = WIMM_ENGINE_OPTS_INIT;
	uint8_t *memory = calloc(2 * PAGES_MAX, PAGE_BYTES);

	if (memory == NULL)
		exit(1);
	opts.provider = stub_provider;
	opts.nics = stub_nic(0);
	opts.progress = WIMM_PROGRESS_CALLER;
	opts.peer_timeout_ms = 3600000; /* valgrind is slow, and nobody writes back */
	opts.heartbeat_ms = 1800000;
	must(wimm_engine_open(&opts, &engine[engines++]), "open");
	must(wimm_reg_mr(engine[0], memory, (uint64_t)PAGES_MAX * PAGE_BYTES, NULL, &source),
	     "reg_mr");
	memory += (uint64_t)PAGES_MAX * PAGE_BYTES;
	target = open_target(&opts, memory, (uint64_t)PAGES_MAX * PAGE_BYTES);
	for (uint32_t i = 0; i < PAGES_MAX; i++) {
		indices[i] = (i * 5 + 3) % PAGES_MAX;
		entries[i] = (struct wimm_scatter_entry){
			.dst = target,
			.src_offset_bytes = (uint64_t)indices[i] * PAGE_BYTES,
			.dst_offset_bytes = (uint64_t)i * PAGE_BYTES,
			.len_bytes = PAGE_BYTES,
		};
	}
	if (group_peers > 0)
		open_group(&opts, memory, group_peers);
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
	w.group = group;
	count_from_here();
	must(wimm_submit_scatter(engine[0], &w, &done, NULL), "submit");
}

static void aside(void)
{
	if (counting)
		CALLGRIND_TOGGLE_COLLECT;
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

	stub_arm(count, reached, aside);
	stub_hold(count_it);
	counting = count_it;
	submit(count);
	while (stub_posted() < end) {
		must(wimm_progress(engine[0], NULL), "progress");
		if (!count_it) /* the sessions are set up meanwhile */
			step_all();
	}
	stub_hold(false);
	while (settled == before)
		step_all();
}

static void (*submit_of(const char *kind))(uint64_t count)
{
	if (strcmp(kind, "write") == 0)
		return submit_write;
	if (strcmp(kind, "paged") == 0)
		return submit_paged;
	if (strcmp(kind, "scatter") == 0 || strcmp(kind, "group") == 0)
		return submit_scatter;
	return NULL;
}

int main(int argc, char **argv)
{
	const char *kind = argc > 1 ? argv[1] : "";
	void (*submit)(uint64_t count) = submit_of(kind);
	bool to_group = strcmp(kind, "group") == 0;
	uint64_t count = 1;
	int runs;

	if (submit == NULL || argc != (submit == submit_write ? 3 : 4)) {
		(void)fprintf(stderr, "usage: cost write N | paged PAGES N | scatter ENTRIES N | "
		                      "group ENTRIES N\n");
		return 2;
	}
	if (submit != submit_write)
		count = strtoull(argv[2], NULL, 10);
	runs = atoi(argv[argc - 1]);
	if (count == 0 || count > (to_group ? PEERS_MAX : PAGES_MAX) || runs < 1)
		return 2;
	open_all(to_group ? (uint32_t)count : 0);
	for (int i = 0; i < WARMUP + runs; i++)
		one(submit, count, i >= WARMUP);
	for (uint32_t i = 0; i < engines; i++)
		must(wimm_engine_close(&engine[i]), "close");
	return 0;
}
