/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include "core/wire.h"
#include "lib/wire_samples.h"
#include "plat/rand.h"

#include <string.h>

enum { AT_MAJOR = 0, AT_MINOR = 1, AT_KIND = 2, AT_ZERO = 3, HEAD_BYTES = 4 };

static struct wimm_net_addr sample_addr(uint32_t variant)
{
	struct wimm_net_addr bytes;
	struct wire_addr a;

	wire_sample_addr(variant, &a);
	assert_ok(wire_addr_encode(&a, &bytes));
	return bytes;
}

static struct wimm_mr_desc sample_desc(uint32_t variant)
{
	struct wimm_mr_desc bytes;
	struct wire_desc d;

	wire_sample_desc(variant, &d);
	assert_ok(wire_desc_encode(&d, &bytes));
	return bytes;
}

/* Decode; what is accepted must travel on unchanged. */
static wimm_status addr_checked(const struct wimm_net_addr *bytes)
{
	struct wimm_net_addr once, twice;
	struct wire_addr a;
	wimm_status st = wire_addr_decode(bytes, &a);

	if (st != WIMM_OK) {
		assert_true(st == WIMM_E_PARSE || st == WIMM_E_VERSION);
		return st;
	}
	assert_ok(wire_addr_encode(&a, &once));
	assert_true(once.len_bytes <= bytes->len_bytes);
	assert_ok(wire_addr_decode(&once, &a));
	assert_ok(wire_addr_encode(&a, &twice));
	assert_memory_equal(&once, &twice, sizeof(once));
	return st;
}

static wimm_status desc_checked(const struct wimm_mr_desc *bytes)
{
	struct wimm_mr_desc once, twice;
	struct wire_desc d;
	wimm_status st = wire_desc_decode(bytes, &d);

	if (st != WIMM_OK) {
		assert_true(st == WIMM_E_PARSE || st == WIMM_E_VERSION);
		return st;
	}
	assert_true(d.len_bytes != 0 && d.base + d.len_bytes > d.base && d.generation != 0);
	assert_true(d.owner.nic_count >= 1 && d.owner.nic_count <= WIMM_MAX_NICS);
	assert_ok(wire_desc_encode(&d, &once));
	assert_true(once.len_bytes <= bytes->len_bytes);
	assert_ok(wire_desc_decode(&once, &d));
	assert_ok(wire_desc_encode(&d, &twice));
	assert_memory_equal(&once, &twice, sizeof(once));
	return st;
}

static void wire_addresses_and_descriptors_survive_the_trip(void **state)
{
	/* Goal: every field of every size comes back. */
	(void)state;
	for (uint32_t v = 0; v < WIRE_SAMPLE_VARIANTS; v++) {
		struct wimm_net_addr addr = sample_addr(v);
		struct wimm_mr_desc desc = sample_desc(v);
		struct wire_addr a, a_sent;
		struct wire_desc d, d_sent;

		wire_sample_addr(v, &a_sent);
		wire_sample_desc(v, &d_sent);
		assert_ok(wire_addr_decode(&addr, &a));
		assert_memory_equal(&a, &a_sent, sizeof(a));
		assert_ok(wire_desc_decode(&desc, &d));
		assert_memory_equal(&d, &d_sent, sizeof(d));
	}
}

static void wire_address_bytes_are_those_of_the_specification(void **state)
{
	/* Goal: version 1 stays version 1: these bytes never change. */
	static const uint8_t want[] = { 1,   0,  'A', 0,  1,    32,   63,  94,  125, 156, 187, 218,
		                        249, 24, 55,  86, 117,  148,  179, 210, 3,   't', 'c', 'p',
		                        1,   8,  4,   0,  0x67, 0x12, 127, 0,   0,   1 };
	struct wimm_net_addr addr = sample_addr(0);
	struct wimm_mr_desc desc = sample_desc(0);

	(void)state;
	assert_int_equal(addr.len_bytes, sizeof(want));
	assert_memory_equal(addr.bytes, want, sizeof(want));
	assert_int_equal(desc.len_bytes, HEAD_BYTES + 2 + sizeof(want) - HEAD_BYTES + 24 + 8);
	assert_int_equal(desc.bytes[AT_KIND], 'D');
	assert_int_equal(desc.bytes[HEAD_BYTES], sizeof(want) - HEAD_BYTES);
	assert_memory_equal(desc.bytes + HEAD_BYTES + 2, want + HEAD_BYTES,
	                    sizeof(want) - HEAD_BYTES);
}

