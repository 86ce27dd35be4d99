/* SPDX-License-Identifier: Apache-2.0 */
#include "pair.h"

#include "mem/memfd.h"
#include "plat/rand.h"

#include <stdlib.h>
#include <string.h>

static const struct prov_ops *const ops = &prov_host_ops;
static const char *const ways[] = { "ring", "pull", "auto", "own", "push" };

enum { WAYS = sizeof(ways) / sizeof(ways[0]) };

static void lengths(const char *way)
{
	static const uint64_t around[] = { 0,     16,     64,      1024,    4096,
		                           65536, 131072, 1 << 20, 2 << 20, 3u << 20 };
	struct pair p;
	uint8_t *want = malloc(PAIR_MEM_BYTES);
	uint64_t sent = 0;

	pair_open(&p, way);
	memcpy(want, p.b.mem, PAIR_MEM_BYTES);
	for (size_t i = 0; i < sizeof(around) / sizeof(around[0]); i++) {
		for (int d = -2; d <= 2; d++) {
			uint64_t len = around[i] + (uint64_t)d;
			uint64_t dst = 4099 + i * 7;
			struct prov_wr wr = pair_wr(&p, 1, 17 + i, dst, len);

			if ((int64_t)len < 0)
				continue;
			wr.flags = PROV_WR_IMM;
			wr.imm = (uint32_t)len;
			assert_int_equal(ops->post(p.a.path, &wr, 1), 1);
			sent++;
			pair_drain(&p, sent, sent);
			assert_int_equal(p.b.last_imm, (uint32_t)len);
			memcpy(want + dst, p.a.mem + 17 + i, len);
			assert_memory_equal(want, p.b.mem, PAIR_MEM_BYTES);
		}
	}
	pair_close(&p);
	free(want);
}

static void path_writes_of_every_length_land_exactly(void **state)
{
	/* Goal: all lengths around the boundaries arrive whole and nothing beside them changes. */
	(void)state;
	for (int i = 0; i < WAYS; i++)
		lengths(ways[i]);
}

static void pages(const char *way, uint32_t events_a_poll)
{
	enum { PAGES = 3000, SLOT = 2048 };
	struct pair p;
	struct rng r;
	struct prov_wr *wr = calloc(PAGES, sizeof(*wr));
	uint32_t order[PAGES];
	uint8_t *want = malloc(PAIR_MEM_BYTES);

	pair_open(&p, way);
	p.a.max = p.b.max = events_a_poll;
	memcpy(want, p.b.mem, PAIR_MEM_BYTES);
	rng_init(&r, test_seed(5));
	for (uint32_t i = 0; i < PAGES; i++)
		order[i] = i;
	rng_shuffle_u32(&r, order, PAGES);
	for (uint32_t i = 0; i < PAGES; i++) {
		/* Some longer than the least that is pulled, over what follows them in order. */
		uint64_t len = rng_below(&r, SLOT + 1);
		uint64_t dst = (uint64_t)order[i] * SLOT;

		wr[i] = pair_wr(&p, i % 5, (uint64_t)i * SLOT, dst, len);
		wr[i].flags = PROV_WR_IMM;
		wr[i].imm = 0xffffffffu;
		memcpy(want + dst, p.a.mem + (uint64_t)i * SLOT, len);
	}
	pair_post_all(&p, wr, PAGES);
	pair_drain(&p, PAGES, PAGES);
	assert_memory_equal(want, p.b.mem, PAIR_MEM_BYTES);
	if (events_a_poll > 1)
		assert_true(p.b.imm_events < PAGES / 2); /* equal neighbours come together */
	pair_close(&p);
	free(want);
	free(wr);
}

static void path_scattered_pages_land_where_they_belong(void **state)
{
	/* Goal: many pages of random size, more than the ring holds, each once. */
	(void)state;
	for (int i = 0; i < WAYS; i++) {
		pages(ways[i], 64);
		pages(ways[i], 1);
	}
}

