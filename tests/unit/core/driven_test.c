/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include "plat/clock.h"

#include <wimm/imm.h>
#include <wimm/transfer.h>

#include <poll.h>
#include <string.h>

/* Two caller-driven engines, the second with a region that the first can write into. */
struct pair {
	struct wimm_engine *a, *b;
	struct wimm_mr *src, *dst;
	struct wimm_remote_mr *remote;
	uint8_t from[64], to[64];
	uint64_t written, counted;
};

static bool drive(struct pair *p)
{
	int busy_a, busy_b;

	assert_ok(wimm_progress(p->a, &busy_a));
	assert_ok(wimm_progress(p->b, &busy_b));
	return busy_a != 0 || busy_b != 0;
}

static bool flag_is_up(void *arg)
{
	void **both = arg;

	(void)drive(both[0]);
	return wimm_flag_load(both[1]) != 0;
}

static void submit(struct pair *p, uint64_t *flag)
{
	const struct wimm_on_done done = { .flag = flag };
	struct wimm_write w = WIMM_WRITE_INIT;

	w.flags = WIMM_IMM;
	w.imm = 5;
	w.src = p->src;
	w.dst = p->remote;
	w.len_bytes = sizeof(p->from);
	*flag = 0;
	assert_ok(wimm_submit_single_write(p->a, &w, &done, NULL));
}

static void open_pair(struct pair *p, const char *provider)
{
	struct wimm_engine_opts opts = WIMM_ENGINE_OPTS_INIT;
	struct wimm_mr_desc desc;
	void *both[] = { p, &p->written };

	memset(p, 0, sizeof(*p));
	opts.provider = provider;
	opts.progress = WIMM_PROGRESS_CALLER;
	opts.nics = strcmp(provider, "tcp") == 0 ? "127.0.0.1:0" : NULL;
	assert_ok(wimm_engine_open(&opts, &p->a));
	assert_ok(wimm_engine_open(&opts, &p->b));
	assert_ok(wimm_reg_mr(p->a, p->from, sizeof(p->from), NULL, &p->src));
	assert_ok(wimm_reg_mr(p->b, p->to, sizeof(p->to), NULL, &p->dst));
	assert_ok(wimm_mr_get_desc(p->dst, &desc));
	assert_ok(wimm_open_remote_mr(p->a, &desc, &p->remote));
	submit(p, &p->written); /* connects */
	assert_true(test_wait_until(flag_is_up, both, TEST_DEADLINE_MS));
	assert_int_equal(wimm_flag_load(&p->written), 1);
}

static void close_pair(struct pair *p)
{
	assert_ok(wimm_engine_close(&p->a));
	assert_ok(wimm_engine_close(&p->b));
}

static bool readable(int fd, int wait_ms)
{
	struct pollfd pfd = { .fd = fd, .events = POLLIN };

	return poll(&pfd, 1, wait_ms) == 1;
}

/* Progress until quiet, then arm, as engine.h says; b's descriptor is quiet afterwards. */
static bool b_sleeps(void *arg)
{
	struct pair *p = arg;

	if (drive(p))
		return false;
	assert_ok(wimm_progress_wait(p->b, 0));
	return !readable(wimm_progress_fd(p->b), 0);
}

static void armed_descriptor_wakes(const char *provider)
{
	const struct wimm_on_done done = { 0 };
	struct pair p;
	wimm_op op;

	open_pair(&p, provider);
	for (int i = 0; i < 3; i++) {
		assert_true(test_wait_until(b_sleeps, &p, TEST_DEADLINE_MS));
		submit(&p, &p.written);
		assert_ok(wimm_progress(p.a, NULL));
		assert_true(readable(wimm_progress_fd(p.b), (int)TEST_DEADLINE_MS));
		while (wimm_flag_load(&p.written) == 0)
			(void)drive(&p);
	}
	/* A call of its own is something to do, too. */
	assert_true(test_wait_until(b_sleeps, &p, TEST_DEADLINE_MS));
	assert_ok(wimm_expect_imm_count(p.b, 5, 1, NULL, &done, &op));
	assert_true(readable(wimm_progress_fd(p.b), 0));
	close_pair(&p);
}

