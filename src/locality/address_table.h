/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The addresses a program knows, by index and by identity, for a million of them and more.
 *
 * An index costs 4 bytes of private memory and the hash that finds an identity again 8 to 16. The
 * addresses themselves are collected until there are enough for a block, packed (address_pack.h)
 * and put where all processes of the host that have the same block share one (share.h). Blocks end
 * at addresses that say so themselves by their hash, so two processes that insert the same
 * addresses, one of them with a few more or fewer, still make the same blocks.
 *
 * Not thread-safe: the caller serialises all calls for one table.
 */
#ifndef NM_LOCALITY_ADDRESS_TABLE_H
#define NM_LOCALITY_ADDRESS_TABLE_H

#include <stdbool.h>

#include "locality/address.h"
#include "locality/share.h"

#define NM_ADDRESS_NONE UINT64_MAX
#define NM_ADDRESSES_MAX ((UINT64_C(1) << 30) - 2)
/* A block has this many addresses, 2^14 on average; until then they are private. */
#define NM_ADDRESS_BLOCK_MIN 4096u
#define NM_ADDRESS_BLOCK_MAX 65536u

struct nm_address_block;
struct nm_address_patch;

struct nm_address_table {
	uint64_t nr;	   /* indices ever given out: all are below */
	uint64_t nr_used;  /* and in use */
	uint32_t *entries; /* per index: how often inserted, or the next hole */
	uint64_t nr_room;
	uint32_t first_hole;
	/* Identity -> index: open addressing, power of two, never more than half full. */
	uint32_t *slots;
	unsigned int slot_bits;
	/* Addresses: blocks first, then those that wait for one. */
	struct nm_address_block *blocks;
	uint32_t nr_blocks;
	uint64_t nr_packed;
	struct nm_address *waiting; /* of the indices nr_packed to nr - 1 */
	uint32_t nr_waiting_room;
	/* Addresses that filled holes of blocks, by index: open addressing, power of two. */
	struct nm_address_patch *patches;
	uint32_t nr_patches, nr_patch_room;
	const char *dir;
	struct nm_share *share;
};

/* DIR, the segment directory where neighbours are found, outlives the table. */
void nm_address_table_init(struct nm_address_table *table, const char *dir);
void nm_address_table_fini(struct nm_address_table *table);

/*
 * Insert a parsed address. One that is there already is counted and keeps its index. FILL_HOLES:
 * the index of a removed one may be used again. Returns 0, -ENOMEM, or -ENOSPC (NM_ADDRESSES_MAX).
 */
int nm_address_table_insert(struct nm_address_table *table, const struct nm_address *address,
			    bool fill_holes, uint64_t *ret_index);
/* WHO, whatever it is, will be inserted soon: have its place in the hash fetched from memory. */
void nm_address_table_expect(const struct nm_address_table *table, const struct nm_identity *who);
/* Take one insertion back. Returns how many of this address are left, or -EINVAL: no such index. */
int nm_address_table_remove(struct nm_address_table *table, uint64_t index);
/* Copy out the address at INDEX. False: there is none. */
bool nm_address_table_get(const struct nm_address_table *table, uint64_t index,
			  struct nm_address *ret_address);
/* NM_ADDRESS_NONE: not in it. */
uint64_t nm_address_table_find(const struct nm_address_table *table, const struct nm_identity *who);

/* What it costs, in bytes. */
struct nm_address_usage {
	uint64_t private_bytes;
	uint64_t block_bytes;  /* of blocks, in shared memory */
	uint64_t shared_bytes; /* of those, blocks that neighbours use or can find */
	uint64_t found_bytes;  /* of those, blocks that a neighbour had made */
};
void nm_address_table_usage(const struct nm_address_table *table,
			    struct nm_address_usage *ret_usage);

#endif
