/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The heap of libnearmetal-heap.so that this process may have, and the heaps of neighbours, mapped
 * read-only: a large message that lies there is copied once (docs/design/heap.md).
 *
 * Places in a heap are offsets. A neighbour's heap is hostile as its window is: its bytes may
 * change during every read, and it may have pages that its owner never touched. A read of such a
 * page would take memory of this process, so only pages that are there are read. The seals keep
 * them there.
 */
#ifndef NM_SHM_HEAP_H
#define NM_SHM_HEAP_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/reason.h"

struct nm_own_heap {
	int fd; /* a duplicate; -1: this process has no heap */
	uintptr_t base;
	uint64_t size;
};

/*
 * Look for the heap of this process. The reason for its absence is only set if the library is
 * there: 0; -ENOENT: it is not; -errno with a reason. In each case RET_HEAP can be closed.
 */
int nm_own_heap_open(struct nm_own_heap *ret_heap, struct nm_reason *ret_reason);
void nm_own_heap_close(struct nm_own_heap *heap);
/* Are the LEN bytes at START, at least one, in the heap? RET_OFFSET: where. */
bool nm_own_heap_has(const struct nm_own_heap *heap, const void *start, uint64_t len,
		     uint64_t *ret_offset);

struct nm_foreign_heap {
	const uint8_t *base; /* NULL: not mapped */
	uint64_t size;
	uint64_t *present; /* a bit for each page that is known to be there */
};

/*
 * Map the heap of FD, which the caller still owns. 0, or -errno with a reason: -EPERM: not a sealed
 * memfd of this user; -EBADMSG: its size is not one of a heap; -ENOSPC: too large for this process,
 * in which windows come first.
 */
int nm_foreign_heap_attach(int fd, struct nm_foreign_heap *ret_heap, struct nm_reason *ret_reason);
/* NULL and heaps that are not mapped are allowed. */
void nm_foreign_heap_detach(struct nm_foreign_heap *heap);
/*
 * LEN bytes at OFFSET, for reading. NULL: they are not in the heap, or not all of their pages are
 * there.
 */
const uint8_t *nm_foreign_heap_at(struct nm_foreign_heap *heap, uint64_t offset, uint64_t len);

#endif
