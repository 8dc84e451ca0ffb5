// SPDX-License-Identifier: Apache-2.0
/*
 * Latency, message rate, bandwidth and collectives in short samples, each printed, measured when it
 * is this job's turn (turns.h). Jobs of all MPIs and transports wait side by side for theirs.
 *
 * pingpong   half a round trip between rank 0 and the last rank; 50 of them in a sample
 * uniband    rank 0 to the last one, windows of messages, each answered once; time per message
 * allreduce, alltoall, barrier   the slowest rank's time of one, some in a sample
 */
#define _GNU_SOURCE
#include "job.h"
#include "turns.h"

#define ROUND_TRIPS 50
#define WINDOW_MAX 64
#define SAMPLE_SECONDS 500e-6
#define BUFFER_BYTES ((size_t)4 << 20)

enum { TAG_PING = 1, TAG_WINDOW = 2, TAG_DONE = 3 };

struct bench {
	struct job job;
	struct turns turns;
	char *send, *recv;
	MPI_Request request[WINDOW_MAX];
	int batch; /* collectives per sample */
};

typedef double (*run_test)(struct bench *b, int size);

static int last(const struct bench *b)
{
	return b->job.nr_ranks - 1;
}

static double run_pingpong(struct bench *b, int size)
{
	double start = MPI_Wtime();
	int i, rank = b->job.rank;

	for (i = 0; i < ROUND_TRIPS; i++) {
		if (rank == 0) {
			MPI_Send(b->send, size, MPI_BYTE, last(b), TAG_PING, MPI_COMM_WORLD);
			MPI_Recv(b->recv, size, MPI_BYTE, last(b), TAG_PING, MPI_COMM_WORLD,
				 MPI_STATUS_IGNORE);
		} else if (rank == last(b)) {
			MPI_Recv(b->recv, size, MPI_BYTE, 0, TAG_PING, MPI_COMM_WORLD,
				 MPI_STATUS_IGNORE);
			MPI_Send(b->send, size, MPI_BYTE, 0, TAG_PING, MPI_COMM_WORLD);
		}
	}
	return (MPI_Wtime() - start) / ROUND_TRIPS / 2;
}

/* Messages under way at once: as many as OSU's benchmarks have, within reason for large ones. */
static int window_of(int size)
{
	return size <= 4096 ? WINDOW_MAX : size <= 65536 ? 16 : size <= (1 << 20) ? 8 : 4;
}

static double run_uniband(struct bench *b, int size)
{
	int i, window = window_of(size), rounds = size <= 4096 ? 4 : 1, round;
	double start = MPI_Wtime();

	for (round = 0; round < rounds; round++) {
		if (b->job.rank == 0) {
			for (i = 0; i < window; i++)
				MPI_Isend(b->send, size, MPI_BYTE, last(b), TAG_WINDOW,
					  MPI_COMM_WORLD, &b->request[i]);
			MPI_Waitall(window, b->request, MPI_STATUSES_IGNORE);
			MPI_Recv(b->recv, 4, MPI_BYTE, last(b), TAG_DONE, MPI_COMM_WORLD,
				 MPI_STATUS_IGNORE);
		} else if (b->job.rank == last(b)) {
			for (i = 0; i < window; i++)
				MPI_Irecv(b->recv, size, MPI_BYTE, 0, TAG_WINDOW, MPI_COMM_WORLD,
					  &b->request[i]);
			MPI_Waitall(window, b->request, MPI_STATUSES_IGNORE);
			MPI_Send(b->send, 4, MPI_BYTE, 0, TAG_DONE, MPI_COMM_WORLD);
		}
	}
	return (MPI_Wtime() - start) / window / rounds;
}

