// SPDX-License-Identifier: Apache-2.0
/*
 * mpi_compute FILE ROUNDS: each rank exchanges messages with all others, and then computes without a
 * call of MPI until FILE.N, N being the number of the round, is there. At the end all exchange once
 * more. The bytes of each message follow from its round and the two ranks, and are checked.
 *
 * A line of a rank, for each round: when it began to compute and when it ended, in seconds of the
 * real-time clock; the time of the work beyond that of as many of its fast pieces; the processor time
 * that other threads of the process used meanwhile; and the time of a fast piece, the 10th percentile.
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { SMALL = 8, LARGE = 50000, MAX_PIECES = 100000, LEAST_S = 1 };

static int rank, nr_ranks;

static double now(clockid_t clock)
{
	struct timespec time;

	clock_gettime(clock, &time);
	return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void fill(unsigned char *bytes, int size, int from, int to, int round, int number)
{
	for (int i = 0; i < size; i++)
		bytes[i] = (unsigned char)(from * 31 + to * 17 + round * 7 + number * 3 + i);
}

static void exchange_with(int other, int round, int number)
{
	static unsigned char out[LARGE], in[LARGE], expected[LARGE];
	int size = number % 4 ? SMALL : LARGE;

	fill(out, size, rank, other, round, number);
	fill(expected, size, other, rank, round, number);
	MPI_Sendrecv(out, size, MPI_BYTE, other, number, in, size, MPI_BYTE, other, number,
		     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	if (memcmp(in, expected, (size_t)size)) {
		printf("WRONG rank %d from %d: round %d, message %d\n", rank, other, round, number);
		fflush(stdout);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
}

/* For LEAST_S at least, so that the statistics show it. */
static void exchange(int round)
{
	double began = now(CLOCK_MONOTONIC);
	int goes_on = 1;

	for (int number = 0; goes_on; number++) {
		/* In each step pairs, on which both sides agree. */
		for (int step = 0; step < nr_ranks; step++) {
			int other = (step - rank + nr_ranks) % nr_ranks;

			if (other != rank)
				exchange_with(other, round, number);
		}
		goes_on = now(CLOCK_MONOTONIC) - began < LEAST_S;
		MPI_Bcast(&goes_on, 1, MPI_INT, 0, MPI_COMM_WORLD);
	}
	MPI_Barrier(MPI_COMM_WORLD);
}

static int by_length(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* A piece of work of some milliseconds. */
static void work(void)
{
	static volatile double sum;

	for (int i = 0; i < 3000000; i++)
		sum += i * 1e-9;
}

static double used_by_others(void)
{
	return now(CLOCK_PROCESS_CPUTIME_ID) - now(CLOCK_THREAD_CPUTIME_ID);
}

static void compute(const char *file, int round)
{
	static double pieces[MAX_PIECES];
	double began = now(CLOCK_REALTIME), others = used_by_others(), all = 0, before;
	char name[4096];
	int nr = 0;

	snprintf(name, sizeof(name), "%s.%d", file, round);
	do {
		before = now(CLOCK_MONOTONIC);
		work();
		pieces[nr] = now(CLOCK_MONOTONIC) - before;
		all += pieces[nr++];
	} while (nr < MAX_PIECES && access(name, F_OK));
	qsort(pieces, (size_t)nr, sizeof(*pieces), by_length);
	printf("computed rank %d round %d from %.3f to %.3f slower %.3f others %.4f piece %.6f\n",
	       rank, round, began, now(CLOCK_REALTIME), all - nr * pieces[nr / 10],
	       used_by_others() - others, pieces[nr / 10]);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &nr_ranks);
	for (int round = 0; round < atoi(argv[2]); round++) {
		exchange(round);
		compute(argv[1], round);
	}
	exchange(atoi(argv[2]));
	if (rank == 0)
		printf("compute OK\n");
	MPI_Finalize();
	return 0;
}
