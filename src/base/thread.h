/* SPDX-License-Identifier: Apache-2.0 */
/* Threads of the provider in a program that does not know of them. */
#ifndef NM_BASE_THREAD_H
#define NM_BASE_THREAD_H

#include <pthread.h>
#include <stdbool.h>

/*
 * Start a thread that gets none of the program's signals. NAME: at most 15 bytes. USES_SEGMENT: it
 * touches memory of a segment, and SIGBUS is not blocked: blocked, it ends the program, while the
 * handler helps if the segment is truncated. Returns 0 or -errno.
 */
int nm_thread_start(pthread_t *ret_thread, const char *name, bool uses_segment,
		    void *(*run)(void *), void *arg);

#endif
