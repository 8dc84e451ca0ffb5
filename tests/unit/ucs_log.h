/* SPDX-License-Identifier: Apache-2.0 */
/* The log of libucs, without libucs. */
#ifndef NM_TEST_UCS_LOG_H
#define NM_TEST_UCS_LOG_H

/* The last line that UCX's log got, and how many it got. */
extern char ucs_log_line[512];
extern unsigned int nr_ucs_lines;

#endif