static void long_pages(const char *way)
{
	/* Long and short ones mixed, overlapping none, so that all ways are in one batch. */
	enum { PAGES = 256, SLOT = 32768 };
	struct pair p;
	struct rng r;
	struct prov_wr *wr = calloc(PAGES, sizeof(*wr));
	uint8_t *want = malloc(PAIR_MEM_BYTES);

	pair_open(&p, way);
	memcpy(want, p.b.mem, PAIR_MEM_BYTES);
	rng_init(&r, test_seed(6));
	for (uint32_t i = 0; i < PAGES; i++) {
		uint64_t len = rng_below(&r, SLOT + 1) >> rng_below(&r, 12);
		uint64_t dst = (uint64_t)(PAGES - 1 - i) * SLOT;

		wr[i] = pair_wr(&p, i, (uint64_t)i * SLOT, dst, len);
		wr[i].flags = PROV_WR_IMM;
		wr[i].imm = i;
		memcpy(want + dst, p.a.mem + (uint64_t)i * SLOT, len);
	}
	pair_post_all(&p, wr, PAGES);
	pair_drain(&p, PAGES, PAGES);
	assert_memory_equal(want, p.b.mem, PAIR_MEM_BYTES);
	for (uint32_t i = 0; i < PAGES; i++)
		assert_int_equal(p.a.units[i], 1);
	assert_int_equal(p.b.last_imm, PAGES - 1); /* in the order posted */
	pair_close(&p);
	free(want);
	free(wr);
}

static void path_long_and_short_pages_mix(void **state)
{
	/* Goal: writes that travel by different ways land and are counted in the order posted. */
	(void)state;
	for (int i = 0; i < WAYS; i++)
		long_pages(ways[i]);
}

static void path_parts_carry_their_operation(void **state)
{
	/* Goal: a part is told with its operation and the number of parts, not as an immediate. */
	struct pair p;
	struct prov_wr wr;

	(void)state;
	pair_open(&p, "auto");
	wr = pair_wr(&p, 9, 0, 0, 100000);
	wr.flags = PROV_WR_PART;
	wr.op_seq = UINT64_C(0xfedcba9876543210);
	wr.parts = 3;
	wr.imm = 77;
	assert_int_equal(ops->post(p.a.path, &wr, 1), 1);
	pair_drain(&p, 1, 0);
	assert_int_equal(p.b.parts, 1);
	assert_int_equal(p.b.last_part.op_seq, UINT64_C(0xfedcba9876543210));
	assert_int_equal(p.b.last_part.parts, 3);
	assert_int_equal(p.b.last_part.imm, 77);
	pair_close(&p);
}

static void path_closed_by_the_peer_goes_down(void **state)
{
	/* Goal: the side that stays learns it, and its path closes with nothing outstanding. */
	struct pair p;

	(void)state;
	pair_open(&p, "auto");
	ops->path_close(p.b.path);
	assert_true(pair_until(&p, pair_a_down));
	assert_true(p.b.closed);
	assert_int_equal(p.a.down_status, WIMM_E_PATH_LOST);
	assert_true(strlen(p.a.down_text) > 0);
	ops->path_close(p.a.path);
	assert_true(pair_until(&p, pair_a_closed));
	pair_join(&p); /* and another one may follow */
	pair_close(&p);
}

static void what_was_sent_before_the_end_lands(const char *way, bool source_stays)
{
	struct pair p;
	struct prov_wr wr;

	pair_open(&p, way);
	for (uint32_t i = 0; i < 100; i++) {
		wr = pair_wr(&p, i, i * 32, i * 64, source_stays ? 32 : 8);
		wr.flags = PROV_WR_IMM;
		wr.imm = 1;
		assert_int_equal(ops->post(p.a.path, &wr, 1), 1);
	}
	ops->path_close(p.a.path);
	assert_true(pair_until(&p, pair_b_down));
	assert_true(pair_until(&p, pair_a_closed));
	assert_int_equal(p.b.imms, 100);
	assert_memory_equal(p.b.mem + 99 * 64, p.a.mem + 99 * 32, 8);
	assert_int_equal(p.a.done_ok + p.a.done_lost, 100);
	assert_int_equal(p.a.done_lost, p.a.done_lost_sent);
	pair_close(&p);
}

static void path_what_was_sent_before_the_end_is_counted(void **state)
{
	/* Goal: bytes in the ring when the sender goes are counted before the path ends. */
	(void)state;
	what_was_sent_before_the_end_lands("ring", true);
	what_was_sent_before_the_end_lands("auto", false);
}

static void path_offers_taken_back_by_a_close_count_nothing(void **state)
{
	/* Goal: after path_close() the source is free, and what was not fetched is not counted. */
	struct pair p;
	struct prov_wr wr;

	(void)state;
	pair_open(&p, "pull");
	wr = pair_wr(&p, 1, 0, 0, 65536);
	wr.flags = PROV_WR_IMM;
	for (int i = 0; i < 10; i++)
		assert_int_equal(ops->post(p.a.path, &wr, 1), 1);
	ops->path_close(p.a.path);
	assert_true(pair_until(&p, pair_b_down));
	assert_true(pair_until(&p, pair_a_closed));
	assert_int_equal(p.b.imms, 0);
	assert_int_equal(p.a.done_lost, 10);
	assert_int_equal(p.a.done_lost_sent, 0);
	pair_close(&p);
}

