// SPDX-License-Identifier: Apache-2.0
/*
 * mpi_moved [OPTIONS] SECONDS SEED [FILE]: rounds of messages between all ranks, while a machine of
 * the job moves. With FILE, all ranks make no call of MPI from the fourth second on, until FILE
 * exists; FILE.quiet says so.
 *
 *   -e FILE    end as soon as FILE exists where rank 0 runs
 *   -n ROUNDS  end after so many rounds
 *   -w WORK    compute after every BLOCK rounds: WORK million steps, always the same work
 *   -b BLOCK   rounds between two computations
 *   -m FILE    rank 0 makes FILE.talk at the begin, and FILE.compute at the first computation
 *
 * In each round every rank sends MESSAGES messages to every other rank and receives from any
 * source. Sizes and bytes follow from the seed, the two ranks and the number of the message, so
 * a lost, doubled, reordered or changed message ends the job. Rank 0 says how many rounds were
 * right, and the longest time between two rounds, which contains what a move has cost; then, as
 * one line of JSON, the wall time, the begin and end of its first computation, the longest time
 * between two messages of each pair (sender, receiver), without the receiver's own computation, and
 * the bytes that all ranks received in each interval of INTERVAL_MS, from the begin on.
 */
#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MESSAGES = 8, MAX_BYTES = 96 << 10, MAX_RANKS = 16, LONG_ONES = 8 };
enum { INTERVAL_MS = 250, MAX_INTERVALS = 4096 };

static int rank, nr_ranks;
static uint64_t seed;
static double start, computing[2];

/* Of what this rank received: the longest time between two messages of a sender, and bytes. */
static double gaps[MAX_RANKS], last[MAX_RANKS];
static uint64_t received[MAX_INTERVALS];

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

static void note(int from, int size)
{
	double now = MPI_Wtime();
	int interval = (int)((now - start) * 1000 / INTERVAL_MS);

	if (last[from] > 0 && now - last[from] > gaps[from])
		gaps[from] = now - last[from];
	last[from] = now;
	if (interval < MAX_INTERVALS)
		received[interval] += (uint64_t)size;
}

/*
 * The tag keeps rounds apart: a rank that is ahead would else take the place of the others in a
 * round, whose large messages to each other nothing would receive any more.
 */
static void one_round(uint64_t round)
{
	static unsigned char out[MAX_RANKS][MESSAGES][MAX_BYTES], in[MAX_BYTES];
	static uint64_t taken[MAX_RANKS];
	MPI_Request requests[MAX_RANKS * MESSAGES];
	MPI_Status status;
	int tag = (int)(round % 1024), nr = 0, size;

	for (int i = 0; i < MESSAGES; i++) {
		for (int to = 0; to < nr_ranks; to++) {
			if (to == rank)
				continue;
			size = fill(out[to][i], rank, to, round * MESSAGES + (uint64_t)i);
			MPI_Isend(out[to][i], size, MPI_BYTE, to, tag, MPI_COMM_WORLD,
				  &requests[nr++]);
		}
	}
	for (int i = 0; i < MESSAGES * (nr_ranks - 1); i++) {
		MPI_Recv(in, MAX_BYTES, MPI_BYTE, MPI_ANY_SOURCE, tag, MPI_COMM_WORLD, &status);
		MPI_Get_count(&status, MPI_BYTE, &size);
		check(in, size, status.MPI_SOURCE, taken[status.MPI_SOURCE]++);
		note(status.MPI_SOURCE, size);
	}
	MPI_Waitall(nr, requests, MPI_STATUSES_IGNORE);
}

/* Make the file NAME.WHAT; NULL: none. */
static void mark(const char *name, const char *what)
{
	char path[256];
	FILE *file;

	if (!name)
		return;
	snprintf(path, sizeof(path), "%s.%s", name, what);
	file = fopen(path, "w");
	if (!file) {
		perror(path);
		MPI_Abort(MPI_COMM_WORLD, 2);
		return;
	}
	fclose(file);
}

