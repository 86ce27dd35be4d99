/* SPDX-License-Identifier: Apache-2.0 */
#include "kv/slots.h"

#include "kv/mem.h"

bool kv_slots_init(struct kv_slots *s, uint32_t count)
{
	s->ring = kv_calloc(count, sizeof(*s->ring));
	s->count = count;
	s->head = 0;
	s->free = count;
	if (s->ring == NULL)
		return false;
	for (uint32_t i = 0; i < count; i++)
		s->ring[i] = i;
	return true;
}

void kv_slots_fini(struct kv_slots *s)
{
	kv_free(s->ring);
	s->ring = NULL;
}

bool kv_slots_get(struct kv_slots *s, uint32_t *out)
{
	if (s->free == 0)
		return false;
	*out = s->ring[s->head];
	s->head = (s->head + 1) % s->count;
	s->free--;
	return true;
}

void kv_slots_put(struct kv_slots *s, uint32_t slot)
{
	s->ring[(s->head + s->free) % s->count] = slot;
	s->free++;
}
