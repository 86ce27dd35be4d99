/* SPDX-License-Identifier: Apache-2.0 */
/* Regions that come, go and overlap, and writes that meet them meanwhile (contract C4, C9). */
#include "faults/puppet.h"

#include "core/engine.h"
#include "prov/sim/sim.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)

static struct wimm_mr *reg(struct node *n, void *at, uint64_t bytes)
{
	struct wimm_mr *mr = NULL;

	if (wimm_reg_mr(n->engine, at, bytes, NULL, &mr) != WIMM_OK)
		fail_msg("reg_mr: %s", wimm_last_error_text());
	return mr;
}

static struct result *dereg(struct node *n, struct wimm_mr *mr)
{
	struct result *r = result_new();
	struct wimm_on_done done = to_result(r);

	assert_ok(wimm_dereg_mr(n->engine, mr, &done));
	r->accepted = true;
	return r;
}

static struct wimm_remote_mr *remote(struct node *from, const struct wimm_mr *mr)
{
	struct wimm_remote_mr *r = NULL;
	struct wimm_mr_desc desc;

	assert_ok(wimm_mr_get_desc(mr, &desc));
	assert_ok(wimm_open_remote_mr(from->engine, &desc, &r));
	return r;
}

/* Write a pattern into a region, wait until it is counted, and look at it where it is. */
static void reaches(struct node *from, struct node *owner, const struct wimm_remote_mr *to,
                    const uint8_t *at, uint64_t offset, uint64_t len, uint32_t imm)
{
	fill(from->mem, len, imm);
	result_ok(write_imm(from, to, 0, offset, len, imm));
	imm_reaches(owner, imm, 1);
	assert_ok(wimm_forget_imm(owner->engine, imm, NULL));
	assert_true(holds(at + offset, len, imm));
}

/* --- 39 --- */

static void overlapping(bool first_first)
{
	struct node *a = node_open(4096), *b = node_open(0);
	uint8_t *mem = mmap(NULL, 3 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
	                    0);
	/* The same twice, one across its end, one beside it. */
	uint8_t *at[4] = { mem, mem, mem + MIB / 2, mem + MIB };
	struct wimm_mr *mr[4];
	struct wimm_remote_mr *to[4];

	assert_ptr_not_equal(mem, MAP_FAILED);
	for (int i = 0; i < 4; i++) {
		mr[i] = reg(b, at[i], MIB);
		to[i] = remote(a, mr[i]);
	}
	for (uint32_t i = 0; i < 4; i++) {
		struct wimm_write w = single(a, to[i], 0, MIB, 1);

		reaches(a, b, to[i], at[i], MIB - 4096, 4096, 390 + i);
		/* A neighbour does not make it longer. */
		assert_status(wimm_submit_single_write(a->engine, &w, NULL, NULL), WIMM_E_RANGE);
	}
	for (int gone = 0; gone < 4; gone++) {
		int i = first_first ? gone : 3 - gone;
		struct wimm_write w = single(a, to[i], 0, 0, 1);

		result_ok(dereg(b, mr[i]));
		assert_status(wimm_submit_single_write(a->engine, &w, NULL, NULL), WIMM_E_REVOKED);
		for (int left = gone + 1; left < 4; left++) {
			int k = first_first ? left : 3 - left;

			reaches(a, b, to[k], at[k], 0, 4096, 400 + (uint32_t)(gone * 4 + left));
		}
	}
	assert_int_equal(stats_of(b).regions, 0);
	node_close(b);
	munmap(mem, 3 * MIB);
}

/* Goal: the same, overlapping and adjacent ranges each stand for themselves, until each ends. */
static void overlapping_regions_case_39_end_one_by_one(void **state)
{
	(void)state;
	overlapping(true);
}

/* Goal: also when they end in the other order. */
static void overlapping_regions_case_39_end_in_any_order(void **state)
{
	(void)state;
	overlapping(false);
}

/* --- 41 --- */

