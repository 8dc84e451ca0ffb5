/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Completions and counters, independent of any libfabric format. The engine writes them, the
 * provider reads them and turns them into the format the caller asked for.
 */
#ifndef NM_ENGINE_COMPLETION_H
#define NM_ENGINE_COMPLETION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/compiler.h"

struct nm_peer;

/*
 * Operation flags. Same values as libfabric's, so the provider passes them through; asserted in
 * provider/flags_check.c, because the engine includes no foreign header.
 */
#define NM_MSG (1ULL << 1)
#define NM_RMA (1ULL << 2)
#define NM_TAGGED (1ULL << 3)
#define NM_ATOMIC (1ULL << 4)
#define NM_READ (1ULL << 8)
#define NM_WRITE (1ULL << 9)
#define NM_RECV (1ULL << 10)
#define NM_SEND (1ULL << 11)
#define NM_REMOTE_READ (1ULL << 12)
#define NM_REMOTE_WRITE (1ULL << 13)
#define NM_MULTI_RECV (1ULL << 16)
#define NM_REMOTE_CQ_DATA (1ULL << 17)
#define NM_PEEK (1ULL << 19)
#define NM_COMPLETION (1ULL << 24)
#define NM_INJECT (1ULL << 25)
#define NM_INJECT_COMPLETE (1ULL << 26)
#define NM_TRANSMIT_COMPLETE (1ULL << 27)
#define NM_DELIVERY_COMPLETE (1ULL << 28)
#define NM_MATCH_COMPLETE (1ULL << 31)
#define NM_CLAIM (1ULL << 59)
#define NM_DISCARD (1ULL << 58)

/* Truncation, as a completion's err: libfabric's FI_ETRUNC (asserted by the provider). */
#define NM_ETRUNC 265

struct nm_completion {
	void *context;
	uint64_t flags; /* NM_SEND|NM_TAGGED, NM_RECV|NM_MSG|NM_REMOTE_CQ_DATA, ... */
	size_t len;	/* bytes received */
	void *buf;	/* multi-receive: where the message starts */
	uint64_t data;
	uint64_t tag;
	struct nm_peer *source; /* of a receive; NULL otherwise */
	int err;		/* 0, or a positive errno (ECANCELED, NM_ETRUNC...) */
	size_t olen;		/* truncation: bytes that did not fit */
};

/*
 * A queue of completions: a ring of a power of two entries, head and tail count for ever. It grows
 * when it is full; only when there is no memory for that is a completion lost, and the log says so.
 * Not thread-safe: engine lock.
 */
struct nm_cqueue {
	struct nm_completion *entries;
	size_t mask;
	size_t head;		    /* oldest */
	size_t tail;		    /* next free */
	struct nm_completion scrap; /* where a completion goes that memory could not be had for */
};

int nm_cqueue_create(size_t size_hint, struct nm_cqueue **ret_queue);
void nm_cqueue_destroy(struct nm_cqueue *queue);
/* The rare half of nm_cqueue_add(): the queue is full. */
struct nm_completion *nm_cqueue_add_slowly(struct nm_cqueue *queue) NM_COLD;

static inline bool nm_cqueue_full(const struct nm_cqueue *queue)
{
	return queue->tail - queue->head > queue->mask;
}

/* Append to a queue that is not full: the caller fills the entry at once (all fields). */
static inline struct nm_completion *nm_cqueue_next(struct nm_cqueue *queue)
{
	return &queue->entries[queue->tail++ & queue->mask];
}

/* The same for any queue; grows when full. Never NULL. */
static inline struct nm_completion *nm_cqueue_add(struct nm_cqueue *queue)
{
	return nm_unlikely(nm_cqueue_full(queue)) ? nm_cqueue_add_slowly(queue) :
						    nm_cqueue_next(queue);
}

static inline bool nm_cqueue_empty(const struct nm_cqueue *queue)
{
	return queue->head == queue->tail;
}

/* The oldest completion, or NULL; valid until the next add or pop. */
static inline const struct nm_completion *nm_cqueue_front(const struct nm_cqueue *queue)
{
	return nm_cqueue_empty(queue) ? NULL : &queue->entries[queue->head & queue->mask];
}

static inline void nm_cqueue_pop(struct nm_cqueue *queue)
{
	if (!nm_cqueue_empty(queue))
		queue->head++;
}

/* Set `source` to NULL in completions that name peers of an engine that is going away. */
struct nm_engine;
void nm_cqueue_forget(struct nm_cqueue *queue, const struct nm_engine *engine);

/* A counter: completions and errors. */
struct nm_counter {
	uint64_t value;
	uint64_t errors;
};

#endif
