/* SPDX-License-Identifier: Apache-2.0 */
/* sim_test [--seeds COUNT | --minutes COUNT] [--first SEED] [--jobs COUNT] [--keep-going]: that
 * many runs, or for so long, each from its own seed, in so many processes.
 * WIMM_SEED=N runs one of them and tells its story. Ends with 1 at the first broken rule, or with
 * --keep-going after all seeds. */
#include "run.h"

#include "base/alloc.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Wall-clock seconds after which a run counts as hanging; it takes some milliseconds. */
#define HANG_S    60
#define SEEDS_MAX 1000000u
#define JOBS_MAX  16u
/* Between two looks at the clock. */
#define SOAK_SEEDS 500u

static struct run run;
static volatile uint64_t seed_now;

/* Async-signal-safe: an abort inside the library must still name its seed. */
static void on_fatal(int sig)
{
	char text[96] = "fatal signal at seed ";
	char digits[24];
	size_t len = strlen(text), n = 0;
	uint64_t seed = seed_now;

	do {
		digits[n++] = (char)('0' + seed % 10);
		seed /= 10;
	} while (seed != 0);
	while (n > 0)
		text[len++] = digits[--n];
	text[len++] = '\n';
	if (write(2, text, len) < 0)
		_exit(3);
	signal(sig, SIG_DFL);
	raise(sig);
}

/* Everything that ends by itself has; expectations may wait for what never comes. */
static bool all_done(struct run *r)
{
	for (uint32_t i = 0; i < r->recs; i++)
		if (r->rec[i].state == REC_ACCEPTED && r->rec[i].kind != REC_EXPECT &&
		    r->rec[i].kind != REC_BARRIER)
			return false;
	return true;
}

static bool all_settled(struct run *r)
{
	for (uint32_t i = 0; i < r->recs; i++)
		if (r->rec[i].state == REC_ACCEPTED)
			return false;
	return true;
}

static void cancel_waiting(struct run *r)
{
	for (uint32_t i = 0; i < r->recs; i++)
		if (r->rec[i].state == REC_ACCEPTED && r->rec[i].kind == REC_EXPECT)
			rec_cancel(r, &r->rec[i]);
	for (uint32_t n = 0; n < r->nodes; n++)
		if (r->node[n].engine)
			patterns_node_down(r, n);
}

static const char *first_open(const struct run *r, bool expects, uint32_t *out)
{
	static const char *const kinds[REC_KINDS] = {
		"single write", "paged write", "scatter", "barrier",         "send",
		"expectation",  "retire",      "dereg",   "receive buffers", "fence"
	};

	for (*out = 0; *out < r->recs; ++*out)
		if (r->rec[*out].state == REC_ACCEPTED &&
		    (expects ||
		     (r->rec[*out].kind != REC_EXPECT && r->rec[*out].kind != REC_BARRIER)))
			return kinds[r->rec[*out].kind];
	return "nothing";
}

static void run_seed(uint64_t seed, bool verbose)
{
	uint64_t before = mem_live_blocks();
	uint64_t grace_ns, end_ns;
	uint32_t open;
	const char *kind;

	seed_now = seed;
	alarm(HANG_S);
	run_open(&run, seed, verbose);
	patterns_plan(&run);
	run_until(&run, run.end_ns, NULL);
	say(&run, "nothing new is asked for; all faults are healed");
	patterns_end(&run);
	faults_heal(&run);
	/* Silence of a caller-driven peer means death after 4 time-outs; then that twice over. */
	grace_ns = run.end_ns + 12 * run.peer_timeout_ns + 40 * MS;
	if (!run_until(&run, grace_ns, all_done)) {
		kind = first_open(&run, false, &open);
		broken(&run, "rec %u (%s of node %u) waits without end", open, kind,
		       run.rec[open].node);
	}
	run_until(&run, run_now(&run) + 5 * MS, NULL); /* stragglers */
	if (!run_until(&run, run_now(&run) + 6 * run.peer_timeout_ns, paths_back))
		broken(&run, "node %u: path %u to node %u has not come back", run.missing[0],
		       run.missing[1], run.missing[2]);
	run.ending = true;
	cancel_waiting(&run);
	/* What cannot be taken back has time to come back by itself. */
	end_ns = run_now(&run) + MS + (run.cfg.no_cancel ? LINGER_NS : 0);
	if (!run_until(&run, end_ns, all_settled)) {
		kind = first_open(&run, true, &open);
		broken(&run, "rec %u (%s of node %u) does not end though cancelled", open, kind,
		       run.rec[open].node);
	}
	check_counts(&run);
	run_close(&run);
	if (mem_live_blocks() != before)
		broken(&run, "%" PRIu64 " blocks of memory are left", mem_live_blocks() - before);
}

/* --- figures --- */

