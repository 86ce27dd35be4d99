/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of GPUs pulled by the receiver (setting host_gpu_way), over the driver of tests/fake; and
 * what each of the two ways says of a peer that is stopped or gone. */
#include "unit/core/gpu_side.h"

#include "core/engine.h"
#include "plat/thread.h"
#include "prov/host/path.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MANY = 20000, SMALL = 16 };

static void set_hold(int hold)
{
	__atomic_store_n(&fake->hold, hold, __ATOMIC_RELEASE);
	if (!hold)
		(void)fake->run();
}

static uint64_t copies(void)
{
	return __atomic_load_n(&fake->copies, __ATOMIC_RELAXED);
}

static bool has_asked(void *arg)
{
	uint64_t *before = arg;

	return copies() > *before;
}

static void wait_asked(uint64_t before)
{
	assert_true(test_wait_until(has_asked, &before, TEST_DEADLINE_MS));
}

static void open_pair(const char *sender, const char *receiver, struct side *a, struct side *b,
                      struct wimm_remote_mr **to)
{
	assert_ok(config_set("host_gpu_way", sender));
	side_open(a, 0);
	assert_ok(config_set("host_gpu_way", receiver));
	side_open(b, 1);
	assert_ok(config_set("host_gpu_way", "push"));
	assert_ok(wimm_open_remote_mr(a->engine, &b->desc, to));
	fill(a->shadow, BYTES, 3);
}

static struct wimm_write write_of(const struct side *a, struct wimm_remote_mr *to, uint64_t len)
{
	struct wimm_write wr = WIMM_WRITE_INIT;

	wr.src = a->mr;
	wr.dst = to;
	wr.src_offset_bytes = 4096;
	wr.dst_offset_bytes = 8192;
	wr.len_bytes = len;
	wr.imm = IMM;
	wr.flags = WIMM_IMM;
	return wr;
}

static struct peer *only_peer(struct worker *w) ON_WORKER
{
	return LIST_ENTRY(w->peers.next, struct peer, link);
}

static void look_offers(struct worker *w, void *arg) ON_WORKER
{
	*(bool *)arg = ((const struct host_path *)only_peer(w)->path[0].prov)->offers_cards;
}

static void gpu_pull_is_chosen_by_either_end(void **state)
{
	/* Goal: one end's word is enough, the bytes are right, and "push" alone does not pull. */
	static const char *const ways[][2] = {
		{ "pull", "pull" }, { "push", "pull" }, { "pull", "push" }, { "push", "push" },
	};
	static const uint64_t lens[] = { 0, 1, 5000, 1 << 20 };
	struct wimm_remote_mr *to;
	struct side a, b;
	uint64_t count;

	(void)state;
	for (size_t i = 0; i < 4; i++) {
		bool offers;

		open_pair(ways[i][0], ways[i][1], &a, &b, &to);
		for (size_t k = 0; k < 4; k++) {
			memset(b.shadow, 0, BYTES);
			assert_int_equal(write_one(&a, to, 100, 201, lens[k]), 1);
			assert_memory_equal(b.shadow + 201, a.shadow + 100, lens[k]);
			assert_int_equal(b.shadow[200], 0);
			assert_int_equal(b.shadow[201 + lens[k]], 0);
			assert_ok(wimm_forget_imm(b.engine, IMM, &count));
			assert_int_equal(count, 1);
		}
		worker_call(&a.engine->worker, look_offers, &offers);
		assert_int_equal(offers, i != 3);
		side_close(&a);
		side_close(&b);
	}
}

