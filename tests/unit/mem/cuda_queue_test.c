/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"
#include "unit/mem/fake.h"

#include "mem/cuda_queue.h"
#include "mem/kernels.h"

#include <string.h>

enum { BYTES = 256 << 10, PAGE = 4096, PAGES = 16 };

static struct fake_cuda_knobs *fake;
static char text[MEM_CUDA_TEXT_BYTES];

static struct cuda_queue *open_queue(void)
{
	struct cuda_queue *q;

	assert_ok(cuda_queue_open(0, &q, text, sizeof(text)));
	return q;
}

static void queue_copy_under_way_is_not_done_before_it_has_run(void **state)
{
	/* Goal: a ticket is done when the bytes are there, not when they were asked for. */
	struct cuda_queue *q = open_queue();
	uint64_t dev = fake->alloc(BYTES, 0);
	uint8_t *host = cuda_host_alloc(PAGE);
	uint64_t a, b;

	(void)state;
	memset(host, 9, PAGE);
	__atomic_store_n(&fake->hold, 1, __ATOMIC_RELEASE);
	assert_ok(cuda_queue_copy(q, dev, (uint64_t)(uintptr_t)host, PAGE, &a));
	assert_ok(cuda_queue_copy_device(q, dev + PAGE, dev, PAGE, &b));
	assert_true(b > a);
	assert_false(cuda_queue_done(q, a));
	__atomic_store_n(&fake->hold, 0, __ATOMIC_RELEASE);
	assert_true(fake->run() > 0);
	assert_true(cuda_queue_done(q, b));
	assert_int_equal(((uint8_t *)fake->shadow(dev))[PAGE + 100], 9);
	cuda_host_free(host);
	fake->free(dev);
	cuda_queue_close(q);
}

static void queue_warmed_up_calls_nothing_done(void **state)
{
	/* Goal: the card is asked for a kernel that does nothing, and no ticket comes of it. */
	struct cuda_queue *q = open_queue();
	uint64_t dev = fake->alloc(BYTES, 0);
	uint64_t a, launches;

	(void)state;
	memset(fake->shadow(dev), 5, BYTES);
	__atomic_store_n(&fake->hold, 1, __ATOMIC_RELEASE);
	assert_ok(cuda_queue_copy(q, dev + PAGE, dev, PAGE, &a));
	launches = fake->launches;
	cuda_queue_warm(q);
	assert_int_equal(fake->launches, launches + (kernels_image() ? 1 : 0));
	assert_false(cuda_queue_done(q, a));
	__atomic_store_n(&fake->hold, 0, __ATOMIC_RELEASE);
	(void)fake->run();
	assert_true(cuda_queue_done(q, a));
	assert_false(cuda_queue_done(q, a + 1));
	fake->free(dev);
	cuda_queue_close(q);
}

static void queue_pages_land_where_their_indices_say(void **state)
{
	/* Goal: a list of pages takes one launch where there are kernels, and each page arrives. */
	struct cuda_queue *q = open_queue();
	uint64_t dev = fake->alloc(BYTES, 0);
	uint32_t *index = cuda_host_alloc(2 * PAGES * sizeof(*index));
	uint8_t *shadow = fake->shadow(dev);
	uint64_t launches = fake->launches;
	struct cuda_pages p = { .src = dev, .dst = dev + BYTES / 2, .src_index = index,
		                .dst_index = index + PAGES, .count = PAGES, .src_stride = PAGE,
		                .dst_stride = PAGE, .page_bytes = PAGE };
	uint64_t ticket;

	(void)state;
	for (uint32_t i = 0; i < PAGES; i++) {
		index[i] = i;
		index[PAGES + i] = PAGES - 1 - i;
		memset(shadow + (size_t)i * PAGE, (int)i + 1, PAGE);
	}
	assert_ok(cuda_queue_pages(q, &p, &ticket));
	assert_true(cuda_queue_done(q, ticket));
	for (uint32_t i = 0; i < PAGES; i++)
		assert_int_equal(shadow[BYTES / 2 + (size_t)i * PAGE], PAGES - i);
	if (kernels_image() != NULL)
		assert_int_equal(fake->launches, launches + 1);
	cuda_host_free(index);
	fake->free(dev);
	cuda_queue_close(q);
}

static void queue_batch_has_one_ticket_for_all(void **state)
{
	/* Goal: between begin and end nothing is signed, and the end's ticket covers it all. */
	struct cuda_queue *q = open_queue();
	uint64_t dev = fake->alloc(BYTES, 0);
	uint64_t ticket = 0;

	(void)state;
	__atomic_store_n(&fake->hold, 1, __ATOMIC_RELEASE);
	cuda_queue_begin(q);
	for (uint64_t i = 0; i < 8; i++)
		assert_ok(cuda_queue_copy_device(q, dev + BYTES / 2 + i * 100, dev + i, 64,
		                                 &ticket));
	assert_int_equal(ticket, 0);
	assert_ok(cuda_queue_end(q, &ticket));
	assert_false(cuda_queue_done(q, ticket));
	__atomic_store_n(&fake->hold, 0, __ATOMIC_RELEASE);
	(void)fake->run();
	assert_true(cuda_queue_done(q, ticket));
	fake->free(dev);
	cuda_queue_close(q);
}

static void queue_failure_of_the_device_stays(void **state)
{
	/* Goal: after a fault nothing is taken for done that comes later, and the cause is kept. */
	struct cuda_queue *q = open_queue();
	uint64_t dev = fake->alloc(BYTES, 0);
	uint64_t ticket = 0;

	(void)state;
	fake->fail_copies = 1;
	assert_int_equal(cuda_queue_copy(q, dev, dev + PAGE, PAGE, &ticket), WIMM_E_SYSTEM);
	fake->fail_copies = 0;
	assert_int_equal(cuda_queue_copy(q, dev, dev + PAGE, PAGE, &ticket), WIMM_E_SYSTEM);
	assert_int_equal(cuda_queue_check(q), WIMM_E_SYSTEM);
	assert_non_null(strstr(cuda_queue_error(q), "CUDA_ERROR_INVALID_VALUE"));
	fake->free(dev);
	cuda_queue_close(q);
}

static int setup(void **state)
{
	(void)state;
	fake = fake_cuda_start();
	return fake != NULL ? 0 : -1;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(queue_copy_under_way_is_not_done_before_it_has_run),
		cmocka_unit_test(queue_warmed_up_calls_nothing_done),
		cmocka_unit_test(queue_pages_land_where_their_indices_say),
		cmocka_unit_test(queue_batch_has_one_ticket_for_all),
		cmocka_unit_test(queue_failure_of_the_device_stays),
	};

	return cmocka_run_group_tests(tests, setup, NULL);
}
