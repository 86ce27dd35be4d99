/* SPDX-License-Identifier: Apache-2.0 */
/* The parent of a run: it makes the ranks' processes, watches over them, and adds up. */
#include "lib/kvrun.h"
#include "lib/kvrank.h"
#include "lib/util.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define REQUEST_HEAD_BYTES 4096 /* of a request beside its pages */

/* The parent's view of what a pass told; kept in shared memory beside the ranks'. */
struct total {
	double seconds, exposed, compute, cpu;
	uint64_t immediates, bytes, checked_bytes, group_units;
};

struct run {
	struct kvrank_shared *shared;
	size_t bytes;
	struct total *total;
	uint64_t *first_byte_ns;
};

static uint64_t cache_bytes(const struct kvrun_spec *spec, enum kvrun_side side, uint32_t layers)
{
	struct wimm_kv_layout l = kvrank_layout(spec, side, 0, layers);
	uint64_t bytes = 0;

	must(wimm_kv_layout_extent(&l, &bytes, NULL), "the size of a cache");
	return bytes * spec->tp[side];
}

uint32_t kvrun_fit(const struct kvrun_spec *spec, uint64_t *out_bytes)
{
	uint64_t layers;

	*out_bytes = cache_bytes(spec, KVRUN_PREFILL, 1) + cache_bytes(spec, KVRUN_DECODE, 1);
	layers = spec->memory_bytes / *out_bytes;
	return layers < spec->model->layers ? (uint32_t)layers : spec->model->layers;
}

const char *kvrun_fault(const struct kvrun_spec *spec)
{
	static struct wimm_error_info error;
	struct wimm_kv_layout l[KVRUN_SIDES];

	if (strcmp(spec->provider, "sim") == 0)
		return "the NICs of provider sim exist inside one process; name another one";
	for (int side = 0; side < KVRUN_SIDES; side++) {
		l[side] = (struct wimm_kv_layout)WIMM_KV_LAYOUT_INIT;
		l[side].kind = spec->model->segments == 1 ? WIMM_KV_MLA : WIMM_KV_GQA;
		l[side].layers = spec->model->layers;
		l[side].kv_heads = spec->model->kv_heads;
		l[side].head_dim = spec->model->head_dim;
		l[side].elem_bytes = spec->elem_bytes;
		l[side].page_tokens = (uint32_t)spec->page_tokens[side];
		l[side].tp = spec->tp[side];
		l[side].pages =
			(spec->tokens + spec->page_tokens[side] - 1) / spec->page_tokens[side];
		/* One whose ranks do not divide the heads is the comparison's business. */
		if (wimm_kv_layout_pack(&l[side], &error) == WIMM_E_INVAL)
			return error.text;
	}
	return wimm_kv_compare(&l[0], &l[1], &error) == WIMM_OK ? NULL : error.text;
}

/* --- a rank's process --- */

/* Every rank computes the same from what all of them told. */
static void sum_up(const struct run *run, const struct kvrun_spec *spec, enum kvrank_pass pass,
                   uint64_t steps)
{
	const struct kvrank_says *says = run->shared->says;
	struct total *t = run->total;
	uint64_t begin = UINT64_MAX, last = 0, done = 0;

	for (uint32_t i = 0; i < spec->tp[KVRUN_PREFILL]; i++) {
		begin = says[i].begin_ns < begin ? says[i].begin_ns : begin;
		last = says[i].last_ns > last ? says[i].last_ns : last;
		t->cpu += pass == KVRANK_ALONE ? says[i].cpu : 0;
	}
	says += KVRUN_RANKS_MAX;
	for (uint32_t i = 0; i < spec->tp[KVRUN_DECODE]; i++) {
		done = says[i].done_ns > done ? says[i].done_ns : done;
		t->checked_bytes += says[i].checked_bytes;
		t->group_units = says[i].group_units;
		if (pass != KVRANK_ALONE)
			continue;
		t->cpu += says[i].cpu;
		t->immediates += says[i].immediates;
		t->bytes += says[i].bytes;
	}
	if (pass == KVRANK_ALONE) {
		t->seconds += (double)(done - begin) * 1e-9;
		run->shared->layer_ns =
			spec->layer_us != 0 ? spec->layer_us * 1000 : (done - begin) / steps;
		if (*run->first_byte_ns == 0)
			*run->first_byte_ns = begin;
		return;
	}
	/* A rank that is done sooner than its last layer is computed hides all. */
	t->exposed += done > last ? (double)(done - last) * 1e-9 : 0;
	t->compute += (double)(last - begin) * 1e-9;
}

static uint64_t steps_of(const struct kvrun_spec *spec, uint32_t layers)
{
	uint64_t chunk = spec->chunk_tokens != 0 ? spec->chunk_tokens : spec->tokens;

	return (spec->tokens + chunk - 1) / chunk * layers;
}