static void be_quiet(const char *file)
{
	const struct timespec moment = {.tv_nsec = 10000000};

	mark(file, "quiet");
	while (access(file, F_OK))
		nanosleep(&moment, NULL);
}

static void compute(uint64_t millions, const char *marks)
{
	static volatile uint64_t result;
	uint64_t value = result;
	bool first = computing[0] == 0;

	if (first) {
		mark(marks, "compute");
		computing[0] = MPI_Wtime() - start;
	}
	for (uint64_t i = 0; i < millions * 1000000; i++)
		value = mix(value);
	result = value;
	if (first)
		computing[1] = MPI_Wtime() - start;
	for (int i = 0; i < nr_ranks; i++)
		last[i] = MPI_Wtime();
}

/* Rank 0 prints what all ranks noted. */
static void report(double wall)
{
	static double of_all[MAX_RANKS * MAX_RANKS];
	static uint64_t sums[MAX_INTERVALS];
	int intervals = (int)(wall * 1000 / INTERVAL_MS) + 1;

	if (intervals > MAX_INTERVALS)
		intervals = MAX_INTERVALS;
	MPI_Gather(gaps, nr_ranks, MPI_DOUBLE, of_all, nr_ranks, MPI_DOUBLE, 0, MPI_COMM_WORLD);
	MPI_Reduce(received, sums, MAX_INTERVALS, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
	if (rank)
		return;
	printf("{\"wall_s\": %.3f, \"interval_s\": %.3f, \"computing_s\": [%.3f, %.3f], \"gaps\": [",
	       wall, INTERVAL_MS / 1e3, computing[0], computing[1]);
	for (int i = 0, nr = 0; i < nr_ranks * nr_ranks; i++)
		if (i % nr_ranks != i / nr_ranks)
			printf("%s[%d, %d, %.3f]", nr++ ? ", " : "", i % nr_ranks, i / nr_ranks,
			       of_all[i]);
	printf("], \"bytes\": [");
	for (int i = 0; i < intervals; i++)
		printf("%s%llu", i ? ", " : "", (unsigned long long)sums[i]);
	printf("]}\n");
}

int main(int argc, char **argv)
{
	double seconds, began, before, longest[LONG_ONES] = {0};
	const char *file, *end = NULL, *marks = NULL;
	enum { TALK, QUIET, END } next = TALK;
	uint64_t round = 0, rounds = UINT64_MAX, work = 0, block = 200;
	int option;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &nr_ranks);
	while ((option = getopt(argc, argv, "e:n:w:b:m:")) != -1) {
		if (option == 'e')
			end = optarg;
		else if (option == 'n')
			rounds = strtoull(optarg, NULL, 0);
		else if (option == 'w')
			work = strtoull(optarg, NULL, 0);
		else if (option == 'b')
			block = strtoull(optarg, NULL, 0);
		else if (option == 'm')
			marks = rank ? NULL : optarg;
		else
			MPI_Abort(MPI_COMM_WORLD, 2);
	}
	seconds = argc > optind ? atof(argv[optind]) : 10;
	seed = argc > optind + 1 ? strtoull(argv[optind + 1], NULL, 0) : 1;
	file = argc > optind + 2 ? argv[optind + 2] : NULL;
	if (nr_ranks > MAX_RANKS || !block)
		MPI_Abort(MPI_COMM_WORLD, 2);
	MPI_Barrier(MPI_COMM_WORLD);
	start = began = before = MPI_Wtime();
	mark(marks, "talk");
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
		next = now - began >= seconds || round == rounds || (end && !access(end, F_OK)) ?
			       END :
		       file && now - began > 3 ? QUIET :
						 TALK;
		MPI_Bcast(&next, 1, MPI_INT, 0, MPI_COMM_WORLD);
		if (next == TALK && work && round % block == 0)
			compute(work, marks);
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
	report(MPI_Wtime() - start);
	MPI_Finalize();
	return 0;
}
