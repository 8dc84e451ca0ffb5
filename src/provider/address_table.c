/* SPDX-License-Identifier: Apache-2.0 */
#include "provider/address_table.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/compiler.h"
#include "base/pages.h"

/* Fills in place[], and returns how many bytes are not the same in all addresses. */
static uint32_t find_own(const uint8_t (*bytes)[NM_ADDRESS_LEN], uint32_t nr,
			 uint8_t ret_place[NM_ADDRESS_LEN])
{
	uint8_t differs[NM_ADDRESS_LEN] = {0};
	uint32_t i, k, stride = 0;

	for (i = 1; i < nr; i++)
		for (k = 0; k < NM_ADDRESS_LEN; k++)
			differs[k] |= bytes[i][k] ^ bytes[0][k];
	for (k = 0; k < NM_ADDRESS_LEN; k++)
		if (differs[k])
			ret_place[stride++] = (uint8_t)k;
	return stride;
}

struct nm_address_pack *nm_address_pack_create(const struct nm_address *addresses, uint32_t nr)
{
	const uint8_t(*bytes)[NM_ADDRESS_LEN] = (const void *)addresses;
	uint8_t place[NM_ADDRESS_LEN] = {0}, *own;
	uint32_t stride = find_own(bytes, nr, place), i, k;
	struct nm_address_pack *pack = malloc(sizeof(*pack) + (size_t)nr * stride);

	if (!pack)
		return NULL;
	pack->nr = nr;
	pack->stride = stride;
	memcpy(pack->common, bytes[0], sizeof(pack->common));
	memcpy(pack->place, place, sizeof(pack->place));
	own = pack->own;
	for (i = 0; i < nr; i++)
		for (k = 0; k < stride; k++)
			*own++ = bytes[i][place[k]];
	return pack;
}

size_t nm_address_pack_size(const struct nm_address_pack *pack)
{
	return sizeof(*pack) + (size_t)pack->nr * pack->stride;
}

void nm_address_pack_get(const struct nm_address_pack *pack, uint32_t i,
			 struct nm_address *ret_address)
{
	const uint8_t *own = pack->own + (size_t)i * pack->stride;
	uint8_t bytes[NM_ADDRESS_LEN];
	uint32_t k;

	memcpy(bytes, pack->common, sizeof(bytes));
	for (k = 0; k < pack->stride; k++)
		bytes[pack->place[k]] = own[k];
	memcpy(ret_address, bytes, sizeof(bytes));
}

/* Write the own bytes of address I. False: ADDRESS differs in a common byte. */
static bool set_in_place(struct nm_address_pack *pack, uint32_t i, const uint8_t *bytes)
{
	uint8_t rebuilt[NM_ADDRESS_LEN];
	uint32_t k;

	memcpy(rebuilt, pack->common, sizeof(rebuilt));
	for (k = 0; k < pack->stride; k++)
		rebuilt[pack->place[k]] = bytes[pack->place[k]];
	if (memcmp(rebuilt, bytes, sizeof(rebuilt)) != 0)
		return false;
	for (k = 0; k < pack->stride; k++)
		pack->own[(size_t)i * pack->stride + k] = bytes[pack->place[k]];
	return true;
}

int nm_address_pack_set(struct nm_address_pack **pack, uint32_t i, const struct nm_address *address)
{
	struct nm_address_pack *old = *pack, *new;
	struct nm_address *all;
	uint32_t n;

	if (set_in_place(old, i, (const uint8_t *)address))
		return 0;
	all = calloc(old->nr, sizeof(*all));
	if (!all)
		return -ENOMEM;
	for (n = 0; n < old->nr; n++)
		nm_address_pack_get(old, n, &all[n]);
	all[i] = *address;
	new = nm_address_pack_create(all, old->nr);
	free(all);
	if (!new)
		return -ENOMEM;
	free(old);
	*pack = new;
	return 0;
}

/* ---- The table ---- */

/* An entry: a hole with the index of the next one, or a count. */
#define HOLE (UINT32_C(1) << 31)
#define VALUE_MASK ((UINT32_C(1) << 30) - 1)
#define NO_HOLE VALUE_MASK

#define FIRST_ROOM 1024
#define FIRST_SLOT_BITS 11
/* The list of blocks grows by a page. */
#define BLOCKS_STEP 512

void nm_address_table_init(struct nm_address_table *table)
{
	*table = (struct nm_address_table){.first_hole = NO_HOLE};
}

