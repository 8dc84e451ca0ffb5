/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of a heap: against a model that knows the owner of each page. */
#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "heap/blocks.h"

enum { PAGES = 512, LIVE_MAX = 64 };

static struct nm_blocks blocks;
static uint8_t owner[PAGES]; /* 0: free */
static bool was_used[PAGES];
static struct {
	uint32_t page, len;
} live[LIVE_MAX + 1];

/* No two free blocks touch, each page belongs to one block, and the table knows no others. */
static void check_table(void)
{
	bool was_free = false;
	uint32_t page = 0;

	while (page < PAGES) {
		const struct nm_block_note *note = &blocks.notes[page];

		NM_CHECK(note->is_first && note->len > 0 && note->len <= PAGES - page);
		NM_CHECK(!(was_free && !note->is_used));
		was_free = !note->is_used;
		for (uint32_t i = 0; i < note->len; i++) {
			NM_CHECK_EQ(owner[page + i] != 0, note->is_used);
			if (i > 0)
				NM_CHECK_EQ(nm_blocks_len(&blocks, page + i), 0);
		}
		page += note->len;
	}
	NM_CHECK_EQ(page, PAGES);
}

static void take(unsigned int slot, uint32_t len, uint32_t align)
{
	uint32_t fresh = 0, page = nm_blocks_take(&blocks, len, align, &fresh);

	if (page == NM_BLOCK_NONE)
		return;
	NM_CHECK_EQ(page % align, 0);
	NM_CHECK(page + len <= PAGES && fresh <= len);
	for (uint32_t i = 0; i < len; i++) {
		NM_CHECK_EQ(owner[page + i], 0);
		if (i >= len - fresh)
			NM_CHECK(!was_used[page + i]);
		owner[page + i] = (uint8_t)slot;
		was_used[page + i] = true;
	}
	live[slot].page = page;
	live[slot].len = len;
	NM_CHECK_EQ(nm_blocks_len(&blocks, page), len);
}

static void give(unsigned int slot)
{
	nm_blocks_give(&blocks, live[slot].page);
	memset(owner + live[slot].page, 0, live[slot].len);
	NM_CHECK_EQ(nm_blocks_len(&blocks, live[slot].page), 0);
	live[slot].len = 0;
}

static void resize(unsigned int slot, uint32_t len)
{
	uint32_t page = live[slot].page, old = live[slot].len, room = old;

	while (page + room < PAGES && owner[page + room] == 0)
		room++;
	NM_CHECK_EQ(nm_blocks_resize(&blocks, page, len), len > 0 && len <= room);
	if (len == 0 || len > room)
		return;
	memset(owner + page, 0, old);
	memset(owner + page, (int)slot, len);
	for (uint32_t i = 0; i < len; i++)
		was_used[page + i] = true;
	live[slot].len = len;
}

NM_TEST(random_requests_agree_with_a_model)
{
	unsigned int seed = 7;

	NM_CHECK_EQ(nm_blocks_init(&blocks, PAGES), 0);
	check_table();
	for (int i = 0; i < 60000; i++) {
		unsigned int slot = 1 + (unsigned int)rand_r(&seed) % LIVE_MAX;
		uint32_t len = 1 + (uint32_t)rand_r(&seed) % (rand_r(&seed) % 8 ? 16 : 300);

		if (!live[slot].len)
			take(slot, len, 1U << rand_r(&seed) % 5);
		else if (rand_r(&seed) % 3)
			give(slot);
		else
			resize(slot, len - 1);
		check_table();
	}
	for (unsigned int slot = 1; slot <= LIVE_MAX; slot++)
		if (live[slot].len)
			give(slot);
	check_table();
	/* All in one piece again. */
	take(1, PAGES, 1);
	NM_CHECK_EQ(live[1].len, PAGES);
	nm_blocks_fini(&blocks);
}

NM_TEST(impossible_requests_are_refused)
{
	uint32_t fresh;

	NM_CHECK_EQ(nm_blocks_init(&blocks, PAGES), 0);
	NM_CHECK_EQ(nm_blocks_take(&blocks, 0, 1, &fresh), NM_BLOCK_NONE);
	NM_CHECK_EQ(nm_blocks_take(&blocks, PAGES + 1, 1, &fresh), NM_BLOCK_NONE);
	NM_CHECK_EQ(nm_blocks_take(&blocks, UINT32_MAX, 1, &fresh), NM_BLOCK_NONE);
	NM_CHECK_EQ(nm_blocks_len(&blocks, PAGES), 0);
	NM_CHECK_EQ(nm_blocks_len(&blocks, NM_BLOCK_NONE), 0);
	NM_CHECK_EQ(nm_blocks_next_used(&blocks, 0), NM_BLOCK_NONE);
	NM_CHECK_EQ(nm_blocks_take(&blocks, 1, 1, &fresh), 0);
	/* Only the first page is a multiple of so much. */
	NM_CHECK_EQ(nm_blocks_take(&blocks, 1, 1U << 31, &fresh), NM_BLOCK_NONE);
	NM_CHECK_EQ(nm_blocks_next_used(&blocks, 0), 0);
	nm_blocks_fini(&blocks);
}

NM_TEST(only_pages_that_were_never_used_are_fresh)
{
	uint32_t fresh;

	NM_CHECK_EQ(nm_blocks_init(&blocks, PAGES), 0);
	NM_CHECK_EQ(nm_blocks_take(&blocks, 4, 1, &fresh), 0);
	NM_CHECK_EQ(fresh, 4);
	nm_blocks_give(&blocks, 0);
	NM_CHECK_EQ(nm_blocks_take(&blocks, 3, 1, &fresh), 0);
	NM_CHECK_EQ(fresh, 0);
	nm_blocks_give(&blocks, 0);
	NM_CHECK_EQ(nm_blocks_take(&blocks, 6, 1, &fresh), 0);
	NM_CHECK_EQ(fresh, 2);
	nm_blocks_fini(&blocks);
}
