// SPDX-License-Identifier: Apache-2.0
/*
 * Thirteen communication patterns over message sizes: verified, then timed in short samples.
 * The output format is told in sampling.h. Every size is run with checked contents before it is
 * timed; a wrong byte ends the job with exit code 1.
 */
#define _GNU_SOURCE
#include <getopt.h>

#include "patterns_table.h"

#define SAMPLE_SECONDS 300e-6
#define BATCH_MAX 65536
#define GUARD 64
#define SIZES_MAX 64

struct options {
	const char *names;
	uint64_t min_size, max_size;
	uint64_t sizes[SIZES_MAX]; /* nr_sizes of them, in this order; none: powers of two */
	int nr_sizes;
	double seconds; /* per point */
	int checks;	/* verified runs per point */
	bool check_only;
};

static const char usage[] =
	"usage: mpi_patterns [-p NAME,...] [-m MIN] [-M MAX] [-s SIZE,...] [-t SECONDS] [-n RUNS]\n"
	"                    [-c]\n"
	"  -p NAME,...  patterns (default all): pingpong pingping uniband biband sendrecv exchange\n"
	"               bcast allreduce reduce allgather alltoall alltoallv barrier\n"
	"  -m, -M SIZE  smallest and largest message (default 0 and 4M); sizes are powers of two\n"
	"  -s SIZE,...  these sizes, at most 64, instead of powers of two\n"
	"  -t SECONDS   time per pattern and size (default 0.1)\n"
	"  -n RUNS      verified runs before the timing (default 2)\n"
	"  -c           check only: no timing\n"
	"Example: mpirun -n 2 mpi_patterns -p pingpong,uniband -M 64K -t 0.05\n";

static uint64_t block_key(const struct bench *b, int rank)
{
	return mix64(((uint64_t)rank << 40) ^ b->call);
}

/* Payload that differs from run to run, and a guard behind what may be written. Returns that. */
static size_t prepare(struct bench *b, const struct pattern *pattern, size_t size)
{
	size_t blocks = pattern->kind == PATTERN_PAIR ? WINDOW_MAX : (size_t)b->nr_blocks;
	size_t bytes = size * blocks < b->capacity ? size * blocks : b->capacity;

	payload_fill(b->send, bytes, block_key(b, b->job.rank));
	memset(b->recv, 0xa5, bytes + GUARD);
	return bytes;
}

static void check_delivery(const struct bench *b, const char *name, const struct delivery *d,
			   uint64_t call)
{
	uint64_t key = mix64(((uint64_t)d->rank << 40) ^ call);
	uint64_t word;
	size_t i;

	for (i = 0; i < d->bytes; i++) {
		word = payload_word(key, (d->from + i) / 8);
		if (((const uint8_t *)&word)[(d->from + i) % 8] != (uint8_t)b->recv[d->at + i])
			job_fail(&b->job,
				 "%s: byte %zu of %zu from rank %d is 0x%02x, expected 0x%02x",
				 name, i, d->bytes, d->rank, (uint8_t)b->recv[d->at + i],
				 ((const uint8_t *)&word)[(d->from + i) % 8]);
	}
}

static void check_sum(const struct bench *b, const char *name, size_t size, uint64_t call)
{
	size_t i;
	int rank;

	for (i = 0; i < size / 4; i++) {
		uint32_t sum = 0, got;

		for (rank = 0; rank < b->job.nr_ranks; rank++) {
			uint64_t key = mix64(((uint64_t)rank << 40) ^ call);

			sum += (uint32_t)(payload_word(key, i / 2) >> (i % 2 ? 32 : 0));
		}
		memcpy(&got, b->recv + 4 * i, 4);
		if (got != sum)
			job_fail(&b->job, "%s: element %zu of %zu is %u, expected %u", name, i,
				 size / 4, got, sum);
	}
}

/* x -> factor * x + term: the order of two such steps matters. */
struct step {
	uint32_t factor, term;
};

/* The first step, then the second. An MPI_User_function: the result replaces the second. */
static void join_steps(void *first, void *second, int *count, MPI_Datatype *type)
{
	const struct step *a = first;
	struct step *b = second;
	int i;

	(void)type;
	for (i = 0; i < *count; i++) {
		b[i].term += b[i].factor * a[i].term;
		b[i].factor *= a[i].factor;
	}
}

