/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_CORE_GPU_SIDE_H
#define TESTS_UNIT_CORE_GPU_SIDE_H

/* Engines with a region in memory of the (fake) GPU, for gpu_test.c and stage_test.c. */

#include "lib/test.h"
#include "unit/mem/fake.h"

#include <wimm/imm.h>
#include <wimm/region.h>
#include <wimm/transfer.h>

#include <stdlib.h>

enum { BYTES = 5 << 20, PAGE = 4096, PAGES = 100, IMM = 7 };
enum { ON_HOST = -1 }; /* instead of vmm: memory of the host */

static struct fake_cuda_knobs *fake;

/* An engine with a region in memory of the (fake) GPU. */
struct side {
	struct wimm_engine *engine;
	struct wimm_mr *mr;
	uint64_t ptr;
	uint8_t *shadow;
	struct wimm_mr_desc desc;
};

static const char *provider = "host";
static const char *nics = "127.0.0.1:0"; /* of tcp */
static wimm_progress_mode progress; /* of the engines opened next */

static inline void side_open(struct side *s, int vmm)
{
	struct wimm_engine_opts opts = WIMM_ENGINE_OPTS_INIT;

	opts.provider = provider;
	opts.progress = progress;
	opts.nics = strcmp(provider, "tcp") == 0 ? nics : NULL;
	assert_ok(wimm_engine_open(&opts, &s->engine));
	if (vmm == ON_HOST) {
		s->shadow = aligned_alloc(4096, BYTES);
		s->ptr = (uint64_t)(uintptr_t)s->shadow;
	} else {
		s->ptr = fake->alloc(BYTES, vmm);
		s->shadow = fake->shadow(s->ptr);
	}
	memset(s->shadow, 0, BYTES);
	assert_ok(wimm_reg_mr(s->engine, (void *)(uintptr_t)s->ptr, BYTES, NULL, &s->mr));
	assert_ok(wimm_mr_get_desc(s->mr, &s->desc));
}

static inline void side_close(struct side *s)
{
	assert_ok(wimm_engine_close(&s->engine));
	if (s->ptr == (uint64_t)(uintptr_t)s->shadow)
		free(s->shadow);
	else
		fake->free(s->ptr);
}

static inline bool is_set(void *arg)
{
	return wimm_flag_load(arg) != 0;
}

static inline int64_t wait_flag(uint64_t *flag)
{
	assert_true(test_wait_until(is_set, flag, 60000));
	return wimm_flag_load(flag);
}

static inline int64_t write_one(struct side *from, struct wimm_remote_mr *to, uint64_t src,
                                uint64_t dst, uint64_t len)
{
	struct wimm_write wr = WIMM_WRITE_INIT;
	uint64_t flag = 0;
	struct wimm_on_done on_done = { .flag = &flag };
	wimm_status st;

	wr.src = from->mr;
	wr.dst = to;
	wr.src_offset_bytes = src;
	wr.dst_offset_bytes = dst;
	wr.len_bytes = len;
	wr.imm = IMM;
	wr.flags = WIMM_IMM;
	st = wimm_submit_single_write(from->engine, &wr, &on_done, NULL);
	return st == WIMM_OK ? wait_flag(&flag) : st;
}

static inline void fill(uint8_t *at, uint64_t n, unsigned seed)
{
	for (uint64_t i = 0; i < n; i++)
		at[i] = (uint8_t)(i * 31 + seed + i / 251);
}

static inline void staged_pages(struct side *a, struct side *b, struct wimm_remote_mr *to,
                                uint64_t page, uint32_t count)
{
	struct wimm_paged_writes wr = WIMM_PAGED_WRITES_INIT;
	uint32_t from[PAGES], into[PAGES];
	uint64_t total = 0;

	assert_ok(wimm_forget_imm(b->engine, IMM, &total));
	for (uint32_t i = 0; i < count; i++) {
		from[i] = count - 1 - i;
		into[i] = (i * 7 + 3) % count;
	}
	wr.src = a->mr;
	wr.dst = to;
	wr.page_len_bytes = page;
	wr.src_pages = (struct wimm_pages){ .indices = from, .count = count,
		                            .stride_bytes = page + 8 };
	wr.dst_pages = (struct wimm_pages){ .indices = into, .count = count,
		                            .stride_bytes = page, .offset_bytes = 48 };
	wr.imm = IMM;
	for (int once = 0; once < 2; once++) {
		uint64_t flag = 0;
		struct wimm_on_done on_done = { .flag = &flag };

		memset(b->shadow, 0, BYTES);
		wr.flags = WIMM_IMM | (once ? WIMM_IMM_ONCE : 0) | WIMM_CONFIRMED;
		assert_ok(wimm_submit_paged_writes(a->engine, &wr, &on_done, NULL));
		assert_int_equal(wait_flag(&flag), 1);
		for (uint32_t i = 0; i < count; i++)
			assert_memory_equal(b->shadow + 48 + into[i] * page,
			                    a->shadow + from[i] * (page + 8), page);
		assert_ok(wimm_forget_imm(b->engine, IMM, &total));
		assert_int_equal(total, once ? 1 : count);
	}
}

#endif
