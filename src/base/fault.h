/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Named instants at which a process may die, stop or be late. NM_FAULT("what-happens-here") marks
 * one; it is nothing at all in a normal build. Built with -Dfaults=true every mark is also an entry
 * of a table made by the linker, and tests/faults walks the whole table, so a new mark is walked
 * without being listed anywhere.
 */
#ifndef NM_BASE_FAULT_H
#define NM_BASE_FAULT_H

#ifdef NM_FAULTS

#include <stdint.h>

struct nm_fault_point {
	const char *name;
};

enum nm_fault_action {
	NM_FAULT_NONE,
	NM_FAULT_KILL,	/* the process dies here */
	NM_FAULT_STOP,	/* it stops here until another process continues it */
	NM_FAULT_DELAY, /* the thread is late by some milliseconds */
};

/* The table. Marks in functions that are inlined, or stand in a header, occur more than once. */
extern const struct nm_fault_point *const __start_nm_faults[], *const __stop_nm_faults[];

/*
 * Do ACTION at the NTH time (from 1) that this process comes by the mark NAME. Before any thread.
 */
void nm_fault_arm(const char *name, enum nm_fault_action action, unsigned int nth);
/* Count passes in SEEN, an array as long as the table. NULL: do not count. */
void nm_fault_count(_Atomic uint32_t *seen);
void nm_fault_hit(const struct nm_fault_point *const *place);

#define NM_FAULT(name_)                                                                            \
	do {                                                                                       \
		static const struct nm_fault_point nm_point = {name_};                             \
		static const struct nm_fault_point *const nm_place                                 \
			__attribute__((section("nm_faults"), used)) = &nm_point;                   \
		nm_fault_hit(&nm_place);                                                           \
	} while (0)

#else
#define NM_FAULT(name) ((void)0)
#endif

#endif
