// SPDX-License-Identifier: Apache-2.0
/*
 * For a second or two, messages around a ring and a sum over all, in rounds. Rank 0 says that every
 * number was right, how long the slowest round of any rank took, and how much more memory any rank
 * had at its end. All ranks wait for the one that waits for a processor, so the longest such wait
 * is no part of a round's time. Words: `any`: every other round receives from any source. `meet`:
 * before the rounds each rank meets only one other, so its identity is seen there. `attacked=DIR`:
 * before the rounds rank N makes the file DIR/at-N and waits until there is a file DIR/go.
 */
#include "starved.h"

#include <fcntl.h>
#include <mpi.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { ROUNDS = 400, NUMBERS = 700, PAUSE_US = 4000, START_US = 300000 };
enum { LOOK_US = 2000, MAX_LOOKS = 10000 };

static void expect(long long got, long long wanted, int round)
{
	if (got == wanted)
		return;
	printf("round %d: %lld is not %lld\n", round, got, wanted);
	MPI_Abort(MPI_COMM_WORLD, 1);
}

static long most_memory(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return usage.ru_maxrss;
}

static bool has_word(int argc, char **argv, const char *word)
{
	for (int i = 1; i < argc; i++)
		if (strcmp(argv[i], word) == 0)
			return true;
	return false;
}

/* Peers meet at their first message: until then others may do something to their names. */
static void await_others(int argc, char **argv, int rank)
{
	static const char word[] = "attacked=";
	const char *directory = NULL;
	char path[512];
	int fd;

	for (int i = 1; i < argc; i++)
		if (strncmp(argv[i], word, sizeof(word) - 1) == 0)
			directory = argv[i] + sizeof(word) - 1;
	if (!directory) {
		usleep(START_US);
		return;
	}
	snprintf(path, sizeof(path), "%s/at-%d", directory, rank);
	fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	if (fd >= 0)
		close(fd);
	snprintf(path, sizeof(path), "%s/go", directory);
	for (int i = 0; i < MAX_LOOKS && access(path, F_OK); i++)
		usleep(LOOK_US);
}

int main(int argc, char **argv)
{
	const bool takes_any = has_word(argc, argv, "any");
	long long out[NUMBERS], in[NUMBERS], sum;
	double took[ROUNDS], starved[ROUNDS], slowest = 0, waited = 0;
	long memory, most;
	int rank, size, met;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	if (has_word(argc, argv, "meet") && size % 2 == 0)
		MPI_Sendrecv(&rank, 1, MPI_INT, (rank + size / 2) % size, 0, &met, 1, MPI_INT,
			     (rank + size / 2) % size, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	memory = most_memory();
	await_others(argc, argv, rank);
	nm_starved_s();
	for (int round = 0; round < ROUNDS; round++) {
		int shift = 1 + round % (size - 1), from = (rank + size - shift) % size;
		int source = takes_any && round % 2 ? MPI_ANY_SOURCE : from;
		double begin = MPI_Wtime(), end;

		for (int i = 0; i < NUMBERS; i++)
			out[i] = rank * 1000003LL + round * 1009LL + i;
		MPI_Sendrecv(out, NUMBERS, MPI_LONG_LONG, (rank + shift) % size, round, in, NUMBERS,
			     MPI_LONG_LONG, source, round, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		for (int i = 0; i < NUMBERS; i++)
			expect(in[i], from * 1000003LL + round * 1009LL + i, round);
		MPI_Allreduce(&out[1], &sum, 1, MPI_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
		expect(sum, size * (size - 1) / 2 * 1000003LL + size * (round * 1009LL + 1), round);
		end = MPI_Wtime();
		took[round] = end - begin;
		starved[round] = nm_starved_s();
		usleep(PAUSE_US);
	}
	MPI_Reduce(rank == 0 ? MPI_IN_PLACE : took, took, ROUNDS, MPI_DOUBLE, MPI_MAX, 0,
		   MPI_COMM_WORLD);
	MPI_Reduce(rank == 0 ? MPI_IN_PLACE : starved, starved, ROUNDS, MPI_DOUBLE, MPI_MAX, 0,
		   MPI_COMM_WORLD);
	memory = most_memory() - memory;
	MPI_Reduce(&memory, &most, 1, MPI_LONG, MPI_MAX, 0, MPI_COMM_WORLD);
	for (int round = 0; rank == 0 && round < ROUNDS; round++) {
		if (took[round] - starved[round] > slowest)
			slowest = took[round] - starved[round];
		if (starved[round] > waited)
			waited = starved[round];
	}
	if (rank == 0) {
		printf("%d rounds of %d ranks: every number was right\n", ROUNDS, size);
		printf("slowest round: %.3f s\n", slowest);
		printf("longest wait for a processor: %.3f s\n", waited);
		printf("more memory: %ld KiB\n", most);
	}
	MPI_Finalize();
	return 0;
}
