/* SPDX-License-Identifier: Apache-2.0 */
/* Mapping what a segment lies in: a file, the resource of a PCI device, a DAX device. */
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
	uint64_t file_len; /* of all there is */
};

/*
 * Map PATH from OFFSET on (a multiple of NM_VMSEG_ALIGN, or 0), LEN bytes of it, or all that there
 * are (LEN 0). Reads nothing of it: the resource of a device can be mapped, never read. 0; -ENOTSUP:
 * a resource that is write-combined by its name; -EACCES, -EPERM: not allowed; -errno; with a reason.
 */
int nm_vmseg_map(const char *path, bool writable, uint64_t offset, uint64_t len,
		 struct nm_vmseg_map *ret_map, struct nm_reason *ret_reason);
/* Not mapped is fine. */
void nm_vmseg_unmap(struct nm_vmseg_map *map);

/*
 * The host page in MAP, checked. LEADS: also where a DAX namespace that describes itself would begin
 * in the file behind it (NM_VMSEG_ALIGN). *RET_OFFSET: where it is. 0 or -errno with a reason.
 */
int nm_vmseg_find_host(const struct nm_vmseg_map *map, bool leads, struct nm_vmseg_host *ret_host,
		       uint64_t *ret_offset, struct nm_reason *ret_reason);

#endif
