/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A heap of this process as libnearmetal-heap.so would show it, which the tests fill and spoil. The
 * program exports nearmetal_heap_1().
 */
#ifndef NM_TEST_HEAP_FIXTURE_H
#define NM_TEST_HEAP_FIXTURE_H

#include <stddef.h>
#include <stdint.h>

#include "base/heap_face.h"

struct heap_fixture {
	char *base; /* NULL: the process has no heap */
	size_t size;
	struct nm_heap_face face; /* what it shows */
};
extern struct heap_fixture heap;

/* SIZE bytes that nothing has touched. */
void heap_create(size_t size);
void heap_destroy(void);
/* A memfd of SIZE bytes with SEALS. */
int heap_forge(size_t size, unsigned int seals);
#define HEAP_SEALS (F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

#endif
