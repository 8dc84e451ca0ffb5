/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which pages of a heap are in which block. All notes are in a table beside the heap, because
 * neighbours see the heap. No locks, no system calls except for the table.
 *
 * A free block is merged with its free neighbours, so two free blocks never touch. A request takes
 * the smallest sufficient free block among those that are tried, at its low end.
 */
#ifndef NM_HEAP_BLOCKS_H
#define NM_HEAP_BLOCKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* No page, no block. */
#define NM_BLOCK_NONE UINT32_MAX
#define NM_BLOCKS_PAGES_MAX (UINT32_C(1) << 24)
#define NM_BLOCKS_CLASSES 25 /* free blocks by the logarithm of their length */

/* Of the first page of each block; of its last one, without the list. All others are zero. */
struct nm_block_note {
	uint32_t len : 30; /* pages */
	uint32_t is_used : 1;
	uint32_t is_first : 1;
	uint32_t next, previous; /* free: in the list of its class */
};

struct nm_blocks {
	struct nm_block_note *notes; /* one for each page, but only some are touched */
	uint32_t nr_pages;
	uint32_t fresh; /* no page from here on has ever been in a used block */
	uint32_t first[NM_BLOCKS_CLASSES];
};

/* NR_PAGES: 1 to NM_BLOCKS_PAGES_MAX. 0 or -ENOMEM. */
int nm_blocks_init(struct nm_blocks *ret_blocks, uint32_t nr_pages);
void nm_blocks_fini(struct nm_blocks *blocks);
/*
 * Take LEN pages, the first at a multiple of ALIGN (a power of two). Returns the first,
 * or NM_BLOCK_NONE. RET_FRESH: that many pages at the end were never used.
 */
uint32_t nm_blocks_take(struct nm_blocks *blocks, uint32_t len, uint32_t align,
			uint32_t *ret_fresh);
/* Length of the used block that begins at PAGE; 0: none does. */
uint32_t nm_blocks_len(const struct nm_blocks *blocks, uint32_t page);
/* Give back the used block at PAGE. */
void nm_blocks_give(struct nm_blocks *blocks, uint32_t page);
/* Change the length of the used block at PAGE in place. False: there is no room after it. */
bool nm_blocks_resize(struct nm_blocks *blocks, uint32_t page, uint32_t len);
/* The first used block at or after PAGE, or NM_BLOCK_NONE. PAGE begins a block. */
uint32_t nm_blocks_next_used(const struct nm_blocks *blocks, uint32_t page);

#endif
