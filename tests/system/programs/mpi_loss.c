/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks repeat one operation with values that show whether it was right, and one rank kills itself
 * in the middle. Errors are returned. A survivor that gets one notes it and leaves.
 *
 *   mpi_loss OPERATION SEED RECORDS HOLD
 *
 * RECORDS is a file of one struct record per rank that all ranks map. It outlives them all. SEED
 * says which rank dies, and when. `sh HOLD RECORDS PROGRAM ARGUMENTS...` is how children start.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <mpi.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define RANKS_MAX 8
#define COUNT_MAX 30000
#define BARRIER_EVERY 4
/* An operation that takes longer than this hangs. */
#define HANG_S 30
#define WRONG_ENOUGH 1000

enum state { RUNS = 1, DIES, STOPPED, HANGS, ENDLESS };

struct record {
	uint64_t state;	  /* enum state */
	uint64_t entered; /* operations that it has begun */
	uint64_t right;	  /* operations that returned success, and their data was right */
	uint64_t wrong;	  /* operations that returned success with wrong data */
	uint64_t first;	  /* the first of those */
	uint64_t error;	  /* error class that ended it */
};

static struct record *records;
static int me, size, victim, is_child;
static uint64_t dies_at, delay_ns;
static int64_t in[RANKS_MAX * COUNT_MAX], out[RANKS_MAX * COUNT_MAX];
static int counts[RANKS_MAX], places[RANKS_MAX];
static MPI_Comm comm = MPI_COMM_NULL;
static MPI_Win window = MPI_WIN_NULL;
static int64_t *memory;
static MPI_File file = MPI_FILE_NULL;

static int64_t value(int rank, uint64_t round, int index)
{
	return (int64_t)rank * 1000003 + (int64_t)round * 4099 + index;
}

/* The sum of value() over ranks 0 to LAST. */
static int64_t sum_to(int last, uint64_t round, int index)
{
	int64_t all = 0;

	for (int rank = 0; rank <= last; rank++)
		all += value(rank, round, index);
	return all;
}

static void fill(int64_t *to, int rank, uint64_t round, int count)
{
	for (int i = 0; i < count; i++)
		to[i] = value(rank, round, i);
}

static int is_filled(const int64_t *from, int rank, uint64_t round, int count)
{
	for (int i = 0; i < count; i++)
		if (from[i] != value(rank, round, i))
			return 0;
	return 1;
}

/* What an operation found in its output. */
struct verdict {
	int code; /* of MPI */
	int right;
};

static struct verdict failed(int code)
{
	return (struct verdict){code, 0};
}

static struct verdict found(int right)
{
	return (struct verdict){MPI_SUCCESS, right};
}

static int count_of(uint64_t round)
{
	static const int sizes[] = {1, 100, 3000, COUNT_MAX};

	return sizes[round % 4];
}

static int root_of(uint64_t round)
{
	return (int)(round / 4 % (uint64_t)size);
}

/* A part of its own size for every rank. */
static void lay_out(int count)
{
	int place = 0;

	for (int rank = 0; rank < size; rank++) {
		counts[rank] = count - (count * rank) / (size + 1);
		places[rank] = place;
		place += counts[rank];
	}
}

/* Nobody leaves before everybody has come. */
static struct verdict op_barrier(uint64_t round)
{
	int code = MPI_Barrier(comm);

	for (int rank = 0; !code && rank < size; rank++)
		if (__atomic_load_n(&records[rank].entered, __ATOMIC_ACQUIRE) < round)
			return found(0);
	return code ? failed(code) : found(1);
}

static struct verdict op_bcast(uint64_t round)
{
	int count = count_of(round), root = root_of(round), code;

	fill(in, me, round, count);
	code = MPI_Bcast(in, count, MPI_INT64_T, root, comm);
	return code ? failed(code) : found(is_filled(in, root, round, count));
}

