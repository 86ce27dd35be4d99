/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting: what callbacks and the case share, and results that must come exactly once. */
#include "contract/fixture_int.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define RESULTS_MAX 65536

struct node *case_nodes[NODES_MAX];

static struct result *results;
static uint32_t result_count;
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t gate_opens;

/* --- the gate --- */

static struct timespec in_ms(uint64_t ms)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	ts.tv_sec += (time_t)(ms / 1000);
	ts.tv_nsec += (long)(ms % 1000) * 1000000;
	if (ts.tv_nsec >= 1000000000) {
		ts.tv_nsec -= 1000000000;
		ts.tv_sec++;
	}
	return ts;
}

static uint64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

void gate_lock(void)
{
	pthread_mutex_lock(&gate);
}

void gate_unlock(void)
{
	pthread_cond_broadcast(&gate_opens);
	pthread_mutex_unlock(&gate);
}

bool gate_wait(bool (*cond)(void *arg), void *arg)
{
	struct timespec end = in_ms(TEST_DEADLINE_MS);
	bool holds_now;

	pthread_mutex_lock(&gate);
	while (!(holds_now = cond(arg)))
		if (pthread_cond_timedwait(&gate_opens, &gate, &end) != 0)
			break;
	pthread_mutex_unlock(&gate);
	return holds_now;
}

void drive(void)
{
	int busy, any = 0;

	for (unsigned i = 0; cfg.driven && i < NODES_MAX; i++) {
		if (case_nodes[i] == NULL || case_nodes[i]->engine == NULL || case_nodes[i]->apart)
			continue;
		if (wimm_progress(case_nodes[i]->engine, &busy) == WIMM_OK)
			any |= busy;
	}
	if (!any && cfg.driven)
		sched_yield();
	if (!cfg.driven) {
		struct timespec soon = in_ms(1);

		/* Not everything is announced: look again soon. */
		pthread_mutex_lock(&gate);
		(void)pthread_cond_timedwait(&gate_opens, &gate, &soon);
		pthread_mutex_unlock(&gate);
	}
}

void drive_rounds(unsigned rounds)
{
	while (rounds-- != 0) {
		if (cfg.driven)
			drive();
		else
			sched_yield();
	}
}

/* What a case that has failed leaves to look at. */
static void tell_nodes(void)
{
	for (unsigned i = 0; i < NODES_MAX; i++) {
		struct wimm_engine_stats s = WIMM_ENGINE_STATS_INIT;

		if (case_nodes[i] == NULL || case_nodes[i]->engine == NULL ||
		    wimm_engine_get_stats(case_nodes[i]->engine, &s) != WIMM_OK)
			continue;
		print_error("node %u: peers up %u, ops open %u done %llu failed %llu pending %llu, "
		            "posted %llu, imms out %llu in %llu, expectations %llu, steps %llu "
		            "sleeps %llu\n",
		            i, s.peers_up, s.ops_open, (unsigned long long)s.ops_done,
		            (unsigned long long)s.ops_failed, (unsigned long long)s.pending_ops,
		            (unsigned long long)s.writes_posted, (unsigned long long)s.imms_sent,
		            (unsigned long long)s.imms_received, (unsigned long long)s.expectations,
		            (unsigned long long)s.worker_steps,
		            (unsigned long long)s.worker_sleeps);
	}
}

/* CONTRACT_DEADLINE_MS in the environment shortens the wait while one looks for a hang. */
static uint64_t deadline_ms(void)
{
	const char *text = getenv("CONTRACT_DEADLINE_MS");

	return text != NULL ? strtoull(text, NULL, 10) : TEST_DEADLINE_MS;
}

uint64_t wait_end_ms(void)
{
	return now_ms() + deadline_ms();
}

void wait_more(uint64_t end_ms, const char *what)
{
	if (now_ms() >= end_ms) {
		tell_nodes();
		fail_msg("this does not come: %s", what);
	}
	drive();
}

bool wait_for(bool (*cond)(void *arg), void *arg)
{
	uint64_t end = wait_end_ms();

	for (;;) {
		if (cond(arg))
			return true;
		if (now_ms() >= end) {
			tell_nodes();
			return false;
		}
		drive();
	}
}

/* --- results --- */

struct result *result_new(void)
{
	struct result *r;

	if (result_count == RESULTS_MAX)
		fail_msg("a case has at most %d results", RESULTS_MAX);
	r = &results[result_count++];
	memset(r, 0, sizeof(*r));
	return r;
}

static void on_result(void *context, const struct wimm_done *done)
{
	struct result *r = context;

	gate_lock();
	r->calls++;
	r->status = done->status;
	r->imm = done->imm;
	r->op = done->op;
	r->peer = done->peer;
	r->bytes = done->bytes;
	r->descriptors = done->descriptors;
	r->post_ns = done->post_ns;
	r->transfer_ns = done->transfer_ns;
	snprintf(r->text, sizeof(r->text), "%s", done->text);
	gate_unlock();
}

struct wimm_on_done to_result(struct result *r)
{
	return (struct wimm_on_done){ .fn = on_result, .context = r };
}

static bool result_called(void *arg)
{
	return result_there(arg);
}

bool result_there(struct result *r)
{
	bool there;

	pthread_mutex_lock(&gate);
	there = r->calls != 0;
	pthread_mutex_unlock(&gate);
	return there;
}

bool result_there_driving(struct result *r, struct node *apart)
{
	assert_ok(wimm_progress(apart->engine, NULL));
	return result_there(r);
}

void result_wait(struct result *r)
{
	if (!wait_for(result_called, r))
		fail_msg("an operation (imm %#x) did not settle", r->imm);
}

void result_is(struct result *r, wimm_status status)
{
	result_wait(r);
	if (r->status != status)
		fail_msg("ended with %s, not %s: %s", wimm_status_name(r->status),
		         wimm_status_name(status), r->text);
	assert_true(r->id == 0 || r->op == r->id);
}

void result_ok(struct result *r)
{
	result_is(r, WIMM_OK);
}

bool results_are_right(void)
{
	bool ok = true;

	for (uint32_t i = 0; i < result_count; i++) {
		if (results[i].calls == (results[i].accepted ? 1 : 0))
			continue;
		print_error("operation %u (imm %#x, %s) was reported %u times\n", i, results[i].imm,
		            results[i].accepted ? "accepted" : "refused", results[i].calls);
		ok = false;
	}
	return ok;
}

void results_reset(void)
{
	result_count = 0;
}

static void *do_nothing(void *arg)
{
	return arg;
}

bool gate_init(void)
{
	pthread_condattr_t attr;
	pthread_t first;

	if (results != NULL)
		return true;
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&gate_opens, &attr);
	pthread_condattr_destroy(&attr);
	results = calloc(RESULTS_MAX, sizeof(*results));
	/* The first thread of a process may bring a helper of the sanitizer's, which stays. */
	if (pthread_create(&first, NULL, do_nothing, NULL) != 0)
		return false;
	pthread_join(first, NULL);
	return results != NULL;
}
