/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registered memory as its owner shows it to its neighbours, in its own window: peers may copy from
 * and to the owner's memory finds there what a key stands for, without asking (docs/design/cma.md).
 *
 * One writer, the owner; any number of readers, which take an entry for granted only when its
 * sequence was even and the same before and after. An entry may be gone right after it was read:
 * who uses it says so before it looks (struct nm_lane, `reaching`), and the owner waits for that.
 * What is in a foreign table is hostile: it names places in the *owner's* memory, nothing else.
 */
#ifndef NM_SHM_REGIONS_H
#define NM_SHM_REGIONS_H

#include "shm/layout.h"

struct nm_region {
	uint64_t key;
	uint64_t base; /* address of the first byte in the owner's process */
	uint64_t len;
	uint64_t offset; /* what remote peers call the first byte */
	uint64_t access; /* NM_REMOTE_READ, NM_REMOTE_WRITE */
};

/* Owner: show REGION; its key is not shown yet. 0, or -ENOSPC: its place is full. */
int nm_regions_publish(struct nm_region_slot *slots, uint32_t nr_slots,
		       const struct nm_region *region);
/* Owner: show KEY no more. Unknown keys are fine. */
void nm_regions_revoke(struct nm_region_slot *slots, uint32_t nr_slots, uint64_t key);
/* Neighbour: a consistent copy. 0, or -ENOKEY: not shown, or just being changed. */
int nm_regions_find(const struct nm_region_slot *slots, uint32_t nr_slots, uint64_t key,
		    struct nm_region *ret_region);

#endif