static void rank_main(const struct run *run, const struct kvrun_spec *spec, uint32_t index,
                      uint32_t layers)
{
	bool decode = index >= spec->tp[KVRUN_PREFILL];
	struct kvrank r = { .spec = spec,
		            .shared = run->shared,
		            .side = decode ? KVRUN_DECODE : KVRUN_PREFILL,
		            .rank = decode ? index - spec->tp[KVRUN_PREFILL] : index,
		            .layers = layers };
	uint64_t page = spec->page_tokens[0] < spec->page_tokens[1] ? spec->page_tokens[0]
	                                                            : spec->page_tokens[1];

	kvrank_open(&r);
	kvrank_pass(&r, KVRANK_FIRST, page < spec->tokens ? page : spec->tokens);
	for (uint32_t done = 0; done < spec->model->layers; done += layers)
		for (int pass = KVRANK_ALONE; pass <= KVRANK_LAYERS; pass++) {
			kvrank_pass(&r, (enum kvrank_pass)pass, spec->tokens);
			if (index == 0)
				sum_up(run, spec, (enum kvrank_pass)pass, steps_of(spec, layers));
			(void)pthread_barrier_wait(&run->shared->meet);
		}
	kvrank_close(&r);
}

/* --- the parent --- */

static void end_all(const pid_t *pids, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		if (pids[i] > 0)
			(void)kill(pids[i], SIGKILL);
}

/* Wait for all; the first that fails ends the others, and has said why. */
static void watch_over(pid_t *pids, uint32_t count)
{
	bool failed = false;

	for (uint32_t left = count; left != 0; left--) {
		int status = 0;
		pid_t pid = waitpid(-1, &status, 0);

		if (pid < 0)
			die("waiting for a rank: %s", strerror(errno));
		for (uint32_t i = 0; i < count; i++)
			if (pids[i] == pid)
				pids[i] = 0;
		if (status == 0 || failed)
			continue;
		failed = true;
		if (WIFSIGNALED(status))
			(void)fprintf(stderr, "wimm: a rank was ended by signal %d\n",
			              WTERMSIG(status));
		end_all(pids, count);
	}
	if (failed)
		exit(STATUS_FAILED);
}

static void *share(size_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED)
		die("%zu bytes of shared memory: %s", bytes, strerror(errno));
	return at;
}

static void run_open(struct run *run, const struct kvrun_spec *spec, uint32_t ranks)
{
	uint64_t pages = (spec->tokens + spec->page_tokens[KVRUN_DECODE] - 1) /
	                 spec->page_tokens[KVRUN_DECODE];
	uint64_t room = (REQUEST_HEAD_BYTES + 4 * pages + 7) / 8 * 8;
	pthread_barrierattr_t attr;

	run->bytes = sizeof(*run->shared) + spec->tp[KVRUN_DECODE] * room;
	run->shared = share(run->bytes);
	run->total = share(sizeof(*run->total));
	run->first_byte_ns = share(sizeof(*run->first_byte_ns));
	run->shared->request_room = room;
	if (pthread_barrierattr_init(&attr) != 0 ||
	    pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED) != 0 ||
	    pthread_barrier_init(&run->shared->meet, &attr, ranks) != 0)
		die("no barrier between processes to be had");
}

static void run_close(struct run *run)
{
	(void)munmap(run->shared, run->bytes);
	(void)munmap(run->total, sizeof(*run->total));
	(void)munmap(run->first_byte_ns, sizeof(*run->first_byte_ns));
}

void kvrun(const struct kvrun_spec *spec, struct kvrun_result *out)
{
	uint32_t ranks = spec->tp[KVRUN_PREFILL] + spec->tp[KVRUN_DECODE];
	pid_t pids[2 * KVRUN_RANKS_MAX] = { 0 };
	uint64_t begin = now_ns(), layer_bytes;
	uint32_t fit = kvrun_fit(spec, &layer_bytes), requests, layers;
	struct run run;

	/* As few requests as memory allows, all of one number of layers. */
	requests = (spec->model->layers + fit - 1) / fit;
	while (spec->model->layers % requests != 0)
		requests++;
	layers = spec->model->layers / requests;
	run_open(&run, spec, ranks);
	(void)fflush(NULL);
	for (uint32_t i = 0; i < ranks; i++) {
		pids[i] = fork();
		if (pids[i] < 0) {
			end_all(pids, i);
			die("a process for a rank: %s", strerror(errno));
		}
		if (pids[i] == 0) {
			(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
			rank_main(&run, spec, i, layers);
			_exit(0);
		}
	}
	watch_over(pids, ranks);
	*out = (struct kvrun_result){ .layers_at_a_time = layers,
		                      .requests = requests,
		                      .pages =
		                              (spec->tokens + spec->page_tokens[KVRUN_DECODE] - 1) /
		                              spec->page_tokens[KVRUN_DECODE],
		                      .immediates = run.total->immediates,
		                      .bytes = run.total->bytes,
		                      .checked_bytes = run.total->checked_bytes,
		                      .group_units = run.total->group_units,
		                      .seconds = run.total->seconds,
		                      .compute = run.total->compute,
		                      .exposed = run.total->exposed,
		                      .cpu = run.total->cpu,
		                      .setup = (double)(*run.first_byte_ns - begin) * 1e-9 };
	run_close(&run);
}
