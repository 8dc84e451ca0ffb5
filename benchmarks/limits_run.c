// SPDX-License-Identifier: Apache-2.0
#include "limits.h"

#include <errno.h>
#include <string.h>
#include <sys/uio.h>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#define CHUNK_BYTES ((size_t)32 << 10)

static inline void wait_for(_Atomic uint64_t *word, uint64_t value)
{
	while (atomic_load_explicit(word, memory_order_acquire) < value)
		pause_cpu();
}

/* Each side writes its own line and reads the other's, in turn. */
static void run_cacheline(struct side *side, int batch)
{
	struct shared *s = side->shared;
	int i;

	for (i = 0; i < batch; i++) {
		uint64_t turn = ++side->rounds;

		if (side->writer) {
			atomic_store_explicit(&s->ping, turn, memory_order_release);
			while (atomic_load_explicit(&s->pong, memory_order_acquire) != turn)
				;
		} else {
			while (atomic_load_explicit(&s->ping, memory_order_acquire) != turn)
				;
			atomic_store_explicit(&s->pong, turn, memory_order_release);
		}
	}
}

static void run_slots(struct side *side, int batch)
{
	struct shared *s = side->shared;
	volatile uint64_t sink = 0;
	uint64_t credit = atomic_load_explicit(&s->consumed, memory_order_acquire) + RING_SLOTS;
	int i;

	for (i = 0; i < batch; i++) {
		uint64_t turn = ++side->slots;
		struct limit_slot *slot = &s->ring[turn % RING_SLOTS];

		if (side->writer) {
			while (turn > credit)
				credit = atomic_load_explicit(&s->consumed, memory_order_acquire) +
					 RING_SLOTS;
			slot->payload[0] = turn;
			atomic_store_explicit(&slot->sequence, turn, memory_order_release);
		} else {
			while (atomic_load_explicit(&slot->sequence, memory_order_acquire) != turn)
				;
			sink += slot->payload[0];
			if (turn % (RING_SLOTS / 4) == 0)
				atomic_store_explicit(&s->consumed, turn, memory_order_release);
		}
	}
	if (!side->writer)
		atomic_store_explicit(&s->consumed, side->slots, memory_order_release);
	else
		wait_for(&s->consumed, side->slots);
}

static void run_memcpy(struct side *side, size_t size, int batch)
{
	int i;

	for (i = 0; side->writer && i < batch; i++) {
		memcpy(side->other, side->buffer, size);
		__asm__ volatile("" : : "r"(side->other) : "memory");
	}
}

/* One of the two copies between the processes' own memory, through the kernel. */
static void copy_remote(struct side *side, size_t from, size_t size)
{
	struct shared *s = side->shared;
	struct iovec local = {side->buffer + from, size};
	struct iovec remote = {(char *)(uintptr_t)s->remote[side->writer] + from, size};
	pid_t pid = s->pid[side->writer];
	ssize_t done = side->writer ? process_vm_writev(pid, &local, 1, &remote, 1, 0) :
				      process_vm_readv(pid, &local, 1, &remote, 1, 0);

	if (done != (ssize_t)size)
		s->cma_error = errno ? errno : EIO;
}

/* The writer touches a line of the message, so that nothing can be skipped, and hands it over. */
static void run_handover(struct side *side, enum limit limit, size_t size, int batch)
{
	struct shared *s = side->shared;
	size_t half = limit == LIMIT_CMA_BOTH ? size / 2 / 4096 * 4096 : size;
	int i;

	for (i = 0; i < batch; i++) {
		uint64_t turn = ++side->rounds;

		if (side->writer) {
			(limit == LIMIT_ONE_COPY ? s->pool : side->buffer)[turn % size]++;
			atomic_store_explicit(&s->ping, turn, memory_order_release);
			if (half < size)
				copy_remote(side, half, size - half);
			wait_for(&s->pong, turn);
			continue;
		}
		wait_for(&s->ping, turn);
		if (limit == LIMIT_ONE_COPY)
			memcpy(side->buffer, s->pool, size);
		else
			copy_remote(side, 0, half);
		atomic_store_explicit(&s->pong, turn, memory_order_release);
	}
}

bool limit_can_stream(void)
{
#if defined(__x86_64__)
	return true;
#else
	return false;
#endif
}

/* A copy whose stores pass by the cache. Size is a multiple of 64, both places are aligned. */
static void copy_streamed(char *to, const char *from, size_t size)
{
#if defined(__x86_64__)
	size_t at;
	int i;

	for (at = 0; at < size; at += 64)
		for (i = 0; i < 4; i++)
			_mm_stream_si128(
				(__m128i *)(void *)(to + at) + i,
				_mm_load_si128((const __m128i *)(const void *)(from + at) + i));
	_mm_sfence();
#else
	memcpy(to, from, size);
#endif
}

static void run_two_copy(struct side *side, const struct limit_test *test, int batch)
{
	struct shared *s = side->shared;
	size_t piece = test->footprint / 2 < CHUNK_BYTES ? test->footprint / 2 : CHUNK_BYTES;
	uint64_t depth = test->footprint / piece;
	int i;

	for (i = 0; i < batch; i++) {
		size_t at, chunk;

		for (at = 0; at < test->size; at += chunk) {
			char *place = s->pool + side->chunks % depth * piece;

			chunk = test->size - at < piece ? test->size - at : piece;
			side->chunks++;
			if (side->writer) {
				if (side->chunks > depth)
					wait_for(&s->consumed, side->chunks - depth);
				if (test->limit == LIMIT_STREAMED)
					copy_streamed(place, side->buffer + at, chunk);
				else
					memcpy(place, side->buffer + at, chunk);
				atomic_store_explicit(&s->produced, side->chunks,
						      memory_order_release);
			} else {
				wait_for(&s->produced, side->chunks);
				memcpy(side->buffer + at, place, chunk);
				atomic_store_explicit(&s->consumed, side->chunks,
						      memory_order_release);
			}
		}
	}
	if (side->writer)
		wait_for(&s->consumed, side->chunks);
}

/* The counters of slots and chunks share the words `consumed` and `produced`: start anew. */
static void begin(struct side *side)
{
	side->slots = side->chunks = side->rounds = 0;
	if (!side->writer)
		return;
	side->shared->ping = side->shared->pong = 0;
	side->shared->consumed = side->shared->produced = 0;
	memset(side->shared->ring, 0, sizeof(side->shared->ring));
}

void limit_run(struct side *side, const struct limit_test *test, int batch)
{
	if (batch == 0)
		begin(side);
	switch (test->limit) {
	case LIMIT_CACHELINE:
		run_cacheline(side, batch);
		break;
	case LIMIT_SLOTS:
		run_slots(side, batch);
		break;
	case LIMIT_MEMCPY:
		run_memcpy(side, test->size, batch);
		break;
	case LIMIT_ONE_COPY:
	case LIMIT_CMA:
	case LIMIT_CMA_BOTH:
		run_handover(side, test->limit, test->size, batch);
		break;
	case LIMIT_TWO_COPY:
	case LIMIT_STREAMED:
		run_two_copy(side, test, batch);
		break;
	case NR_LIMITS:
	case LIMIT_REST:
		break;
	}
}