static void wire_address_that_may_not_be_sent_is_refused(void **state)
{
	/* Goal: encoding checks our own values, and leaves its output alone when it refuses. */
	struct wimm_net_addr out = { .len_bytes = 7 };
	struct wire_addr a;

	(void)state;
	wire_sample_addr(1, &a);
	a.nic_count = 0;
	assert_int_equal(wire_addr_encode(&a, &out), WIMM_E_INVAL);
	a.nic_count = WIMM_MAX_NICS + 1;
	assert_int_equal(wire_addr_encode(&a, &out), WIMM_E_INVAL);
	wire_sample_addr(1, &a);
	a.nic[1].len_bytes = 0;
	assert_int_equal(wire_addr_encode(&a, &out), WIMM_E_INVAL);
	a.nic[1].len_bytes = PROV_ADDR_MAX_BYTES + 1;
	assert_int_equal(wire_addr_encode(&a, &out), WIMM_E_INVAL);
	wire_sample_addr(1, &a);
	a.provider[0] = 'T';
	assert_int_equal(wire_addr_encode(&a, &out), WIMM_E_INVAL);
	a.provider[0] = '\0';
	assert_int_equal(wire_addr_encode(&a, &out), WIMM_E_INVAL);
	memset(a.provider, 'a', sizeof(a.provider));
	assert_int_equal(wire_addr_encode(&a, &out), WIMM_E_INVAL);
	assert_int_equal(out.len_bytes, 7);
}

static void wire_descriptor_out_of_range_is_refused(void **state)
{
	/* Goal: no owner, no length, a range that wraps and generation 0 are nobody's region. */
	struct wimm_mr_desc out = { .len_bytes = 7 };
	struct wire_desc d;

	(void)state;
	wire_sample_desc(1, &d);
	memset(d.owner.instance, 0, sizeof(d.owner.instance));
	assert_int_equal(wire_desc_encode(&d, &out), WIMM_E_INVAL);
	wire_sample_desc(1, &d);
	d.len_bytes = 0;
	assert_int_equal(wire_desc_encode(&d, &out), WIMM_E_INVAL);
	wire_sample_desc(1, &d);
	d.base = UINT64_MAX - d.len_bytes + 1;
	assert_int_equal(wire_desc_encode(&d, &out), WIMM_E_INVAL);
	wire_sample_desc(1, &d);
	d.generation = 0;
	assert_int_equal(wire_desc_encode(&d, &out), WIMM_E_INVAL);
	assert_int_equal(out.len_bytes, 7);
	/* The same from outside: base and length lie in front of slot, generation and two keys. */
	out = sample_desc(1);
	memset(out.bytes + out.len_bytes - 16 - 8 - 16, 0xff, 8);
	assert_int_equal(desc_checked(&out), WIMM_E_PARSE);
	out = sample_desc(1);
	memset(out.bytes + out.len_bytes - 16 - 8 - 8, 0, 8);
	assert_int_equal(desc_checked(&out), WIMM_E_PARSE);
	out = sample_desc(1);
	memset(out.bytes + HEAD_BYTES + 2, 0, WIMM_INSTANCE_BYTES);
	assert_int_equal(desc_checked(&out), WIMM_E_PARSE);
}

