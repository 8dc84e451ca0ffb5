/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many addresses in few bytes. In a block of addresses most bytes are alike in all of them (version,
 * family, padding, protocol): they are kept once, and each address keeps what is its own: 22 bytes
 * over IPv4, 34 over IPv6. Found out from the bytes, so any inner address format gains by it.
 * A pack holds no pointers: the same addresses in the same order give the same bytes everywhere.
 */
#ifndef NM_LOCALITY_ADDRESS_PACK_H
#define NM_LOCALITY_ADDRESS_PACK_H

#include "locality/address.h"

struct nm_address_pack {
	uint32_t nr;
	uint32_t stride;		/* bytes of its own that each address has */
	uint8_t common[NM_ADDRESS_LEN]; /* the first address */
	uint8_t place[NM_ADDRESS_LEN];	/* where in the address the k-th own byte belongs */
	uint8_t own[];			/* nr * stride */
};
_Static_assert(sizeof(struct nm_address_pack) == 136, "no padding, which would differ");

/* NR addresses, at least one. The caller frees it. NULL: out of memory. */
struct nm_address_pack *nm_address_pack_create(const struct nm_address *addresses, uint32_t nr);
size_t nm_address_pack_size(const struct nm_address_pack *pack);
/* The address I < pack->nr. */
void nm_address_pack_get(const struct nm_address_pack *pack, uint32_t i,
			 struct nm_address *ret_address);

#endif
