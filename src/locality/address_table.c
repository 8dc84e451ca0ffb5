/* SPDX-License-Identifier: Apache-2.0 */
#include "locality/address_table.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/pages.h"
#include "locality/address_pack.h"

/* An entry: a hole with the next one, or a count; both with the place of the address. */
#define HOLE (UINT32_C(1) << 31)
#define PATCHED (UINT32_C(1) << 30)
#define VALUE_MASK (PATCHED - 1)
#define NO_HOLE VALUE_MASK

#define FIRST_ROOM 1024
#define FIRST_SLOT_BITS 11
#define FIRST_PATCH_ROOM 64
/* One address in 2^14 ends a block. */
#define BLOCK_BITS 14

struct nm_address_block {
	uint32_t first; /* index of its first address */
	const struct nm_address_pack *pack;
	struct nm_block shared; /* bytes NULL: the pack is private memory */
};

struct nm_address_patch {
	uint32_t index_plus_1; /* 0: free */
	struct nm_address address;
};

void nm_address_table_init(struct nm_address_table *table, const char *dir)
{
	*table = (struct nm_address_table){.first_hole = NO_HOLE, .dir = dir};
}

static void drop_addresses(struct nm_address_table *table)
{
	uint32_t i;

	for (i = 0; i < table->nr_blocks; i++) {
		struct nm_address_block *block = &table->blocks[i];

		if (block->shared.bytes)
			nm_block_fini(&block->shared);
		else
			free((void *)(uintptr_t)block->pack);
	}
	free(table->blocks);
	free(table->patches);
	nm_pages_free(table->waiting, table->nr_waiting_room * sizeof(*table->waiting));
	nm_pages_free(table->entries, table->nr_room * sizeof(*table->entries));
	nm_pages_free(table->slots, sizeof(*table->slots) << table->slot_bits);
}

void nm_address_table_fini(struct nm_address_table *table)
{
	drop_addresses(table);
	nm_share_destroy(table->share);
	nm_address_table_init(table, table->dir);
}

/* All were removed: what they lay in can go. */
static void start_again(struct nm_address_table *table)
{
	struct nm_address_table old = *table;

	nm_address_table_init(table, old.dir);
	table->share = old.share;
	drop_addresses(&old);
}

static struct nm_address_patch *find_patch(struct nm_address_patch *patches, uint32_t nr_room,
					   uint32_t index)
{
	uint32_t i = index * UINT32_C(0x9e3779b1) >> 8;

	for (;; i++) {
		struct nm_address_patch *patch = &patches[i & (nr_room - 1)];

		if (!patch->index_plus_1 || patch->index_plus_1 == index + 1)
			return patch;
	}
}

static const struct nm_address_block *block_of(const struct nm_address_table *table, uint32_t index)
{
	uint32_t low = 0, high = table->nr_blocks;

	while (high - low > 1) {
		uint32_t middle = (low + high) / 2;

		if (table->blocks[middle].first <= index)
			low = middle;
		else
			high = middle;
	}
	return &table->blocks[low];
}

/* The address of an index that was given out, in use or not. */
static void read_address(const struct nm_address_table *table, uint32_t index,
			 struct nm_address *ret_address)
{
	const struct nm_address_block *block;

	if (index >= table->nr_packed) {
		*ret_address = table->waiting[index - table->nr_packed];
	} else if (table->entries[index] & PATCHED) {
		*ret_address = find_patch(table->patches, table->nr_patch_room, index)->address;
	} else {
		block = block_of(table, index);
		nm_address_pack_get(block->pack, index - block->first, ret_address);
	}
}

/*
 * A slot holds an index + 1 and, above it, as many bits of the hash as there is room for: so nearly
 * every look at an address, in memory that is not in the cache, is a hit.
 */
static uint32_t slot_tag(const struct nm_address_table *table, uint64_t hash)
{
	return (uint32_t)(hash >> 32) & ~((UINT32_C(1) << table->slot_bits) - 1);
}

static uint32_t slot_index(const struct nm_address_table *table, uint32_t slot)
{
	return (slot & ((UINT32_C(1) << table->slot_bits) - 1)) - 1;
}

static uint32_t next_slot(const struct nm_address_table *table, uint32_t i)
{
	return (i + 1) & ((UINT32_C(1) << table->slot_bits) - 1);
}

static uint32_t first_slot(const struct nm_address_table *table, uint64_t hash)
{
	return (uint32_t)(hash >> 20) & ((UINT32_C(1) << table->slot_bits) - 1);
}

/* The slot of WHO, or the empty one where it belongs. */
static uint32_t find_slot(const struct nm_address_table *table, const struct nm_identity *who)
{
	uint64_t hash = nm_identity_hash(who);
	uint32_t tag = slot_tag(table, hash), i, slot;
	struct nm_address address;

	for (i = first_slot(table, hash); (slot = table->slots[i]); i = next_slot(table, i)) {
		if ((slot ^ tag) >> table->slot_bits)
			continue;
		read_address(table, slot_index(table, slot), &address);
		if (nm_identity_equal(&address.who, who))
			break;
	}
	return i;
}

