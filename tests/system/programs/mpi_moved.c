// SPDX-License-Identifier: Apache-2.0
/*
 * mpi_moved SECONDS SEED [FILE]: rounds of messages between all ranks, while a machine of the job
 * moves. With FILE, all ranks make no call of MPI from the fourth second on, until FILE exists;
 * FILE.quiet says so.
 *
 * In each round every rank sends MESSAGES messages to every other rank and receives from any
 * source. Sizes and bytes follow from the seed, the two ranks and the number of the message, so
 * a lost, doubled, reordered or changed message ends the job. Rank 0 says how many rounds were
 * right, and the longest time between two rounds, which contains what a move has cost.
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MESSAGES = 8, MAX_BYTES = 96 << 10, MAX_RANKS = 16, LONG_ONES = 8 };

static int rank, nr_ranks;
static uint64_t seed;

static uint64_t mix(uint64_t value)
{
	value += 0x9e3779b97f4a7c15;
	value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9;
	value = (value ^ value >> 27) * 0x94d049bb133111eb;
	return value ^ value >> 31;
}

static uint64_t key_of(int from, int to, uint64_t number)
{
	return mix(seed ^ mix((uint64_t)from << 40 ^ (uint64_t)to << 20) ^ mix(number));
}

/* One in eight is large. At least the number and its key. */
static int size_of(uint64_t key)
{
	int limit = key % 8 ? 2048 : MAX_BYTES;

	return 16 + (int)(mix(key) % (uint64_t)(limit - 16));
}

static int fill(unsigned char *bytes, int from, int to, uint64_t number)
{
	uint64_t key = key_of(from, to, number), word = key;
	int size = size_of(key);

	memcpy(bytes, &number, sizeof(number));
	memcpy(bytes + 8, &key, sizeof(key));
	for (int i = 16; i < size; i++) {
		if (i % 8 == 0)
			word = mix(word);
		bytes[i] = (unsigned char)(word >> (i % 8 * 8));
	}
	return size;
}

static void wrong(const char *what, int from, uint64_t expected, uint64_t found)
{
	printf("WRONG rank %d from %d: %s: expected %llu, found %llu\n", rank, from, what,
	       (unsigned long long)expected, (unsigned long long)found);
	fflush(stdout);
	MPI_Abort(MPI_COMM_WORLD, 1);
}

static void check(const unsigned char *bytes, int size, int from, uint64_t number)
{
	static unsigned char expected[MAX_BYTES];
	uint64_t found;
	int wanted = fill(expected, from, rank, number);

	memcpy(&found, bytes, sizeof(found));
	if (found != number)
		wrong("number", from, number, found);
	if (size != wanted)
		wrong("size", from, (uint64_t)wanted, (uint64_t)size);
	for (int i = 0; i < size; i++)
		if (bytes[i] != expected[i])
			wrong("byte", from, expected[i], bytes[i]);
}

static void one_round(uint64_t round)
{
	static unsigned char out[MAX_RANKS][MESSAGES][MAX_BYTES], in[MAX_BYTES];
	static uint64_t taken[MAX_RANKS];
	MPI_Request requests[MAX_RANKS * MESSAGES];
	MPI_Status status;
	int nr = 0, size;

	for (int i = 0; i < MESSAGES; i++) {
		for (int to = 0; to < nr_ranks; to++) {
			if (to == rank)
				continue;
			size = fill(out[to][i], rank, to, round * MESSAGES + (uint64_t)i);
			MPI_Isend(out[to][i], size, MPI_BYTE, to, 7, MPI_COMM_WORLD,
				  &requests[nr++]);
		}
	}
	for (int i = 0; i < MESSAGES * (nr_ranks - 1); i++) {
		MPI_Recv(in, MAX_BYTES, MPI_BYTE, MPI_ANY_SOURCE, 7, MPI_COMM_WORLD, &status);
		MPI_Get_count(&status, MPI_BYTE, &size);
		check(in, size, status.MPI_SOURCE, taken[status.MPI_SOURCE]++);
	}
	MPI_Waitall(nr, requests, MPI_STATUSES_IGNORE);
}

static void be_quiet(const char *file)
{
	const struct timespec moment = {.tv_nsec = 10000000};
	char name[256];

	snprintf(name, sizeof(name), "%s.quiet", file);
	fclose(fopen(name, "w"));
	while (access(file, F_OK))
		nanosleep(&moment, NULL);
}

int main(int argc, char **argv)
{
	double seconds, began, before, longest[LONG_ONES] = {0};
	const char *file = argc > 3 ? argv[3] : NULL;
	enum { TALK, QUIET, END } next = TALK;
	uint64_t round = 0;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &nr_ranks);
	seconds = argc > 1 ? atof(argv[1]) : 10;
	seed = argc > 2 ? strtoull(argv[2], NULL, 0) : 1;
	if (nr_ranks > MAX_RANKS)
		MPI_Abort(MPI_COMM_WORLD, 2);
	began = before = MPI_Wtime();
	while (next != END) {
		double now;

		one_round(round++);
		now = MPI_Wtime();
		for (int i = 0; i < LONG_ONES; i++) {
			if (now - before <= longest[i])
				continue;
			memmove(&longest[i + 1], &longest[i],
				sizeof(longest[0]) * (size_t)(LONG_ONES - 1 - i));
			longest[i] = now - before;
			break;
		}
		before = now;
		next = now - began >= seconds ? END : file && now - began > 3 ? QUIET : TALK;
		MPI_Bcast(&next, 1, MPI_INT, 0, MPI_COMM_WORLD);
		if (next != QUIET)
			continue;
		be_quiet(file);
		file = NULL;
		/* So many seconds more. */
		began = MPI_Wtime();
	}
	if (rank == 0) {
		printf("moved OK: %llu rounds of %d messages per pair, none wrong; longest gaps:",
		       (unsigned long long)round, MESSAGES);
		for (int i = 0; i < LONG_ONES; i++)
			printf(" %.3f", longest[i]);
		printf(" s\n");
	}
	MPI_Finalize();
	return 0;
}
