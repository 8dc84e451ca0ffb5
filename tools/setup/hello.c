// SPDX-License-Identifier: Apache-2.0
// Two ranks that exchange a message and say which MPI library they run on.

#include <mpi.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
	char library[MPI_MAX_LIBRARY_VERSION_STRING];
	int rank, size, length, got = -1;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	MPI_Sendrecv(&rank, 1, MPI_INT, (rank + 1) % size, 0, &got, 1, MPI_INT,
		     (rank + size - 1) % size, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	MPI_Get_library_version(library, &length);
	library[strcspn(library, "\n")] = '\0';
	printf("rank %d of %d: %s\n", rank, size, library);
	MPI_Finalize();
	return got == (rank + size - 1) % size ? 0 : 1;
}
