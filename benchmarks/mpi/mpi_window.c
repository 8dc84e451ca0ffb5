// SPDX-License-Identifier: Apache-2.0
/*
 * One-sided communication: put, get, accumulate, fetch-and-op and compare-and-swap on a window,
 * in passive mode, verified and then timed in short samples (format: sampling.h). `copy` is memcpy()
 * in the origin, for comparison.
 *
 * Rank 0 is the origin, the last rank the target. While the origin works the target waits in a
 * receive, as a program does that has something else to do: providers that execute on the target
 * make their progress there.
 */
#define _GNU_SOURCE
#include <getopt.h>

#include "job.h"

#define SAMPLE_SECONDS 300e-6
#define BATCH_MAX 65536
#define WINDOW_OPERATIONS 16
#define COUNTER_ADDS 200

enum { TAG_GO = 21 };

struct bench {
	struct job job;
	int target;
	MPI_Win window;
	char *memory; /* of the window */
	char *local;
	size_t capacity;
};

struct operation {
	const char *name;
	bool sized;	 /* runs over message sizes; else on 8 bytes */
	int flush_every; /* operations between flushes: 1 shows latency, more the rate */
	void (*run)(struct bench *bench, size_t size);
};

struct options {
	uint64_t max_size;
	double seconds;
	bool check_only;
};

static const char usage[] = "usage: mpi_window [-M MAX] [-t SECONDS] [-c]\n"
			    "  -M SIZE      largest transfer (default 4M)\n"
			    "  -t SECONDS   time per operation and size (default 0.1)\n"
			    "  -c           check only: no timing\n"
			    "Example: mpirun -n 2 mpi_window -M 1M -t 0.05\n";

static void run_put(struct bench *b, size_t size)
{
	MPI_Put(b->local, (int)size, MPI_BYTE, b->target, 0, (int)size, MPI_BYTE, b->window);
}

static void run_get(struct bench *b, size_t size)
{
	MPI_Get(b->local, (int)size, MPI_BYTE, b->target, 0, (int)size, MPI_BYTE, b->window);
}

static void run_copy(struct bench *b, size_t size)
{
	memcpy(b->local, b->memory, size);
}

static void run_accumulate(struct bench *b, size_t size)
{
	MPI_Accumulate(b->local, (int)(size / 8), MPI_UINT64_T, b->target, 0, (int)(size / 8),
		       MPI_UINT64_T, MPI_SUM, b->window);
}

static void run_fetch_and_op(struct bench *b, size_t size)
{
	static const uint64_t one = 1;

	(void)size;
	MPI_Fetch_and_op(&one, b->local, MPI_UINT64_T, b->target, 0, MPI_SUM, b->window);
}

static void run_compare_and_swap(struct bench *b, size_t size)
{
	static const uint64_t zero, one = 1;

	(void)size;
	MPI_Compare_and_swap(&one, &zero, b->local, MPI_UINT64_T, b->target, 0, b->window);
}

static const struct operation operations[] = {
	{"put", true, 1, run_put},
	{"get", true, 1, run_get},
	{"copy", true, 1, run_copy},
	{"accumulate", true, 1, run_accumulate},
	{"put_stream", true, WINDOW_OPERATIONS, run_put},
	{"get_stream", true, WINDOW_OPERATIONS, run_get},
	{"fetch_and_op", false, 1, run_fetch_and_op},
	{"compare_and_swap", false, 1, run_compare_and_swap},
};

#define NR_OPERATIONS (sizeof(operations) / sizeof(operations[0]))

static void meet(struct bench *b)
{
	MPI_Win_sync(b->window);
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Win_sync(b->window);
}

/* Every rank writes its own stripe of the target's memory, reads it back, the target looks. */
static void check_put_get(struct bench *b, size_t size)
{
	size_t stripe = b->capacity / (size_t)b->job.nr_ranks / 8 * 8;
	size_t at = stripe * (size_t)b->job.rank, wrong;
	int rank;

	size = size < stripe ? size : stripe;
	payload_fill(b->local, size, mix64((uint64_t)b->job.rank + size));
	MPI_Put(b->local, (int)size, MPI_BYTE, b->target, (MPI_Aint)at, (int)size, MPI_BYTE,
		b->window);
	MPI_Win_flush(b->target, b->window);
	memset(b->local, 0xa5, size);
	MPI_Get(b->local, (int)size, MPI_BYTE, b->target, (MPI_Aint)at, (int)size, MPI_BYTE,
		b->window);
	MPI_Win_flush(b->target, b->window);
	wrong = payload_check(b->local, size, mix64((uint64_t)b->job.rank + size));
	if (wrong < size)
		job_fail(&b->job, "get: byte %zu of %zu is wrong", wrong, size);
	meet(b);
	for (rank = 0; b->job.rank == b->target && rank < b->job.nr_ranks; rank++) {
		wrong = payload_check(b->memory + stripe * (size_t)rank, size,
				      mix64((uint64_t)rank + size));
		if (wrong < size)
			job_fail(&b->job, "put: byte %zu of %zu from rank %d is wrong", wrong, size,
				 rank);
	}
	meet(b);
}