static void driven_descriptor_over_tcp_wakes_when_a_peer_writes(void **state)
{
	/* Goal: sleeping on the descriptor after arming misses nothing. */
	(void)state;
	armed_descriptor_wakes("tcp");
}

static void driven_descriptor_over_host_wakes_when_a_peer_writes(void **state)
{
	/* Goal: the same where the peer has to be told that this side sleeps. */
	(void)state;
	armed_descriptor_wakes("host");
}

static void driven_wait_ends_when_a_peer_writes_or_the_time_is_up(void **state)
{
	/* Goal: a wait longer than the test ends by a write; one of no time returns. */
	struct pair p;

	(void)state;
	open_pair(&p, "host");
	assert_true(test_wait_until(b_sleeps, &p, TEST_DEADLINE_MS));
	assert_ok(wimm_progress_wait(p.b, 1000));
	assert_true(test_wait_until(b_sleeps, &p, TEST_DEADLINE_MS));
	submit(&p, &p.written);
	assert_ok(wimm_progress(p.a, NULL));
	assert_ok(wimm_progress_wait(p.b, (uint64_t)TEST_DEADLINE_MS * 1000));
	while (wimm_flag_load(&p.written) == 0)
		(void)drive(&p);
	close_pair(&p);
}

static bool second_is_over(void *arg)
{
	return clock_now_ns() - *(const uint64_t *)arg > CLOCK_NS_PER_S;
}

static void driven_deadline_counts_from_the_submission_after_a_pause(void **state)
{
	/* Goal: a caller that drove without a break, then did something else for as long as the
	 * deadline of its next write: the deadline has not passed before the write was made. */
	const struct wimm_on_done done = { .flag = &(uint64_t){ 0 } };
	struct wimm_write w = WIMM_WRITE_INIT;
	struct pair p;
	uint64_t from_ns;

	(void)state;
	open_pair(&p, "host");
	for (int i = 0; i < 1000; i++)
		(void)drive(&p);
	from_ns = clock_now_ns();
	assert_true(test_wait_until(second_is_over, &from_ns, TEST_DEADLINE_MS));
	w.flags = WIMM_IMM;
	w.src = p.src;
	w.dst = p.remote;
	w.len_bytes = sizeof(p.from);
	w.deadline_us = CLOCK_NS_PER_S / CLOCK_NS_PER_US;
	assert_ok(wimm_submit_single_write(p.a, &w, &done, NULL));
	while (wimm_flag_load(done.flag) == 0)
		(void)drive(&p);
	assert_int_equal(wimm_flag_load(done.flag), 1);
	close_pair(&p);
}

static void driven_calls_on_an_engine_with_threads_are_refused(void **state)
{
	/* Goal: nobody steps a worker that has a thread. */
	struct wimm_engine_opts opts = WIMM_ENGINE_OPTS_INIT;
	struct wimm_engine *engine;

	(void)state;
	opts.provider = "sim";
	assert_ok(wimm_engine_open(&opts, &engine));
	assert_int_equal(wimm_progress(engine, NULL), WIMM_E_INVAL);
	assert_int_equal(wimm_progress_wait(engine, 0), WIMM_E_INVAL);
	assert_int_equal(wimm_progress_fd(engine), -1);
	assert_ok(wimm_engine_close(&engine));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(driven_descriptor_over_tcp_wakes_when_a_peer_writes),
		cmocka_unit_test(driven_descriptor_over_host_wakes_when_a_peer_writes),
		cmocka_unit_test(driven_wait_ends_when_a_peer_writes_or_the_time_is_up),
		cmocka_unit_test(driven_deadline_counts_from_the_submission_after_a_pause),
		cmocka_unit_test(driven_calls_on_an_engine_with_threads_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
