/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The limits themselves: what each of two processes does in one sample. They share one mapping, and
 * each has buffers of its own.
 */
#ifndef NM_BENCH_LIMITS_H
#define NM_BENCH_LIMITS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define COPY_MAX ((size_t)4 << 20)
#define POOL_MAX ((size_t)16 << 20)
#define POOL_BYTES ((size_t)4 << 20)
#define RING_SLOTS 256u
#define LINE __attribute__((aligned(64)))

enum limit {
	LIMIT_CACHELINE,
	LIMIT_SLOTS,
	LIMIT_MEMCPY,
	LIMIT_ONE_COPY,
	LIMIT_TWO_COPY,
	LIMIT_STREAMED, /* two_copy with stores that pass by the writer's cache */
	LIMIT_CMA,
	LIMIT_CMA_BOTH,
	NR_LIMITS,
	LIMIT_REST, /* no limit: the second process sleeps until it is woken */
};

/* One thing to measure. */
struct limit_test {
	enum limit limit;
	size_t size;
	size_t footprint; /* two copies: bytes of the pool that are used in turn */
};

struct limit_slot {
	_Atomic uint64_t sequence;
	uint64_t payload[7];
};

struct shared {
	LINE _Atomic uint32_t order; /* counts samples */
	struct limit_test test;
	int batch;			/* operations in the sample; 0: begin anew */
	LINE _Atomic uint32_t finished; /* by the second process */
	LINE _Atomic uint64_t ping;
	LINE _Atomic uint64_t pong;
	LINE _Atomic uint64_t consumed;
	LINE _Atomic uint64_t produced;
	LINE uint64_t remote[2]; /* address of each process's buffer */
	pid_t pid[2];
	_Atomic int cma_error;
	LINE struct limit_slot ring[RING_SLOTS];
	char pool[POOL_MAX] __attribute__((aligned(4096)));
};

struct side {
	struct shared *shared;
	bool writer;
	char *buffer, *other;		/* COPY_MAX each */
	uint64_t slots, chunks, rounds; /* counters that go on from sample to sample */
};

/* Both processes call it with the same test. Before the first sample of a test: batch 0. */
void limit_run(struct side *side, const struct limit_test *test, int batch);

/* Whether this machine has stores that pass by the cache. */
bool limit_can_stream(void);

static inline void pause_cpu(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

#endif
