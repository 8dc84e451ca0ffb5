// SPDX-License-Identifier: Apache-2.0
/*
 * The job of `nearmetal check performance`: it measures all ranks, or pairs of them side by side, as
 * the lines of its input order.
 *
 *   order    NUMBER QUANTITY SECONDS LIMIT [A:B ...]    on the input of rank 0
 *   answer   NUMBER VALUE ...                           on its output
 *
 * triad       GB/s of a[i] = b[i] + s * c[i], of each rank
 * dgemm       GFLOP/s of products of matrices, of each rank
 * latency     us of half a round trip of 8 bytes, of A to B and of B to A for each pair
 * bandwidth   MB/s of messages of 256 KiB, of A to B and of B to A for each pair
 *
 * A rank that has nothing to do sleeps. An order that takes longer than its limit ends the job, and so
 * does the line "end": Open MPI 5 does not pass on the end of the input.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>

#include "job.h"

#define LINE_MAX_BYTES (1 << 16)
#define PAIRS_MAX 4096
#define SMALL 8
#define LARGE ((size_t)256 << 10)
#define WINDOW 8
#define LEAST_WINDOWS 3
#define WARM_UP 10
#define ROUND_TRIPS_MAX (1 << 20)
#define MATRIX_LEAST 64
#define MATRIX_MOST 1024
#define ARRAY_MOST ((size_t)64 << 20)
#define ARRAY_LEAST ((size_t)1 << 20)
#define SHARE_OF_MEMORY 16 /* each of the three arrays, with all ranks of the kernel */
#define BOOT_ID 37
#define NAP_NS 200000
#define MORE_S 10 /* of alarm(), after the limit */

enum { TAG_PING = 1, TAG_MORE, TAG_DATA, TAG_DONE };
enum kind { TRIAD, DGEMM, LATENCY, BANDWIDTH, NR_KINDS };

static const char *const kinds[NR_KINDS] = {"triad", "dgemm", "latency", "bandwidth"};

/* cblas_dgemm of OpenBLAS. */
typedef void (*product)(int order, int ta, int tb, int m, int n, int k, double alpha,
			const double *a, int lda, const double *b, int ldb, double beta, double *c,
			int ldc);

struct order {
	long number;
	int kind;
	int nr_pairs;
	double seconds;
	double limit;
	int pairs[2 * PAIRS_MAX];
};

struct check {
	struct job job;
	struct order order;
	size_t elements; /* of each array of the triad */
	double *array[3];
	double *matrix[3];
	int side; /* of a matrix; 0: not known yet */
	product multiply;
	char *message;
	double *times;
};

static double now(void)
{
	struct timespec at;

	clock_gettime(CLOCK_MONOTONIC, &at);
	return (double)at.tv_sec + 1e-9 * (double)at.tv_nsec;
}

/* Waits without the processor: others of this node may measure. */
static void wait_asleep(MPI_Request *request)
{
	struct timespec nap = {0, NAP_NS};
	int done = 0;

	for (;;) {
		MPI_Test(request, &done, MPI_STATUS_IGNORE);
		if (done)
			return;
		nanosleep(&nap, NULL);
	}
}

static void meet(void)
{
	MPI_Request request;

	MPI_Ibarrier(MPI_COMM_WORLD, &request);
	wait_asleep(&request);
}

static void *room(const struct check *c, size_t bytes)
{
	void *found;

	if (posix_memalign(&found, 4096, bytes))
		job_fail(&c->job, "no memory for %zu bytes", bytes);
	memset(found, 0, bytes);
	return found;
}

/* --- Values of a rank ---------------------------------------------------------------------- */

static void pass_triad(double *restrict a, const double *restrict b, const double *restrict c,
		       size_t count)
{
	size_t i;

	for (i = 0; i < count; i++)
		a[i] = b[i] + 3.0 * c[i];
}

static double run_triad(struct check *c)
{
	double begin, spent;
	size_t i;
	int passes = 0;

	if (!c->array[0]) {
		for (i = 0; i < 3; i++)
			c->array[i] = room(c, c->elements * sizeof(double));
		for (i = 0; i < c->elements; i++)
			c->array[1][i] = c->array[2][i] = (double)(i & 1023);
	}
	pass_triad(c->array[0], c->array[1], c->array[2], c->elements);
	meet();
	begin = now();
	do {
		pass_triad(c->array[0], c->array[1], c->array[2], c->elements);
		passes++;
		spent = now() - begin;
	} while (spent < c->order.seconds);
	if (c->array[0][c->elements - 1] != 4.0 * c->array[1][c->elements - 1])
		job_fail(&c->job, "the triad has a wrong result");
	return 24e-9 * (double)c->elements * passes / spent;
}

