/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KV_LIST_H
#define KV_LIST_H

#include <stdbool.h>
#include <stddef.h>

/* A ring of links through its members; the head is a link too. */
struct kv_link {
	struct kv_link *next, *prev;
};

#define KV_ENTRY(link_ptr, type, member) ((type *)((char *)(link_ptr)-offsetof(type, member)))

/* `next` is read first, so that the body may remove `it`. */
#define KV_FOR_EACH(it, head)                                                                      \
	for (struct kv_link *it = (head)->next, *it##_next = it->next; it != (head);               \
	     it = it##_next, it##_next = it->next)

static inline void kv_link_init(struct kv_link *l)
{
	l->next = l;
	l->prev = l;
}

static inline bool kv_list_empty(const struct kv_link *head)
{
	return head->next == head;
}

static inline void kv_list_add(struct kv_link *head, struct kv_link *l)
{
	l->prev = head->prev;
	l->next = head;
	head->prev->next = l;
	head->prev = l;
}

/* Does nothing to one that is in no list. */
static inline void kv_list_remove(struct kv_link *l)
{
	l->prev->next = l->next;
	l->next->prev = l->prev;
	kv_link_init(l);
}

#endif
