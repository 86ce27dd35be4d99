/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"
#include "unit/mem/fake.h"

#include "plat/clock.h"
#include "plat/thread.h"

#include <wimm/cuda.h>
#include <wimm/imm.h>
#include <wimm/transfer.h>

#include <stdlib.h>

enum { BYTES = 1 << 20, IMM = 9, LOOKS = 20 };

static struct fake_cuda_knobs *fake;
static int (*stream_create)(void **out, unsigned int flags, int priority);
static int (*stream_destroy)(void *stream);

struct pair {
	struct wimm_engine *a, *b;
	struct wimm_mr *src, *dst;
	struct wimm_remote_mr *to;
	uint64_t from, into; /* memory of the GPU */
	uint8_t *wrote, *landed;
	void *stream; /* the application's */
};

static void open_pair(struct pair *p)
{
	struct wimm_engine_opts opts = WIMM_ENGINE_OPTS_INIT;
	struct wimm_mr_desc desc;

	opts.provider = "host";
	assert_ok(wimm_engine_open(&opts, &p->a));
	assert_ok(wimm_engine_open(&opts, &p->b));
	p->from = fake->alloc(BYTES, 0);
	p->into = fake->alloc(BYTES, 0);
	p->wrote = fake->shadow(p->from);
	p->landed = fake->shadow(p->into);
	assert_ok(wimm_reg_mr(p->a, (void *)(uintptr_t)p->from, BYTES, NULL, &p->src));
	assert_ok(wimm_reg_mr(p->b, (void *)(uintptr_t)p->into, BYTES, NULL, &p->dst));
	assert_ok(wimm_mr_get_desc(p->dst, &desc));
	assert_ok(wimm_open_remote_mr(p->a, &desc, &p->to));
	assert_int_equal(stream_create(&p->stream, 1, 0), 0);
}

static void close_pair(struct pair *p)
{
	assert_ok(wimm_engine_close(&p->a));
	assert_ok(wimm_engine_close(&p->b));
	fake->free(p->from);
	fake->free(p->into);
	assert_int_equal(stream_destroy(p->stream), 0);
}

static struct wimm_write write_of(const struct pair *p, void *stream)
{
	struct wimm_write wr = WIMM_WRITE_INIT;

	wr.src = p->src;
	wr.dst = p->to;
	wr.len_bytes = 4096;
	wr.imm = IMM;
	wr.flags = WIMM_IMM | WIMM_AFTER_STREAM;
	wr.stream = stream;
	return wr;
}

static bool is_set(void *flag)
{
	return wimm_flag_load(flag) != 0;
}

static int64_t wait_flag(uint64_t *flag)
{
	assert_true(test_wait_until(is_set, flag, 60000));
	return wimm_flag_load(flag);
}

static bool looked(void *until)
{
	return __atomic_load_n(&fake->looks, __ATOMIC_RELAXED) >= *(uint64_t *)until;
}

/* The worker has looked at a mark so many times more. */
static void let_it_look(uint64_t times)
{
	uint64_t until = __atomic_load_n(&fake->looks, __ATOMIC_RELAXED) + times;

	assert_true(test_wait_until(looked, &until, 60000));
}

static uint64_t count_of(const struct pair *p)
{
	uint64_t count = 0;

	assert_ok(wimm_poll_imm(p->b, IMM, &count));
	return count;
}

static void write_begins_when_the_stream_has_come_so_far(void **state)
{
	/* Goal: what was queued before is done before the source is read; what comes later is not
	 * waited for, and the stream of another write holds this one up in nothing. */
	uint64_t held = 0, later = 0;
	struct wimm_on_done on_held = { .flag = &held }, on_later = { .flag = &later };
	struct wimm_write wr;
	struct pair p;
	uint64_t copies;
	void *other;

	(void)state;
	open_pair(&p);
	assert_int_equal(stream_create(&other, 1, 0), 0);
	memset(p.wrote, 1, BYTES);
	fake->block(p.stream);
	wr = write_of(&p, p.stream);
	copies = fake->copies;
	assert_ok(wimm_submit_single_write(p.a, &wr, &on_held, NULL));
	let_it_look(LOOKS);
	assert_int_equal(fake->copies, copies);
	wr.stream = other;
	wr.src_offset_bytes = 8192;
	wr.dst_offset_bytes = 8192;
	assert_ok(wimm_submit_single_write(p.a, &wr, &on_later, NULL));
	assert_int_equal(wait_flag(&later), 1);
	assert_int_equal(wimm_flag_load(&held), 0);
	assert_int_equal(count_of(&p), 1);
	memset(p.wrote, 2, BYTES); /* what the stream was to do */
	fake->unblock(p.stream);
	assert_int_equal(wait_flag(&held), 1);
	assert_int_equal(p.landed[0], 2);
	assert_int_equal(p.landed[4095], 2);
	assert_int_equal(p.landed[8192], 1);
	assert_int_equal(count_of(&p), 2);
	assert_int_equal(stream_destroy(other), 0);
	close_pair(&p);
}