static void path_offers_that_the_peer_passes_over_end_as_lost(void **state)
{
	/* Goal: offers taken back are acknowledged by a peer that goes on through the ring before
	 * this side has told of their end; they were not placed, so they are not done. */
	struct pair p;
	struct prov_wr wr;

	(void)state;
	pair_open(&p, "pull");
	wr = pair_wr(&p, 1, 0, 0, 65536);
	wr.flags = PROV_WR_IMM;
	for (int i = 0; i < 10; i++)
		assert_int_equal(ops->post(p.a.path, &wr, 1), 1);
	side_turns(&p.a, 1); /* they are in the ring */
	ops->path_close(p.a.path);
	side_turns(&p.b, 3);
	assert_true(pair_until(&p, pair_b_down));
	assert_true(pair_until(&p, pair_a_closed));
	assert_int_equal(p.b.imms, 0);
	assert_int_equal(p.a.done_ok, 0);
	assert_int_equal(p.a.done_lost, 10);
	assert_int_equal(p.a.done_lost_sent, 0);
	pair_close(&p);
}

static void path_cancelled_offer_is_never_counted(void **state)
{
	/* Goal: a cancel before the fetch wins: told at once, and not counted though it was in the
	 * ring; its neighbours are. */
	struct pair p;
	struct prov_wr wr;

	(void)state;
	pair_open(&p, "pull");
	for (uint32_t i = 0; i < 3; i++) {
		wr = pair_wr(&p, i, 0, i * 65536, 65536);
		wr.flags = PROV_WR_IMM;
		wr.imm = i + 10;
		assert_int_equal(ops->post(p.a.path, &wr, 1), 1);
	}
	ops->cancel(p.a.path, 1);
	side_turns(&p.a, 3);
	assert_int_equal(p.a.done_cancelled, 1);
	assert_int_equal(p.a.done_cancelled_sent, 0);
	pair_drain(&p, 2, 2);
	assert_int_equal(p.b.last_imm, 12);
	assert_int_equal(p.a.units[1], 1);
	pair_close(&p);
}

static void path_cancelled_write_in_the_ring_frees_its_source(void **state)
{
	/* Goal: what is in the ring is counted, what is not is dropped, each told once at once. */
	enum { WRITES = 40 };
	struct pair p;
	struct prov_wr wr;

	(void)state;
	pair_open(&p, "ring");
	for (uint32_t i = 0; i < WRITES; i++) { /* more than the bytes' ring holds */
		wr = pair_wr(&p, 7, 0, 0, 65536);
		wr.flags = PROV_WR_IMM;
		assert_int_equal(ops->post(p.a.path, &wr, 1), 1);
	}
	ops->cancel(p.a.path, 7);
	side_turns(&p.a, 3);
	assert_int_equal(p.a.done_cancelled, WRITES);
	assert_in_range(p.a.done_cancelled_sent, 1, WRITES - 1);
	pair_drain(&p, 0, p.a.done_cancelled_sent);
	wr.token = 8;
	assert_int_equal(ops->post(p.a.path, &wr, 1), 1); /* and the path goes on */
	pair_drain(&p, 1, p.a.done_cancelled_sent + 1);
	pair_close(&p);
}

static bool a_has_answer(const struct pair *p)
{
	const struct host_path *path = (const struct host_path *)p->a.path;

	const struct host_map *map = hash_find_ptr(&path->maps.by_key, p->b.key);

	return map && map->kind != HOST_GIVE_NOTHING;
}

/* One write, so that a asks for b's memory, and wait for the answer if there is going to be one. */
static void warm_up(struct pair *p)
{
	struct prov_wr wr = pair_wr(p, 1, 0, 0, 16384);

	wr.flags = PROV_WR_IMM;
	assert_int_equal(ops->post(p->a.path, &wr, 1), 1);
	pair_drain(p, 1, 1);
	if (p->b.own || ((struct host_dev *)p->b.dev)->way == HOST_WAY_PUSH)
		assert_true(pair_until(p, a_has_answer));
}

