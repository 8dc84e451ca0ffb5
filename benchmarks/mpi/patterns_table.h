/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The communication patterns of mpi_patterns: how each is run and what it must have delivered.
 *
 * Point-to-point patterns pair rank r with r + n/2, so with ranks placed node by node every pair
 * crosses nodes. Collectives move their root from call to call.
 */
#ifndef NM_BENCH_PATTERNS_TABLE_H
#define NM_BENCH_PATTERNS_TABLE_H

#include "job.h"

#define WINDOW_MAX 64
#define WINDOW_BYTES ((size_t)4 << 20)

enum { TAG_PING = 11, TAG_WINDOW = 12, TAG_DONE = 13, TAG_RING = 14 };

/* What must lie in recv[at, at+bytes) after a run: send[from, ...) of that rank. */
struct delivery {
	size_t at, bytes, from;
	int rank;
};

struct bench {
	struct job job;
	int partner;	 /* -1: this rank idles in point-to-point patterns */
	bool first;	 /* of its pair: sends first */
	uint64_t call;	 /* counts the runs of the current pattern: moves the root */
	size_t capacity; /* bytes in each buffer */
	char *send;
	char *recv;
	int nr_blocks; /* of the largest message that each buffer holds: ranks, at least two */
	struct delivery *deliveries; /* nr_blocks: room for what expect() lists */
	int *counts, *offsets;	     /* two of each per rank, for alltoallv */
	MPI_Request request[2 * WINDOW_MAX];
};

enum pattern_kind { PATTERN_PAIR, PATTERN_RING, PATTERN_MOVE, PATTERN_REDUCE, PATTERN_SYNC };

struct pattern {
	const char *name;
	enum pattern_kind kind;
	int volume; /* messages of the given size that count for rate and bandwidth; 0: neither */
	/* Runs once; returns how many operations that was (a window counts its messages). */
	int (*run)(struct bench *bench, size_t size);
	/* Lists what the last run delivered to this rank; returns how many entries. */
	int (*expect)(const struct bench *bench, size_t size, struct delivery *ret_list);
};

static inline int window_size(size_t size)
{
	size_t fits = size ? WINDOW_BYTES / size : WINDOW_MAX;

	return fits > WINDOW_MAX ? WINDOW_MAX : fits < 2 ? 2 : (int)fits;
}

static inline char *window_slot(const struct bench *bench, char *buffer, size_t size, int i)
{
	size_t slots = size ? bench->capacity / size : 1;

	return buffer + (size_t)i % slots * size;
}

