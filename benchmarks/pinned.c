// SPDX-License-Identifier: Apache-2.0
/*
 * Runs a program on one of the cores this process may use: the ranks of an MPI job in turn. So every
 * MPI of a comparison has the same cores, whatever its launcher thinks of containers.
 */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static long first_of(const char *const names[2])
{
	int i;

	for (i = 0; i < 2; i++)
		if (getenv(names[i]))
			return strtol(getenv(names[i]), NULL, 10);
	return -1;
}

int main(int argc, char **argv)
{
	static const char *const ranks[2] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK"};
	long rank = first_of(ranks), left;
	cpu_set_t may, mine;
	int core = 0;

	if (argc < 2 || rank < 0) {
		fputs("usage: pinned PROGRAM ARGS..., as a rank of an MPI job\n", stderr);
		return 2;
	}
	if (sched_getaffinity(0, sizeof(may), &may)) {
		perror("pinned: cores");
		return 1;
	}
	for (left = rank % CPU_COUNT(&may); !CPU_ISSET(core, &may) || left-- > 0; core++)
		;
	CPU_ZERO(&mine);
	CPU_SET(core, &mine);
	if (sched_setaffinity(0, sizeof(mine), &mine)) {
		perror("pinned: core");
		return 1;
	}
	execv(argv[1], argv + 1);
	fprintf(stderr, "pinned: %s: %s\n", argv[1], strerror(errno));
	return 127;
}
