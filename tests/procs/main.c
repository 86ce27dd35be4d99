/* SPDX-License-Identifier: Apache-2.0 */
/* procs_test PROVIDER[-routed] [--seeds N] [--first SEED] [--procs N] [--rounds N] [--kills]
 *
 * The simulator's kind of caller over real processes: all kinds of writes, expectations before
 * and after what they wait for, messages, barriers, engines that are closed and opened anew,
 * processes that are killed and replaced. The plan of each round follows from the seed. After each
 * round every byte of every region and every count is looked at. WIMM_SEED=N runs one seed. */
#include "plan.h"

#include "plat/clock.h"
#include "plat/rand.h"

#include <wimm/imm.h>
#include <wimm/transfer.h>

#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define POISON       0xee
#define DEADLINE_NS  (60 * CLOCK_NS_PER_S)
#define OPS_MAX      (WRITES_MAX + GROUPS_MAX + 4)
#define SOURCE_BYTES (4u << 20)
#define MESSAGE_MAX  64u
#define RECVS        8u
#define BARRIER_IMM  0xba000000u

/* Shared by all processes of a run. */
struct shared {
	_Atomic uint32_t arrived; /* at the meeting that is held now */
	_Atomic uint32_t meeting;
	_Atomic uint32_t failed;
	_Atomic uint32_t start[PROCS_MAX]; /* round in which a process's next life begins */
	struct wimm_mr_desc desc[PROCS_MAX];
};

/* One process. */
struct proc {
	const char *provider;
	uint64_t seed;
	uint32_t index, procs, rounds, round;
	bool kills;
	struct shared *shared;
	struct wimm_engine *engine;
	uint8_t *mem, *source;
	struct wimm_mr *mr, *source_mr;
	struct wimm_remote_mr *to[PROCS_MAX];
	struct wimm_barrier *barrier;
	uint32_t source_used;
	uint64_t flag[OPS_MAX];
	uint32_t flags;
	_Atomic uint32_t messages;
	uint8_t message[RECVS][MESSAGE_MAX];
	struct plan plan;
};

static struct proc proc;

