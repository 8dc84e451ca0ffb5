/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by heap.c and fork.c. */
#ifndef NM_HEAP_PRIVATE_H
#define NM_HEAP_PRIVATE_H

#include <stdbool.h>
#include <sys/types.h>

#include "heap/blocks.h"

#define NM_HEAP_PAGE ((size_t)4096)
/* Larger alignments are left to the next allocator. */
#define NM_HEAP_ALIGN ((size_t)2 << 20)

enum nm_heap_state {
	NM_HEAP_OFF,   /* for good, or not started yet */
	NM_HEAP_NONE,  /* not made yet */
	NM_HEAP_SHOWN, /* neighbours may map it */
	NM_HEAP_COPY,  /* a child's, in private memory */
	NM_HEAP_LOST,  /* a child's that could not be copied: nothing is there */
};

/* Constant except under the lock; base and size are constant once it is SHOWN. */
struct nm_heap {
	enum nm_heap_state state;
	int fd; /* -1: none */
	char *base;
	size_t size;
	dev_t device;
	ino_t inode;
	struct nm_blocks blocks;
	bool is_forking; /* by the thread that holds the lock: the copy is made already */
	char *copy;	 /* then: the child's memory; NULL: none was made */
};
extern struct nm_heap nm_heap;

void nm_heap_lock(void);
void nm_heap_unlock(void);
/* In a child, instead of unlock. */
void nm_heap_renew_lock(void);
/* Is the descriptor still that of the heap? */
bool nm_heap_owns_fd(void);

/* fork.c: around fork(). */
void nm_heap_before_fork(void);
void nm_heap_after_fork(void);
void nm_heap_in_child(void);

#endif
