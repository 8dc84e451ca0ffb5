/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private memory for what has to wait: unexpected messages and queued control packets. Blocks come
 * from free lists by power of two, so a steady state allocates nothing. Not thread-safe.
 */
#ifndef NM_ENGINE_BUFFER_H
#define NM_ENGINE_BUFFER_H

#include <stddef.h>

#define NM_BUFFER_MIN_SHIFT 7 /* 128 bytes: an unexpected message of a cache line */
#define NM_BUFFER_MAX_SHIFT 17
#define NM_BUFFER_CLASSES (NM_BUFFER_MAX_SHIFT - NM_BUFFER_MIN_SHIFT + 1)
/* Bytes kept in each free list; more go back to the allocator. */
#define NM_BUFFER_KEEP ((size_t)1024 * 1024)

struct nm_buffer_pool {
	struct nm_buffer_free {
		void *first;
		size_t nr;
	} classes[NM_BUFFER_CLASSES];
};

void nm_buffer_pool_init(struct nm_buffer_pool *pool);
void nm_buffer_pool_fini(struct nm_buffer_pool *pool);
/* What a buffer of SIZE bytes takes. */
size_t nm_buffer_block(size_t size);
/* At least SIZE bytes, uninitialised, or NULL. Give them back with the same SIZE. */
void *nm_buffer_alloc(struct nm_buffer_pool *pool, size_t size);
void nm_buffer_free(struct nm_buffer_pool *pool, void *buffer, size_t size);

#endif