static struct step step_of(const struct bench *b, int rank, size_t i)
{
	uint64_t word = payload_word(block_key(b, rank), i);

	return (struct step){(uint32_t)word | 1, (uint32_t)(word >> 32)};
}

/* A reduction whose operation does not commute: ranks must be joined in their order. */
static void verify_order(struct bench *b, const struct pattern *pattern, size_t size)
{
	size_t i, nr = size / sizeof(struct step);
	struct step *mine = (struct step *)b->send, *got = (struct step *)b->recv;
	int rank, root = b->job.nr_ranks - 1;
	MPI_Datatype type;
	MPI_Op op;

	for (i = 0; i < nr; i++)
		mine[i] = step_of(b, b->job.rank, i);
	MPI_Type_contiguous(2, MPI_UINT32_T, &type);
	MPI_Type_commit(&type);
	MPI_Op_create(join_steps, 0, &op);
	if (pattern->run == run_reduce)
		MPI_Reduce(mine, got, (int)nr, type, op, root, MPI_COMM_WORLD);
	else
		MPI_Allreduce(mine, got, (int)nr, type, op, MPI_COMM_WORLD);
	MPI_Op_free(&op);
	MPI_Type_free(&type);
	if (pattern->run == run_reduce && b->job.rank != root)
		return;
	for (i = 0; i < nr; i++) {
		struct step all = step_of(b, 0, i);

		for (rank = 1; rank < b->job.nr_ranks; rank++) {
			struct step next = step_of(b, rank, i);

			join_steps(&all, &next, &(int){1}, NULL);
			all = next;
		}
		if (all.factor != got[i].factor || all.term != got[i].term)
			job_fail(&b->job,
				 "%s: element %zu of %zu is wrong: an operation that does not "
				 "commute was applied in another order",
				 pattern->name, i, nr);
	}
}

static bool takes_part(const struct bench *b, const struct pattern *pattern)
{
	return pattern->kind != PATTERN_PAIR || b->partner >= 0;
}

static void verify(struct bench *b, const struct pattern *pattern, size_t size)
{
	size_t bytes = prepare(b, pattern, size);
	uint64_t call = b->call;
	int i, nr;

	MPI_Barrier(MPI_COMM_WORLD);
	if (!takes_part(b, pattern))
		return;
	pattern->run(b, size);
	if (pattern->kind == PATTERN_REDUCE) {
		if (pattern->run != run_reduce || moving_root(b, call) == b->job.rank)
			check_sum(b, pattern->name, size, call);
		if (size >= sizeof(struct step))
			verify_order(b, pattern, size);
	} else if (pattern->expect) {
		nr = pattern->expect(b, size, b->deliveries);
		for (i = 0; i < nr; i++)
			check_delivery(b, pattern->name, &b->deliveries[i], call);
	}
	for (i = 0; i < GUARD; i++)
		if ((uint8_t)b->recv[bytes + (size_t)i] != 0xa5)
			job_fail(&b->job, "%s: wrote past the end of the buffer", pattern->name);
}

static double run_batch(struct bench *b, const struct pattern *pattern, size_t size, int batch,
			int *ret_operations)
{
	double start;
	int i;

	*ret_operations = 1;
	MPI_Barrier(MPI_COMM_WORLD);
	start = MPI_Wtime();
	for (i = 0; i < batch && takes_part(b, pattern); i++)
		*ret_operations = pattern->run(b, size);
	return MPI_Wtime() - start;
}

/*
 * How many runs make a sample of SAMPLE_SECONDS; rank 0 decides for all. The quickest of three
 * counts, so that one interruption does not make every batch too short.
 */
static int calibrate(struct bench *b, const struct pattern *pattern, size_t size)
{
	int i, next, operations, batch = 1;
	double best, spent;

	for (;;) {
		best = run_batch(b, pattern, size, batch, &operations);
		for (i = 0; i < 2; i++) {
			spent = run_batch(b, pattern, size, batch, &operations);
			best = spent < best ? spent : best;
		}
		next = best >= SAMPLE_SECONDS / 2 || batch >= BATCH_MAX ? 0 : batch * 2;
		MPI_Bcast(&next, 1, MPI_INT, 0, MPI_COMM_WORLD);
		if (!next)
			return batch;
		batch = next;
	}
}

