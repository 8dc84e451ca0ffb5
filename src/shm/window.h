/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Windows in one kernel: a sealed memfd that its owner alone can write (layout.h); and windows
 * placed in memory that is shared already, which something else protects.
 *
 * The owner maps its window read-write and then seals it: from then on the kernel refuses every
 * further writable mapping, write, truncation or hole, for any process, so a peer that holds the
 * descriptor can read and nothing else, and cannot be hurt by SIGBUS. No file is left after a
 * crash.
 *
 * Thread-safe in so far as calls on different objects are.
 */
#ifndef NM_SHM_WINDOW_H
#define NM_SHM_WINDOW_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/reason.h"
#include "shm/layout.h"

/*
 * Lay out a window. POOL_SIZE is rounded down to whole chunks.
 * Returns 0, or -EINVAL when a number is outside the limits of layout.h.
 */
int nm_geometry_init(uint32_t nr_lanes, uint32_t ring_slots, uint32_t chunk_size,
		     uint64_t pool_size, struct nm_geometry *ret_geometry);

/*
 * Lay out a window that takes up to ROOM bytes: as nm_geometry_init(), with a smaller pool, and
 * then with fewer lanes, where it has to. -ENOSPC: ROOM is too little for anything, with a reason.
 */
int nm_geometry_fit(uint64_t room, uint32_t nr_lanes, uint32_t ring_slots, uint32_t chunk_size,
		    uint64_t pool_size, struct nm_geometry *ret_geometry,
		    struct nm_reason *ret_reason);

/*
 * Check a private copy of a foreign header against the real size of the file behind it. Pure.
 * Returns 0, or -EBADMSG; -EPROTONOSUPPORT for another layout version or unknown feature bits.
 */
int nm_window_header_check(const struct nm_window_header *header, uint64_t file_size,
			   struct nm_geometry *ret_geometry, struct nm_reason *ret_reason);

/* My own window. */
struct nm_window {
	int fd; /* -1: it was placed in memory of the caller's */
	struct nm_geometry geometry;
	struct nm_window_header *header;
	struct nm_lane *lanes;
	struct nm_region_slot *regions;
	struct nm_slot *rings;
	uint8_t *pool;
};

/*
 * Create, size, reserve (header, lanes, pool; rings when they are taken into use), map and seal a
 * window, in state INIT. ID and TOKEN are written into it for neighbours to compare.
 * Returns 0 or -errno with a reason; leaves nothing behind on failure.
 */
int nm_window_create(const struct nm_geometry *geometry, const uint8_t id[6],
		     const uint8_t token[8], struct nm_window *ret_window,
		     struct nm_reason *ret_reason);
/*
 * The same in ROOM bytes of zeros at MEMORY that exist already and that neighbours see: a part of a
 * segment between virtual machines (attach.h). Nothing can be sealed there. MEMORY stays the
 * caller's.
 */
int nm_window_place(const struct nm_geometry *geometry, const uint8_t id[6], const uint8_t token[8],
		    void *memory, uint64_t room, struct nm_window *ret_window,
		    struct nm_reason *ret_reason);
/* Fill my page tables for the pool, before the first use of it. Only a matter of speed. */
void nm_window_warm(const struct nm_window *window);
/* Unmap and close. Neighbours keep what they have mapped. Half-built and NULL are fine. */
void nm_window_destroy(struct nm_window *window);

/* Publish a new state. */
void nm_window_set_state(struct nm_window *window, enum nm_window_state state);
/* First slot of the ring of LANE. */
struct nm_slot *nm_window_ring(struct nm_window *window, uint32_t lane);
/* Reserve the memory of a ring, so that writing to it cannot fail. 0 or -errno with a reason. */
int nm_window_reserve_ring(struct nm_window *window, uint32_t lane, struct nm_reason *ret_reason);

/* A neighbour's window, mapped read-only. Its bytes may change under every read. */
struct nm_foreign_window {
	struct nm_geometry geometry;
	const struct nm_window_header *header;
	const struct nm_lane *lanes;
	const struct nm_region_slot *regions;
	const struct nm_slot *rings;
	const uint8_t *pool;
	dev_t device; /* which file it is: equal for equal windows; 0 of a view */
	ino_t inode;
	bool is_view;  /* of memory that stays mapped without it */
	uint8_t id[6]; /* as the header said at attach */
	uint8_t token[8];
};

/*
 * Map the window behind FD (which stays the caller's), after checking that no process can shrink it
 * or write to it any more and that its header makes sense. Returns 0, or -errno with a reason:
 * -EPERM: not a memfd, or not sealed; -EBADMSG, -EPROTONOSUPPORT: see nm_window_header_check().
 */
int nm_window_attach(int fd, struct nm_foreign_window *ret_window, struct nm_reason *ret_reason);
/*
 * A view of a window of SIZE bytes at MEMORY, which is mapped already and may hold anything. Checks
 * what nm_window_attach() checks but for the file. MEMORY outlives the view.
 */
int nm_window_view(const void *memory, uint64_t size, struct nm_foreign_window *ret_window,
		   struct nm_reason *ret_reason);
/* NULL and zeroed are fine. */
void nm_window_detach(struct nm_foreign_window *window);

/* First slot of the ring of LANE; the caller has checked LANE. */
const struct nm_slot *nm_foreign_ring(const struct nm_foreign_window *window, uint32_t lane);
enum nm_window_state nm_foreign_state(const struct nm_foreign_window *window);

#endif