static void gpu_pull_is_counted_after_its_bytes(void **state)
{
	/* Goal: C6: neither done nor counted while the receiver's card copies. */
	uint64_t flag = 0, count = 1, before;
	struct wimm_on_done on_done = { .flag = &flag };
	struct wimm_remote_mr *to;
	struct wimm_write wr;
	struct side a, b;

	(void)state;
	open_pair("pull", "pull", &a, &b, &to);
	assert_int_equal(write_one(&a, to, 0, 0, 64), 1);
	assert_ok(wimm_forget_imm(b.engine, IMM, &count));
	before = copies();
	set_hold(1);
	wr = write_of(&a, to, 100000);
	assert_ok(wimm_submit_single_write(a.engine, &wr, &on_done, NULL));
	wait_asked(before);
	for (int i = 0; i < 2000; i++) {
		plat_thread_yield();
		assert_ok(wimm_poll_imm(b.engine, IMM, &count));
		assert_int_equal(count, 0);
		assert_int_equal(wimm_flag_load(&flag), 0);
	}
	set_hold(0);
	assert_int_equal(wait_flag(&flag), 1);
	assert_memory_equal(b.shadow + 8192, a.shadow + 4096, 100000);
	assert_ok(wimm_poll_imm(b.engine, IMM, &count));
	assert_int_equal(count, 1);
	side_close(&a);
	side_close(&b);
}

static void gpu_pull_of_a_list_counts_each_page(void **state)
{
	/* Goal: a list that takes several offers lands page by page and counts as C1 says; so
	 * does one of empty pages. */
	static uint32_t from[MANY], into[MANY];
	struct wimm_paged_writes wr = WIMM_PAGED_WRITES_INIT;
	struct wimm_remote_mr *to;
	struct side a, b;
	uint64_t count;

	(void)state;
	open_pair("pull", "push", &a, &b, &to);
	for (uint32_t i = 0; i < MANY; i++) {
		from[i] = i * 7 % MANY;
		into[i] = MANY - 1 - i;
	}
	wr.src = a.mr;
	wr.dst = to;
	wr.page_len_bytes = SMALL;
	wr.src_pages = (struct wimm_pages){ .indices = from, .count = MANY,
		                            .stride_bytes = SMALL + 8, .offset_bytes = 40 };
	wr.dst_pages = (struct wimm_pages){ .indices = into, .count = MANY,
		                            .stride_bytes = SMALL, .offset_bytes = 512 };
	wr.imm = IMM;
	for (int run = 0; run < 4; run++) {
		uint64_t flag = 0;
		struct wimm_on_done on_done = { .flag = &flag };
		bool once = run % 2 == 1;

		memset(b.shadow, 0, BYTES);
		wr.page_len_bytes = run < 2 ? SMALL : 0;
		wr.flags = WIMM_IMM | WIMM_CONFIRMED | (once ? WIMM_IMM_ONCE : 0);
		assert_ok(wimm_submit_paged_writes(a.engine, &wr, &on_done, NULL));
		assert_int_equal(wait_flag(&flag), 1);
		for (uint32_t i = 0; i < MANY && run < 2; i++)
			assert_memory_equal(b.shadow + 512 + (size_t)into[i] * SMALL,
			                    a.shadow + 40 + (size_t)from[i] * (SMALL + 8), SMALL);
		assert_ok(wimm_forget_imm(b.engine, IMM, &count));
		assert_int_equal(count, once ? 1 : MANY);
	}
	side_close(&a);
	side_close(&b);
}

static void gpu_pull_many_at_once_land_in_order(void **state)
{
	/* Goal: offers, empty writes and lists mixed, more than a batch of them, all land. */
	enum { WRITES = 400 };
	static uint64_t flags[WRITES];
	struct wimm_remote_mr *to;
	struct wimm_write wr;
	struct side a, b;
	uint64_t count;

	(void)state;
	open_pair("pull", "pull", &a, &b, &to);
	memset(flags, 0, sizeof(flags));
	for (uint32_t i = 0; i < WRITES; i++) {
		struct wimm_on_done on_done = { .flag = &flags[i] };

		wr = write_of(&a, to, i % 5 == 0 ? 0 : 1000);
		wr.src_offset_bytes = i * 1000;
		wr.dst_offset_bytes = i * 1000;
		assert_ok(wimm_submit_single_write(a.engine, &wr, &on_done, NULL));
	}
	for (uint32_t i = 0; i < WRITES; i++)
		assert_int_equal(wait_flag(&flags[i]), 1);
	for (uint32_t i = 0; i < WRITES; i++)
		if (i % 5 != 0)
			assert_memory_equal(b.shadow + i * 1000, a.shadow + i * 1000, 1000);
	assert_ok(wimm_poll_imm(b.engine, IMM, &count));
	assert_int_equal(count, WRITES);
	side_close(&a);
	side_close(&b);
}

