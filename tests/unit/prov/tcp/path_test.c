/* SPDX-License-Identifier: Apache-2.0 */
#include "pair.h"

#include "plat/rand.h"

#include <stdlib.h>
#include <string.h>

static void path_writes_of_every_length_land_exactly(void **state)
{
	/* Goal: all lengths around the boundaries arrive whole and nothing beside them changes. */
	static const uint64_t around[] = { 0,     64,     256,     1024,    4096,
		                           65536, 131072, 1 << 20, 2 << 20, 3u << 20 };
	struct pair p;
	uint8_t *want = malloc(PAIR_MEM_BYTES);
	uint64_t sent = 0;

	(void)state;
	pair_open(&p, "127.0.0.1:0");
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
			assert_int_equal(p.ops->post(p.a.path, &wr, 1), 1);
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

static void path_scattered_pages_land_where_they_belong(void **state)
{
	/* Goal: many pages of random size, in both directions of the address space, each once. */
	enum { PAGES = 3000, SLOT = 2048 };
	struct pair p;
	struct rng r;
	struct prov_wr *wr = calloc(PAGES, sizeof(*wr));
	uint32_t order[PAGES];
	uint8_t *want = malloc(PAIR_MEM_BYTES);

	(void)state;
	pair_open(&p, "127.0.0.1:0");
	memcpy(want, p.b.mem, PAIR_MEM_BYTES);
	rng_init(&r, test_seed(5));
	for (uint32_t i = 0; i < PAGES; i++)
		order[i] = i;
	rng_shuffle_u32(&r, order, PAGES);
	for (uint32_t i = 0; i < PAGES; i++) {
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
	assert_true(p.b.imm_events < PAGES / 2); /* equal neighbours come together */
	pair_close(&p);
	free(want);
	free(wr);
}

static void path_closed_by_the_peer_goes_down(void **state)
{
	/* Goal: the side that stays learns it, and its path closes with nothing outstanding. */
	struct pair p;

	(void)state;
	pair_open(&p, "127.0.0.1:0");
	p.ops->path_close(p.b.path);
	pair_await(&p, &p.a.down);
	assert_true(p.b.closed);
	assert_int_equal(p.a.down_status, WIMM_E_PATH_LOST);
	assert_true(strlen(p.a.down_text) > 0);
	p.ops->path_close(p.a.path);
	side_await(&p.a, &p.a.closed);
	pair_join(&p); /* and another one may follow */
	pair_close(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(path_writes_of_every_length_land_exactly),
		cmocka_unit_test(path_scattered_pages_land_where_they_belong),
		cmocka_unit_test(path_closed_by_the_peer_goes_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
