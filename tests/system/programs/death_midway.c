/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The last rank kills itself while a large message is on its way between it and rank 0.
 *
 *   death_midway send     it is the sender
 *   death_midway recv     it is the receiver
 *
 * Rank 0 must never get to the end of it.
 */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIZE (128 << 20)

/* Start the message, see it move and not end, and die. */
static void die_midway(int sends, char *buffer, int peer)
{
	volatile char *first = buffer;
	MPI_Request request;
	int done = 0, tests;

	if (sends)
		MPI_Isend(buffer, SIZE, MPI_CHAR, peer, 0, MPI_COMM_WORLD, &request);
	else
		MPI_Irecv(buffer, SIZE, MPI_CHAR, peer, 0, MPI_COMM_WORLD, &request);
	for (tests = 0; !done && (sends ? tests < 20 : !*first); tests++)
		MPI_Test(&request, &done, MPI_STATUS_IGNORE);
	if (done)
		printf("too late\n");
	fflush(stdout);
	raise(SIGKILL);
}

int main(int argc, char **argv)
{
	int rank, size, sends;
	char *buffer;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	sends = argc == 2 && !strcmp(argv[1], "send");
	buffer = calloc(1, SIZE);
	if (!buffer)
		return 1;
	if (!rank)
		memset(buffer, 1, SIZE);
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == size - 1)
		die_midway(sends, buffer, 0);
	if (!rank && sends)
		MPI_Recv(buffer, SIZE, MPI_CHAR, size - 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	else if (!rank)
		MPI_Send(buffer, SIZE, MPI_CHAR, size - 1, 0, MPI_COMM_WORLD);
	printf("it came to an end\n");
	free(buffer);
	MPI_Finalize();
	return 0;
}
