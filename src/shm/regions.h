/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table in the owner's window that shows its registered memory: peers that may copy from and to
 * the owner's memory look up a key there, without asking the owner (docs/design/cma.md).
 *
 * The owner writes; any number of neighbours read. A reader accepts an entry only if its sequence
 * was even and the same before and after. An entry may disappear right after it was read. So a user
 * announces its use before it looks (struct nm_lane, `reaching`), and the owner waits for that. A
 * foreign table is hostile, but it can name places only in its *owner's* memory.
 *
 * The part of a region that lies in the owner's heap (shm/heap.h) has an entry of its own, for
 * neighbours that read there themselves. They announce nothing: they copy, and then look again if
 * the entry is still the same.
 */
#ifndef NM_SHM_REGIONS_H
#define NM_SHM_REGIONS_H

#include <stdbool.h>

#include "shm/layout.h"

struct nm_region {
	uint64_t key;
	uint64_t base; /* address of the first byte in the owner's process */
	uint64_t len;
	uint64_t offset; /* remote address of the first byte */
	uint64_t access; /* NM_REMOTE_READ, NM_REMOTE_WRITE: 32 bits */
	bool in_heap;	 /* `base` is an offset in the owner's heap */
};

/* An entry as it was read. */
struct nm_region_seen {
	const struct nm_region_slot *slot;
	uint64_t sequence;
};

/*
 * Owner: show REGION. Its key is not shown yet, or only for memory of the other kind. 0, or -ENOSPC:
 * its bucket is full.
 */
int nm_regions_publish(struct nm_region_slot *slots, uint32_t nr_slots,
		       const struct nm_region *region);
/* Owner: hide all entries of KEY. Unknown keys are allowed. */
void nm_regions_revoke(struct nm_region_slot *slots, uint32_t nr_slots, uint64_t key);
/*
 * Neighbour: get a consistent copy of the entry of KEY with IN_HEAP. RET_SEEN may be NULL. 0, or
 * -ENOKEY: not shown, or just being changed.
 */
int nm_regions_find(const struct nm_region_slot *slots, uint32_t nr_slots, uint64_t key,
		    bool in_heap, struct nm_region *ret_region, struct nm_region_seen *ret_seen);
/* True: the entry was shown without a change since it was found, during all reads before this. */
bool nm_regions_is_shown(const struct nm_region_seen *seen);

#endif
