/* SPDX-License-Identifier: Apache-2.0 */
/* The verbs provider on real devices: soft-RoCE in the guest that tests/vm/run boots, or what this
 * machine has. */
#include "vm/pair.h"

#include "base/config.h"

#include <stdlib.h>
#include <string.h>

static void verbs_write_with_immediate_lands_before_it_is_counted(void **state)
{
	/* Goal: every length lands whole and nowhere else, with one immediate each. */
	static const uint32_t lens[] = { 0, 1, 8, 64, 65, 4096, 5000, 65536, 1u << 20 };
	enum { COUNT = sizeof(lens) / sizeof(lens[0]) };
	struct pair p;

	(void)state;
	pair_open(&p);
	for (uint32_t i = 0; i < COUNT; i++) {
		struct prov_wr wr = pair_wr(&p, i, 100, lens[i]);

		memset(p.b.mem, 0x55, PAIR_MEM_BYTES);
		wr.imm = 0xfffffff0u + i;
		wr.flags = PROV_WR_IMM;
		pair_post_all(&p, &wr, 1);
		pair_drain(&p, i + 1, i + 1);
		assert_int_equal(p.b.last_imm, 0xfffffff0u + i);
		assert_memory_equal(p.a.mem + 100, p.b.mem + 100, lens[i]);
		assert_int_equal(p.b.mem[99], 0x55);
		assert_int_equal(p.b.mem[100 + lens[i]], 0x55);
		assert_int_equal(p.a.units[i], 1);
	}
	pair_close(&p);
}

static void verbs_more_writes_than_the_queues_hold_all_arrive(void **state)
{
	/* Goal: a full send queue and a full receive queue are back-pressure, nothing else. */
	enum { COUNT = 6000, LEN = 512 };
	struct prov_wr *wr = calloc(COUNT, sizeof(*wr));
	struct pair p;

	(void)state;
	assert_non_null(wr);
	pair_open(&p);
	for (uint32_t i = 0; i < COUNT; i++) {
		wr[i] = pair_wr(&p, i / 3, (uint64_t)i * LEN, LEN);
		wr[i].imm = i / 100;
		wr[i].flags = i % 5 != 4 ? PROV_WR_IMM : 0;
	}
	pair_post_all(&p, wr, COUNT);
	pair_drain(&p, COUNT, COUNT / 5 * 4);
	assert_memory_equal(p.a.mem, p.b.mem, (size_t)COUNT * LEN);
	for (uint32_t i = 0; i < COUNT / 3; i++)
		assert_int_equal(p.a.units[i], 3);
	free(wr);
	pair_close(&p);
}

static bool parts_done(const struct pair *p)
{
	return p->a.done_ok == 600 && p->b.parts == 300;
}

static void verbs_parts_carry_their_operation(void **state)
{
	/* Goal: each part arrives as one, behind its bytes, between writes of other kinds. */
	struct pair p;

	(void)state;
	pair_open(&p);
	for (uint32_t i = 0; i < 300; i++) {
		struct prov_wr wr[2] = { pair_wr(&p, 1, i * 4096ull, 1024),
			                 pair_wr(&p, 2, i * 4096ull + 1024,
			                         i % 7 == 0 ? 0 : 1024) };

		wr[1].flags = PROV_WR_PART;
		wr[1].parts = 2 + i;
		wr[1].imm = 77 + i;
		wr[1].op_seq = UINT64_C(0x123456789) + i;
		pair_post_all(&p, wr, 2);
	}
	assert_true(pair_until(&p, parts_done));
	assert_int_equal(p.b.last_part.parts, 301);
	assert_int_equal(p.b.last_part.imm, 376);
	assert_int_equal(p.b.last_part.op_seq, UINT64_C(0x123456789) + 299);
	assert_memory_equal(p.a.mem + 299 * 4096, p.b.mem + 299 * 4096, 2048);
	pair_close(&p);
}