static void wire_one_kind_is_not_taken_for_the_other(void **state)
{
	/* Goal: an address handed over as a descriptor is refused, and the other way round. */
	struct wimm_net_addr addr = sample_addr(1), other = { 0 };
	struct wimm_mr_desc desc = { 0 }, real = sample_desc(0);

	(void)state;
	desc.len_bytes = addr.len_bytes;
	memcpy(desc.bytes, addr.bytes, addr.len_bytes);
	assert_int_equal(desc_checked(&desc), WIMM_E_PARSE);
	other.len_bytes = real.len_bytes;
	memcpy(other.bytes, real.bytes, real.len_bytes);
	assert_int_equal(addr_checked(&other), WIMM_E_PARSE);
}

static void case_76_other_versions_of_addresses_and_descriptors(void **state)
{
	/* Goal: higher major refused as such, lower as garbage, higher minor with more read. */
	struct wimm_net_addr addr = sample_addr(2);
	struct wimm_mr_desc desc = sample_desc(2);
	uint32_t addr_len = addr.len_bytes, desc_len = desc.len_bytes;
	struct wire_addr a, a_sent;
	struct wire_desc d, d_sent;

	(void)state;
	addr.bytes[AT_MAJOR] = desc.bytes[AT_MAJOR] = WIRE_MAJOR + 1;
	assert_int_equal(addr_checked(&addr), WIMM_E_VERSION);
	assert_int_equal(desc_checked(&desc), WIMM_E_VERSION);
	assert_int_equal(wire_major(addr.bytes, addr.len_bytes), WIRE_MAJOR + 1);
	addr.bytes[AT_MAJOR] = desc.bytes[AT_MAJOR] = WIRE_MAJOR - 1;
	assert_int_equal(addr_checked(&addr), WIMM_E_PARSE);
	assert_int_equal(desc_checked(&desc), WIMM_E_PARSE);
	addr.bytes[AT_MAJOR] = desc.bytes[AT_MAJOR] = WIRE_MAJOR;
	addr.bytes[AT_MINOR] = desc.bytes[AT_MINOR] = WIRE_MINOR + 1;
	memset(addr.bytes + addr_len, 0x5a, 9);
	memset(desc.bytes + desc_len, 0x5a, 9);
	addr.len_bytes += 9;
	desc.len_bytes += 9;
	wire_sample_addr(2, &a_sent);
	wire_sample_desc(2, &d_sent);
	assert_ok(wire_addr_decode(&addr, &a));
	assert_memory_equal(&a, &a_sent, sizeof(a));
	assert_ok(wire_desc_decode(&desc, &d));
	assert_memory_equal(&d, &d_sent, sizeof(d));
}

static void case_76_address_that_grew_inside_a_descriptor_is_read(void **state)
{
	/* Goal: fields added to the address do not shift those of the descriptor behind it. */
	struct wimm_mr_desc desc = sample_desc(0);
	uint32_t addr_len = desc.bytes[HEAD_BYTES], tail = HEAD_BYTES + 2 + addr_len;
	struct wire_desc d, d_sent;

	(void)state;
	memmove(desc.bytes + tail + 5, desc.bytes + tail, desc.len_bytes - tail);
	memset(desc.bytes + tail, 0xee, 5);
	desc.bytes[HEAD_BYTES] = (uint8_t)(addr_len + 5);
	desc.len_bytes += 5;
	wire_sample_desc(0, &d_sent);
	assert_ok(wire_desc_decode(&desc, &d));
	assert_memory_equal(&d, &d_sent, sizeof(d));
}

static void case_105_every_truncation_is_a_parse_error(void **state)
{
	/* Goal: addresses and descriptors cut anywhere, or claiming too much, are refused. */
	(void)state;
	for (uint32_t v = 0; v < WIRE_SAMPLE_VARIANTS; v++) {
		struct wimm_net_addr addr = sample_addr(v);
		struct wimm_mr_desc desc = sample_desc(v);

		for (uint32_t len = addr.len_bytes; len-- > 0;) {
			addr.len_bytes = len;
			assert_int_equal(addr_checked(&addr), WIMM_E_PARSE);
		}
		for (uint32_t len = desc.len_bytes; len-- > 0;) {
			desc.len_bytes = len;
			assert_int_equal(desc_checked(&desc), WIMM_E_PARSE);
		}
		addr.len_bytes = sizeof(addr.bytes) + 1;
		assert_int_equal(addr_checked(&addr), WIMM_E_PARSE);
		desc.len_bytes = UINT32_MAX;
		assert_int_equal(desc_checked(&desc), WIMM_E_PARSE);
	}
}