static void pages_and_scatter_wait_for_the_stream_too(void **state)
{
	/* Goal: the other two kinds of write wait alike, with everything of them. */
	static const uint32_t index[4] = { 3, 1, 0, 2 };
	struct wimm_paged_writes pages = WIMM_PAGED_WRITES_INIT;
	struct wimm_scatter scatter = WIMM_SCATTER_INIT;
	struct wimm_scatter_entry entry[2];
	uint64_t flags[2] = { 0 };
	struct pair p;

	(void)state;
	open_pair(&p);
	fake->block(p.stream);
	pages.src = p.src;
	pages.dst = p.to;
	pages.src_pages = (struct wimm_pages){ .indices = index, .count = 4, .stride_bytes = 512 };
	pages.dst_pages = pages.src_pages;
	pages.page_len_bytes = 512;
	pages.imm = IMM;
	pages.flags = WIMM_IMM | WIMM_AFTER_STREAM;
	pages.stream = p.stream;
	for (int i = 0; i < 2; i++)
		entry[i] = (struct wimm_scatter_entry){ p.to, 4096, 4096 * (uint64_t)(i + 1), 100 };
	scatter.src = p.src;
	scatter.entries = entry;
	scatter.count = 2;
	scatter.imm = IMM;
	scatter.flags = WIMM_IMM | WIMM_AFTER_STREAM;
	scatter.stream = p.stream;
	for (int i = 0; i < 2; i++) {
		struct wimm_on_done on_done = { .flag = &flags[i] };

		assert_ok(i == 0 ? wimm_submit_paged_writes(p.a, &pages, &on_done, NULL)
		                 : wimm_submit_scatter(p.a, &scatter, &on_done, NULL));
	}
	let_it_look(LOOKS);
	assert_int_equal(wimm_flag_load(&flags[0]), 0);
	assert_int_equal(wimm_flag_load(&flags[1]), 0);
	assert_int_equal(count_of(&p), 0);
	memset(p.wrote, 7, BYTES);
	fake->unblock(p.stream);
	assert_int_equal(wait_flag(&flags[0]), 1);
	assert_int_equal(wait_flag(&flags[1]), 1);
	assert_int_equal(count_of(&p), 6);
	assert_int_equal(p.landed[2047], 7);
	assert_int_equal(p.landed[8192 + 99], 7);
	close_pair(&p);
}

static void write_that_waits_for_a_stream_can_be_ended(void **state)
{
	/* Goal: cancel, deadline, the end of either region, and close settle it once, and what is
	 * left of the mark ends by itself. */
	static const int64_t want[] = { WIMM_E_CANCELLED, WIMM_E_TIMEOUT, WIMM_E_REVOKED,
		                        WIMM_E_CLOSED };
	uint64_t flag, gone = 0;
	struct wimm_on_done on_done = { .flag = &flag }, on_gone = { .flag = &gone };
	struct pair p;
	wimm_op op;

	(void)state;
	open_pair(&p);
	fake->block(p.stream);
	for (int way = 0; way < 4; way++) {
		struct wimm_write wr = write_of(&p, p.stream);

		flag = 0;
		wr.deadline_us = way == 1 ? 1000 : 0;
		assert_ok(wimm_submit_single_write(p.a, &wr, &on_done, &op));
		if (way == 0)
			assert_ok(wimm_cancel(p.a, op));
		if (way == 2) {
			let_it_look(1);
			assert_ok(wimm_dereg_mr(p.b, p.dst, &on_gone));
			assert_int_equal(wait_flag(&gone), 1);
			assert_ok(wimm_reg_mr(p.b, (void *)(uintptr_t)p.into, BYTES, NULL,
			                      &p.dst));
		}
		if (way == 3)
			assert_ok(wimm_engine_close(&p.a));
		assert_int_equal(wait_flag(&flag), want[way]);
		if (way == 2) { /* for the last one */
			struct wimm_mr_desc desc;

			assert_ok(wimm_mr_get_desc(p.dst, &desc));
			assert_ok(wimm_open_remote_mr(p.a, &desc, &p.to));
		}
	}
	assert_int_equal(count_of(&p), 0);
	assert_int_equal(p.landed[0], 0);
	fake->unblock(p.stream);
	close_pair(&p);
}

static void source_stays_registered_while_its_write_waits(void **state)
{
	/* Goal: the end of the source's registration waits for the write, which goes on, and so
	 * does the end of the handle of its target. */
	uint64_t flag = 0, gone = 0;
	struct wimm_on_done on_done = { .flag = &flag }, on_gone = { .flag = &gone };
	struct wimm_write wr;
	struct pair p;

	(void)state;
	open_pair(&p);
	fake->block(p.stream);
	wr = write_of(&p, p.stream);
	assert_ok(wimm_submit_single_write(p.a, &wr, &on_done, NULL));
	assert_ok(wimm_dereg_mr(p.a, p.src, &on_gone));
	assert_ok(wimm_close_remote_mr(p.a, p.to));
	let_it_look(LOOKS);
	assert_int_equal(wimm_flag_load(&gone), 0);
	memset(p.wrote, 5, BYTES);
	fake->unblock(p.stream);
	assert_int_equal(wait_flag(&flag), 1);
	assert_int_equal(wait_flag(&gone), 1);
	assert_int_equal(p.landed[0], 5);
	close_pair(&p);
}

