/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/buffer.h"

#include <stdlib.h>
#include <string.h>

/* The class of SIZE; NM_BUFFER_CLASSES when it is larger than every class. */
static unsigned int buffer_class(size_t size)
{
	unsigned int shift;

	if (size <= (size_t)1 << NM_BUFFER_MIN_SHIFT)
		return 0;
	shift = 64u - (unsigned int)__builtin_clzll((unsigned long long)size - 1);
	return shift > NM_BUFFER_MAX_SHIFT ? NM_BUFFER_CLASSES : shift - NM_BUFFER_MIN_SHIFT;
}

size_t nm_buffer_block(size_t size)
{
	unsigned int class = buffer_class(size);

	return class == NM_BUFFER_CLASSES ? size : (size_t)1 << (class + NM_BUFFER_MIN_SHIFT);
}

void nm_buffer_pool_init(struct nm_buffer_pool *pool)
{
	memset(pool, 0, sizeof(*pool));
}

void nm_buffer_pool_fini(struct nm_buffer_pool *pool)
{
	for (unsigned int i = 0; i < NM_BUFFER_CLASSES; i++) {
		void *buffer = pool->classes[i].first;

		while (buffer) {
			void *next = *(void **)buffer;

			free(buffer);
			buffer = next;
		}
		pool->classes[i].first = NULL;
		pool->classes[i].nr = 0;
	}
}

void *nm_buffer_alloc(struct nm_buffer_pool *pool, size_t size)
{
	unsigned int class = buffer_class(size);
	struct nm_buffer_free *list;
	void *buffer;

	if (class == NM_BUFFER_CLASSES)
		return malloc(size);
	list = &pool->classes[class];
	buffer = list->first;
	if (!buffer)
		return malloc((size_t)1 << (class + NM_BUFFER_MIN_SHIFT));
	list->first = *(void **)buffer;
	list->nr--;
	return buffer;
}

void nm_buffer_free(struct nm_buffer_pool *pool, void *buffer, size_t size)
{
	unsigned int class = buffer_class(size);
	struct nm_buffer_free *list;

	if (!buffer)
		return;
	if (class == NM_BUFFER_CLASSES ||
	    pool->classes[class].nr >= NM_BUFFER_KEEP >> (class + NM_BUFFER_MIN_SHIFT)) {
		free(buffer);
		return;
	}
	list = &pool->classes[class];
	*(void **)buffer = list->first;
	list->first = buffer;
	list->nr++;
}
