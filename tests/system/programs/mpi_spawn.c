// SPDX-License-Identifier: Apache-2.0
/*
 * Generations of children: the parents spawn two processes, everybody exchanges checked messages
 * with everybody over the merged communicator, the children leave, and the next ones come.
 * Usage: mpi_spawn GENERATIONS. The children are this program with "child".
 */
#define _GNU_SOURCE
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHILDREN 2
#define WORDS (1 << 16)

static unsigned int word(int from, int to, int generation, int index)
{
	return (unsigned int)(from * 1000003 + to * 10007 + generation * 101 + index) * 2654435761u;
}

static void fail(const char *what)
{
	printf("FAILED: %s\n", what);
	fflush(stdout);
	MPI_Abort(MPI_COMM_WORLD, 1);
}

/* One message each way between every two ranks of ALL, small and large ones. */
static void exchange(MPI_Comm all, int generation)
{
	static unsigned int out[WORDS], in[WORDS];
	int rank, size, other, count, i;

	MPI_Comm_rank(all, &rank);
	MPI_Comm_size(all, &size);
	for (other = 0; other < size; other++) {
		if (other == rank)
			continue;
		count = (rank + other) % 2 ? WORDS : 3;
		for (i = 0; i < count; i++)
			out[i] = word(rank, other, generation, i);
		MPI_Sendrecv(out, count, MPI_UNSIGNED, other, 5, in, count, MPI_UNSIGNED, other, 5,
			     all, MPI_STATUS_IGNORE);
		for (i = 0; i < count; i++)
			if (in[i] != word(other, rank, generation, i))
				fail("a message is not what was sent");
	}
}

static void meet(MPI_Comm parents_and_children, int is_child, int generation)
{
	MPI_Comm all;
	int sum = 0, one = 1, size;

	MPI_Intercomm_merge(parents_and_children, is_child, &all);
	MPI_Comm_size(all, &size);
	MPI_Bcast(&generation, 1, MPI_INT, 0, all);
	exchange(all, generation);
	MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, all);
	if (sum != size)
		fail("not everybody is here");
	MPI_Comm_free(&all);
	MPI_Comm_disconnect(&parents_and_children);
}

int main(int argc, char **argv)
{
	char *arguments[] = {"child", NULL};
	int rank, generation, nr;
	MPI_Comm other;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_get_parent(&other);
	if (other != MPI_COMM_NULL) {
		meet(other, 1, 0);
		MPI_Finalize();
		return 0;
	}
	nr = argc > 1 ? atoi(argv[1]) : 1;
	for (generation = 1; generation <= nr; generation++) {
		MPI_Comm_spawn(argv[0], arguments, CHILDREN, MPI_INFO_NULL, 0, MPI_COMM_WORLD,
			       &other, MPI_ERRCODES_IGNORE);
		meet(other, 0, generation);
	}
	if (!rank)
		printf("spawn OK: %d generations\n", nr);
	MPI_Finalize();
	return 0;
}
