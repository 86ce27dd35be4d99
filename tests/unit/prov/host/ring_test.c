/* SPDX-License-Identifier: Apache-2.0 */
#include "pair.h"

#include "plat/rand.h"

#include <string.h>

static const struct prov_ops *const ops = &prov_host_ops;

static void ring_entry_reads_back_as_written(void **state)
{
	/* Goal: every field of every kind survives, at positions that wrap. */
	static struct host_slot slot;
	static const uint32_t positions[] = { 0, 1023, 1024, UINT32_MAX };

	(void)state;
	for (uint32_t kind = HOST_ENTRY_INLINE; kind <= HOST_ENTRY_CARD; kind++) {
		for (size_t i = 0; i < 4; i++) {
			struct host_entry in = { .kind = kind,
				                 .flags = HOST_ENTRY_PART | HOST_ENTRY_LAST,
				                 .len_bytes = 13,
				                 .imm = 0xffffffff,
				                 .addr = UINT64_MAX,
				                 .key = UINT64_C(0x8000000000000001),
				                 .op_seq = UINT64_C(0x0123456789abcdef),
				                 .parts = 0x80000000,
				                 .src = UINT64_C(0xfedcba9876543210),
				                 .inlined = { 5, 6 } };
			struct host_entry out;

			memset(&slot, 0, sizeof(slot));
			host_slot_put(&slot, positions[i], &in);
			assert_int_equal(host_slot_get(&slot, positions[i], &out), HOST_SLOT_FULL);
			assert_int_equal(out.kind, kind);
			assert_int_equal(out.flags, in.flags);
			assert_int_equal(out.len_bytes, in.len_bytes);
			assert_int_equal(out.imm, in.imm);
			assert_int_equal(out.addr, in.addr);
			assert_int_equal(out.key, in.key);
			assert_int_equal(out.op_seq, in.op_seq);
			assert_int_equal(out.parts, in.parts);
			if (kind != HOST_ENTRY_INLINE)
				assert_int_equal(out.src, in.src);
			else
				assert_memory_equal(out.inlined, in.inlined, sizeof(in.inlined));
			assert_int_equal(
				host_slot_get(&slot, positions[i] + HOST_RING_ENTRIES, &out),
				HOST_SLOT_EMPTY);
		}
	}
}

static void ring_offer_is_settled_once(void **state)
{
	/* Goal: of taking and taking back the first wins, and one of another lap never matches. */
	static struct host_slot slot;
	struct host_entry e = { .kind = HOST_ENTRY_OFFER, .flags = HOST_ENTRY_LAST };

	(void)state;
	host_slot_put(&slot, 5, &e);
	assert_false(host_slot_take(&slot, 5));
	assert_true(host_slot_begin(&slot, 5));
	assert_true(host_slot_begin(&slot, 5)); /* fetched in several pieces */
	assert_false(host_slot_withdrawn(&slot, 5));
	assert_true(host_slot_take(&slot, 5));
	assert_int_equal(host_slot_withdraw(&slot, 5), HOST_SLOT_TAKEN);
	host_slot_put(&slot, 5 + HOST_RING_ENTRIES, &e);
	assert_int_equal(host_slot_withdraw(&slot, 5), HOST_SLOT_TAKEN);
	assert_false(host_slot_begin(&slot, 5));
	assert_int_equal(host_slot_withdraw(&slot, 5 + HOST_RING_ENTRIES), HOST_SLOT_FREE);
	assert_false(host_slot_begin(&slot, 5 + HOST_RING_ENTRIES));
	assert_false(host_slot_take(&slot, 5 + HOST_RING_ENTRIES));
}

static void ring_offer_withdrawn_while_it_is_fetched_is_said_to_be_read(void **state)
{
	/* Goal: the sender learns that its source is not its own yet, and nothing is counted. */
	static struct host_slot slot;
	struct host_entry e = { .kind = HOST_ENTRY_OFFER, .flags = HOST_ENTRY_LAST };

	(void)state;
	host_slot_put(&slot, 9, &e);
	assert_true(host_slot_begin(&slot, 9));
	assert_int_equal(host_slot_withdraw(&slot, 9), HOST_SLOT_READING);
	assert_true(host_slot_withdrawn(&slot, 9));
	assert_false(host_slot_begin(&slot, 9));
	assert_false(host_slot_take(&slot, 9));
}

