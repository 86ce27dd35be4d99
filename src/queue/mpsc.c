/* SPDX-License-Identifier: Apache-2.0 */
#include "queue/mpsc.h"

#include <stddef.h>

void mpsc_init(struct mpsc *q)
{
	atomic_init(&q->stub.next, NULL);
	atomic_init(&q->tail, &q->stub);
	q->head = &q->stub;
}

void mpsc_push(struct mpsc *q, struct mpsc_node *node)
{
	struct mpsc_node *prev;

	/* Nobody else knows the node yet. */
	atomic_store_explicit(&node->next, NULL, memory_order_relaxed);
	/* [A] with itself: the next producer acquires our NULL above before it links behind us;
	 * and with [D] in mpsc_pop. */
	prev = atomic_exchange_explicit(&q->tail, node, memory_order_acq_rel);
	/* [B] with [C] in mpsc_pop: the node's content is visible before its link. Until this
	 * store the chain has a gap, which the consumer takes for "not yet". */
	atomic_store_explicit(&prev->next, node, memory_order_release);
}

/* [C] with [B] in mpsc_push. */
static struct mpsc_node *next_of(struct mpsc_node *node)
{
	return atomic_load_explicit(&node->next, memory_order_acquire);
}

struct mpsc_node *mpsc_pop(struct mpsc *q)
{
	struct mpsc_node *head = q->head;
	struct mpsc_node *next = next_of(head);

	if (head == &q->stub) {
		if (!next)
			return NULL;
		q->head = next;
		head = next;
		next = next_of(head);
	}
	if (!next) {
		/* [D] with [A] in mpsc_push: is `head` the last, or is a producer half done? */
		if (atomic_load_explicit(&q->tail, memory_order_acquire) != head)
			return NULL;
		/* The last node may leave only when another stands behind it. */
		mpsc_push(q, &q->stub);
		next = next_of(head);
		if (!next)
			return NULL;
	}
	q->head = next;
	return head;
}

bool mpsc_empty_hint(const struct mpsc *q)
{
	/* [D] as in mpsc_pop: a producer that has begun has moved the tail off the stub. */
	return q->head == &q->stub &&
	       atomic_load_explicit(&q->tail, memory_order_acquire) == &q->stub;
}