_Noreturn static void broken(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

_Noreturn static void broken(const char *fmt, ...)
{
	va_list args;

	if (atomic_exchange(&proc.shared->failed, 1) == 0) {
		(void)fprintf(stderr, "seed %" PRIu64 ", round %u, process %u: ", proc.seed,
		              proc.round, proc.index);
		va_start(args, fmt);
		(void)vfprintf(stderr, fmt, args);
		va_end(args);
		(void)fprintf(stderr, "\n");
	}
	_exit(1);
}

static void must(wimm_status st, const char *what)
{
	if (st != WIMM_OK)
		broken("%s: %s: %s", what, wimm_status_name(st), wimm_last_error_text());
}

/* Another turn of a loop that waits; ends the process when it has waited for too long. */
static void wait_turn(uint64_t since_ns, const char *what)
{
	if (atomic_load(&proc.shared->failed) != 0)
		_exit(1); /* another one has said why */
	if (clock_now_ns() - since_ns > DEADLINE_NS)
		broken("waiting for %s", what);
	(void)sched_yield();
}

/* All processes are here. */
static void meet(const char *what)
{
	struct shared *s = proc.shared;
	uint64_t since = clock_now_ns();
	uint32_t meeting = atomic_load(&s->meeting);

	if (atomic_fetch_add(&s->arrived, 1) + 1 == proc.procs) {
		atomic_store(&s->arrived, 0);
		atomic_fetch_add(&s->meeting, 1);
		return;
	}
	while (atomic_load(&s->meeting) == meeting)
		wait_turn(since, what);
}

/* --- an engine's life --- */

static void on_message(void *context, const struct wimm_received *received)
{
	struct proc *p = context;

	if (received->status != WIMM_OK)
		return;
	if (received->len_bytes != sizeof(uint64_t) || memcmp(received->addr, &p->seed, 8) != 0)
		broken("a message of %" PRIu64 " bytes is not what was sent", received->len_bytes);
	atomic_fetch_add(&p->messages, 1);
}

static void give_buffers(struct proc *p)
{
	struct wimm_recv_buffer buffers[RECVS];

	for (uint32_t i = 0; i < RECVS; i++)
		buffers[i] = (struct wimm_recv_buffer){ p->message[i], MESSAGE_MAX };
	must(wimm_submit_recvs(p->engine, buffers, RECVS, on_message, p, NULL), "receive buffers");
}

static void open_engine(struct proc *p)
{
	struct wimm_engine_opts o = WIMM_ENGINE_OPTS_INIT;
	bool two = p->seed % 2 == 1;

	o.provider = p->provider;
	if (strcmp(p->provider, "tcp") == 0)
		o.nics = two ? "127.0.0.1:0,127.0.0.2:0" : "127.0.0.1:0";
	else
		o.nics = two ? "any,any" : "any";
	must(wimm_engine_open(&o, &p->engine), "open");
	/* In some runs memory that peers share, in others memory that is fetched. */
	if (p->mem == NULL && p->seed % 4 < 2)
		must(wimm_alloc(REGION_BYTES, NULL, (void **)&p->mem), "wimm_alloc");
	else if (p->mem == NULL)
		p->mem = calloc(1, REGION_BYTES);
	if (p->source == NULL)
		p->source = calloc(1, SOURCE_BYTES);
	if (p->mem == NULL || p->source == NULL)
		broken("no memory");
	memset(p->mem, POISON, REGION_BYTES);
	must(wimm_reg_mr(p->engine, p->mem, REGION_BYTES, NULL, &p->mr), "region");
	must(wimm_reg_mr(p->engine, p->source, SOURCE_BYTES, NULL, &p->source_mr), "source");
	must(wimm_mr_get_desc(p->mr, &p->shared->desc[p->index]), "descriptor");
	give_buffers(p);
}

static void open_remotes(struct proc *p)
{
	struct wimm_barrier_args args = WIMM_BARRIER_ARGS_INIT;
	const struct wimm_remote_mr *others[PROCS_MAX];
	const uint32_t imms[2] = { BARRIER_IMM + 1, BARRIER_IMM + 2 };

	for (uint32_t i = 0; i < p->procs; i++) {
		must(wimm_open_remote_mr(p->engine, &p->shared->desc[i], &p->to[i]), "remote");
		if (i != p->index)
			others[args.count++] = p->to[i];
	}
	args.dst = others;
	must(wimm_barrier_open(p->engine, &args, imms, &p->barrier), "barrier");
}

static void close_remotes(struct proc *p)
{
	must(wimm_barrier_close(p->barrier), "barrier's close");
	for (uint32_t i = 0; i < p->procs; i++)
		must(wimm_close_remote_mr(p->engine, p->to[i]), "remote's close");
}

/* --- a round --- */

static struct wimm_on_done next_flag(struct proc *p)
{
	uint64_t *flag = &p->flag[p->flags++];

	*flag = 0;
	return (struct wimm_on_done){ .flag = flag };
}

static uint32_t take_source(struct proc *p, uint32_t bytes)
{
	uint32_t at = p->source_used;

	if (bytes > SOURCE_BYTES - at)
		broken("the source is too small");
	p->source_used += bytes;
	return at;
}

/* The payloads of a write's slots, one after the other. */
static uint32_t fill_source(struct proc *p, const struct write *w)
{
	uint32_t first = p->source_used;

	for (uint32_t i = w->slot; i < w->slot + w->count; i++) {
		uint32_t len = p->plan.slot[i].len;

		plan_fill(p->source + take_source(p, len), p->seed, p->round, i, len);
	}
	return first;
}

static void start_single(struct proc *p, const struct write *w, uint32_t src, uint32_t flags)
{
	const struct slot *s = &p->plan.slot[w->slot];
	struct wimm_on_done done = next_flag(p);
	struct wimm_write wr = WIMM_WRITE_INIT;

	wr.flags = flags | (w->kind == WRITE_PLAIN ? 0 : WIMM_IMM);
	wr.imm = w->imm;
	wr.src = p->source_mr;
	wr.dst = p->to[s->to];
	wr.src_offset_bytes = src;
	wr.dst_offset_bytes = s->off;
	wr.len_bytes = s->len;
	must(wimm_submit_single_write(p->engine, &wr, &done, NULL), "write");
}

static void start_paged(struct proc *p, const struct write *w, uint32_t src, uint32_t flags)
{
	const struct slot *s = &p->plan.slot[w->slot];
	struct wimm_paged_writes wr = WIMM_PAGED_WRITES_INIT;
	struct wimm_on_done done = next_flag(p);
	uint32_t index[SLOTS_MAX];
	uint64_t stride = w->count > 1 ? s[1].off - s[0].off : s->len + 1u;

	for (uint32_t i = 0; i < w->count; i++)
		index[i] = i;
	wr.flags = flags | WIMM_IMM | (w->kind == WRITE_ONCE ? WIMM_IMM_ONCE : 0);
	wr.imm = w->imm;
	wr.src = p->source_mr;
	wr.dst = p->to[s->to];
	wr.src_pages = (struct wimm_pages){ index, w->count, s->len != 0 ? s->len : 1, src };
	wr.dst_pages = (struct wimm_pages){ index, w->count, stride, s->off };
	wr.page_len_bytes = s->len;
	must(wimm_submit_paged_writes(p->engine, &wr, &done, NULL), "paged writes");
}

static void start_scatter(struct proc *p, const struct write *w, uint32_t src, uint32_t flags)
{
	struct wimm_scatter_entry entry[PROCS_MAX];
	struct wimm_scatter sc = WIMM_SCATTER_INIT;
	struct wimm_on_done done = next_flag(p);

	for (uint32_t i = 0; i < w->count; i++) {
		const struct slot *s = &p->plan.slot[w->slot + i];

		entry[i] = (struct wimm_scatter_entry){ p->to[s->to], src, s->off, s->len };
		src += s->len;
	}
	sc.flags = flags | WIMM_IMM;
	sc.imm = w->imm;
	sc.src = p->source_mr;
	sc.entries = entry;
	sc.count = w->count;
	must(wimm_submit_scatter(p->engine, &sc, &done, NULL), "scatter");
}

static void start_writes(struct proc *p)
{
	for (uint32_t i = 0; i < p->plan.writes; i++) {
		const struct write *w = &p->plan.write[i];
		uint32_t flags = WIMM_BLOCK | (w->confirmed ? WIMM_CONFIRMED : 0);

		if (w->from != p->index)
			continue;
		if (w->kind == WRITE_SCATTER)
			start_scatter(p, w, fill_source(p, w), flags);
		else if (w->kind == WRITE_SINGLE || w->kind == WRITE_PLAIN)
			start_single(p, w, fill_source(p, w), flags);
		else
			start_paged(p, w, fill_source(p, w), flags);
	}
}

static void start_expectations(struct proc *p, uint32_t parity)
{
	for (uint32_t i = 0; i < p->plan.groups; i++) {
		const struct group *g = &p->plan.group[i];
		struct wimm_on_done done;

		if (g->to != p->index || i % 2 != parity)
			continue;
		done = next_flag(p);
		must(wimm_expect_imm_count(p->engine, g->imm, g->count, NULL, &done, NULL),
		     "expectation");
	}
}

static void start_message(struct proc *p)
{
	uint32_t to = p->plan.message_to[p->index];
	struct wimm_send send = WIMM_SEND_INIT;
	struct wimm_on_done done;

	if (to == p->index)
		return;
	done = next_flag(p);
	send.flags = WIMM_BLOCK;
	send.peer = wimm_remote_mr_peer(p->to[to]);
	send.data = &p->seed;
	send.len_bytes = sizeof(p->seed);
	must(wimm_submit_send(p->engine, &send, &done, NULL), "message");
}

static void wait_flags(struct proc *p)
{
	uint64_t since = clock_now_ns();

	for (uint32_t i = 0; i < p->flags; i++) {
		while (wimm_flag_load(&p->flag[i]) == 0)
			wait_turn(since, "an operation");
		if (wimm_flag_load(&p->flag[i]) != 1)
			broken("operation %u ended with %s", i,
			       wimm_status_name((wimm_status)wimm_flag_load(&p->flag[i])));
	}
	p->flags = 0;
}

/* --- the look at it --- */

static void look_at_bytes(const struct proc *p)
{
	static uint8_t want[REGION_BYTES];

	memset(want, POISON, sizeof(want));
	for (uint32_t i = 0; i < p->plan.slots; i++) {
		const struct slot *s = &p->plan.slot[i];

		if (s->to == p->index)
			plan_fill(want + s->off, p->seed, p->round, i, s->len);
	}
	for (uint32_t i = 0; i < REGION_BYTES; i++)
		if (p->mem[i] != want[i])
			broken("byte %u is %#x and not %#x", i, p->mem[i], want[i]);
}

static void look_at_counts(struct proc *p)
{
	uint32_t messages = 0;
	uint64_t since = clock_now_ns();
	uint64_t left = 0;

	must(wimm_poll_imm(p->engine, BARRIER_IMM, &left), "poll");
	if (left != 0)
		broken("%" PRIu64 " immediates that nobody sends", left);
	for (uint32_t i = 0; i < p->plan.groups; i++) {
		must(wimm_poll_imm(p->engine, p->plan.group[i].imm, &left), "poll");
		if (p->plan.group[i].to == p->index && left != 0)
			broken("%" PRIu64 " immediates %#x more than were sent", left,
			       p->plan.group[i].imm);
	}
	for (uint32_t i = 0; i < p->procs; i++)
		messages += i != p->index && p->plan.message_to[i] == p->index;
	while (atomic_load(&p->messages) < messages)
		wait_turn(since, "a message's callback");
	if (atomic_load(&p->messages) != messages)
		broken("%u messages came, %u were sent", atomic_load(&p->messages), messages);
	atomic_store(&p->messages, 0);
}

static void do_round(struct proc *p)
{
	struct wimm_on_done done;

	p->source_used = 0;
	start_expectations(p, 0);
	start_writes(p);
	start_message(p);
	start_expectations(p, 1);
	wait_flags(p);
	done = next_flag(p);
	must(wimm_barrier_enter(p->barrier, 0, &done), "entering the barrier");
	wait_flags(p);
	meet("the end of a round"); /* writes without an immediate are done, too */
	look_at_bytes(p);
	/* Before the worker is asked: what it writes there next comes after this. */
	memset(p->mem, POISON, REGION_BYTES);
	look_at_counts(p);
}

/* Between two rounds a process may lose its engine, or itself. */
static void change(struct proc *p)
{
	struct shared *s = p->shared;

	if (p->plan.end == END_NONE) {
		meet("the next round");
		return;
	}
	meet("an end");
	if (p->plan.victim == p->index && p->plan.end == END_KILL) {
		atomic_store(&s->start[p->index], p->round + 1);
		(void)raise(SIGKILL);
	}
	if (p->plan.victim == p->index) {
		close_remotes(p);
		must(wimm_engine_close(&p->engine), "close");
		open_engine(p);
	} else {
		close_remotes(p);
	}
	meet("a new instance");
	open_remotes(p);
	meet("the next round");
}

/* first: the round in which this life begins. */
static void live(struct proc *p, uint32_t first)
{
	open_engine(p);
	if (first != 0)
		meet("a new instance"); /* in the place of the one that was killed */
	else
		meet("the first round");
	open_remotes(p);
	if (first != 0)
		meet("the next round");
	for (p->round = first; p->round < p->rounds; p->round++) {
		plan_make(&p->plan, p->seed, p->round, p->procs, p->kills);
		do_round(p);
		change(p);
	}
	close_remotes(p);
	must(wimm_engine_close(&p->engine), "close");
}

/* --- the parent --- */

static pid_t start(uint32_t index, uint32_t first)
{
	pid_t pid;

	(void)fflush(NULL);
	pid = fork();
	if (pid != 0)
		return pid;
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	proc.index = index;
	live(&proc, first);
	_exit(0);
}

/* Whether all went well. */
static bool run_seed(void)
{
	pid_t pid[PROCS_MAX];
	uint32_t alive = proc.procs;
	bool ok = true;

	memset(proc.shared, 0, sizeof(*proc.shared));
	for (uint32_t i = 0; i < proc.procs; i++)
		pid[i] = start(i, 0);
	while (alive != 0) {
		int status = 0;
		pid_t gone = wait(&status);

		for (uint32_t i = 0; i < proc.procs; i++) {
			if (pid[i] != gone)
				continue;
			if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && ok &&
			    atomic_load(&proc.shared->start[i]) != 0) {
				pid[i] = start(i, atomic_exchange(&proc.shared->start[i], 0));
				continue;
			}
			alive--;
			ok = ok && WIFEXITED(status) && WEXITSTATUS(status) == 0;
			if (!ok) /* who waits for it ends, too */
				atomic_store(&proc.shared->failed, 1);
		}
	}
	return ok;
}

