/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The addresses that a program knows, by index and by identity, for a million of them and more.
 *
 * All of it is private memory, at most NM_ADDRESS_COST bytes per address beside a fixed amount: an
 * index costs 4 bytes, the hash that finds an identity 5 to 11, and the address itself the bytes in
 * which it differs from the others of its block (address_pack.h). New addresses wait unpacked until
 * there are enough for a block.
 *
 * Not thread-safe: the caller serialises all calls for one table.
 */
#ifndef NM_PROVIDER_ADDRESS_TABLE_H
#define NM_PROVIDER_ADDRESS_TABLE_H

#include <stdbool.h>

#include "connect/address.h"

#define NM_ADDRESS_NONE UINT64_MAX
#define NM_ADDRESSES_MAX ((UINT64_C(1) << 30) - 2)
/* Addresses in a block. */
#define NM_ADDRESS_BLOCK 256u
#define NM_ADDRESS_COST 48u

struct nm_address_pack;

struct nm_address_table {
	uint64_t nr;	   /* indices ever given out: all are below */
	uint64_t nr_used;  /* and in use */
	uint32_t *entries; /* per index: how often inserted, or the next hole */
	uint64_t nr_room;
	uint32_t first_hole;
	/* Identity -> index: open addressing, power of two, at most three quarters full. */
	uint32_t *slots;
	unsigned int slot_bits;
	/* Addresses: blocks first, then those that wait for one. */
	struct nm_address_pack **blocks;
	uint32_t nr_blocks;
	struct nm_address *waiting; /* NM_ADDRESS_BLOCK of them; NULL: none yet */
};

void nm_address_table_init(struct nm_address_table *table);
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

/* Private memory in use, in bytes. */
uint64_t nm_address_table_usage(const struct nm_address_table *table);

#endif
