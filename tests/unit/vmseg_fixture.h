/* SPDX-License-Identifier: Apache-2.0 */
/* Segments in plain files, for several machines that are processes of one. */
#ifndef NM_TEST_VMSEG_FIXTURE_H
#define NM_TEST_VMSEG_FIXTURE_H

#include "vmseg/check.h"

#define SEGMENT_MIB (UINT64_C(1) << 20)

/* Make the file of a segment in the case's directory; its path. */
const char *segment_file(uint32_t nr_parts, uint64_t part_size);
/* The segment that all functions here mean from now on; 0 at first. Each has its own token. */
void segment_use(unsigned int number);
/* What the guest unit of the machine PART would say, with a lock file of its own. */
struct nm_vmseg_config segment_config(uint32_t part);
/* Attached as machine PART, or the case fails. */
struct nm_vmseg *segment_attach(uint32_t part);
/* A window for this segment. */
struct nm_geometry segment_geometry(const struct nm_vmseg *segment);
/* An endpoint named by one letter, open. RET_WINDOW may be NULL. */
struct nm_vmseg_claim *segment_open(struct nm_vmseg *segment, char name,
				    struct nm_window *ret_window);
/* The slot in state RUN that shows ID. 0 or -ENOENT. */
int segment_find(struct nm_vmseg *segment, const uint8_t id[6], struct nm_vmseg_peer *ret_peer);
/* Change one thing in the file behind everybody's back. */
void segment_poke(uint64_t offset, const void *bytes, size_t len);
uint64_t segment_part_offset(uint32_t part, uint64_t part_size);

/* Of the segment below. */
#define MACHINES 3
#define MACHINE_SIZE (32 * SEGMENT_MIB)

/*
 * From now on this process is on machine PART of a segment for three, made on first use:
 * NEARMETAL_SEGMENT says so to whoever opens the channel. The path is always the same one, as knobs
 * are read once, so other processes wait at the door until the returned descriptor is closed.
 */
int segment_enter_machine(uint32_t part);
/* The guest unit writes CONFIG into FILE of the case's directory. Its path, until the next call. */
const char *segment_describe(const struct nm_vmseg_config *config, const char *file);
/* The endpoints that this file names; 0, as in every new case: none. */
void segment_tell_endpoints(uint32_t nr);
/* Likewise on the one after that of whoever called this last, in this process or another. */
int segment_enter_next_machine(void);

#endif
