/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registered memory regions of a domain: what remote peers may read, write or update.
 * mr_mode is 0: keys are chosen by the user (or by us on request), addresses are offsets.
 * Every remote access is checked here, with overflow-safe arithmetic, against key, access rights
 * and bounds. Not thread-safe: engine lock.
 */
#ifndef NM_ENGINE_MEMORY_H
#define NM_ENGINE_MEMORY_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "shm/regions.h"

struct nm_memory_table;
struct nm_memory_region;
struct nm_counter;

struct nm_memory_attr {
	const struct iovec
		*iov;	 /* base NULL and len SIZE_MAX: all of memory (MPI dynamic windows) */
	size_t nr_iov;	 /* 1..NM_IOV_MAX */
	uint64_t access; /* NM_REMOTE_READ, NM_REMOTE_WRITE, ... */
	uint64_t offset; /* remote address of the first byte */
	uint64_t key;	 /* requested key */
	struct nm_counter *counter; /* counts remote accesses; may be NULL */
};

/*
 * Informed of regions that peers may access without the owner's help: one piece, no counter that
 * has to count it. `hide` is called before the region is gone, and the region stays until it
 * returns.
 */
struct nm_memory_watch {
	struct nm_memory_watch *next;
	void (*show)(struct nm_memory_watch *watch, const struct nm_region *region);
	void (*hide)(struct nm_memory_watch *watch, uint64_t key);
};

int nm_memory_table_create(struct nm_memory_table **ret_table);
void nm_memory_table_destroy(struct nm_memory_table *table);
/* -ENOKEY: key in use. -EINVAL: overflow in iov. */
int nm_memory_register(struct nm_memory_table *table, const struct nm_memory_attr *attr,
		       struct nm_memory_region **ret_region);
void nm_memory_deregister(struct nm_memory_table *table, struct nm_memory_region *region);
/* Change or clear the counter bound to a region. */
void nm_memory_bind_counter(struct nm_memory_region *region, struct nm_counter *counter);
/* Report all regions to WATCH from now on, the existing ones first. The caller owns WATCH. */
void nm_memory_watch(struct nm_memory_table *table, struct nm_memory_watch *watch);
/* No more; hides what was shown. Unknown ones are fine. */
void nm_memory_unwatch(struct nm_memory_table *table, struct nm_memory_watch *watch);
/* The counter bound to a region; NULL: none. */
struct nm_counter *nm_memory_counter(const struct nm_memory_region *region);
/*
 * nm_memory_resolve - local bytes for a remote request.
 * Returns the number of iovecs written to ret_iov (1..NM_IOV_MAX), -ENOKEY (no such key),
 * -EACCES (not allowed), -ERANGE (outside). All three look the same to the peer: EACCES.
 */
int nm_memory_resolve(const struct nm_memory_table *table, uint64_t key, uint64_t address,
		      uint64_t len, uint64_t access, struct iovec *ret_iov,
		      struct nm_memory_region **ret_region);

#endif
