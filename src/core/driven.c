/* SPDX-License-Identifier: Apache-2.0 */
/* Caller-driven mode: the caller's thread is the worker and the callback thread. */
#include "core/engine.h"
#include "core/error_text.h"

#include "plat/clock.h"

static wimm_status check_driven(const struct wimm_engine *engine)
{
	wimm_status st = engine_check(engine);

	if (st == WIMM_OK && engine->worker.own_threads) {
		error_text_set("the engine drives itself: open it with WIMM_PROGRESS_CALLER");
		st = WIMM_E_INVAL;
	}
	return st;
}

wimm_status wimm_progress(struct wimm_engine *engine, int *out_busy)
{
	wimm_status st = check_driven(engine);
	bool busy;

	if (st != WIMM_OK)
		return st;
	if (engine_in_callback(engine))
		return WIMM_E_IN_CALLBACK;
	role_enter(&on_worker); /* the caller's thread */
	busy = worker_step(&engine->worker, engine_turn_ns(engine));
	role_leave(&on_worker);
	busy = watch_poll(engine) != 0 || busy;
	busy = deliver_run(engine, UINT32_MAX) != 0 || busy;
	if (out_busy != NULL)
		*out_busy = busy;
	return WIMM_OK;
}

wimm_status wimm_progress_wait(struct wimm_engine *engine, uint64_t timeout_us)
{
	wimm_status st = check_driven(engine);
	uint64_t deadline = CLOCK_NEVER_NS;

	if (st != WIMM_OK)
		return st;
	if (engine_in_callback(engine)) /* what it would wait for is only done after that */
		return WIMM_E_IN_CALLBACK;
	if (timeout_us == 0) {
		role_enter(&on_worker);
		worker_arm(&engine->worker, mpsc_empty_hint(&engine->deliveries));
		role_leave(&on_worker);
		return WIMM_OK;
	}
	if (timeout_us < UINT64_MAX / CLOCK_NS_PER_US)
		deadline = clock_deadline_ns(engine_now_ns(engine), timeout_us * CLOCK_NS_PER_US);
	role_enter(&on_worker);
	if (mpsc_empty_hint(&engine->deliveries))
		worker_wait(&engine->worker, deadline);
	role_leave(&on_worker);
	return WIMM_OK;
}

int wimm_progress_fd(struct wimm_engine *engine)
{
	return check_driven(engine) == WIMM_OK ? engine->worker.epoll_fd : -1;
}
