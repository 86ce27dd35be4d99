/* SPDX-License-Identifier: Apache-2.0 */
#include "fuzz.h"

#include "prov/host/ring.h"

#include <string.h>

enum { WORDS = 8 };

static bool same(const struct host_entry *a, const struct host_entry *b)
{
	return a->kind == b->kind && a->flags == b->flags && a->len_bytes == b->len_bytes &&
	       a->imm == b->imm && a->addr == b->addr && a->key == b->key &&
	       a->op_seq == b->op_seq && a->parts == b->parts && a->src == b->src &&
	       a->inlined[0] == b->inlined[0] && a->inlined[1] == b->inlined[1];
}

/* What is taken for an entry keeps to its kind's limits, whatever lies in the shared slot. */
static void check(const struct host_entry *e)
{
	FUZZ_CHECK(e->kind >= HOST_ENTRY_INLINE && e->kind <= HOST_ENTRY_CARD);
	FUZZ_CHECK(e->kind != HOST_ENTRY_CARD || e->len_bytes <= HOST_PIECE_BYTES);
	FUZZ_CHECK(e->kind != HOST_ENTRY_INLINE || e->len_bytes <= HOST_INLINE_BYTES);
	FUZZ_CHECK(e->kind != HOST_ENTRY_SLOT || e->len_bytes <= HOST_PIECE_BYTES);
	FUZZ_CHECK(e->kind != HOST_ENTRY_OFFER || e->len_bytes <= HOST_OFFER_BYTES);
	FUZZ_CHECK((e->flags & ~(HOST_ENTRY_IMM | HOST_ENTRY_PART | HOST_ENTRY_LAST)) == 0);
	FUZZ_CHECK((e->flags & (HOST_ENTRY_IMM | HOST_ENTRY_PART)) == 0 ||
	           (e->flags & HOST_ENTRY_LAST) != 0);
	FUZZ_CHECK((e->flags & HOST_ENTRY_PART) == 0 || e->parts >= 2);
}

/* A slot of a ring that the other process has filled with anything: 64 bytes, and a position. Of an
 * offer's takers at most one wins, whatever its state word says. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct host_slot slot, again;
	struct host_entry e, e2;
	uint64_t word[WORDS];
	uint32_t pos;

	if (size < sizeof(word) + sizeof(pos))
		return 0;
	memcpy(word, data, sizeof(word));
	memcpy(&pos, data + sizeof(word), sizeof(pos));
	for (int i = 0; i < WORDS; i++)
		atomic_init(&slot.word[i], word[i]);
	if (size > sizeof(word) + sizeof(pos)) /* else hardly any would have the right sequence */
		atomic_init(&slot.word[0], (word[0] & ~(uint64_t)UINT32_MAX) | (uint32_t)(pos + 1));
	if (host_slot_get(&slot, pos, &e) == HOST_SLOT_FULL) {
		check(&e);
		for (int i = 0; i < WORDS; i++)
			atomic_init(&again.word[i], 0);
		host_slot_put(&again, pos, &e);
		FUZZ_CHECK(host_slot_get(&again, pos, &e2) == HOST_SLOT_FULL && same(&e, &e2));
	}
	if (host_slot_begin(&slot, pos)) {
		bool withdrawn = host_slot_withdraw(&slot, pos) != HOST_SLOT_TAKEN;

		FUZZ_CHECK(withdrawn && host_slot_withdrawn(&slot, pos));
		FUZZ_CHECK(!host_slot_take(&slot, pos));
	}
	return 0;
}
