/* SPDX-License-Identifier: Apache-2.0 */
/* Intrusive circular doubly linked lists. A node that is in no list points at itself. */
#ifndef NM_BASE_LIST_H
#define NM_BASE_LIST_H

#include <stdbool.h>

#include "base/compiler.h"

struct nm_list {
	struct nm_list *next, *prev;
};

static inline void nm_list_init(struct nm_list *list)
{
	list->next = list->prev = list;
}

static inline bool nm_list_empty(const struct nm_list *list)
{
	return list->next == list;
}

static inline void nm_list_append(struct nm_list *list, struct nm_list *node)
{
	node->next = list;
	node->prev = list->prev;
	list->prev->next = node;
	list->prev = node;
}

/* Take NODE out of its list, if it is in one. */
static inline void nm_list_remove(struct nm_list *node)
{
	node->prev->next = node->next;
	node->next->prev = node->prev;
	node->next = node->prev = node;
}

#define nm_list_first(list, type, member) nm_container_of((list)->next, type, member)

#define nm_list_for_each(node, list)                                                               \
	for (struct nm_list *node = (list)->next; node != (list); node = node->next)

/* As nm_list_for_each; the body may remove NODE (and only NODE). */
#define nm_list_for_each_safe(node, list)                                                          \
	for (struct nm_list *node = (list)->next, *node##_next = node->next; node != (list);       \
	     node = node##_next, node##_next = node->next)

#endif
