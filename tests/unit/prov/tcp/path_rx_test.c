/* SPDX-License-Identifier: Apache-2.0 */
#include "pair.h"

#include "base/log.h"
#include "plat/rand.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void close_path(struct side *s)
{
	prov_tcp_ops.path_close(s->path);
	side_await(s, &s->closed);
}

/* Post one write that must be refused, on the second path; nothing may change and the first path
 * must carry on. */
static void expect_refusal(struct pair *p, const struct prov_wr *wr, wimm_status status,
                           const char *text)
{
	uint8_t *before = malloc(PAIR_MEM_BYTES);
	struct prov_wr good = pair_wr(p, 1, 0, 100, 50);
	uint64_t done = p->a.done_ok;

	memcpy(before, p->b.mem, PAIR_MEM_BYTES);
	p->a2.done_lost = 0;
	pair_join_second(p);
	assert_int_equal(p->ops->post(p->a2.path, wr, 1), 1);
	pair_await(p, &p->a2.down);
	pair_await(p, &p->b2.down);
	assert_int_equal(p->a2.down_status, status);
	assert_int_equal(p->b2.down_status, status);
	if (!strstr(p->a2.down_text, text) || !strstr(p->b2.down_text, text))
		fail_msg("\"%s\" and \"%s\" lack \"%s\"", p->a2.down_text, p->b2.down_text, text);
	assert_memory_equal(before, p->b.mem, PAIR_MEM_BYTES);
	p->ops->path_close(p->a2.path);
	p->ops->path_close(p->b2.path);
	pair_await(p, &p->a2.closed);
	pair_await(p, &p->b2.closed);
	assert_int_equal(p->a2.done_lost, 1);
	assert_int_equal(p->b2.imms, 0);
	assert_int_equal(p->ops->post(p->a.path, &good, 1), 1);
	pair_drain(p, done + 1, 0);
	free(before);
}

static void path_rx_wrong_key_costs_that_path_alone(void **state)
{
	/* Goal: stale generation, free slot, slot outside the table: E_REVOKED, both figures. */
	struct pair p;
	struct prov_wr wr;

	(void)state;
	pair_open(&p, "127.0.0.1:0");
	wr = pair_wr(&p, 1, 0, 0, 4096);
	wr.flags = PROV_WR_IMM;
	wr.remote_key = UINT64_C(0xabcd) << 32 | 5;
	expect_refusal(&p, &wr, WIMM_E_REVOKED, "0000abcd");
	expect_refusal(&p, &wr, WIMM_E_REVOKED, "00001239");
	wr.remote_key = UINT64_C(0x1239) << 32 | 6;
	expect_refusal(&p, &wr, WIMM_E_REVOKED, "region 6");
	wr.remote_key = UINT64_C(0x1239) << 32 | 64000;
	expect_refusal(&p, &wr, WIMM_E_REVOKED, "64000 of a table of 64");
	wr.remote_key = 0;
	expect_refusal(&p, &wr, WIMM_E_REVOKED, "region 0");
	pair_close(&p);
}

static void path_rx_range_outside_the_region_costs_that_path_alone(void **state)
{
	/* Goal: one byte too far, below the base, and sums that wrap are all refused. */
	struct pair p;
	struct prov_wr wr;

	(void)state;
	pair_open(&p, "127.0.0.1:0");
	wr = pair_wr(&p, 1, 0, PAIR_MEM_BYTES - 4095, 4096);
	wr.flags = PROV_WR_IMM;
	expect_refusal(&p, &wr, WIMM_E_RANGE, "8388608");
	wr.remote_addr = (uint64_t)(uintptr_t)p.b.mem - 1;
	expect_refusal(&p, &wr, WIMM_E_RANGE, "offset -1");
	wr.remote_addr = UINT64_MAX - 100;
	expect_refusal(&p, &wr, WIMM_E_RANGE, "4096");
	wr.remote_addr = 0;
	wr.len_bytes = 1;
	expect_refusal(&p, &wr, WIMM_E_RANGE, "write of 1 bytes");
	pair_close(&p);
}

static void path_rx_local_region_is_not_writable(void **state)
{
	/* Goal: a region registered without `remote` is refused though key and range are right. */
	struct pair p;
	struct prov_wr wr;
	struct prov_error error;

	(void)state;
	pair_open(&p, "127.0.0.1:0");
	wr = pair_wr(&p, 1, 0, 0, 4096);
	assert_ok(p.ops->reg(p.b.dev, p.b.mem, 8192, 0, UINT64_C(7) << 32 | 9, &wr.remote_key,
	                     &error));
	expect_refusal(&p, &wr, WIMM_E_PROTOCOL, "local use only");
	pair_close(&p);
}

