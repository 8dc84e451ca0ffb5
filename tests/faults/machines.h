/* SPDX-License-Identifier: Apache-2.0 */
/* A segment between virtual machines, in a plain file; each machine is a lock file of its own. */
#ifndef NM_TEST_FAULTS_MACHINES_H
#define NM_TEST_FAULTS_MACHINES_H

#include <stdbool.h>
#include <stdint.h>

enum { NR_MACHINES = 3 };

/* Make it anew in DIR, as after a boot of all machines. False: it could not be done. */
bool machines_make(const char *dir);
/* From now on this process is on machine PART. Before anything reads a knob. */
void machines_enter(const char *dir, uint32_t part);
/*
 * Whoever comes next on any machine finds no slot of the dead that passes for a living one, and
 * gets a slot and room for a window. NULL, or what is wrong.
 */
const char *machines_remains(const char *dir);
/* Remove every file of it. */
void machines_remove(const char *dir);

#endif