static void verbs_messages_of_every_length_arrive_in_order(void **state)
{
	/* Goal: a ctl carries short and longest messages, more than its buffers hold. */
	static uint8_t data[1u << 20];
	static const uint32_t lens[] = { 0, 1, 100, 4084, 4088, 4089, 70000, 1u << 20 };
	enum { COUNT = 100 };
	uint64_t bytes = 0;
	struct pair p;

	(void)state;
	pair_open_devs(&p);
	p.a.ctl = p.ops->ctl_open(p.a.dev, &p.b.addr, &p.a);
	for (uint32_t i = 0; i < COUNT; i++) {
		uint32_t len = lens[i % 50 == 0 ? 7 : i % 7];

		ctl_fill(data, len, i);
		while (p.ops->ctl_send(p.a.ctl, data, len) == WIMM_AGAIN) {
			(void)side_poll(&p.a);
			(void)side_poll(&p.b);
		}
		bytes += len;
	}
	p.ops->ctl_close(p.a.ctl, true);
	pair_await(&p, &p.b.ctl_down);
	assert_int_equal(p.b.ctl_new, 1);
	assert_int_equal(p.b.ctl_msgs, COUNT);
	assert_int_equal(p.b.ctl_msg_bytes, bytes);
	assert_int_equal(p.b.ctl_wrong, 0);
	assert_int_equal(p.b.ctl_down_status, WIMM_E_PEER_LOST);
	p.ops->ctl_close(p.b.ctl, false);
	pair_close(&p);
}

static void verbs_wrong_key_costs_the_path_alone(void **state)
{
	/* Goal: a key that is none takes the path down at both ends, says why, moves no byte. */
	struct pair p;
	struct prov_wr wr;

	(void)state;
	pair_open(&p);
	memset(p.b.mem, 0x55, PAIR_MEM_BYTES);
	wr = pair_wr(&p, 9, 0, 4096);
	wr.flags = PROV_WR_IMM;
	wr.remote_key ^= 0xff00;
	pair_post_all(&p, &wr, 1);
	pair_await(&p, &p.a.down);
	assert_non_null(strstr(p.a.down_text, "wrong key"));
	p.ops->path_close(p.a.path);
	pair_await(&p, &p.a.closed);
	assert_int_equal(p.a.done_lost, 1);
	assert_int_equal(p.a.done_lost_sent, 0);
	pair_await(&p, &p.b.down);
	p.ops->path_close(p.b.path);
	pair_await(&p, &p.b.closed);
	assert_int_equal(p.b.imms, 0);
	for (uint32_t i = 0; i < 4096; i++)
		assert_int_equal(p.b.mem[i], 0x55);
	memset(p.a.units, 0, sizeof(p.a.units));
	pair_join(&p);
	wr = pair_wr(&p, 1, 0, 4096);
	wr.flags = PROV_WR_IMM;
	pair_post_all(&p, &wr, 1);
	pair_drain(&p, 1, 1);
	pair_close(&p);
}

static void verbs_path_close_returns_everything_and_tells_the_peer(void **state)
{
	/* Goal: all requests come back, exactly once, and the other end hears of it. */
	enum { COUNT = 200 };
	static struct prov_wr wr[COUNT];
	struct pair p;
	uint32_t taken;

	(void)state;
	pair_open(&p);
	for (uint32_t i = 0; i < COUNT; i++) {
		wr[i] = pair_wr(&p, i, 0, 65536);
		wr[i].flags = PROV_WR_IMM;
	}
	taken = p.ops->post(p.a.path, wr, COUNT);
	assert_true(taken > 100);
	p.ops->path_close(p.a.path);
	pair_await(&p, &p.a.closed);
	assert_int_equal(p.a.done_ok + p.a.done_lost, taken);
	assert_int_equal(p.a.done_lost, p.a.done_lost_sent);
	for (uint32_t i = 0; i < taken; i++)
		assert_int_equal(p.a.units[i], 1);
	pair_await(&p, &p.b.down);
	assert_non_null(strstr(p.b.down_text, "closed"));
	assert_true(p.b.imms >= p.a.done_ok);
	p.ops->path_close(p.b.path);
	pair_await(&p, &p.b.closed);
	pair_close(&p);
}

static void verbs_receiver_closes_its_end_and_nothing_lands_after(void **state)
{
	/* Goal: path_close() is a fence: memory written to before it does not change afterwards. */
	enum { COUNT = 200, LEN = 16384 };
	static struct prov_wr wr[COUNT];
	struct pair p;

	(void)state;
	pair_open(&p);
	for (uint32_t i = 0; i < COUNT; i++)
		wr[i] = pair_wr(&p, i, (uint64_t)i * LEN, LEN);
	assert_true(p.ops->post(p.a.path, wr, COUNT) == COUNT);
	(void)side_poll(&p.a);
	p.ops->path_close(p.b.path);
	memset(p.b.mem, 0x33, PAIR_MEM_BYTES);
	pair_await(&p, &p.a.down);
	p.ops->path_close(p.a.path);
	pair_await(&p, &p.a.closed);
	pair_await(&p, &p.b.closed);
	for (uint32_t i = 0; i < PAIR_MEM_BYTES; i++)
		if (p.b.mem[i] != 0x33)
			fail_msg("byte %u has changed", i);
	assert_int_equal(p.a.done_ok + p.a.done_lost, COUNT);
	pair_close(&p);
}

