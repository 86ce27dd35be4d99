/* SPDX-License-Identifier: Apache-2.0 */
#include "pair.h"

#include "mem/memfd.h"
#include "mem/shared.h"
#include "plat/thread.h"

#include <string.h>

static const struct prov_ops *const ops = &prov_host_ops;

static struct host_path *a_path(const struct pair *p)
{
	return (struct host_path *)p->a.path;
}

static struct host_map *a_map(const struct pair *p)
{
	struct host_map *map = hash_find_ptr(&a_path(p)->maps.by_key, p->b.key);

	return map && map->kind == HOST_GIVE_MEMFD ? map : NULL;
}

static bool a_has_map(const struct pair *p)
{
	return a_map(p) != NULL;
}

/* One write, so that a asks for b's memory, until a has it mapped. */
static void map_it(struct pair *p)
{
	struct prov_wr wr = pair_wr(p, 1, 0, 0, 16384);

	assert_int_equal(ops->post(p->a.path, &wr, 1), 1);
	assert_true(pair_until(p, a_has_map));
	pair_drain(p, p->a.done_ok > 0 ? p->a.done_ok : 1, p->b.imms);
}

/* A writer of its own mind: it has the memory mapped, and never stops. */
struct rogue {
	struct plat_thread thread;
	uint8_t *at;
	_Atomic uint64_t rounds;
	_Atomic bool stop;
};

static void rogue_main(void *arg)
{
	struct rogue *r = arg;
	uint8_t value = 0;

	while (!atomic_load(&r->stop)) {
		memset(r->at, ++value, 65536);
		atomic_fetch_add(&r->rounds, 1);
	}
}

static void wait_rounds(struct rogue *r, uint64_t more)
{
	uint64_t goal = atomic_load(&r->rounds) + more;

	while (atomic_load(&r->rounds) < goal)
		plat_thread_yield();
}

/* Maps b's memory once more, as a process that keeps the descriptor would. */
static uint8_t *steal(const struct pair *p, void **out_map)
{
	struct mem_shared *shared = mem_shared_get(p->b.mem, PAIR_MEM_BYTES);
	struct mem_shared_view view;

	mem_shared_view(shared, &view);
	assert_ok(memfd_map(view.fd, view.len_bytes, out_map));
	mem_shared_put(shared);
	return *out_map;
}

static void share_writer_that_goes_on_is_fenced_off(void **state)
{
	/* Goal: a peer that is in the middle of a copy and does not stop reaches nothing after
	 * path_close(); content stays, and a new path writes into the memory that is there now. */
	struct pair p;
	struct rogue rogue = { 0 };
	static uint8_t before[PAIR_MEM_BYTES];
	struct prov_wr wr;
	void *map;

	(void)state;
	pair_open(&p, "own");
	map_it(&p);
	rogue.at = steal(&p, &map) + (1 << 20);
	atomic_store(&a_path(&p)->tx.lane->writing, UINT64_MAX); /* odd, and stays so */
	assert_ok(plat_thread_start(&rogue.thread, rogue_main, &rogue, "rogue", PLAT_CPU_ANY));
	wait_rounds(&rogue, 3);
	ops->path_close(p.b.path);
	memcpy(before, p.b.mem, PAIR_MEM_BYTES);
	wait_rounds(&rogue, 3);
	assert_memory_equal(before, p.b.mem, PAIR_MEM_BYTES);
	assert_true(pair_until(&p, pair_a_down));
	ops->path_close(p.a.path);
	assert_true(pair_until(&p, pair_a_closed));
	pair_join(&p);
	map_it(&p);
	wr = pair_wr(&p, 1, 77, 1 << 20, 65536);
	assert_int_equal(ops->post(p.a.path, &wr, 1), 1);
	assert_memory_equal(p.b.mem + (1 << 20), p.a.mem + 77, 65536);
	wait_rounds(&rogue, 3);
	assert_memory_equal(p.b.mem + (1 << 20), p.a.mem + 77, 65536);
	atomic_store(&rogue.stop, true);
	plat_thread_join(&rogue.thread);
	memfd_unmap(map, PAIR_MEM_BYTES);
	pair_close(&p);
}

