/* SPDX-License-Identifier: Apache-2.0 */
#ifndef QUEUE_MPSC_H
#define QUEUE_MPSC_H

#include <stdatomic.h>
#include <stdbool.h>

/* Intrusive queue, first in first out for each producer: any thread pushes in two steps and never
 * waits; one owner pops. Unbounded, so bound what is pushed (idpool). Nothing to release. */
struct mpsc_node {
	_Atomic(struct mpsc_node *) next;
};

struct mpsc {
	_Alignas(64) _Atomic(struct mpsc_node *) tail; /* shared: producers swap themselves in */
	_Alignas(64) struct mpsc_node *head;           /* owned by the consumer */
	struct mpsc_node stub;                         /* in the queue whenever it would be empty */
};

void mpsc_init(struct mpsc *q);
/* Any thread. The node is the queue's until it is popped. */
void mpsc_push(struct mpsc *q, struct mpsc_node *node);
/* Owner only. NULL when empty, or while the producer of the next node is between its two steps. */
struct mpsc_node *mpsc_pop(struct mpsc *q);
/* Owner only. False while a push is under way, so a consumer that sees true after wake_announce
 * may sleep. */
bool mpsc_empty_hint(const struct mpsc *q);

#endif
