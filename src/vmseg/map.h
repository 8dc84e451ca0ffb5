/* SPDX-License-Identifier: Apache-2.0 */
/* Mapping the memory of a segment: a file, the resource of a PCI device, a DAX device. */
#ifndef NM_VMSEG_MAP_H
#define NM_VMSEG_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/reason.h"
#include "vmseg/layout.h"

struct nm_vmseg_map {
	void *base; /* NULL: not mapped */
	uint64_t len;
	uint64_t file_len; /* of the whole file */
};

/*
 * Map LEN bytes of PATH from OFFSET (a multiple of NM_VMSEG_ALIGN, or 0); LEN 0: all. Reads
 * nothing: the resource of a device can be mapped but not read. 0; -ENOTSUP: the resource is
 * write-combined by its name; -EACCES, -EPERM: not allowed; -errno; with a reason.
 */
int nm_vmseg_map(const char *path, bool writable, uint64_t offset, uint64_t len,
		 struct nm_vmseg_map *ret_map, struct nm_reason *ret_reason);
/* An empty map is allowed. */
void nm_vmseg_unmap(struct nm_vmseg_map *map);

/*
 * Find and check the host page in MAP. LEADS: also look at NM_VMSEG_ALIGN, where a DAX namespace
 * with its own description would begin. *RET_OFFSET: its place. 0 or -errno with a reason.
 */
int nm_vmseg_find_host(const struct nm_vmseg_map *map, bool leads, struct nm_vmseg_host *ret_host,
		       uint64_t *ret_offset, struct nm_reason *ret_reason);

#endif
