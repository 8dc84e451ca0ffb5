/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mappings whose bytes may be taken away under a reader. A window in one kernel is sealed, so that
 * cannot happen to it and nothing here is ever installed for it; it is for windows that no seal can
 * protect, files on DAX and the shared memory of virtual machines. A read past the end of such a
 * file is SIGBUS, and would end a program that did nothing wrong.
 *
 * A fault inside a guarded mapping puts zeros where it happened, sets the guard's `lost` and goes
 * on: the reader reads zeros, which no header, slot or counter accepts, and the owner of the guard
 * looks at `lost` before it believes anything and gives the mapping up. Every other SIGBUS goes
 * where it went before: to the program's handler, or to the end of the program.
 *
 * The handler is installed with the first guard and removed with the last, if it still is ours by
 * then. A program that installs one of its own meanwhile and does not chain ends as it would have
 * without us.
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
	bool writable;	   /* the zeros may be written to, and belong to this process then */
	_Atomic bool lost; /* something was read that is not there any more */
};

/*
 * Guard a mapping until nm_sigbus_unguard(); START, LEN and WRITABLE are set, GUARD outlives it. 0;
 * -ENOSPC: too many; -errno of sigaction(). Thread-safe, not async-signal-safe.
 */
int nm_sigbus_guard(struct nm_sigbus_guard *guard);
/* Before the mapping goes. */
void nm_sigbus_unguard(struct nm_sigbus_guard *guard);

#endif
