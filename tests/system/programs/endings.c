/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ends as told, after every rank has met every other one.
 *
 *   endings                 well
 *   endings exit CODE       the last rank exits with CODE, without MPI_Finalize
 *   endings signal NUMBER   the last rank kills itself
 *   endings sleep SECONDS   well, but late
 */
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	int rank, size, sum = 0;
	char host[64];

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	if (gethostname(host, sizeof(host)))
		return 1;
	printf("rank %d of %d on %s core %d sum %d\n", rank, size, host, sched_getcpu(), sum);
	fflush(stdout);
	if (argc == 3 && !strcmp(argv[1], "sleep"))
		sleep((unsigned)atoi(argv[2]));
	if (argc == 3 && !strcmp(argv[1], "exit") && rank == size - 1)
		_exit(atoi(argv[2]));
	if (argc == 3 && !strcmp(argv[1], "signal") && rank == size - 1)
		raise(atoi(argv[2]));
	MPI_Finalize();
	return 0;
}
