/* SPDX-License-Identifier: Apache-2.0 */
#include "vm/pair.h"

#include "base/config.h"

#include <infiniband/verbs.h>
#include <string.h>

static void path_tx_chains_signal_only_their_last_request(void **state)
{
	/* Goal: ten writes are three doorbells and three completions, and ten ends. */
	struct fake_knobs *fake = pair_fake();
	struct prov_wr wr[10];
	struct pair p;

	(void)state;
	pair_open(&p);
	for (uint32_t i = 0; i < 10; i++) {
		wr[i] = pair_wr(&p, i, i * 4096ull, 4096);
		wr[i].flags = PROV_WR_IMM;
	}
	fake->posts = fake->wqes = fake->signalled = 0;
	assert_int_equal(p.ops->post(p.a.path, wr, 10), 10);
	assert_int_equal(fake->posts, 3);
	assert_int_equal(fake->wqes, 10);
	assert_int_equal(fake->signalled, 3);
	pair_drain(&p, 10, 10);
	for (uint32_t i = 0; i < 10; i++)
		assert_int_equal(p.a.units[i], 1);
	pair_close(&p);
}

static void path_tx_error_in_mid_chain_splits_it_exactly(void **state)
{
	/* Goal: what came before the failed request is done though unsignalled, the rest is lost,
	 * and known not to have arrived where the remote NIC refused it. */
	static const struct {
		int status;
		bool sent;
	} cases[] = { { IBV_WC_REM_ACCESS_ERR, false }, { IBV_WC_RETRY_EXC_ERR, true } };

	(void)state;
	for (uint32_t c = 0; c < 2; c++) {
		struct fake_knobs *fake = pair_fake();
		struct prov_wr wr[8];
		struct pair p;

		pair_open(&p);
		for (uint32_t i = 0; i < 8; i++) {
			wr[i] = pair_wr(&p, i, i * 4096ull, 4096);
			wr[i].flags = PROV_WR_IMM;
		}
		fake->fail_after = 6; /* the second of the second chain */
		fake->fail_status = cases[c].status;
		assert_int_equal(p.ops->post(p.a.path, wr, 8), 8);
		pair_await(&p, &p.a.down);
		assert_int_equal(p.a.down_status, WIMM_E_PATH_LOST);
		p.ops->path_close(p.a.path);
		pair_await(&p, &p.a.closed);
		assert_int_equal(p.a.done_ok, 5);
		assert_int_equal(p.a.done_lost, 3);
		assert_int_equal(p.a.done_lost_sent, cases[c].sent ? 3 : 0);
		assert_int_equal(p.b.imms, 5);
		for (uint32_t i = 0; i < 8; i++)
			assert_int_equal(p.a.units[i], 1);
		pair_close(&p);
	}
}

static bool parts_done(const struct pair *p)
{
	return p->a.done_ok >= 5 && p->b.parts >= 2;
}

static void path_tx_cut_chain_is_mended(void **state)
{
	/* Goal: a device that is full in the middle of a chain, or of a part, loses and doubles
	 * nothing, whichever request it stops at. */
	(void)state;
	for (uint32_t room = 0; room <= 7; room++) {
		struct fake_knobs *fake = pair_fake();
		struct prov_wr wr[5];
		struct pair p;
		uint32_t taken;

		pair_open(&p);
		for (uint32_t i = 0; i < 5; i++) {
			wr[i] = pair_wr(&p, i, i * 4096ull, 4096);
			if (i != 1 && i != 3)
				continue;
			wr[i].flags = PROV_WR_PART;
			wr[i].parts = 2;
			wr[i].op_seq = 100 + i;
		}
		fake->room = room;
		taken = p.ops->post(p.a.path, wr, 5);
		assert_true(taken <= room);
		fake->room = UINT32_MAX;
		pair_post_all(&p, wr + taken, 5 - taken);
		assert_true(pair_until(&p, parts_done));
		assert_int_equal(p.a.done_ok, 5);
		assert_int_equal(p.b.parts, 2);
		assert_int_equal(p.b.last_part.op_seq, 103);
		for (uint32_t i = 0; i < 5; i++)
			assert_int_equal(p.a.units[i], 1);
		assert_memory_equal(p.a.mem, p.b.mem, 5 * 4096);
		assert_false(p.a.down);
		pair_close(&p);
	}
}

static void path_tx_without_inline_sends_markers_from_memory(void **state)
{
	/* Goal: a device that takes nothing inline still carries parts and short writes. */
	struct fake_knobs *fake = pair_fake();
	struct prov_wr wr[5];
	struct pair p;

	(void)state;
	fake->max_inline = 0;
	pair_open(&p);
	for (uint32_t i = 0; i < 5; i++) {
		wr[i] = pair_wr(&p, i, i * 64ull, 8);
		wr[i].flags = i % 2 ? PROV_WR_PART : 0;
		wr[i].parts = 2;
		wr[i].op_seq = 100 + i;
	}
	pair_post_all(&p, wr, 5);
	assert_true(pair_until(&p, parts_done));
	assert_int_equal(p.b.last_part.op_seq, 103);
	pair_close(&p);
}

static void path_tx_full_queue_takes_fewer_and_loses_none(void **state)
{
	/* Goal: nothing runs, the queue fills up to its depth; then all of it arrives. */
	enum { COUNT = 1000 };
	static struct prov_wr wr[COUNT];
	struct fake_knobs *fake = pair_fake();
	struct pair p;
	uint32_t taken;

	(void)state;
	pair_open(&p);
	for (uint32_t i = 0; i < COUNT; i++) {
		wr[i] = pair_wr(&p, i, i * 8ull, 8);
		wr[i].flags = PROV_WR_IMM;
	}
	fake->hold = true;
	taken = p.ops->post(p.a.path, wr, COUNT);
	assert_int_equal(taken, p.a.caps.post_depth);
	assert_int_equal(p.ops->post(p.a.path, wr + taken, COUNT - taken), 0);
	fake->hold = false;
	pair_post_all(&p, wr + taken, COUNT - taken);
	pair_drain(&p, COUNT, COUNT);
	pair_close(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(path_tx_chains_signal_only_their_last_request),
		cmocka_unit_test(path_tx_error_in_mid_chain_splits_it_exactly),
		cmocka_unit_test(path_tx_cut_chain_is_mended),
		cmocka_unit_test(path_tx_without_inline_sends_markers_from_memory),
		cmocka_unit_test(path_tx_full_queue_takes_fewer_and_loses_none),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