static void broken_by(uint64_t word0, uint64_t word1)
{
	static struct host_slot slot;
	struct host_entry out;

	atomic_store(&slot.word[0], word0);
	atomic_store(&slot.word[1], word1);
	assert_int_equal(host_slot_get(&slot, 7, &out), HOST_SLOT_BROKEN);
}

static void ring_impossible_entries_are_broken(void **state)
{
	/* Goal: each rule of an entry, broken alone, is seen. */
	const uint64_t seq = 8;

	(void)state;
	broken_by(seq + 1, 0);                                     /* from the future */
	broken_by(seq - 1, 0);                                     /* of a neighbour */
	broken_by(seq, 0);                                         /* no kind */
	broken_by(seq | UINT64_C(6) << 32, 0);                     /* unknown kind */
	broken_by(seq | UINT64_C(1) << 32, HOST_INLINE_BYTES + 1); /* too long */
	broken_by(seq | UINT64_C(2) << 32, HOST_PIECE_BYTES + 1);  /* too long */
	broken_by(seq | UINT64_C(3) << 32, HOST_OFFER_BYTES + 1);  /* too long */
	broken_by(seq | UINT64_C(5) << 32, HOST_PIECE_BYTES + 1);  /* too long */
	broken_by(seq | UINT64_C(1) << 32 | UINT64_C(8) << 40, 0); /* unknown flag */
	broken_by(seq | UINT64_C(1) << 32 | UINT64_C(1) << 40, 0); /* IMM before the end */
	broken_by(seq | UINT64_C(1) << 32 | UINT64_C(7) << 40, 0); /* IMM and PART */
	broken_by(seq | UINT64_C(1) << 32 | UINT64_C(6) << 40, 0); /* PART of 0 */
}

/* A peer that writes whatever it likes into the lane it owns. */
static void garbage(uint64_t seed)
{
	struct pair p;
	struct rng r;
	struct host_path *evil;
	static uint8_t before[PAIR_MEM_BYTES];

	pair_open(&p, "auto");
	memcpy(before, p.b.mem, PAIR_MEM_BYTES);
	ops->dereg(p.b.dev, p.b.key); /* so that even well-formed garbage may land nowhere */
	evil = (struct host_path *)p.a.path;
	rng_init(&r, seed);
	while (!p.b.down) {
		struct host_slot *slot =
			host_slot_at(evil->tx.lane, (uint32_t)rng_below(&r, HOST_RING_ENTRIES));
		uint32_t word = (uint32_t)rng_below(&r, 8);
		uint64_t value = rng_u64(&r);

		if (rng_below(&r, 4) == 0) { /* plausible at first sight */
			word = 0;
			slot = host_slot_at(evil->tx.lane, 0);
			value = 1 | rng_below(&r, 8) << 32 | rng_below(&r, 16) << 40;
		}
		atomic_store(&slot->word[word], value);
		if (rng_below(&r, 8) == 0)
			atomic_store(&evil->rx.lane->acked, rng_u64(&r));
		(void)side_poll(&p.b);
	}
	assert_memory_equal(before, p.b.mem, PAIR_MEM_BYTES);
	/* Its device goes on. */
	ops->path_close(p.b.path);
	assert_true(pair_until(&p, pair_b_closed));
	pair_close(&p);
}

static void ring_garbage_costs_its_writer_the_path(void **state)
{
	/* Goal: whatever a hostile peer writes into the shared area, no byte lands,
	 * nothing crashes, and the path ends. */
	uint64_t seed = test_seed(99);

	(void)state;
	for (uint32_t i = 0; i < 50 * test_scale(); i++)
		garbage(seed + i);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ring_entry_reads_back_as_written),
		cmocka_unit_test(ring_offer_is_settled_once),
		cmocka_unit_test(ring_offer_withdrawn_while_it_is_fetched_is_said_to_be_read),
		cmocka_unit_test(ring_impossible_entries_are_broken),
		cmocka_unit_test(ring_garbage_costs_its_writer_the_path),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
