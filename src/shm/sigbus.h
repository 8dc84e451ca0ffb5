/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Guards for mappings whose bytes may disappear while they are read. A window in one kernel is
 * sealed and needs no guard. Files on DAX and the shared memory of virtual machines cannot be
 * sealed: a read past the end of such a file is SIGBUS and would end an innocent program.
 *
 * The handler maps zeros where a fault in a guarded mapping happened, sets the guard's `lost` and
 * returns. No header, slot or counter accepts zeros. The guard's owner checks `lost` before it uses
 * anything that it read, and then gives the mapping up. Every other SIGBUS goes to the program's
 * own handler or ends the program.
 *
 * The first guard installs the handler. The last one removes it if it still is this handler. A
 * program that meanwhile installs its own handler without chaining ends as it would without
 * nearmetal.
 */
#ifndef NM_SHM_SIGBUS_H
#define NM_SHM_SIGBUS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NM_SIGBUS_MAX_GUARDS 64

struct nm_sigbus_guard {
	uintptr_t start;   /* page-aligned */
	size_t len;	   /* whole pages */
	bool writable;	   /* the zeros are writable and private to this process */
	_Atomic bool lost; /* bytes that were read do not exist any more */
};

/*
 * Guard a mapping until nm_sigbus_unguard(). The caller sets START, LEN and WRITABLE; GUARD
 * outlives the mapping. 0; -ENOSPC: too many; -errno of sigaction(). Thread-safe, not
 * async-signal-safe.
 */
int nm_sigbus_guard(struct nm_sigbus_guard *guard);
/* Call it before the mapping ends. */
void nm_sigbus_unguard(struct nm_sigbus_guard *guard);

#endif
