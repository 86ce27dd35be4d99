/* SPDX-License-Identifier: Apache-2.0 */
/* A process of this machine that scribbles over the memory which it shares with a peer, while that
 * one reads it (contract C11). */
#include "faults/puppet.h"

#include "core/engine.h"
#include "plat/rand.h"
#include "prov/host/path.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

/* A second map of the area, which stays when the path has ended, and who writes there. */
struct scribbler {
	struct host_area *area;
	unsigned side; /* the writer's; its lane is read by the victim alone */
	bool everywhere;
	uint64_t seed;
	_Atomic uint32_t stop;
	pthread_t thread;
};

static uint64_t next_random(uint64_t *seed)
{
	*seed ^= *seed << 13;
	*seed ^= *seed >> 7;
	*seed ^= *seed << 17;
	return *seed;
}

/* What looks like an entry, where the victim reads next; at times one that could be true. */
static void put_entry(struct scribbler *s)
{
	struct host_lane *lane = &s->area->lane[s->side];
	uint32_t pos = (uint32_t)atomic_load_explicit(&lane->acked, memory_order_relaxed) +
	               (uint32_t)(next_random(&s->seed) % 8);
	uint64_t r = next_random(&s->seed);
	const struct host_entry e = { .kind = (uint32_t)(r % 6),
		                      .flags = (uint32_t)(r >> 8 & 15),
		                      .len_bytes = (uint32_t)(r >> 16) >> (r >> 60),
		                      .imm = (uint32_t)r,
		                      .addr = next_random(&s->seed),
		                      .key = next_random(&s->seed),
		                      .op_seq = r >> 32,
		                      .parts = (uint32_t)(r >> 40 & 3),
		                      .src = next_random(&s->seed) };

	host_slot_put(host_slot_at(lane, pos), pos, &e);
}

/* Words of a range of the area, anything. */
static void put_words(struct scribbler *s, void *from, size_t bytes)
{
	_Atomic uint64_t *word = from;

	for (int i = 0; i < 16; i++)
		atomic_store_explicit(&word[next_random(&s->seed) % (bytes / sizeof(*word))],
		                      next_random(&s->seed), memory_order_relaxed);
}

static void *scribble(void *arg)
{
	struct scribbler *s = arg;
	struct host_lane *lane = &s->area->lane[s->side];

	while (atomic_load_explicit(&s->stop, memory_order_relaxed) == 0) {
		switch (next_random(&s->seed) % 3) {
		case 0:
			put_entry(s);
			break;
		case 1:
			put_words(s, lane->slot, sizeof(lane->slot));
			break;
		default:
			if (s->everywhere)
				put_words(s, s->area, sizeof(*s->area));
			else
				put_words(s, lane->bytes, sizeof(lane->bytes));
		}
	}
	return NULL;
}

/* The area of the node's only path, mapped once more. */
static void map_again(struct worker *w, void *arg) ON_WORKER
{
	struct scribbler *s = arg;
	struct peer *p = LIST_ENTRY(w->peers.next, struct peer, link);
	const struct host_path *path = (const struct host_path *)p->path[0].prov;

	s->side = host_path_side(path);
	s->area = mremap(path->area, 0, sizeof(*path->area), MREMAP_MAYMOVE);
}

static void scribble_start(struct scribbler *s, struct node *n, bool everywhere)
{
	assert_ok(rand_bytes(&s->seed, sizeof(s->seed)));
	s->seed = test_seed(s->seed | 1);
	s->everywhere = everywhere;
	worker_call(&n->engine->worker, map_again, s);
	assert_ptr_not_equal(s->area, MAP_FAILED);
	assert_ok(pthread_create(&s->thread, NULL, scribble, s));
}

static void scribble_stop(struct scribbler *s)
{
	atomic_store_explicit(&s->stop, 1, memory_order_relaxed);
	assert_ok(pthread_join(s->thread, NULL));
	assert_ok(munmap(s->area, sizeof(*s->area)));
}

/* Goal: garbage in the rings, written while they are read, costs its writer the connection;
 * another peer's bytes and counts are exact meanwhile. */
static void rings_scribbled_over_while_read_cost_their_writer_alone(void **state)
{
	enum { LEN = 100000 };
	struct node *victim = node_open(LEN), *honest = node_open(LEN);
	struct wimm_remote_mr *to = remote_of(honest, victim);
	unsigned rounds = 6 * test_scale();
	uint32_t writes = 0;

	(void)state;
	fill(honest->mem, LEN, 28);
	result_ok(write_imm(honest, to, 0, 0, LEN, 1));
	writes++;
	for (unsigned i = 0; i < (rounds < 60 ? rounds : 60); i++) {
		struct node *hostile = node_open(4096);
		struct scribbler s = { .area = NULL };
		uint64_t end_ms = wait_end_ms();

		connect_nodes(hostile, victim);
		scribble_start(&s, hostile, i % 2 != 0);
		while (node_events(victim, WIMM_PEER_DOWN) == i) {
			memset(victim->mem, 0, LEN);
			hand_over(victim);
			result_ok(write_imm(honest, to, 0, 0, LEN, 1));
			writes++;
			assert_true(holds(victim->mem, LEN, 28));
			wait_more(end_ms, "the hostile one loses its connection");
		}
		scribble_stop(&s);
		node_done(hostile);
	}
	imm_reaches(victim, 1, writes);
	assert_int_equal(node_events(honest, WIMM_PEER_DOWN), 0);
}

static const struct contract_case cases[] = {
	CASE(rings_scribbled_over_while_read_cost_their_writer_alone),
};
GROUP(rings, cases);
