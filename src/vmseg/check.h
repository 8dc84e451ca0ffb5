/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of the data in a segment. Pure functions, except the last two. */
#ifndef NM_VMSEG_CHECK_H
#define NM_VMSEG_CHECK_H

#include "vmseg/attach.h"

/*
 * Lay out a segment of NR_PARTS parts of PART_SIZE bytes. 0, or -EINVAL with a reason: outside the
 * limits of layout.h.
 */
int nm_vmseg_host_init(uint32_t nr_parts, uint64_t part_size,
		       const uint8_t token[NM_VMSEG_TOKEN_LEN], struct nm_vmseg_host *ret_host,
		       struct nm_reason *ret_reason);
/*
 * Check a host page against the number of mapped bytes. 0; -EBADMSG; -EPROTONOSUPPORT for another
 * version or unknown features; with a reason.
 */
int nm_vmseg_host_check(const struct nm_vmseg_host *host, uint64_t mapped,
			struct nm_reason *ret_reason);

/* Positions in a part. */
struct nm_vmseg_shape {
	uint64_t part_size;
	uint32_t nr_slots;
	uint32_t nr_cells;
	uint32_t slots_off;
	uint32_t cells_off;
	uint32_t space_off;
};

/* The shape of an own part. PART_SIZE is within the limits. */
void nm_vmseg_shape_init(uint64_t part_size, struct nm_vmseg_shape *ret_shape);
/* Check the header of part INDEX. 0; -EBADMSG; -EPROTONOSUPPORT; -ENOENT: never used. */
int nm_vmseg_part_check(const struct nm_vmseg_part *part, uint32_t index, uint64_t part_size,
			struct nm_vmseg_shape *ret_shape, struct nm_reason *ret_reason);
/*
 * Check a slot whose control word was read as CONTROL. Fills all fields of ret_peer except the
 * part's. 0; -ENOENT: it is free, or not open yet; -EBADMSG.
 */
int nm_vmseg_slot_check(const struct nm_vmseg_slot *slot, uint64_t control,
			const struct nm_vmseg_shape *shape, struct nm_vmseg_peer *ret_peer);

static inline uint64_t nm_vmseg_control(uint64_t generation, enum nm_vmseg_state state)
{
	return generation << NM_VMSEG_STATE_BITS | (uint64_t)state;
}

static inline uint64_t nm_vmseg_generation_of(uint64_t control)
{
	return control >> NM_VMSEG_STATE_BITS;
}

/* A foreign word may give any number up to 255. */
static inline uint32_t nm_vmseg_state_of(uint64_t control)
{
	return (uint32_t)(control & ((1u << NM_VMSEG_STATE_BITS) - 1));
}

/* Read the header of part INDEX at PART, foreign mapped bytes. Like nm_vmseg_part_check(). */
int nm_vmseg_read_part(const uint8_t *part, uint32_t index, uint64_t part_size,
		       struct nm_vmseg_part *ret_header, struct nm_vmseg_shape *ret_shape,
		       struct nm_reason *ret_reason);
/*
 * Get a consistent copy of slot INDEX (below shape->nr_slots) of the part at PART. 0; -ENOENT:
 * free, or being written; -EBADMSG. Fills all but part and part_generation of the address.
 */
int nm_vmseg_read_slot(const uint8_t *part, const struct nm_vmseg_shape *shape, uint32_t index,
		       struct nm_vmseg_peer *ret_peer);

/*
 * True if the state of a part may change from FROM, which may be any number, to TO; a state may
 * follow itself. Only RUN, QUIESCE and FROZEN are ever asked for.
 */
bool nm_vmseg_state_may_follow(uint32_t from, enum nm_vmseg_state to);

/* "free", "init", "run", "quiesce", "frozen", "gone", "?" */
const char *nm_vmseg_state_name(uint32_t state);

#endif