static void gpu_pull_that_is_cancelled_is_not_counted(void **state)
{
	/* Goal: a cancel in mid-pull waits for the card and then ends the write, counted never. */
	uint64_t flag = 0, count = 1, before, ignored;
	struct wimm_on_done on_done = { .flag = &flag };
	struct wimm_remote_mr *to;
	struct wimm_write wr;
	struct side a, b;
	wimm_op op;

	(void)state;
	open_pair("pull", "pull", &a, &b, &to);
	assert_int_equal(write_one(&a, to, 0, 0, 64), 1);
	assert_ok(wimm_forget_imm(b.engine, IMM, &count));
	before = copies();
	set_hold(1);
	wr = write_of(&a, to, 100000);
	assert_ok(wimm_submit_single_write(a.engine, &wr, &on_done, &op));
	wait_asked(before);
	assert_ok(wimm_cancel(a.engine, op));
	/* An answer of the worker: it has begun what it was asked before. */
	assert_ok(wimm_poll_imm(a.engine, IMM, &ignored));
	set_hold(0);
	/* One whose card took longer than the sender waits is quarantined, not cancelled. */
	if (wait_flag(&flag) != WIMM_E_QUARANTINED)
		assert_int_equal(wimm_flag_load(&flag), WIMM_E_CANCELLED);
	assert_int_equal(write_one(&a, to, 0, 0, 64), 1);
	assert_ok(wimm_poll_imm(b.engine, IMM, &count));
	assert_int_equal(count, 1);
	side_close(&a);
	side_close(&b);
}

static void gpu_pull_into_a_region_that_ends_is_over_before_its_end(void **state)
{
	/* Goal: the end of a region waits for the card that fetches into it, for the sake of a
	 * write that its sender has given up, too; later writes are refused. */
	uint64_t flag = 0, ended = 0, before;
	struct wimm_on_done on_done = { .flag = &flag }, on_end = { .flag = &ended };
	struct wimm_remote_mr *to;
	struct wimm_write wr;
	struct side a, b;
	wimm_op op;

	(void)state;
	open_pair("pull", "pull", &a, &b, &to);
	assert_int_equal(write_one(&a, to, 0, 0, 64), 1);
	before = copies();
	set_hold(1);
	wr = write_of(&a, to, 100000);
	assert_ok(wimm_submit_single_write(a.engine, &wr, &on_done, &op));
	wait_asked(before);
	assert_ok(wimm_cancel(a.engine, op));
	assert_int_equal(wait_flag(&flag), WIMM_E_QUARANTINED);
	assert_ok(wimm_dereg_mr(b.engine, b.mr, &on_end));
	for (int i = 0; i < 2000; i++) {
		plat_thread_yield();
		assert_int_equal(wimm_flag_load(&ended), 0);
	}
	set_hold(0);
	assert_int_equal(wait_flag(&ended), 1);
	assert_int_equal(fake->run(), 0);
	memset(b.shadow, 0, BYTES);
	assert_int_equal(write_one(&a, to, 4096, 8192, 64), WIMM_E_REVOKED);
	assert_int_equal(b.shadow[8192], 0);
	side_close(&a);
	side_close(&b);
}

/* --- what no sender of ours offers --- */

struct hostile {
	struct host_card card;
	uint32_t len_bytes;  /* of the entry; 0: as it should be */
	uint64_t addr_past;  /* of the target: so far into the region */
	uint32_t last_index; /* of both lists */
};

