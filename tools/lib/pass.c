/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/pass.h"

#include "lib/util.h"

#include <stdatomic.h>
#include <string.h>

#define CHANNEL_WAIT_S 60u

static bool writes(const struct runner *r)
{
	return r->client || r->spec->both_ways;
}

static bool reads(const struct runner *r)
{
	return !r->client || r->spec->both_ways;
}

/* What the two sides tell each other during one pass. */
struct turn {
	struct runner *runner;
	const struct pass *pass;
	bool count_sent;    /* how much this side's writer wrote */
	bool count_heard;   /* how much the other's did */
	bool arrived_heard; /* the other side has everything */
	bool arrived_sent;
	bool checked_heard; /* the target was faster than this side's last callbacks */
	double cpu_start_s;
	struct pass_result result;
};

static void add_number(cJSON *object, const char *name, double value)
{
	if (cJSON_AddNumberToObject(object, name, value) == NULL)
		die("out of memory");
}

void runner_open(struct runner *r, const struct spec *spec, const char *nics,
                 struct channel *channel, bool client)
{
	cJSON *mine = channel_message("region");
	cJSON *theirs;

	r->spec = spec;
	r->channel = channel;
	r->client = client;
	side_open(&r->side, spec, nics, channel);
	if (reads(r))
		sink_open(&r->sink, &r->side);
	side_tell(&r->side, mine);
	channel_send(channel, mine);
	theirs = channel_recv(channel, "region", CHANNEL_WAIT_S);
	side_hear(&r->side, theirs);
	cJSON_Delete(theirs);
	if (writes(r))
		load_open(&r->load, &r->side);
}

void runner_close(struct runner *r)
{
	if (reads(r))
		sink_close(&r->sink);
	if (writes(r))
		load_close(&r->load);
	side_close(&r->side);
}

static bool never(void *arg)
{
	(void)arg;
	return false;
}

static uint64_t no_progress(void *arg)
{
	(void)arg;
	return 0;
}

cJSON *runner_recv(struct runner *r, const char *kind)
{
	(void)side_wait(&r->side, never, no_progress, NULL);
	if (kind == NULL)
		return channel_recv_any(r->channel, CHANNEL_WAIT_S);
	return channel_recv(r->channel, kind, CHANNEL_WAIT_S);
}

static bool count_known(const struct pass *pass)
{
	return pass->iters != UINT64_MAX;
}

static void say_count(struct turn *t)
{
	cJSON *m = channel_message("count");

	add_number(m, "iters", (double)load_ended(&t->runner->load));
	channel_send(t->runner->channel, m);
	t->count_sent = true;
}

static void say_arrived(struct turn *t)
{
	cJSON *m = channel_message("arrived");

	add_number(m, "cpu_s", t->runner->shares_process ? 0 : cpu_s() - t->cpu_start_s);
	channel_send(t->runner->channel, m);
	t->arrived_sent = true;
}

/* Whether this side's part of the pass is over, sending what is due on the way. */
static bool turn_done(void *arg)
{
	struct turn *t = arg;
	struct runner *r = t->runner;

	if (writes(r)) {
		if (!load_done(&r->load))
			return false;
		if (!count_known(t->pass) && !t->count_sent)
			say_count(t);
	}
	if (reads(r) && !t->arrived_sent) {
		if (!sink_done(&r->sink))
			return false;
		say_arrived(t);
	}
	/* A writer is done when the reader has everything. */
	return !writes(r) || t->arrived_heard;
}

static uint64_t turn_progress(void *arg)
{
	const struct runner *r = ((struct turn *)arg)->runner;

	return (writes(r) ? load_ended(&r->load) : 0) + (reads(r) ? sink_progress(&r->sink) : 0);
}

