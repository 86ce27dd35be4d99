/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_LIST_H
#define BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

/* Circular doubly linked list; the link lies inside the element. Not thread-safe: one owner. */
struct list {
	struct list *prev;
	struct list *next;
};

/* The element that holds `link` as its member. */
#define LIST_ENTRY(link, type, member) ((type *)(void *)((char *)(link) - offsetof(type, member)))

/* The body may remove `it` itself, and no other element. */
#define LIST_FOR_EACH(it, head)                                                                    \
	for (struct list *it = (head)->next, *it##_next = it->next; it != (head);                  \
	     it = it##_next, it##_next = it->next)

static inline void list_init(struct list *head)
{
	head->prev = head;
	head->next = head;
}

static inline bool list_empty(const struct list *head)
{
	return head->next == head;
}

static inline void list_insert_after(struct list *pos, struct list *link)
{
	link->prev = pos;
	link->next = pos->next;
	pos->next->prev = link;
	pos->next = link;
}

static inline void list_push_front(struct list *head, struct list *link)
{
	list_insert_after(head, link);
}

static inline void list_push_back(struct list *head, struct list *link)
{
	list_insert_after(head->prev, link);
}

/* Leaves `link` empty, so that removing twice and list_linked() are safe. */
static inline void list_remove(struct list *link)
{
	link->prev->next = link->next;
	link->next->prev = link->prev;
	list_init(link);
}

/* Only for links that were initialised or removed before. */
static inline bool list_linked(const struct list *link)
{
	return link->next != link;
}

/* NULL when empty. */
static inline struct list *list_pop_front(struct list *head)
{
	struct list *link = head->next;

	if (link == head)
		return NULL;
	list_remove(link);
	return link;
}

/* Moves all of `from` behind the last of `head`; `from` is empty afterwards. */
static inline void list_splice_back(struct list *head, struct list *from)
{
	if (list_empty(from))
		return;
	from->next->prev = head->prev;
	head->prev->next = from->next;
	from->prev->next = head;
	head->prev = from->prev;
	list_init(from);
}

#endif
