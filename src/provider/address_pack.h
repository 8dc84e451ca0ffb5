/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many addresses in few bytes. In a block of addresses most bytes are equal in all of them (version,
 * family, padding, protocol). The pack keeps these once, and for each address only the bytes that
 * differ: at most 22 over IPv4 and 34 over IPv6. The bytes themselves show which ones differ, so
 * every inner address format gains.
 */
#ifndef NM_PROVIDER_ADDRESS_PACK_H
#define NM_PROVIDER_ADDRESS_PACK_H

#include "connect/address.h"

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

#endif
