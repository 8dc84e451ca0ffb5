/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The address space that all foreign windows of this process may take together. Their pages belong
 * to their owners (window.h), but a mapping takes address space and page tables of the reader. A
 * neighbour chooses the size of its window, so the sum is bounded by what this process may use:
 *
 *   half of RLIMIT_AS                  the program needs the rest
 *   memory and swap of the machine     sound windows are there
 *   32 times the limit of the control  page tables are 1/512 of what they map, so they take at most
 *   group's memory                     a sixteenth
 *
 * Thread-safe.
 */
#ifndef NM_SHM_BUDGET_H
#define NM_SHM_BUDGET_H

#include <stdint.h>

#include "base/reason.h"

/* Take BYTES. 0, or -ENOSPC with a reason that names the limit. */
int nm_budget_take(uint64_t bytes, struct nm_reason *ret_reason);
/* The same for a heap (heap.h), which leaves half of the room to windows. */
int nm_budget_take_spare(uint64_t bytes, struct nm_reason *ret_reason);
void nm_budget_return(uint64_t bytes);
/* The memory that this process can have: of the machine with swap, or of its control group. */
uint64_t nm_budget_memory(void);

#endif