static void put_slot(struct nm_address_table *table, const struct nm_identity *who, uint32_t index)
{
	uint64_t hash = nm_identity_hash(who);
	uint32_t i = first_slot(table, hash);

	while (table->slots[i])
		i = next_slot(table, i);
	table->slots[i] = slot_tag(table, hash) | (index + 1);
}

/* Open addressing without tombstones: what follows a freed slot is put in again. */
static void remove_slot(struct nm_address_table *table, const struct nm_identity *who)
{
	uint32_t i = find_slot(table, who), slot, index;
	struct nm_address address;

	table->slots[i] = 0;
	for (i = next_slot(table, i); (slot = table->slots[i]); i = next_slot(table, i)) {
		index = slot_index(table, slot);
		read_address(table, index, &address);
		table->slots[i] = 0;
		put_slot(table, &address.who, index);
	}
}

static int grow_slots(struct nm_address_table *table)
{
	unsigned int bits = table->slot_bits ? table->slot_bits + 1 : FIRST_SLOT_BITS;
	uint32_t *slots = nm_pages_alloc(sizeof(*slots) << bits), i;
	struct nm_address address;

	if (!slots)
		return -ENOMEM;
	nm_pages_free(table->slots, sizeof(*table->slots) << table->slot_bits);
	table->slots = slots;
	table->slot_bits = bits;
	for (i = 0; i < table->nr; i++) {
		if (table->entries[i] & HOLE)
			continue;
		read_address(table, i, &address);
		put_slot(table, &address.who, i);
	}
	return 0;
}

static int grow_entries(struct nm_address_table *table)
{
	uint64_t room = table->nr_room ? table->nr_room * 2 : FIRST_ROOM;
	uint32_t *entries = nm_pages_grow(table->entries, table->nr_room * sizeof(*entries),
					  room * sizeof(*entries));

	if (!entries)
		return -ENOMEM;
	table->entries = entries;
	table->nr_room = room;
	return 0;
}

static int grow_waiting(struct nm_address_table *table)
{
	uint32_t room = table->nr_waiting_room ? table->nr_waiting_room * 2 : NM_CACHE_LINE;
	struct nm_address *waiting = nm_pages_grow(
		table->waiting, table->nr_waiting_room * sizeof(*waiting), room * sizeof(*waiting));

	if (!waiting)
		return -ENOMEM;
	table->waiting = waiting;
	table->nr_waiting_room = room;
	return 0;
}

static bool ends_block(const struct nm_address *last, uint64_t nr)
{
	if (nr < NM_ADDRESS_BLOCK_MIN)
		return false;
	return nr >= NM_ADDRESS_BLOCK_MAX ||
	       !(nm_identity_hash(&last->who) & ((UINT64_C(1) << BLOCK_BITS) - 1));
}

/* Where nobody can share, or the kernel gives no memfd, the pack itself stays. */
static void place_pack(struct nm_address_table *table, struct nm_address_pack *pack,
		       struct nm_address_block *block)
{
	if (!table->share)
		table->share = nm_share_create(table->dir);
	if (table->share &&
	    nm_share_block(table->share, pack, nm_address_pack_size(pack), &block->shared) == 0) {
		block->pack = block->shared.bytes;
		free(pack);
	}
}

/* Make a block of all that wait. Without memory for it they wait on. */
static NM_COLD int pack_waiting(struct nm_address_table *table)
{
	uint32_t nr = (uint32_t)(table->nr - table->nr_packed);
	struct nm_address_block *blocks;
	struct nm_address_pack *pack;

	blocks = reallocarray(table->blocks, table->nr_blocks + 1, sizeof(*blocks));
	if (!blocks)
		return -ENOMEM;
	table->blocks = blocks;
	pack = nm_address_pack_create(table->waiting, nr);
	if (!pack)
		return -ENOMEM;
	blocks += table->nr_blocks++;
	*blocks = (struct nm_address_block){.first = (uint32_t)table->nr_packed, .pack = pack};
	place_pack(table, pack, blocks);
	nm_pages_free(table->waiting, table->nr_waiting_room * sizeof(*table->waiting));
	table->waiting = NULL;
	table->nr_waiting_room = 0;
	table->nr_packed = table->nr;
	return 0;
}

static int append(struct nm_address_table *table, const struct nm_address *address)
{
	uint64_t nr_waiting = table->nr - table->nr_packed;
	int err = 0;

	if (table->nr >= NM_ADDRESSES_MAX)
		return -ENOSPC;
	if (table->nr == table->nr_room)
		err = grow_entries(table);
	if (!err && nr_waiting == table->nr_waiting_room)
		err = grow_waiting(table);
	if (err)
		return err;
	table->waiting[nr_waiting] = *address;
	table->entries[table->nr++] = 1;
	return 0;
}

static int grow_patches(struct nm_address_table *table)
{
	uint32_t room = table->nr_patch_room ? table->nr_patch_room * 2 : FIRST_PATCH_ROOM, i;
	struct nm_address_patch *patches = calloc(room, sizeof(*patches));

	if (!patches)
		return -ENOMEM;
	for (i = 0; i < table->nr_patch_room; i++)
		if (table->patches[i].index_plus_1)
			*find_patch(patches, room, table->patches[i].index_plus_1 - 1) =
				table->patches[i];
	free(table->patches);
	table->patches = patches;
	table->nr_patch_room = room;
	return 0;
}

