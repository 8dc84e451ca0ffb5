/* SPDX-License-Identifier: Apache-2.0 */
#include "shm/budget.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "base/file.h"

/* Of the memory of the control group: page tables of windows then take a sixteenth. */
#define WINDOWS_PER_MEMORY 32
#define CGROUP_TEXT_MAX 4096

static _Atomic uint64_t taken;
/* Constant after find_memory(). */
static uint64_t machine_bytes = UINT64_MAX, group_bytes = UINT64_MAX;

static ssize_t read_text(const char *path, char *text, size_t room)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t len;

	if (fd < 0)
		return -errno;
	len = nm_file_read(fd, text, room);
	close(fd);
	if (len >= 0)
		text[len] = '\0';
	return len;
}

/* The lowest limit on the way from the control group PATH below ROOT to ROOT itself. */
static void find_limit(const char *root, char *path, const char *name)
{
	char file[PATH_MAX], text[32], *end;
	unsigned long long bytes;

	for (end = path + strlen(path);; end = strrchr(path, '/')) {
		if (!end)
			return;
		*end = '\0';
		if (snprintf(file, sizeof(file), "%s%s/%s", root, path, name) < (int)sizeof(file) &&
		    read_text(file, text, sizeof(text)) > 0) {
			errno = 0;
			bytes = strtoull(text, &end, 10);
			if (end != text && !errno && bytes < group_bytes)
				group_bytes = bytes;
		}
	}
}

/* A line is NUMBER:CONTROLLERS:PATH; version 2 has no controllers. */
static void find_group(char *line)
{
	char *controllers = strchr(line, ':'), *path;

	path = controllers ? strchr(++controllers, ':') : NULL;
	if (!path)
		return;
	*path++ = '\0';
	if (!*controllers)
		find_limit("/sys/fs/cgroup", path, "memory.max");
	else if (!strcmp(controllers, "memory"))
		find_limit("/sys/fs/cgroup/memory", path, "memory.limit_in_bytes");
}

static void find_memory(void)
{
	char text[CGROUP_TEXT_MAX], *line, *next;
	struct sysinfo info;

	if (sysinfo(&info) == 0)
		machine_bytes = ((uint64_t)info.totalram + info.totalswap) * info.mem_unit;
	if (read_text("/proc/self/cgroup", text, sizeof(text)) < 0)
		return;
	for (line = strtok_r(text, "\n", &next); line; line = strtok_r(NULL, "\n", &next))
		find_group(line);
}

static void know_memory(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, find_memory);
}

uint64_t nm_budget_memory(void)
{
	know_memory();
	return group_bytes < machine_bytes ? group_bytes : machine_bytes;
}

static uint64_t find_room(const char **ret_name)
{
	uint64_t room;
	struct rlimit limit;

	know_memory();
	room = machine_bytes;
	*ret_name = "the memory of this machine";
	if (group_bytes < room / WINDOWS_PER_MEMORY) {
		room = group_bytes * WINDOWS_PER_MEMORY;
		*ret_name = "the memory of its control group";
	}
	/* A program may change this one at any time. */
	if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
	    limit.rlim_cur / 2 < room) {
		room = limit.rlim_cur / 2;
		*ret_name = "its address space (ulimit -v)";
	}
	return room;
}

static int take(uint64_t bytes, const char *what, unsigned int share, struct nm_reason *ret_reason)
{
	const char *name;
	uint64_t room = find_room(&name) / share, before = atomic_fetch_add(&taken, bytes);

	if (bytes <= room && before <= room - bytes)
		return 0;
	atomic_fetch_sub(&taken, bytes);
	nm_reason_set(ret_reason,
		      "its %s of %llu MiB is too much for this process, which maps %llu MiB of "
		      "windows already: %s allows %llu",
		      what, (unsigned long long)(bytes >> 20), (unsigned long long)(before >> 20),
		      name, (unsigned long long)(room >> 20));
	return -ENOSPC;
}

int nm_budget_take(uint64_t bytes, struct nm_reason *ret_reason)
{
	return take(bytes, "window", 1, ret_reason);
}

int nm_budget_take_spare(uint64_t bytes, struct nm_reason *ret_reason)
{
	return take(bytes, "heap", 2, ret_reason);
}

void nm_budget_return(uint64_t bytes)
{
	atomic_fetch_sub(&taken, bytes);
}
