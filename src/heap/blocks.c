/* SPDX-License-Identifier: Apache-2.0 */
#include "heap/blocks.h"

#include <errno.h>

#include "base/pages.h"

/* Blocks of one class that a request compares; it then takes one of a larger class. */
#define TRIES 32

static unsigned int class_of(uint32_t len)
{
	return 31U - (unsigned int)__builtin_clz(len);
}

static void mark(struct nm_blocks *blocks, uint32_t page, uint32_t len, bool is_used)
{
	struct nm_block_note note = {.len = len & (NM_BLOCKS_PAGES_MAX * 2 - 1),
				     .is_used = is_used};

	blocks->notes[page + len - 1] = note;
	note.is_first = 1;
	blocks->notes[page] = note;
}

/* The LEN pages at PAGE are about to be a part of another block. */
static void unmark(struct nm_blocks *blocks, uint32_t page, uint32_t len)
{
	blocks->notes[page] = blocks->notes[page + len - 1] = (struct nm_block_note){0};
}

static void unlink_free(struct nm_blocks *blocks, uint32_t page)
{
	struct nm_block_note *note = &blocks->notes[page];

	if (note->previous == NM_BLOCK_NONE)
		blocks->first[class_of(note->len)] = note->next;
	else
		blocks->notes[note->previous].next = note->next;
	if (note->next != NM_BLOCK_NONE)
		blocks->notes[note->next].previous = note->previous;
	unmark(blocks, page, note->len);
}

static void link_free(struct nm_blocks *blocks, uint32_t page, uint32_t len)
{
	uint32_t *first = &blocks->first[class_of(len)];

	mark(blocks, page, len, false);
	blocks->notes[page].previous = NM_BLOCK_NONE;
	blocks->notes[page].next = *first;
	if (*first != NM_BLOCK_NONE)
		blocks->notes[*first].previous = page;
	*first = page;
}

static void mark_used(struct nm_blocks *blocks, uint32_t page, uint32_t len)
{
	mark(blocks, page, len, true);
	if (blocks->fresh < page + len)
		blocks->fresh = page + len;
}

int nm_blocks_init(struct nm_blocks *ret_blocks, uint32_t nr_pages)
{
	struct nm_blocks blocks = {.nr_pages = nr_pages};

	blocks.notes = nm_pages_alloc(nr_pages * sizeof(*blocks.notes));
	if (!blocks.notes)
		return -ENOMEM;
	for (unsigned int i = 0; i < NM_BLOCKS_CLASSES; i++)
		blocks.first[i] = NM_BLOCK_NONE;
	link_free(&blocks, 0, nr_pages);
	*ret_blocks = blocks;
	return 0;
}

void nm_blocks_fini(struct nm_blocks *blocks)
{
	nm_pages_free(blocks->notes, blocks->nr_pages * sizeof(*blocks->notes));
	blocks->notes = NULL;
}

/* Where LEN aligned pages begin in the free block at PAGE, or NM_BLOCK_NONE. */
static uint32_t fit(const struct nm_blocks *blocks, uint32_t page, uint32_t len, uint32_t align)
{
	/* 64 bits: ALIGN may be larger than the heap. */
	uint64_t at = ((uint64_t)page + align - 1) & ~((uint64_t)align - 1);
	uint64_t end = (uint64_t)page + blocks->notes[page].len;

	return at + len <= end ? (uint32_t)at : NM_BLOCK_NONE;
}

/* The smallest sufficient block among the first of its class. */
static uint32_t search(const struct nm_blocks *blocks, unsigned int class, uint32_t len,
		       uint32_t align)
{
	uint32_t best = NM_BLOCK_NONE, page = blocks->first[class];

	for (unsigned int i = 0; i < TRIES && page != NM_BLOCK_NONE; i++) {
		if (fit(blocks, page, len, align) != NM_BLOCK_NONE &&
		    (best == NM_BLOCK_NONE || blocks->notes[page].len < blocks->notes[best].len))
			best = page;
		page = blocks->notes[page].next;
	}
	return best;
}

uint32_t nm_blocks_take(struct nm_blocks *blocks, uint32_t len, uint32_t align, uint32_t *ret_fresh)
{
	uint32_t page = NM_BLOCK_NONE, at, end;

	if (len == 0 || len > blocks->nr_pages)
		return NM_BLOCK_NONE;
	for (unsigned int class = class_of(len); class < NM_BLOCKS_CLASSES && page == NM_BLOCK_NONE;
	     class ++)
		page = search(blocks, class, len, align);
	if (page == NM_BLOCK_NONE)
		return NM_BLOCK_NONE;
	at = fit(blocks, page, len, align);
	end = page + blocks->notes[page].len;
	unlink_free(blocks, page);
	if (at > page)
		link_free(blocks, page, at - page);
	if (end > at + len)
		link_free(blocks, at + len, end - at - len);
	*ret_fresh = at >= blocks->fresh      ? len :
		     at + len > blocks->fresh ? at + len - blocks->fresh :
						0;
	mark_used(blocks, at, len);
	return at;
}

uint32_t nm_blocks_len(const struct nm_blocks *blocks, uint32_t page)
{
	const struct nm_block_note *note = &blocks->notes[page];

	return page < blocks->nr_pages && note->is_used && note->is_first ? note->len : 0;
}

void nm_blocks_give(struct nm_blocks *blocks, uint32_t page)
{
	uint32_t len = blocks->notes[page].len;
	uint32_t end = page + len;

	unmark(blocks, page, len);
	if (end < blocks->nr_pages && !blocks->notes[end].is_used) {
		len += blocks->notes[end].len;
		unlink_free(blocks, end);
	}
	if (page > 0 && !blocks->notes[page - 1].is_used) {
		uint32_t before = blocks->notes[page - 1].len;

		page -= before;
		len += before;
		unlink_free(blocks, page);
	}
	link_free(blocks, page, len);
}

bool nm_blocks_resize(struct nm_blocks *blocks, uint32_t page, uint32_t len)
{
	uint32_t old = blocks->notes[page].len, end = page + old, room = 0;

	if (end < blocks->nr_pages && !blocks->notes[end].is_used)
		room = blocks->notes[end].len;
	if (len == 0 || len > (uint64_t)old + room)
		return false;
	if (len == old)
		return true;
	unmark(blocks, page, old);
	if (room)
		unlink_free(blocks, end);
	mark_used(blocks, page, len);
	if (old + room > len)
		link_free(blocks, page + len, old + room - len);
	return true;
}

uint32_t nm_blocks_next_used(const struct nm_blocks *blocks, uint32_t page)
{
	while (page < blocks->nr_pages && !blocks->notes[page].is_used)
		page += blocks->notes[page].len;
	return page < blocks->nr_pages ? page : NM_BLOCK_NONE;
}
