/* SPDX-License-Identifier: Apache-2.0 */
/* The attached buffers of an interface, by address. The caller locks. */
#ifndef NM_DEVICE_DEVICE_LIST_H
#define NM_DEVICE_DEVICE_LIST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/reason.h"

/* One allocation of the program, of which pieces are attached; the first member of its structure. */
struct nm_listed {
	uint64_t start, size;
	uint64_t id; /* the driver's; another one for each allocation of the process */
	unsigned int nr_attached;
	bool is_listed; /* not yet replaced by a younger allocation at its address */
};

struct nm_device_list {
	struct nm_listed **buffers; /* sorted, without overlap */
	size_t nr, max;
};

/* Does B hold all of this range? Otherwise with the reason. */
bool nm_listed_holds(const struct nm_listed *b, uint64_t address, size_t len,
		     struct nm_reason *ret_why);
/* The buffer that holds all of this range; NULL: there is none. */
struct nm_listed *nm_device_list_find(const struct nm_device_list *list, uint64_t address,
				      size_t len);
/*
 * Buffers that overlap B are no longer listed: the program freed them without closing their
 * regions, and the driver gave B. 0 or -ENOMEM.
 */
int nm_device_list_add(struct nm_device_list *list, struct nm_listed *b);
/* Without effect if B is not listed. */
void nm_device_list_remove(struct nm_device_list *list, struct nm_listed *b);

#endif
