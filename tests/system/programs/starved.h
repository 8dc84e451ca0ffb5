// SPDX-License-Identifier: Apache-2.0
/*
 * How long the scheduler of the kernel kept a thread of this process waiting for a processor. On
 * crowded processors that can take seconds, and no program can do anything about it: tests that
 * bound a time take it off.
 */
#ifndef NM_TESTS_STARVED_H
#define NM_TESTS_STARVED_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

enum { NM_STARVED_THREADS = 64 };

/*
 * nm_starved_s - seconds for which the thread that waited longest waited since the last call, or
 * since its start. Source: second number of /proc/self/task/TID/schedstat, in nanoseconds, which
 * the kernel raises when the wait ends. 0 where there is no such file. One thread calls this.
 */
static inline double nm_starved_s(void)
{
	static struct {
		long tid;
		unsigned long long waited;
	} threads[NM_STARVED_THREADS];
	unsigned long long longest = 0;
	DIR *tasks = opendir("/proc/self/task");
	struct dirent *task;

	while (tasks && (task = readdir(tasks))) {
		long tid = strtol(task->d_name, NULL, 10);
		unsigned long long waited;
		char path[64];
		FILE *file;
		int i = 0;

		snprintf(path, sizeof(path), "/proc/self/task/%ld/schedstat", tid);
		file = tid > 0 ? fopen(path, "re") : NULL;
		if (!file)
			continue;
		while (i < NM_STARVED_THREADS && threads[i].tid && threads[i].tid != tid)
			i++;
		if (i < NM_STARVED_THREADS && fscanf(file, "%*u %llu", &waited) == 1) {
			threads[i].tid = tid;
			if (waited - threads[i].waited > longest)
				longest = waited - threads[i].waited;
			threads[i].waited = waited;
		}
		fclose(file);
	}
	if (tasks)
		closedir(tasks);
	return (double)longest * 1e-9;
}

#endif
