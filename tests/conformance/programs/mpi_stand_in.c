/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stands in for a program of MPICH's test suite, or with -c for one of the OSU micro-benchmarks, in
 * the tests of their runners. Each rank passes a number to the next one, and all add them up.
 */
#include <mpi.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
	int rank, ranks, got = -1, sum = 0, good, all = 0;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	MPI_Sendrecv(&rank, 1, MPI_INT, (rank + 1) % ranks, 0, &got, 1, MPI_INT,
		     (rank + ranks - 1) % ranks, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	good = got == (rank + ranks - 1) % ranks && sum == ranks * (ranks - 1) / 2;
	MPI_Reduce(&good, &all, 1, MPI_INT, MPI_MIN, 0, MPI_COMM_WORLD);
	if (!rank && argc > 1 && !strcmp(argv[1], "-c"))
		printf("# Size          Latency (us)        Validation\n%-16d%12.2f%18s\n", 4, 1.0,
		       all ? "Pass" : "Fail");
	else if (!rank)
		printf(all ? " No Errors\n" : "wrong numbers\n");
	MPI_Finalize();
	return 0;
}