static void share_deregistered_region_is_taken_from_a_writer_that_goes_on(void **state)
{
	/* Goal: dereg fences such a writer off too, and does so once. */
	struct pair p;
	struct mem_shared_view old;
	struct mem_shared_view now;
	struct mem_shared *shared;
	void *map;

	(void)state;
	pair_open(&p, "own");
	map_it(&p);
	shared = mem_shared_get(p.b.mem, 1);
	mem_shared_view(shared, &old);
	(void)steal(&p, &map);
	atomic_store(&a_path(&p)->tx.lane->writing, UINT64_MAX);
	ops->dereg(p.b.dev, p.b.key);
	memset(map, 0x5a, 4096);
	assert_int_not_equal(p.b.mem[0], 0x5a);
	mem_shared_view(shared, &now);
	assert_ptr_equal(now.addr, old.addr);
	assert_int_not_equal(now.fd, old.fd);
	ops->path_close(p.b.path); /* nothing is given any more */
	mem_shared_view(shared, &old);
	assert_int_equal(now.fd, old.fd);
	mem_shared_put(shared);
	memfd_unmap(map, PAIR_MEM_BYTES);
	pair_close(&p);
}

static void share_writer_that_is_quiet_keeps_the_memory_as_it_is(void **state)
{
	/* Goal: an ordinary end copies nothing. */
	struct pair p;
	struct mem_shared *shared;
	struct mem_shared_view old;
	struct mem_shared_view now;

	(void)state;
	pair_open(&p, "own");
	map_it(&p);
	shared = mem_shared_get(p.b.mem, 1);
	mem_shared_view(shared, &old);
	ops->path_close(p.b.path);
	mem_shared_view(shared, &now);
	assert_int_equal(now.fd, old.fd);
	mem_shared_put(shared);
	pair_close(&p);
}

static void share_others_of_a_fenced_memory_ask_anew(void **state)
{
	/* Goal: a second peer with the same memory mapped loses nothing when the first is fenced
	 * off: its next write lands in the memory that is there now. */
	struct pair one;
	struct pair two;
	struct prov_error error;
	struct prov_wr wr;
	uint8_t *other;

	(void)state;
	pair_open(&one, "own");
	pair_open(&two, "own");
	map_it(&one);
	/* The second device registers, and gives away, the memory of the first. */
	ops->dereg(two.b.dev, two.b.key);
	other = two.b.mem;
	two.b.mem = one.b.mem;
	two.b.key += UINT64_C(1) << 32;
	assert_ok(ops->reg(two.b.dev, two.b.mem, PAIR_MEM_BYTES, PROV_REG_REMOTE, two.b.key,
	                   &two.b.key, &error));
	map_it(&two);
	atomic_store(&a_path(&one)->tx.lane->writing, UINT64_MAX);
	ops->path_close(one.b.path);
	for (uint64_t i = 1; i < 4; i++) {
		wr = pair_wr(&two, 1, i, i << 20, 100000);
		assert_int_equal(ops->post(two.a.path, &wr, 1), 1);
		pair_drain(&two, 1 + i, 0);
		assert_memory_equal(one.b.mem + (i << 20), two.a.mem + i, 100000);
	}
	assert_true(a_has_map(&two));
	ops->dereg(two.b.dev, two.b.key);
	two.b.mem = other;
	pair_close(&two);
	pair_close(&one);
}

static void share_malformed_answers_cost_the_path(void **state)
{
	/* Goal: a region said to lie outside its memfd, or a descriptor that is none, ends the
	 * path; an answer nobody asked for is ignored. */
	static const struct host_given bad[] = {
		{ .kind = HOST_GIVE_MEMFD, .len_bytes = 4096, .file_bytes = 4096 },
		{ .kind = HOST_GIVE_MEMFD, .len_bytes = 4096, .offset = 1, .file_bytes = 4096 },
		{ .kind = HOST_GIVE_MEMFD, .len_bytes = 1, .offset = UINT64_MAX },
	};
	struct pair p;

	(void)state;
	pair_open(&p, "own");
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct host_given given = bad[i];

		given.key = p.b.key;
		assert_true(host_maps_given(a_path(&p), &given, -1)); /* not asked */
		(void)host_maps_find(a_path(&p), given.key, 0, 1);
		assert_false(host_maps_given(a_path(&p), &given, -1));
		host_maps_flush(&a_path(&p)->maps);
	}
	pair_close(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(share_writer_that_goes_on_is_fenced_off),
		cmocka_unit_test(share_deregistered_region_is_taken_from_a_writer_that_goes_on),
		cmocka_unit_test(share_writer_that_is_quiet_keeps_the_memory_as_it_is),
		cmocka_unit_test(share_others_of_a_fenced_memory_ask_anew),
		cmocka_unit_test(share_malformed_answers_cost_the_path),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