struct plan {
	const struct hostile *h;
	struct side *a, *b;
};

static void offer_it(struct worker *w, void *arg) ON_WORKER
{
	const struct plan *plan = arg;
	struct host_card card = plan->h->card;
	struct host_path *path = (struct host_path *)only_peer(w)->path[0].prov;
	struct host_tx *tx = &path->tx;
	uint32_t index[8] = { 0 };
	uint32_t full = (uint32_t)sizeof(card) + (card.indexed == 1 ? (uint32_t)card.count * 8 : 0);
	struct host_entry e = { .kind = HOST_ENTRY_CARD,
		                .flags = HOST_ENTRY_LAST | HOST_ENTRY_IMM,
		                .imm = IMM,
		                .src = tx->bytes_tail,
		                .addr = plan->b->ptr + plan->h->addr_past };

	card.src_key = plan->a->mr->key[0];
	card.src += plan->a->ptr;
	e.key = plan->b->mr->key[0];
	e.len_bytes = plan->h->len_bytes != 0 ? plan->h->len_bytes : full;
	index[1] = index[3] = plan->h->last_index; /* lists of two */
	host_bytes_put(tx->lane, e.src, &card, sizeof(card));
	host_bytes_put(tx->lane, e.src + sizeof(card), index, sizeof(index));
	tx->bytes_tail += e.len_bytes;
	host_slot_put(host_slot_at(tx->lane, tx->published), tx->published, &e);
	tx->bytes_end[tx->published & (HOST_RING_ENTRIES - 1)] = tx->bytes_tail;
	tx->published++;
	path->offers_cards = true;
	host_path_ring(path);
}

static void look_gone(struct worker *w, void *arg) ON_WORKER
{
	*(bool *)arg = list_empty(&w->peers) || only_peer(w)->path[0].state != PATH_UP;
}

static bool path_is_gone(void *arg)
{
	bool gone;

	worker_call(&((struct wimm_engine *)arg)->worker, look_gone, &gone);
	return gone;
}

static void gpu_offers_that_make_no_sense_cost_their_path(void **state)
{
	/* Goal: C11: nothing outside the two regions is touched, whatever is offered. */
	static const struct hostile cases[] = {
		{ .card = { .page_bytes = 64, .count = 0 } },
		{ .card = { .page_bytes = 64, .count = 2 } },
		{ .card = { .page_bytes = 64, .count = 1, .indexed = 2 } },
		{ .card = { .page_bytes = 64, .count = 1 }, .len_bytes = 40 },
		{ .card = { .page_bytes = 64, .count = 1 }, .len_bytes = 72 },
		{ .card = { .page_bytes = 64, .count = UINT64_MAX / 8 + 1, .indexed = 1 },
		  .len_bytes = sizeof(struct host_card) },
		{ .card = { .page_bytes = BYTES + 1, .count = 1 } },
		{ .card = { .page_bytes = 64, .count = 1 }, .addr_past = BYTES - 63 },
		{ .card = { .page_bytes = 64, .count = 1, .src = (uint64_t)BYTES - 63 } },
		{ .card = { .page_bytes = UINT64_MAX, .count = 1 } },
		{ .card = { .page_bytes = 64, .count = 2, .indexed = 1, .src_stride = 64,
		            .dst_stride = 64 },
		  .last_index = BYTES / 64 },
		{ .card = { .page_bytes = 64, .count = 2, .indexed = 1, .src_stride = UINT64_MAX,
		            .dst_stride = 64 },
		  .last_index = 2 },
		{ .card = { .page_bytes = 64, .count = 2, .indexed = 1, .src_stride = 64,
		            .dst_stride = UINT64_MAX / 2 },
		  .last_index = 3 },
	};
	struct wimm_remote_mr *to;
	struct side a, b;
	uint64_t count;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct plan plan = { &cases[i], &a, &b };
		uint64_t before;

		open_pair("pull", "pull", &a, &b, &to);
		assert_int_equal(write_one(&a, to, 0, 0, 64), 1);
		assert_ok(wimm_forget_imm(b.engine, IMM, &count));
		before = copies();
		worker_call(&a.engine->worker, offer_it, &plan);
		if (!test_wait_until(path_is_gone, b.engine, TEST_DEADLINE_MS))
			fail_msg("case %zu was taken", i);
		assert_int_equal(copies(), before);
		assert_ok(wimm_poll_imm(b.engine, IMM, &count));
		assert_int_equal(count, 0);
		side_close(&a);
		side_close(&b);
	}
}

