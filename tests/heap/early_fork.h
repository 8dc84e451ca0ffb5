/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NM_TEST_EARLY_FORK_H
#define NM_TEST_EARLY_FORK_H

/* From now on the library's handlers of fork() use BYTES; NULL: nothing. */
void early_fork_use(char *bytes);

#endif
