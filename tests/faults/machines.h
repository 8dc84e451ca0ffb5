/* SPDX-License-Identifier: Apache-2.0 */
/* A segment between virtual machines, in a plain file; each machine is a lock file of its own. */
#ifndef NM_TEST_FAULTS_MACHINES_H
#define NM_TEST_FAULTS_MACHINES_H

#include <stdbool.h>
#include <stdint.h>

#include "vmseg/layout.h"

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
/*
 * Ask machine PART to leave the segment, until its only endpoint ID has left, and then to stay, until
 * it has come back. False: it does not answer.
 */
bool machines_leave_and_return(const char *dir, uint32_t part, const uint8_t id[6]);
/* Ask machine PART for STATE once. -EBUSY: it has not left yet; other errors: it cannot. */
int machines_ask(const char *dir, uint32_t part, enum nm_vmseg_state state);
/* The guest unit takes the description of machine PART away, or puts it back. */
bool machines_hide(const char *dir, uint32_t part, bool is_hidden);
/* True if this process has the segment in its memory. */
bool machines_are_mapped(void);
/* What the guest unit says after a request that was never completed. False: it cannot. */
bool machines_stay(const char *dir, uint32_t part);
/* Remove every file of it. */
void machines_remove(const char *dir);

#endif
