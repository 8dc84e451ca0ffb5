/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What kind of memory a mapping is, found out by its speed. A BAR that the hypervisor maps as the
 * guest asks is uncached or write-combined: then a release store does not order what a neighbour
 * sees, and a read is a hundred times slower. Nothing tells, so it is measured, against private
 * memory in the same moment.
 */
#ifndef NM_VMSEG_MEASURE_H
#define NM_VMSEG_MEASURE_H

#include "vmseg/attach.h"

/* Picoseconds per 8-byte word, the best of many short samples. */
struct nm_mapping_cost {
	uint64_t load;	/* independent loads, one after the other */
	uint64_t chase; /* loads of which each has to wait for the one before */
	uint64_t store; /* stores, and a fence behind each sample; 0: not writable, not measured */
};

enum nm_mapping_kind {
	NM_MAPPING_WRITE_BACK,
	NM_MAPPING_WRITE_COMBINED, /* slow to read, fast to write */
	NM_MAPPING_UNCACHED,	   /* slow to read and to write */
	NM_MAPPING_SLOW_STORES,	   /* fast to read, slow to write */
};

/*
 * How many times slower than private memory still is a cache. The slowest cached mapping is one of
 * other page sizes or of another NUMA node, below 3; the fastest uncached one is beyond 30.
 */
#define NM_MAPPING_MAX_RATIO 8

/* Decide by two measurements of the same moment. Pure. RET_REASON: the numbers, in words. */
enum nm_mapping_kind nm_mapping_judge(const struct nm_mapping_cost *mapping,
				      const struct nm_mapping_cost *private_memory,
				      struct nm_reason *ret_reason);
/* "write-back", "write-combined", ... */
const char *nm_mapping_kind_name(enum nm_mapping_kind kind);

/*
 * Measure NM_VMSEG_SCRATCH_SIZE bytes at SCRATCH, written through it, and read through it and
 * through SEEN, another mapping of the same bytes. About two milliseconds on cached memory. What
 * looks slow is measured again and again before it is believed. Returns the kind.
 */
enum nm_mapping_kind nm_mapping_measure(void *scratch, const void *seen,
					struct nm_reason *ret_reason);

#endif