/* All ranks add to the same words at once; the sums must come out. */
static void check_accumulate(struct bench *b, size_t size)
{
	uint64_t *word = (uint64_t *)b->local, *sum = (uint64_t *)b->memory, expected;
	size_t i, words = size / 8;
	uint64_t n = (uint64_t)b->job.nr_ranks;

	memset(b->memory, 0, size);
	meet(b);
	for (i = 0; i < words; i++)
		word[i] = (uint64_t)b->job.rank + i;
	for (i = 0; i < 3; i++)
		run_accumulate(b, size);
	MPI_Win_flush(b->target, b->window);
	meet(b);
	for (i = 0; b->job.rank == b->target && i < words; i++) {
		expected = 3 * (n * (n - 1) / 2 + n * i);
		if (sum[i] != expected)
			job_fail(&b->job, "accumulate: word %zu of %zu is %lu, expected %lu", i,
				 words, sum[i], expected);
	}
	meet(b);
}

/* Every fetched value must be new and growing; the counter must reach the number of adds. */
static void check_fetch_and_op(struct bench *b)
{
	uint64_t *counter = (uint64_t *)b->memory, got, last = 0;
	uint64_t total = (uint64_t)b->job.nr_ranks * COUNTER_ADDS;
	int i;

	*counter = 0;
	meet(b);
	for (i = 0; i < COUNTER_ADDS; i++) {
		run_fetch_and_op(b, 8);
		MPI_Win_flush(b->target, b->window);
		memcpy(&got, b->local, 8);
		if (got >= total || (i && got <= last))
			job_fail(&b->job, "fetch_and_op: fetched %lu after %lu, of %lu in all", got,
				 last, total);
		last = got;
	}
	meet(b);
	if (b->job.rank == b->target && *counter != total)
		job_fail(&b->job, "fetch_and_op: the counter is %lu, expected %lu", *counter,
			 total);
	meet(b);
}

/*
 * A counter raised by compare-and-swap loops loses no increment. The target only serves: Open MPI
 * 4.1 crashes when a rank compares and swaps with itself over its shared-memory btl.
 */
static void check_compare_and_swap(struct bench *b)
{
	uint64_t *counter = (uint64_t *)b->memory, seen = 0, wanted, got;
	uint64_t total = (uint64_t)(b->job.nr_ranks - 1) * COUNTER_ADDS;
	int done = b->job.rank == b->target ? COUNTER_ADDS : 0;

	*counter = 0;
	meet(b);
	while (done < COUNTER_ADDS) {
		wanted = seen + 1;
		MPI_Compare_and_swap(&wanted, &seen, &got, MPI_UINT64_T, b->target, 0, b->window);
		MPI_Win_flush(b->target, b->window);
		if (got == seen)
			done++;
		seen = got == seen ? wanted : got;
	}
	meet(b);
	if (b->job.rank == b->target && *counter != total)
		job_fail(&b->job, "compare_and_swap: the counter is %lu, expected %lu", *counter,
			 total);
	meet(b);
}

static void check(struct bench *b)
{
	size_t size, sizes = 0;

	for (size = 1; size <= b->capacity; size *= 2, sizes++)
		check_put_get(b, size);
	for (size = 8; size <= b->capacity && size <= (64u << 10); size *= 2)
		check_accumulate(b, size);
	check_fetch_and_op(b);
	check_compare_and_swap(b);
	if (!b->job.rank)
		printf("# verified window sizes %zu adds %d\n", sizes,
		       (2 * b->job.nr_ranks - 1) * COUNTER_ADDS);
}

static double run_batch(struct bench *b, const struct operation *operation, size_t size, int batch)
{
	double start = MPI_Wtime();
	int i, k;

	for (i = 0; i < batch; i++) {
		for (k = 0; k < operation->flush_every; k++)
			operation->run(b, size);
		MPI_Win_flush(b->target, b->window);
	}
	return MPI_Wtime() - start;
}

/* The quickest of three, so that one interruption does not make every batch too short. */
static double quickest_batch(struct bench *b, const struct operation *operation, size_t size,
			     int batch)
{
	double best = run_batch(b, operation, size, batch), next;
	int i;

	for (i = 0; i < 2; i++) {
		next = run_batch(b, operation, size, batch);
		best = next < best ? next : best;
	}
	return best;
}