static void stream_of_the_engine_that_holds_work_is_not_given_again(void **state)
{
	/* Goal: what one producer makes a stream of the engine wait for delays nobody else. */
	void *first, *second, *third;
	struct pair p;

	(void)state;
	open_pair(&p);
	assert_ok(wimm_cuda_stream(p.a, 0, &first));
	assert_ok(wimm_cuda_stream(p.a, 0, &second));
	assert_ptr_equal(first, second);
	fake->block(first);
	assert_ok(wimm_cuda_stream(p.a, 0, &second));
	assert_ptr_not_equal(first, second);
	fake->unblock(first);
	for (int i = 0; i < 100; i++) { /* bounded, also when all of them are busy */
		assert_ok(wimm_cuda_stream(p.a, 0, &third));
		fake->block(third);
	}
	assert_int_equal(wimm_cuda_stream(p.a, 5, &third), WIMM_E_UNSUPPORTED);
	assert_int_equal(wimm_cuda_stream(p.a, 1000, &third), WIMM_E_UNSUPPORTED);
	assert_int_equal(wimm_cuda_stream(p.a, -1, &third), WIMM_E_INVAL);
	assert_int_equal(wimm_cuda_stream(p.a, 0, NULL), WIMM_E_INVAL);
	assert_int_equal(wimm_mr_cuda_device(p.src), 0);
	assert_int_equal(wimm_mr_cuda_device(NULL), -1);
	close_pair(&p);
}

static void write_after_a_stream_under_capture_is_refused(void **state)
{
	/* Goal: a graph is not what the write could wait for, and the text says so; what the engine
	 * does meanwhile for others leaves the capture alone. */
	uint64_t flag = 0;
	struct wimm_on_done on_done = { .flag = &flag };
	struct wimm_write wr;
	struct pair p;
	void *other;

	(void)state;
	open_pair(&p);
	assert_int_equal(stream_create(&other, 1, 0), 0);
	__atomic_store_n(&fake->capturing, p.stream, __ATOMIC_RELEASE);
	wr = write_of(&p, p.stream);
	assert_int_equal(wimm_submit_single_write(p.a, &wr, &on_done, NULL), WIMM_E_UNSUPPORTED);
	assert_non_null(strstr(wimm_last_error_text(), "graph"));
	fake->block(other);
	wr.stream = other;
	assert_ok(wimm_submit_single_write(p.a, &wr, &on_done, NULL));
	let_it_look(LOOKS);
	fake->unblock(other);
	assert_int_equal(wait_flag(&flag), 1);
	assert_int_equal(fake->broken, 0);
	__atomic_store_n(&fake->capturing, NULL, __ATOMIC_RELEASE);
	assert_int_equal(stream_destroy(other), 0);
	close_pair(&p);
}

static void flags_and_stream_have_to_go_together(void **state)
{
	/* Goal: a stream without its flag is refused; the default stream, 0, is one. */
	uint64_t flag = 0;
	struct wimm_on_done on_done = { .flag = &flag };
	struct wimm_write wr;
	struct pair p;

	(void)state;
	open_pair(&p);
	wr = write_of(&p, p.stream);
	wr.flags = WIMM_IMM;
	assert_int_equal(wimm_submit_single_write(p.a, &wr, &on_done, NULL), WIMM_E_INVAL);
	wr = write_of(&p, NULL);
	assert_ok(wimm_submit_single_write(p.a, &wr, &on_done, NULL));
	assert_int_equal(wait_flag(&flag), 1);
	close_pair(&p);
}

static int setup(void **state)
{
	char path[CONFIG_TEXT_BYTES];
	void *handle;

	(void)state;
	fake = fake_cuda_start();
	config_get_text(CFG_CUDA_LIBRARY, path);
	handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (fake == NULL || handle == NULL)
		return -1;
	*(void **)&stream_create = dlsym(handle, "cuStreamCreateWithPriority");
	*(void **)&stream_destroy = dlsym(handle, "cuStreamDestroy_v2");
	return stream_create != NULL && stream_destroy != NULL ? 0 : -1;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(write_begins_when_the_stream_has_come_so_far),
		cmocka_unit_test(pages_and_scatter_wait_for_the_stream_too),
		cmocka_unit_test(write_that_waits_for_a_stream_can_be_ended),
		cmocka_unit_test(source_stays_registered_while_its_write_waits),
		cmocka_unit_test(stream_of_the_engine_that_holds_work_is_not_given_again),
		cmocka_unit_test(write_after_a_stream_under_capture_is_refused),
		cmocka_unit_test(flags_and_stream_have_to_go_together),
	};

	return cmocka_run_group_tests(tests, setup, NULL);
}
