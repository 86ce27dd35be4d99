/* SPDX-License-Identifier: Apache-2.0 */
/* Messages into receive buffers: contract C8, and what is too long. */
#include "contract/fixture.h"

#include "base/config.h"
#include "plat/rand.h"

#include <stdlib.h>
#include <string.h>

#define SEEN_MAX 2048

/* What a pool of buffers has received; under the gate. */
struct inbox {
	uint32_t count; /* messages */
	uint32_t back;  /* buffers that came back */
	uint32_t wrong; /* messages whose bytes are not their own */
	uint8_t seen[SEEN_MAX];
};

/* A message: its number, then a pattern of it. */
static void make(uint8_t *at, uint64_t len, uint32_t number)
{
	fill(at, len, number);
	memcpy(at, &number, len < 4 ? len : 4);
}

static void on_message(void *context, const struct wimm_received *m)
{
	struct inbox *in = context;
	const uint8_t *bytes = m->addr;
	uint32_t number = 0;

	gate_lock();
	if (m->status != WIMM_OK) {
		in->back++;
		gate_unlock();
		return;
	}
	if (m->len_bytes >= 4) {
		memcpy(&number, bytes, 4);
		in->wrong += number >= SEEN_MAX;
		if (number < SEEN_MAX)
			in->seen[number]++;
		for (uint64_t i = 4; i < m->len_bytes; i++)
			in->wrong += bytes[i] != pattern(number, i);
	}
	in->count++;
	gate_unlock();
}

struct until {
	struct inbox *in;
	uint32_t count;
	uint32_t back;
};

static bool received(void *arg)
{
	struct until *u = arg;
	bool there;

	gate_lock();
	there = u->in->count == u->count && u->in->back == u->back;
	gate_unlock();
	return there;
}

static void inbox_reaches(struct inbox *in, uint32_t count, uint32_t back)
{
	struct until u = { in, count, back };

	assert_wait(received, &u);
}

static wimm_op pool(struct node *n, struct inbox *in, uint8_t *at, uint64_t stride, uint64_t len,
                    uint32_t count)
{
	struct wimm_recv_buffer *buffers = calloc(count, sizeof(*buffers));
	wimm_op op;

	for (uint32_t i = 0; i < count; i++)
		buffers[i] = (struct wimm_recv_buffer){ at + i * stride, len };
	assert_ok(wimm_submit_recvs(n->engine, buffers, count, on_message, in, &op));
	free(buffers);
	return op;
}

static struct result *send_to(struct node *from, wimm_peer peer, uint64_t len, uint32_t number)
{
	struct wimm_send s = WIMM_SEND_INIT;
	struct result *r = result_new();
	struct wimm_on_done on_done = to_result(r);
	uint8_t bytes[256];

	make(bytes, len, number);
	s.peer = peer;
	s.data = bytes;
	s.len_bytes = len;
	assert_ok(wimm_submit_send(from->engine, &s, &on_done, &r->id));
	r->accepted = true;
	return r;
}

/* Goal: a message longer than the buffer fails at its sender, writes nothing past the buffer, and
 * the next ones arrive whole. */
static void inbox_message_too_long_case_64_is_refused(void **state)
{
	struct node *a = node_open(64), *b = node_open(64);
	struct inbox *in = case_memory(sizeof(*in));
	uint8_t *buffer = case_memory(64 + 64);
	wimm_peer peer = peer_of(a, b);
	wimm_op op;

	(void)state;
	memset(buffer, 0xaa, 128);
	op = pool(b, in, buffer, 64, 64, 1);
	result_is(send_to(a, peer, 65, 1), WIMM_E_TOO_LONG);
	assert_true(all_are(buffer, 128, 0xaa));
	result_ok(send_to(a, peer, 64, 2));
	result_ok(send_to(a, peer, 1, 3));
	inbox_reaches(in, 2, 0);
	assert_int_equal(in->seen[2], 1);
	assert_int_equal(in->wrong, 0);
	assert_true(all_are(buffer + 64, 64, 0xaa));
	assert_ok(wimm_cancel(b->engine, op));
	inbox_reaches(in, 2, 1);
}