/* Blocks never change: who comes into a hole of one lies beside it. */
static int patch(struct nm_address_table *table, uint32_t index, const struct nm_address *address)
{
	struct nm_address_patch *place;
	int err;

	if (table->nr_patch_room < 2 * (table->nr_patches + 1)) {
		err = grow_patches(table);
		if (err)
			return err;
	}
	place = find_patch(table->patches, table->nr_patch_room, index);
	table->nr_patches += !place->index_plus_1;
	*place = (struct nm_address_patch){index + 1, *address};
	return 0;
}

static int fill_hole(struct nm_address_table *table, const struct nm_address *address)
{
	uint32_t index = table->first_hole, place = 0;
	uint32_t next = table->entries[index] & VALUE_MASK;
	int err;

	if (index >= table->nr_packed) {
		table->waiting[index - table->nr_packed] = *address;
	} else {
		err = patch(table, index, address);
		if (err)
			return err;
		place = PATCHED;
	}
	table->entries[index] = place | 1;
	table->first_hole = next;
	return 0;
}

void nm_address_table_expect(const struct nm_address_table *table, const struct nm_identity *who)
{
	if (table->slot_bits)
		__builtin_prefetch(&table->slots[first_slot(table, nm_identity_hash(who))], 1);
}

int nm_address_table_insert(struct nm_address_table *table, const struct nm_address *address,
			    bool fill_holes, uint64_t *ret_index)
{
	uint32_t index, place, slot;
	int err;

	if (fill_holes && table->nr && !table->nr_used)
		start_again(table);
	if (!table->slot_bits || (table->nr + 1) >> (table->slot_bits - 1)) {
		err = grow_slots(table);
		if (err)
			return err;
	}
	place = find_slot(table, &address->who);
	slot = table->slots[place];
	if (slot) {
		index = slot_index(table, slot);
		/* A count that would run over sticks: the address is never removed then. */
		if ((table->entries[index] & VALUE_MASK) < VALUE_MASK)
			table->entries[index]++;
		*ret_index = index;
		return 0;
	}
	if (fill_holes && table->first_hole != NO_HOLE) {
		index = table->first_hole;
		err = fill_hole(table, address);
	} else {
		index = (uint32_t)table->nr;
		err = append(table, address);
	}
	if (err)
		return err;
	table->slots[place] = slot_tag(table, nm_identity_hash(&address->who)) | (index + 1);
	table->nr_used++;
	if (index >= table->nr_packed && ends_block(address, table->nr - table->nr_packed))
		(void)pack_waiting(table);
	*ret_index = index;
	return 0;
}

int nm_address_table_remove(struct nm_address_table *table, uint64_t index)
{
	struct nm_address address;
	uint32_t nr;

	if (index >= table->nr || table->entries[index] & HOLE)
		return -EINVAL;
	nr = table->entries[index] & VALUE_MASK;
	if (nr == VALUE_MASK)
		return (int)nr;
	if (nr > 1) {
		table->entries[index]--;
		return (int)(nr - 1);
	}
	read_address(table, (uint32_t)index, &address);
	remove_slot(table, &address.who);
	table->entries[index] = HOLE | (table->entries[index] & PATCHED) | table->first_hole;
	table->first_hole = (uint32_t)index;
	table->nr_used--;
	return 0;
}

bool nm_address_table_get(const struct nm_address_table *table, uint64_t index,
			  struct nm_address *ret_address)
{
	if (index >= table->nr || table->entries[index] & HOLE)
		return false;
	read_address(table, (uint32_t)index, ret_address);
	return true;
}

uint64_t nm_address_table_find(const struct nm_address_table *table, const struct nm_identity *who)
{
	uint32_t slot = table->slot_bits ? table->slots[find_slot(table, who)] : 0;

	return slot ? slot_index(table, slot) : NM_ADDRESS_NONE;
}

void nm_address_table_usage(const struct nm_address_table *table,
			    struct nm_address_usage *ret_usage)
{
	struct nm_address_usage usage = {0};
	uint32_t i;

	usage.private_bytes = table->nr_room * sizeof(*table->entries) +
			      table->nr_waiting_room * sizeof(*table->waiting) +
			      table->nr_patch_room * sizeof(*table->patches) +
			      table->nr_blocks * sizeof(*table->blocks);
	if (table->slots)
		usage.private_bytes += sizeof(*table->slots) << table->slot_bits;
	for (i = 0; i < table->nr_blocks; i++) {
		const struct nm_address_block *block = &table->blocks[i];

		if (!block->shared.bytes)
			usage.private_bytes += nm_address_pack_size(block->pack);
		usage.block_bytes += block->shared.len;
		if (block->shared.is_kept)
			usage.shared_bytes += block->shared.len;
		if (block->shared.is_found)
			usage.found_bytes += block->shared.len;
	}
	*ret_usage = usage;
}