static void verbs_dial_to_nobody_ends_in_time(void **state)
{
	/* Goal: a peer that is gone is noticed: by a refused connection, or else by silence. */
	static const struct {
		const char *hello;
		wimm_status status;
	} cases[] = { { "auto", WIMM_E_PEER_LOST }, { "ud", WIMM_E_TIMEOUT } };

	(void)state;
	for (int i = 0; i < 2; i++) {
		struct prov_addr gone;
		struct pair p;

		assert_ok(config_set("verbs_hello", cases[i].hello));
		pair_open_devs(&p);
		gone = p.b.addr;
		side_close(&p.b);
		p.a.ctl = p.ops->ctl_open(p.a.dev, &gone, &p.a);
		assert_non_null(p.a.ctl);
		pair_await(&p, &p.a.ctl_down);
		assert_int_equal(p.a.ctl_down_status, cases[i].status);
		p.ops->ctl_close(p.a.ctl, false);
		pair_close(&p);
	}
	assert_ok(config_set("verbs_hello", "auto"));
}

static void verbs_hello_over_tcp_opens_a_ctl(void **state)
{
	/* Goal: without datagrams the two devices find each other all the same. */
	struct pair p;

	(void)state;
	assert_ok(config_set("verbs_hello", "tcp"));
	pair_open_devs(&p);
	pair_talk(&p);
	pair_join(&p);
	pair_close(&p);
	assert_ok(config_set("verbs_hello", "auto"));
}

static void verbs_last_words_come_before_the_end_of_the_path(void **state)
{
	/* Goal: a message sent before path_close() is there before the peer hears of the close:
	 * a goodbye that came too late would be no goodbye. */
	uint8_t data[64];
	struct pair p;

	(void)state;
	pair_open(&p);
	pair_talk(&p);
	ctl_fill(data, sizeof(data), 0);
	assert_ok(p.ops->ctl_send(p.a.ctl, data, sizeof(data)));
	p.ops->path_close(p.a.path);
	for (int i = 0; i < 200 && !p.b.down; i++)
		(void)side_poll(&p.b); /* before the sender has its next turn */
	assert_true(!p.b.down || p.b.ctl_msgs == 1);
	pair_await(&p, &p.b.down);
	assert_int_equal(p.b.ctl_msgs, 1);
	pair_close(&p);
}

static void verbs_one_event_a_poll_is_enough(void **state)
{
	/* Goal: events wait for room in the caller's array and none is lost. */
	struct pair p;

	(void)state;
	pair_open_devs(&p);
	p.a.max = p.b.max = 1;
	pair_talk(&p);
	pair_join(&p);
	for (uint32_t i = 0; i < 50; i++) {
		struct prov_wr wr = pair_wr(&p, i, 0, 100);

		wr.flags = PROV_WR_IMM;
		wr.imm = i;
		pair_post_all(&p, &wr, 1);
	}
	pair_drain(&p, 50, 50);
	assert_int_equal(p.b.last_imm, 49);
	pair_close(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(verbs_write_with_immediate_lands_before_it_is_counted),
		cmocka_unit_test(verbs_more_writes_than_the_queues_hold_all_arrive),
		cmocka_unit_test(verbs_parts_carry_their_operation),
		cmocka_unit_test(verbs_messages_of_every_length_arrive_in_order),
		cmocka_unit_test(verbs_wrong_key_costs_the_path_alone),
		cmocka_unit_test(verbs_path_close_returns_everything_and_tells_the_peer),
		cmocka_unit_test(verbs_receiver_closes_its_end_and_nothing_lands_after),
		cmocka_unit_test(verbs_dial_to_nobody_ends_in_time),
		cmocka_unit_test(verbs_hello_over_tcp_opens_a_ctl),
		cmocka_unit_test(verbs_last_words_come_before_the_end_of_the_path),
		cmocka_unit_test(verbs_one_event_a_poll_is_enough),
	};

	if (pair_nic(0) == NULL) {
		print_message("skipped: no RDMA device\n");
		return TEST_SKIPPED;
	}
	return cmocka_run_group_tests_name("vm/verbs", tests, NULL, NULL);
}