/* Our own product, for nodes without OpenBLAS: rows of B stay in the caches. */
static void own_product(int order, int ta, int tb, int m, int n, int k, double alpha,
			const double *restrict a, int lda, const double *restrict b, int ldb,
			double beta, double *restrict c, int ldc)
{
	int i, j, l;

	(void)order;
	(void)ta;
	(void)tb;
	(void)beta;
	for (i = 0; i < m; i++) {
		memset(c + (size_t)i * ldc, 0, (size_t)n * sizeof(*c));
		for (l = 0; l < k; l++) {
			double factor = alpha * a[(size_t)i * lda + l];

			for (j = 0; j < n; j++)
				c[(size_t)i * ldc + j] += factor * b[(size_t)l * ldb + j];
		}
	}
}

static double multiply_once(struct check *c, int side)
{
	enum { ROW_MAJOR = 101, AS_IT_IS = 111 };
	double begin = now();

	c->multiply(ROW_MAJOR, AS_IT_IS, AS_IT_IS, side, side, side, 1.0, c->matrix[0], side,
		    c->matrix[1], side, 0.0, c->matrix[2], side);
	return now() - begin;
}

/* The largest side of which the slowest rank makes several products in the time of a value. */
static void choose_side(struct check *c)
{
	int side = MATRIX_LEAST, most = MATRIX_MOST, least;
	size_t i;

	/* A matrix is not larger than an array of the triad. */
	while ((size_t)most * most > c->elements)
		most /= 2;
	for (i = 0; i < 3; i++)
		c->matrix[i] = room(c, sizeof(double) * most * most);
	for (i = 0; i < (size_t)most * most; i++)
		c->matrix[0][i] = c->matrix[1][i] = 1.0;
	multiply_once(c, side);
	while (side < most && 8.0 * multiply_once(c, side) < c->order.seconds / 8.0)
		side *= 2;
	MPI_Allreduce(&side, &least, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
	c->side = least;
}

static double run_dgemm(struct check *c)
{
	double begin, spent, side;
	int products = 0;

	if (!c->side)
		choose_side(c);
	meet();
	begin = now();
	do {
		multiply_once(c, c->side);
		products++;
		spent = now() - begin;
	} while (spent < c->order.seconds);
	side = c->side;
	if (c->matrix[2][0] != side)
		job_fail(&c->job, "the product of matrices is wrong");
	return 2e-9 * side * side * side * products / spent;
}

/* --- Values of a pair ---------------------------------------------------------------------- */

static double ask(struct check *c, int peer)
{
	double end = now() + c->order.seconds;
	int count = 0;

	while (count < ROUND_TRIPS_MAX && (count < 2 * WARM_UP || now() < end)) {
		double begin = now();

		MPI_Send(c->message, SMALL, MPI_BYTE, peer, TAG_PING, MPI_COMM_WORLD);
		MPI_Recv(c->message, SMALL, MPI_BYTE, peer, TAG_PING, MPI_COMM_WORLD,
			 MPI_STATUS_IGNORE);
		c->times[count++] = now() - begin;
	}
	MPI_Send(c->message, 0, MPI_BYTE, peer, TAG_PING, MPI_COMM_WORLD);
	qsort(c->times + WARM_UP, (size_t)(count - WARM_UP), sizeof(*c->times), samples_compare);
	return 5e5 * c->times[WARM_UP + (count - WARM_UP) / 2];
}

static void echo(struct check *c, int peer)
{
	MPI_Status status;
	int length;

	for (;;) {
		MPI_Recv(c->message, SMALL, MPI_BYTE, peer, TAG_PING, MPI_COMM_WORLD, &status);
		MPI_Get_count(&status, MPI_BYTE, &length);
		if (!length)
			return;
		MPI_Send(c->message, SMALL, MPI_BYTE, peer, TAG_PING, MPI_COMM_WORLD);
	}
}

static void window(struct check *c, int peer, int receives)
{
	MPI_Request request[WINDOW];
	int i;

	for (i = 0; i < WINDOW; i++) {
		char *buffer = c->message + (size_t)i * LARGE;

		if (receives)
			MPI_Irecv(buffer, (int)LARGE, MPI_BYTE, peer, TAG_DATA, MPI_COMM_WORLD,
				  &request[i]);
		else
			MPI_Isend(buffer, (int)LARGE, MPI_BYTE, peer, TAG_DATA, MPI_COMM_WORLD,
				  &request[i]);
	}
	MPI_Waitall(WINDOW, request, MPI_STATUSES_IGNORE);
}

static void give(struct check *c, int peer)
{
	double end = now() + c->order.seconds;
	int count = 0, more = 1;

	while (more) {
		more = count < LEAST_WINDOWS || now() < end;
		MPI_Send(&more, 1, MPI_INT, peer, TAG_MORE, MPI_COMM_WORLD);
		if (more)
			window(c, peer, 0);
		count++;
		MPI_Recv(NULL, 0, MPI_BYTE, peer, TAG_DONE, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	}
}

static double take(struct check *c, int peer)
{
	double begin = 0, spent = 0;
	int count = 0, more = 1;

	while (more) {
		MPI_Recv(&more, 1, MPI_INT, peer, TAG_MORE, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		if (more) {
			window(c, peer, 1);
			/* The first one is to warm up. */
			if (count++)
				spent = now() - begin;
			else
				begin = now();
		}
		MPI_Send(NULL, 0, MPI_BYTE, peer, TAG_DONE, MPI_COMM_WORLD);
	}
	return 1e-6 * (double)LARGE * WINDOW * (count - 1) / spent;
}

/* Of the way from the first rank of the pair to the second, or back: the one that this rank knows. */
static double run_pair(struct check *c, int peer, int first)
{
	double value;

	if (c->order.kind == LATENCY) {
		if (!first)
			echo(c, peer);
		value = ask(c, peer);
		if (first)
			echo(c, peer);
		return value;
	}
	if (first)
		give(c, peer);
	value = take(c, peer);
	if (!first)
		give(c, peer);
	return value;
}

/* --- Orders -------------------------------------------------------------------------------- */

/* Reads an order; returns whether there was one. */
static int next_order(struct check *c, char *line)
{
	struct order *o = &c->order;
	char name[16];
	int used = 0, more = 0, *pair;

	if (!fgets(line, LINE_MAX_BYTES, stdin) || !strcmp(line, "end\n"))
		return 0;
	if (sscanf(line, "%ld %15s %lf %lf%n", &o->number, name, &o->seconds, &o->limit, &used) !=
	    4)
		job_fail(&c->job, "an order that cannot be read");
	for (o->kind = 0; o->kind < NR_KINDS && strcmp(kinds[o->kind], name); o->kind++)
		;
	if (o->kind == NR_KINDS || !(o->seconds > 0 && o->seconds < 3600) ||
	    !(o->limit > 0 && o->limit < 86400))
		job_fail(&c->job, "an order with wrong words");
	pair = o->pairs;
	for (o->nr_pairs = 0; sscanf(line + used, " %d:%d%n", pair, pair + 1, &more) == 2;
	     used += more, pair += 2)
		if (++o->nr_pairs == PAIRS_MAX || pair[0] < 0 || pair[1] < 0 ||
		    pair[0] == pair[1] || pair[0] >= c->job.nr_ranks || pair[1] >= c->job.nr_ranks)
			job_fail(&c->job, "an order with wrong pairs");
	return 1;
}

static double carry_out(struct check *c)
{
	const struct order *o = &c->order;
	int i;

	if (o->kind == TRIAD)
		return run_triad(c);
	if (o->kind == DGEMM)
		return run_dgemm(c);
	meet();
	for (i = 0; i < o->nr_pairs; i++) {
		if (o->pairs[2 * i] == c->job.rank)
			return run_pair(c, o->pairs[2 * i + 1], 1);
		if (o->pairs[2 * i + 1] == c->job.rank)
			return run_pair(c, o->pairs[2 * i], 0);
	}
	return 0;
}

static void print_answer(const struct check *c, const double *values)
{
	const struct order *o = &c->order;
	int i;

	printf("%ld", o->number);
	if (o->kind == TRIAD || o->kind == DGEMM)
		for (i = 0; i < c->job.nr_ranks; i++)
			printf(" %.9g", values[i]);
	for (i = 0; i < o->nr_pairs; i++) {
		int sender = o->kind == LATENCY ? 0 : 1; /* of a bandwidth, the receiver knows */

		printf(" %.9g %.9g", values[o->pairs[2 * i + sender]],
		       values[o->pairs[2 * i + !sender]]);
	}
	printf("\n");
	fflush(stdout);
}

static void serve(struct check *c)
{
	char *line = c->job.rank ? NULL : room(c, LINE_MAX_BYTES);
	double value,
		*values = c->job.rank ? NULL : room(c, (size_t)c->job.nr_ranks * sizeof(double));
	MPI_Request request;

	for (;;) {
		if (!c->job.rank && !next_order(c, line))
			c->order.kind = NR_KINDS;
		MPI_Ibcast(&c->order, (int)sizeof(c->order), MPI_BYTE, 0, MPI_COMM_WORLD, &request);
		wait_asleep(&request);
		if (c->order.kind == NR_KINDS)
			break;
		alarm((unsigned)c->order.limit + MORE_S);
		value = carry_out(c);
		MPI_Igather(&value, 1, MPI_DOUBLE, values, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD,
			    &request);
		wait_asleep(&request);
		alarm(0);
		if (!c->job.rank)
			print_answer(c, values);
	}
	free(line);
	free(values);
}

/* Memory that programs can get without swapping, caches of files included; -1: not known. */
static long long available_memory(void)
{
	FILE *file = fopen("/proc/meminfo", "re");
	long long kib = -1;
	char line[256];

	while (file && fgets(line, sizeof(line), file) &&
	       sscanf(line, "MemAvailable: %lld kB", &kib) != 1)
		;
	if (file)
		fclose(file);
	return kib < 0 ? -1 : kib << 10;
}

/* The ranks that share memory with this one: nodes that are containers may share a kernel. */
static int ranks_of_kernel(const struct check *c)
{
	char(*all)[BOOT_ID] = room(c, (size_t)c->job.nr_ranks * BOOT_ID);
	FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
	char own[BOOT_ID] = "";
	int i, found = 0;

	if (file) {
		if (!fgets(own, sizeof(own), file))
			own[0] = 0;
		fclose(file);
	}
	MPI_Allgather(own, BOOT_ID, MPI_BYTE, all, BOOT_ID, MPI_BYTE, MPI_COMM_WORLD);
	for (i = 0; i < c->job.nr_ranks; i++)
		found += !memcmp(all[i], own, BOOT_ID);
	free(all);
	return found;
}

/* Small beside the memory of any node. The arrays of all ranks and their matrices are six of them. */
static void choose_arrays(struct check *c)
{
	long long least, bytes = available_memory() / SHARE_OF_MEMORY / ranks_of_kernel(c);

	if (bytes > (long long)ARRAY_MOST)
		bytes = (long long)ARRAY_MOST;
	MPI_Allreduce(&bytes, &least, 1, MPI_LONG_LONG, MPI_MIN, MPI_COMM_WORLD);
	if (least < (long long)ARRAY_LEAST)
		job_fail(&c->job, "a node has too little free memory");
	c->elements = (size_t)least / sizeof(double);
}

/* OpenBLAS, if all nodes have it; returns how many ranks do not. */
static int choose_product(struct check *c)
{
	void *library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
	void *found = library ? dlsym(library, "cblas_dgemm") : NULL;
	int lacks = !found, all;

	MPI_Allreduce(&lacks, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	c->multiply = own_product;
	if (!all)
		memcpy(&c->multiply, &found, sizeof(found));
	return all;
}

int main(int argc, char **argv)
{
	static struct check c;
	int lacking;

	/* A rank is one core: OpenBLAS reads this when it is loaded. */
	setenv("OPENBLAS_NUM_THREADS", "1", 1);
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &c.job.rank);
	MPI_Comm_size(MPI_COMM_WORLD, &c.job.nr_ranks);
	job_help(argc, argv, "usage: mpi_check  (orders on standard input, see its source)\n");
	c.message = room(&c, LARGE * WINDOW);
	c.times = room(&c, ROUND_TRIPS_MAX * sizeof(*c.times));
	choose_arrays(&c);
	lacking = choose_product(&c);
	if (!c.job.rank) {
		printf("mpi_check 1 %d %zu %d\n", c.job.nr_ranks, c.elements * sizeof(double) >> 20,
		       lacking);
		fflush(stdout);
	}
	serve(&c);
	MPI_Finalize();
	return 0;
}
