/* SPDX-License-Identifier: Apache-2.0 */
#include "shm/regions.h"

#include <errno.h>

/* A sequence that stays odd belongs to an owner that died or is hostile. */
#define MAX_TRIES 16
/* The rights of an entry for the heap. A release that does not know it finds no right there. */
#define HEAP_SHIFT 32

static uint32_t bucket_of(uint64_t key, uint32_t nr_slots)
{
	key *= UINT64_C(0x9e3779b97f4a7c15);
	return (uint32_t)(key >> 32) % (nr_slots / NM_REGION_BUCKET) * NM_REGION_BUCKET;
}

static void fill(struct nm_region_slot *slot, const struct nm_region *region)
{
	uint64_t sequence = atomic_load_explicit(&slot->sequence, memory_order_relaxed);

	/*
	 * Partner of all: read_slot(). A reader of any of these words also sees the odd sequence.
	 * The last store is ordered against a read of `reaching` (nm_sessions_await_copies()):
	 * either the reader sees it, or the owner sees the reader.
	 */
	atomic_store_explicit(&slot->sequence, sequence + 1, memory_order_relaxed);
	atomic_store_explicit(&slot->key, region->key, memory_order_release);
	atomic_store_explicit(&slot->base, region->base, memory_order_release);
	atomic_store_explicit(&slot->len, region->len, memory_order_release);
	atomic_store_explicit(&slot->offset, region->offset, memory_order_release);
	atomic_store_explicit(&slot->access, region->access << (region->in_heap ? HEAP_SHIFT : 0),
			      memory_order_release);
	atomic_store_explicit(&slot->sequence, sequence + 2, memory_order_seq_cst);
}

/* False: the slot is empty or being changed. */
static bool read_slot(const struct nm_region_slot *slot, struct nm_region *ret_region,
		      uint64_t *ret_sequence)
{
	struct nm_region region;
	uint64_t before;

	for (int i = 0; i < MAX_TRIES; i++) {
		/* Partner: fill(). */
		before = atomic_load_explicit(&slot->sequence, memory_order_seq_cst);
		region.key = atomic_load_explicit(&slot->key, memory_order_acquire);
		region.base = atomic_load_explicit(&slot->base, memory_order_acquire);
		region.len = atomic_load_explicit(&slot->len, memory_order_acquire);
		region.offset = atomic_load_explicit(&slot->offset, memory_order_acquire);
		region.access = atomic_load_explicit(&slot->access, memory_order_acquire);
		if (before % 2 == 0 &&
		    atomic_load_explicit(&slot->sequence, memory_order_relaxed) == before) {
			region.in_heap = region.access >> HEAP_SHIFT != 0;
			if (region.in_heap)
				region.access >>= HEAP_SHIFT;
			*ret_region = region;
			*ret_sequence = before;
			return region.access != 0;
		}
	}
	return false;
}

int nm_regions_publish(struct nm_region_slot *slots, uint32_t nr_slots,
		       const struct nm_region *region)
{
	struct nm_region_slot *slot = slots + (nr_slots ? bucket_of(region->key, nr_slots) : 0);

	if (!nr_slots || !region->access)
		return -ENOSPC;
	for (int i = 0; i < NM_REGION_BUCKET; i++, slot++)
		if (!atomic_load_explicit(&slot->access, memory_order_relaxed)) {
			fill(slot, region);
			return 0;
		}
	return -ENOSPC;
}

void nm_regions_revoke(struct nm_region_slot *slots, uint32_t nr_slots, uint64_t key)
{
	struct nm_region_slot *slot = slots + (nr_slots ? bucket_of(key, nr_slots) : 0);

	for (int i = 0; nr_slots && i < NM_REGION_BUCKET; i++, slot++)
		if (atomic_load_explicit(&slot->access, memory_order_relaxed) &&
		    atomic_load_explicit(&slot->key, memory_order_relaxed) == key)
			fill(slot, &(struct nm_region){0});
	/* Partner: nm_regions_is_shown(). What the owner writes from here on is seen after that. */
	atomic_thread_fence(memory_order_release);
}

int nm_regions_find(const struct nm_region_slot *slots, uint32_t nr_slots, uint64_t key,
		    bool in_heap, struct nm_region *ret_region, struct nm_region_seen *ret_seen)
{
	const struct nm_region_slot *slot = slots + (nr_slots ? bucket_of(key, nr_slots) : 0);
	struct nm_region region;
	uint64_t sequence;

	for (int i = 0; nr_slots && i < NM_REGION_BUCKET; i++, slot++)
		if (read_slot(slot, &region, &sequence) && region.key == key &&
		    region.in_heap == in_heap) {
			*ret_region = region;
			if (ret_seen)
				*ret_seen = (struct nm_region_seen){slot, sequence};
			return 0;
		}
	return -ENOKEY;
}

bool nm_regions_is_shown(const struct nm_region_seen *seen)
{
	/* Partner: nm_regions_revoke(). Who read a byte that was written later sees the sequence. */
	atomic_thread_fence(memory_order_acquire);
	return atomic_load_explicit(&seen->slot->sequence, memory_order_relaxed) == seen->sequence;
}