static struct verdict check_sums(int code, uint64_t round, int first, int count, int last)
{
	for (int i = 0; !code && i < count; i++)
		if (in[i] != sum_to(last, round, first + i))
			return found(0);
	return code ? failed(code) : found(1);
}

static struct verdict op_reduce(uint64_t round)
{
	int count = count_of(round), root = root_of(round), code;

	fill(out, me, round, count);
	memset(in, 0, (size_t)count * sizeof(*in));
	code = MPI_Reduce(out, in, count, MPI_INT64_T, MPI_SUM, root, comm);
	return check_sums(code, round, 0, me == root ? count : 0, size - 1);
}

static struct verdict op_allreduce(uint64_t round)
{
	int count = count_of(round), code;

	fill(out, me, round, count);
	memset(in, 0, (size_t)count * sizeof(*in));
	code = MPI_Allreduce(out, in, count, MPI_INT64_T, MPI_SUM, comm);
	return check_sums(code, round, 0, count, size - 1);
}

static struct verdict op_scan(uint64_t round)
{
	int count = count_of(round), code;

	fill(out, me, round, count);
	memset(in, 0, (size_t)count * sizeof(*in));
	code = MPI_Scan(out, in, count, MPI_INT64_T, MPI_SUM, comm);
	return check_sums(code, round, 0, count, me);
}

static struct verdict op_reduce_scatter(uint64_t round)
{
	int count = count_of(round), code;

	lay_out(count);
	fill(out, me, round, places[size - 1] + counts[size - 1]);
	memset(in, 0, (size_t)count * sizeof(*in));
	code = MPI_Reduce_scatter(out, in, counts, MPI_INT64_T, MPI_SUM, comm);
	return check_sums(code, round, places[me], counts[me], size - 1);
}

/* The part of every rank is where lay_out() put it, and came from RANK or from them. */
static struct verdict check_parts(int code, uint64_t round, int root)
{
	for (int rank = 0; !code && (root < 0 || root == me) && rank < size; rank++)
		if (!is_filled(in + places[rank], rank, round, counts[rank]))
			return found(0);
	return code ? failed(code) : found(1);
}

static void even(int count)
{
	for (int rank = 0; rank < size; rank++) {
		counts[rank] = count;
		places[rank] = rank * count;
	}
}

static void prepare_parts(uint64_t round, int is_even)
{
	(is_even ? even : lay_out)(count_of(round));
	fill(out, me, round, counts[me]);
	memset(in, 0, (size_t)(places[size - 1] + counts[size - 1]) * sizeof(*in));
}

static struct verdict op_gather(uint64_t round)
{
	int root = root_of(round), code;

	prepare_parts(round, 1);
	code = MPI_Gather(out, counts[me], MPI_INT64_T, in, counts[me], MPI_INT64_T, root, comm);
	return check_parts(code, round, root);
}

static struct verdict op_gatherv(uint64_t round)
{
	int root = root_of(round), code;

	prepare_parts(round, 0);
	code = MPI_Gatherv(out, counts[me], MPI_INT64_T, in, counts, places, MPI_INT64_T, root,
			   comm);
	return check_parts(code, round, root);
}

static struct verdict op_allgather(uint64_t round)
{
	int code;

	prepare_parts(round, 1);
	code = MPI_Allgather(out, counts[me], MPI_INT64_T, in, counts[me], MPI_INT64_T, comm);
	return check_parts(code, round, -1);
}

static struct verdict op_allgatherv(uint64_t round)
{
	int code;

	prepare_parts(round, 0);
	code = MPI_Allgatherv(out, counts[me], MPI_INT64_T, in, counts, places, MPI_INT64_T, comm);
	return check_parts(code, round, -1);
}

/* Of each rank's part, what RANK sent to RECEIVER. */
static uint64_t way(uint64_t round, int receiver)
{
	return round * RANKS_MAX + (uint64_t)receiver;
}