/* --- two processes --- */

enum { WRITERS = 5, READERS = 1 };

/* Started before this process has any thread. */
static struct process {
	int down, up;
	pid_t pid;
} writers[WRITERS], readers[READERS];

/* 'w': write and wait; 's': write, with the card held, and say when it has been asked for;
 * 'p': the same, but the card is the other's; 'd': deregister the source and wait. */
static void writer(int in, int out)
{
	struct wimm_mr_desc desc;
	struct wimm_remote_mr *to;
	struct wimm_write wr;
	struct side s;
	char what;

	test_talk(in, NULL, &what, 1);
	assert_ok(config_set("host_gpu_way", what == 'l' ? "pull" : "push"));
	test_talk(in, NULL, &desc, sizeof(desc));
	side_open(&s, 0);
	fill(s.shadow, BYTES, 5);
	assert_ok(wimm_open_remote_mr(s.engine, &desc, &to));
	wr = write_of(&s, to, 3 * PAGE);
	while (read(in, &what, 1) == 1) {
		uint64_t flag = 0, before = copies();
		struct wimm_on_done on_done = { .flag = &flag };
		int64_t st = 1;

		if (what == 'w')
			st = write_one(&s, to, 4096, 8192, 3 * PAGE);
		if (what == 's')
			set_hold(1);
		if (what == 's' || what == 'p')
			assert_ok(wimm_submit_single_write(s.engine, &wr, NULL, NULL));
		if (what == 's')
			wait_asked(before);
		if (what == 'd') {
			assert_ok(wimm_dereg_mr(s.engine, s.mr, &on_done));
			st = wait_flag(&flag);
		}
		test_talk(out, &st, NULL, sizeof(st));
	}
	_exit(0);
}

/* Gives its region and, after 'h', holds its card. */
static void reader(int in, int out)
{
	struct side s;
	char what;

	assert_ok(config_set("host_gpu_way", "pull"));
	side_open(&s, 0);
	test_talk(out, &s.desc, NULL, sizeof(s.desc));
	test_talk(in, NULL, &what, 1);
	set_hold(1);
	{
		uint64_t before = copies();

		test_talk(out, &what, NULL, 1);
		wait_asked(before);
		test_talk(out, &what, NULL, 1);
	}
	(void)read(in, &what, 1);
	_exit(0);
}

static void start_process(struct process *p, void (*run)(int in, int out))
{
	int down[2], up[2];

	assert_int_equal(pipe(down), 0);
	assert_int_equal(pipe(up), 0);
	p->pid = fork();
	if (p->pid == 0) {
		(void)close(down[1]);
		(void)close(up[0]);
		run(down[0], up[1]);
		_exit(1);
	}
	(void)close(down[0]);
	(void)close(up[1]);
	p->down = down[1];
	p->up = up[0];
}

static int64_t order(const struct process *p, char what)
{
	int64_t st;

	test_talk(p->down, &what, NULL, 1);
	test_talk(p->up, NULL, &st, sizeof(st));
	return st;
}

static void end_process(struct process *p)
{
	int status;

	(void)kill(p->pid, SIGKILL);
	assert_int_equal(waitpid(p->pid, &status, 0), p->pid);
	p->pid = 0;
	(void)close(p->down);
	(void)close(p->up);
}

