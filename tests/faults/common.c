/* SPDX-License-Identifier: Apache-2.0 */
#include "common.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/fault.h"

const char *const action_names[] = {
	[NM_FAULT_NONE] = "left alone",
	[NM_FAULT_KILL] = "killed",
	[NM_FAULT_STOP] = "stopped",
	[NM_FAULT_DELAY] = "late",
};

size_t nr_places(void)
{
	return (size_t)(__stop_nm_faults - __start_nm_faults);
}

bool is_wanted(const char *name, char *const *only)
{
	bool all = !*only;

	for (; *only; only++)
		if (!strcmp(*only, name))
			return true;
	return all;
}

void nap(uint64_t ns)
{
	const struct timespec pause = {0, (long)ns};

	nanosleep(&pause, NULL);
}

unsigned int count_entries(const char *path)
{
	DIR *dir = opendir(path);
	unsigned int nr = 0;

	while (dir && readdir(dir))
		nr++;
	if (dir)
		closedir(dir);
	return nr;
}

unsigned int count_mappings(const char *word)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	unsigned int nr = 0;
	char line[512];

	while (maps && fgets(line, sizeof(line), maps))
		nr += strstr(line, word) != NULL;
	if (maps)
		fclose(maps);
	return nr;
}