/* Samples until the time is up, in seconds per operation, the slowest rank's of each. */
static int sample(struct bench *b, const struct pattern *pattern, size_t size, double seconds,
		  struct samples *ret_samples)
{
	int go_on = 1, operations, batch = calibrate(b, pattern, size);
	double start = MPI_Wtime(), spent;
	static struct samples mine;

	mine.nr = 0;
	while (go_on) {
		spent = run_batch(b, pattern, size, batch, &operations);
		samples_add(&mine, takes_part(b, pattern) ? spent / batch / operations : 0);
		if (mine.nr % 8)
			continue;
		go_on = (MPI_Wtime() - start < seconds || mine.nr < 24) && mine.nr < SAMPLES_MAX;
		MPI_Bcast(&go_on, 1, MPI_INT, 0, MPI_COMM_WORLD);
	}
	ret_samples->nr = mine.nr;
	MPI_Reduce(mine.value, ret_samples->value, mine.nr, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
	return batch;
}

static void print_row(const struct bench *b, const struct pattern *pattern, size_t size, int batch,
		      struct samples *samples)
{
	static const int percents[] = {2, 25, 50, 75, 98};
	double median;
	size_t i;

	if (b->job.rank)
		return;
	samples_sort(samples);
	printf("%zu %d %d", size, samples->nr, batch);
	for (i = 0; i < sizeof(percents) / sizeof(percents[0]); i++)
		printf(" %.4f", samples_percentile(samples, percents[i]) * 1e6);
	median = samples_percentile(samples, 50);
	if (pattern->volume)
		printf(" %d %.6f %.2f", pattern->volume, pattern->volume / median * 1e-6,
		       pattern->volume * (double)size / median * 1e-6);
	printf("\n");
	fflush(stdout);
}

static void print_head(const struct bench *b, const struct pattern *pattern)
{
	if (b->job.rank)
		return;
	printf("# table %s\n"
	       "size_B samples batch time_p2_us time_p25_us time_p50_us time_p75_us time_p98_us%s\n",
	       pattern->name, pattern->volume ? " messages rate_p50_Mps bandwidth_p50_MBps" : "");
}

static bool size_suits(const struct pattern *pattern, size_t size)
{
	if (pattern->kind == PATTERN_SYNC)
		return size == 0;
	return pattern->kind != PATTERN_REDUCE || size % 4 == 0;
}

static void measure_size(struct bench *b, const struct options *options,
			 const struct pattern *pattern, size_t size)
{
	static struct samples samples;
	int i, batch;

	b->call = 0;
	for (i = 0; i < options->checks; i++) {
		uint64_t call = b->call;

		verify(b, pattern, size);
		b->call = call + 1;
	}
	MPI_Barrier(MPI_COMM_WORLD);
	if (options->check_only)
		return;
	batch = sample(b, pattern, size, options->seconds, &samples);
	print_row(b, pattern, size, batch, &samples);
}

/* The size after SIZE, the INDEXth; more than max_size: there is none. */
static uint64_t next_size(const struct options *options, uint64_t size, int index)
{
	if (options->nr_sizes)
		return index + 1 < options->nr_sizes ? options->sizes[index + 1] : UINT64_MAX;
	return size ? size * 2 : 1;
}

static void measure(struct bench *b, const struct options *options, const struct pattern *pattern)
{
	uint64_t size = options->nr_sizes ? options->sizes[0] : options->min_size;
	int index, sizes = 0;

	if (!options->check_only)
		print_head(b, pattern);
	if (pattern->kind == PATTERN_SYNC)
		size = 0;
	for (index = 0; size <= options->max_size;
	     size = next_size(options, size, index), index++) {
		if (!size_suits(pattern, size))
			continue;
		sizes++;
		measure_size(b, options, pattern, size);
	}
	if (b->job.rank)
		return;
	if (!options->check_only)
		printf("# end %s\n", pattern->name);
	printf("# verified %s sizes %d runs %d\n", pattern->name, sizes, sizes * options->checks);
	fflush(stdout);
}

/* Is name in the comma-separated list? An empty list names everything. */
static bool listed(const char *list, const char *name)
{
	size_t length = strlen(name);
	const char *at;

	if (!list)
		return true;
	for (at = list; (at = strstr(at, name)); at += length)
		if ((at == list || at[-1] == ',') && (!at[length] || at[length] == ','))
			return true;
	return false;
}

static int options_check(const struct options *options)
{
	const char *at = options->names;
	size_t i, length;

	if (options->max_size > (64u << 20) || options->min_size > options->max_size)
		return -EINVAL;
	while (at && *at) {
		length = strcspn(at, ",");
		for (i = 0; i < NR_PATTERNS; i++)
			if (strlen(patterns[i].name) == length &&
			    !strncmp(patterns[i].name, at, length))
				break;
		if (i == NR_PATTERNS)
			return -EINVAL;
		at += length + (at[length] == ',');
	}
	return 0;
}

/* Sizes, separated by commas. TEXT is taken apart. Returns 0 or -EINVAL. */
static int sizes_parse(char *text, struct options *options)
{
	char *word, *rest = NULL;

	options->nr_sizes = 0;
	options->max_size = 0;
	for (word = strtok_r(text, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
		uint64_t *size = &options->sizes[options->nr_sizes];

		if (options->nr_sizes == SIZES_MAX || size_parse(word, size))
			return -EINVAL;
		options->max_size = *size > options->max_size ? *size : options->max_size;
		options->nr_sizes++;
	}
	options->min_size = 0;
	return options->nr_sizes ? 0 : -EINVAL;
}

static int options_parse(int argc, char **argv, struct options *ret_options)
{
	struct options options = {.max_size = 4u << 20, .seconds = 0.1, .checks = 2};
	double number;
	int option, ret = 0;

	opterr = 0;
	while (!ret && (option = getopt(argc, argv, "p:m:M:s:t:n:c")) != -1) {
		switch (option) {
		case 'p':
			options.names = optarg;
			break;
		case 'm':
			ret = size_parse(optarg, &options.min_size);
			break;
		case 'M':
			ret = size_parse(optarg, &options.max_size);
			break;
		case 's':
			ret = sizes_parse(optarg, &options);
			break;
		case 't':
			ret = number_parse(optarg, 0, 3600, &options.seconds);
			break;
		case 'n':
			ret = number_parse(optarg, 0, 1e6, &number);
			options.checks = ret ? 0 : (int)number;
			break;
		case 'c':
			options.check_only = true;
			break;
		default:
			ret = -EINVAL;
			break;
		}
	}
	if (ret || optind != argc || options_check(&options))
		return -EINVAL;
	*ret_options = options;
	return 0;
}

static void *allocate(const struct job *job, size_t bytes)
{
	void *memory;

	if (posix_memalign(&memory, 4096, bytes ? bytes : 1))
		job_fail(job, "no memory for %zu bytes", bytes);
	return memory;
}

static void bench_init(struct bench *b, const struct options *options)
{
	int half;

	MPI_Comm_rank(MPI_COMM_WORLD, &b->job.rank);
	MPI_Comm_size(MPI_COMM_WORLD, &b->job.nr_ranks);
	half = b->job.nr_ranks / 2;
	b->first = b->job.rank < half;
	b->partner = b->first ? b->job.rank + half : b->job.rank - half;
	if (b->job.rank >= 2 * half)
		b->partner = -1;
	b->nr_blocks = b->job.nr_ranks > 2 ? b->job.nr_ranks : 2;
	b->capacity = options->max_size * (size_t)b->nr_blocks;
	b->capacity = b->capacity < 4096 ? 4096 : b->capacity;
	b->send = allocate(&b->job, b->capacity);
	b->recv = allocate(&b->job, b->capacity + GUARD);
	b->deliveries = allocate(&b->job, sizeof(b->deliveries[0]) * (size_t)b->nr_blocks);
	b->counts = allocate(&b->job, 2 * sizeof(int) * (size_t)b->job.nr_ranks);
	b->offsets = allocate(&b->job, 2 * sizeof(int) * (size_t)b->job.nr_ranks);
}

int main(int argc, char **argv)
{
	static struct bench bench;
	struct options options = {0};
	size_t i;

	MPI_Init(&argc, &argv);
	job_help(argc, argv, usage);
	if (options_parse(argc, argv, &options)) {
		fputs(usage, stderr);
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	bench_init(&bench, &options);
	job_begin(&bench.job, "patterns");
	for (i = 0; i < NR_PATTERNS; i++)
		if (listed(options.names, patterns[i].name))
			measure(&bench, &options, &patterns[i]);
	free(bench.send);
	free(bench.recv);
	free(bench.deliveries);
	free(bench.counts);
	free(bench.offsets);
	job_end(&bench.job, "patterns");
	MPI_Finalize();
	return 0;
}