static int run_pingpong(struct bench *b, size_t size)
{
	int n = (int)size;

	if (b->first)
		MPI_Send(b->send, n, MPI_BYTE, b->partner, TAG_PING, MPI_COMM_WORLD);
	MPI_Recv(b->recv, n, MPI_BYTE, b->partner, TAG_PING, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	if (!b->first)
		MPI_Send(b->send, n, MPI_BYTE, b->partner, TAG_PING, MPI_COMM_WORLD);
	return 2;
}

static int run_pingping(struct bench *b, size_t size)
{
	int n = (int)size;

	MPI_Isend(b->send, n, MPI_BYTE, b->partner, TAG_PING, MPI_COMM_WORLD, b->request);
	MPI_Recv(b->recv, n, MPI_BYTE, b->partner, TAG_PING, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	MPI_Wait(b->request, MPI_STATUS_IGNORE);
	return 1;
}

static int post_window(struct bench *b, size_t size, bool sends, bool receives)
{
	int i, nr = 0, window = window_size(size), n = (int)size;

	for (i = 0; receives && i < window; i++)
		MPI_Irecv(window_slot(b, b->recv, size, i), n, MPI_BYTE, b->partner, TAG_WINDOW,
			  MPI_COMM_WORLD, &b->request[nr++]);
	for (i = 0; sends && i < window; i++)
		MPI_Isend(window_slot(b, b->send, size, i), n, MPI_BYTE, b->partner, TAG_WINDOW,
			  MPI_COMM_WORLD, &b->request[nr++]);
	MPI_Waitall(nr, b->request, MPI_STATUSES_IGNORE);
	return window;
}

static int run_uniband(struct bench *b, size_t size)
{
	int window = post_window(b, size, b->first, !b->first);

	if (b->first)
		MPI_Recv(NULL, 0, MPI_BYTE, b->partner, TAG_DONE, MPI_COMM_WORLD,
			 MPI_STATUS_IGNORE);
	else
		MPI_Send(NULL, 0, MPI_BYTE, b->partner, TAG_DONE, MPI_COMM_WORLD);
	return window;
}

static int run_biband(struct bench *b, size_t size)
{
	return post_window(b, size, true, true);
}

static int run_sendrecv(struct bench *b, size_t size)
{
	int n = b->job.nr_ranks, r = b->job.rank;

	MPI_Sendrecv(b->send, (int)size, MPI_BYTE, (r + 1) % n, TAG_RING, b->recv, (int)size,
		     MPI_BYTE, (r + n - 1) % n, TAG_RING, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	return 1;
}

/* Both neighbours at once. With two ranks they are the same one, and order tells them apart. */
static int run_exchange(struct bench *b, size_t size)
{
	int n = b->job.nr_ranks, r = b->job.rank, bytes = (int)size;
	int left = (r + n - 1) % n, right = (r + 1) % n;

	MPI_Irecv(b->recv, bytes, MPI_BYTE, left, TAG_RING, MPI_COMM_WORLD, &b->request[0]);
	MPI_Irecv(b->recv + size, bytes, MPI_BYTE, right, TAG_RING, MPI_COMM_WORLD, &b->request[1]);
	MPI_Isend(b->send, bytes, MPI_BYTE, right, TAG_RING, MPI_COMM_WORLD, &b->request[2]);
	MPI_Isend(b->send + size, bytes, MPI_BYTE, left, TAG_RING, MPI_COMM_WORLD, &b->request[3]);
	MPI_Waitall(4, b->request, MPI_STATUSES_IGNORE);
	return 1;
}

static int moving_root(const struct bench *b, uint64_t call)
{
	return (int)(call % (uint64_t)b->job.nr_ranks);
}

/* The root sends from its send buffer, so that both buffers keep their meaning. */
static int run_bcast(struct bench *b, size_t size)
{
	int root = moving_root(b, b->call++);

	MPI_Bcast(root == b->job.rank ? b->send : b->recv, (int)size, MPI_BYTE, root,
		  MPI_COMM_WORLD);
	return 1;
}

static int run_allreduce(struct bench *b, size_t size)
{
	MPI_Allreduce(b->send, b->recv, (int)(size / 4), MPI_UNSIGNED, MPI_SUM, MPI_COMM_WORLD);
	return 1;
}

static int run_reduce(struct bench *b, size_t size)
{
	MPI_Reduce(b->send, b->recv, (int)(size / 4), MPI_UNSIGNED, MPI_SUM,
		   moving_root(b, b->call++), MPI_COMM_WORLD);
	return 1;
}

static int run_allgather(struct bench *b, size_t size)
{
	MPI_Allgather(b->send, (int)size, MPI_BYTE, b->recv, (int)size, MPI_BYTE, MPI_COMM_WORLD);
	return 1;
}

static int run_alltoall(struct bench *b, size_t size)
{
	MPI_Alltoall(b->send, (int)size, MPI_BYTE, b->recv, (int)size, MPI_BYTE, MPI_COMM_WORLD);
	return 1;
}

/* Every other pair exchanges half the size, and blocks lie in reverse order. */
static size_t uneven_bytes(size_t size, int from, int to)
{
	return (from + to) % 2 ? size : size / 2;
}

static int run_alltoallv(struct bench *b, size_t size)
{
	int i, n = b->job.nr_ranks, r = b->job.rank;

	for (i = 0; i < n; i++) {
		b->counts[i] = (int)uneven_bytes(size, r, i);
		b->counts[n + i] = (int)uneven_bytes(size, i, r);
		b->offsets[i] = (int)size * (n - 1 - i);
		b->offsets[n + i] = (int)size * (n - 1 - i);
	}
	MPI_Alltoallv(b->send, b->counts, b->offsets, MPI_BYTE, b->recv, b->counts + n,
		      b->offsets + n, MPI_BYTE, MPI_COMM_WORLD);
	return 1;
}

static int run_barrier(struct bench *b, size_t size)
{
	(void)b;
	(void)size;
	MPI_Barrier(MPI_COMM_WORLD);
	return 1;
}

static int expect_partner(const struct bench *b, size_t size, struct delivery *ret_list)
{
	ret_list[0] = (struct delivery){0, size, 0, b->partner};
	return 1;
}

static int expect_window(const struct bench *b, size_t size, struct delivery *ret_list)
{
	size_t slots = size ? b->capacity / size : 1;
	size_t used = (size_t)window_size(size) < slots ? (size_t)window_size(size) : slots;

	ret_list[0] = (struct delivery){0, size * used, 0, b->partner};
	return 1;
}

static int expect_uniband(const struct bench *b, size_t size, struct delivery *ret_list)
{
	return b->first ? 0 : expect_window(b, size, ret_list);
}

static int expect_sendrecv(const struct bench *b, size_t size, struct delivery *ret_list)
{
	int n = b->job.nr_ranks;

	ret_list[0] = (struct delivery){0, size, 0, (b->job.rank + n - 1) % n};
	return 1;
}

/* The left neighbour sent us its first block, the right one its second; when both are one rank
 * (or ourselves), its first message meets our first receive. */
static int expect_exchange(const struct bench *b, size_t size, struct delivery *ret_list)
{
	int n = b->job.nr_ranks, r = b->job.rank;

	ret_list[0] = (struct delivery){0, size, 0, (r + n - 1) % n};
	ret_list[1] = (struct delivery){size, size, size, (r + 1) % n};
	return 2;
}

static int expect_bcast(const struct bench *b, size_t size, struct delivery *ret_list)
{
	int root = moving_root(b, b->call - 1);

	ret_list[0] = (struct delivery){0, size, 0, root};
	return root == b->job.rank ? 0 : 1;
}

static int expect_allgather(const struct bench *b, size_t size, struct delivery *ret_list)
{
	int i;

	for (i = 0; i < b->job.nr_ranks; i++)
		ret_list[i] = (struct delivery){size * (size_t)i, size, 0, i};
	return b->job.nr_ranks;
}

static int expect_alltoall(const struct bench *b, size_t size, struct delivery *ret_list)
{
	int i;

	for (i = 0; i < b->job.nr_ranks; i++)
		ret_list[i] =
			(struct delivery){size * (size_t)i, size, size * (size_t)b->job.rank, i};
	return b->job.nr_ranks;
}

static int expect_alltoallv(const struct bench *b, size_t size, struct delivery *ret_list)
{
	int i, n = b->job.nr_ranks, r = b->job.rank;

	for (i = 0; i < n; i++)
		ret_list[i] =
			(struct delivery){size * (size_t)(n - 1 - i), uneven_bytes(size, i, r),
					  size * (size_t)(n - 1 - r), i};
	return n;
}

static const struct pattern patterns[] = {
	{"pingpong", PATTERN_PAIR, 1, run_pingpong, expect_partner},
	{"pingping", PATTERN_PAIR, 1, run_pingping, expect_partner},
	{"uniband", PATTERN_PAIR, 1, run_uniband, expect_uniband},
	{"biband", PATTERN_PAIR, 2, run_biband, expect_window},
	{"sendrecv", PATTERN_RING, 2, run_sendrecv, expect_sendrecv},
	{"exchange", PATTERN_RING, 4, run_exchange, expect_exchange},
	{"bcast", PATTERN_MOVE, 0, run_bcast, expect_bcast},
	{"allreduce", PATTERN_REDUCE, 0, run_allreduce, NULL},
	{"reduce", PATTERN_REDUCE, 0, run_reduce, NULL},
	{"allgather", PATTERN_MOVE, 0, run_allgather, expect_allgather},
	{"alltoall", PATTERN_MOVE, 0, run_alltoall, expect_alltoall},
	{"alltoallv", PATTERN_MOVE, 0, run_alltoallv, expect_alltoallv},
	{"barrier", PATTERN_SYNC, 0, run_barrier, NULL},
};

#define NR_PATTERNS (sizeof(patterns) / sizeof(patterns[0]))

#endif