static struct verdict scattered(int code, uint64_t round, int root)
{
	if (code)
		return failed(code);
	return found(is_filled(in, root, way(round, me), counts[me]));
}

static void prepare_ways(uint64_t round, int is_even)
{
	(is_even ? even : lay_out)(count_of(round));
	for (int rank = 0; rank < size; rank++)
		fill(out + places[rank], me, way(round, rank), counts[rank]);
	memset(in, 0, (size_t)counts[me] * sizeof(*in));
}

static struct verdict op_scatter(uint64_t round)
{
	int root = root_of(round), code;

	prepare_ways(round, 1);
	code = MPI_Scatter(out, counts[me], MPI_INT64_T, in, counts[me], MPI_INT64_T, root, comm);
	return scattered(code, round, root);
}

static struct verdict op_scatterv(uint64_t round)
{
	int root = root_of(round), code;

	prepare_ways(round, 0);
	code = MPI_Scatterv(out, counts, places, MPI_INT64_T, in, counts[me], MPI_INT64_T, root,
			    comm);
	return scattered(code, round, root);
}

static struct verdict op_alltoall(uint64_t round)
{
	int code, right = 1;

	prepare_ways(round, 1);
	memset(in, 0, (size_t)(size * counts[me]) * sizeof(*in));
	code = MPI_Alltoall(out, counts[me], MPI_INT64_T, in, counts[me], MPI_INT64_T, comm);
	for (int rank = 0; !code && rank < size; rank++)
		right &= is_filled(in + places[rank], rank, way(round, me), counts[me]);
	return code ? failed(code) : found(right);
}

static struct verdict op_alltoallv(uint64_t round)
{
	int in_counts[RANKS_MAX], in_places[RANKS_MAX], code, right = 1;

	prepare_ways(round, 0);
	for (int rank = 0; rank < size; rank++) {
		in_counts[rank] = counts[me];
		in_places[rank] = rank * counts[me];
	}
	memset(in, 0, (size_t)(size * counts[me]) * sizeof(*in));
	code = MPI_Alltoallv(out, counts, places, MPI_INT64_T, in, in_counts, in_places,
			     MPI_INT64_T, comm);
	for (int rank = 0; !code && rank < size; rank++)
		right &= is_filled(in + in_places[rank], rank, way(round, me), counts[me]);
	return code ? failed(code) : found(right);
}

/* Every rank's window has one part; the neighbour above works on it. */
static int below(void)
{
	return (me + 1) % size;
}

static int above(void)
{
	return (me + size - 1) % size;
}

static struct verdict op_put(uint64_t round)
{
	int count = count_of(round), code;

	fill(out, me, round, count);
	memset(memory, 0, (size_t)count * sizeof(*memory));
	code = MPI_Win_fence(0, window);
	if (!code)
		code = MPI_Put(out, count, MPI_INT64_T, below(), 0, count, MPI_INT64_T, window);
	if (!code)
		code = MPI_Win_fence(0, window);
	return code ? failed(code) : found(is_filled(memory, above(), round, count));
}

static struct verdict op_get(uint64_t round)
{
	int count = count_of(round), code;

	fill(memory, me, round, count);
	memset(in, 0, (size_t)count * sizeof(*in));
	code = MPI_Win_fence(0, window);
	if (!code)
		code = MPI_Get(in, count, MPI_INT64_T, below(), 0, count, MPI_INT64_T, window);
	if (!code)
		code = MPI_Win_fence(0, window);
	return code ? failed(code) : found(is_filled(in, below(), round, count));
}

static struct verdict op_accumulate(uint64_t round)
{
	int count = count_of(round), code;

	fill(out, me, round, count);
	memset(memory, 0, (size_t)count * sizeof(*memory));
	code = MPI_Win_fence(0, window);
	for (int rank = 0; !code && rank < size; rank++)
		code = MPI_Accumulate(out, count, MPI_INT64_T, rank, 0, count, MPI_INT64_T, MPI_SUM,
				      window);
	if (!code)
		code = MPI_Win_fence(0, window);
	for (int i = 0; !code && i < count; i++)
		if (memory[i] != sum_to(size - 1, round, i))
			return found(0);
	return code ? failed(code) : found(1);
}