/* Goal: memory mapped anew at one address gets the bytes meant for it. */
static void remapped_region_case_41_gets_its_own_bytes(void **state)
{
	struct node *a = node_open(4096), *b = node_open(0);
	void *at = (void *)0x7eb000000000;

	(void)state;
	for (uint32_t i = 0; i < 1000; i++) {
		uint8_t *mem = mmap(at, 4096, PROT_READ | PROT_WRITE,
		                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
		struct wimm_remote_mr *to;
		struct wimm_mr *mr;

		assert_ptr_equal(mem, at);
		mr = reg(b, mem, 4096);
		to = remote(a, mr);
		reaches(a, b, to, mem, 0, 4096, i);
		result_ok(dereg(b, mr));
		assert_ok(wimm_close_remote_mr(a->engine, to));
		munmap(mem, 4096);
	}
}

/* --- 43 --- */

/* Goal: a source deregistered in mid-write is read until the write has ended, and only then given
 * back; the write is whole or an error. */
static void source_deregistered_in_mid_write_case_43_waits_for_the_write(void **state)
{
	struct node *a = node_open(0), *b = node_open(64 * MIB);
	struct wimm_remote_mr *to = remote_of(a, b);
	uint8_t *mem = mmap(NULL, 64 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
	                    0);
	struct wimm_write w = WIMM_WRITE_INIT;
	struct result *write, *gone;
	struct wimm_mr *mr;

	(void)state;
	assert_ptr_not_equal(mem, MAP_FAILED);
	if (case_world() != NULL)
		sim_set_delay(case_world(), 10000000, 100000000);
	memset(mem, 0x43, 64 * MIB);
	mr = reg(a, mem, 64 * MIB);
	w.src = mr;
	w.dst = to;
	w.len_bytes = 64 * MIB;
	w.flags = WIMM_IMM;
	w.imm = 43;
	write = submit_write(a, &w);
	gone = dereg(a, mr);
	assert_status(wimm_submit_single_write(a->engine, &w, NULL, NULL), WIMM_E_REVOKED);
	result_ok(gone);
	munmap(mem, 64 * MIB);
	assert_true(result_there(write));
	result_ok(write);
	imm_reaches(b, 43, 1);
	assert_true(all_are(b->mem, 64 * MIB, 0x43));
}

/* --- 45 --- */

/* Goal: a memory-lock limit is told with all figures, nothing stays charged, less works. */
static void lock_limit_case_45_is_told_with_figures(void **state)
{
	struct wimm_engine_opts o = node_opts_nics(4);
	struct node *n = node_open_with(&o, 0);
	uint8_t *mem = calloc(1, MIB / 2);
	struct wimm_mr *mr = NULL;
	struct sim_world *w = case_world();
	const uint8_t *instance = n->engine->self.instance;

	(void)state;
	assert_non_null(mem);
	sim_set_lock_limit(w, MIB);
	assert_refused(wimm_reg_mr(n->engine, mem, MIB / 2, NULL, &mr), WIMM_E_LOCK_LIMIT,
	               "2097152");
	assert_non_null(strstr(wimm_last_error_text(), "1048576"));
	assert_non_null(strstr(wimm_last_error_text(), "of 4"));
	assert_null(mr);
	assert_int_equal(sim_locked_bytes(w, instance), 0);
	mr = reg(n, mem, MIB / 8);
	assert_int_equal(sim_locked_bytes(w, instance), MIB / 2);
	result_ok(dereg(n, mr));
	assert_int_equal(sim_locked_bytes(w, instance), 0);
	node_close(n);
	free(mem);
}

/* --- 47 --- */

/* Goal: an empty region is refused at once and disturbs no other. */
static void empty_region_case_47_is_refused(void **state)
{
	struct node *a = node_open(4096), *b = node_open(4096);
	struct wimm_mr *mr = NULL;
	uint8_t byte = 0;

	(void)state;
	assert_refused(wimm_reg_mr(b->engine, NULL, 0, NULL, &mr), WIMM_E_INVAL, "0 bytes");
	assert_refused(wimm_reg_mr(b->engine, &byte, 0, NULL, &mr), WIMM_E_INVAL, "0 bytes");
	assert_refused(wimm_reg_mr(b->engine, NULL, 1, NULL, &mr), WIMM_E_INVAL, "address");
	assert_null(mr);
	reaches(a, b, remote_of(a, b), b->mem, 0, 4096, 47);
}

/* --- 202 --- */

/* Goal: after dereg's on_done not one byte changes by the old descriptor; other regions go on. */
static void write_to_a_deregistered_region_case_202_is_refused(void **state)
{
	struct node *a = node_open(65536), *b = node_open(65536), *late = node_open(65536);
	struct wimm_remote_mr *to = remote_of(a, b), *first_use = remote_of(late, b);
	uint8_t *other = calloc(1, 65536);
	struct wimm_mr *mr;
	struct wimm_write w;

	(void)state;
	assert_non_null(other);
	connect_nodes(late, b);
	reaches(a, b, to, b->mem, 0, 65536, 1);
	result_ok(dereg(b, b->mr));
	b->mr = NULL;
	memset(b->mem, 0x5a, 65536);
	w = single(a, to, 0, 0, 65536);
	assert_refused(wimm_submit_single_write(a->engine, &w, NULL, NULL), WIMM_E_REVOKED,
	               "deregistered");
	/* One who never used it learns it at its first use; so does a new handle. */
	if (wimm_submit_single_write(late->engine, &w, NULL, NULL) != WIMM_E_INVAL)
		fail_msg("another engine's handle was taken");
	w = single(late, first_use, 0, 0, 65536);
	if (wimm_submit_single_write(late->engine, &w, NULL, NULL) == WIMM_OK)
		result_is(write_imm(late, remote_of(late, b), 0, 0, 65536, 2), WIMM_E_REVOKED);
	result_is(write_imm(a, remote_of(a, b), 0, 0, 65536, 2), WIMM_E_REVOKED);
	assert_true(all_are(b->mem, 65536, 0x5a));
	assert_int_equal(imm_now(b, 2), 0);
	mr = reg(b, other, 65536);
	reaches(a, b, remote(a, mr), other, 0, 65536, 3);
	node_close(b);
	free(other);
}

struct stream {
	uint32_t open;
	uint32_t ok, revoked, other;
};

static void on_stream(void *context, const struct wimm_done *done)
{
	struct stream *s = context;

	gate_lock();
	s->open--;
	s->ok += done->status == WIMM_OK;
	s->revoked += done->status == WIMM_E_REVOKED;
	s->other += done->status != WIMM_OK && done->status != WIMM_E_REVOKED;
	gate_unlock();
}

static bool stream_is_over(void *arg)
{
	bool over;

	gate_lock();
	over = ((struct stream *)arg)->open == 0;
	gate_unlock();
	return over;
}

static void revoke_under_a_stream(unsigned round)
{
	struct node *a = node_open(65536), *b = node_open(65536);
	struct wimm_remote_mr *to = remote_of(a, b);
	struct stream s = { 0 };
	struct wimm_on_done done = { .fn = on_stream, .context = &s };
	struct result *gone = NULL;
	wimm_status st = WIMM_OK;

	memset(a->mem, 0x20, 65536);
	connect_nodes(a, b);
	for (unsigned i = 0; st == WIMM_OK || st == WIMM_AGAIN; i++) {
		struct wimm_write w = single(a, to, 0, 0, 65536);

		if (i == 8 + round % 64)
			gone = dereg(b, b->mr);
		gate_lock();
		s.open++;
		gate_unlock();
		st = wimm_submit_single_write(a->engine, &w, &done, NULL);
		if (st != WIMM_OK) {
			gate_lock();
			s.open--;
			gate_unlock();
			drive();
		}
		if (gone != NULL && result_there(gone))
			break;
	}
	result_ok(gone);
	b->mr = NULL;
	memset(b->mem, 0x5a, 65536); /* somebody else's from now on */
	assert_wait(stream_is_over, &s);
	assert_int_equal(s.other, 0);
	assert_true(all_are(b->mem, 65536, 0x5a));
	node_done(a);
	node_done(b);
}

/* Goal: the same while writes stream in: each is whole or revoked, none is late. */
static void stream_to_a_deregistered_region_case_202_stops_in_time(void **state)
{
	unsigned rounds = 4 * test_scale();

	(void)state;
	for (unsigned i = 0; i < (rounds < 30 ? rounds : 30); i++)
		revoke_under_a_stream(i);
}

/* Goal: the rest of a cancelled write that is still under way when its target ends costs nothing
 * but itself: not one byte lands afterwards, and the session goes on. */
static void cancelled_write_to_an_ending_region_case_202_costs_only_itself(void **state)
{
	unsigned rounds = 10 * test_scale();
	struct node *a = node_open(8 * MIB), *b = node_open(4096);
	uint8_t *mem = malloc(8 * MIB);

	(void)state;
	assert_non_null(mem);
	memset(a->mem, 0x77, 8 * MIB);
	connect_nodes(a, b);
	for (unsigned i = 0; i < (rounds < 100 ? rounds : 100); i++) {
		struct wimm_mr *mr = reg(b, mem, 8 * MIB);
		struct wimm_remote_mr *to = remote(a, mr);
		struct result *r[4];

		result_ok(write_imm(a, to, 0, 0, 64, 1)); /* the region is known */
		for (int k = 0; k < 4; k++) {
			struct wimm_write w = single(a, to, 0, 0, 8 * MIB);

			r[k] = submit_write(a, &w);
		}
		drive_rounds(i);
		for (int k = 0; k < 4; k++)
			(void)!wimm_cancel(a->engine, r[k]->id);
		for (int k = 0; k < 4; k++)
			result_wait(r[k]);
		result_ok(dereg(b, mr));
		memset(mem, 0x5a, 8 * MIB);
		result_ok(write_imm(a, remote_of(a, b), 0, 0, 4096, 2));
		assert_true(all_are(mem, 8 * MIB, 0x5a));
		assert_ok(wimm_close_remote_mr(a->engine, to));
	}
	assert_int_equal(node_events(a, WIMM_PEER_DOWN) + node_events(b, WIMM_PEER_DOWN), 0);
	assert_int_equal(node_events(a, WIMM_PEER_NIC_LOST), 0);
	node_close(a);
	node_close(b);
	free(mem);
}

/* Goal: the same where the target's process stood still meanwhile, so that much is under way. */
static void cancelled_write_to_a_stopped_peer_case_202_costs_only_itself(void **state)
{
	const struct puppet_opts po = { .bytes = 64 * MIB };
	struct puppet *b = puppet_start(&po);
	struct node *a = node_open(64 * MIB);
	unsigned rounds = 3 * test_scale();

	(void)state;
	memset(a->mem, 0x77, 64 * MIB);
	for (unsigned i = 0; i < (rounds < 50 ? rounds : 50); i++) {
		struct wimm_remote_mr *to = NULL;
		struct result *r;
		struct wimm_write w;

		assert_ok(wimm_open_remote_mr(a->engine, &b->desc, &to));
		result_ok(write_imm(a, to, 0, 0, 64, 1)); /* the region is known */
		puppet_stop(b);
		w = single(a, to, 0, 0, 64 * MIB);
		w.deadline_us = 50000;
		r = submit_write(a, &w);
		result_wait(r);
		/* A NIC goes on without the process: on a busy machine its acknowledgement may be
		 * there before anybody looks at the clock. */
		if (r->status != WIMM_OK || strcmp(cfg.provider, "verbs") != 0)
			result_is(r, WIMM_E_TIMEOUT);
		puppet_reregister_begin(b);
		puppet_continue(b);
		puppet_reregister_end(b);
		assert_ok(wimm_close_remote_mr(a->engine, to));
	}
	assert_int_equal(node_events(a, WIMM_PEER_DOWN), 0);
	assert_int_equal(node_events(a, WIMM_PEER_NIC_LOST), 0);
	puppet_end(b);
}

static const struct contract_case cases[] = {
	CASE(overlapping_regions_case_39_end_one_by_one),
	CASE(overlapping_regions_case_39_end_in_any_order),
	CASE(remapped_region_case_41_gets_its_own_bytes),
	CASE(source_deregistered_in_mid_write_case_43_waits_for_the_write),
	CASE_ONLY(lock_limit_case_45_is_told_with_figures, ONLY_SIM),
	CASE(empty_region_case_47_is_refused),
	CASE(write_to_a_deregistered_region_case_202_is_refused),
	CASE(stream_to_a_deregistered_region_case_202_stops_in_time),
	CASE_ONLY(cancelled_write_to_an_ending_region_case_202_costs_only_itself, ONLY_CANCEL),
	CASE_ONLY(cancelled_write_to_a_stopped_peer_case_202_costs_only_itself,
	          ONLY_PROCESSES | ONLY_THREADS),
};
GROUP(region, cases);