static void bad_write(const char *way, uint64_t key_change, uint64_t dst, uint64_t len,
                      wimm_status want)
{
	struct pair p;
	struct prov_wr wr;
	uint8_t *before = malloc(PAIR_MEM_BYTES);

	pair_open(&p, way);
	warm_up(&p);
	memcpy(before, p.b.mem, PAIR_MEM_BYTES);
	wr = pair_wr(&p, 1, 0, dst, len);
	wr.remote_key ^= key_change;
	wr.flags = PROV_WR_IMM;
	assert_int_equal(ops->post(p.a.path, &wr, 1), 1);
	assert_true(pair_until(&p, pair_a_down));
	assert_true(pair_until(&p, pair_b_down));
	assert_int_equal(p.b.down_status, want);
	assert_int_equal(p.a.down_status, want);
	assert_non_null(strstr(p.a.down_text, "refused by the peer"));
	assert_int_equal(p.b.imms, 1);
	assert_memory_equal(before, p.b.mem, PAIR_MEM_BYTES);
	ops->path_close(p.a.path);
	assert_true(pair_until(&p, pair_a_closed));
	assert_int_equal(p.a.done_lost, 1);
	pair_close(&p);
	free(before);
}

static void path_wrong_key_or_range_costs_the_path_only(void **state)
{
	/* Goal: nothing lands, nothing is counted, both sides know why. */
	(void)state;
	for (int i = 0; i < WAYS; i++) {
		bad_write(ways[i], UINT64_C(1) << 40, 0, 8, WIMM_E_REVOKED);
		bad_write(ways[i], UINT64_C(1) << 40, 0, 65536, WIMM_E_REVOKED);
		bad_write(ways[i], 7, 0, 8, WIMM_E_REVOKED);
		bad_write(ways[i], 0, PAIR_MEM_BYTES - 7, 8, WIMM_E_RANGE);
		bad_write(ways[i], 0, PAIR_MEM_BYTES - 7, 1000, WIMM_E_RANGE);
		bad_write(ways[i], 0, PAIR_MEM_BYTES - 7, 65536, WIMM_E_RANGE);
	}
}

static void deregistered(const char *way)
{
	struct pair p;
	struct prov_wr wr;
	uint8_t before[65536];

	pair_open(&p, way);
	warm_up(&p);
	memcpy(before, p.b.mem, sizeof(before));
	ops->dereg(p.b.dev, p.b.key);
	wr = pair_wr(&p, 1, 99, 0, sizeof(before));
	assert_int_equal(ops->post(p.a.path, &wr, 1), 1);
	assert_true(pair_until(&p, pair_b_down));
	assert_int_equal(p.b.down_status, WIMM_E_REVOKED);
	assert_memory_equal(before, p.b.mem, sizeof(before));
	pair_close(&p);
}

static void path_deregistered_region_takes_no_more(void **state)
{
	/* Goal: a write behind dereg changes nothing, also of a sender that has it mapped. */
	(void)state;
	for (int i = 0; i < WAYS; i++)
		deregistered(ways[i]);
}

static void path_own_memory_is_written_by_the_sender(void **state)
{
	/* Goal: after the first answer the receiver's worker has nothing to copy: the bytes are
	 * there before it looks; and nothing of it is kept when the region goes and comes back. */
	struct pair p;
	struct prov_wr wr;
	struct prov_error error;

	(void)state;
	pair_open(&p, "own");
	warm_up(&p);
	wr = pair_wr(&p, 1, 5, 100000, 1 << 20);
	assert_int_equal(ops->post(p.a.path, &wr, 1), 1);
	assert_memory_equal(p.b.mem + 100000, p.a.mem + 5, 1 << 20);
	pair_drain(&p, 2, 1);
	ops->dereg(p.b.dev, p.b.key);
	assert_ok(ops->reg(p.b.dev, p.b.mem + 4096, 65536, PROV_REG_REMOTE,
	                   p.b.key + (UINT64_C(1) << 32), &p.b.key, &error));
	for (uint64_t i = 0; i < 5; i++) {
		wr = pair_wr(&p, 1, 7 + i, 4096 + i, 65536 - i);
		assert_int_equal(ops->post(p.a.path, &wr, 1), 1);
		pair_drain(&p, 3 + i, 1);
		assert_memory_equal(p.b.mem + 4096 + i, p.a.mem + 7 + i, 65536 - i);
	}
	pair_close(&p);
}