static double slowest(const struct bench *b, double start)
{
	double mine = (MPI_Wtime() - start) / b->batch, all = 0;

	MPI_Reduce(&mine, &all, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
	return all;
}

static double run_allreduce(struct bench *b, int size)
{
	double start;
	int i;

	MPI_Barrier(MPI_COMM_WORLD);
	start = MPI_Wtime();
	for (i = 0; i < b->batch; i++)
		MPI_Allreduce(b->send, b->recv, size / 8, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
	return slowest(b, start);
}

static double run_alltoall(struct bench *b, int size)
{
	double start;
	int i;

	MPI_Barrier(MPI_COMM_WORLD);
	start = MPI_Wtime();
	for (i = 0; i < b->batch; i++)
		MPI_Alltoall(b->send, size, MPI_BYTE, b->recv, size, MPI_BYTE, MPI_COMM_WORLD);
	return slowest(b, start);
}

static double run_barrier(struct bench *b, int size)
{
	double start;
	int i;

	(void)size;
	MPI_Barrier(MPI_COMM_WORLD);
	start = MPI_Wtime();
	for (i = 0; i < b->batch; i++)
		MPI_Barrier(MPI_COMM_WORLD);
	return slowest(b, start);
}

static const struct {
	const char *name;
	run_test run;
	bool collective;
} tests[] = {
	{"pingpong", run_pingpong, false},  {"uniband", run_uniband, false},
	{"allreduce", run_allreduce, true}, {"alltoall", run_alltoall, true},
	{"barrier", run_barrier, true},
};
#define NR_TESTS (sizeof(tests) / sizeof(tests[0]))

static void check_room(const struct bench *b, const struct turn_test *test, bool collective)
{
	size_t blocks = collective ? (size_t)b->job.nr_ranks : 1;

	if (test->size * blocks > BUFFER_BYTES)
		job_fail(&b->job, "%s of %llu bytes is too large", test->name,
			 (unsigned long long)test->size);
}

/* Rank 0 finds out how many samples fit, and tells the others. */
static void measure(struct bench *b, const struct turn_test *test, size_t kind)
{
	int plan[2] = {1, 0}, i, size = (int)test->size;
	double start, spent;

	check_room(b, test, tests[kind].collective);
	b->batch = 1;
	MPI_Barrier(MPI_COMM_WORLD);
	tests[kind].run(b, size); /* what it leaves in caches and queues is not the first one's */
	start = MPI_Wtime();
	spent = tests[kind].run(b, size);
	if (tests[kind].collective && spent < SAMPLE_SECONDS)
		plan[0] = spent < SAMPLE_SECONDS / 50 ? 50 : (int)(SAMPLE_SECONDS / spent);
	plan[1] = turns_samples(&b->turns, (MPI_Wtime() - start) * plan[0]);
	MPI_Bcast(plan, 2, MPI_INT, 0, MPI_COMM_WORLD);
	b->batch = plan[0];
	for (i = 0; i < plan[1]; i++) {
		spent = tests[kind].run(b, size);
		if (!b->job.rank && turns_add(&b->turns, test, spent))
			job_fail(&b->job, "no memory for samples");
	}
}

static void take_turn(struct bench *b)
{
	size_t kind;
	int i;

	for (i = 0; i < b->turns.now.nr_tests; i++) {
		const struct turn_test *test = &b->turns.now.tests[i];

		for (kind = 0; kind < NR_TESTS; kind++)
			if (!strcmp(tests[kind].name, test->name))
				break;
		if (kind == NR_TESTS)
			job_fail(&b->job, "no test %s", test->name);
		measure(b, test, kind);
	}
	/* Nobody answers for the job before all have everything. */
	MPI_Barrier(MPI_COMM_WORLD);
	if (turns_done(&b->turns))
		job_fail(&b->job, "whoever gives the turns is gone");
}

int main(int argc, char **argv)
{
	static struct bench b;
	int err;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &b.job.rank);
	MPI_Comm_size(MPI_COMM_WORLD, &b.job.nr_ranks);
	if (argc != 2) {
		fputs("usage: mpi_samples DIR (with the pipes that turns.h tells of)\n", stderr);
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	if (posix_memalign((void **)&b.send, 4096, BUFFER_BYTES) ||
	    posix_memalign((void **)&b.recv, 4096, BUFFER_BYTES))
		job_fail(&b.job, "no memory");
	memset(b.send, 1, BUFFER_BYTES);
	memset(b.recv, 2, BUFFER_BYTES);
	job_begin(&b.job, "samples");
	err = turns_open(&b.turns, argv[1], b.job.rank);
	if (err)
		job_fail(&b.job, "%s: %s", argv[1], strerror(-err));
	while ((err = turns_next(&b.turns)) > 0)
		take_turn(&b);
	if (err)
		job_fail(&b.job, "an order that cannot be read");
	if (!b.job.rank)
		turns_print(&b.turns);
	turns_close(&b.turns);
	job_end(&b.job, "samples");
	MPI_Finalize();
	return 0;
}
