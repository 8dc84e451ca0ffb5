/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What libnearmetal-heap.so shows to a library that looks for it in the same process, by the name
 * of its only function beside those of malloc(). Another layout gets another name.
 */
#ifndef NM_BASE_HEAP_FACE_H
#define NM_BASE_HEAP_FACE_H

#include <stdint.h>

#define NM_HEAP_FACE "nearmetal_heap_1"

struct nm_heap_face {
	int32_t fd; /* the heap's, sealed: duplicate it, and compare the file */
	uint32_t reserved;
	uint64_t base; /* the whole file is mapped here */
	uint64_t size;
	uint64_t device, inode; /* of the file */
};

/*
 * Creates the heap if this process has none yet. 0; -ENOTSUP in a child of fork(), which has a
 * private copy, and for a heap that is off; -errno.
 */
typedef int nm_heap_face_fn(struct nm_heap_face *ret_face);

#endif