static void begin(const struct process *p, bool pull, struct side *b)
{
	assert_ok(config_set("host_gpu_way", pull ? "pull" : "push"));
	side_open(b, 1);
	assert_ok(config_set("host_gpu_way", "push"));
	test_talk(p->down, pull ? "l" : "s", NULL, 1);
	test_talk(p->down, &b->desc, NULL, sizeof(b->desc));
	assert_int_equal(order(p, 'w'), 1);
}

static void gpu_pull_between_processes_ends_with_its_regions(void **state)
{
	/* Goal: the bytes come from the other process's region, whose end unmaps it here. */
	uint8_t *want = malloc(BYTES);
	uint32_t objects;
	struct side b;

	(void)state;
	begin(&writers[0], true, &b);
	fill(want, BYTES, 5);
	assert_memory_equal(b.shadow + 8192, want + 4096, 3 * PAGE);
	objects = fake->objects();
	assert_int_equal(order(&writers[0], 'd'), 1);
	assert_int_equal(fake->objects(), objects - 1); /* before the other's end was reported */
	end_process(&writers[0]);
	side_close(&b);
	free(want);
}

struct answer {
	_Atomic uint32_t fence; /* plus 1 */
};

static void on_fenced(void *context, const struct wimm_done *done)
{
	atomic_store(&((struct answer *)context)->fence, done->fence + 1);
}

static bool is_answered(void *arg)
{
	return atomic_load(&((struct answer *)arg)->fence) != 0;
}

static void first_peer(struct worker *w, void *arg) ON_WORKER
{
	*(wimm_peer *)arg = peer_id(only_peer(w));
}

static uint32_t fence(struct side *b, wimm_peer peer, uint64_t deadline_us)
{
	struct wimm_fence_opts opts = WIMM_FENCE_OPTS_INIT;
	struct answer answer = { 0 };
	struct wimm_on_done on_done = { .fn = on_fenced, .context = &answer };

	opts.deadline_us = deadline_us;
	assert_ok(wimm_fence_peer(b->engine, peer, &opts, &on_done, NULL));
	assert_true(test_wait_until(is_answered, &answer, 2 * TEST_DEADLINE_MS));
	return atomic_load(&answer.fence) - 1;
}

static void gpu_pull_of_a_stopped_sender_is_fenced(void **state)
{
	/* Goal: C9 for pull: whoever is stopped over there, this side's memory comes back. */
	uint64_t before;
	wimm_peer peer;
	struct side b;

	(void)state;
	begin(&writers[1], true, &b);
	worker_call(&b.engine->worker, first_peer, &peer);
	before = copies();
	set_hold(1);
	assert_int_equal(order(&writers[1], 'p'), 1);
	wait_asked(before);
	assert_int_equal(kill(writers[1].pid, SIGSTOP), 0);
	assert_int_equal(fence(&b, peer, 200000), WIMM_FENCE_FENCED);
	assert_int_equal(fake->run(), 0); /* nothing of it is left on the card */
	set_hold(0);
	end_process(&writers[1]);
	side_close(&b);
}

static void gpu_push_of_a_stopped_sender_is_quarantined_until_it_is_gone(void **state)
{
	/* Goal: C9 for push: a sender that is stopped in mid-copy may go on; one that is gone may
	 * not. */
	wimm_peer peer;
	struct side b;

	(void)state;
	begin(&writers[2], false, &b);
	worker_call(&b.engine->worker, first_peer, &peer);
	assert_int_equal(order(&writers[2], 's'), 1);
	assert_int_equal(kill(writers[2].pid, SIGSTOP), 0);
	assert_int_equal(fence(&b, peer, 200000), WIMM_FENCE_QUARANTINED);
	end_process(&writers[2]);
	assert_int_equal(fence(&b, peer, 30000000), WIMM_FENCE_FENCED);
	side_close(&b);
}