/* Goal: in a burst of messages of any length each that fits arrives whole and once, each other one
 * gives one error. */
static void inbox_burst_case_65_keeps_messages_apart(void **state)
{
	struct node *a = node_open(64), *b = node_open(64);
	struct inbox *in = case_memory(sizeof(*in));
	uint8_t *buffers = case_memory(16 * 128);
	static struct result *results[1000];
	static uint64_t lengths[1000];
	wimm_peer peer = peer_of(a, b);
	uint32_t fit = 0;
	struct rng rng;
	wimm_op op;

	(void)state;
	rng_init(&rng, 65);
	op = pool(b, in, buffers, 128, 100, 16);
	for (uint32_t i = 0; i < 1000; i++) {
		lengths[i] = 4 + rng_below(&rng, 197);
		results[i] = send_to(a, peer, lengths[i], i);
	}
	for (uint32_t i = 0; i < 1000; i++) {
		result_is(results[i], lengths[i] <= 100 ? WIMM_OK : WIMM_E_TOO_LONG);
		fit += lengths[i] <= 100;
	}
	inbox_reaches(in, fit, 0);
	assert_int_equal(in->wrong, 0);
	for (uint32_t i = 0; i < 1000; i++)
		assert_int_equal(in->seen[i], lengths[i] <= 100);
	assert_ok(wimm_cancel(b->engine, op));
	inbox_reaches(in, fit, 16);
}

/* Goal: a pool of two buffers takes 500 messages: the sender waits, nothing is lost or doubled. */
static void inbox_small_pool_case_66_delays_and_loses_nothing(void **state)
{
	struct node *a = node_open(64), *b = node_open(64);
	struct inbox *in = case_memory(sizeof(*in));
	uint8_t *buffers = case_memory(2 * 64);
	static struct result *results[500];
	wimm_peer peer = peer_of(a, b);
	wimm_op op;

	(void)state;
	/* The first ones meet no buffer at all. */
	for (uint32_t i = 0; i < 250; i++)
		results[i] = send_to(a, peer, 40, i);
	connect_nodes(a, b);
	drive_rounds(50);
	op = pool(b, in, buffers, 64, 64, 2);
	for (uint32_t i = 250; i < 500; i++)
		results[i] = send_to(a, peer, 40, i);
	for (uint32_t i = 0; i < 500; i++)
		result_ok(results[i]);
	inbox_reaches(in, 500, 0);
	assert_int_equal(in->wrong, 0);
	for (uint32_t i = 0; i < 500; i++)
		assert_int_equal(in->seen[i], 1);
	assert_ok(wimm_cancel(b->engine, op));
	inbox_reaches(in, 500, 2);
}

/* Goal: messages submitted before the session stands keep to what the peer takes, which is known
 * only then; those around one that is too long arrive. */
static void inbox_message_too_long_for_a_new_peer_is_refused(void **state)
{
	struct node *a = node_open(64), *b;
	struct inbox *in = case_memory(sizeof(*in));
	struct result *r[3];
	wimm_peer peer;

	(void)state;
	assert_ok(config_set("max_msg_bytes", "64"));
	b = node_open(64);
	config_reload();
	(void)pool(b, in, case_memory(256), 256, 256, 1);
	peer = peer_of(a, b);
	r[0] = send_to(a, peer, 64, 1);
	r[1] = send_to(a, peer, 65, 2);
	r[2] = send_to(a, peer, 10, 3);
	result_ok(r[0]);
	result_is(r[1], WIMM_E_TOO_LONG);
	assert_non_null(strstr(r[1]->text, "the peer takes 64"));
	result_ok(r[2]);
	inbox_reaches(in, 2, 0);
}

static const struct contract_case cases[] = {
	CASE(inbox_message_too_long_case_64_is_refused),
	CASE(inbox_message_too_long_for_a_new_peer_is_refused),
	CASE(inbox_burst_case_65_keeps_messages_apart),
	CASE(inbox_small_pool_case_66_delays_and_loses_nothing),
};
GROUP(inbox, cases);
