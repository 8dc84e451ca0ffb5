/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Large arrays of zeros that cost only the pages which are touched, and give them back at once:
 * the allocator would keep what has been freed, and touch what is copied.
 */
#ifndef NM_BASE_PAGES_H
#define NM_BASE_PAGES_H

#include <stddef.h>

/* BYTES (more than 0) of zeros. NULL: out of memory. */
void *nm_pages_alloc(size_t bytes);
/*
 * OLD (NULL: nothing yet) of OLD_BYTES with room for NEW_BYTES, zeros behind what was there; it may
 * move. NULL: out of memory, and OLD is as it was.
 */
void *nm_pages_grow(void *old, size_t old_bytes, size_t new_bytes);
/* NULL is fine. */
void nm_pages_free(void *pages, size_t bytes);

#endif