static void path_both_sides_write_at_once(void **state)
{
	/* Goal: the two lanes do not disturb each other. */
	struct pair p;
	struct prov_wr wr;
	uint64_t back_done = 0;

	(void)state;
	pair_open(&p, "auto");
	for (uint32_t i = 0; i < 500; i++) {
		wr = pair_wr(&p, 1, i * 8, 4 << 20, i * 50);
		wr.flags = PROV_WR_IMM;
		assert_int_equal(ops->post(p.a.path, &wr, 1), 1);
		wr = (struct prov_wr){ .token = 2,
			               .src = p.b.mem + i,
			               .len_bytes = i * 40,
			               .remote_addr = (uint64_t)(uintptr_t)p.a.mem + (6 << 20),
			               .remote_key = p.a.key,
			               .flags = PROV_WR_IMM };
		while (ops->post(p.b.path, &wr, 1) == 0)
			side_turns(&p.a, 1);
		back_done++;
		if (i % 7 == 0)
			side_turns(&p.b, 1);
		if (i % 5 == 0)
			side_turns(&p.a, 1);
	}
	pair_drain(&p, 500, 500);
	while (p.b.done_ok < back_done || p.a.imms < back_done) {
		side_turns(&p.b, 1);
		side_turns(&p.a, 1);
	}
	assert_memory_equal(p.a.mem + (6 << 20), p.b.mem + 499, 499 * 40);
	pair_close(&p);
}

static void path_name_of_nobody_fails_with_its_name(void **state)
{
	/* Goal: a path to an address where nobody listens goes down and says which. */
	struct pair p;
	struct prov_offer a;
	struct prov_offer b;
	struct prov_addr nobody;

	(void)state;
	pair_open_devs(&p, "auto");
	assert_ok(ops->addr_parse("nobody-at-all", &nobody));
	p.b.path = ops->path_open(p.b.dev, &p.a.addr, false, &p.b, &b, &(struct prov_error){ 0 });
	p.a.path = ops->path_open(p.a.dev, &nobody, true, &p.a, &a, &(struct prov_error){ 0 });
	ops->path_connect(p.a.path, &b);
	assert_true(pair_until(&p, pair_a_down));
	assert_int_equal(p.a.down_status, WIMM_E_PEER_LOST);
	assert_non_null(strstr(p.a.down_text, "nobody-at-all"));
	pair_close(&p);
}

/* Who has its turns when a dialler makes the shared area: between its hello and what follows. */
static struct side *in_between;

wimm_status __real_memfd_make(const char *name, size_t len_bytes, int *out_fd, int *out_errno);
wimm_status __wrap_memfd_make(const char *name, size_t len_bytes, int *out_fd, int *out_errno);

wimm_status __wrap_memfd_make(const char *name, size_t len_bytes, int *out_fd, int *out_errno)
{
	for (int i = 0; in_between && i < 8; i++) {
		(void)ops->arm(in_between->dev); /* so that it looks at its sockets */
		(void)side_poll(in_between);
	}
	return __real_memfd_make(name, len_bytes, out_fd, out_errno);
}

static void path_refused_before_its_dialler_goes_on_says_why(void **state)
{
	/* Goal: a dialler that finds its connection closed when it writes reads the refusal. */
	struct pair p;
	struct prov_offer a;
	struct prov_offer b;

	(void)state;
	pair_open_devs(&p, "auto");
	p.b.path = ops->path_open(p.b.dev, &p.a.addr, false, &p.b, &b, &(struct prov_error){ 0 });
	ops->path_close(p.b.path);
	assert_true(pair_until(&p, pair_b_closed));
	p.a.path = ops->path_open(p.a.dev, &p.b.addr, true, &p.a, &a, &(struct prov_error){ 0 });
	ops->path_connect(p.a.path, &b);
	in_between = &p.b;
	assert_true(pair_until(&p, pair_a_down));
	in_between = NULL;
	assert_int_equal(p.a.down_status, WIMM_E_PEER_REFUSED);
	assert_non_null(strstr(p.a.down_text, "no such path"));
	pair_close(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(path_writes_of_every_length_land_exactly),
		cmocka_unit_test(path_scattered_pages_land_where_they_belong),
		cmocka_unit_test(path_long_and_short_pages_mix),
		cmocka_unit_test(path_parts_carry_their_operation),
		cmocka_unit_test(path_closed_by_the_peer_goes_down),
		cmocka_unit_test(path_what_was_sent_before_the_end_is_counted),
		cmocka_unit_test(path_offers_taken_back_by_a_close_count_nothing),
		cmocka_unit_test(path_offers_that_the_peer_passes_over_end_as_lost),
		cmocka_unit_test(path_cancelled_offer_is_never_counted),
		cmocka_unit_test(path_cancelled_write_in_the_ring_frees_its_source),
		cmocka_unit_test(path_wrong_key_or_range_costs_the_path_only),
		cmocka_unit_test(path_deregistered_region_takes_no_more),
		cmocka_unit_test(path_own_memory_is_written_by_the_sender),
		cmocka_unit_test(path_both_sides_write_at_once),
		cmocka_unit_test(path_name_of_nobody_fails_with_its_name),
		cmocka_unit_test(path_refused_before_its_dialler_goes_on_says_why),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
