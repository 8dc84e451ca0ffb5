/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The addresses that a program knows, by index and by identity, for a million of them and more.
 *
 * All of it is private memory, at most NM_ADDRESS_COST bytes per address beside a fixed amount: an
 * index costs 4 bytes, the hash that finds an identity 5 to 11, and the address itself the bytes in
 * which it differs from the others of its block. New addresses wait unpacked until
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

/*
 * Many addresses in few bytes. In a block of addresses most bytes are equal in all of them
 * (version, family, padding, protocol). The pack keeps these once, and for each address only the
 * bytes that differ: at most 22 over IPv4 and 34 over IPv6. The bytes themselves show which ones
 * differ, so every inner address format gains.
 */
struct nm_address_pack {
	uint32_t nr;
	uint32_t stride;		/* bytes of its own that each address has */
	uint8_t common[NM_ADDRESS_LEN]; /* the first address */
	uint8_t place[NM_ADDRESS_LEN];	/* where in the address the k-th own byte belongs */
	uint8_t own[];			/* nr * stride */
};

/* NR addresses, at least one. The caller frees it. NULL: out of memory. */
struct nm_address_pack *nm_address_pack_create(const struct nm_address *addresses, uint32_t nr);
size_t nm_address_pack_size(const struct nm_address_pack *pack);
/* The address I < pack->nr. */
void nm_address_pack_get(const struct nm_address_pack *pack, uint32_t i,
			 struct nm_address *ret_address);
/*
 * Replace the address I < (*pack)->nr. *PACK moves when ADDRESS differs in a byte that was common.
 * Returns 0 or -ENOMEM; then nothing changed.
 */
int nm_address_pack_set(struct nm_address_pack **pack, uint32_t i,
			const struct nm_address *address);

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