/* A counter in each window, which only the neighbour above counts. */
static struct verdict op_fetch(uint64_t round)
{
	int64_t one = 1, before = -1;
	int code = MPI_Win_lock(MPI_LOCK_EXCLUSIVE, below(), 0, window);

	if (!code)
		code = MPI_Fetch_and_op(&one, &before, MPI_INT64_T, below(), 0, MPI_SUM, window);
	if (!code)
		code = MPI_Win_unlock(below(), window);
	return code ? failed(code) : found(before == (int64_t)round - 1);
}

/* The view of each rank is every size-th element, so that ranks write for each other. */
static struct verdict op_file(uint64_t round)
{
	int count = count_of(round), code;

	fill(out, me, round, count);
	memset(in, 0, (size_t)count * sizeof(*in));
	code = MPI_File_write_at_all(file, 0, out, count, MPI_INT64_T, MPI_STATUS_IGNORE);
	if (!code)
		code = MPI_File_read_at_all(file, 0, in, count, MPI_INT64_T, MPI_STATUS_IGNORE);
	return code ? failed(code) : found(is_filled(in, me, round, count));
}

static const struct {
	const char *name;
	struct verdict (*run)(uint64_t round);
	int uses_window, uses_file, spawns;
} operations[] = {
	{.name = "barrier", .run = op_barrier},
	{.name = "bcast", .run = op_bcast},
	{.name = "reduce", .run = op_reduce},
	{.name = "allreduce", .run = op_allreduce},
	{.name = "scan", .run = op_scan},
	{.name = "reduce_scatter", .run = op_reduce_scatter},
	{.name = "gather", .run = op_gather},
	{.name = "gatherv", .run = op_gatherv},
	{.name = "scatter", .run = op_scatter},
	{.name = "scatterv", .run = op_scatterv},
	{.name = "allgather", .run = op_allgather},
	{.name = "allgatherv", .run = op_allgatherv},
	{.name = "alltoall", .run = op_alltoall},
	{.name = "alltoallv", .run = op_alltoallv},
	{.name = "put", .run = op_put, .uses_window = 1},
	{.name = "get", .run = op_get, .uses_window = 1},
	{.name = "accumulate", .run = op_accumulate, .uses_window = 1},
	{.name = "fetch", .run = op_fetch, .uses_window = 1},
	{.name = "file", .run = op_file, .uses_file = 1},
	{.name = "spawn", .run = op_allreduce, .spawns = 1},
};

static void on_alarm(int signal)
{
	static uint64_t last = UINT64_MAX;
	static int looks;

	(void)signal;
	if (last == records[me].entered || ++looks == 3) {
		records[me].state = last == records[me].entered ? HANGS : ENDLESS;
		_exit(3);
	}
	last = records[me].entered;
	alarm(HANG_S / 2);
}

/* The kernel kills this process at an instant that no operation knows. */
static void arm(void)
{
	struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGKILL};
	struct itimerspec when = {.it_value.tv_nsec = (long)delay_ns};
	timer_t timer;

	records[me].state = DIES;
	if (timer_create(CLOCK_MONOTONIC, &event, &timer) || timer_settime(timer, 0, &when, NULL))
		_exit(4);
}

static void stop(int code)
{
	int class = code;

	MPI_Error_class(code, &class);
	records[me].error = (uint64_t) class;
	records[me].state = STOPPED;
	/* No MPI_Finalize(): it would wait for the dead. */
	_exit(0);
}

static void account(struct verdict verdict, uint64_t round)
{
	if (verdict.code)
		stop(verdict.code);
	if (verdict.right) {
		records[me].right++;
		return;
	}
	if (!records[me].wrong++)
		records[me].first = round;
	if (records[me].wrong == WRONG_ENOUGH)
		stop(MPI_SUCCESS);
}

