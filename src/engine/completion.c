/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/completion.h"

#include <errno.h>
#include <stdlib.h>

#include "base/compiler.h"
#include "base/log.h"
#include "engine/peer.h"

#define QUEUE_MIN 64
#define QUEUE_HINT_MAX (1u << 20)

int nm_cqueue_create(size_t size_hint, struct nm_cqueue **ret_queue)
{
	struct nm_cqueue *queue = calloc(1, sizeof(*queue));
	size_t size = QUEUE_MIN;

	if (!queue)
		return -ENOMEM;
	while (size < size_hint && size < QUEUE_HINT_MAX)
		size *= 2;
	queue->entries = calloc(size, sizeof(*queue->entries));
	if (!queue->entries) {
		free(queue);
		return -ENOMEM;
	}
	queue->mask = size - 1;
	*ret_queue = queue;
	return 0;
}

void nm_cqueue_destroy(struct nm_cqueue *queue)
{
	if (!queue)
		return;
	free(queue->entries);
	free(queue);
}

static int queue_grow(struct nm_cqueue *queue)
{
	size_t size = queue->mask + 1;
	struct nm_completion *entries;

	if (size > SIZE_MAX / 2 / sizeof(*entries))
		return -ENOMEM;
	entries = calloc(size * 2, sizeof(*entries));
	if (!entries) {
		nm_error("completion queue overrun: no memory for %zu entries", size * 2);
		return -ENOMEM;
	}
	for (size_t i = queue->head; i != queue->tail; i++)
		entries[i & (size * 2 - 1)] = queue->entries[i & queue->mask];
	free(queue->entries);
	queue->entries = entries;
	queue->mask = size * 2 - 1;
	return 0;
}

struct nm_completion *nm_cqueue_add_slowly(struct nm_cqueue *queue)
{
	if (queue_grow(queue) < 0)
		return &queue->scrap;
	return &queue->entries[queue->tail++ & queue->mask];
}

void nm_cqueue_forget(struct nm_cqueue *queue, const struct nm_engine *engine)
{
	for (size_t i = queue->head; i != queue->tail; i++) {
		struct nm_completion *c = &queue->entries[i & queue->mask];

		if (c->source && c->source->engine == engine)
			c->source = NULL;
	}
}