static void path_rx_nothing_lands_after_dereg_in_mid_frame(void **state)
{
	/* Goal: half a payload has come when the region goes; the other half changes no byte. */
	struct pair p;
	uint8_t block[TCP_HDR_BYTES + TCP_DESC_BYTES];
	uint8_t payload[8192];
	struct tcp_hdr hdr = { .type = TCP_FRAME_DATA, .count = 1, .value = sizeof(payload) };
	struct tcp_desc desc = { .len_bytes = sizeof(payload), .flags = TCP_DESC_LAST };
	int fd;

	(void)state;
	pair_open_devs(&p, "127.0.0.1:0");
	fd = raw_path(&p);
	memset(payload, 0xee, sizeof(payload));
	memset(p.b.mem, 0xcc, sizeof(payload));
	desc.addr = (uint64_t)(uintptr_t)p.b.mem;
	desc.key = p.b.key;
	tcp_hdr_encode(&hdr, block);
	tcp_desc_encode(&desc, block + TCP_HDR_BYTES);
	raw_send(fd, block, sizeof(block));
	raw_send(fd, payload, 4096);
	while (p.b.mem[4095] != 0xee)
		(void)side_poll(&p.b);
	p.ops->dereg(p.b.dev, p.b.key);
	raw_send(fd, payload, 4096);
	side_await(&p.b, &p.b.down);
	assert_int_equal(p.b.down_status, WIMM_E_REVOKED);
	for (size_t i = 4096; i < sizeof(payload); i++)
		assert_int_equal(p.b.mem[i], 0xcc);
	assert_true(raw_read(&p.b, fd, block, TCP_HDR_BYTES));
	assert_ok(tcp_hdr_decode(block, &hdr));
	assert_int_equal(hdr.type, TCP_FRAME_ERROR);
	assert_true((int32_t)hdr.value == WIMM_E_REVOKED);
	raw_await_end(&p.b, fd);
	(void)close(fd);
	pair_close(&p);
}

static void path_rx_frames_that_come_byte_by_byte_land_exactly(void **state)
{
	/* Goal: every split point of headers, descriptors and payload, zero lengths between. */
	static const uint32_t lens[] = { 0, 1, 7, 0, 0, 33, 0 };
	enum { COUNT = sizeof(lens) / sizeof(lens[0]), BYTES = 41 };
	struct pair p;
	uint8_t frame[TCP_HDR_BYTES + COUNT * TCP_DESC_BYTES + BYTES];
	uint8_t want[64];
	struct tcp_hdr hdr = { .type = TCP_FRAME_DATA, .count = COUNT, .value = BYTES };
	uint64_t off = 0;
	uint8_t ack[TCP_HDR_BYTES];
	int fd;

	(void)state;
	pair_open_devs(&p, "127.0.0.1:0");
	fd = raw_path(&p);
	memset(p.b.mem, 0xcc, sizeof(want));
	memset(want, 0xcc, sizeof(want));
	tcp_hdr_encode(&hdr, frame);
	for (uint32_t i = 0; i < COUNT; i++) {
		struct tcp_desc desc = {
			.addr = (uint64_t)(uintptr_t)p.b.mem + off + i,
			.key = lens[i] > 0 ? p.b.key : 0,
			.len_bytes = lens[i],
			.imm = 5,
			.flags = TCP_DESC_LAST | TCP_DESC_IMM,
		};

		tcp_desc_encode(&desc, frame + TCP_HDR_BYTES + i * TCP_DESC_BYTES);
		memset(want + off + i, (int)i + 1, lens[i]);
		memset(frame + TCP_HDR_BYTES + COUNT * TCP_DESC_BYTES + off, (int)i + 1, lens[i]);
		off += lens[i];
	}
	for (size_t i = 0; i < 2 * sizeof(frame); i++) {
		raw_send(fd, &frame[i % sizeof(frame)], 1);
		(void)side_poll(&p.b);
	}
	while (p.b.imms < 2 * COUNT)
		(void)side_poll(&p.b);
	assert_memory_equal(p.b.mem, want, sizeof(want));
	for (hdr.value = 0; hdr.value < 2 * COUNT;) {
		assert_true(raw_read(&p.b, fd, ack, sizeof(ack)));
		assert_ok(tcp_hdr_decode(ack, &hdr));
		assert_int_equal(hdr.type, TCP_FRAME_ACK);
	}
	assert_int_equal(hdr.value, 2 * COUNT);
	(void)close(fd);
	side_await(&p.b, &p.b.down);
	assert_int_equal(p.b.down_status, WIMM_E_PATH_LOST);
	pair_close(&p);
}

/* One frame of a broken peer: b must close that path, tell why, and touch nothing. */
static void expect_broken(struct pair *p, const uint8_t *bytes, size_t len)
{
	int fd = raw_path(p);

	raw_send(fd, bytes, len);
	side_await(&p->b, &p->b.down);
	assert_int_equal(p->b.down_status, WIMM_E_PROTOCOL);
	raw_await_end(&p->b, fd);
	(void)close(fd);
	close_path(&p->b);
}