static void run(struct verdict (*operation)(uint64_t round))
{
	for (uint64_t round = 1;; round++) {
		__atomic_store_n(&records[me].entered, round, __ATOMIC_RELEASE);
		if (me == victim && round == dies_at)
			arm();
		account(operation(round), round);
		/* A rank that only sends does not run ahead for ever. */
		if (round % BARRIER_EVERY == 0)
			account(op_barrier(round), round);
	}
}

/* The child is the last rank of all, and the victim. */
static void join(char **argv)
{
	MPI_Comm parent, both;
	char *args[] = {argv[4], argv[3], argv[0], argv[1], argv[2], argv[3], argv[4], NULL};

	MPI_Comm_get_parent(&parent);
	is_child = parent != MPI_COMM_NULL;
	if (is_child)
		both = parent;
	else
		MPI_Comm_spawn("/bin/sh", args, 1, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &both,
			       MPI_ERRCODES_IGNORE);
	MPI_Intercomm_merge(both, is_child, &comm);
}

static void open_file(const char *name)
{
	MPI_Datatype view;
	char path[4096];

	snprintf(path, sizeof(path), "%s.data", name);
	if (MPI_File_open(comm, path, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file))
		_exit(5);
	MPI_File_set_errhandler(file, MPI_ERRORS_RETURN);
	MPI_Type_vector(COUNT_MAX, 1, size, MPI_INT64_T, &view);
	MPI_Type_commit(&view);
	MPI_File_set_view(file, (MPI_Offset)me * 8, MPI_INT64_T, view, "native", MPI_INFO_NULL);
}

static void open_window(void)
{
	MPI_Win_allocate(COUNT_MAX * sizeof(*memory), sizeof(*memory), MPI_INFO_NULL, comm, &memory,
			 &window);
	memset(memory, 0, COUNT_MAX * sizeof(*memory));
	MPI_Win_set_errhandler(window, MPI_ERRORS_RETURN);
}

static uint64_t random_below(uint64_t *state, uint64_t limit)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return (*state >> 33) % limit;
}

int main(int argc, char **argv)
{
	uint64_t seed;
	size_t i;
	int fd;

	MPI_Init(&argc, &argv);
	if (argc != 5)
		MPI_Abort(MPI_COMM_WORLD, 2);
	for (i = 0; strcmp(operations[i].name, argv[1]) != 0;)
		if (++i == sizeof(operations) / sizeof(*operations))
			MPI_Abort(MPI_COMM_WORLD, 2);
	comm = MPI_COMM_WORLD;
	if (operations[i].spawns)
		join(argv);
	MPI_Comm_rank(comm, &me);
	MPI_Comm_size(comm, &size);
	MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
	MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
	fd = open(argv[3], O_RDWR | O_CREAT, 0600);
	if (fd < 0 || ftruncate(fd, RANKS_MAX * sizeof(*records)))
		MPI_Abort(MPI_COMM_WORLD, 2);
	records =
		mmap(NULL, RANKS_MAX * sizeof(*records), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (size > RANKS_MAX || records == MAP_FAILED)
		MPI_Abort(MPI_COMM_WORLD, 2);
	seed = strtoull(argv[2], NULL, 10);
	victim = (int)random_below(&seed, (uint64_t)size);
	if (operations[i].spawns)
		victim = size - 1;
	dies_at = 20 + random_below(&seed, 40);
	delay_ns = 1000 + random_below(&seed, 400000);
	if (operations[i].uses_window)
		open_window();
	if (operations[i].uses_file)
		open_file(argv[3]);
	MPI_Barrier(comm);
	records[me].state = RUNS;
	signal(SIGALRM, on_alarm);
	alarm(HANG_S / 2);
	run(operations[i].run);
	return 0;
}