static void hear(struct turn *t, const cJSON *m)
{
	struct runner *r = t->runner;
	const char *kind = member_text(m, "do");

	if (strcmp(kind, "count") == 0 && reads(r) && !count_known(t->pass) && !t->count_heard) {
		uint64_t iters = member_u64(m, "iters", 0, UINT64_C(1) << 50);

		t->count_heard = true;
		t->result.target_iters = r->client ? iters : 0;
		sink_expect(&r->sink, t->pass->imm, iters);
	} else if (strcmp(kind, "arrived") == 0 && writes(r) && !t->arrived_heard) {
		t->arrived_heard = true;
		t->result.target_cpu_s = member_number(m, "cpu_s");
	} else if (strcmp(kind, "checked") == 0 && r->client && t->arrived_heard &&
	           !t->checked_heard) {
		t->checked_heard = true;
		t->result.bytes_checked = member_u64(m, "bytes", 0, UINT64_C(1) << 50);
	} else {
		die("the other side said \"%s\" in mid-pass", kind);
	}
}

static void turn_run(struct turn *t)
{
	struct runner *r = t->runner;

	while (!side_wait(&r->side, turn_done, turn_progress, t)) {
		cJSON *m = channel_recv_any(r->channel, CHANNEL_WAIT_S);

		if (m == NULL)
			die("the other side has closed the connection in mid-pass");
		hear(t, m);
		cJSON_Delete(m);
	}
}

static void arm(struct runner *r, const struct pass *pass)
{
	bool check = pass->kind == PASS_CHECK;

	if (reads(r))
		sink_arm(&r->sink, pass->imm, pass->iters, pass->round, check);
	if (writes(r) && check)
		sink_fill_source(&r->side, pass->iters, pass->round);
}

static uint64_t compare(struct runner *r, const struct pass *pass)
{
	if (!reads(r) || pass->kind != PASS_CHECK)
		return 0;
	return sink_compare(&r->sink, pass->imm, pass->iters, pass->round);
}

void pass_lead(struct runner *r, const struct pass *pass, struct pass_result *out)
{
	struct turn t = { .runner = r, .pass = pass };
	cJSON *m = channel_message("pass");
	uint64_t start_ns;

	arm(r, pass);
	add_number(m, "kind", pass->kind);
	add_number(m, "imm", pass->imm);
	add_number(m, "iters", count_known(pass) ? (double)pass->iters : -1);
	add_number(m, "round", (double)pass->round);
	channel_send(r->channel, m);
	cJSON_Delete(runner_recv(r, "armed"));
	t.cpu_start_s = cpu_s();
	start_ns = now_ns();
	load_start(&r->load, pass->imm, pass->iters, count_known(pass) ? 0 : r->spec->seconds);
	turn_run(&t);
	t.result.seconds = (double)(now_ns() - start_ns) * 1e-9;
	t.result.client_cpu_s = cpu_s() - t.cpu_start_s;
	t.result.iters = load_ended(&r->load);
	if (count_known(pass) && r->spec->both_ways)
		t.result.target_iters = pass->iters;
	if (!t.checked_heard) {
		m = runner_recv(r, "checked");
		hear(&t, m);
		cJSON_Delete(m);
	}
	t.result.bytes_checked += compare(r, pass);
	*out = t.result;
}

void pass_follow(struct runner *r, const cJSON *message)
{
	struct pass pass = {
		.kind = (enum pass_kind)member_u64(message, "kind", PASS_WARMUP, PASS_CHECK),
		.imm = (uint32_t)member_u64(message, "imm", 0, UINT32_MAX),
		.round = member_u64(message, "round", 0, UINT32_MAX),
		.iters = UINT64_MAX,
	};
	struct turn t = { .runner = r, .pass = &pass };
	cJSON *m;

	if (member_number(message, "iters") >= 0 || pass.kind == PASS_CHECK)
		pass.iters = member_u64(message, "iters", 0,
		                        pass.kind == PASS_CHECK ? spec_slots(r->spec)
		                                                : UINT64_C(1) << 40);
	arm(r, &pass);
	t.cpu_start_s = cpu_s();
	channel_send(r->channel, channel_message("armed"));
	if (writes(r))
		load_start(&r->load, pass.imm, pass.iters,
		           count_known(&pass) ? 0 : r->spec->seconds);
	turn_run(&t);
	m = channel_message("checked");
	add_number(m, "bytes", (double)compare(r, &pass));
	channel_send(r->channel, m);
}
