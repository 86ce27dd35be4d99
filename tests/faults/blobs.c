/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses and descriptors that were damaged on their way, given to an engine (contract C11). The
 * decoders alone are tested, and fuzzed, elsewhere. */
#include "faults/puppet.h"

#include "base/config.h"
#include "core/engine.h"
#include "plat/rand.h"

#include <stdlib.h>
#include <string.h>

/* Whether a bit of a blob may be changed: over tcp not in a NIC's address, which would have the
 * engine dial the network. */
static bool may_flip(const struct node *owner, const uint8_t *blob, uint32_t len, uint32_t byte)
{
	const struct prov_addr *nic = owner->engine->self.nic;

	if (strcmp(cfg.provider, "tcp") != 0)
		return true;
	for (uint32_t i = 0; i < owner->engine->self.nic_count; i++) {
		const uint8_t *at = memmem(blob, len, nic[i].bytes, nic[i].len_bytes);

		if (at != NULL && byte >= at - blob && byte < at - blob + nic[i].len_bytes)
			return false;
	}
	return true;
}

/* Use a descriptor if it reads as one: a write through it that may end in any way, in time. */
static void try_desc(struct node *a, const struct wimm_mr_desc *desc)
{
	struct wimm_remote_mr *to = NULL;
	struct wimm_write w;
	struct result *r;
	struct wimm_on_done done;

	if (wimm_open_remote_mr(a->engine, desc, &to) != WIMM_OK)
		return;
	r = result_new();
	done = to_result(r);
	w = single(a, to, 0, 0, 1);
	w.deadline_us = 1000000;
	r->accepted = wimm_submit_single_write(a->engine, &w, &done, &r->id) == WIMM_OK;
	if (r->accepted)
		result_wait(r);
	assert_ok(wimm_close_remote_mr(a->engine, to));
}

static void try_addr(struct node *a, const struct wimm_net_addr *addr)
{
	wimm_peer peer = 0;
	wimm_status st;

	if (wimm_add_peer(a->engine, addr, NULL, &peer) != WIMM_OK)
		return;
	st = wimm_remove_peer(a->engine, peer);
	assert_true(st == WIMM_OK || st == WIMM_E_NOT_FOUND); /* it may be lost by now */
}

static struct wimm_engine_opts lonely_opts(void)
{
	struct wimm_engine_opts o = node_opts();

	setenv("WIMM_HELLO_TIMEOUT_MS", "500", 1);
	config_reload();
	return o;
}

static void usual_settings(void)
{
	unsetenv("WIMM_HELLO_TIMEOUT_MS");
	config_reload();
}

/* The pair works after all that. */
static void still_works(struct node *a, struct node *b)
{
	fill(a->mem, 4096, 105);
	result_ok(write_imm(a, remote_of(a, b), 0, 0, 4096, 105));
	imm_reaches(b, 105, 1);
	assert_true(holds(b->mem, 4096, 105));
}

/* Goal: no truncation and no changed bit of a descriptor does more than fail. */
static void damaged_descriptor_case_105_fails_cleanly(void **state)
{
	struct wimm_engine_opts o = lonely_opts();
	struct node *a = node_open_with(&o, 4096), *b = node_open_with(&o, 4096);
	unsigned step = test_scale() > 1 ? 1 : 3;

	(void)state;
	usual_settings();
	for (uint32_t len = 0; len < b->desc.len_bytes; len++) {
		struct wimm_mr_desc d = b->desc;

		d.len_bytes = len;
		memset(d.bytes + len, 0xff, sizeof(d.bytes) - len);
		try_desc(a, &d);
	}
	for (uint32_t bit = 0; bit < b->desc.len_bytes * 8; bit += step) {
		struct wimm_mr_desc d = b->desc;

		if (!may_flip(b, d.bytes, d.len_bytes, bit / 8))
			continue;
		d.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
		try_desc(a, &d);
	}
	still_works(a, b);
}

/* Goal: the same for addresses. */
static void damaged_address_case_105_fails_cleanly(void **state)
{
	struct wimm_engine_opts o = lonely_opts();
	struct node *a = node_open_with(&o, 4096), *b = node_open_with(&o, 4096);

	(void)state;
	usual_settings();
	for (uint32_t len = 0; len < b->addr.len_bytes; len++) {
		struct wimm_net_addr d = b->addr;

		d.len_bytes = len;
		try_addr(a, &d);
	}
	for (uint32_t bit = 0; bit < b->addr.len_bytes * 8; bit++) {
		struct wimm_net_addr d = b->addr;

		if (!may_flip(b, d.bytes, d.len_bytes, bit / 8))
			continue;
		d.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
		try_addr(a, &d);
	}
	still_works(a, b);
}

/* Goal: 100 000 random blobs are refused, also behind a right header. */
static void random_blobs_case_105_are_refused(void **state)
{
	struct node *a = node_open(4096), *b = node_open(4096);
	struct wimm_remote_mr *to;
	struct wimm_net_addr addr;
	struct wimm_mr_desc desc;
	struct rng rng;
	wimm_peer peer;

	(void)state;
	rng_init(&rng, test_seed(0x105));
	memset(&addr, 0, sizeof(addr));
	memset(&desc, 0, sizeof(desc));
	for (uint32_t i = 0; i < 50000; i++) {
		for (size_t k = 0; k < 64; k++)
			addr.bytes[k] = desc.bytes[k] = (uint8_t)rng_below(&rng, 256);
		if (i % 2 == 0) {
			memcpy(addr.bytes, b->addr.bytes, 4);
			memcpy(desc.bytes, b->desc.bytes, 4);
		}
		addr.len_bytes = (uint32_t)rng_below(&rng, WIMM_NET_ADDR_MAX_BYTES + 2);
		desc.len_bytes = (uint32_t)rng_below(&rng, WIMM_MR_DESC_MAX_BYTES + 2);
		assert_int_not_equal(wimm_add_peer(a->engine, &addr, NULL, &peer), WIMM_OK);
		assert_int_not_equal(wimm_open_remote_mr(a->engine, &desc, &to), WIMM_OK);
	}
	still_works(a, b);
}

static const struct contract_case cases[] = {
	CASE(damaged_descriptor_case_105_fails_cleanly),
	CASE(damaged_address_case_105_fails_cleanly),
	CASE(random_blobs_case_105_are_refused),
};
GROUP(blobs, cases);