static void case_105_every_bit_flip_is_refused_or_consistent(void **state)
{
	/* Goal: no single flipped bit yields a value that breaks its own rules. */
	(void)state;
	for (uint32_t v = 0; v < WIRE_SAMPLE_VARIANTS; v++) {
		struct wimm_net_addr addr = sample_addr(v);
		struct wimm_mr_desc desc = sample_desc(v);

		for (uint32_t bit = 0; bit < 8 * addr.len_bytes; bit++) {
			addr.bytes[bit / 8] ^= (uint8_t)(1u << (bit % 8));
			(void)addr_checked(&addr);
			addr.bytes[bit / 8] ^= (uint8_t)(1u << (bit % 8));
		}
		assert_ok(addr_checked(&addr));
		for (uint32_t bit = 0; bit < 8 * desc.len_bytes; bit++) {
			desc.bytes[bit / 8] ^= (uint8_t)(1u << (bit % 8));
			(void)desc_checked(&desc);
			desc.bytes[bit / 8] ^= (uint8_t)(1u << (bit % 8));
		}
		assert_ok(desc_checked(&desc));
	}
}

static void case_105_random_bytes_are_refused_or_consistent(void **state)
{
	/* Goal: 100,000 random blobs each as address and as descriptor do no harm. */
	uint32_t accepted = 0;
	struct rng r;

	(void)state;
	rng_init(&r, test_seed(105));
	for (uint32_t i = 0; i < 100000; i++) {
		struct wimm_net_addr addr = { 0 };
		struct wimm_mr_desc desc = { 0 };

		addr.len_bytes = desc.len_bytes = (uint32_t)rng_below(&r, 160);
		for (uint32_t j = 0; j < addr.len_bytes; j++)
			addr.bytes[j] = (uint8_t)rng_below(&r, rng_chance(&r, 1, 2) ? 256 : 3);
		if (rng_chance(&r, 1, 2)) { /* far enough in to matter */
			static const uint8_t name[] = { 3, 't', 'c', 'p', 1, 6 };

			memcpy(addr.bytes, "\1\0A", 4);
			memcpy(addr.bytes + HEAD_BYTES + WIMM_INSTANCE_BYTES, name, sizeof(name));
		}
		memcpy(desc.bytes, addr.bytes, addr.len_bytes);
		if (rng_chance(&r, 1, 2)) {
			memcpy(desc.bytes, "\1\0D\0\40", 6);
			memmove(desc.bytes + HEAD_BYTES + 2, addr.bytes + HEAD_BYTES, 32);
		}
		accepted += addr_checked(&addr) == WIMM_OK;
		accepted += desc_checked(&desc) == WIMM_OK;
	}
	assert_true(accepted > 10000); /* else the blobs never got past the first check */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(wire_addresses_and_descriptors_survive_the_trip),
		cmocka_unit_test(wire_address_bytes_are_those_of_the_specification),
		cmocka_unit_test(wire_address_that_may_not_be_sent_is_refused),
		cmocka_unit_test(wire_descriptor_out_of_range_is_refused),
		cmocka_unit_test(wire_one_kind_is_not_taken_for_the_other),
		cmocka_unit_test(case_76_other_versions_of_addresses_and_descriptors),
		cmocka_unit_test(case_76_address_that_grew_inside_a_descriptor_is_read),
		cmocka_unit_test(case_105_every_truncation_is_a_parse_error),
		cmocka_unit_test(case_105_every_bit_flip_is_refused_or_consistent),
		cmocka_unit_test(case_105_random_bytes_are_refused_or_consistent),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