/* Origin only. Seconds per operation. Returns how many flushes a sample has. */
static int sample(struct bench *b, const struct operation *operation, size_t size, double seconds,
		  struct samples *ret_samples)
{
	double start = MPI_Wtime();
	int batch = 1;

	while (quickest_batch(b, operation, size, batch) < SAMPLE_SECONDS / 2 && batch < BATCH_MAX)
		batch *= 2;
	ret_samples->nr = 0;
	while ((MPI_Wtime() - start < seconds || ret_samples->nr < 16) &&
	       ret_samples->nr < SAMPLES_MAX)
		samples_add(ret_samples,
			    run_batch(b, operation, size, batch) / batch / operation->flush_every);
	samples_sort(ret_samples);
	return batch;
}

static void print_row(size_t size, int batch, const struct samples *samples)
{
	static const int percents[] = {2, 25, 50, 75, 98};
	double median = samples_percentile(samples, 50);
	size_t i;

	printf("%zu %d %d", size, samples->nr, batch);
	for (i = 0; i < sizeof(percents) / sizeof(percents[0]); i++)
		printf(" %.4f", samples_percentile(samples, percents[i]) * 1e6);
	printf(" 1 %.6f %.2f\n", 1e-6 / median, (double)size / median * 1e-6);
	fflush(stdout);
}

static void measure(struct bench *b, const struct options *options,
		    const struct operation *operation)
{
	static struct samples samples;
	size_t size;
	int batch;

	MPI_Barrier(MPI_COMM_WORLD);
	if (b->job.rank) {
		MPI_Recv(NULL, 0, MPI_BYTE, 0, TAG_GO, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		return;
	}
	printf("# table %s\n"
	       "size_B samples batch time_p2_us time_p25_us time_p50_us time_p75_us time_p98_us "
	       "messages rate_p50_Mps bandwidth_p50_MBps\n",
	       operation->name);
	for (size = 8; size <= (operation->sized ? options->max_size : 8); size *= 2) {
		batch = sample(b, operation, size, options->seconds, &samples);
		print_row(size, batch, &samples);
	}
	printf("# end %s\n", operation->name);
	for (batch = 1; batch < b->job.nr_ranks; batch++)
		MPI_Send(NULL, 0, MPI_BYTE, batch, TAG_GO, MPI_COMM_WORLD);
}

static int options_parse(int argc, char **argv, struct options *ret_options)
{
	struct options options = {.max_size = 4u << 20, .seconds = 0.1};
	int option, ret = 0;

	opterr = 0;
	while (!ret && (option = getopt(argc, argv, "M:t:c")) != -1) {
		switch (option) {
		case 'M':
			ret = size_parse(optarg, &options.max_size);
			break;
		case 't':
			ret = number_parse(optarg, 0, 3600, &options.seconds);
			break;
		case 'c':
			options.check_only = true;
			break;
		default:
			ret = -EINVAL;
			break;
		}
	}
	if (ret || optind != argc || options.max_size < 8 || options.max_size > (256u << 20))
		return -EINVAL;
	*ret_options = options;
	return 0;
}

int main(int argc, char **argv)
{
	struct options options = {0};
	struct bench bench;
	size_t i;

	MPI_Init(&argc, &argv);
	job_help(argc, argv, usage);
	if (options_parse(argc, argv, &options)) {
		fputs(usage, stderr);
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	MPI_Comm_rank(MPI_COMM_WORLD, &bench.job.rank);
	MPI_Comm_size(MPI_COMM_WORLD, &bench.job.nr_ranks);
	bench.target = bench.job.nr_ranks - 1;
	bench.capacity = options.max_size;
	if (posix_memalign((void **)&bench.local, 4096, bench.capacity + 4096))
		job_fail(&bench.job, "no memory for %zu bytes", bench.capacity);
	memset(bench.local, 0, bench.capacity);
	MPI_Win_allocate((MPI_Aint)bench.capacity, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &bench.memory,
			 &bench.window);
	memset(bench.memory, 0, bench.capacity);
	MPI_Barrier(MPI_COMM_WORLD);
	job_begin(&bench.job, "window");
	MPI_Win_lock_all(0, bench.window);
	check(&bench);
	for (i = 0; i < NR_OPERATIONS && !options.check_only; i++)
		measure(&bench, &options, &operations[i]);
	MPI_Win_unlock_all(bench.window);
	MPI_Win_free(&bench.window);
	free(bench.local);
	job_end(&bench.job, "window");
	MPI_Finalize();
	return 0;
}