static void path_rx_malformed_frames_cost_that_path_alone(void **state)
{
	/* Goal: each field of header and descriptor outside its range is refused. */
	struct pair p;
	uint8_t good[TCP_HDR_BYTES + TCP_DESC_BYTES];
	uint8_t bad[sizeof(good)];
	struct tcp_hdr hdr = { .type = TCP_FRAME_DATA, .count = 1, .value = 8 };
	struct tcp_desc desc = { .len_bytes = 8, .flags = TCP_DESC_LAST };
	static const struct {
		uint8_t at;
		uint8_t value;
	} faults[] = {
		{ 0, 0 },        { 0, 4 },         { 0, 255 },     { 1, 1 },       { 2, 0 },
		{ 2, 65 },       { 3, 1 },         { 4, 1 },       { 8, 7 },       { 15, 255 },
		{ 16 + 24, 9 },  { 16 + 27, 255 }, { 16 + 36, 7 }, { 16 + 36, 6 }, { 16 + 36, 1 },
		{ 16 + 36, 12 }, { 16 + 39, 128 },
	};

	(void)state;
	pair_open_devs(&p, "127.0.0.1:0");
	desc.addr = (uint64_t)(uintptr_t)p.b.mem;
	desc.key = p.b.key;
	tcp_hdr_encode(&hdr, good);
	tcp_desc_encode(&desc, good + TCP_HDR_BYTES);
	for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
		memcpy(bad, good, sizeof(good));
		bad[faults[i].at] = faults[i].value;
		expect_broken(&p, bad, sizeof(bad));
	}
	/* An acknowledgement of what was never sent; one with descriptors. */
	hdr = (struct tcp_hdr){ .type = TCP_FRAME_ACK, .value = 1 };
	tcp_hdr_encode(&hdr, bad);
	expect_broken(&p, bad, TCP_HDR_BYTES);
	hdr.count = 1;
	tcp_hdr_encode(&hdr, bad);
	expect_broken(&p, bad, TCP_HDR_BYTES);
	pair_close(&p);
}

static void path_rx_random_bytes_cost_that_path_alone(void **state)
{
	/* Goal: garbage behind a good preface is never placed, counted or waited for in vain. */
	struct pair p;
	struct rng r;
	uint8_t *before;
	uint8_t junk[3000];

	(void)state;
	pair_open(&p, "127.0.0.1:0");
	close_path(&p.b);
	pair_await(&p, &p.a.down);
	before = malloc(PAIR_MEM_BYTES);
	memcpy(before, p.b.mem, PAIR_MEM_BYTES);
	rng_init(&r, test_seed(77));
	for (uint32_t i = 0; i < 100; i++) {
		int fd = raw_path(&p);

		for (size_t k = 0; k < sizeof(junk); k++)
			junk[k] = (uint8_t)rng_u64(&r);
		if (i % 2 == 0) { /* a header that passes, so that the descriptors are looked at */
			struct tcp_hdr hdr = { .type = TCP_FRAME_DATA,
				               .count = (uint16_t)rng_between(&r, 1, 64),
				               .value = rng_below(&r, 1 << 20) };

			tcp_hdr_encode(&hdr, junk);
		}
		raw_send(fd, junk, sizeof(junk));
		side_await(&p.b, &p.b.down);
		assert_int_equal(p.b.down_status, WIMM_E_PROTOCOL);
		(void)close(fd);
		close_path(&p.b);
	}
	assert_memory_equal(before, p.b.mem, PAIR_MEM_BYTES);
	assert_int_equal(p.b.imms, 0);
	pair_close(&p);
	free(before);
}

static void path_rx_error_frame_of_a_liar_is_only_text(void **state)
{
	/* Goal: a status that no provider sends, and control characters, are made harmless. */
	struct pair p;
	uint8_t frame[TCP_HDR_BYTES + 4];
	struct tcp_hdr hdr = { .type = TCP_FRAME_ERROR, .count = 4, .value = 12345 };
	int fd;

	(void)state;
	pair_open_devs(&p, "127.0.0.1:0");
	fd = raw_path(&p);
	tcp_hdr_encode(&hdr, frame);
	memcpy(frame + TCP_HDR_BYTES, "a\033\nb", 4);
	raw_send(fd, frame, sizeof(frame));
	side_await(&p.b, &p.b.down);
	assert_int_equal(p.b.down_status, WIMM_E_PROTOCOL);
	assert_non_null(strstr(p.b.down_text, "a??b"));
	(void)close(fd);
	pair_close(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(path_rx_wrong_key_costs_that_path_alone),
		cmocka_unit_test(path_rx_range_outside_the_region_costs_that_path_alone),
		cmocka_unit_test(path_rx_local_region_is_not_writable),
		cmocka_unit_test(path_rx_nothing_lands_after_dereg_in_mid_frame),
		cmocka_unit_test(path_rx_frames_that_come_byte_by_byte_land_exactly),
		cmocka_unit_test(path_rx_malformed_frames_cost_that_path_alone),
		cmocka_unit_test(path_rx_random_bytes_cost_that_path_alone),
		cmocka_unit_test(path_rx_error_frame_of_a_liar_is_only_text),
	};

	log_set_level(LOG_LEVEL_ERROR); /* each refusal is a warning */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
