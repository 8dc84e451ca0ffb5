/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kind of memory behind a mapping, found by its speed. If the hypervisor maps a BAR as the
 * guest asks, it is uncached or write-combined: then a release store does not order what a
 * neighbour sees, and a read is a hundred times slower. No interface reports the kind, so it is
 * measured and compared with private memory at the same time.
 */
#ifndef NM_VMSEG_MEASURE_H
#define NM_VMSEG_MEASURE_H

#include "vmseg/attach.h"

/* Picoseconds per 8-byte word, the best of many short samples. */
struct nm_mapping_cost {
	uint64_t load;	/* independent loads, one after the other */
	uint64_t chase; /* loads that each depend on the one before */
	uint64_t store; /* stores, with a fence after each sample; 0: not writable, not measured */
};

enum nm_mapping_kind {
	NM_MAPPING_WRITE_BACK,
	NM_MAPPING_WRITE_COMBINED, /* slow to read, fast to write */
	NM_MAPPING_UNCACHED,	   /* slow to read and to write */
	NM_MAPPING_SLOW_STORES,	   /* fast to read, slow to write */
};

/*
 * Largest slowdown against private memory that still counts as cached. Cached mappings with other
 * page sizes or on another NUMA node stay below 3; uncached ones are above 30.
 */
#define NM_MAPPING_MAX_RATIO 8

/* Decide from two measurements of the same moment. Pure. RET_REASON: the numbers as text. */
enum nm_mapping_kind nm_mapping_judge(const struct nm_mapping_cost *mapping,
				      const struct nm_mapping_cost *private_memory,
				      struct nm_reason *ret_reason);
/* "write-back", "write-combined", ... */
const char *nm_mapping_kind_name(enum nm_mapping_kind kind);

/*
 * Measure NM_VMSEG_SCRATCH_SIZE bytes at SCRATCH: write them there, and read them there and at
 * SEEN, another mapping of the same bytes. About two milliseconds on cached memory. A slow result
 * is measured several times before it counts. Returns the kind.
 */
enum nm_mapping_kind nm_mapping_measure(void *scratch, const void *seen,
					struct nm_reason *ret_reason);

#endif
