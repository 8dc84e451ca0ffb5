/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The heap of a process that its neighbours may read: one sealed memfd (base/memfd.h) for large
 * allocations (docs/design/heap.md). It is made with the first of them. All notes about it lie in
 * private memory.
 *
 * A child of fork() gets a private copy under the same addresses. A child that was made in another
 * way that copies memory, without the handlers of pthread_atfork(), has nothing there.
 *
 * Thread-safe. No function sets errno.
 */
#ifndef NM_HEAP_HEAP_H
#define NM_HEAP_HEAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/heap_face.h"

struct nm_heap_bounds {
	_Atomic size_t min; /* allocations of at least this size are worth a try; first: none is */
	_Atomic uintptr_t base; /* valid once there is a heap */
	_Atomic size_t size;	/* 0: there is none */
};
extern struct nm_heap_bounds nm_heap_bounds;

/* Read the knobs; from now on the heap may be used. */
void nm_heap_start(void);
/*
 * Before nm_heap_start(), and as early as can be: handlers of fork() that were registered before
 * ours write the parent's memory after it was copied, and use the child's before the copy is there.
 */
void nm_heap_watch_forks(void);
/* SIZE bytes, zeros with IS_ZERO, at a multiple of ALIGN (a power of two), or NULL: no room. */
void *nm_heap_alloc(size_t size, size_t align, bool is_zero);
/* These end the process if BYTES, which is in the heap, is not the begin of an allocation. */
void nm_heap_free(void *bytes);
size_t nm_heap_len(const void *bytes);
/* Change it in place. False: there is no room. */
bool nm_heap_resize(void *bytes, size_t size);
nm_heap_face_fn nm_heap_show;

static inline bool nm_heap_is_worth(size_t size)
{
	return size >= __atomic_load_n((size_t *)&nm_heap_bounds.min, __ATOMIC_RELAXED);
}

static inline bool nm_heap_has(const void *bytes)
{
	/* The base is constant once SIZE is set, before any address in it is known. */
	size_t size = __atomic_load_n((size_t *)&nm_heap_bounds.size, __ATOMIC_ACQUIRE);

	return (uintptr_t)bytes -
		       __atomic_load_n((uintptr_t *)&nm_heap_bounds.base, __ATOMIC_RELAXED) <
	       size;
}

#endif
