/* SPDX-License-Identifier: Apache-2.0 */
/* What both walks need: the table of marks, the names that were asked for, and what a process left. */
#ifndef NM_TEST_FAULTS_COMMON_H
#define NM_TEST_FAULTS_COMMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* By enum nm_fault_action. */
extern const char *const action_names[];

/* Entries of the table; a mark may stand in it more than once. */
size_t nr_places(void);
/* Is NAME asked for? ONLY ends with NULL; none: all are. */
bool is_wanted(const char *name, char *const *only);

/* At most a second. */
void nap(uint64_t ns);
/* Names in the directory PATH, with "." and "..". */
unsigned int count_entries(const char *path);
/* Mappings of this process whose names have WORD. */
unsigned int count_mappings(const char *word);

#endif