static int by_value(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

static uint32_t median(uint32_t *values, uint32_t count)
{
	qsort(values, count, sizeof(*values), by_value);
	return values[count / 2];
}

static double now_s(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

/* Faults, and behind them patterns. */
#define KINDS (SIM_FAULT_COUNT + PATTERN_COUNT)

static const char *kind_name(int kind)
{
	static const char *const text[] = {
#define X(name, words) [PATTERN_##name] = words,
		PATTERN_MAP(X)
#undef X
	};

	return kind < SIM_FAULT_COUNT ? sim_fault_name((enum sim_fault)kind)
	                              : text[kind - SIM_FAULT_COUNT];
}

static bool seen(const struct stats *s, int kind)
{
	return kind < SIM_FAULT_COUNT ? s->fault[kind] != 0
	                              : s->pattern[kind - SIM_FAULT_COUNT] != 0;
}

/* The figures that a set of seeds must have to be worth its name. */
static int report(uint32_t count, uint32_t *ops, uint32_t *faults, const uint32_t *with,
                  double seconds)
{
	int weak = 0;
	uint32_t ops_median = median(ops, count), faults_median = median(faults, count);

	printf("%u seeds in %.1f s, %.0f a second; median %u operations, %u faults a seed\n", count,
	       seconds, count / seconds, ops_median, faults_median);
	for (int kind = 0; kind < KINDS; kind++) {
		printf("  %5.1f %% of seeds: %s\n", 100.0 * with[kind] / count, kind_name(kind));
		weak += count >= 500 && with[kind] * 20 < count;
	}
	weak += count >= 500 && (ops_median < 200 || faults_median < 2);
	printf("%s sim/strength\n", weak ? "FAIL" : "PASS");
	if (weak)
		printf("too weak: wanted 200 operations, 2 faults, each fault in 5 %% of seeds\n");
	return weak ? 1 : 0;
}

/* A set of seeds. */
struct batch {
	uint64_t first;
	uint32_t count, jobs;
	bool keep_going; /* after a seed that fails */
};

/* What the processes that run the seeds leave behind. */
struct figures {
	uint32_t at[JOBS_MAX]; /* which of the seeds each runs */
	uint32_t with[JOBS_MAX][KINDS];
	uint64_t injected[JOBS_MAX][SIM_FAULT_COUNT];
	uint32_t values[]; /* operations of each seed, then faults */
};

static void run_some(struct figures *f, const struct batch *b, uint32_t job, uint32_t from)
{
	for (uint32_t i = from; i < b->count; i += b->jobs) {
		f->at[job] = i;
		run_seed(b->first + i, false);
		f->values[i] = (uint32_t)run.stats.ops;
		f->values[b->count + i] = (uint32_t)run.stats.faults;
		for (int kind = 0; kind < KINDS; kind++)
			f->with[job][kind] += seen(&run.stats, kind);
		for (int kind = 0; kind < SIM_FAULT_COUNT; kind++)
			f->injected[job][kind] += run.stats.fault[kind];
	}
}

static pid_t job_start(struct figures *f, const struct batch *b, uint32_t job, uint32_t from)
{
	pid_t pid;

	f->at[job] = from;
	pid = fork();
	if (pid == 0) {
		run_some(f, b, job, from);
		_Exit(0);
	}
	if (pid < 0)
		perror("no process for seeds");
	return pid;
}

/* A line for each, whether it broke a rule and said so or could say nothing. */
static void tell_failed(const struct figures *f, const struct batch *b, uint32_t job, int status)
{
	uint64_t seed = b->first + f->at[job];

	if (!WIFSIGNALED(status))
		fprintf(stderr, "failed: seed %" PRIu64 "\n", seed);
	else if (WTERMSIG(status) == SIGALRM)
		fprintf(stderr, "failed: seed %" PRIu64 ", no end within %d s\n", seed, HANG_S);
	else
		fprintf(stderr, "failed: seed %" PRIu64 ", signal %d\n", seed, WTERMSIG(status));
}

/* How many seeds failed. Without keep_going the first ends the other jobs. */
static uint32_t run_jobs(struct figures *f, const struct batch *b)
{
	pid_t pid[JOBS_MAX];
	uint32_t failed = 0, left = 0, j;
	pid_t ended;
	int status;

	for (j = 0; j < b->jobs; j++) {
		pid[j] = job_start(f, b, j, j);
		failed += pid[j] < 0;
		left += pid[j] > 0;
	}
	while (left > 0 && (ended = wait(&status)) > 0) {
		for (j = 0; j < b->jobs && pid[j] != ended; j++)
			;
		if (j == b->jobs)
			continue;
		pid[j] = -1;
		left--;
		if (status == 0 || (failed != 0 && !b->keep_going))
			continue;
		failed++;
		tell_failed(f, b, j, status);
		if (b->keep_going) {
			pid[j] = job_start(f, b, j, f->at[j] + b->jobs);
			left += pid[j] > 0;
			continue;
		}
		for (j = 0; j < b->jobs; j++)
			if (pid[j] > 0)
				kill(pid[j], SIGKILL);
	}
	return failed;
}

/* The last line of a set of seeds; the status of the process. */
static int verdict(const char *name, uint64_t first, uint64_t count, uint64_t failed)
{
	printf("%s sim/%s:%" PRIu64 "..%" PRIu64, failed ? "FAIL" : "PASS", name, first,
	       first + count - 1);
	if (failed)
		printf(", %" PRIu64 " of %" PRIu64 " seeds", failed, count);
	putchar('\n');
	return failed ? 1 : 0;
}

static int run_many(const struct batch *b)
{
	size_t bytes = sizeof(struct figures) + 2 * (size_t)b->count * sizeof(uint32_t);
	struct figures *f =
		mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	double start = now_s();
	uint32_t failed = 0;
	int result;

	if (f == MAP_FAILED)
		return 2;
	if (b->jobs == 1 && !b->keep_going)
		run_some(f, b, 0, 0);
	else
		failed = run_jobs(f, b);
	if (failed != 0 && !b->keep_going)
		return 1;
	for (uint32_t j = 1; j < b->jobs; j++)
		for (int kind = 0; kind < KINDS; kind++)
			f->with[0][kind] += f->with[j][kind];
	result = verdict("seeds", b->first, b->count, failed);
	if (report(b->count, f->values, f->values + b->count, f->with[0], now_s() - start) != 0)
		result = 1;
	munmap(f, bytes);
	return result;
}

/* Seeds for so long, with a line every minute: what ran, how fast, and the faults by kind. */
static int run_soak(struct batch b, uint32_t minutes)
{
	const uint64_t first = b.first;
	size_t bytes = sizeof(struct figures) + 2 * (size_t)SOAK_SEEDS * sizeof(uint32_t);
	struct figures *f =
		mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	double start = now_s(), told = start;
	uint64_t with[KINDS] = { 0 }, injected[KINDS] = { 0 }, seeds = 0, failed = 0;

	if (f == MAP_FAILED)
		return 2;
	while (now_s() < start + 60.0 * minutes) {
		memset(f, 0, bytes);
		b.first = first + seeds;
		b.count = SOAK_SEEDS;
		failed += run_jobs(f, &b);
		if (failed != 0 && !b.keep_going)
			return 1;
		seeds += SOAK_SEEDS;
		for (uint32_t j = 0; j < b.jobs; j++)
			for (int kind = 0; kind < KINDS; kind++)
				with[kind] += f->with[j][kind];
		for (uint32_t j = 0; j < b.jobs; j++)
			for (int kind = 0; kind < SIM_FAULT_COUNT; kind++)
				injected[kind] += f->injected[j][kind];
		if (now_s() < told + 60.0)
			continue;
		told = now_s();
		printf("%.0f minutes: %" PRIu64 " seeds, %.0f a minute\n", (told - start) / 60.0,
		       seeds, (double)seeds * 60.0 / (told - start));
		fflush(stdout);
	}
	for (int kind = 0; kind < KINDS; kind++) {
		printf("  %9" PRIu64 " seeds: %s", with[kind], kind_name(kind));
		if (kind < SIM_FAULT_COUNT)
			printf(", %" PRIu64 " times", injected[kind]);
		putchar('\n');
	}
	munmap(f, bytes);
	return verdict("soak", first, seeds, failed);
}

int main(int argc, char **argv)
{
	const char *one = getenv("WIMM_SEED");
	uint64_t first = 1, count = 200, jobs = 1, minutes = 0;
	struct batch b = { 0 };

	for (int i = 1; i < argc; i++) {
		uint64_t *to = strcmp(argv[i], "--seeds") == 0     ? &count
		               : strcmp(argv[i], "--first") == 0   ? &first
		               : strcmp(argv[i], "--jobs") == 0    ? &jobs
		               : strcmp(argv[i], "--minutes") == 0 ? &minutes
		                                                   : NULL;

		if (strcmp(argv[i], "--keep-going") == 0)
			b.keep_going = true;
		else if (to && i + 1 < argc)
			*to = strtoull(argv[++i], NULL, 0);
		else
			count = 0;
	}
	if (count == 0 || count > SEEDS_MAX || jobs == 0 || jobs > JOBS_MAX || minutes > 10000) {
		fprintf(stderr,
		        "usage: %s [--seeds 1..%u | --minutes COUNT] [--first SEED] [--jobs "
		        "1..%u] [--keep-going]\n",
		        argv[0], SEEDS_MAX, JOBS_MAX);
		return 2;
	}
	b.first = first;
	b.count = (uint32_t)count;
	b.jobs = (uint32_t)jobs;
	signal(SIGABRT, on_fatal);
	signal(SIGSEGV, on_fatal);
	signal(SIGALRM, on_fatal);
	if (!one && minutes != 0)
		return run_soak(b, (uint32_t)minutes);
	if (!one)
		return run_many(&b);
	run_seed(strtoull(one, NULL, 0), true);
	printf("seed %s: %" PRIu64 " operations, %" PRIu64 " done, %" PRIu64 " faults, %" PRIu64
	       " events, %.3f ms\n",
	       one, run.stats.ops, run.stats.settled_ok, run.stats.faults, run.stats.events,
	       (double)run.stats.virtual_ns / 1e6);
	return 0;
}
