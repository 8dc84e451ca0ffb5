/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rank 0 gets 1 MiB from rank 1, which computes meanwhile and does not call MPI.
 *
 *   mpi_get_alone allocate     the window is MPI's: MPI_Win_allocate
 *   mpi_get_alone create       memory of malloc(), MPI_Win_create
 *   mpi_get_alone alloc_mem    memory of MPI_Alloc_mem, MPI_Win_create
 *
 * Both ranks are processes of one kernel, so their clocks are one.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SIZE = 1 << 20, COMPUTES_S = 2, NR = 20 };

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static MPI_Win window_of(const char *how, char **ret_memory)
{
	MPI_Win window;

	if (!strcmp(how, "allocate")) {
		MPI_Win_allocate(SIZE, 1, MPI_INFO_NULL, MPI_COMM_WORLD, ret_memory, &window);
		return window;
	}
	if (!strcmp(how, "alloc_mem"))
		MPI_Alloc_mem(SIZE, MPI_INFO_NULL, ret_memory);
	else
		*ret_memory = malloc(SIZE);
	MPI_Win_create(*ret_memory, SIZE, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
	return window;
}

static void get(MPI_Win window, char *local)
{
	MPI_Get(local, SIZE, MPI_BYTE, 1, 0, SIZE, MPI_BYTE, window);
	MPI_Win_flush(1, window);
}

int main(int argc, char **argv)
{
	char *local = malloc(SIZE), *memory;
	double got = 0, end = 0;
	MPI_Win window;
	int rank, i;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	if (argc != 2 || !local)
		MPI_Abort(MPI_COMM_WORLD, 2);
	window = window_of(argv[1], &memory);
	memset(memory, 'a' + rank, SIZE);
	memset(local, 0, SIZE);
	MPI_Win_lock_all(0, window);
	/* The first one may prepare what the others use. */
	if (!rank)
		get(window, local);
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank) {
		memset(memory, 'c', SIZE);
		MPI_Win_sync(window);
	}
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank) {
		end = now() + COMPUTES_S;
		while (now() < end)
			;
		end = now();
	} else {
		for (i = 0; i < NR; i++) {
			memset(local, 0, SIZE);
			get(window, local);
			if (local[0] != 'c' || memcmp(local, local + 1, SIZE - 1))
				MPI_Abort(MPI_COMM_WORLD, 3);
		}
		got = now();
	}
	MPI_Win_unlock_all(window);
	if (rank)
		MPI_Send(&end, 1, MPI_DOUBLE, 0, 0, MPI_COMM_WORLD);
	else
		MPI_Recv(&end, 1, MPI_DOUBLE, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	if (!rank)
		printf("%s\n", got < end ? "the gets ended while the target computed" :
					   "the gets waited for the target");
	MPI_Win_free(&window);
	MPI_Finalize();
	return 0;
}
