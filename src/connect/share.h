/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In a segment an endpoint's lanes, memory and descriptors are shared by the callers of all parts. A
 * hostile machine can begin any number of exchanges, each in a new name, so each part has a bound.
 */
#ifndef NM_CONNECT_SHARE_H
#define NM_CONNECT_SHARE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/reason.h"
#include "vmseg/layout.h"

struct nm_sessions;

/* Callers of one part that an endpoint meets in its life. A session that has ended keeps memory. */
#define NM_SHARE_MAX_MET 4096

struct nm_share_part {
	uint32_t nr_endpoints; /* in state RUN: any number, if the machine lies */
	uint32_t nr_lanes;     /* that its callers hold */
};

struct nm_share {
	uint32_t nr_parts;
	uint32_t nr_lanes;
	uint32_t nr_slots; /* of each part: no machine has more endpoints */
	struct nm_share_part parts[NM_VMSEG_MAX_PARTS];
};

/*
 * True if a caller of PART may have one more lane. For each part in use, lanes are kept for its
 * present endpoints, up to an equal share. A part gets more if others keep theirs, but never more
 * lanes than it has slots. Pure.
 */
bool nm_share_allows(const struct nm_share *share, uint32_t part);

/*
 * Check that a caller of PART may have a lane, and count it if it IS_NEW. 0 or -ENOSPC with a reason.
 * Needs sessions->lock.
 */
int nm_share_check(const struct nm_sessions *sessions, uint32_t part, bool is_new,
		   struct nm_reason *ret_reason);

/* Limit of unfinished exchanges with one part. */
unsigned int nm_share_strangers(void);

#endif
