/* SPDX-License-Identifier: Apache-2.0 */
/* Caches in memory of a GPU, over the driver of tests/fake. */
#include "lib/test.h"
#include "unit/mem/fake.h"

#include <wimm/kv.h>
#include <wimm/region.h>

#include <stdlib.h>

enum { TOKENS = 600, LAYERS = 3 };

static struct fake_cuda_knobs *fake;

static void on_done(void *context, const struct wimm_kv_done *done)
{
	(void)done;
	__atomic_store_n((int *)context, 1, __ATOMIC_RELEASE);
}

static bool has_ended(void *arg)
{
	return __atomic_load_n((int *)arg, __ATOMIC_ACQUIRE) != 0;
}

/* Immediates of a prompt whose many small pages lie in a row. */
static uint64_t count_of(const char *provider, bool on_gpu)
{
	struct wimm_engine_opts opts = WIMM_ENGINE_OPTS_INIT;
	struct wimm_kv_cache_opts co = WIMM_KV_CACHE_OPTS_INIT;
	struct wimm_kv_receive_opts ro = WIMM_KV_RECEIVE_OPTS_INIT;
	struct wimm_kv_layout l = WIMM_KV_LAYOUT_INIT;
	struct wimm_kv_receiver *receiver = NULL;
	struct wimm_kv_cache *cache = NULL;
	struct wimm_engine *engine;
	struct wimm_mr *region;
	static uint32_t pages[TOKENS];
	uint64_t bytes, count;
	int ended = 0;
	void *mem;

	l.kind = WIMM_KV_GQA;
	l.layers = LAYERS;
	l.kv_heads = 1;
	l.head_dim = 4;
	l.elem_bytes = 2;
	l.page_tokens = 1;
	l.tp = 1;
	l.pages = TOKENS;
	assert_ok(wimm_kv_layout_pack(&l, NULL));
	assert_ok(wimm_kv_layout_extent(&l, &bytes, NULL));
	opts.provider = provider;
	opts.nics = strcmp(provider, "tcp") == 0 ? "127.0.0.1:0" : NULL;
	assert_ok(wimm_engine_open(&opts, &engine));
	mem = on_gpu ? (void *)(uintptr_t)fake->alloc(bytes, 0) : calloc(1, bytes);
	assert_ok(wimm_reg_mr(engine, mem, bytes, NULL, &region));
	co.layout = &l;
	co.region = region;
	co.imm_first = 1000;
	assert_ok(wimm_kv_cache_open(engine, &co, &cache, NULL));
	for (uint32_t i = 0; i < TOKENS; i++)
		pages[i] = i;
	ro.tokens = TOKENS;
	ro.pages = pages;
	ro.page_count = TOKENS;
	ro.fn = on_done;
	ro.context = &ended;
	assert_ok(wimm_kv_receiver_open(cache, &ro, &receiver, NULL));
	count = wimm_kv_receiver_count(receiver);
	assert_ok(wimm_kv_receiver_close(&receiver, NULL));
	assert_true(test_wait_until(has_ended, &ended, TEST_DEADLINE_MS));
	assert_ok(wimm_kv_cache_close(&cache));
	assert_ok(wimm_engine_close(&engine));
	if (on_gpu)
		fake->free((uint64_t)(uintptr_t)mem);
	else
		free(mem);
	return count;
}

static void small_pages_keep_an_immediate_each_where_a_card_writes_them(void **state)
{
	/* Goal: the choice follows what was measured: a list costs a card one launch, whatever
	 * its immediates; elsewhere pages in a row are grouped, and so is what is staged. */
	uint64_t groups = (TOKENS + 255) / 256;

	(void)state;
	assert_int_equal(count_of("host", true), LAYERS * 2 * TOKENS);
	assert_int_equal(count_of("host", false), LAYERS * 2 * groups);
	assert_int_equal(count_of("tcp", true), LAYERS * 2 * groups);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(small_pages_keep_an_immediate_each_where_a_card_writes_them),
	};

	fake = fake_cuda_start();
	if (fake == NULL)
		return 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
