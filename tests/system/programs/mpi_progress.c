/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two ranks that wait for each other in two ways: rank 0 is inside a blocking send which rank 1
 * receives only after it has locked, changed and unlocked rank 0's window. Whoever waits in MPI has
 * to do its part for others, so this ends.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS 20
#define LARGE (4 << 20)

static void change(MPI_Win window, int size, char *bytes)
{
	long long one = 1;

	MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, window);
	MPI_Put(bytes, size, MPI_BYTE, 0, sizeof(one), size, MPI_BYTE, window);
	MPI_Accumulate(&one, 1, MPI_LONG_LONG, 0, 0, 1, MPI_LONG_LONG, MPI_SUM, window);
	MPI_Win_unlock(0, window);
}

static void run(int rank, MPI_Win window, char *bytes)
{
	for (int i = 0; i < ROUNDS; i++) {
		MPI_Barrier(MPI_COMM_WORLD);
		if (rank == 0 && i % 2)
			MPI_Ssend(bytes, 1, MPI_BYTE, 1, 7, MPI_COMM_WORLD);
		else if (rank == 0)
			MPI_Send(bytes, LARGE, MPI_BYTE, 1, 7, MPI_COMM_WORLD);
		if (rank != 1)
			continue;
		change(window, i % 4 < 2 ? 8 : LARGE / 2, bytes);
		MPI_Recv(bytes, LARGE, MPI_BYTE, 0, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	}
	MPI_Barrier(MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
	int level =
		argc > 1 && !strcmp(argv[1], "multiple") ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE;
	char *base, *bytes = calloc(1, LARGE);
	long long sum = 0;
	MPI_Win window;
	int rank;

	MPI_Init_thread(&argc, &argv, level, &level);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Alloc_mem(LARGE, MPI_INFO_NULL, &base);
	memset(base, 0, LARGE);
	MPI_Win_create(base, LARGE, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
	run(rank, window, bytes);
	MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, window);
	MPI_Get(&sum, 1, MPI_LONG_LONG, 0, 0, 1, MPI_LONG_LONG, window);
	MPI_Win_unlock(0, window);
	if (sum != ROUNDS) {
		printf("FAILED: %lld of %d changes are there\n", sum, ROUNDS);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
	MPI_Win_free(&window);
	MPI_Free_mem(base);
	MPI_Finalize();
	free(bytes);
	if (rank == 0)
		printf("progress OK: %d rounds\n", ROUNDS);
	return 0;
}