static void gpu_pull_survives_the_death_of_its_sender(void **state)
{
	/* Goal: memory that was being fetched into is deregistered, and what was mapped given up,
	 * whether the card was at it or not. */
	(void)state;
	for (int i = 3; i < 5; i++) {
		uint64_t flag = 0, before;
		struct wimm_on_done on_done = { .flag = &flag };
		struct side b;

		begin(&writers[i], true, &b);
		before = copies();
		set_hold(i == 3);
		assert_int_equal(order(&writers[i], 'p'), 1);
		if (i == 3)
			wait_asked(before);
		end_process(&writers[i]);
		assert_ok(wimm_dereg_mr(b.engine, b.mr, &on_done));
		assert_int_equal(wait_flag(&flag), 1);
		set_hold(0);
		side_close(&b);
	}
}

static void gpu_pull_by_a_stopped_receiver_quarantines_its_source(void **state)
{
	/* Goal: C3: a source that a stopped receiver's card may read is not called free. */
	uint64_t flag = 0;
	struct wimm_on_done on_done = { .flag = &flag };
	struct wimm_mr_desc desc;
	struct wimm_remote_mr *to;
	struct wimm_write wr;
	struct side a;
	wimm_op op;
	char got;

	(void)state;
	test_talk(readers[0].up, NULL, &desc, sizeof(desc));
	side_open(&a, 0); /* push: the receiver's word is enough */
	assert_ok(wimm_open_remote_mr(a.engine, &desc, &to));
	assert_int_equal(write_one(&a, to, 0, 0, 64), 1);
	test_talk(readers[0].down, "h", NULL, 1);
	test_talk(readers[0].up, NULL, &got, 1);
	wr = write_of(&a, to, 3 * PAGE);
	assert_ok(wimm_submit_single_write(a.engine, &wr, &on_done, &op));
	test_talk(readers[0].up, NULL, &got, 1);
	assert_int_equal(kill(readers[0].pid, SIGSTOP), 0);
	assert_ok(wimm_cancel(a.engine, op));
	assert_int_equal(wait_flag(&flag), WIMM_E_QUARANTINED);
	end_process(&readers[0]);
	side_close(&a);
}

static int setup(void **state)
{
	(void)state;
	fake = fake_cuda_start();
	/* Silence of a peer is nothing to look at here: on a busy machine it may just not run. */
	if (fake == NULL || config_set("peer_timeout_ms", "120000") != WIMM_OK ||
	    config_set("hello_timeout_ms", "60000") != WIMM_OK)
		return -1;
	for (int i = 0; i < WRITERS; i++)
		start_process(&writers[i], writer);
	for (int i = 0; i < READERS; i++)
		start_process(&readers[i], reader);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	for (int i = 0; i < WRITERS; i++)
		if (writers[i].pid > 0)
			end_process(&writers[i]);
	for (int i = 0; i < READERS; i++)
		if (readers[i].pid > 0)
			end_process(&readers[i]);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(gpu_pull_between_processes_ends_with_its_regions),
		cmocka_unit_test(gpu_pull_of_a_stopped_sender_is_fenced),
		cmocka_unit_test(gpu_push_of_a_stopped_sender_is_quarantined_until_it_is_gone),
		cmocka_unit_test(gpu_pull_survives_the_death_of_its_sender),
		cmocka_unit_test(gpu_pull_by_a_stopped_receiver_quarantines_its_source),
		cmocka_unit_test(gpu_pull_is_chosen_by_either_end),
		cmocka_unit_test(gpu_pull_is_counted_after_its_bytes),
		cmocka_unit_test(gpu_pull_of_a_list_counts_each_page),
		cmocka_unit_test(gpu_pull_many_at_once_land_in_order),
		cmocka_unit_test(gpu_pull_that_is_cancelled_is_not_counted),
		cmocka_unit_test(gpu_pull_into_a_region_that_ends_is_over_before_its_end),
		cmocka_unit_test(gpu_offers_that_make_no_sense_cost_their_path),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
