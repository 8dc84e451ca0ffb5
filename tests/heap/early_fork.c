/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A library that the program is linked to, so its constructor runs before that of a preloaded one.
 * Its handlers of fork() use memory of the heap, which has to be whole in all of them.
 */
#include <pthread.h>
#include <stdlib.h>

#include "early_fork.h"

static volatile char *shared_bytes;

static void before(void)
{
	if (shared_bytes)
		shared_bytes[0] = 'b';
}

static void in_child(void)
{
	if (shared_bytes)
		shared_bytes[1] = shared_bytes[0];
}

__attribute__((constructor)) static void construct(void)
{
	void *volatile small = malloc(1);

	free(small);
	pthread_atfork(before, NULL, in_child);
}

__attribute__((visibility("default"))) void early_fork_use(char *bytes)
{
	shared_bytes = bytes;
}
