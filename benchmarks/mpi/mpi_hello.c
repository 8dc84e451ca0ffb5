// SPDX-License-Identifier: Apache-2.0
/*
 * Who takes part: every rank passes a token around the ring, in both directions, and says where
 * it runs. Exit code 0 when every token came back right.
 */
#define _GNU_SOURCE
#include "job.h"

static void pass_token(const struct job *job, int step)
{
	int next = (job->rank + step + job->nr_ranks) % job->nr_ranks;
	int previous = (job->rank - step + job->nr_ranks) % job->nr_ranks;
	int token = job->rank * 1000 + step, got = -1;

	MPI_Sendrecv(&token, 1, MPI_INT, next, 7, &got, 1, MPI_INT, previous, 7, MPI_COMM_WORLD,
		     MPI_STATUS_IGNORE);
	if (got != previous * 1000 + step)
		job_fail(job, "token %d from rank %d, expected %d", got, previous,
			 previous * 1000 + step);
}

int main(int argc, char **argv)
{
	struct job job;
	long sum = 0, mine;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &job.rank);
	MPI_Comm_size(MPI_COMM_WORLD, &job.nr_ranks);
	job_begin(&job, "hello");
	pass_token(&job, 1);
	pass_token(&job, -1);
	mine = job.rank + 1;
	MPI_Allreduce(&mine, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
	if (sum != (long)job.nr_ranks * (job.nr_ranks + 1) / 2)
		job_fail(&job, "sum of ranks is %ld", sum);
	if (!job.rank)
		printf("hello from %d ranks: every token came back\n", job.nr_ranks);
	job_end(&job, "hello");
	MPI_Finalize();
	return 0;
}
