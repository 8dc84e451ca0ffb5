// SPDX-License-Identifier: Apache-2.0
/*
 * The start of a job: the time from MPI_Init until every rank has exchanged its first messages
 * with the ranks at distances 1, 2, 4, 8 and 16, as a collective operation does.
 *
 *	first INIT FIRST	seconds in MPI_Init, and from its begin to the last message
 *
 * Both are the largest of all ranks.
 */
#define _GNU_SOURCE
#include <time.h>

#include "job.h"

#define DISTANCES 5

static void exchange(const struct job *job)
{
	MPI_Request requests[2 * DISTANCES];
	int tokens[DISTANCES], nr = 0;

	for (int i = 0; i < DISTANCES && 1 << i < job->nr_ranks; i++) {
		int to = (job->rank + (1 << i)) % job->nr_ranks;
		int from = (job->rank - (1 << i) + job->nr_ranks) % job->nr_ranks;

		tokens[i] = -1;
		MPI_Irecv(&tokens[i], 1, MPI_INT, from, i, MPI_COMM_WORLD, &requests[nr++]);
		MPI_Isend(&job->rank, 1, MPI_INT, to, i, MPI_COMM_WORLD, &requests[nr++]);
	}
	MPI_Waitall(nr, requests, MPI_STATUSES_IGNORE);
	for (int i = 0; i < nr / 2; i++) {
		int from = (job->rank - (1 << i) + job->nr_ranks) % job->nr_ranks;

		if (tokens[i] != from)
			job_fail(job, "token %d from rank %d", tokens[i], from);
	}
}

int main(int argc, char **argv)
{
	struct timespec begin, inside, end;
	double mine[2], most[2];
	struct job job;

	clock_gettime(CLOCK_MONOTONIC, &begin);
	MPI_Init(&argc, &argv);
	clock_gettime(CLOCK_MONOTONIC, &inside);
	MPI_Comm_rank(MPI_COMM_WORLD, &job.rank);
	MPI_Comm_size(MPI_COMM_WORLD, &job.nr_ranks);
	exchange(&job);
	clock_gettime(CLOCK_MONOTONIC, &end);
	mine[0] = (double)(inside.tv_sec - begin.tv_sec) +
		  (double)(inside.tv_nsec - begin.tv_nsec) * 1e-9;
	mine[1] =
		(double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) * 1e-9;
	MPI_Reduce(mine, most, 2, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
	if (!job.rank)
		printf("first %.6f %.6f\n", most[0], most[1]);
	MPI_Finalize();
	return 0;
}