/* Of the list of NR blocks. */
static size_t blocks_bytes(uint32_t nr)
{
	return (nr + BLOCKS_STEP - 1) / BLOCKS_STEP * BLOCKS_STEP *
	       sizeof(struct nm_address_pack *);
}

void nm_address_table_fini(struct nm_address_table *table)
{
	uint32_t i;

	for (i = 0; i < table->nr_blocks; i++)
		free(table->blocks[i]);
	nm_pages_free(table->blocks, blocks_bytes(table->nr_blocks));
	nm_pages_free(table->waiting, NM_ADDRESS_BLOCK * sizeof(*table->waiting));
	nm_pages_free(table->entries, table->nr_room * sizeof(*table->entries));
	nm_pages_free(table->slots, sizeof(*table->slots) << table->slot_bits);
	nm_address_table_init(table);
}

/* The address of an index that was given out, in use or not. */
static void read_address(const struct nm_address_table *table, uint32_t index,
			 struct nm_address *ret_address)
{
	uint32_t block = index / NM_ADDRESS_BLOCK, place = index % NM_ADDRESS_BLOCK;

	if (block < table->nr_blocks)
		nm_address_pack_get(table->blocks[block], place, ret_address);
	else
		*ret_address = table->waiting[place];
}

static int write_address(struct nm_address_table *table, uint32_t index,
			 const struct nm_address *address)
{
	uint32_t block = index / NM_ADDRESS_BLOCK, place = index % NM_ADDRESS_BLOCK;

	if (block < table->nr_blocks)
		return nm_address_pack_set(&table->blocks[block], place, address);
	table->waiting[place] = *address;
	return 0;
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
	uint64_t room = table->nr_room ? table->nr_room + table->nr_room / 4 : FIRST_ROOM;
	uint32_t *entries = nm_pages_grow(table->entries, table->nr_room * sizeof(*entries),
					  room * sizeof(*entries));

	if (!entries)
		return -ENOMEM;
	table->entries = entries;
	table->nr_room = room;
	return 0;
}

/* Make a block of those that wait: there are enough. */
static NM_COLD int pack_waiting(struct nm_address_table *table)
{
	struct nm_address_pack **blocks, *pack;

	pack = nm_address_pack_create(table->waiting, NM_ADDRESS_BLOCK);
	if (!pack)
		return -ENOMEM;
	if (table->nr_blocks % BLOCKS_STEP == 0) {
		blocks = nm_pages_grow(table->blocks, blocks_bytes(table->nr_blocks),
				       blocks_bytes(table->nr_blocks + 1));
		if (!blocks) {
			free(pack);
			return -ENOMEM;
		}
		table->blocks = blocks;
	}
	table->blocks[table->nr_blocks++] = pack;
	return 0;
}

static int append(struct nm_address_table *table, const struct nm_address *address)
{
	uint64_t nr_waiting = table->nr - (uint64_t)table->nr_blocks * NM_ADDRESS_BLOCK;
	int err = 0;

	if (table->nr >= NM_ADDRESSES_MAX)
		return -ENOSPC;
	if (table->nr == table->nr_room)
		err = grow_entries(table);
	if (!err && !table->waiting) {
		table->waiting = nm_pages_alloc(NM_ADDRESS_BLOCK * sizeof(*table->waiting));
		err = table->waiting ? 0 : -ENOMEM;
	}
	if (!err && nr_waiting == NM_ADDRESS_BLOCK) {
		err = pack_waiting(table);
		nr_waiting = 0;
	}
	if (err)
		return err;
	table->waiting[nr_waiting] = *address;
	table->entries[table->nr++] = 1;
	return 0;
}

static int fill_hole(struct nm_address_table *table, const struct nm_address *address)
{
	uint32_t index = table->first_hole;
	int err = write_address(table, index, address);

	if (err)
		return err;
	table->first_hole = table->entries[index] & VALUE_MASK;
	table->entries[index] = 1;
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
		nm_address_table_fini(table);
	if (!table->slot_bits || table->nr + 1 > UINT64_C(3) << table->slot_bits >> 2) {
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
	table->entries[index] = HOLE | table->first_hole;
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

uint64_t nm_address_table_usage(const struct nm_address_table *table)
{
	uint64_t bytes = table->nr_room * sizeof(*table->entries) + blocks_bytes(table->nr_blocks);
	uint32_t i;

	if (table->waiting)
		bytes += NM_ADDRESS_BLOCK * sizeof(*table->waiting);
	if (table->slots)
		bytes += sizeof(*table->slots) << table->slot_bits;
	for (i = 0; i < table->nr_blocks; i++)
		bytes += nm_address_pack_size(table->blocks[i]);
	return bytes;
}
