/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table in the owner's window that shows its registered memory: peers that may copy from and to
 * the owner's memory look up a key there, without asking the owner (docs/design/cma.md).
 *
 * The owner writes; any number of neighbours read. A reader accepts an entry only if its sequence
 * was even and the same before and after. An entry may disappear right after it was read. So a user
 * announces its use before it looks (struct nm_lane, `reaching`), and the owner waits for that. A
 * foreign table is hostile, but it can name places only in its *owner's* memory.
 */
#ifndef NM_SHM_REGIONS_H
#define NM_SHM_REGIONS_H

#include "shm/layout.h"

struct nm_region {
	uint64_t key;
	uint64_t base; /* address of the first byte in the owner's process */
	uint64_t len;
	uint64_t offset; /* remote address of the first byte */
	uint64_t access; /* NM_REMOTE_READ, NM_REMOTE_WRITE */
};

/* Owner: show REGION, whose key is not shown yet. 0, or -ENOSPC: its bucket is full. */
int nm_regions_publish(struct nm_region_slot *slots, uint32_t nr_slots,
		       const struct nm_region *region);
/* Owner: hide KEY. Unknown keys are allowed. */
void nm_regions_revoke(struct nm_region_slot *slots, uint32_t nr_slots, uint64_t key);
/* Neighbour: get a consistent copy. 0, or -ENOKEY: not shown, or just being changed. */
int nm_regions_find(const struct nm_region_slot *slots, uint32_t nr_slots, uint64_t key,
		    struct nm_region *ret_region);

#endif
