/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Windows in one kernel: a sealed memfd that only its owner can write (layout.h). Also windows in
 * memory that is shared already and protected in another way.
 *
 * The owner maps its window read-write and then seals it. From then on the kernel refuses any
 * process a new writable mapping, write, truncation or hole. So a peer with the descriptor can only
 * read, and cannot cause or get SIGBUS. A crash leaves no file.
 *
 * Calls on different objects are thread-safe.
 */
#ifndef NM_SHM_WINDOW_H
#define NM_SHM_WINDOW_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/reason.h"
#include "shm/layout.h"

/*
 * Lay out a window. POOL_SIZE is rounded down to whole chunks. Returns 0, or -EINVAL if a number is
 * outside the limits of layout.h.
 */
int nm_geometry_init(uint32_t nr_lanes, uint32_t ring_slots, uint32_t chunk_size,
		     uint64_t pool_size, struct nm_geometry *ret_geometry);

/*
 * Lay out a window that takes at most ROOM bytes: like nm_geometry_init(), but with a smaller pool
 * and then fewer lanes if needed. -ENOSPC with a reason: ROOM is too small for any window.
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

/* The own window. */
struct nm_window {
	int fd; /* -1: it was placed in the caller's memory */
	struct nm_geometry geometry;
	struct nm_window_header *header;
	struct nm_lane *lanes;
	struct nm_region_slot *regions;
	struct nm_slot *rings;
	uint8_t *pool;
};

/*
 * Create, size, reserve, map and seal a window in state INIT. Header, lanes and pool are reserved
 * and touched now, rings at their first use: neighbours refuse memory that its owner did not touch.
 * Neighbours compare ID. Returns 0 or -errno with a reason; leaves nothing behind on failure.
 */
int nm_window_create(const struct nm_geometry *geometry, const uint8_t id[6],
		     struct nm_window *ret_window, struct nm_reason *ret_reason);
/*
 * Create a window in ROOM bytes of zeros at MEMORY, which neighbours already see: a part of a
 * segment between virtual machines (attach.h). Such memory cannot be sealed. The caller still owns
 * MEMORY.
 */
int nm_window_place(const struct nm_geometry *geometry, const uint8_t id[6], void *memory,
		    uint64_t room, struct nm_window *ret_window, struct nm_reason *ret_reason);
/* Fill the page tables for the pool before its first use. This only improves speed. */
void nm_window_warm(const struct nm_window *window);
/* Unmap and close. Neighbours keep their mappings. Incomplete windows and NULL are allowed. */
void nm_window_destroy(struct nm_window *window);

/* Publish a new state. */
void nm_window_set_state(struct nm_window *window, enum nm_window_state state);
/* First slot of the ring of LANE. */
struct nm_slot *nm_window_ring(struct nm_window *window, uint32_t lane);
/*
 * Reserve and touch the memory of a ring, so that writing to it cannot fail and a neighbour reads
 * it. 0 or -errno with a reason.
 */
int nm_window_reserve_ring(struct nm_window *window, uint32_t lane, struct nm_reason *ret_reason);

/*
 * A neighbour's window, mapped read-only. Its bytes may change under every read. A read takes no
 * memory of this process, except in a pool or a ring that was not checked: nm_foreign_check_pool(),
 * nm_foreign_check_lane().
 */
struct nm_foreign_window {
	struct nm_geometry geometry;
	const struct nm_window_header *header;
	const struct nm_lane *lanes;
	const struct nm_region_slot *regions;
	const struct nm_slot *rings;
	const uint8_t *pool;
	dev_t device; /* identity of the file: equal for equal windows; 0 for a view */
	ino_t inode;
	bool is_view;  /* view of memory that stays mapped without it */
	uint8_t id[6]; /* from the header at attach */
};

/*
 * Map the window of FD, which the caller still owns. First checks that no process can shrink or
 * write it, that its header is valid, and that the pages before the rings are the owner's. This
 * takes the same time for each size. Returns 0, or -errno with a reason: -EPERM: not a memfd, or
 * not sealed, or another user's; -EBADMSG, -EPROTONOSUPPORT: see nm_window_header_check(), or pages
 * are missing; -ENOSPC: it is too large for this process (budget.h).
 */
int nm_window_attach(int fd, struct nm_foreign_window *ret_window, struct nm_reason *ret_reason);
/*
 * A view of a window of SIZE bytes at MEMORY, which is already mapped and may hold anything. Makes
 * the checks of nm_window_attach() except those of the file. MEMORY outlives the view.
 */
int nm_window_view(const void *memory, uint64_t size, struct nm_foreign_window *ret_window,
		   struct nm_reason *ret_reason);
/* NULL and zeroed windows are allowed. */
void nm_window_detach(struct nm_foreign_window *window);

/*
 * Check, before the first read of the pool, that its pages are the owner's. 0, or -EBADMSG with a
 * reason.
 */
int nm_foreign_check_pool(const struct nm_foreign_window *window, struct nm_reason *ret_reason);
/* Fill the page tables for a checked pool of LEN bytes. This only improves speed, and takes
 * milliseconds. */
void nm_pool_warm(const uint8_t *pool, size_t len);
/*
 * Check that LANE exists and, before the first read of its ring (READS_RING), that the pages of
 * the ring are the owner's. 0, or -EBADMSG with a reason.
 */
int nm_foreign_check_lane(const struct nm_foreign_window *window, uint32_t lane, bool reads_ring,
			  struct nm_reason *ret_reason);
/* First slot of the ring of LANE, which the caller has checked. */
const struct nm_slot *nm_foreign_ring(const struct nm_foreign_window *window, uint32_t lane);
enum nm_window_state nm_foreign_state(const struct nm_foreign_window *window);

#endif