static uint64_t number(int argc, char **argv, const char *name, uint64_t fallback)
{
	for (int i = 2; i + 1 < argc; i++)
		if (strcmp(argv[i], name) == 0)
			return strtoull(argv[i + 1], NULL, 10);
	return fallback;
}

int main(int argc, char **argv)
{
	const char *only = getenv("WIMM_SEED");
	char *profile = argc > 1 ? strchr(argv[1], '-') : NULL;
	uint64_t first, seeds;

	if (argc < 2) {
		(void)fprintf(stderr, "usage: procs_test PROVIDER[-routed] [--seeds N] [--first N] "
		                      "[--procs N] [--rounds N] [--kills 1]\n");
		return 2;
	}
	setenv("WIMM_LOG_LEVEL", "error", 0);
	setenv("WIMM_SAME_HOST", profile != NULL ? "auto" : "off", 1);
	if (profile != NULL)
		*profile = '\0';
	proc.provider = argv[1];
	proc.procs = (uint32_t)number(argc, argv, "--procs", 3);
	proc.rounds = (uint32_t)number(argc, argv, "--rounds", 6);
	proc.kills = number(argc, argv, "--kills", 0) != 0;
	first = only != NULL ? strtoull(only, NULL, 10) : number(argc, argv, "--first", 1);
	seeds = only != NULL ? 1 : number(argc, argv, "--seeds", 10);
	if (proc.procs < 2 || proc.procs > PROCS_MAX)
		return 2;
	proc.shared = mmap(NULL, sizeof(*proc.shared), PROT_READ | PROT_WRITE,
	                   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (proc.shared == MAP_FAILED)
		return 2;
	for (uint64_t i = 0; i < seeds; i++) {
		proc.seed = first + i;
		if (run_seed())
			continue;
		printf("FAIL procs/%s: WIMM_SEED=%" PRIu64 " shows it\n", proc.provider, proc.seed);
		return 1;
	}
	printf("PASS procs/%s%s: %" PRIu64 " seeds, %u processes, %u rounds each\n", proc.provider,
	       profile != NULL ? "-routed" : "", seeds, proc.procs, proc.rounds);
	return 0;
}
